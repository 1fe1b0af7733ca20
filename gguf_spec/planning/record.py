"""A plan as a JSON-ready record. Sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from gguf_spec.memory import CPU, Kind, MemoryItem, Placement
from gguf_spec.planning.machine import summed
from gguf_spec.planning.types import Bundle, Judged, Plan, Speed, Verdict

SCHEMA = 1
_TARGET_KINDS: tuple[Kind, ...] = (
    "weights", "kv_cache", "recurrent_state", "compute", "output", "overhead",
)  # fmt: skip


def plan_record(plan: Plan, *, llama_cpp: str = "") -> dict[str, Any]:
    """The record of ``plan``, whose numbers follow the rules of llama.cpp ``llama_cpp``."""
    return {
        "schema": SCHEMA,
        "fits": plan.fits,
        "llama_cpp": llama_cpp,
        "target": _target(plan),
        "devices": _devices(plan),
        "host": _host(plan),
        "ladder": [_rung(judged) for judged in plan.ladder],
        "draft": _bundle(plan.drafts[0]) if plan.drafts else None,
        "drafts": [_bundle(bundle) for bundle in plan.drafts],
        "draft_candidates": [_candidate(verdict) for verdict in plan.verdicts],
        "missing_bytes": summed(plan.missing),
        "speed": _speed(plan.speed),
        "speed_with_draft": _speed(plan.speed_with_draft),
        "reasons": list(plan.reasons),
        "hints": list(plan.hints),
    }


def _target(plan: Plan) -> dict[str, Any]:
    target = plan.target
    info = target.rung.info
    own = [item for item in target.items if item.owner == "target"]
    return {
        "ref": target.rung.ref,
        "arch": info.arch,
        "quant": info.quant,
        "file_bytes": info.file_bytes,
        "n_ctx": target.n_ctx,
        "tier": target.tier,
        "placement": placement_record(target.placement),
        "type_k": target.params.type_k,
        "type_v": target.params.type_v,
        "bytes": _by_kind(own, _TARGET_KINDS),
    }


def placement_record(placement: Placement) -> dict[str, Any]:
    """A placement as llama.cpp's options of the same names."""
    return {
        "n_gpu_layers": placement.n_gpu_layers,
        "n_cpu_moe": placement.n_cpu_moe,
        "tensor_split": list(placement.tensor_split) or None,
        "override_tensor": [f"{text}={device}" for text, device in placement.override_tensor],
        "devices": None if placement.devices is None else list(placement.devices),
    }


def _devices(plan: Plan) -> list[dict[str, Any]]:
    machine, items = plan.machine, plan.items
    used = machine.used(items)
    return [
        {
            "name": gpu.name,
            "total": gpu.total,
            "free": gpu.free,
            "budget": gpu.budget,
            "used": used[gpu.name],
            "headroom": gpu.budget - used[gpu.name],
            "items": [_item(item) for item in items if machine.memory_of(item.device) == gpu.name],
        }
        for gpu in machine.gpus
    ]


def _host(plan: Plan) -> dict[str, Any]:
    machine = plan.machine
    if machine.unified is not None:
        return {"total": 0, "available": 0, "budget": 0, "used": 0, "headroom": 0, "items": []}
    items = [item for item in plan.items if item.device == CPU]
    used = sum(item.bytes for item in items)
    return {
        "total": machine.host.total,
        "available": machine.host.available,
        "budget": machine.host.budget,
        "used": used,
        "headroom": machine.host.budget - used,
        "items": [_item(item) for item in items],
    }


def _item(item: MemoryItem) -> dict[str, Any]:
    return {
        "owner": item.owner,
        "kind": item.kind,
        "bytes": item.bytes,
        "source": item.source,
        "why": item.why,
    }


def _rung(judged: Judged) -> dict[str, Any]:
    info = judged.rung.info
    with_draft = None
    if judged.draft is not None:
        with_draft = {
            "method": judged.draft,
            "total_bytes": judged.total_with_draft,
            "fits": not judged.missing_with_draft,
            "missing_bytes": summed(judged.missing_with_draft),
        }
    return {
        "quant": info.quant,
        "ref": judged.rung.ref,
        "bits_per_weight": round(judged.bits, 4),
        "file_bytes": info.file_bytes,
        "exact": judged.rung.exact,
        "total_bytes": judged.total,
        "fits": not judged.missing,
        "missing_bytes": summed(judged.missing),
        "with_draft": with_draft,
        "chosen": judged.chosen,
    }


def _bundle(bundle: Bundle) -> dict[str, Any]:
    params, rung = bundle.params, bundle.rung
    return {
        "method": bundle.offer.method,
        "ref": None if rung is None or bundle.offer.inside else rung.ref,
        "quant": None if rung is None else rung.info.quant,
        "bytes": _by_kind(bundle.items, get_args(Kind)),
        "n_max": bundle.n_max,
        "n_ctx": None if params is None else params.n_ctx,
        "n_ubatch": None if params is None else params.n_ubatch,
        "type_k": None if params is None else params.type_k,
        "type_v": None if params is None else params.type_v,
        "placement": None if bundle.placement is None else draft_placement(bundle.placement),
        "changes": list(bundle.changes),
    }


def draft_placement(placement: Placement) -> dict[str, Any]:
    """Where a draft goes: its layers and its device."""
    devices = None if placement.devices is None else list(placement.devices)
    return {"n_gpu_layers": placement.n_gpu_layers, "devices": devices}


def _candidate(verdict: Verdict) -> dict[str, Any]:
    return {
        "method": verdict.offer.method,
        "ref": verdict.offer.ref,
        "bytes": verdict.bytes,
        "admitted": verdict.admitted,
        "missing_bytes": verdict.missing_bytes,
        "reason": verdict.reason,
        "origin": verdict.offer.origin,
    }


def _speed(speed: Speed | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    return {
        "tokens_per_second": speed.tokens_per_second,
        "source": "estimate",
        "why": speed.why,
    }


def _by_kind(items: Iterable[MemoryItem], kinds: Iterable[Kind]) -> dict[str, int]:
    sums: dict[str, int] = dict.fromkeys(kinds, 0)
    for item in items:
        sums[item.kind] = sums.get(item.kind, 0) + item.bytes
    return sums
