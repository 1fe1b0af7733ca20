"""A tiny GGUF writer for tests; it also writes what no decent writer would."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

CODES = {
    "u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
    "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "str": (8, ""), "arr": (9, ""),
    "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d"),
}  # fmt: skip
F32, F16, Q8_0, Q4_K, Q8_K = 0, 1, 8, 12, 15
I8, I16, I32, I64, F64, BF16 = 24, 25, 26, 27, 28, 30
BYTES = {
    F32: (1, 4), F16: (1, 2), Q8_0: (32, 34), Q4_K: (256, 144), Q8_K: (256, 292),
    I8: (1, 1), I16: (1, 2), I32: (1, 4), I64: (1, 8), F64: (1, 8), BF16: (1, 2),
}  # fmt: skip


@dataclass
class Gguf:
    """Keys and tensors in the order they were added; ``data`` is filled with zeros."""

    order: str = "<"
    version: int = 3
    alignment: int = 32
    n_keys: int | None = None
    n_tensors: int | None = None
    entries: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data_bytes: int = 0

    def pack(self, code: str, *values: Any) -> bytes:
        return struct.pack(self.order + code, *values)

    def text(self, value: str | bytes, length: int | None = None) -> bytes:
        raw = value.encode() if isinstance(value, str) else value
        return self.pack("Q", len(raw) if length is None else length) + raw

    def value(self, kind: str, value: Any) -> bytes:
        return self.text(value) if kind == "str" else self.pack(CODES[kind][1], value)

    def key(self, name: str | bytes, kind: str, value: Any) -> Gguf:
        self.entries.append(
            self.text(name) + self.pack("i", CODES[kind][0]) + self.value(kind, value)
        )
        return self

    def array(self, name: str, kind: str, values: Sequence[Any], count: int | None = None) -> Gguf:
        count = len(values) if count is None else count
        head = self.text(name) + self.pack("iiQ", CODES["arr"][0], CODES[kind][0], count)
        self.entries.append(head + b"".join(self.value(kind, value) for value in values))
        return self

    def raw(self, entry: bytes) -> Gguf:
        self.entries.append(entry)
        return self

    def tensor(
        self, name: str, shape: Iterable[int], kind: int = F32, offset: int | None = None
    ) -> Gguf:
        shape = list(shape)
        elements = 1
        for dim in shape:
            elements *= dim
        block, size = BYTES.get(kind, (1, 4))
        self.tensors.append(
            self.text(name)
            + self.pack(f"I{len(shape)}q", len(shape), *shape)
            + self.pack("iQ", kind, self.data_bytes if offset is None else offset)
        )
        n_bytes = max(0, elements // block * size)
        if n_bytes < 1 << 26:
            self.data_bytes += -(-n_bytes // self.alignment) * self.alignment
        return self

    def header(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.entries) if self.n_keys is None else self.n_keys
        start = b"GGUF" + self.pack("Iqq", self.version, n_tensors, n_keys)
        return start + b"".join(self.entries) + b"".join(self.tensors)

    def build(self) -> bytes:
        header = self.header()
        return header + b"\0" * (-len(header) % self.alignment) + b"\0" * self.data_bytes


def model(order: str = "<", arch: str = "llama", **replaced: Any) -> Gguf:
    """A model of two layers without sense, but with everything that is checked.

    ``replaced`` overrides single values by their short name, e.g. ``tokens=[...]``.
    """
    values = {"block_count": 2, "context_length": 128, "embedding_length": 64, "head_count": 4}
    values |= {key: value for key, value in replaced.items() if key in values}
    tokens = replaced.get("tokens", [f"t{i}" for i in range(300)])
    gguf = Gguf(order=order)
    gguf.key("general.architecture", "str", arch).key("general.name", "str", "made up")
    gguf.key("general.file_type", "u32", replaced.get("file_type", 7))
    for name in ("block_count", "context_length", "embedding_length"):
        gguf.key(f"{arch}.{name}", "u32", values[name])
    gguf.key(f"{arch}.attention.head_count", "u32", values["head_count"])
    gguf.key("tokenizer.ggml.model", "str", replaced.get("tokenizer", "gpt2"))
    gguf.key("tokenizer.ggml.pre", "str", replaced.get("pre", "qwen2"))
    gguf.array("tokenizer.ggml.tokens", "str", tokens)
    gguf.array("tokenizer.ggml.token_type", "i32", [1] * len(tokens))
    gguf.array("tokenizer.ggml.merges", "str", ["a b"])
    gguf.tensor("token_embd.weight", [64, len(tokens)], Q8_0)
    for layer in range(2):
        gguf.tensor(f"blk.{layer}.attn_norm.weight", [64])
        gguf.tensor(f"blk.{layer}.attn_q.weight", [64, 64], Q8_0)
    return gguf
