"""How fast decoding may be expected to be: bytes read for a token, by what a memory delivers.

Decoding a single token is bound by memory: every weight that it needs is read once. This is an
estimate and says so: no cache is read (an empty context), no time is spent on anything else.
"""

from __future__ import annotations

import re
from collections import defaultdict

from gguf_spec.header import ModelInfo
from gguf_spec.memory import CPU, Placement, facts, layout_of
from gguf_spec.memory.bill import BLOCKS
from gguf_spec.memory.facts import per_layer
from gguf_spec.memory.weights import device_of
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.types import Bundle, Speed, TargetPlan

#: Bytes per second of two channels of DDR5, and the share of it that decoding gets: where nothing
#: is known of a host.
HOST_BANDWIDTH = 60 * 10**9
_HOST_SHARE = 0.6
#: Chance that a drafted token is accepted, for estimates before anything has been measured.
ACCEPTANCE = 0.6

_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(up|down|gate_up|gate)_(ch|)exps")
_LAYER = re.compile(r"blk\.(\d+)\.")


def target_speed(target: TargetPlan, machine: Machine) -> Speed:
    """Plain decoding."""
    seconds, why = _seconds(read_bytes(target.rung.info, target.placement, machine), machine)
    if seconds is None:
        return Speed(None, why)
    return Speed(1 / seconds, why)


def draft_speed(target: TargetPlan, bundle: Bundle, machine: Machine) -> Speed:
    """Decoding with a draft, of whose tokens ``ACCEPTANCE`` are accepted."""
    if bundle.rung is None or bundle.placement is None:
        return Speed(None, "how often texts repeat themselves is known when they are there")
    seconds, why = _seconds(read_bytes(target.rung.info, target.placement, machine), machine)
    own = read_bytes(bundle.rung.info, bundle.placement, machine, mtp=bundle.offer.inside)
    draft_seconds, draft_why = _seconds(own, machine)
    if seconds is None or draft_seconds is None:
        return Speed(None, why if seconds is None else draft_why)
    passes = 1 if bundle.offer.method in BLOCKS else bundle.n_max
    tokens = sum(ACCEPTANCE**i for i in range(bundle.n_max + 1))
    assumed = f"{tokens:.2f} tokens a round if {ACCEPTANCE:.0%} of drafted tokens are accepted"
    return Speed(tokens / (seconds + passes * draft_seconds), f"{assumed}; {why}")


def read_bytes(
    info: ModelInfo, placement: Placement, machine: Machine, *, mtp: bool = False
) -> dict[str, int]:
    """Bytes that decoding one token reads, by device: of experts those in use, of the embeddings
    one row. ``mtp`` reads the MTP layers instead of the model."""
    known = facts(info)
    where = layout_of(info, placement, machine.hardware)
    patterns = [(re.compile(text), device) for text, device in placement.override_tensor]
    n_experts = info.arch_uint("expert_count") or 0
    used = per_layer(info, "expert_used_count", known.n_layer_all, 0)
    sums: defaultdict[str, float] = defaultdict(float)
    tied = all(tensor.name != "output.weight" for tensor in info.tensors)
    for tensor in info.tensors:
        layer = _LAYER.match(tensor.name)
        if layer is not None and (int(layer[1]) >= known.n_layer) != mtp:
            continue
        device = device_of(tensor.name, known, where)
        if tensor.name == "token_embd.weight":
            device = where.output if tied else None
        if device is None:
            continue
        n_bytes = float(tensor.n_bytes)
        experts = _EXPERTS.match(tensor.name)
        if experts is not None and n_experts:
            number = int(experts[1])
            n_bytes *= min(used[number] / n_experts, 1.0) if number < len(used) else 1.0
            device = CPU if number < placement.n_cpu_moe else device
        device = next((to for text, to in patterns if text.search(tensor.name)), device)
        sums[device] += n_bytes
    return {device: round(n_bytes) for device, n_bytes in sums.items()}


def _seconds(read: dict[str, int], machine: Machine) -> tuple[float | None, str]:
    """Seconds that reading takes, one memory after the other, and how that was worked out."""
    gpus = {gpu.name: gpu for gpu in machine.gpus}
    seconds, parts = 0.0, []
    for device, n_bytes in sorted(read.items()):
        gpu = gpus.get(machine.memory_of(device))
        if gpu is None:
            speed = machine.host.bandwidth or HOST_BANDWIDTH
            share, assumed = _HOST_SHARE, "" if machine.host.bandwidth else " (assumed)"
            where = "host memory"
        else:
            if not gpu.bandwidth:
                return None, f"the bandwidth of {gpu.name} is not known"
            speed, share, assumed, where = gpu.bandwidth, gpu.share or _HOST_SHARE, "", gpu.name
        if not n_bytes:
            continue
        seconds += n_bytes / (speed * share)
        parts.append(
            f"{n_bytes / 1e9:.2f} GB a token from {where} at {share:.0%} of "
            f"{speed / 1e9:.0f} GB/s{assumed}"
        )
    if not seconds:
        return None, "the file has no weights"
    return seconds, "estimate: " + ", ".join(parts)
