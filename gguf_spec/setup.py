"""From a profile to what will be loaded: files found, headers checked, drafting chosen.

Nothing is loaded here, and nothing that libllama would abort on gets past here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import psutil

from gguf_spec.block_format import BlockFormat, block_format
from gguf_spec.draft_choice import DraftFile, choose
from gguf_spec.drafters.ngram_registry import ngram_ceiling
from gguf_spec.errors import InputError, PairError
from gguf_spec.folders import home_cache_dir
from gguf_spec.header import ModelInfo, read_header, read_model
from gguf_spec.hub.pull import locate
from gguf_spec.loadable import check_adapter, check_loadable
from gguf_spec.memory.limits import snapshots
from gguf_spec.ngram_pool_file import pool_path
from gguf_spec.pairing import needs_translation
from gguf_spec.pairing_heads import wanted_states
from gguf_spec.pairing_mtp import chain_length
from gguf_spec.planning.types import Plan
from gguf_spec.profile import DRAFT_TYPES, Draft, Profile, Target, draft_settings, parse_lora
from gguf_spec.profile_schema import DraftType
from gguf_spec.run_plan import fit

Progress = Callable[[str, "int | None", "int | None"], None]

NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
DEFAULT_REF = "demo"
DEFAULT_N_CTX = 8192
DEFAULT_DRAFT_N_MAX = 3  # llama.cpp's --spec-draft-n-max
MAX_N_CTX = 2**31 - 1  # llama.cpp counts tokens in 32 bits; more would wrap around
MAX_THREADS = 512  # GGML_MAX_N_THREADS: ggml's buffers for more would overflow
#: What a profile may hold, and nothing here looks at yet: keys of a table.
NOT_YET = {"engine": "kind"}


@dataclass(frozen=True, slots=True)
class DraftSetup:
    """A drafter that is a model, or a part of one. ``n_ctx`` in tokens.

    ``layers`` are the states of the target that it reads (ids as in ``hidden_states``). ``inside``
    is a head in the target's own file. ``form`` is of DFlash and DSpark files. ``translated`` has
    another vocabulary than the target.
    """

    spec_type: str
    ref: str
    info: ModelInfo
    settings: Draft
    n_ctx: int
    layers: tuple[int, ...] = ()
    inside: bool = False
    form: BlockFormat | None = None
    translated: bool = False


@dataclass(frozen=True, slots=True)
class LoraSetup:
    """A LoRA adapter and how strongly it is applied."""

    path: Path
    scale: float
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Setup:
    """What will be loaded, and how. ``warnings`` are for the user to read; ``name`` is what the
    profile is called, and under which its pool of texts is kept.

    ``spec_types`` are in the order in which they are asked; ``ceilings`` and ``floors`` are the
    longest and shortest drafts of each, in tokens. ``placed`` is the profile's target with the
    placement of the ``plan``. ``siblings`` are the types whose file was found beside the target,
    and ``remarks`` say so.
    """

    profile: Profile
    name: str
    ref: str
    target: ModelInfo
    n_ctx: int
    n_threads: int
    n_threads_batch: int
    spec_types: tuple[str, ...]
    ceilings: tuple[int, ...]
    floors: tuple[int, ...]
    drafts: tuple[DraftSetup, ...]
    loras: tuple[LoraSetup, ...]
    warnings: tuple[str, ...]
    plan: Plan
    placed: Target
    siblings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def without(self, kinds: Sequence[str]) -> Setup:
        """The same without the spec types ``kinds``."""
        kept = [i for i, kind in enumerate(self.spec_types) if kind not in kinds]
        return replace(
            self,
            spec_types=tuple(self.spec_types[i] for i in kept),
            ceilings=tuple(self.ceilings[i] for i in kept),
            floors=tuple(self.floors[i] for i in kept),
            drafts=tuple(draft for draft in self.drafts if draft.spec_type not in kinds),
            siblings=tuple(kind for kind in self.siblings if kind not in kinds),
        )

    @property
    def path(self) -> Path:
        """The target's file; of a split set the first part."""
        return Path(self.target.files[0])

    @property
    def pool_path(self) -> Path | None:
        """Where texts are kept for n-gram drafts of later runs, if the profile wants that."""
        fingerprint = self.target.tokenizer.fingerprint
        if self.profile.spec.pool != "profile" or fingerprint is None:
            return None
        return pool_path(home_cache_dir() / "pools", self.name, fingerprint)

    @property
    def max_width(self) -> int:
        """Most rows with logits that a sequence needs in one decode."""
        return 1 + max(self.ceilings, default=0)

    @property
    def layers(self) -> tuple[int, ...]:
        """States of the target that some drafter reads."""
        return tuple(sorted({layer for draft in self.drafts for layer in draft.layers}))

    @property
    def n_rs_seq(self) -> int:
        """Snapshots of a recurrent state: enough to drop what models and heads draft. N-gram drafts
        are longer, and rare: for those there are checkpoints."""
        lengths = dict(zip(self.spec_types, self.ceilings, strict=True))
        longest = max((lengths[draft.spec_type] for draft in self.drafts), default=0)
        return snapshots(self.target, longest)


def prepare(profile: Profile, *, name: str = "", progress: Progress | None = None) -> Setup:
    """Find and check everything that ``profile`` names.

    Raises:
        InputError: a file is missing, damaged, or of the wrong kind; a draft does not fit.
        UsageError: a spec type needs a file, and none was named or found.
        NoFitError: the target does not fit into memory.
    """
    warnings: list[str] = []
    _check_limits(profile)
    _warn_of_ignored(profile, warnings)
    ref = profile.target.model or DEFAULT_REF
    target = _read(ref, progress, as_target=True)
    n_ctx = _context_length(profile, target, warnings)
    choice = choose(profile, target, lambda ref: _read(ref, progress, as_target=False), warnings)
    types, files = choice.types, choice.files
    if profile.spec.pool == "profile" and target.tokenizer.fingerprint is None:
        warnings.append("the model names no tokenizer: texts are not kept for later runs")
    drafts = [
        _draft(kind, profile, target, n_ctx, files.get(kind))
        for kind in types
        if kind not in NGRAM_TYPES
    ]
    loras = tuple(_lora(text, target) for text in profile.target.lora)
    ceilings = {
        kind: _ceiling(kind, profile, n_ctx, files.get(kind, (ref, target))) for kind in types
    }
    fitted = fit(profile, ref, target, [lora.info for lora in loras], drafts, ceilings)
    types = tuple(kind for kind in types if kind in fitted.n_max)
    n_threads = _threads(profile.target.n_threads)
    return Setup(
        profile=profile,
        name=name or str(Path(target.files[0]).resolve()),
        ref=ref,
        target=target,
        n_ctx=fitted.plan.target.n_ctx,
        n_threads=n_threads,
        n_threads_batch=_threads(profile.target.n_threads_batch, n_threads),
        spec_types=types,
        ceilings=tuple(min(fitted.n_max[kind], fitted.plan.target.n_ctx) for kind in types),
        floors=tuple(_floor(kind, profile) for kind in types),
        drafts=fitted.drafts,
        loras=loras,
        warnings=(*warnings, *fitted.warnings),
        plan=fitted.plan,
        placed=fitted.placed,
        siblings=tuple(kind for kind in choice.siblings if kind in types),
        remarks=choice.remarks if set(choice.siblings) <= set(types) else (),
    )


def default_threads() -> int:
    """Physical cores that this process may use: more threads than that slow llama.cpp down."""
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        allowed = os.cpu_count() or 1
    return max(1, min(cores, allowed))


def _check_limits(profile: Profile) -> None:
    """Refuse numbers on which libllama would abort or crash."""
    target, drafts = profile.target, [_settings(profile, kind) for kind in DRAFT_TYPES]
    for name, value, most in (
        ("target.n_ctx", target.n_ctx, MAX_N_CTX),
        ("target.n_threads", target.n_threads, MAX_THREADS),
        ("target.n_threads_batch", target.n_threads_batch, MAX_THREADS),
        ("target.n_batch", target.n_batch, MAX_N_CTX),
        *(("spec.draft n_ctx", draft.n_ctx, MAX_N_CTX) for draft in drafts),
        *(("spec.draft n_ubatch", draft.n_ubatch, MAX_N_CTX) for draft in drafts),
    ):
        if isinstance(value, int) and value > most:
            raise InputError(f"{name} is {value}, llama.cpp takes at most {most}")


def _warn_of_ignored(profile: Profile, warnings: list[str]) -> None:
    """Name the settings that ask for something which does not exist yet."""
    ignored = []
    for table, names in NOT_YET.items():
        values = getattr(profile, table)
        fields = type(values).model_fields
        ignored += [
            f"{table}.{name}"
            for name in names.split()
            if getattr(values, name) not in (fields[name].default, "auto")
        ]
    if ignored:
        warnings.append(f"not available in this version, and IGNORED: {', '.join(ignored)}")


def _read(ref: str, progress: Progress | None, *, as_target: bool) -> ModelInfo:
    info = read_model(locate(ref, progress=progress))
    check_loadable(info, as_target=as_target)
    return info


def _lora(text: str, target: ModelInfo) -> LoraSetup:
    path, scale = parse_lora(text)
    info = read_header(locate(path))
    check_adapter(info, target)
    return LoraSetup(Path(info.path), scale, info)


def _threads(wanted: int | str, otherwise: int | None = None) -> int:
    if isinstance(wanted, int):
        return wanted
    return otherwise or default_threads()


def _context_length(profile: Profile, target: ModelInfo, warnings: list[str]) -> int:
    wanted, trained = profile.target.n_ctx, target.n_ctx_train
    if wanted == "max":
        if not trained:
            raise InputError(
                "the file does not say how long a context it was trained for",
                hint="give -c/--ctx-size a number",
            )
        return trained
    if not isinstance(wanted, int):
        return min(trained or DEFAULT_N_CTX, DEFAULT_N_CTX)
    if trained and wanted > trained:
        warnings.append(
            f"the context of {wanted} tokens is longer than the {trained} that the model was "
            "trained for: expect worse text beyond them"
        )
    return wanted


def _ceiling(kind: str, profile: Profile, n_ctx: int, file: DraftFile) -> int:
    """The longest draft of ``kind``: its own limit, under the common one and the file's."""
    if kind in NGRAM_TYPES:
        own = ngram_ceiling(kind, profile.spec)
    else:
        wanted = _settings(profile, kind).n_max
        own = wanted if isinstance(wanted, int) else DEFAULT_DRAFT_N_MAX
        form = _form(kind, file)
        most = chain_length(file[1]) if kind == "draft-mtp" else form and form.n_max
        own = min(own, most or own)
    common = profile.spec.n_max
    return min(own, common if isinstance(common, int) else own, n_ctx)


def _floor(kind: str, profile: Profile) -> int:
    """The shortest draft of ``kind`` that is worth verifying."""
    if kind in NGRAM_TYPES:
        return profile.spec.n_min
    return _settings(profile, kind).n_min


def _settings(profile: Profile, kind: str) -> Draft:
    """The settings of a spec type that is no n-gram type."""
    return draft_settings(profile.spec, cast("DraftType", kind))


def _form(kind: str, file: DraftFile | None) -> BlockFormat | None:
    blocks = kind in ("draft-dflash", "draft-dspark")
    return block_format(file[1]) if blocks and file is not None else None


def _draft(
    kind: str, profile: Profile, target: ModelInfo, n_ctx: int, file: DraftFile | None
) -> DraftSetup:
    settings = _settings(profile, kind)
    draft_n_ctx = settings.n_ctx if isinstance(settings.n_ctx, int) else n_ctx
    if file is None:  # the head in the target's own file, whose fitness has been seen to
        layers = wanted_states(kind, target, target)
        ref = profile.target.model or DEFAULT_REF
        return DraftSetup(kind, ref, target, settings, draft_n_ctx, layers, inside=True)
    ref, info = file
    translated = needs_translation(kind, ref, target, info, allowed=profile.spec.translate)
    form = _form(kind, file)
    problem = form and form.settings_problem(settings.p_min, settings.type_k, settings.type_v)
    if problem:
        raise PairError(
            f"{ref}: {problem}",
            hint=f"change it in [spec.{kind}], or with --set spec.{kind}.KEY=VALUE",
        )
    layers = wanted_states(kind, target, info)
    return DraftSetup(kind, ref, info, settings, draft_n_ctx, layers, False, form, translated)
