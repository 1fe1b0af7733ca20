"""Headers of a repository's other quantizations: two short ranges each, instead of megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gguf_spec.errors import HeaderError, HubError
from gguf_spec.gguf_sibling import parse_sibling, vocabulary_of
from gguf_spec.gguf_source import ByteSource
from gguf_spec.header import ModelInfo, TensorInfo, join_parts
from gguf_spec.hub.header_cache import HeaderCache, keep
from gguf_spec.hub.ranges import body_of
from gguf_spec.hub.remote import RemoteFile, cache_key, check_content, read_remote, with_parts
from gguf_spec.hub.web import Web

HEAD_MORE = 8 * 1024  # bytes by which siblings' metadata before the vocabulary may differ
TAIL_MORE = 64 * 1024  # and by which the rest behind it may


def read_sibling(
    web: Web, cache: HeaderCache, files: Sequence[RemoteFile], base: ModelInfo
) -> ModelInfo:
    """The header of another quantization of ``base``: its own tensors and sizes, and the
    vocabulary of ``base``. Where its file is not like that, the header is read whole. Errors as
    ``read_remote``."""
    return with_parts(web, cache, files, lambda first: _read(web, cache, first, base))


def _read(web: Web, cache: HeaderCache, file: RemoteFile, base: ModelInfo) -> ModelInfo:
    vocabulary = vocabulary_of(base)
    size = file.size
    if file.oid is None or size is None or vocabulary is None:
        return read_remote(web, cache, file)
    known = _kept(web, cache, file)
    if known is not None:
        return known[0]

    try:
        n_head = min(vocabulary.start + HEAD_MORE, size)
        head, link = _piece(web, file, file.url, 0, n_head)

        def tail_at(offset: int) -> tuple[ByteSource, int]:
            more = max(base.header_bytes - vocabulary.end, 0) + TAIL_MORE
            data, _ = _piece(web, file, link, offset, min(more, size - offset))
            return _Piece(file.name, size - offset, data), len(data)

        source = _Piece(file.name, size, head)
        info = parse_sibling(base, vocabulary, source, len(head), tail_at)
    except HeaderError:
        return read_remote(web, cache, file, likely=base.header_bytes)
    keep(web, lambda: cache.store(_table_key(web, file), info))
    return info


def scaled(info: ModelInfo, ref: str, quant: str, n_bytes: int) -> ModelInfo:
    """``info`` as it would be in a file of ``n_bytes``, called ``ref``: all tensors grow alike."""
    data = max(n_bytes - info.header_bytes, 1)
    own = max(info.file_bytes - info.header_bytes, 1)
    tensors = tuple(
        TensorInfo(one.name, one.shape, one.type, one.offset, max(one.n_bytes * data // own, 1))
        for one in info.tensors
    )
    return replace(
        info,
        path=ref,
        files=(ref,),
        quant=quant or info.quant,
        bits_per_weight=info.bits_per_weight * data / own,
        file_bytes=n_bytes,
        tensors=tensors,
    )


def kept_header(
    web: Web, cache: HeaderCache, files: Sequence[RemoteFile]
) -> tuple[ModelInfo, bool] | None:
    """What the cache has of a model's header, and whether its vocabulary is its own; None without
    all of its tensors."""
    first, *rest = files
    found = _kept(web, cache, first)
    if found is None or not rest:
        return found
    others = [cache.load(cache_key(web, file), file.name) for file in rest]
    there = [info for info in others if info is not None]
    if len(there) < len(others):
        return None
    try:
        return join_parts([found[0], *there]), found[1]
    except HeaderError:
        return None


def _kept(web: Web, cache: HeaderCache, file: RemoteFile) -> tuple[ModelInfo, bool] | None:
    whole = cache.load(cache_key(web, file), file.name)
    if whole is not None:
        return whole, True
    table = cache.load(_table_key(web, file), file.name)
    return None if table is None else (table, False)


def _table_key(web: Web, file: RemoteFile) -> str:
    return f"{cache_key(web, file)}\0 as its sibling's"


def _piece(web: Web, file: RemoteFile, url: str, start: int, n: int) -> tuple[bytes, str]:
    """``n`` bytes of a file from ``start`` on, and the link that the host gave for it. ``url`` is
    its address, or such a link, which spares asking for it again.

    Raises:
        HeaderError: they cannot be had so.
        HubError: the host has no such file, or another one.
    """
    if n <= 0:
        raise HeaderError(f"{file.name}: there is nothing from byte {start} on")
    data = bytearray()
    link = url
    try:
        with web.open(url, {"Range": f"bytes={start}-{start + n - 1}"}) as reply:
            if url == file.url:  # whose tags are of the content, as promised; a store has its own
                check_content(reply, file)
            if not body_of(reply, start, file.name, file.size).whole:
                link = reply.url
                for chunk in reply.chunks:
                    data += chunk
                    if len(data) > n:
                        break
    except HubError as error:
        if error.kind != "closed" and url == file.url:
            raise
    if len(data) != n:
        raise HeaderError(f"{file.name}: asked for {n} bytes from {start} on, got {len(data)}")
    return bytes(data), link


@dataclass(frozen=True, slots=True)
class _Piece:
    """The first bytes of what is ``size`` bytes long."""

    name: str
    size: int
    data: bytes

    def read(self, offset: int, n: int) -> bytes:
        piece = self.data[offset : offset + n]
        if len(piece) != n:
            raise HeaderError(f"{self.name}: only {len(self.data)} bytes were read")
        return piece
