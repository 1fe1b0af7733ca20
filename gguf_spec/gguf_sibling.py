"""The header of a file out of that of a sibling, without the vocabulary that both have.

The quantizations of a model have one vocabulary, which is nearly all of a header: megabytes of some
arrays in the middle. What differs lies before them (sizes, names) and behind them (the file type,
the tensor table). So of a sibling only these two pieces are read. That the arrays between them are
as long as in the file that is known shows in what follows: a table that is read from the wrong
place does not have the right number of keys, tensors without holes, and the size of the file.
What the arrays hold is not looked at, and nothing that counts bytes depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_reader import (
    ArrayRef,
    Cursor,
    MetaValue,
    RawHeader,
    alignment_of,
    data_offset,
    read_counts,
    read_entry,
    read_name,
    read_tensors,
    read_version,
)
from gguf_spec.gguf_source import ByteSource
from gguf_spec.gguf_types import ARRAY, VALUE_TYPES
from gguf_spec.header import ModelInfo, interpret

BIG = 64 * 1024  # bytes of an array that is worth leaving out
_TOKENIZER = ("tokenizer.ggml.model", "tokenizer.ggml.pre")  # what else tells vocabularies apart


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The big arrays of a header and what lies between them: its bytes from ``start``, where the
    elements of the first begin, to ``end``, where those of the last do; ``keys`` in their order."""

    keys: tuple[str, ...]
    start: int
    end: int


def vocabulary_of(info: ModelInfo) -> Vocabulary | None:
    """Where the big arrays of a header are; None if it has none."""
    big = [key for key, ref in info.arrays.items() if ref.n_bytes >= BIG]
    if not big:
        return None
    keys = list(info.metadata)
    first, last = keys.index(big[0]), keys.index(big[-1])
    end = info.arrays[big[-1]]
    return Vocabulary(
        tuple(keys[first : last + 1]), info.arrays[big[0]].offset, end.offset + end.n_bytes
    )


def parse_sibling(
    base: ModelInfo,
    vocabulary: Vocabulary,
    head: ByteSource,
    n_head: int,
    tail_at: Callable[[int], tuple[ByteSource, int]],
) -> ModelInfo:
    """The header of a file whose big arrays are those of ``base``: its tensors and their bytes are
    read, its vocabulary is taken for the same.

    ``head`` has the first ``n_head`` bytes of the file. ``tail_at`` is asked for what begins at an
    offset: a source that counts from there, and how many bytes may be read of it.

    Raises:
        HeaderError: the file is not like that, and its header has to be read whole.
    """
    metadata: dict[str, MetaValue] = {}
    arrays: dict[str, ArrayRef] = {}
    types: dict[str, str] = {}
    cursor = Cursor(head, n_head)
    version = read_version(cursor)
    n_tensors, n_keys = read_counts(cursor)
    n_before = _read_before(cursor, n_keys, base, vocabulary, metadata, arrays, types)
    shift = cursor.position - vocabulary.start
    for key in vocabulary.keys:
        metadata[key], types[key] = base.metadata[key], base.types[key]
    known = {key: ref for key, ref in base.arrays.items() if key in vocabulary.keys}
    _move(known, shift, metadata, arrays)

    at = vocabulary.end + shift
    source, n_tail = tail_at(at)
    tail = Cursor(source, n_tail)
    tail.order = cursor.order
    found: dict[str, ArrayRef] = {}
    for index in range(n_before + len(vocabulary.keys), n_keys):
        read_entry(tail, index, metadata, found, types)
    _move(found, at, metadata, arrays)
    alignment = alignment_of(tail, metadata, types)
    tensors = read_tensors(tail, n_tensors, alignment)
    raw = RawHeader(
        version=version,
        byte_order=base.byte_order,
        metadata=metadata,
        arrays=arrays,
        types=types,
        tensors=tensors,
        alignment=alignment,
        header_bytes=at + tail.position,
        data_offset=data_offset(at + tail.position, alignment, tensors),
    )
    held = _Sibling(head.name, head.size, head, base.source, source, cursor.position, at, shift)
    info = interpret(held, raw, base.tokenizer)
    alike = all(metadata.get(key) == base.metadata.get(key) for key in _TOKENIZER)
    if info.size_check != "ok" or len(metadata) != n_keys or not alike:
        raise HeaderError(f"{head.name}: its header is not like that of {base.path}")
    return info


def _move(
    found: Mapping[str, ArrayRef],
    by: int,
    metadata: dict[str, MetaValue],
    arrays: dict[str, ArrayRef],
) -> None:
    """Add the arrays ``found``, which are ``by`` bytes further on in the whole file."""
    for key, ref in found.items():
        arrays[key] = replace(ref, offset=ref.offset + by)
        if isinstance(metadata[key], ArrayRef):
            metadata[key] = arrays[key]


def _read_before(
    cursor: Cursor,
    n_keys: int,
    base: ModelInfo,
    vocabulary: Vocabulary,
    metadata: dict[str, MetaValue],
    arrays: dict[str, ArrayRef],
    types: dict[str, str],
) -> int:
    """Read what lies before the big arrays, to where the elements of the first begin. Returns how
    many keys that were."""
    first = vocabulary.keys[0]
    expected = base.arrays[first]
    for index in range(n_keys):
        start = cursor.position
        if read_name(cursor, f"metadata key {index}") != first:
            cursor.position = start
            read_entry(cursor, index, metadata, arrays, types)
            continue
        kind = cursor.integer("i", f"the type of {first!r}")
        element = VALUE_TYPES.get(cursor.integer("i", f"the elements' type of {first!r}"))
        count = cursor.integer("Q", f"the length of {first!r}")
        order = "<" if base.byte_order == "little" else ">"
        same = (kind, element and element[0], count) == (ARRAY, expected.type, expected.count)
        if not same or cursor.order != order or not metadata.keys().isdisjoint(vocabulary.keys):
            break
        return index
    raise HeaderError(f"{cursor.source.name}: its header is not like that of {base.path}")


@dataclass(frozen=True, slots=True)
class _Sibling:
    """The arrays of such a header: of ``head`` before ``start``, of ``tail`` from ``end`` on, and
    between them of the file that is known, ``shift`` bytes further on."""

    name: str
    size: int
    head: ByteSource
    known: ByteSource
    tail: ByteSource
    start: int
    end: int
    shift: int

    def read(self, offset: int, n: int) -> bytes:
        """Exactly an array; raises HeaderError for anything else."""
        if offset < self.start:
            return self.head.read(offset, n)
        if offset >= self.end:
            return self.tail.read(offset - self.end, n)
        return self.known.read(offset - self.shift, n)
