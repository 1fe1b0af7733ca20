"""How the models and contexts of a setup are made, as libllama is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gguf_spec.backend import ContextParams, Device, ModelParams, list_devices
from gguf_spec.control import DrafterFacts
from gguf_spec.drafters.base import Drafter, StatesDrafter
from gguf_spec.gpu_table import MTP_LENGTH, describe
from gguf_spec.loadable import MAX_LAYERS
from gguf_spec.planning.offers import usual_ubatch
from gguf_spec.profile import Target
from gguf_spec.setup import NGRAM_TYPES, DraftSetup, Setup


def drafter_facts(
    drafters: Sequence[Drafter], ceilings: Sequence[int], floors: Sequence[int]
) -> list[DrafterFacts]:
    """What a controller has to know of ``drafters``; the longest and shortest drafts of each."""
    return [
        DrafterFacts(
            drafter.spec_type,
            ceiling,
            max(floor, 1),
            ngram=drafter.spec_type in NGRAM_TYPES,
            size=getattr(drafter, "size_n", 1),
            reads=isinstance(drafter, StatesDrafter),
        )
        for drafter, ceiling, floor in zip(drafters, ceilings, floors, strict=True)
    ]


def first_length(target: Target, devices: Sequence[Device] | None = None) -> int:
    """The length of draft to try first: what published sweeps found best on the first GPU that the
    target is on. ``devices``: those of this build, if they are known."""
    if target.n_gpu_layers == 0:
        return MTP_LENGTH
    for device in list_devices() if devices is None else devices:
        if device.kind == "gpu" and (not target.devices or device.name in target.devices):
            gpu = describe(device.description, device.total)
            return MTP_LENGTH if gpu is None else gpu.mtp_length
    return MTP_LENGTH


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


def context_params(setup: Setup, least_width: int) -> ContextParams:
    """How to make the target's context, with room for ``least_width`` rows at least."""
    target = setup.profile.target
    return ContextParams(
        n_ctx=setup.n_ctx,
        n_batch=target.n_batch,
        n_ubatch=min(target.n_ubatch, target.n_batch),
        max_width=max(setup.max_width, least_width),
        n_threads=setup.n_threads,
        n_threads_batch=setup.n_threads_batch,
        type_k=target.type_k,
        type_v=target.type_v,
        flash_attn=target.flash_attn,
        swa_full=target.swa_full,
        rope=rope_params(target),
        n_rs_seq=setup.n_rs_seq,
        layers=setup.layers,
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


def draft_model_params(setup: Setup, draft: DraftSetup) -> ModelParams:
    """How to load the file of ``draft``."""
    settings = draft.settings
    return ModelParams(
        n_gpu_layers=_layers(settings.n_gpu_layers),
        devices=settings.devices or setup.placed.devices,
        load_mtp=draft.spec_type == "draft-mtp",
    )


def draft_context_params(setup: Setup, draft: DraftSetup) -> ContextParams:
    """How to make the context of ``draft``, apart from what its form of drafting needs."""
    settings = draft.settings
    wanted, usual = settings.n_ubatch, usual_ubatch(draft.spec_type)
    n_ubatch = wanted if isinstance(wanted, int) else usual
    return ContextParams(
        n_ctx=draft.n_ctx,
        n_batch=n_ubatch,
        n_ubatch=n_ubatch,
        n_threads=setup.n_threads,
        n_threads_batch=setup.n_threads_batch,
        type_k=settings.type_k,
        type_v=settings.type_v,
        flash_attn=setup.profile.target.flash_attn,
    )


def _layers(wanted: int | str) -> int | None:
    """Layers on the GPU: None is all of them, which is what "auto" means where they fit."""
    return wanted if isinstance(wanted, int) and wanted >= 0 else None
