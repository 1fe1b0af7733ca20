"""Headers of remote files, kept by what the files contain.

A header is kept without its vocabulary, which is most of it and the same in all quantizations: so
it takes kilobytes. Vocabularies are kept once each, named by their hash, and read when somebody
asks for them, which is when two models are paired. An entry never gets old, because its key says
what is in the file. One that is not as it was written is no entry: headers begin with the hash of
the rest, vocabularies with its length, and what is wrong behind that is found when it is read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf_spec.errors import HeaderError, HubError
from gguf_spec.gguf_reader import ArrayRef, MetaValue, RawHeader, TensorInfo
from gguf_spec.header import ModelInfo, Tokenizer, interpret
from gguf_spec.hub.web import Web

FORMAT = 2
_HASH = 32  # bytes in front of a header
_LENGTH = b"vocab\0\0\2", struct.Struct("<8sQ")  # in front of a vocabulary
_VOCABULARY = "tokenizer.ggml."


@dataclass(frozen=True, slots=True)
class HeaderCache:
    """A folder of headers and vocabularies."""

    folder: Path

    def load(self, key: str, name: str) -> ModelInfo | None:
        """The header kept under ``key``, called ``name``; None if there is none."""
        try:
            data = self._header(key).read_bytes()
            if hashlib.sha256(data[_HASH:]).digest() != data[:_HASH]:
                return None
            record = json.loads(zlib.decompress(data[_HASH:]))
            if record["format"] != FORMAT or record["key"] != key:
                return None
            raw = _structure(record)
            digest = record["vocabulary"]
            vocabulary = self._vocabulary(digest) if digest else None
            if vocabulary is not None and not _is_whole(vocabulary):
                return None
            pieces = {int(at): base64.b64decode(data) for at, data in record["pieces"].items()}
            held = {int(at): int(n) for at, n in record["held"].items()}
            source = KeptSource(name, record["size"], pieces, held, vocabulary, digest)
            return interpret(source, raw, Tokenizer(*record["tokenizer"]))
        except (OSError, ValueError, KeyError, TypeError, IndexError, zlib.error, AttributeError):
            return None

    def store(self, key: str, info: ModelInfo) -> None:
        """Keep a header. Raises HubError where nothing can be written."""
        pieces: dict[int, str] = {}
        vocabulary: list[bytes] = []
        held: dict[int, int] = {}
        for name, ref in info.arrays.items():
            data = info.raw_array(name)
            if name.startswith(_VOCABULARY):
                held[ref.offset] = ref.n_bytes
                vocabulary.append(data)
            else:
                pieces[ref.offset] = base64.b64encode(data).decode()
        whole = b"".join(vocabulary)
        digest = hashlib.sha256(whole).hexdigest() if whole else ""
        record = {
            "format": FORMAT,
            "key": key,
            "size": info.file_bytes,
            "tokenizer": [info.tokenizer.model, info.tokenizer.pre, info.tokenizer.fingerprint],
            "vocabulary": digest,
            "held": held,
            "pieces": pieces,
            **_record(info),
        }
        try:
            if digest and not _is_whole(self._vocabulary(digest)):
                packed = zlib.compress(whole, 1)
                magic, form = _LENGTH
                write_whole(self._vocabulary(digest), form.pack(magic, len(packed)) + packed)
            packed = zlib.compress(json.dumps(record).encode(), 6)
            write_whole(self._header(key), hashlib.sha256(packed).digest() + packed)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def _header(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self.folder / "headers" / name[:2] / f"{name}.z"

    def _vocabulary(self, digest: str) -> Path:
        return self.folder / "vocabularies" / f"{digest[:32]}.z"


@dataclass(slots=True)
class KeptSource:
    """The bytes of a kept header that somebody may ask for: its arrays, at their old offsets.

    ``pieces``: small ones. ``held``: offset and bytes of those in the file of the vocabulary.
    """

    name: str
    size: int
    pieces: dict[int, bytes]
    held: dict[int, int]
    vocabulary: Path | None
    digest: str
    _texts: bytes | None = None

    def read(self, offset: int, n: int) -> bytes:
        """Exactly an array; raises HeaderError for anything else, and if the file is damaged."""
        piece = self.pieces.get(offset)
        if piece is None and offset in self.held:
            start = 0
            for at, length in self.held.items():
                if at == offset:
                    break
                start += length
            piece = self._whole()[start : start + self.held[offset]]
        if piece is None or len(piece) != n:
            raise HeaderError(f"{self.name}: {n} bytes at {offset} are not in the kept header")
        return piece

    def _whole(self) -> bytes:
        if self._texts is None:
            assert self.vocabulary is not None
            try:
                texts = zlib.decompress(self.vocabulary.read_bytes()[_LENGTH[1].size :])
            except (OSError, zlib.error) as error:
                raise self._damaged(str(error)) from error
            if hashlib.sha256(texts).hexdigest() != self.digest:
                raise self._damaged("its checksum is wrong")
            self._texts = texts
        return self._texts

    def _damaged(self, why: str) -> HeaderError:
        assert self.vocabulary is not None
        hint = "try again: it was deleted, and will be read from the network"
        try:
            self.vocabulary.unlink(missing_ok=True)
        except OSError:
            hint = f"delete {self.vocabulary}"
        told = f"{self.name}: its vocabulary {self.vocabulary} is damaged: {why}"
        return HeaderError(told, hint=hint)


def _is_whole(vocabulary: Path) -> bool:
    """Whether a vocabulary is there, with as many bytes as it says."""
    magic, form = _LENGTH
    try:
        with vocabulary.open("rb") as file:
            n_packed = os.fstat(file.fileno()).st_size - form.size
            return n_packed > 0 and file.read(form.size) == form.pack(magic, n_packed)
    except OSError:
        return False


def _record(info: ModelInfo) -> dict[str, Any]:
    """The structure of a header as JSON. Values that are arrays stay where ``arrays`` says."""
    return {
        "version": info.version,
        "byte_order": info.byte_order,
        "metadata": {
            key: None if isinstance(value, ArrayRef) else value
            for key, value in info.metadata.items()
        },
        "arrays": {
            key: [ref.type, ref.count, ref.offset, ref.n_bytes] for key, ref in info.arrays.items()
        },
        "types": dict(info.types),
        "tensors": [
            [tensor.name, tensor.shape, tensor.type, tensor.offset, tensor.n_bytes]
            for tensor in info.tensors
        ],
        "alignment": info.alignment,
        "header_bytes": info.header_bytes,
        "data_offset": info.data_offset,
    }


def _structure(record: dict[str, Any]) -> RawHeader:
    arrays = {key: ArrayRef(*ref) for key, ref in record["arrays"].items()}
    metadata: dict[str, MetaValue] = {}
    for key, value in record["metadata"].items():
        if isinstance(value, list):
            metadata[key] = tuple(value)
        else:
            metadata[key] = arrays[key] if value is None else value
    return RawHeader(
        version=record["version"],
        byte_order=record["byte_order"],
        metadata=metadata,
        arrays=arrays,
        types=record["types"],
        tensors=tuple(
            TensorInfo(name, tuple(shape), kind, offset, n_bytes)
            for name, shape, kind, offset, n_bytes in record["tensors"]
        ),
        alignment=record["alignment"],
        header_bytes=record["header_bytes"],
        data_offset=record["data_offset"],
    )


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is either there with all of ``data`` or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def keep(web: Web, store: Callable[[], None]) -> None:
    """Write to the cache. Where that is not possible, reading goes on without it, and the user is
    told once."""
    try:
        store()
    except HubError as error:
        if error.kind != "disk":
            raise
        text = f"nothing is kept of what was read from the network: {error.message}; {error.hint}"
        web.tell_once("cache", text)


def unwritable(folder: Path, error: OSError) -> HubError:
    """The error for a cache that cannot be written to."""
    return HubError(
        f"cannot write to {folder}: {error.strerror or error}",
        kind="disk",
        hint="make room or make it writable, or set GGUF_SPEC_HOME (HF_HOME for models) elsewhere",
    )


def detached(info: ModelInfo, prefix: bytes) -> ModelInfo:
    """``info`` with the bytes it was read from, independent of the stream they came by."""
    return replace(info, source=HeldSource(info.source.name, info.source.size, prefix))


@dataclass(frozen=True, slots=True)
class HeldSource:
    """The first bytes of a file of ``size`` bytes."""

    name: str
    size: int
    prefix: bytes

    def read(self, offset: int, n: int) -> bytes:
        data = self.prefix[offset : offset + n]
        if len(data) != n:
            raise HeaderError(f"{self.name}: only its header was read, not byte {offset + n}")
        return data
