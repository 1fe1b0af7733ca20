"""What libllama would read from a header about layers: ``llama_hparams``, as far as memory goes.

Line numbers are those of the llama.cpp vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gguf_spec.header import ModelInfo
from gguf_spec.memory.architectures import (
    DEFAULT_WINDOWS,
    FIXED_KV_LAYERS,
    HYBRID,
    INTERVALS,
    KNOWN,
    NO_CACHE,
    RECURRENT,
    ROLLBACK,
    WINDOW_PATTERNS,
)

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MOST = 1 << 32  # llama_hparams has 32-bit numbers

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Facts:
    """Per-layer tuples have ``n_layer_all`` entries, the MTP layers behind the trunk included.

    ``window`` is the sliding window in tokens (0: none), ``windowed`` which layers have it;
    ``recurrent`` which layers hold a state instead of keys and values, ``attends`` which layers
    have keys and values. ``conv_state`` and ``ssm_state`` are floats per layer and row.
    ``mla`` caches keep keys only. ``indexer`` is the width of the keys a sparse-attention indexer
    keeps in the layers ``indexed``. ``rollback``: recurrent states can have snapshots.
    """

    arch: str
    known: bool
    n_layer: int
    n_layer_all: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: tuple[int, ...]
    key_length: int
    value_length: int
    key_length_swa: int
    value_length_swa: int
    window: int
    windowed: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    attends: tuple[bool, ...]
    mla: bool
    indexer: int
    indexed: tuple[bool, ...]
    conv_state: int
    ssm_state: int
    hybrid: bool
    rollback: bool
    cached: bool

    @property
    def label(self) -> str:
        """What messages call the architecture."""
        return self.arch or "a model without an architecture"

    def k_width(self, layer: int) -> int:
        """Elements of a key in the cache of ``layer``: hparams.cpp:140-144."""
        length = self.key_length_swa if self.windowed[layer] else self.key_length
        return length * self.n_head_kv[layer]

    def v_width(self, layer: int) -> int:
        """Elements of a value in the cache of ``layer``: hparams.cpp:146-150."""
        length = self.value_length_swa if self.windowed[layer] else self.value_length
        return length * self.n_head_kv[layer]


def facts(info: ModelInfo) -> Facts:
    """The facts of ``info``; the last few are remembered, because planning asks again and again."""
    return remembered(_FACTS, info, _read)


_FACTS: OrderedDict[int, tuple[ModelInfo, Facts]] = OrderedDict()
_MOST_REMEMBERED = 64


def remembered(
    cache: OrderedDict[int, tuple[ModelInfo, _T]], info: ModelInfo, make: Callable[[ModelInfo], _T]
) -> _T:
    """``make(info)``, computed once per object. The entry keeps ``info`` alive, so that its id
    cannot come to mean another model."""
    entry = cache.get(id(info))
    if entry is None:
        entry = cache[id(info)] = (info, make(info))
        while len(cache) > _MOST_REMEMBERED:
            cache.popitem(last=False)
    return entry[1]


def count_of(info: ModelInfo, key: str, default: int = 0) -> int:
    """``<arch>.<key>`` as a count: nothing below zero, nothing that no model has."""
    value = info.arch_uint(key, default)
    return min(max(value or 0, 0), _MOST)


def _read(info: ModelInfo) -> Facts:
    arch = info.arch or ""
    n_layer = min(max(info.n_layer or 0, 0), MAX_LAYERS)
    n_all = min(n_layer + max(info.n_layer_nextn, 0), MAX_LAYERS)
    n_embd = count_of(info, "embedding_length")
    heads = per_layer(info, "attention.head_count", n_all, 0)
    heads_kv = per_layer(info, "attention.head_count_kv", n_all, None) or heads
    n_ff = per_layer(info, "feed_forward_length", n_all, 0)
    default = n_embd // heads[0] if heads and heads[0] else 0
    # hparams.n_head() > 0: models without attention heads have no key length (1436-1460).
    has_heads = bool(default)
    key = count_of(info, "attention.key_length", default) if has_heads else 0
    value = count_of(info, "attention.value_length", default) if has_heads else 0
    mla = bool(
        count_of(info, "attention.key_length_mla") and count_of(info, "attention.value_length_mla")
    )
    window, windowed = _windows(info, arch, n_layer, n_all)
    recurrent = _recurrent(info, arch, n_layer, n_all, heads_kv, n_ff)
    if arch == "lfm2" and window:  # lfm2.cpp:26-31
        windowed = tuple(il < n_layer and not recurrent[il] for il in range(n_all))
    indexer = count_of(info, "attention.indexer.key_length")
    return Facts(
        arch=arch,
        known=arch in KNOWN,
        n_layer=n_layer,
        n_layer_all=n_all,
        n_embd=n_embd,
        n_vocab=max(info.vocab_size or 0, 0),
        n_ctx_train=count_of(info, "context_length"),
        n_head=heads,
        n_head_kv=heads_kv,
        n_ff=n_ff,
        key_length=key,
        value_length=value,
        key_length_swa=count_of(info, "attention.key_length_swa", key),
        value_length_swa=count_of(info, "attention.value_length_swa", value),
        window=window,
        windowed=windowed,
        recurrent=recurrent,
        attends=_attends(info, arch, n_all, recurrent, n_ff),
        mla=mla or arch == "deepseek4",  # keys only (kv-cache-dsv4.cpp:1241-1330)
        indexer=indexer if arch in ("deepseek32", "glm-dsa", "minimax-m3") else 0,
        indexed=_indexed(info, arch, n_layer, n_all),
        conv_state=_conv_state(info, n_embd, heads),
        ssm_state=_ssm_state(info, arch, n_embd, heads, key),
        hybrid=arch in HYBRID,
        rollback=arch in ROLLBACK,
        cached=arch not in NO_CACHE,
    )


def per_layer(info: ModelInfo, key: str, n: int, default: int | None) -> tuple[int, ...]:
    """``<arch>.<key>`` for ``n`` layers: one number for all, or an array (``get_key_or_arr``).

    Missing, it is ``default`` for each layer, or empty if that is None. Layers behind the end of a
    shorter array have 0.
    """
    value = info.metadata.get(f"{info.arch}.{key}")
    if isinstance(value, tuple):
        numbers = [min(max(item, 0), _MOST) if isinstance(item, int) else 0 for item in value[:n]]
        return tuple(numbers + [0] * (n - len(numbers)))
    if isinstance(value, int) and not isinstance(value, bool):
        return (min(max(value, 0), _MOST),) * n
    return () if default is None else (default,) * n


def _windows(info: ModelInfo, arch: str, n_layer: int, n_all: int) -> tuple[int, tuple[bool, ...]]:
    """The sliding window and its layers: ``load_swa_pattern`` (llama-model.cpp:3434-3441),
    ``set_swa_pattern`` (hparams.cpp:8-26) and each model's ``load_arch_hparams``."""
    none = (False,) * n_all
    if arch not in WINDOW_PATTERNS:
        return 0, none
    key = "attention.sliding_window"
    window = count_of(info, key) if f"{arch}.{key}" in info.metadata else None
    if arch == "llama4":  # llama4.cpp:8-19: the key only switches the chunks off
        window = 0 if window == 0 else 8192
    elif arch == "smallthinker" and window:  # smallthinker.cpp:8
        window = 4096
    elif arch == "exaone4" and n_layer != 64:  # exaone4.cpp:4: only the 32B model has windows
        return 0, none
    elif window is None:
        window = DEFAULT_WINDOWS.get(arch, 0)
    if not window:
        return 0, none
    key = "attention.sliding_window_pattern"
    if isinstance(info.metadata.get(f"{arch}.{key}"), tuple):
        return window, tuple(bool(item) for item in per_layer(info, key, n_all, 0))
    period, dense_first = WINDOW_PATTERNS[arch]
    period = count_of(info, key, period) if period >= 0 else period
    if period < 0:  # an array is required, and libllama refuses the file without one
        return window, none
    layers = range(n_all)
    if period == 0:
        return window, tuple(il < n_layer for il in layers)
    if dense_first:
        return window, tuple(il < n_layer and il % period != 0 for il in layers)
    return window, tuple(il < n_layer and il % period < period - 1 for il in layers)


def _recurrent(
    info: ModelInfo,
    arch: str,
    n_layer: int,
    n_all: int,
    heads_kv: tuple[int, ...],
    n_ff: tuple[int, ...],
) -> tuple[bool, ...]:
    """Which layers hold a state: each hybrid's ``load_arch_hparams``."""
    layers = range(n_all)
    if arch in RECURRENT or arch == "falcon-h1":  # falcon-h1.cpp:14
        return (True,) * n_all
    if arch not in HYBRID:
        return (False,) * n_all
    if arch in INTERVALS:  # qwen35.cpp:16-23
        given = per_layer(info, "attention.recurrent_layers", n_all, None)
        if given:
            return tuple(bool(item) for item in given)
        interval = count_of(info, "full_attention_interval", INTERVALS[arch]) or 1
        return tuple(il < n_layer and (il + 1) % interval != 0 for il in layers)
    if arch in ("nemotron_h", "nemotron_h_moe"):  # nemotron-h.cpp:14-16
        return tuple(il < n_layer and heads_kv[il] == 0 and n_ff[il] == 0 for il in layers)
    return tuple(il < n_layer and heads_kv[il] == 0 for il in layers)


def _attends(
    info: ModelInfo, arch: str, n_all: int, recurrent: tuple[bool, ...], n_ff: tuple[int, ...]
) -> tuple[bool, ...]:
    """Which layers have keys and values of their own: ``has_kv`` (hparams.cpp:316-330) and the
    filters of ``create_memory`` (llama-model.cpp:2669-2773)."""
    if arch in RECURRENT:
        return (False,) * n_all
    if arch == "falcon-h1":
        return (True,) * n_all
    if arch in ("nemotron_h", "nemotron_h_moe"):
        return tuple(not recurrent[il] and n_ff[il] == 0 for il in range(n_all))
    if arch == "gemma4":  # gemma4.cpp:8-11
        shared = count_of(info, "attention.shared_kv_layers")
        return tuple(il < n_all - shared for il in range(n_all))
    if arch in FIXED_KV_LAYERS:
        return tuple(il < FIXED_KV_LAYERS[arch] for il in range(n_all))
    return tuple(not item for item in recurrent)


def _indexed(info: ModelInfo, arch: str, n_layer: int, n_all: int) -> tuple[bool, ...]:
    """Which layers keep keys of an indexer (llama-model.cpp:2360-2448)."""
    if arch == "minimax-m3":
        lead = count_of(info, "leading_dense_block_count")
        return tuple(il >= lead for il in range(n_all))
    if arch == "glm-dsa":
        types = per_layer(info, "attention.indexer.types", n_all, None)
        if not types and count_of(info, "context_length") >= 1 << 20:  # glm-dsa.cpp:6-27, 59-66
            types = tuple(int(il < 2 or (il - 2) % 4 == 0) for il in range(n_all))
        return tuple(il < n_layer and (not types or bool(types[il])) for il in range(n_all))
    return tuple(il < n_layer for il in range(n_all))


def _conv_state(info: ModelInfo, n_embd: int, heads: tuple[int, ...]) -> int:
    """``n_embd_r``: hparams.cpp:187-214."""
    if count_of(info, "wkv.head_size"):
        return (count_of(info, "token_shift_count", 2)) * n_embd
    if count_of(info, "shortconv.l_cache"):
        return n_embd * ((count_of(info, "shortconv.l_cache") or 1) - 1)
    kernel = count_of(info, "ssm.conv_kernel")
    if count_of(info, "kda.head_dim"):
        inner = (heads[0] if heads else 0) * count_of(info, "kda.head_dim")
        return 3 * (kernel - 1 if kernel > 0 else 3) * inner
    inner = count_of(info, "ssm.inner_size")
    # Mamba 1 and Jamba do not read the group count: their hparams keep 0 groups.
    groups = 0 if info.arch in ("mamba", "jamba") else count_of(info, "ssm.group_count")
    state = count_of(info, "ssm.state_size")
    return max(kernel - 1, 0) * (inner + 2 * groups * state)


def _ssm_state(info: ModelInfo, arch: str, n_embd: int, heads: tuple[int, ...], key: int) -> int:
    """``n_embd_s``: hparams.cpp:216-240."""
    n_head = heads[0] if heads else 0
    if count_of(info, "wkv.head_size"):
        return n_embd * count_of(info, "wkv.head_size")
    if count_of(info, "kda.head_dim"):
        return count_of(info, "kda.head_dim") ** 2 * n_head
    if arch == "minimax-01":  # minimax-01.cpp:9
        return key * key * n_head
    return count_of(info, "ssm.state_size") * count_of(info, "ssm.inner_size")
