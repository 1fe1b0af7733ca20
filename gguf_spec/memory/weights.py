"""Bytes of weights on each device, from the tensor table alone.

A buffer holds its tensors one after the other, each padded (ggml-alloc.c:1178-1232), so the sum of
the padded sizes is libllama's own number. The sums by layer are computed once for each model and
kind of storage: asking again with other layers on other devices costs some additions.

Three things a header cannot tell. A file that is mapped, which is the default, counts as the span
from the first to the last tensor on the CPU, and its pages can be given up. Embeddings that
llama.cpp maps lazily (Gemma's per layer) are counted in full. And a backend that does not support a
tensor's type leaves it to the CPU (llama-model-loader.cpp:1067-1078).
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from gguf_spec.errors import UsageError
from gguf_spec.gguf_reader import TensorInfo
from gguf_spec.header import ModelInfo
from gguf_spec.memory.architectures import MTP_NEVER, NO_OUTPUT_COPY, OUTPUT_FIRST
from gguf_spec.memory.facts import Facts, facts, remembered
from gguf_spec.memory.layout import Layout, Storage
from gguf_spec.memory.types import CPU, LOWER_BOUND, Hardware, MemoryItem, Placement, Source

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.")
# llm_ffn_exps_block_regex, common/common.h: what -ncmoe keeps on the CPU, of the first layers.
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(up|down|gate_up|gate)_(ch|)exps")

#: Tensors of the input, always on the CPU (llama-arch.cpp:728-730, 921; llama-model.cpp:1603).
_INPUTS = frozenset(["token_embd", "position_embd", "token_types", "per_layer_token_embd"])
#: Tensors of the output (llama-arch.cpp:733-742, 766-771, 863, 924-925, 978, 995-1007).
_OUTPUTS = frozenset([
    "output", "output_norm", "cls", "cls.output", "cls.norm", "enc.output_norm", "dec.output_norm",
    "output_res_score", "output_hc_fn", "output_hc_base", "output_hc_scale", "output_hc_norm",
    "output_hc_down", "output_hc_up", "altup_proj", "altup_unembd_proj", "dense_2", "dense_3",
    "nextn.post_projection", "fc", "d2t", "markov_w1", "markov_w2", "conf_proj",
    "selector_predecessor", "selector_successor", "selector_hidden",
])  # fmt: skip
#: Tensors that no graph uses and the loader leaves out (GGML_OP_NONE, llama-arch.cpp:992-993).
_UNUSED = frozenset(["masked_embd_centroids", "masked_embd_ordering"])
#: Made once for every device that has layers (TENSOR_DUPLICATED in src/models/*.cpp).
_COPIED = frozenset(["rope_freqs", "rope_factors_long", "rope_factors_short"])

#: Types that the CPU backend repacks, with the multiple of rows it needs: repack.cpp:4974-5130.
_REPACKED = {
    "avx2": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8},
    "avx512": {"Q4_0": 8, "Q4_K": 8, "IQ4_NL": 8, "MXFP4": 8, "Q2_K": 8},
    "neon": {
        "Q4_0": 4, "Q4_K": 8, "Q5_K": 8, "Q6_K": 8, "IQ4_NL": 4, "MXFP4": 4, "Q8_0": 4,
    },
}  # fmt: skip

_INPUT, _OUTPUT, _SHARED = -1, -2, -3  # keys beside the layers' numbers


@dataclass(frozen=True, slots=True)
class _Sums:
    """Padded bytes by layer (or input, output, shared by all layers), experts apart."""

    rest: dict[int, int]
    experts: dict[int, int]


def weight_items(
    info: ModelInfo,
    layout: Layout,
    placement: Placement,
    hardware: Hardware,
    *,
    load_mtp: bool,
    owner: str = "target",
) -> list[MemoryItem]:
    """One item for each device that holds weights of ``info``.

    Raises:
        UsageError: an override names an unknown device or is no regular expression.
    """
    known = facts(info)
    if placement.override_tensor:
        sums = _by_override(info, known, layout, placement, load_mtp)
    else:
        sums = _by_layer(info, known, layout, placement, load_mtp)
    copied, why_copy = _tied_copy(info, known, layout, hardware, placement)
    for device, n_bytes in copied.items():
        sums[device] += n_bytes
    n_copied = sum(copied.values())
    items = []
    for device, n_bytes in sorted(sums.items()):
        if not n_bytes:
            continue
        storage = layout.storage(device)
        why = f"tensors padded to {storage.alignment} bytes (ggml-alloc.c:1178-1232)"
        if copied.get(device):
            why += f"; {n_copied} bytes of them {why_copy}"
        if known.n_layer < known.n_layer_all and not load_mtp:
            why += "; without MTP layers (TENSOR_SKIP)"
        source: Source = storage.source
        if not known.known:
            why, source = f"{LOWER_BOUND}{known.label} is not fully known; {why}", "assumed"
        items.append(MemoryItem(device, owner, "weights", n_bytes, source, why))
    return items


def mtp_bytes(info: ModelInfo, layout: Layout) -> dict[str, int]:
    """Bytes by device that the MTP layers of ``info`` add when they are loaded."""
    known = facts(info)
    found: defaultdict[str, int] = defaultdict(int)
    if known.arch in MTP_NEVER:
        return found
    for layer in range(known.n_layer, known.n_layer_all):
        device = layout.layers[layer]
        sums = _sums(info, layout.storage(device))
        found[device] += sums.rest.get(layer, 0) + sums.experts.get(layer, 0)
    return found


def cpu_layer_bytes(
    info: ModelInfo, layout: Layout, placement: Placement, layers: Iterable[int]
) -> int:
    """The most bytes of weights on the CPU that one of ``layers`` has, experts that ``n_cpu_moe``
    keeps there included."""
    sums = _sums(info, layout.storage(CPU))
    most = 0
    for layer in layers:
        device = layout.layers[layer]
        n_bytes = sums.rest.get(layer, 0) if device == CPU else 0
        if device == CPU or layer < placement.n_cpu_moe:
            n_bytes += sums.experts.get(layer, 0)
        most = max(most, n_bytes)
    return most


def tied_output(info: ModelInfo) -> TensorInfo | None:
    """The embeddings of a model that has no output of its own, and uses them instead."""
    embedding = None
    for tensor in info.tensors:
        if tensor.name == "output.weight":
            return None
        if tensor.name == "token_embd.weight":
            embedding = tensor
    return None if info.arch in NO_OUTPUT_COPY else embedding


def _by_layer(
    info: ModelInfo, known: Facts, layout: Layout, placement: Placement, load_mtp: bool
) -> defaultdict[str, int]:
    """The sums without overrides: whole layers, and experts of the first layers on the CPU."""
    found: defaultdict[str, int] = defaultdict(int)
    cpu = _sums(info, layout.storage(CPU))
    found[CPU] += cpu.rest.get(_INPUT, 0)
    found[layout.output] += _sums(info, layout.storage(layout.output)).rest.get(_OUTPUT, 0)
    # The experts of an MTP layer are matched by number like any other's.
    for layer in _loaded(known, load_mtp):
        device = layout.layers[layer]
        sums = _sums(info, layout.storage(device))
        found[device] += sums.rest.get(layer, 0)
        if layer < placement.n_cpu_moe:
            found[CPU] += cpu.experts.get(layer, 0)
        else:
            found[device] += sums.experts.get(layer, 0)
    for device in set(layout.layers[: known.n_layer or known.n_layer_all]):
        found[device] += _sums(info, layout.storage(device)).rest.get(_SHARED, 0)
    return found


def _loaded(known: Facts, load_mtp: bool) -> range:
    # An assistant's layers count as MTP layers, but they are all it has, and always loaded.
    with_mtp = (load_mtp or known.arch == "gemma4-assistant") and known.arch not in MTP_NEVER
    return range(known.n_layer_all if with_mtp else known.n_layer)


def _by_override(
    info: ModelInfo, known: Facts, layout: Layout, placement: Placement, load_mtp: bool
) -> defaultdict[str, int]:
    """The sums with overrides: every tensor's name is searched for every pattern, the first that
    matches wins (llama-model-loader.cpp:1232-1262)."""
    patterns = _patterns(layout, placement)
    loaded = _loaded(known, load_mtp)
    found: defaultdict[str, int] = defaultdict(int)
    for tensor in info.tensors:
        place = _place(tensor.name, known)
        if place is None or (place >= 0 and place not in loaded):
            continue
        forced = next((to for pattern, to in patterns if pattern.search(tensor.name)), None)
        if forced is None and 0 <= place < placement.n_cpu_moe and _EXPERTS.search(tensor.name):
            forced = CPU
        devices: Iterable[str]
        if forced is not None:
            devices = [forced]
        elif place == _SHARED:
            devices = set(layout.layers[: known.n_layer or known.n_layer_all])
        elif place == _INPUT:
            devices = [CPU]
        else:
            devices = [layout.output if place == _OUTPUT else layout.layers[place]]
        for device in devices:
            found[device] += tensor_bytes(tensor, layout.storage(device))
    return found


def _patterns(layout: Layout, placement: Placement) -> list[tuple[re.Pattern[str], str]]:
    patterns = []
    for text, device in placement.override_tensor:
        if device not in layout.backends:
            names = ", ".join(layout.backends)
            raise UsageError(
                f"override of {text!r}: there is no device {device!r}", hint=f"devices: {names}"
            )
        try:
            patterns.append((re.compile(text), device))
        except re.error as error:
            raise UsageError(f"{text!r} is no regular expression: {error}") from error
    return patterns


def _tied_copy(
    info: ModelInfo, known: Facts, layout: Layout, hardware: Hardware, placement: Placement
) -> tuple[dict[str, int], str]:
    """Bytes of the copy of the embeddings that serves as the output of a tied model, by device.

    The loader makes the embeddings a second time, as the output
    (llama-model-loader.cpp:1162-1168), and keeps one where both are in one buffer (1376-1384).
    """
    tensor = tied_output(info)
    if tensor is None:
        return {}, ""
    device = layout.output
    patterns = _patterns(layout, placement) if placement.override_tensor else []
    if any(pattern.search(tensor.name) for pattern, _ in patterns):
        return {}, ""  # the override holds for the copy, too
    size = tensor_bytes(tensor, layout.storage(device))
    if device != CPU:
        return {device: size}, "are the tied embeddings once more, as the output"
    if known.arch in OUTPUT_FIRST:
        return {CPU: size}, "are the tied embeddings once more: the output is created first"
    rows = _REPACKED.get(hardware.cpu_repack, {}).get(tensor.type)
    if rows and len(tensor.shape) == 2 and tensor.shape[1] % rows == 0:
        return {CPU: size}, (
            f"are the tied {tensor.type} embeddings once more, repacked for this CPU's "
            f"{hardware.cpu_repack} kernels as the output (ggml-cpu/repack.cpp:4925-5130)"
        )
    return {}, ""


def device_of(name: str, known: Facts, layout: Layout) -> str | None:
    """The device of the tensor ``name``, without overrides; None for one that is not loaded."""
    place = _place(name, known)
    if place is None:
        return None
    if place == _OUTPUT:
        return layout.output
    if place < 0 or not layout.layers:
        return CPU
    return layout.layers[place]


def _place(name: str, known: Facts) -> int | None:
    """The layer of a tensor, or which of the other places it has; None if it is not loaded."""
    match = _LAYER.match(name)
    if match is not None:
        layer = int(match[1])
        return layer if layer < known.n_layer_all else None
    stem = name.rpartition(".")[0] or name
    if stem in _UNUSED:
        return None
    if stem in _INPUTS:
        return _INPUT
    if stem in _OUTPUTS or (stem == "token_embd_norm" and known.arch in ("lfm2", "lfm2moe")):
        return _OUTPUT
    if stem in _COPIED:
        return _SHARED
    return 0  # "repeating" tensors without a number are created for layer 0


def tensor_bytes(tensor: TensorInfo, storage: Storage) -> int:
    """Bytes that ``tensor`` takes in a buffer of this kind."""
    return storage.size(tensor.type, tensor.shape[0] if tensor.shape else 1, tensor.n_bytes)


_SUMS: OrderedDict[int, tuple[ModelInfo, dict[Storage, _Sums]]] = OrderedDict()


def _sums(info: ModelInfo, storage: Storage) -> _Sums:
    by_storage = remembered(_SUMS, info, lambda _: {})
    sums = by_storage.get(storage)
    if sums is None:
        sums = by_storage[storage] = _add_up(info, storage)
    return sums


def _add_up(info: ModelInfo, storage: Storage) -> _Sums:
    known = facts(info)
    rest: defaultdict[int, int] = defaultdict(int)
    experts: defaultdict[int, int] = defaultdict(int)
    for tensor in info.tensors:
        place = _place(tensor.name, known)
        if place is None:
            continue
        size = tensor_bytes(tensor, storage)
        into = experts if place >= 0 and _EXPERTS.search(tensor.name) else rest
        into[place] += size
    return _Sums(dict(rest), dict(experts))
