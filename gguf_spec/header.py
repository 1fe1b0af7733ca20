"""GGUF header -> ModelInfo: every fact about a model that its file states, without its weights.

``read_header`` reads one file, ``read_model`` all files of a split set, ``parse`` any byte source.
All three raise HeaderError for what is not a GGUF file. A file that parses need not be one that
libllama can load: ``gguf_spec.loadable.check_loadable`` decides that.
"""

from __future__ import annotations

import array
import hashlib
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_reader import (
    MAX_HEADER_BYTES,
    ArrayRef,
    MetaValue,
    RawHeader,
    Scalar,
    TensorInfo,
    parse_structure,
    string_elements,
)
from gguf_spec.gguf_source import ByteSource, FileSource
from gguf_spec.gguf_types import FILE_TYPES, VALUE_TYPES
from gguf_spec.hidden_states import CHAIN_ARCHS, MTP_ARCHS
from gguf_spec.loadable import check_loadable

__all__ = [
    "NGRAM_TYPES",
    "ArrayRef",
    "ByteSource",
    "FileSource",
    "ModelInfo",
    "TensorInfo",
    "Tokenizer",
    "check_loadable",
    "interpret",
    "join_parts",
    "parse",
    "read_header",
    "read_model",
]

NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")

SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """``fingerprint``: 16 hex digits over model, pre, token texts and token types."""

    model: str | None
    pre: str | None
    fingerprint: str | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts of a model. Sizes are bytes, counts are elements, None is "the file does not say".

    ``n_layer`` counts the trunk, without the ``n_layer_nextn`` MTP layers behind it. ``n_head`` and
    ``n_head_kv`` are the largest over the layers (they may differ from layer to layer: the arrays
    are in ``metadata``). For a split set, ``tensors`` and the sizes cover all of ``files``.
    """

    path: str
    version: int
    byte_order: str
    arch: str | None
    name: str
    role: str
    quant: str
    bits_per_weight: float
    n_params: int
    n_layer: int | None
    n_layer_nextn: int
    n_embd: int | None
    n_head: int | None
    n_head_kv: int | None
    n_ctx_train: int | None
    vocab_size: int | None
    tokenizer: Tokenizer
    chat_template: str | None
    sampling: Mapping[str, Scalar]
    spec_types: tuple[str, ...]
    header_bytes: int
    data_offset: int
    alignment: int
    file_bytes: int
    needed_bytes: int
    size_check: str
    split_no: int
    split_count: int
    files: tuple[str, ...]
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    metadata: Mapping[str, MetaValue] = field(repr=False)
    arrays: Mapping[str, ArrayRef] = field(repr=False)
    types: Mapping[str, str] = field(repr=False)
    source: ByteSource = field(repr=False, compare=False)

    def raw_array(self, key: str) -> bytes:
        """The bytes of an array as they are in the file; empty without that array."""
        ref = self.arrays.get(key)
        return self.source.read(ref.offset, ref.n_bytes) if ref is not None else b""

    def read_bytes(self, key: str) -> list[bytes]:
        """The elements of a string array, not decoded; empty when there is no such array."""
        ref = self.arrays.get(key)
        if ref is None or ref.type != "str":
            return []
        return string_elements(self.raw_array(key), ref.count, self.byte_order)

    def read_strings(self, key: str) -> list[str]:
        """The elements of a string array; bytes that are not UTF-8 become U+FFFD."""
        return [element.decode("utf-8", "replace") for element in self.read_bytes(key)]

    def read_numbers(self, key: str) -> list[int | float]:
        """The elements of an array of numbers; empty when there is no such array."""
        ref = self.arrays.get(key)
        if ref is None or ref.type in ("str", "bool"):
            return []
        code = next(code for name, code in VALUE_TYPES.values() if name == ref.type)
        order = "<" if self.byte_order == "little" else ">"
        return list(struct.unpack(f"{order}{ref.count}{code}", self.raw_array(key)))

    def uint(self, key: str, default: int | None = None) -> int | None:
        """A whole number from the metadata, ``default`` where it is missing or another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def arch_uint(self, key: str, default: int | None = None) -> int | None:
        """``uint`` of ``<arch>.<key>``."""
        return self.uint(f"{self.arch}.{key}", default)


def read_header(path: str | os.PathLike[str]) -> ModelInfo:
    """The facts of one file (of one part only, if it is split)."""
    return parse(FileSource.open(path))


def read_model(path: str | os.PathLike[str]) -> ModelInfo:
    """The facts of a model with all its parts; any part of a split set may be named.

    Raises HeaderError when a part is missing or belongs to another set.
    """
    info = read_header(path)
    if info.split_count <= 1:
        return info
    return join_parts([read_header(part) for part in split_paths(Path(path), info.split_count)])


def join_parts(parts: Sequence[ModelInfo]) -> ModelInfo:
    """One ModelInfo for all parts of a split set, in their order: the first part's metadata, and
    everybody's tensors and bytes.

    Raises HeaderError when parts are missing or belong to other sets, when a tensor is there twice,
    and when there are not as many as the first part says.
    """
    first = parts[0]
    for number, part in enumerate(parts):
        kinds = {part.types.get("split.no"), part.types.get("split.count")}
        # Another type than u16 makes libllama abort the process (gguf_get_val_u16).
        if (part.split_no, part.split_count) != (number, len(parts)) or kinds != {"u16"}:
            raise HeaderError(
                f"{part.path} says it is part {part.split_no + 1} of {part.split_count}, "
                f"expected {number + 1} of {len(parts)} (both as u16)"
            )
    names = Counter(tensor.name for part in parts for tensor in part.tensors)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise HeaderError(f"tensor {twice[0]!r} is in more than one part of {first.path}")
    expected = first.uint("split.tensors.count")
    if expected is not None and expected != len(names):
        raise HeaderError(f"{first.path}: the parts have {len(names)} tensors, not {expected}")
    bad = [f"{part.path}: {part.size_check}" for part in parts if part.size_check != "ok"]
    return _judge_tensors(
        replace(
            first,
            header_bytes=sum(part.header_bytes for part in parts),
            file_bytes=sum(part.file_bytes for part in parts),
            needed_bytes=sum(part.needed_bytes for part in parts),
            size_check="; ".join(bad) or "ok",
            files=tuple(part.path for part in parts),
            tensors=tuple(tensor for part in parts for tensor in part.tensors),
        )
    )


def split_paths(path: Path, count: int) -> list[Path]:
    """The paths of a split set, by llama.cpp's naming rule ``NAME-00001-of-00003.gguf``."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise HeaderError(
            f"{path} is part of a split set of {count}, but its name does not say so",
            hint=f"llama.cpp finds the parts by names like {path.stem}-00001-of-{count:05d}.gguf",
        )
    return [
        path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)
    ]


def parse(source: ByteSource, max_header_bytes: int = MAX_HEADER_BYTES) -> ModelInfo:
    """The facts in one header. ``max_header_bytes`` bounds what is read from the source."""
    raw = parse_structure(source, max_header_bytes)
    return interpret(source, raw, _tokenizer(source, raw))


def interpret(source: ByteSource, raw: RawHeader, tokenizer: Tokenizer) -> ModelInfo:
    """The facts in a structure that was read before; ``source`` is asked for nothing."""
    meta = raw.metadata
    arch = _text(meta, "general.architecture")
    blocks = _uint(meta, f"{arch}.block_count")
    nextn = _uint(meta, f"{arch}.nextn_predict_layers") or 0
    needed = _needed_bytes(raw)
    info = ModelInfo(
        path=source.name,
        version=raw.version,
        byte_order=raw.byte_order,
        arch=arch,
        name=_text(meta, "general.name") or Path(source.name).stem,
        role="target",
        quant="",
        bits_per_weight=0.0,
        n_params=0,
        n_layer=None if blocks is None else max(blocks - nextn, 0),
        n_layer_nextn=nextn,
        n_embd=_uint(meta, f"{arch}.embedding_length"),
        n_head=_largest(meta, f"{arch}.attention.head_count"),
        n_head_kv=_largest(meta, f"{arch}.attention.head_count_kv", f"{arch}.attention.head_count"),
        n_ctx_train=_uint(meta, f"{arch}.context_length"),
        vocab_size=_vocab_size(raw, arch),
        tokenizer=tokenizer,
        chat_template=_text(meta, "tokenizer.chat_template"),
        sampling=_sampling(meta),
        spec_types=(),
        header_bytes=raw.header_bytes,
        data_offset=raw.data_offset,
        alignment=raw.alignment,
        file_bytes=source.size,
        needed_bytes=needed,
        size_check=_size_check(source.size, needed, raw.alignment),
        split_no=_uint(meta, "split.no") or 0,
        split_count=_uint(meta, "split.count") or 1,
        files=(source.name,),
        tensors=raw.tensors,
        metadata=meta,
        arrays=raw.arrays,
        types=raw.types,
        source=source,
    )
    return _judge_tensors(info)


def _judge_tensors(info: ModelInfo) -> ModelInfo:
    """Fill in what needs the whole tensor table: role, quantization, sizes, speculation types."""
    n_params = sum(tensor.n_elements for tensor in info.tensors)
    n_bytes = sum(tensor.n_bytes for tensor in info.tensors)
    names = {tensor.name for tensor in info.tensors}
    has_mtp = info.n_layer_nextn > 0 and _has_nextn(info, names)
    role = _role(info, names)
    spec_types: tuple[str, ...] = ()
    if role == "target":
        spec_types = NGRAM_TYPES
        if has_mtp and info.arch in (MTP_ARCHS if info.n_layer_nextn == 1 else CHAIN_ARCHS):
            spec_types += ("draft-mtp",)
    return replace(
        info,
        role=role,
        quant=_quant(info),
        n_params=n_params,
        bits_per_weight=8 * n_bytes / n_params if n_params else 0.0,
        spec_types=spec_types,
    )


def _has_nextn(info: ModelInfo, names: set[str]) -> bool:
    return any(
        f"blk.{layer}.nextn.eh_proj.weight" in names
        for layer in range(info.n_layer or 0, (info.n_layer or 0) + min(info.n_layer_nextn, 512))
    )


def _role(info: ModelInfo, names: set[str]) -> str:
    """What the file is for, told by its contents: names of files and repositories do not count."""
    kind, arch = _text(info.metadata, "general.type"), info.arch or ""
    if kind == "adapter":
        return "adapter"
    if kind == "mmproj" or arch == "clip":
        return "mmproj"
    if kind == "imatrix":
        return "imatrix"
    if arch == "controlvector":
        return "controlvector"
    if arch == "eagle3":
        return "draft-eagle3"
    if arch == "dflash":
        return "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
    # Files exist whose architecture is spelled gemma4_assistant; llama.cpp refuses to load them.
    if arch.endswith(("-assistant", "_assistant")):
        return "assistant"
    # The test qwen35.cpp makes for a file that holds the MTP block alone.
    if _has_nextn(info, names) and "blk.0.attn_norm.weight" not in names:
        return "draft-mtp"
    return "target"


def _quant(info: ModelInfo) -> str:
    """The quantization's name, from the tensors; general.file_type only chooses among mixes.

    A file type is believed when its own tensor type holds a tenth of the bytes in layers: with
    rows that are no multiple of 256 llama-quantize falls back to other types, so it need not lead.
    """
    weights: Counter[str] = Counter()
    matrices = [tensor for tensor in info.tensors if len(tensor.shape) > 1] or info.tensors
    # Embeddings of a small model outweigh its layers and are kept in a better type.
    layers = [tensor for tensor in matrices if tensor.name.startswith("blk.")]
    for tensor in layers or matrices:
        weights[tensor.type] += tensor.n_bytes
    if not weights:
        return "unknown"
    leading = weights.most_common(1)[0][0]
    file_type = info.uint("general.file_type")
    name, base = FILE_TYPES.get(-1 if file_type is None else file_type, (leading, leading))
    return name if 10 * weights[base] >= sum(weights.values()) else leading


def _tokenizer(source: ByteSource, raw: RawHeader) -> Tokenizer:
    model = _text(raw.metadata, "tokenizer.ggml.model")
    pre = _text(raw.metadata, "tokenizer.ggml.pre")
    tokens = raw.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.type != "str":
        return Tokenizer(model, pre, None)
    digest = hashlib.sha256(f"{model}\0{pre}\0{tokens.count}\0".encode())
    data = source.read(tokens.offset, tokens.n_bytes)
    if raw.byte_order == "big":  # the same vocabulary has the same fingerprint in either order
        parts = string_elements(data, tokens.count, "big")
        data = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    digest.update(data)
    types = raw.arrays.get("tokenizer.ggml.token_type")
    if types is not None:
        data = source.read(types.offset, types.n_bytes)
        if raw.byte_order == "big" and types.type in ("i32", "u32"):
            swapped = array.array("I", data)
            swapped.byteswap()
            data = swapped.tobytes()
        digest.update(data)
    return Tokenizer(model, pre, digest.hexdigest()[:16])


def _vocab_size(raw: RawHeader, arch: str | None) -> int | None:
    tokens = raw.arrays.get("tokenizer.ggml.tokens")
    if tokens is not None:
        return tokens.count
    size = _uint(raw.metadata, f"{arch}.vocab_size")
    if size is not None:
        return size
    for tensor in raw.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[1]
    return None


def _sampling(meta: Mapping[str, MetaValue]) -> dict[str, Scalar]:
    """The model maker's sampling defaults, ``general.sampling.*``, by their short names."""
    prefix = "general.sampling."
    return {
        key.removeprefix(prefix): value
        for key, value in meta.items()
        if key.startswith(prefix) and isinstance(value, (int, float, str))
    }


def _needed_bytes(raw: RawHeader) -> int:
    """Where the last tensor ends; the padding behind it may be missing."""
    if not raw.tensors:
        return raw.header_bytes
    return raw.data_offset + raw.tensors[-1].offset + raw.tensors[-1].n_bytes


def _size_check(file_bytes: int, needed: int, alignment: int) -> str:
    if file_bytes < needed:
        return f"truncated: the file has {file_bytes} bytes, its header describes {needed}"
    if file_bytes > needed + alignment:
        return f"the file has {file_bytes} bytes, {file_bytes - needed} more than its header needs"
    return "ok"


def _text(meta: Mapping[str, MetaValue], key: str) -> str | None:
    value = meta.get(key)
    return value if isinstance(value, str) else None


def _uint(meta: Mapping[str, MetaValue], key: str) -> int | None:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _largest(meta: Mapping[str, MetaValue], key: str, otherwise: str = "") -> int | None:
    if key not in meta:
        key = otherwise
    value = meta.get(key)
    if isinstance(value, tuple):
        numbers = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
        return max(numbers, default=None)
    return _uint(meta, key)
