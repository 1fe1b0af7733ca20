"""A loaded model with its drafters, and generations on it: messages in, text out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.backend.template import ChatTemplate
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.neural import head_params, make_neural
from gguf_spec.drafters.ngram_registry import make_ngram
from gguf_spec.drafters.pool import Pool
from gguf_spec.engine import Engine, SequenceState
from gguf_spec.errors import BackendError, InputError
from gguf_spec.generation import Generation, GenerationParams
from gguf_spec.loadable import MAX_LAYERS
from gguf_spec.ngram_pool_file import load_pool, save_pool
from gguf_spec.planning.offers import usual_ubatch
from gguf_spec.profile import Profile, Target, sampling_settings
from gguf_spec.prompt import Message, chat_tokens, raw_tokens
from gguf_spec.run_plan import allocation_warnings
from gguf_spec.sampling import DRY_BREAKERS, SamplingParams
from gguf_spec.setup import NGRAM_TYPES, DraftSetup, Setup

LoadProgress = Callable[[str, float], None]


class Session:
    """A target and its drafters in memory. Close it, or use it as a context manager.

    Raises (constructor):
        BackendError, NoFitError: loading failed; nothing stays behind.
        KeyboardInterrupt: loading was interrupted.
    """

    def __init__(self, setup: Setup, *, progress: LoadProgress | None = None) -> None:
        self.setup = setup
        self.warnings: list[str] = []
        """What came up while loading, for the user to read."""
        self._closers: list[Callable[[], None]] = []
        self._contexts: list[LlamaContext] = []
        try:
            self._load(setup, progress)
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
        """
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

    def breaks_repetition(self, token: int) -> bool:
        """Whether DRY sees no repetition across ``token``."""
        text = self.model.special_text(token)
        return any(breaker in text for breaker in DRY_BREAKERS)

    def close(self) -> None:
        """Free everything, contexts before models."""
        while self._closers:
            self._closers.pop()()
        self._contexts.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _load(self, setup: Setup, progress: LoadProgress | None) -> None:
        target = setup.placed
        n_layer = (setup.target.n_layer or MAX_LAYERS) + setup.target.n_layer_nextn
        params = target_params(target, n_layer)
        if any(draft.inside for draft in setup.drafts):
            params = replace(params, load_mtp=True)
        self.model = self._load_model(setup.ref, setup.path, params, progress)
        self.template = ChatTemplate(setup.target.chat_template, self.model)
        self.context = self._make_context(
            self.model,
            ContextParams(
                n_ctx=setup.n_ctx,
                n_batch=target.n_batch,
                n_ubatch=min(target.n_ubatch, target.n_batch),
                max_width=setup.max_width,
                n_threads=setup.n_threads,
                n_threads_batch=setup.n_threads_batch,
                type_k=target.type_k,
                type_v=target.type_v,
                flash_attn=target.flash_attn,
                swa_full=target.swa_full,
                rope=rope_params(target),
                n_rs_seq=setup.n_rs_seq,
                layers=setup.layers,
            ),
        )
        adapters = [(self.model.load_lora(lora.path), lora.scale) for lora in setup.loras]
        if adapters:
            self.context.set_loras(adapters)
        self.load_seconds = self.model.load_seconds
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
        policy = FixedPolicy(setup.ceilings, setup.floors)
        self.sequence: SequenceState = self.engine.open(drafters, policy)

    def _compare_with_plan(self) -> None:
        """Warn of more memory in use than was planned."""
        try:
            accounts = [context.memory_breakdown() for context in self._contexts]
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
                context = self._draft_context(draft, progress)
                p_min = draft.settings.p_min
                drafters.append(make_neural(kind, context, draft.layers, draft.form, p_min=p_min))
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
        params = ModelParams(
            n_gpu_layers=_layers(settings.n_gpu_layers),
            devices=settings.devices or self.setup.profile.target.devices,
        )
        model = self.model
        if not draft.inside:
            params = replace(params, load_mtp=draft.spec_type == "draft-mtp")
            model = self._load_model(draft.ref, Path(draft.info.files[0]), params, progress)
            self.load_seconds += model.load_seconds
        wanted, usual = settings.n_ubatch, usual_ubatch(draft.spec_type)
        n_ubatch = wanted if isinstance(wanted, int) else usual
        n_max = self.setup.ceilings[self.setup.spec_types.index(draft.spec_type)]
        return self._make_context(
            model,
            ContextParams(
                n_ctx=draft.n_ctx,
                n_batch=n_ubatch,
                n_ubatch=n_ubatch,
                n_threads=self.setup.n_threads,
                n_threads_batch=self.setup.n_threads_batch,
                type_k=settings.type_k,
                type_v=settings.type_v,
                flash_attn=self.setup.profile.target.flash_attn,
                **head_params(
                    draft.spec_type, self.context, draft.form, n_max=n_max, p_min=settings.p_min
                ),
            ),
        )

    def _load_model(
        self, name: str, path: Path, params: ModelParams, progress: LoadProgress | None
    ) -> LlamaModel:
        report = (lambda done: progress(name, done)) if progress else None
        model = LlamaModel(path, params, progress=report)
        self._closers.append(model.close)
        return model

    def _make_context(self, model: LlamaModel, params: ContextParams) -> LlamaContext:
        context = LlamaContext(model, params)
        self._closers.append(context.close)
        self._contexts.append(context)
        return context


def target_params(target: Target, n_layer: int = MAX_LAYERS) -> ModelParams:
    """How to load the target.

    ``n_cpu_moe`` is the tensor override that llama.cpp makes of --n-cpu-moe
    (``llm_add_n_cpu_ffn_overrides`` in common.h); an explicit ``override_tensor`` comes first and
    so wins over it.
    """
    overrides = [tuple(text.rsplit("=", 1)) for text in target.override_tensor]
    layers: Iterable[object] = range(target.n_cpu_moe)
    if target.n_cpu_moe >= n_layer:  # all: libllama tries each pattern on each tensor
        layers = [r"\d+"]
    overrides += [(rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps", "CPU") for i in layers]
    return ModelParams(
        n_gpu_layers=_layers(target.n_gpu_layers),
        split_mode=target.split_mode,
        main_gpu=target.main_gpu,
        tensor_split=target.tensor_split,
        devices=target.devices,
        overrides=tuple((pattern, buffer) for pattern, buffer in overrides),
        use_mmap=target.use_mmap,
        use_mlock=target.use_mlock,
    )


def rope_params(target: Target) -> tuple[tuple[str, float], ...]:
    """The rotary-embedding fields that the profile sets, named as in ``llama_context_params``."""
    names = (
        "rope_freq_base",
        "rope_freq_scale",
        "yarn_ext_factor",
        "yarn_attn_factor",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "yarn_orig_ctx",
    )
    fields = [(name, getattr(target, name)) for name in names]
    if target.rope_scaling is not None:
        # enum llama_rope_scaling_type
        kinds = {"none": 0, "linear": 1, "yarn": 2}
        fields.append(("rope_scaling_type", kinds[target.rope_scaling]))
    return tuple((name, value) for name, value in fields if value is not None)


def _layers(wanted: int | str) -> int | None:
    """Layers on the GPU: None is all of them, which is what "auto" means where they fit."""
    return wanted if isinstance(wanted, int) and wanted >= 0 else None
