"""Repositories with many quantizations of a large model, of which only the headers exist."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gguf_spec.gguf_types import FILE_TYPES, TENSOR_TYPES
from tests.gguf_writer import F32, Gguf

QUANTS = (
    "BF16", "Q8_0", "UD-Q8_K_XL", "UD-Q6_K_XL", "Q6_K", "UD-Q5_K_XL", "Q5_K_M", "Q5_K_S", "Q4_1",
    "UD-Q4_K_XL", "Q4_K_M", "IQ4_NL", "Q4_K_S", "Q4_0", "IQ4_XS", "UD-Q3_K_XL", "Q3_K_M", "Q3_K_S",
    "UD-IQ3_XXS", "UD-Q2_K_XL", "Q2_K_L", "Q2_K", "UD-IQ2_M", "UD-IQ2_XXS", "UD-IQ1_M",
)  # fmt: skip
SPLIT = QUANTS[:3]
LAYERS, N_EMBD, N_FF, N_KV = 64, 5120, 25600, 1024
_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
#: The better type that a mix gives to some of its tensors.
_BETTER = {
    "Q8_0": "BF16", "Q6_K": "Q8_0", "Q5_K": "Q6_K", "Q4_1": "Q5_1", "Q4_K": "Q6_K", "Q4_0": "Q4_1",
    "IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K", "Q3_K": "Q5_K", "IQ3_XXS": "Q4_K", "Q2_K": "Q4_K",
    "IQ2_S": "Q4_K", "IQ2_XXS": "Q3_K", "IQ1_M": "Q2_K", "BF16": "BF16",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """``head`` and then zeros, ``size`` bytes together: enough of ``bytes`` for a server."""

    name: str
    head: bytes
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        data = self.head[start:stop]
        return data + bytes(max(stop - start, 0) - len(data))


def sparse_oid(data: Sparse) -> str:
    """Stands for the hash of a file that nobody will read to its end."""
    return hashlib.sha256(data.name.encode()).hexdigest()


def base_type(quant: str) -> str:
    """The tensor type that most of a quantization is in."""
    name = quant.removeprefix("UD-")
    special = {"IQ2_M": "IQ2_S", "Q8_K_XL": "Q8_0"}
    return special.get(name) or next(n for n in (name, name[:4], name[:3]) if n in _NUMBERS)


def one_type(quant: str) -> Callable[[str, int], str]:
    """Every matrix in the same type."""
    return lambda name, layer: base_type(quant)


def mix(quant: str) -> Callable[[str, int], str]:
    """As llama-quantize mixes: better types for values, some of ``ffn_down``, and the output."""
    base = base_type(quant)
    better = _BETTER[base]
    more = {"_S": 16, "_M": 2, "XL": 1}.get(quant[-2:], 8)

    def kind(name: str, layer: int) -> str:
        if name == "output.weight":
            return better if base in ("BF16", "Q8_0") else "Q6_K"
        chosen = name in ("attn_v.weight", "ffn_down.weight") and layer % more == 0
        return better if chosen else base

    return kind


def tensors(kind: Callable[[str, int], str], n_vocab: int) -> Iterator[tuple[str, list[int], str]]:
    """Names, shapes and types of a dense model."""
    yield "token_embd.weight", [N_EMBD, n_vocab], kind("token_embd.weight", 0)
    for layer in range(LAYERS):
        for name, shape in (
            ("attn_norm.weight", [N_EMBD]), ("attn_q.weight", [N_EMBD, N_EMBD]),
            ("attn_k.weight", [N_EMBD, N_KV]), ("attn_v.weight", [N_EMBD, N_KV]),
            ("attn_output.weight", [N_EMBD, N_EMBD]), ("ffn_norm.weight", [N_EMBD]),
            ("ffn_gate.weight", [N_EMBD, N_FF]), ("ffn_up.weight", [N_EMBD, N_FF]),
            ("ffn_down.weight", [N_FF, N_EMBD]),
        ):  # fmt: skip
            yield f"blk.{layer}.{name}", shape, "F32" if len(shape) == 1 else kind(name, layer)
    yield "output_norm.weight", [N_EMBD], "F32"
    yield "output.weight", [N_EMBD, n_vocab], kind("output.weight", 0)


def vocabulary(n_vocab: int, digits: int = 36) -> list[bytes]:
    """The entries of a tokenizer."""
    gguf = Gguf().key("tokenizer.ggml.model", "str", "gpt2")
    gguf.key("tokenizer.ggml.pre", "str", "qwen2")
    gguf.array("tokenizer.ggml.tokens", "str", [f"token-{i:0{digits}d}" for i in range(n_vocab)])
    gguf.array("tokenizer.ggml.token_type", "i32", [1] * n_vocab)
    gguf.array("tokenizer.ggml.merges", "str", ["a b"])
    return gguf.entries


def ladder(
    types: Callable[[str], Callable[[str, int], str]], words: list[bytes], n_vocab: int
) -> dict[str, Sparse]:
    """A repository of ``QUANTS``, the first of them split in two. ``words`` are the vocabulary's
    entries. Quantizations made with an importance matrix say so, the others do not."""
    files: dict[str, Sparse] = {}
    file_types = {name: number for number, (name, _) in FILE_TYPES.items()}
    for quant in QUANTS:
        name = f"Toy-32B-{quant}"
        table = list(tensors(types(quant), n_vocab))
        gguf = _metadata(quant, file_types.get(quant.removeprefix("UD-"), 15), words)
        if quant not in SPLIT:
            files[f"{name}.gguf"] = _file(name, gguf, table)
            continue
        half = len(table) // 2
        for number, part in enumerate((table[:half], table[half:])):
            one = gguf if number == 0 else Gguf()
            one.key("split.no", "u16", number).key("split.count", "u16", 2)
            path = f"{quant}/{name}-0000{number + 1}-of-00002.gguf"
            files[path] = _file(path, one, part)
    return files


def _metadata(quant: str, file_type: int, words: list[bytes]) -> Gguf:
    gguf = Gguf().key("general.architecture", "str", "llama").key("general.name", "str", "Toy 32B")
    for key, value in (
        ("block_count", LAYERS), ("context_length", 40960), ("embedding_length", N_EMBD),
        ("feed_forward_length", N_FF), ("attention.head_count", 40),
        ("attention.head_count_kv", 8),
    ):  # fmt: skip
        gguf.key(f"llama.{key}", "u32", value)
    gguf.entries += words
    gguf.key("tokenizer.chat_template", "str", "{{ messages }}" * 300)
    gguf.key("general.file_type", "u32", file_type)
    if quant not in ("BF16", "Q8_0"):
        gguf.key("general.quantization_version", "u32", 2)
        gguf.key("quantize.imatrix.file", "str", "imatrix_unsloth.gguf")
        gguf.key("quantize.imatrix.entries_count", "u32", 448)
    return gguf


def _file(path: str, gguf: Gguf, table: list[tuple[str, list[int], str]]) -> Sparse:
    offset = 0
    for name, shape, type_name in table:
        gguf.tensor(name, shape, _NUMBERS[type_name] if len(shape) > 1 else F32, offset)
        kind = TENSOR_TYPES[_NUMBERS[type_name]]
        elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        offset += -(-(elements // kind.block * kind.n_bytes) // 32) * 32
    head = gguf.header()
    head += bytes(-len(head) % 32)
    return Sparse(path, head, len(head) + offset)
