"""The plan behind ``run`` and ``chat``: placement and context before anything is loaded.

What is planned is what will be loaded: layers, experts and split are passed on as numbers, so that
libllama has nothing to decide. Afterwards what it allocated is compared with the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gguf_spec.backend import MemoryAccount
from gguf_spec.errors import NoFitError
from gguf_spec.header import ModelInfo
from gguf_spec.hidden_states import ASSISTANT_ARCH
from gguf_spec.memory import CPU, MemoryParams
from gguf_spec.plan import plan
from gguf_spec.plan_machine import Limits, this_machine
from gguf_spec.planning.drafts import mib
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.offers import usual_ubatch
from gguf_spec.planning.target import shortage
from gguf_spec.planning.types import ALL, Bundle, DraftOffer, Plan, Rung, Wish
from gguf_spec.profile import Profile, Target

if TYPE_CHECKING:
    from gguf_spec.setup import DraftSetup

#: From this difference on an allocation is worth a warning: bytes, and a part of what was planned.
LEAST_DIFFERENCE = 64 << 20
LEAST_PART = 0.02
_PLANNED = ("kv_cache", "recurrent_state", "snapshots", "compute")


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a plan means for a setup. ``placed``: the target's settings with the plan's placement;
    ``n_max``: the longest drafts of every type that was admitted."""

    plan: Plan
    placed: Target
    n_max: Mapping[str, int]
    drafts: tuple[DraftSetup, ...]
    warnings: tuple[str, ...]


def fit(
    profile: Profile,
    ref: str,
    target: ModelInfo,
    loras: Sequence[ModelInfo],
    drafts: Sequence[DraftSetup],
    ceilings: Mapping[str, int],
) -> Fitted:
    """Plan for this machine. ``ceilings``: the longest drafts of every type, in order.

    Raises:
        NoFitError: the target does not fit; the hint says what would.
        UsageError: the placement is impossible.
    """
    machine = _machine(profile)
    by_type = {draft.spec_type: draft for draft in drafts}
    offers = [
        _offer(kind, n_max, by_type.get(kind), profile.target) for kind, n_max in ceilings.items()
    ]
    made = plan([Rung(ref, target)], machine, _wish(profile, machine, loras), offers, one=False)
    if not made.fits:
        raise _no_fit(made, ref)
    bundles = {bundle.offer.method: bundle for bundle in made.drafts}
    return Fitted(
        made,
        _placed(profile.target, made),
        {kind: bundle.n_max for kind, bundle in bundles.items()},
        tuple(_fitted(d, bundles[d.spec_type]) for d in drafts if d.spec_type in bundles),
        tuple(_warnings(made)),
    )


def _machine(profile: Profile) -> Machine:
    target, memory = profile.target, profile.memory
    reserve = memory.reserve if "reserve" in memory.model_fields_set else None
    vram = None if memory.vram == "auto" else memory.vram
    names = [name for name in target.devices if name != "none"] if target.devices else None
    machine = this_machine(Limits(vram, None, reserve), devices=names, mapped=target.use_mmap)
    if target.split_mode == "none" and len(machine.gpus) > 1:
        one = machine.gpus[min(target.main_gpu, len(machine.gpus) - 1)]
        machine = replace(machine, gpus=(one,))
    return machine


def _wish(profile: Profile, machine: Machine, loras: Sequence[ModelInfo]) -> Wish:
    target, memory = profile.target, profile.memory
    layers = target.n_gpu_layers
    wanted = layers if isinstance(layers, int) else None if layers == "auto" else ALL
    chosen = target.n_cpu_moe or "n_cpu_moe" in target.model_fields_set
    return Wish(
        MemoryParams(
            n_ctx=0,
            type_k=target.type_k,
            type_v=target.type_v,
            swa_full=target.swa_full,
            n_batch=target.n_batch,
            n_ubatch=min(target.n_ubatch, target.n_batch),
            flash_attn=target.flash_attn,
        ),
        n_ctx=target.n_ctx,
        n_gpu_layers=wanted,
        n_cpu_moe=target.n_cpu_moe if chosen else None,
        tensor_split=target.tensor_split if len(machine.gpus) > 1 else (),
        override_tensor=tuple(_overrides(target.override_tensor, machine)),
        draft_may_displace_layers=memory.draft_may_displace_layers,
        loras=tuple(loras),
    )


def _overrides(texts: Iterable[str], machine: Machine) -> Iterable[tuple[str, str]]:
    """Overrides with the device of their buffer type; host memory has several."""
    names = [gpu.name for gpu in machine.gpus]
    for text in texts:
        pattern, _, buffer = text.rpartition("=")
        yield pattern, buffer if buffer in names else CPU


def _offer(kind: str, n_max: int, draft: DraftSetup | None, target: Target) -> DraftOffer:
    if draft is None:
        return DraftOffer(kind, n_max=n_max)
    settings = draft.settings
    given = settings.model_fields_set
    layers = settings.n_gpu_layers
    n_ubatch = settings.n_ubatch
    fixed = {"types"} if {"type_k", "type_v"} & given else set[str]()
    types, n_ctx = (settings.type_k, settings.type_v), settings.n_ctx
    if draft.info.arch == ASSISTANT_ARCH:  # its cache is the target's
        types, n_ctx, fixed = (target.type_k, target.type_v), "auto", {"types"}
    return DraftOffer(
        kind,
        (Rung(draft.ref, draft.info),),
        inside=draft.inside,
        n_max=n_max,
        n_ubatch=n_ubatch if isinstance(n_ubatch, int) else usual_ubatch(kind),
        type_k=types[0],
        type_v=types[1],
        n_ctx=n_ctx if isinstance(n_ctx, int) else None,
        n_gpu_layers=layers if isinstance(layers, int) and layers >= 0 else None,
        devices=settings.devices,
        fixed=frozenset(fixed | ({"n_ubatch"} if isinstance(n_ubatch, int) else set())),
    )


def _no_fit(made: Plan, ref: str) -> NoFitError:
    total = sum(item.bytes for item in made.target.items)
    hint = "; ".join(made.hints) or "choose a smaller model or a smaller quantization"
    return NoFitError(
        f"{ref} with a context of {made.target.n_ctx} tokens needs {total / 2**30:.2f} GiB: "
        f"{shortage(made.missing)} are missing",
        hint=hint,
    )


def _placed(target: Target, made: Plan) -> Target:
    """The target's settings with what was planned; nothing changes without a GPU."""
    if not made.machine.gpus:
        return target
    placement = made.target.placement
    changes: dict[str, Any] = {
        "n_gpu_layers": placement.n_gpu_layers,
        "n_cpu_moe": placement.n_cpu_moe,
    }
    if placement.devices is not None:
        changes["devices"] = placement.devices or ("none",)
    if placement.tensor_split:
        changes["tensor_split"] = placement.tensor_split
    return target.model_copy(update=changes)


def _fitted(draft: DraftSetup, bundle: Bundle) -> DraftSetup:
    """``draft`` with the settings under which it was admitted."""
    params, placement = bundle.params, bundle.placement
    if params is None or placement is None:
        return draft
    changes: dict[str, Any] = {"type_k": params.type_k, "type_v": params.type_v}
    if bundle.changes:
        changes["n_ubatch"] = params.n_ubatch
    if placement.devices:
        changes |= {"devices": placement.devices, "n_gpu_layers": placement.n_gpu_layers}
    elif not draft.inside and placement.n_gpu_layers == 0:
        changes["n_gpu_layers"] = 0
    settings = draft.settings.model_copy(update=changes)
    return replace(draft, settings=settings, n_ctx=params.n_ctx)


def _warnings(made: Plan) -> Iterable[str]:
    if made.target.shrunk:
        yield f"the context is {made.target.n_ctx} tokens long: no more fits"
    for verdict in made.verdicts:
        name = verdict.offer.method
        if verdict.offer.ref:
            name += f" ({verdict.offer.ref})"
        if verdict.bundle is None:
            yield f"{name} is NOT used: it {verdict.reason}"
        elif verdict.bundle.changes:
            yield f"{name} fits only with {', '.join(verdict.bundle.changes)}"


def allocation_warnings(made: Plan, accounts: Iterable[MemoryAccount]) -> list[str]:
    """Where libllama allocated more than was planned, in words.

    Caches and compute buffers are compared by device. Weights are exact where they are read, and
    where they are mapped libllama counts the span that they have in the file.
    """
    taken: dict[str, int] = {}
    for account in accounts:
        for buffer in account.buffers:
            device = CPU if buffer.host or buffer.device.startswith(CPU) else buffer.device
            taken[device] = taken.get(device, 0) + buffer.context + buffer.compute
    planned: dict[str, int] = {}
    for item in made.items:
        if item.kind in _PLANNED:
            planned[item.device] = planned.get(item.device, 0) + item.bytes
    found = []
    for device, n_bytes in sorted(taken.items()):
        expected = planned.get(device, 0)
        if n_bytes - expected > max(LEAST_DIFFERENCE, LEAST_PART * expected):
            where = "host memory" if device == CPU else device
            found.append(
                f"libllama took {mib(n_bytes)} of {where} for caches and computing, "
                f"{mib(expected)} were planned"
            )
    return found
