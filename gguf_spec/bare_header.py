"""A GGUF header without its vocabulary: all that libllama needs to say what a model takes.

The vocabulary is most of a header (6.5 MB of them in Gemma 3) and most of the time of loading one.
llama.cpp has a tokenizer ``no_vocab`` that consists of a number of tokens alone
(``llama_vocab::impl::load`` in llama-vocab.cpp), with which the sizes of buffers stay the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_types import ARRAY, STRING, TENSOR_TYPES, VALUE_TYPES

if TYPE_CHECKING:
    from gguf_spec.gguf_reader import ArrayRef, MetaValue, TensorInfo
    from gguf_spec.header import ModelInfo

_TOKENIZER = "tokenizer.ggml.model"
_TOKENS = "tokenizer.ggml.tokens"
#: Read for every kind of vocabulary: it is the size of a tensor.
_KEPT = ("tokenizer.ggml.token_type_count",)
_VALUE_CODES = {name: (kind, code) for kind, (name, code) in VALUE_TYPES.items()}
_TENSOR_CODES = {tensor_type.name: kind for kind, tensor_type in TENSOR_TYPES.items()}


@dataclass(frozen=True, slots=True)
class HeaderFile:
    """The beginning of a GGUF file, ``data``, and how many bytes the whole file has. Of a split set
    it is part ``split_no`` of ``split_count``, counted from 0."""

    data: bytes
    size: int
    split_no: int = 0
    split_count: int = 1

    @property
    def name(self) -> str:
        """A file name by which libllama finds the other parts."""
        if self.split_count <= 1:
            return "model.gguf"
        return f"model-{self.split_no + 1:05d}-of-{self.split_count:05d}.gguf"


def bare_headers(parts: Sequence[ModelInfo]) -> tuple[HeaderFile, ...]:
    """``bare_header`` of each part of a model.

    Raises:
        HeaderError: a part is missing, or given twice.
    """
    files = tuple(bare_header(part) for part in parts)
    count = files[0].split_count if files else 1
    numbers = sorted(file.split_no for file in files)
    if numbers != list(range(count)) or any(file.split_count != count for file in files):
        have = ", ".join(str(number + 1) for number in numbers) or "none"
        raise HeaderError(f"a model of {count} parts, of which there are: {have}")
    return files


def bare_header(info: ModelInfo) -> HeaderFile:
    """The header of one file, written again without its vocabulary.

    The vocabulary stays where the file says that it has another size than it has: architectures
    differ in whom they believe.
    """
    tokens = info.arrays.get(_TOKENS)
    size_key = f"{info.arch}.vocab_size"
    stated = info.uint(size_key)
    n_tokens = tokens.count if tokens is not None else stated
    bare = _TOKENIZER in info.metadata and stated in (None, n_tokens)
    order = "<" if info.byte_order == "little" else ">"
    entries: list[bytes] = []
    for key, value in info.metadata.items():
        if bare and key.startswith("tokenizer.") and key not in _KEPT:
            continue
        entries.append(_entry(order, key, info.types[key], value, info))
    if bare:
        entries.append(_scalar(order, _TOKENIZER, "str", "no_vocab"))
        if stated is None and n_tokens is not None:
            entries.append(_scalar(order, size_key, "u32", n_tokens))
    tensors = [_tensor(order, tensor) for tensor in info.tensors]
    head = b"GGUF" + struct.pack(f"{order}Iqq", info.version, len(tensors), len(entries))
    data = b"".join([head, *entries, *tensors])
    if tensors:
        data += bytes(-len(data) % info.alignment)
    # As much as the file has behind its header, or should have.
    behind = info.needed_bytes - info.data_offset if tensors else 0
    padded = behind + -behind % info.alignment
    return HeaderFile(data, len(data) + padded, info.split_no, info.split_count)


def _entry(order: str, key: str, kind: str, value: MetaValue, info: ModelInfo) -> bytes:
    if kind.startswith("["):
        ref: ArrayRef = info.arrays[key]
        code = _VALUE_CODES[ref.type][0]
        head = _text(order, key) + struct.pack(f"{order}iiQ", ARRAY, code, ref.count)
        return head + info.raw_array(key)
    return _scalar(order, key, kind, value)


def _scalar(order: str, key: str, kind: str, value: object) -> bytes:
    code, form = _VALUE_CODES[kind]
    head = _text(order, key) + struct.pack(f"{order}i", code)
    if code == STRING:
        return head + _text(order, str(value))
    return head + struct.pack(order + form, value)


def _tensor(order: str, tensor: TensorInfo) -> bytes:
    shape = struct.pack(f"{order}I{len(tensor.shape)}q", len(tensor.shape), *tensor.shape)
    where = struct.pack(f"{order}iQ", _TENSOR_CODES[tensor.type], tensor.offset)
    return _text(order, tensor.name) + shape + where


def _text(order: str, text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack(f"{order}Q", len(raw)) + raw
