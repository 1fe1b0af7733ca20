"""Headers of remote files: one streamed range request each, parsed while it comes in."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gguf_spec.errors import HeaderError, HubError
from gguf_spec.folders import home_cache_dir
from gguf_spec.header import SPLIT_NAME, ModelInfo, join_parts, parse
from gguf_spec.hub.header_cache import HeaderCache, detached, keep, unwritable, write_whole
from gguf_spec.hub.ranges import StreamSource, body_of
from gguf_spec.hub.web import Reply, Web

MAX_HEADER = 64 * 1024 * 1024  # bytes; the largest seen is about 17 MB
MARGIN = 128 * 1024  # bytes by which the headers of siblings differ at most, most likely
SMALL = 256 * 1024  # bytes that hold the header of a part without metadata, most likely
PARALLEL = 4  # requests at a time
ATTEMPTS = 3  # at a header whose connection breaks


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at an address. ``name`` is what messages call it. ``size`` and ``oid`` (sha256, or
    the id of a git blob) are what it has to have; None where nobody has said so."""

    name: str
    url: str
    size: int | None = None
    oid: str | None = None


def hub_folder() -> Path:
    """Where lists and headers are kept."""
    return home_cache_dir() / "hub"


def read_remote(
    web: Web, cache: HeaderCache, file: RemoteFile, *, likely: int | None = None
) -> ModelInfo:
    """The header of one file (of one part, if it is split), from the cache where it is there.

    ``likely`` is the size of a sibling's header in bytes: the request is for so much and a little
    more, and made again without that bound if the header is larger.

    Raises:
        HubError: it cannot be had.
        HeaderError: what is there is not GGUF.
    """
    if file.oid is None:
        return _read_address(web, cache, file)
    key = cache_key(web, file)
    info = cache.load(key, file.name)
    if info is None:
        info = _fetch(web, file, lambda reply: check_content(reply, file), likely)
        keep(web, lambda: cache.store(key, info))
    return info


def cache_key(web: Web, file: RemoteFile) -> str:
    """Under which the header of a file of known content is kept."""
    return f"{web.endpoint}\0{file.oid}\0{file.size}"


def read_remote_model(
    web: Web, cache: HeaderCache, files: Sequence[RemoteFile], *, likely: int | None = None
) -> ModelInfo:
    """The header of a model with all its parts. Errors as ``read_remote``."""
    return with_parts(
        web, cache, files, lambda first: read_remote(web, cache, first, likely=likely)
    )


def with_parts(
    web: Web,
    cache: HeaderCache,
    files: Sequence[RemoteFile],
    read: Callable[[RemoteFile], ModelInfo],
) -> ModelInfo:
    """The first file's header as ``read`` gives it, joined with those of the others, which have
    tensor tables and next to no metadata (gguf-split writes them so)."""
    first, *rest = files
    if not rest:
        return read(first)
    with ThreadPoolExecutor(min(PARALLEL, len(files))) as pool:
        begun = pool.submit(read, first)
        others = pool.map(lambda file: read_remote(web, cache, file, likely=SMALL), rest)
        return join_parts([begun.result(), *others])


def address_parts(url: str) -> list[RemoteFile]:
    """The files of a model at a plain address: of a split set all parts, by llama.cpp's names."""
    head, mark, query = url.partition("?")
    folder, _, name = head.rpartition("/")
    match = SPLIT_NAME.fullmatch(name)
    count = int(match["count"]) if match else 1
    if match is None or count <= 1:
        return [RemoteFile(url.partition("?")[0], url)]
    names = [f"{folder}/{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    return [RemoteFile(one, one + mark + query) for one in names]


def _fetch(
    web: Web, file: RemoteFile, check: Callable[[Reply], None], likely: int | None = None
) -> ModelInfo:
    """Read a header from its host. Connections that break while it comes in are made again."""
    end = MAX_HEADER if likely is None else min(likely + MARGIN, MAX_HEADER)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with web.open(file.url, {"Range": f"bytes=0-{end - 1}"}) as reply:
                check(reply)
                return _parse(file, reply, end)
        except HeaderError:
            if end == MAX_HEADER:
                raise
            end = MAX_HEADER  # it may only have been longer than the sibling's
        except HubError as error:
            if error.kind != "closed" or attempt == ATTEMPTS:
                raise
            web.sleep(0.2 * attempt)
            end = MAX_HEADER
    raise AssertionError


def _parse(file: RemoteFile, reply: Reply, end: int) -> ModelInfo:
    body = body_of(reply, 0, file.name, file.size)
    total = body.total if body.total is not None else file.size
    if total is None:
        raise HubError(
            f"{file.name}: {reply.host} does not say how large it is (no Content-Length)",
            hint="download it another way, and name the file",
        )
    source = StreamSource(file.name, total, reply.chunks, reply.host)
    info = parse(source, end)
    if info.size_check.startswith("truncated"):
        raise HeaderError(
            f"{file.name}: {info.size_check}", hint="what was uploaded there is not complete"
        )
    return detached(info, bytes(source.held[: info.header_bytes]))


def check_content(reply: Reply, file: RemoteFile) -> None:
    """Refuse another file than the one that was listed, where the host says what it has."""
    told = content_id(reply)
    size = reply.first.get("x-linked-size")
    if told is not None and len(told) == len(file.oid or "") and told != file.oid:
        raise changed(file.name, f"content {told[:12]} instead of {(file.oid or '')[:12]}")
    if size is not None and file.size is not None and size != str(file.size):
        raise changed(file.name, f"{size} bytes instead of {file.size}")


def changed(name: str, how: str) -> HubError:
    """The error for a file that is not the one that was listed, or not the one of a moment ago."""
    return HubError(
        f"{name} has changed meanwhile: {how}",
        kind="changed",
        hint="try again; what was read so far was thrown away",
    )


def content_id(reply: Reply) -> str | None:
    """The hash of a file, as a Hub tells it in its first answer; None if nobody does."""
    tag = reply.first.get("x-linked-etag") or reply.first.get("etag") or ""
    match = re.fullmatch(r'(?:W/)?"?([0-9a-f]{64}|[0-9a-f]{40})"?', tag.strip())
    return match[1] if match else None


def version_of(reply: Reply, total: int | None) -> str | None:
    """What tells this content of an address from others; None where a host does not say it."""
    tag = reply.first.get("x-linked-etag") or reply.headers.get("etag") or ""
    tag = tag or reply.headers.get("last-modified", "")
    if not tag or tag.startswith("W/") or total is None:
        return None
    return f"{tag}\0{total}"


# -- plain addresses ---------------------------------------------------------------------------


class _KnownError(Exception):
    """The header that is to be read is in the cache."""

    def __init__(self, info: ModelInfo) -> None:
        super().__init__()
        self.info = info


def _read_address(web: Web, cache: HeaderCache, file: RemoteFile) -> ModelInfo:
    """The header of a file that only its host knows: it is asked whether it is still the same, and
    a header is reused only if its ETag says so."""
    pointer = cache.folder / "addresses" / hashlib.sha256(file.url.encode()).hexdigest()[:32]
    key: str | None = None

    def known(reply: Reply) -> None:
        nonlocal key
        version = version_of(reply, body_of(reply, 0, file.name, file.size).total)
        key = None if version is None else f"{file.url}\0{version}"
        info = None if key is None else cache.load(key, file.name)
        if info is not None:
            raise _KnownError(info)

    try:
        info = _fetch(web, file, known)
    except _KnownError as kept:
        return kept.info
    except HubError as error:
        last = _last_seen(pointer) if error.kind in ("offline", "connect") else None
        info_then = None if last is None else cache.load(last, file.name)
        if info_then is None:
            raise
        web.tell(f"{file.name}: as it was when it was last read ({error.message})")
        return info_then
    if key is not None:
        keep(web, lambda: _keep_address(cache, pointer, key, info))
    return info


def _keep_address(cache: HeaderCache, pointer: Path, key: str, info: ModelInfo) -> None:
    """Keep a header and, in ``pointer``, that it is what was last seen at an address."""
    cache.store(key, info)
    try:
        write_whole(pointer, json.dumps({"key": key}).encode())
    except OSError as error:
        raise unwritable(cache.folder, error) from error


def _last_seen(pointer: Path) -> str | None:
    try:
        key = json.loads(pointer.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return key if isinstance(key, str) else None
