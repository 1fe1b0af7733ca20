"""Ranges of remote files, and what a server may answer instead of one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gguf_spec.errors import HubError
from gguf_spec.hub.web import Reply

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class Body:
    """What follows in a reply: the bytes from ``start`` on. ``total`` bytes has the whole file,
    None if nobody says. ``whole``: the server sends all of it, whatever was asked for."""

    start: int
    total: int | None
    whole: bool


def body_of(reply: Reply, start: int, name: str, size: int | None) -> Body:
    """Check an answer to ``Range: bytes=START-``; ``size`` is what the file must have, if known.

    Raises HubError where the answer is no file, or cannot be this one.
    """
    if reply.is_page:
        raise HubError(
            f"{name}: {reply.host} sent a web page (text/html), not a file",
            hint="check the address, and that no login page of a network answers instead",
        )
    if reply.status == 416:
        told = reply.headers.get("content-range", "")
        raise HubError(
            f"{name}: {reply.host} has no byte {start} of it ({told or 'HTTP 416'})",
            kind="changed",
            hint="the file is shorter than it was listed with: try again",
        )
    if reply.status == 206:
        body = _partial(reply, start, name)
    else:
        body = Body(0, reply.length, True)
    if size is not None and body.total is not None and body.total != size:
        raise HubError(
            f"{name}: {reply.host} has a file of {body.total} bytes, expected {size}",
            kind="changed",
            hint="the file was replaced, or a mirror is not up to date: try again",
        )
    return body


def _partial(reply: Reply, start: int, name: str) -> Body:
    told = reply.headers.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(told.strip())
    if match is None:
        raise HubError(f"{name}: {reply.host} answers 206 with Content-Range {told!r}")
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if first != start or last < first or (total is not None and last >= total):
        raise HubError(f"{name}: asked for bytes from {start} on, {reply.host} sends {told!r}")
    if reply.length is not None and reply.length != last - first + 1:
        raise HubError(
            f"{name}: {reply.host} announces {reply.length} bytes for the range {told!r}"
        )
    return Body(first, total, False)


@dataclass(slots=True)
class StreamSource:
    """The beginning of a remote file, kept while it comes in: a ``ByteSource`` for the parser."""

    name: str
    size: int
    chunks: Iterator[bytes]
    host: str
    held: bytearray = field(default_factory=bytearray)

    def read(self, offset: int, n: int) -> bytes:
        """Raises HubError if the stream ends before."""
        end = offset + n
        while len(self.held) < end:
            chunk = next(self.chunks, None)
            if chunk is None:
                raise HubError(
                    f"{self.name}: {self.host} closed the connection after {len(self.held)} bytes, "
                    f"{end} are needed",
                    kind="closed",
                    hint="try again",
                )
            self.held += chunk
        return bytes(self.held[offset:end])
