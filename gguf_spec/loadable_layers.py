"""What llama.cpp takes for granted of the layers of some architectures.

Their loaders (src/models/) take a tensor if it is there, and their graphs use it in any case; or
they read numbers that a graph divides by or asserts. Part of ``loadable``, which see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gguf_spec.header import ModelInfo

#: Architectures that say of every layer whether it has a sliding window (``is_swa_impl`` read from
#: an array); llama.cpp makes two caches for them, and asserts that some layer uses the second.
WINDOWED = frozenset(["gemma4", "gemma4-assistant", "mimo2", "step35"])
#: Architectures whose loaders require no tensor of a layer's feed-forward part.
LOOSE = frozenset(["hy_v3", "mimo2", "step35"])

_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")


def layers_problem(info: ModelInfo) -> str | None:
    """Why libllama would abort on the layers of ``info``; None if it would not."""
    problem = None
    if info.arch in WINDOWED:
        problem = _window_problem(info)
    if info.arch in WINDOWED | LOOSE:
        problem = problem or _rotary_problem(info)
    if info.arch in LOOSE and info.role == "target":
        for block in range(info.n_layer or 0):
            lacking = lacking_feed_forward(info, block)
            problem = problem or (f"{lacking} is not there" if lacking else None)
    return problem


def lacking_feed_forward(info: ModelInfo, block: int) -> str | None:
    """The first tensor that the feed-forward part of a layer lacks, with experts or without."""
    names = {tensor.name for tensor in info.tensors}

    def has(name: str) -> bool:
        return f"blk.{block}.{name}.weight" in names

    wanted: tuple[str, ...] = _DENSE
    if has("ffn_gate_inp"):
        halves = () if has("ffn_gate_up_exps") else ("ffn_gate_exps", "ffn_up_exps")
        shared = () if info.arch == "mimo2" else _SHARED
        wanted = ("ffn_down_exps", *halves, *shared)
    return next((f"blk.{block}.{name}.weight" for name in wanted if not has(name)), None)


def _window_problem(info: ModelInfo) -> str | None:
    """Caches with and without a window: who uses which, and who computes with another's keys."""
    name, blocks = "attention.sliding_window_pattern", info.arch_uint("block_count", 0) or 0
    pattern, window = per_layer(info, name), info.arch_uint("attention.sliding_window", 0)
    if len(pattern) < blocks or not any(pattern[:blocks]) or not window:
        used = sum(map(bool, pattern[:blocks]))
        return (
            f"a sliding window of {window} tokens in {used} of {blocks} layers "
            f"({info.arch}.{name} has {len(pattern)} values)"
        )
    shared = info.arch_uint("attention.shared_kv_layers", 0) or 0
    own = blocks - shared
    if info.arch == "gemma4" and shared and not (own >= 2 and pattern[own - 2] > pattern[own - 1]):
        return (
            f"{shared} of {blocks} layers use the keys of others, which are not there: layer "
            f"{own - 2} should have a sliding window, and layer {own - 1} none"
        )
    return None


def _rotary_problem(info: ModelInfo) -> str | None:
    """Rotary dimensions come in pairs of a head's values; with none, a decode never ends."""
    usual = (info.n_embd or 0) // max(1, info.n_head or 1)
    head = info.arch_uint("attention.key_length", usual) or 0
    told = info.arch_uint("rope.dimension_count", head) or 0
    full = told // 2 if info.arch == "step35" else told
    narrow = info.arch_uint("attention.key_length_swa", head) or 0
    windowed = info.arch_uint("rope.dimension_count_swa", told) or 0
    for rotary, size in ((full, head), (windowed, narrow)):
        if rotary < 2 or rotary % 2 or rotary > size:
            return f"{rotary} rope dimensions in heads of {size} values"
    if info.arch == "hy_v3" and not full == head == info.arch_uint("attention.value_length", usual):
        return f"{full} rope dimensions in heads of {head} values, which have to be as many"
    return None


def per_layer(info: ModelInfo, name: str) -> list[int]:
    """The values of a key that may hold one number or one per layer; empty when it is missing."""
    value = info.metadata.get(f"{info.arch}.{name}")
    values = value if isinstance(value, tuple) else (value,)
    return [int(item) for item in values if isinstance(item, int)]
