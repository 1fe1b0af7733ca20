"""One file from an address to a disk: resumed, checked, and there all at once or not at all.

What has come in lies beside the goal as ``NAME.incomplete`` until its checksum is right. A process
that is killed, and a network that goes away, leave it there for the next attempt. A server that
breaks its word does not: then nothing of the file can be trusted, and it is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gguf_spec.errors import HubError
from gguf_spec.hub.header_cache import unwritable
from gguf_spec.hub.ranges import Body, body_of
from gguf_spec.hub.remote import RemoteFile, changed, content_id, version_of
from gguf_spec.hub.web import INSTALL, Reply, Web

Progress = Callable[[str, "int | None", "int | None"], None]
"""``progress(what, done, total)``, in bytes."""

BLOCK = 1024 * 1024  # bytes
FRUITLESS = 3  # connections in a row that bring nothing, after which it is given up
RESERVE = 64 * 1024 * 1024  # bytes that stay free on the disk
MAGIC = b"GGUF"
#: Kinds of errors that say nothing against what has come in so far.
KEPT = ("connect", "closed", "limit", "server", "offline", "token", "gated", "disk")
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is there now. ``fresh``: it was not before."""

    path: Path
    size: int
    fresh: bool


def fetch(
    web: Web, file: RemoteFile, goal: Path, lock: Path, progress: Progress, what: str = ""
) -> Fetched:
    """Have ``file`` at ``goal``. Another process that fetches it is waited for.

    Raises HubError. Then there is no file at ``goal`` that was not there before.
    """
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with _locked(lock, lambda: progress(f"waiting for another download of {what}", 0, None)):
            if _is_there(web, goal, file):
                return Fetched(goal, goal.stat().st_size, False)
            size = _Download(web, file, goal, progress, what or goal.name).run()
    except OSError as error:
        if error.errno in _FULL:
            raise _full(goal.parent, str(error.strerror)) from error
        raise unwritable(goal.parent, error) from error
    return Fetched(goal, size, True)


def check_space(folder: Path, need: int, what: str) -> None:
    """Raise HubError where ``need`` more bytes do not fit on the disk of ``folder``."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise unwritable(folder, error) from error
    if need and free < need + RESERVE:
        raise _full(folder, f"{what} needs {need} bytes more, {free} are free")


def partial_size(goal: Path) -> int:
    """Bytes of a download that was interrupted."""
    try:
        return _partial(goal).stat().st_size
    except OSError:
        return 0


@contextlib.contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """The lock that huggingface_hub takes for the same file. The system frees it with its owner."""
    try:
        import filelock
    except ImportError as error:
        raise HubError(
            "downloads need packages that are not installed", kind="extra", hint=INSTALL
        ) from error
    lock = filelock.FileLock(path, mode=0o664)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire(timeout=-1, poll_interval=0.1)
    try:
        yield
    finally:
        lock.release()


def _partial(goal: Path) -> Path:
    return goal.with_name(f"{goal.name}.incomplete")


def _version_file(path: Path) -> Path:
    """Which content of a plain address a file is, or has the beginning of."""
    return path.with_name(f"{path.name}.version")


def _read_version(path: Path) -> str | None:
    try:
        return _version_file(path).read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError):
        return None


def _is_there(web: Web, goal: Path, file: RemoteFile) -> bool:
    """Whether the file is there and is the one. At a plain address its host is asked, if it can
    be: what is there may have been replaced since."""
    if not goal.is_file():
        return False
    if file.oid is not None:
        return file.size is None or goal.stat().st_size == file.size
    try:
        with web.open(file.url, {"Range": "bytes=0-0"}) as reply:
            now = version_of(reply, body_of(reply, 0, file.name, None).total)
    except HubError as error:
        if error.kind not in ("connect", "offline"):
            raise
        web.tell(f"{file.name}: using the file that is here ({error.message})")
        return True
    return now is not None and now == _read_version(goal)


class _Download:
    """The attempts at one file, under its lock."""

    def __init__(
        self, web: Web, file: RemoteFile, goal: Path, progress: Progress, what: str
    ) -> None:
        self.web, self.file, self.goal = web, file, goal
        self.progress, self.what = progress, what
        self.partial = _partial(goal)
        self.oid = file.oid
        self.total = file.size
        self.answered = False
        self.version: str | None = None  # of a plain address, as its first answer told it
        self.digest: _Hash = hashlib.sha256()

    def run(self) -> int:
        """The file's size, once it is there and right."""
        try:
            if self.file.oid is None:
                self.version = _read_version(self.partial)
                if self.version is None:  # of which content, nobody could say
                    self._drop()
            resumed = partial_size(self.goal) > 0
            try:
                self._complete()
            except _DamagedError as damaged:
                self._drop()
                if not resumed:
                    raise damaged.error from None
                self._complete()  # what was here before may be what was wrong
            size = self.partial.stat().st_size
            os.replace(self.partial, self.goal)
            _version_file(self.partial).unlink(missing_ok=True)
            if self.version is not None:
                _version_file(self.goal).write_text(self.version, encoding="utf-8")
        except HubError as error:
            if error.kind not in KEPT or partial_size(self.goal) == 0:
                self._drop()
            raise
        except _DamagedError as damaged:
            self._drop()
            raise damaged.error from None
        return size

    def _drop(self) -> None:
        self.partial.unlink(missing_ok=True)
        _version_file(self.partial).unlink(missing_ok=True)

    def _complete(self) -> None:
        """Have the whole file in ``partial``, its checksum verified."""
        fruitless = 0
        with self.partial.open("ab", buffering=0) as out:
            if self.total is not None and out.tell() > self.total:
                out.truncate(0)
            self._begin_hash(out.tell())
            while self.total is None or out.tell() < self.total:
                before = out.tell()
                broken: HubError | None = None
                try:
                    self._once(out)
                except HubError as error:
                    if error.kind not in ("connect", "closed", "link"):
                        raise
                    broken = error
                fruitless = 0 if out.tell() > before else fruitless + 1
                if fruitless == FRUITLESS:
                    raise broken or HubError(
                        f"{self.file.name}: the server closes the connection after {out.tell()} "
                        f"of {self.total} bytes",
                        hint="try again later; what was read so far was thrown away",
                    )
                if broken is not None or fruitless:
                    self.web.sleep(0.5 * 2**fruitless)
            os.fsync(out.fileno())
        self._verify()

    def _once(self, out: _File) -> None:
        """One request for what is missing, written as it comes."""
        start = out.tell()
        headers = {"Range": f"bytes={start}-"} if start else {}
        if start and self.version is not None:
            headers["If-Range"] = self.version.partition("\0")[0]
        with self.web.open(self.file.url, headers) as reply:
            body = body_of(reply, start, self.file.name, self.total)
            self._check(reply, body)
            if body.whole and start:  # the server ignores ranges, or has another file now
                out.truncate(0)
                out.seek(0)
                start = 0
                self._begin_hash(0)
            if self.total is None:
                self.total = body.total
                if self.total is not None:
                    check_space(self.goal.parent, self.total - start, self.file.name)
            self._write(out, reply)
            if self.total is None:  # nobody said how long it is: what came is all
                self.total = out.tell()

    def _check(self, reply: Reply, body: Body) -> None:
        """Refuse another file than the one that was listed, or that was begun."""
        told = content_id(reply)
        if self.file.oid is not None:
            if told is not None and len(told) == len(self.file.oid) and told != self.file.oid:
                raise changed(
                    self.file.name, f"content {told[:12]} instead of {self.file.oid[:12]}"
                )
            return
        if told is not None and len(told) == 64 and "x-linked-etag" in reply.first:
            self.oid = told
        version = version_of(reply, body.total)
        again = self.answered or not body.whole  # else a download of another day starts anew
        if self.version is not None and version != self.version and again:
            raise changed(self.file.name, "its ETag or size is another one than before")
        self.answered = True
        self.version = version
        if version is not None:
            _version_file(self.partial).write_text(version, encoding="utf-8")

    def _begin_hash(self, size: int) -> None:
        """Start the checksum, with the bytes that are there."""
        self.digest = hashlib.sha256()
        if self.oid is not None and len(self.oid) == 40:
            self.digest = hashlib.sha1(b"blob %d\0" % (self.total or 0), usedforsecurity=False)
        done = 0
        if size:
            with self.partial.open("rb") as file:
                while done < size and (block := file.read(BLOCK)):
                    self.digest.update(block)
                    done += len(block)
                    self.progress(f"checking {self.what}", done, size)

    def _write(self, out: _File, reply: Reply) -> None:
        done = out.tell()
        self.progress(f"downloading {self.what}", done, self.total)
        for chunk in reply.chunks:
            if done == 0 and len(chunk) >= 4 and not chunk.startswith(MAGIC):
                raise HubError(
                    f"{self.file.name}: {reply.host} sent {chunk[:16]!r}…, which is no GGUF file",
                    hint="check the address, and that no login page of a network answers instead",
                )
            if self.total is not None and done + len(chunk) > self.total:
                raise HubError(
                    f"{self.file.name}: {reply.host} sends more than the {self.total} bytes that "
                    "it announced"
                )
            _write_all(out, chunk)
            self.digest.update(chunk)
            done += len(chunk)
            self.progress(f"downloading {self.what}", done, self.total)

    def _verify(self) -> None:
        if self.oid is not None and self.digest.hexdigest() != self.oid:
            raise _DamagedError(
                HubError(
                    f"{self.file.name}: wrong checksum: {self.digest.hexdigest()[:16]}… instead of "
                    f"{self.oid[:16]}… ({partial_size(self.goal)} bytes)",
                    hint="what was downloaded has been deleted: try again",
                )
            )


class _DamagedError(Exception):
    """A checksum that is wrong."""

    def __init__(self, error: HubError) -> None:
        super().__init__(error.message)
        self.error = error


class _File(Protocol):
    def write(self, data: bytes, /) -> int | None: ...
    def tell(self) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def truncate(self, size: int, /) -> int: ...
    def fileno(self) -> int: ...


def _write_all(out: _File, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[out.write(bytes(view)) or 0 :]


def _full(folder: Path, why: str) -> HubError:
    return HubError(
        f"there is no room in {folder}: {why}",
        kind="disk",
        hint="make room, or set HF_HOME (for hf: references) or GGUF_SPEC_HOME to another disk",
    )
