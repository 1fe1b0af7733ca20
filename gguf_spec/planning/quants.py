"""The order of quantizations: by what a weight of the repeating layers really takes.

Names say little: mixes under one name differ from model to model, and makers add names of their
own. So files are compared by their tensors. Only the floor is a name, and may be one that no file
has: then its usual size stands for it.
"""

from __future__ import annotations

import difflib
import re
from collections import OrderedDict
from collections.abc import Sequence

from gguf_spec.errors import UsageError
from gguf_spec.header import ModelInfo
from gguf_spec.memory.facts import remembered

DEFAULT_FLOOR = "Q4_K_M"

#: Bits per weight of the layers that llama-quantize gives an 8B model under these names.
#: Formats that models are trained in (MXFP4, NVFP4) count as what they are chosen for: 4 bits
#: without loss, not below a Q4_K_M.
USUAL_BITS = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_1": 6.0,
    "Q5_K_M": 5.7, "Q5_K_S": 5.5, "Q5_0": 5.5, "Q4_1": 5.0, "Q4_K_M": 4.85, "MXFP4_MOE": 4.85,
    "MXFP4": 4.85, "NVFP4": 4.85, "Q4_K_S": 4.6, "IQ4_NL": 4.55, "Q4_0": 4.5, "IQ4_XS": 4.3,
    "Q3_K_L": 4.25, "Q3_K_M": 3.9, "IQ3_M": 3.7, "Q3_K_S": 3.45, "IQ3_S": 3.44, "IQ3_XS": 3.3,
    "IQ3_XXS": 3.1, "Q2_K": 3.0, "Q2_K_S": 2.8, "IQ2_M": 2.7, "IQ2_S": 2.5, "IQ2_XS": 2.4,
    "Q2_0": 2.25, "IQ2_XXS": 2.1, "TQ2_0": 2.06, "IQ1_M": 1.8, "TQ1_0": 1.69, "IQ1_S": 1.6,
    "Q1_0": 1.13,
}  # fmt: skip
#: By this much a name of the table may be missed by a mix of the same kind.
_TOLERANCE = 0.03
_LAYER = re.compile(r"blk\.(\d+)\.")


def layer_bits(info: ModelInfo) -> float:
    """Bits per weight of the repeating layers, their matrices alone; 0 without layers.

    MTP layers are left out: some makers keep them at full precision in every quantization.
    """
    return remembered(_BITS, info, _layer_bits)


_BITS: OrderedDict[int, tuple[ModelInfo, float]] = OrderedDict()


def _layer_bits(info: ModelInfo) -> float:
    n_layer = info.n_layer if info.n_layer is not None else 1 << 30
    n_bytes = n_weights = 0
    for tensor in info.tensors:
        match = _LAYER.match(tensor.name)
        if match is not None and len(tensor.shape) > 1 and int(match[1]) < n_layer:
            n_bytes += tensor.n_bytes
            n_weights += tensor.n_elements
    return 8 * n_bytes / n_weights if n_weights else 0.0


def plain_name(name: str) -> str:
    """A quantization's name as llama.cpp has it: makers' marks are dropped, so that UD-Q4_K_XL
    is looked up as Q4_K_M, of which it is a variant."""
    text = name.strip().upper().replace("-", "_")
    text = text.removeprefix("UD_")
    if text in USUAL_BITS:
        return text
    text = re.sub(r"_(XL|L|M|S)$", "", text)
    return next((n for n in (text, f"{text}_M", f"{text}_S") if n in USUAL_BITS), text)


def floor_bits(name: str) -> float:
    """Bits per weight that the floor ``name`` stands for.

    Raises:
        UsageError: no such quantization.
    """
    plain = plain_name(name)
    if plain not in USUAL_BITS:
        near = difflib.get_close_matches(plain, USUAL_BITS, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"there is no quantization {name!r}", hint=f"did you mean {near}? Q4_K_M is the default"
        )
    return USUAL_BITS[plain]


def at_least(name: str, bits: float, floor: str, ladder: Sequence[tuple[str, float]]) -> bool:
    """Whether a file of quantization ``name`` with ``bits`` per weight is at or above ``floor``.

    ``ladder``: names and bits of all files there are. One of them with the floor's name decides;
    without one, the usual sizes of both names do, and the last resort is the file's own size.
    """
    wanted = plain_name(floor)
    own = plain_name(name)
    if own == wanted:
        return True
    known = [found for other, found in ladder if plain_name(other) == wanted]
    if own in ("MXFP4", "MXFP4_MOE", "NVFP4"):
        return USUAL_BITS[own] >= floor_bits(floor)
    if known:
        return bits >= min(known)
    if own in USUAL_BITS:
        return USUAL_BITS[own] >= floor_bits(floor)
    return bits >= floor_bits(floor) * (1 - _TOLERANCE)
