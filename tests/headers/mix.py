"""Which type llama-quantize gives a tensor under a quantization's name.

The rules are those of ``llama_tensor_get_type_impl`` (src/llama-quant.cpp in llama-cpp-python
0.3.36), as far as files that profiles name need them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping

from tests.gguf_writer import Gguf
from tests.memory.described import SIZES, Described

#: (tensor's name, its shape, layer or -1, number of layers) -> type
Mix = Callable[[str, tuple[int, ...], int, int], str]

#: general.file_type by name (``llama_ftype``, include/llama.h).
FILE_TYPES = {
    "Q4_0": 2, "Q8_0": 7, "Q3_K_L": 13, "Q4_K_M": 15, "Q6_K": 18, "IQ2_XXS": 19, "IQ3_XXS": 23,
    "BF16": 32, "MXFP4_MOE": 38,
}  # fmt: skip
#: What takes the place of a type whose blocks are longer than a row.
FALLBACKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL"}
#: Before the name of embeddings that are the output, too.
TIED = "tied."
_LAYER = re.compile(r"blk\.(\d+)\.")
#: Never quantized: routers, convolutions, and what is as small as a vector.
_KEPT = re.compile(r"ffn_gate_inp|ssm_conv1d|shortconv\.conv|_norm\.|\.bias$|attn_sinks|conf_proj")


def uniform(kind: str, **named: str) -> Mix:
    """One type for all; ``named`` are beginnings of names, the layer left out, with their own."""

    def mix(name: str, shape: tuple[int, ...], layer: int, n_layer: int) -> str:
        del shape, layer, n_layer
        own = _LAYER.sub("", name.removeprefix(TIED))
        return next((found for part, found in named.items() if own.startswith(part)), kind)

    return mix


def q4_k_m(name: str, shape: tuple[int, ...], layer: int, n_layer: int) -> str:
    """Q4_K with Q6_K for the output and for half of attn_v and ffn_down."""
    del shape
    if name == "output.weight" or name.startswith(TIED):
        return "Q6_K"
    if "attn_qkv" in name:
        return "Q5_K"
    if "attn_v." in name or "ffn_down" in name:
        return "Q6_K" if _more_bits(layer, n_layer) else "Q4_K"
    return "Q4_K"


def mxfp4_moe(name: str, shape: tuple[int, ...], layer: int, n_layer: int) -> str:
    """Experts in MXFP4, everything else in Q8_0."""
    del name, layer, n_layer
    return "MXFP4" if len(shape) > 2 else "Q8_0"


def _more_bits(layer: int, n_layer: int) -> bool:
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def quantized(
    described: Described, quant: str, mix: Mix, n_layer: int, *, name: str = "",
    head: Mapping[str, str] | None = None,
) -> Described:  # fmt: skip
    """``described`` with the types that ``mix`` gives it, called ``name``.

    ``head`` are types for tensors behind the trunk's ``n_layer`` layers, by parts of their names.
    """
    result = copy.copy(described)
    result.gguf = Gguf(entries=list(described.gguf.entries))
    result.tensors, result.n_bytes = [], 0
    result.gguf.entries[1] = Gguf().key("general.name", "str", name or described.arch).entries[0]
    result.gguf.key("general.file_type", "u32", FILE_TYPES[quant])
    tied = all(tensor[0] != "output.weight" for tensor in described.tensors)
    for tensor, shape, old in described.tensors:
        result.tensor(tensor, *shape, quant=_type(tensor, shape, old, mix, n_layer, tied, head))
    return result


def _type(
    tensor: str, shape: tuple[int, ...], old: str, mix: Mix, n_layer: int, tied: bool,
    head: Mapping[str, str] | None,
) -> str:  # fmt: skip
    if len(shape) == 1 or _KEPT.search(tensor) or old == "I64":
        return old
    match = _LAYER.match(tensor)
    layer = int(match[1]) if match else -1
    asked = f"{TIED}{tensor}" if tied and tensor == "token_embd.weight" else tensor
    kind = mix(asked, shape, layer, n_layer)
    if head is not None and layer >= n_layer:
        kind = next((own for part, own in head.items() if part in tensor), kind)
    return kind if shape[0] % SIZES[kind][0] == 0 else FALLBACKS.get(kind, "Q8_0")
