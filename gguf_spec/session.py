"""A loaded model with its drafters, and generations on it: messages in, text out."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.backend.grammar import GrammarMask
from gguf_spec.backend.template import ChatTemplate
from gguf_spec.control import AdaptiveController, CostCurve, FixedPolicy
from gguf_spec.control.base import Controller
from gguf_spec.curves import keep_learned, measured_curve
from gguf_spec.draft_sampling import DraftSampling, sampling_warning
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.neural import head_params, make_neural
from gguf_spec.drafters.ngram_registry import make_ngram
from gguf_spec.drafters.pool import Pool
from gguf_spec.engine import Engine, SequenceState
from gguf_spec.errors import BackendError, GgufSpecError, InputError
from gguf_spec.exact import cache_types, costs_path, known_limits, store_path, summary_of
from gguf_spec.generation import Generation, GenerationParams
from gguf_spec.loadable import MAX_LAYERS
from gguf_spec.loading import (
    context_params,
    draft_context_params,
    draft_model_params,
    drafter_facts,
    first_length,
    target_params,
)
from gguf_spec.mapped_files import MappedFiles
from gguf_spec.ngram_pool_file import load_pool, save_pool
from gguf_spec.profile import Profile, sampling_settings
from gguf_spec.prompt import Message, chat_tokens, raw_tokens
from gguf_spec.run_plan import allocation_warnings
from gguf_spec.sampling import DRY_BREAKERS, Mask, SamplingParams
from gguf_spec.setup import NGRAM_TYPES, DraftSetup, Setup
from gguf_spec.thinking import Thinking
from gguf_spec.verify_store import load_record
from gguf_spec.widths import WidthLimits

LoadProgress = Callable[[str, float], None]
WaitProgress = Callable[[str, int, int], None]


class Session:
    """A target and its drafters in memory. Close it, or use it as a context manager.

    ``progress`` hears of files being loaded, ``report`` of what has to be measured once (what, how
    much is done, of how much). The target's batches have room for ``least_width`` rows with logits,
    if the profile needs fewer.

    Raises (constructor):
        BackendError, NoFitError: loading failed; nothing stays behind.
        KeyboardInterrupt: loading was interrupted.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        progress: LoadProgress | None = None,
        report: WaitProgress | None = None,
        least_width: int = 1,
    ) -> None:
        self.setup = setup
        self.report_wait = report
        self._least_width = least_width
        self._adapters: list[tuple[int, float]] = []
        self._undrafted = False
        self.warnings: list[str] = []
        """What came up while loading, for the user to read."""
        self.draft_contexts: dict[str, LlamaContext] = {}
        """Of the drafters that are models, by spec type."""
        self._closers: list[Callable[[], None]] = []
        self._curve_path: Path | None = None
        self._mapped = MappedFiles()
        try:
            self._load_some(setup, progress)
        except BaseException:
            self.close()
            raise

    def chat_prompt(self, messages: Sequence[Message], **arguments: Any) -> list[int]:
        """Prompt tokens of ``messages`` by the model's chat template.

        Raises:
            InputError: the template refuses them.
        """
        arguments = {**self.setup.profile.chat.template, **arguments}
        return chat_tokens(messages, self.template, self.model, arguments)

    def raw_prompt(self, text: str) -> list[int]:
        """Prompt tokens of ``text`` without a template."""
        return raw_tokens(text, self.model)

    def generate(self, prompt: Sequence[int], params: GenerationParams) -> Generation:
        """Start an answer to ``prompt``; iterate over it.

        Raises:
            PromptError: the prompt is empty or longer than the context.
            InputError: a file has changed since it was loaded.
        """
        self._mapped.check()
        return Generation(self, prompt, params)

    def params(self, profile: Profile | None = None, **changes: Any) -> GenerationParams:
        """Generation parameters of the profile, with the GGUF's own sampling defaults below it.

        A seed of -1 becomes a random one, so that the answer can be repeated.

        Raises:
            InputError: a logit bias is for a token that the vocabulary does not have.
        """
        settings = sampling_settings(profile or self.setup.profile, self.setup.target.sampling)
        seed = settings["seed"]
        seed = secrets.randbits(32) if seed < 0 else seed
        sampling = SamplingParams.from_settings(settings, seed)
        unknown = [token for token, _ in sampling.logit_bias if token >= self.model.n_vocab]
        if unknown:
            raise InputError(
                f"sampling.logit_bias names token {unknown[0]}, but the vocabulary ends at "
                f"{self.model.n_vocab - 1}"
            )
        return GenerationParams(
            **{"sampling": sampling, "stop": tuple(settings["stop"]), **changes}
        )

    @functools.cached_property
    def verified(self) -> dict[str, Any] | None:
        """What ``verify`` has found under exactly these conditions; None if it was not run."""
        return summary_of(self._findings)

    @property
    def exact_cost(self) -> float | None:
        """The time of a plain token in exact mode, over that with the profile's settings."""
        cost = self._findings.get("exact_cost")
        return float(cost) if isinstance(cost, int | float) else None

    @functools.cached_property
    def _findings(self) -> dict[str, Any]:
        try:
            return load_record(store_path(self.setup, self.context))
        except InputError:  # the file has gone since it was loaded
            return {}

    @property
    def has_experts(self) -> bool:
        """Whether the target is a mixture of experts."""
        return bool(self.setup.target.arch_uint("expert_count"))

    def grammar(self, text: str, *, name: str = "grammar", trigger: str = "") -> Mask:
        """What the GBNF grammar ``text`` allows, for ``GenerationParams.mask``. ``name`` is what
        errors call it; with a ``trigger`` everything is allowed until that text has come.

        Raises:
            InputError: the grammar has an error, or is too large.
        """
        return GrammarMask(self.model, text, name=name, trigger=trigger)

    def breaks_repetition(self, token: int) -> bool:
        """Whether DRY sees no repetition across ``token``."""
        text = self.model.special_text(token)
        return any(breaker in text for breaker in DRY_BREAKERS)

    @property
    def drafting(self) -> bool:
        """Whether drafts are made; off, all is as without drafters, which stay loaded."""
        return not self._undrafted

    @drafting.setter
    def drafting(self, on: bool) -> None:
        self._undrafted = not on
        limit = self.limits.at if self.setup.profile.spec.exact else None
        self.sequence.width_limit = limit if on else lambda depth: 1

    def close(self) -> None:
        """Free everything, contexts before models. What was learned of costs is kept if it can be
        relied on."""
        path, self._curve_path = self._curve_path, None
        if path is not None:
            keep_learned(path, self.curve)
        while self._closers:
            self._closers.pop()()
        self.draft_contexts.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def drafts_report(self) -> list[dict[str, str | None]]:
        """The drafters that are models: spec type, file (None: in the target's own), and whether
        it was ``asked`` for or is a ``sibling`` found beside the target."""
        return [
            {
                "type": draft.spec_type,
                "ref": None if draft.inside else draft.ref,
                "origin": "inside"
                if draft.inside
                else "sibling"
                if draft.spec_type in self.setup.siblings
                else "asked",
            }
            for draft in self.setup.drafts
            if draft.spec_type in self.spec_types
        ]

    def _load_some(self, setup: Setup, progress: LoadProgress | None) -> None:
        """Load everything; or what was asked for, if a file that nobody named does not load."""
        extras = setup.siblings if setup.profile.spec.types == ("auto",) else ()
        try:
            self._load(setup, progress)
        except GgufSpecError as error:
            if not extras:
                raise
            self.close()
            self.setup = setup.without(extras)
            self._load(self.setup, progress)
            self.warnings.append(f"no {', '.join(extras)}: {error.message}")

    def _load(self, setup: Setup, progress: LoadProgress | None) -> None:
        target = setup.placed
        n_layer = (setup.target.n_layer or MAX_LAYERS) + setup.target.n_layer_nextn
        params = target_params(target, n_layer)
        if any(draft.inside for draft in setup.drafts):
            params = replace(params, load_mtp=True)
        if setup.profile.spec.exact:
            params = replace(params, repack=False)
        self.model = self._load_model(setup.ref, setup.target.files, params, progress)
        self._adapters = [(self.model.load_lora(lora.path), lora.scale) for lora in setup.loras]
        self.template = ChatTemplate(setup.target.chat_template, self.model)
        self.thinking = Thinking(setup.target.chat_template, self.model)
        self.context, self.limits = self._target_context(setup)
        self.load_seconds = self.model.load_seconds
        self.warmup_seconds = 0.0
        self.curve = CostCurve()
        types = setup.spec_types
        if types and not self.context.removes_tail and not self.context.can_save:
            types = ()
            self.warnings.append(
                f"no drafting: the cache of {setup.target.arch} models cannot drop rejected tokens "
                f"with llama-cpp-python {self.model.lib.version}"
            )
        self.spec_types = types
        self.pool = Pool()
        if setup.pool_path is not None:
            for text in load_pool(setup.pool_path, **self._pool_key()):
                self.pool.add(text)
        drafters = self._drafters(types, progress)
        self._compare_with_plan()
        self.engine = Engine(self.context)
        self.controller = self._controller(drafters)
        self.sequence: SequenceState = self.engine.open(
            drafters, self.controller, self._sampling(types)
        )
        if setup.profile.spec.exact:
            self.sequence.keeps_whole_chunks = True
            self.sequence.width_limit = self.limits.at

    def _target_context(self, setup: Setup) -> tuple[LlamaContext, WidthLimits]:
        """The target's context, and in exact mode the widths that drafts must keep to."""
        params = context_params(setup, self._least_width)
        if not setup.profile.spec.exact:
            return self._with_loras(self._make_context(self.model, params)), WidthLimits()
        params = replace(params, flash_attn="on")
        *others, last = cache_types(setup.profile.target)
        for type_k, type_v in others:
            try:
                context = self._make_context(
                    self.model, replace(params, type_k=type_k, type_v=type_v)
                )
            except BackendError:  # this model has no such cache
                continue
            limits = self._exact_limits(self._with_loras(context))
            if setup.max_width == 1 or limits.narrowest > 1:
                return context, limits
            self._closers.pop()()
        type_k, type_v = last
        context = self._make_context(self.model, replace(params, type_k=type_k, type_v=type_v))
        return context, self._exact_limits(self._with_loras(context))

    def _controller(self, drafters: Sequence[Drafter]) -> Controller:
        """Who decides what is drafted; the curve of costs is measured if need be."""
        setup = self.setup
        if not (setup.profile.spec.control and drafters):
            return FixedPolicy(setup.ceilings, setup.floors)
        begun = perf_counter()
        path = costs_path(setup, self.context)
        self.curve = measured_curve(self.context, path)
        self._curve_path = path
        self.context.busy_seconds = 0.0
        self.warmup_seconds = perf_counter() - begun
        facts = drafter_facts(drafters, setup.ceilings, setup.floors)
        length = first_length(setup.profile.target)
        return AdaptiveController(facts, self.curve, first_length=length)

    def _exact_limits(self, context: LlamaContext) -> WidthLimits:
        if self.setup.max_width == 1:
            return WidthLimits()
        self.context = context
        return known_limits(self, store_path(self.setup, context))

    def _with_loras(self, context: LlamaContext) -> LlamaContext:
        """``context`` with the profile's adapters."""
        if self._adapters:
            context.set_loras(self._adapters)
        return context

    def _sampling(self, types: Sequence[str]) -> DraftSampling:
        """How drafts are drawn and verified: n-gram drafts leave nothing to choose."""
        spec = self.setup.profile.spec
        if all(kind in NGRAM_TYPES for kind in types):
            if types and spec.verify == "residual":
                self.warnings.append(
                    'verify "residual" has nothing to do with n-grams: such drafts are matched'
                )
            return DraftSampling()
        verify = "match" if spec.exact else spec.verify  # `auto` may: residual is refused with it
        warning = sampling_warning(verify, spec.draft_sampling)
        if warning is not None:
            self.warnings.append(warning)
        return DraftSampling(verify, spec.draft_sampling)

    def _compare_with_plan(self) -> None:
        """Warn of more memory in use than was planned. Exact mode has caches of its own choice."""
        if self.setup.profile.spec.exact:
            return
        contexts = [self.context, *self.draft_contexts.values()]
        try:
            accounts = [context.memory_breakdown() for context in contexts]
        except BackendError:
            return  # this libllama does not say, and has allocated what it needs
        self.warnings += allocation_warnings(self.setup.plan, accounts)

    def _drafters(self, types: Sequence[str], progress: LoadProgress | None) -> list[Drafter]:
        """The drafters in order. The first n-gram drafter alone has the pool: after a wrong
        prediction the others would repeat the mistake, one after the other."""
        drafters: list[Drafter] = []
        pool: Pool | None = self.pool
        spec, n_vocab = self.setup.profile.spec, self.model.n_vocab
        for kind in types:
            if kind in NGRAM_TYPES:
                drafters.append(make_ngram(kind, spec, pool, n_vocab=n_vocab))
                pool = None
            else:
                draft = next(d for d in self.setup.drafts if d.spec_type == kind)
                context = self.draft_contexts[kind] = self._draft_context(draft, progress)
                drafters.append(
                    make_neural(
                        kind,
                        context,
                        draft.layers,
                        draft.form,
                        n_max=self._ceiling(kind),
                        p_min=draft.settings.p_min,
                        translate_for=self.model if draft.translated else None,
                    )
                )
        return drafters

    def _pool_key(self) -> dict[str, Any]:
        fingerprint = self.setup.target.tokenizer.fingerprint or ""
        return {"fingerprint": fingerprint, "n_vocab": self.model.n_vocab}

    def remember(self, tokens: Sequence[int]) -> None:
        """Keep a text for later n-gram drafts, for as long as the profile's ``pool`` says."""
        self.pool.predict(())
        if self.setup.profile.spec.pool == "request" or not tokens:
            return
        self.pool.add(tokens)
        path = self.setup.pool_path
        if path is None:
            return
        try:
            save_pool(path, self.pool.texts, **self._pool_key())
        except InputError as error:  # an answer is worth more than the pool
            warning = f"texts for later drafts are not kept: {error}"
            if warning not in self.warnings:
                self.warnings.append(warning)

    def _draft_context(self, draft: DraftSetup, progress: LoadProgress | None) -> LlamaContext:
        settings = draft.settings
        model = self.model
        if not draft.inside:
            params = draft_model_params(self.setup, draft)
            model = self._load_model(draft.ref, draft.info.files, params, progress)
            self.load_seconds += model.load_seconds
        kind, form, p_min = draft.spec_type, draft.form, settings.p_min
        given = head_params(kind, model, self.context, form, n_max=self._ceiling(kind), p_min=p_min)
        return self._make_context(model, replace(draft_context_params(self.setup, draft), **given))

    def _ceiling(self, kind: str) -> int:
        return self.setup.ceilings[self.setup.spec_types.index(kind)]

    def _load_model(
        self, name: str, files: Sequence[str], params: ModelParams, progress: LoadProgress | None
    ) -> LlamaModel:
        self._mapped.add(files if params.use_mmap else ())
        report = (lambda done: progress(name, done)) if progress else None
        model = LlamaModel(Path(files[0]), params, progress=report)
        self._closers.append(model.close)
        return model

    def _make_context(self, model: LlamaModel, params: ContextParams) -> LlamaContext:
        context = LlamaContext(model, params)
        self._closers.append(context.close)
        return context
