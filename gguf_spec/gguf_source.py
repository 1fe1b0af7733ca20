"""Where header bytes come from: a local file or memory; remote files are read elsewhere."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gguf_spec.errors import HeaderError


class ByteSource(Protocol):
    """Where header bytes come from: a local file, or ranges of a remote one."""

    @property
    def name(self) -> str:
        """What messages call it: a path or an address."""

    @property
    def size(self) -> int:
        """Size of the whole file in bytes."""

    def read(self, offset: int, n: int) -> bytes:
        """Exactly ``n`` bytes at ``offset``; raises HeaderError when they cannot be had."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A local file, opened anew for each read so that nothing has to be closed."""

    path: Path
    size: int

    @property
    def name(self) -> str:
        return str(self.path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> FileSource:
        """Raises HeaderError for a missing file, a directory, or one that cannot be read."""
        path = Path(path)
        try:
            if path.is_dir():
                raise HeaderError(
                    f"{path} is a directory, not a GGUF file", hint="name a .gguf file in it"
                )
            if not path.is_file():
                missing = "is not a regular file" if path.exists() else "does not exist"
                raise HeaderError(f"{path} {missing}")
            return cls(path, path.stat().st_size)
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            raise HeaderError(f"cannot read {str(path)!r}: {error}") from error

    def read(self, offset: int, n: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read(n)
        except OSError as error:
            raise HeaderError(f"cannot read {self.name}: {error}") from error
        if len(data) != n:
            raise HeaderError(
                f"{self.name}: wanted {n} bytes at {offset}, got {len(data)}: the file changed"
            )
        return data


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Bytes that are already in memory."""

    data: bytes
    name: str = "<memory>"

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, n: int) -> bytes:
        data = self.data[offset : offset + n]
        if len(data) != n:
            raise HeaderError(f"{self.name}: wanted {n} bytes at {offset}, got {len(data)}")
        return data
