"""Files that are as long as a model and hold its header alone."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gguf_spec.bare_header import HeaderFile
from gguf_spec.errors import ProbeError

_TRIAL = 16 << 20  # bytes: what a file system without sparse files really writes to find out
_FSCTL_SET_SPARSE = 0x000900C4


def write_headers(folder: Path, files: Sequence[HeaderFile]) -> Path:
    """Write the parts of a model into ``folder``; returns the path of the first.

    Raises:
        ProbeError: the file system cannot hold them without filling up.
    """
    folder.mkdir()
    require_sparse(folder)
    for file in files:
        _write(folder / file.name, file.data, file.size)
    return folder / min(files, key=lambda file: file.split_no).name


def require_sparse(folder: Path) -> None:
    """Raise ProbeError where a long file without contents takes as much as a full one: FAT, exFAT
    and some network file systems."""
    trial = folder / "trial"
    try:
        _write(trial, b"GGUF", _TRIAL)
        taken = _taken(trial)
    finally:
        trial.unlink(missing_ok=True)
    if taken > _TRIAL // 4:
        raise ProbeError(
            "no-sparse-files",
            f"the file system of {folder} has no sparse files",
            hint="set TMPDIR to a folder on another file system",
        )


def _write(path: Path, data: bytes, size: int) -> None:
    try:
        with path.open("xb") as file:
            if sys.platform == "win32":
                _mark_sparse(file.fileno())
            file.write(data)
            file.truncate(max(size, len(data)))
    except OSError as error:
        raise ProbeError(
            "no-sparse-files",
            f"a file of {size} bytes cannot be made in {path.parent}: {error.strerror or error}",
            hint="set TMPDIR to a folder on another file system",
        ) from error


def _taken(path: Path) -> int:
    """Bytes that the file takes on the disk."""
    if sys.platform == "win32":
        high = ctypes.c_ulong(0)
        low = ctypes.windll.kernel32.GetCompressedFileSizeW(str(path), ctypes.byref(high))
        return (high.value << 32) + (low & 0xFFFFFFFF)
    return path.stat().st_blocks * 512


def _mark_sparse(descriptor: int) -> None:
    """NTFS reserves what a file is long unless told otherwise."""
    if sys.platform == "win32":
        import msvcrt

        handle = msvcrt.get_osfhandle(descriptor)
        returned = ctypes.c_ulong(0)
        done = ctypes.windll.kernel32.DeviceIoControl(
            ctypes.c_void_p(handle), _FSCTL_SET_SPARSE, None, 0, None, 0,
            ctypes.byref(returned), None,
        )  # fmt: skip
        if not done:
            raise OSError(0, os.strerror(0) or "no sparse files")
