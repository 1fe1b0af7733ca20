"""Files that a user names, read whole: never one that has no end, or that nobody may ever write.
And written whole: never in the place of a device or a pipe, which are no files to be replaced.

A device such as /dev/zero has no end, and to open a named pipe waits for whoever writes into it.
What a shell hands over is neither: ``<(…)`` is the path of a descriptor that is open already.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Protocol

_PART = 1 << 20
_OPEN = re.compile(r"/dev/(stdin|fd/\d+)|/proc/(self|\d+)/fd/\d+")
_STDIN = re.compile(r"/dev/(stdin|fd/0)|/proc/self/fd/0")


class BinaryReader(Protocol):
    """What bytes are read from: a buffered file."""

    def read(self, n: int, /) -> bytes:
        """At most ``n`` bytes; fewer at the end only."""


def is_stdin(name: str | os.PathLike[str]) -> bool:
    """Whether a path is that of the standard input."""
    return _STDIN.fullmatch(os.path.abspath(name)) is not None


def is_readable(path: Path, *, pipes: bool = False) -> bool:
    """Whether there is a regular file; with ``pipes`` also a pipe that is open already."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # too long, or not a name on this system
        return False
    return stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode) and _is_open(path))


def read_whole(path: Path, most: int, *, pipes: bool = False) -> bytes:
    """The bytes of a file; with ``pipes`` also of what is open already, as stdin.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than ``most`` bytes; its
            ``strerror`` says which.
        ValueError: a NUL in the name.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(mode) or (pipes and _is_open(path))):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with path.open("rb") as file:
        return read_up_to(file, most)


def read_up_to(file: BinaryReader, most: int) -> bytes:
    """All bytes of an open file. Raises OSError if there are more than ``most``."""
    parts, left, ended = [], most + 1, False
    while left and not ended:
        wanted = min(left, _PART)  # Python allocates as much at once
        parts.append(file.read(wanted))
        left -= len(parts[-1])
        ended = len(parts[-1]) < wanted  # on a terminal, to ask again is to wait for more
    if not left:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return b"".join(parts)


def check_replaceable(path: Path) -> None:
    """Raises OSError if ``path`` is something else than a regular file or nothing: what is renamed
    onto a device takes its place. A link is what it leads to."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def write_whole(path: Path, *parts: bytes) -> None:
    """Write a file in one go: it holds all of ``parts``, or what it held before. A link stays one.

    Raises:
        OSError: it cannot be written, or is no regular file.
        ValueError: a NUL in the name.
    """
    check_replaceable(path)
    path = Path(os.path.realpath(path))
    new = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with new.open("wb") as file:
            file.writelines(parts)
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _is_open(path: Path) -> bool:
    return _OPEN.fullmatch(os.path.abspath(path)) is not None
