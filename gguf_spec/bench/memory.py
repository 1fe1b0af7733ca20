"""The most memory that a process has had resident."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import psutil

_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")


def reset_peak() -> None:
    """Let the peak of this process begin anew, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(pid: int | None = None) -> int | None:
    """The peak of a process (default: this one); where the system does not tell, what it has now.
    None if there is no such process, or none any more."""
    where = "self" if pid is None else str(pid)
    with suppress(OSError):
        found = _PEAK.search(Path(f"/proc/{where}/status").read_bytes())
        if found is not None:
            return int(found[1]) * 1024
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss) or None
    return None
