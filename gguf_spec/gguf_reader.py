"""Hardened reader of the GGUF structure: bytes -> metadata and tensor table.

It accepts at most what ``gguf_init_from_reader`` (ggml/src/gguf.cpp) accepts. Every count and
length is compared with what is left of the file before a byte is read or allocated for it, so that
a hostile or damaged file costs an error message and nothing else. Tensor data is never read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_source import ByteSource
from gguf_spec.gguf_types import ARRAY, STRING, TENSOR_TYPES, VALUE_TYPES

MAX_HEADER_BYTES = 128 * 1024 * 1024  # the largest seen in the wild is about 17 MB
MAX_ENTRIES = 100_000  # metadata keys, and tensors; real files have fewer than 10,000
MAX_NAME = 63  # bytes in a tensor name: GGML_MAX_NAME - 1
MAX_DIMS = 4
SMALL_NUMBERS = 1024  # arrays up to this many numbers become tuples (llama.cpp: 512 layers)
SMALL_STRINGS = 64
FIRST_READ = 64 * 1024  # bytes; doubled until the header is complete
MAX_AHEAD = 1024 * 1024  # bytes that are read beyond what is needed: remote ones take time
INT64_MAX = 2**63 - 1
SUPPORTED_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array left in the file: ``count`` elements in ``n_bytes`` bytes at ``offset``."""

    type: str
    count: int
    offset: int
    n_bytes: int


Scalar = int | float | bool | str
MetaValue = Scalar | tuple[Scalar, ...] | ArrayRef


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One line of the tensor table; ``offset`` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        n = 1
        for dim in self.shape:
            n *= dim
        return n


@dataclass(frozen=True, slots=True)
class RawHeader:
    """What the structure says, without interpreting a single key but ``general.alignment``."""

    version: int
    byte_order: str
    metadata: Mapping[str, MetaValue]
    arrays: Mapping[str, ArrayRef]
    types: Mapping[str, str]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    header_bytes: int
    data_offset: int


class Cursor:
    """A position in a growing prefix of the file. ``limit``: bytes of it that may be read."""

    __slots__ = ("buffer", "limit", "order", "position", "source")

    def __init__(self, source: ByteSource, limit: int) -> None:
        self.source = source
        self.limit = limit
        self.buffer = bytearray()
        self.position = 0
        self.order = "<"

    def fail(self, what: str, hint: str = "get the file again") -> HeaderError:
        return HeaderError(f"{self.source.name}: {what}", hint=hint)

    def need(self, end: int, what: str) -> None:
        """Have ``buffer`` reach ``end``; ``what`` names the thing that ends there."""
        if end <= len(self.buffer):
            return
        size = self.source.size
        if end > size:
            raise self.fail(
                f"truncated header: {what} ends at byte {end}, the file has {size} bytes"
            )
        if end > self.limit:
            raise self.fail(
                f"header too large: {what} ends at byte {end}, the limit is {self.limit}"
            )
        have = len(self.buffer)
        want = min(size, self.limit, max(end, have + min(have, MAX_AHEAD), FIRST_READ))
        self.buffer += self.source.read(have, want - have)

    def number(self, code: str, what: str) -> int | float | bool:
        form = struct.Struct(self.order + code)
        self.need(self.position + form.size, what)
        (value,) = form.unpack_from(self.buffer, self.position)
        self.position += form.size
        return value  # type: ignore[no-any-return]

    def integer(self, code: str, what: str) -> int:
        return int(self.number(code, what))

    def raw_string(self, what: str) -> bytes:
        length = self.integer("Q", f"the length of {what}")
        self.need(self.position + length, f"{what} ({length} bytes)")
        value = bytes(self.buffer[self.position : self.position + length])
        self.position += length
        return value

    def skip_strings(self, count: int, what: str) -> None:
        """Walk ``count`` strings: 262,144 of them in some 30 ms."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        buffer, position = self.buffer, self.position
        last = len(buffer) - 8
        for _ in range(count):
            if position > last:
                self.need(position + 8, what)
                last = len(buffer) - 8
            position += 8 + unpack(buffer, position)[0]
        self.need(position, what)
        self.position = position


def parse_structure(source: ByteSource, max_header_bytes: int = MAX_HEADER_BYTES) -> RawHeader:
    """Parse a GGUF header; raises HeaderError and nothing else for whatever the bytes are."""
    cursor = Cursor(source, max_header_bytes)
    version = read_version(cursor)
    n_tensors, n_keys = read_counts(cursor)
    metadata: dict[str, MetaValue] = {}
    arrays: dict[str, ArrayRef] = {}
    types: dict[str, str] = {}
    for index in range(n_keys):
        read_entry(cursor, index, metadata, arrays, types)
    alignment = alignment_of(cursor, metadata, types)
    tensors = read_tensors(cursor, n_tensors, alignment)
    header_bytes = cursor.position
    return RawHeader(
        version=version,
        byte_order="little" if cursor.order == "<" else "big",
        metadata=metadata,
        arrays=arrays,
        types=types,
        tensors=tensors,
        alignment=alignment,
        header_bytes=header_bytes,
        data_offset=data_offset(header_bytes, alignment, tensors),
    )


def data_offset(header_bytes: int, alignment: int, tensors: Sequence[TensorInfo]) -> int:
    """Where the tensors' data begins, behind a header of ``header_bytes``."""
    return _pad(header_bytes, alignment) if tensors else header_bytes


def string_elements(data: bytes, count: int, byte_order: str) -> list[bytes]:
    """Split the bytes of a string array parsed before; raises HeaderError if it changed."""
    unpack = struct.Struct(("<" if byte_order == "little" else ">") + "Q").unpack_from
    elements: list[bytes] = []
    position = 0
    try:
        for _ in range(count):
            end = position + 8 + unpack(data, position)[0]
            elements.append(data[position + 8 : end])
            position = end
    except struct.error:
        position = -1
    if position != len(data):
        raise HeaderError(f"an array of {count} strings changed while it was read")
    return elements


def _pad(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def read_version(cursor: Cursor) -> int:
    """The version, 2 or 3; the cursor knows the byte order afterwards."""
    name, size = cursor.source.name, cursor.source.size
    if size == 0:
        raise HeaderError(f"{name} is empty (0 bytes)", hint="get the file again")
    start = cursor.source.read(0, min(size, 16))
    if start[:4] != b"GGUF":
        raise HeaderError(
            f"{name} is not a GGUF file: starts with {start!r}",
            hint="a download page or a Git LFS pointer may have been saved instead of the model",
        )
    cursor.position = 4
    little = cursor.integer("I", "the version")
    big = int.from_bytes(little.to_bytes(4, "little"), "big")
    if little in SUPPORTED_VERSIONS:
        return little
    # A byte-swapped small number has its lower half zero: the test gguf.cpp makes, too.
    version = big if little & 0xFFFF == 0 else little
    if version in SUPPORTED_VERSIONS:
        cursor.order = ">"
        return version
    raise HeaderError(
        f"{name} is GGUF version {version}; versions 2 and 3 are known",
        hint="convert the model again" if version < 2 else "a newer gguf-spec may know it",
    )


def read_counts(cursor: Cursor) -> tuple[int, int]:
    """The numbers of tensors and of metadata keys."""
    n_tensors = cursor.integer("q", "the number of tensors")
    n_keys = cursor.integer("q", "the number of metadata keys")
    _check_count(cursor, n_tensors, "tensors", 24)
    _check_count(cursor, n_keys, "metadata keys", 14)
    return n_tensors, n_keys


def _check_count(cursor: Cursor, count: int, what: str, least: int) -> None:
    """``least`` is the fewest bytes one of them takes."""
    left = cursor.source.size - cursor.position
    if count < 0 or count * least > left:
        raise cursor.fail(
            f"{count} {what} cannot be in the {left} bytes left: truncated or damaged"
        )
    if count > MAX_ENTRIES:
        raise cursor.fail(f"{count} {what}; at most {MAX_ENTRIES} are read")


def read_name(cursor: Cursor, what: str) -> str:
    """The name of a key or tensor."""
    raw = cursor.raw_string(what)
    if b"\0" in raw:  # libllama compares C strings: such a name could pose as another one
        raise cursor.fail(f"{what} has a NUL byte in it: {raw[:80]!r}")
    return raw.decode("utf-8", "backslashreplace")


def read_entry(
    cursor: Cursor,
    index: int,
    metadata: dict[str, MetaValue],
    arrays: dict[str, ArrayRef],
    types: dict[str, str],
) -> None:
    """Add metadata key number ``index``, which is next."""
    key = read_name(cursor, f"metadata key {index}")
    if not key:
        raise cursor.fail(f"metadata key {index} is empty")
    if key in metadata:
        raise cursor.fail(f"metadata key {key!r} is there twice (number {index})")
    kind = cursor.integer("i", f"the type of {key!r}")
    if kind == ARRAY:
        ref, metadata[key] = _read_array(cursor, key)
        arrays[key] = ref
        types[key] = f"[{ref.type}]"
        return
    type_name, code = _value_type(cursor, key, kind)
    types[key] = type_name
    if kind == STRING:
        raw = cursor.raw_string(f"the value of {key!r}")
        # libllama takes values as C strings, so it sees nothing after a NUL byte either.
        metadata[key] = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    else:
        metadata[key] = cursor.number(code, f"the value of {key!r}")


def _value_type(cursor: Cursor, key: str, kind: int) -> tuple[str, str]:
    if kind not in VALUE_TYPES or kind == ARRAY:
        raise cursor.fail(f"metadata key {key!r} has the unknown value type {kind}")
    return VALUE_TYPES[kind]


def _read_array(cursor: Cursor, key: str) -> tuple[ArrayRef, MetaValue]:
    what = f"the array {key!r}"
    kind = cursor.integer("i", f"the element type of {what}")
    type_name, code = _value_type(cursor, key, kind)
    count = cursor.integer("Q", f"the length of {what}")
    width = struct.calcsize("<" + code) if code else 8
    left = cursor.source.size - cursor.position
    if count * width > left:
        raise cursor.fail(
            f"truncated header: {what} has {count} elements, the file has {left} bytes left"
        )
    start = cursor.position
    if kind == STRING:
        cursor.skip_strings(count, what)
    else:
        cursor.need(start + count * width, what)
        cursor.position = start + count * width
    ref = ArrayRef(type_name, count, start, cursor.position - start)
    if count > (SMALL_STRINGS if kind == STRING else SMALL_NUMBERS):
        return ref, ref
    data = bytes(cursor.buffer[start : cursor.position])
    if kind == STRING:
        order = "little" if cursor.order == "<" else "big"
        parts = string_elements(data, count, order)
        return ref, tuple(part.decode("utf-8", "replace") for part in parts)
    return ref, struct.unpack(f"{cursor.order}{count}{code}", data)


def alignment_of(
    cursor: Cursor, metadata: Mapping[str, MetaValue], types: Mapping[str, str]
) -> int:
    """The multiple of which every tensor's offset is."""
    value = metadata.get("general.alignment", 32)
    kind = types.get("general.alignment", "u32")
    if not isinstance(value, int) or kind != "u32":
        raise cursor.fail(f"general.alignment must be of type u32, it is {kind}")
    if value == 0 or value & (value - 1):
        raise cursor.fail(f"general.alignment is {value}, not a power of two")
    return value


def read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    """The tensor table, which is next. Tensors lie one behind the other, without holes."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    offset = 0
    for index in range(count):
        tensor = _read_tensor(cursor, index)
        if tensor.name in names:
            raise cursor.fail(f"tensor {tensor.name!r} is there twice (number {index})")
        if tensor.offset != offset:
            raise cursor.fail(
                f"tensor {tensor.name!r} is at offset {tensor.offset}, expected {offset}"
            )
        names.add(tensor.name)
        tensors.append(tensor)
        offset += _pad(tensor.n_bytes, alignment)
    return tuple(tensors)


def _read_tensor(cursor: Cursor, index: int) -> TensorInfo:
    name = read_name(cursor, f"the name of tensor {index}")
    if len(name.encode()) > MAX_NAME:
        raise cursor.fail(f"the name of tensor {index} has {len(name)} bytes, at most {MAX_NAME}")
    what = f"tensor {name!r}"
    n_dims = cursor.integer("I", f"the shape of {what}")
    if n_dims > MAX_DIMS:
        raise cursor.fail(f"{what} has {n_dims} dimensions, at most {MAX_DIMS}")
    shape = tuple(cursor.integer("q", f"the shape of {what}") for _ in range(n_dims))
    n_elements = 1
    for dim in shape:
        n_elements *= dim
    # A tensor without elements is legal GGUF, but no model has one and its kernels divide by sizes.
    if any(dim <= 0 for dim in shape) or n_elements > INT64_MAX:
        raise cursor.fail(f"{what} has the impossible shape {list(shape)}")
    kind = cursor.integer("i", f"the type of {what}")
    if kind not in TENSOR_TYPES:
        raise cursor.fail(
            f"{what} has the unknown ggml type {kind}",
            "forks have quantizations of their own (IQ4_KS and the like): take a file that "
            "llama.cpp has quantized",
        )
    tensor_type = TENSOR_TYPES[kind]
    row = shape[0] if shape else 1
    if row % tensor_type.block:
        raise cursor.fail(
            f"{what} has rows of {row}, not a multiple of {tensor_type.name}'s {tensor_type.block}"
        )
    n_bytes = n_elements // tensor_type.block * tensor_type.n_bytes
    if n_bytes > INT64_MAX:
        raise cursor.fail(f"{what} would take {n_bytes} bytes")
    offset = cursor.integer("Q", f"the offset of {what}")
    return TensorInfo(name, shape, tensor_type.name, offset, n_bytes)
