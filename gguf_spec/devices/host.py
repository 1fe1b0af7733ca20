"""The computer's own memory, as far as this process may use it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_V1_UNLIMITED = 1 << 60  # cgroup v1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes: all, and what can be taken without swapping. ``limited_by`` is the file of the control
    group that limits them to less than the machine has, "" if none does."""

    total: int
    available: int
    limited_by: str = ""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """The memory of the machine, or of the container that this process runs in.

    Every group up to the root has a limit of its own; the tightest counts.
    """
    import psutil

    memory = psutil.virtual_memory()
    total, available, limited_by = int(memory.total), int(memory.available), ""
    for folder in _groups(root):
        limit, used, name = _limit(folder)
        if limit is None:
            continue
        if limit < total:
            total, limited_by = limit, str(folder / name)
        available = min(available, max(limit - used, 0))
    return HostMemory(total, min(available, total), limited_by)


def _groups(root: Path) -> list[Path]:
    """The folders of this process's control groups, from its own up to the root; v2 and v1."""
    folders: list[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    mount = root / "sys/fs/cgroup"
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = mount / "unified" if (mount / "unified").is_dir() else mount
        elif "memory" in controllers.split(","):
            top = mount / "memory"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # In a container the path may be the host's, while the mount shows the own group as root.
        folders += [top.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _limit(folder: Path) -> tuple[int | None, int, str]:
    """Limit, use and name of the limit's file. The page cache is not use: it gives way."""
    for limit_name, used_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number(folder / limit_name)
        if limit is None or limit >= _V1_UNLIMITED:
            continue
        used = _number(folder / used_name) or 0
        return limit, max(used - _cache(folder / "memory.stat", cache_name), 0), limit_name
    return None, 0, ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" is no limit
        return None


def _cache(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name + " "))
    except (OSError, ValueError, StopIteration, IndexError):
        return 0
