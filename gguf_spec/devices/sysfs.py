"""GPUs on the PCI bus, as Linux lists them in sysfs: also those that no driver has."""

from __future__ import annotations

from pathlib import Path

from gguf_spec.devices.found import FoundGpu

_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY = "0x03"  # PCI class 3: display controllers, VGA and 3D alike
#: Total and free, or total and used, bytes of video memory: amdgpu's files, i915's and xe's.
_FREE = (("lmem_total_bytes", "lmem_avail_bytes"),)
_USED = (("mem_info_vram_total", "mem_info_vram_used"),)


def sysfs_gpus(root: Path = Path("/")) -> list[FoundGpu]:
    """The GPUs of known vendors, in the order of their addresses; empty on other systems."""
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    return [gpu for folder in folders if (gpu := _gpu(folder)) is not None]


def _gpu(folder: Path) -> FoundGpu | None:
    vendor = _VENDORS.get(_read(folder / "vendor"))
    if vendor is None or not _read(folder / "class").startswith(_DISPLAY):
        return None
    driver = _driver(folder)
    total, free = _memory(folder)
    product = _read(folder / "product_name") or _read(folder / "label")
    name = product or f"{vendor} GPU {_read(folder / 'device')}"
    return FoundGpu(
        source="sysfs",
        vendor=vendor,
        name=name,
        bus=folder.name.lower(),
        total=total,
        free=free,
        driver=driver,
        integrated=_integrated(folder, vendor, total),
    )


def _memory(folder: Path) -> tuple[int | None, int | None]:
    places = [folder, *_children(folder / "drm", "card"), *_children(folder, "tile")]
    for place in places:
        for total_name, free_name in _FREE:
            total, free = _number(place / total_name), _number(place / free_name)
            if total:
                return total, free
        for total_name, used_name in _USED:
            total, used = _number(place / total_name), _number(place / used_name)
            if total:
                return total, None if used is None else max(total - used, 0)
    # xe tells how much there is on each tile, not how much is free.
    sizes = [_number(tile / "physical_vram_size_bytes") for tile in _children(folder, "tile")]
    known = [size for size in sizes if size]
    return (sum(known), None) if known else (None, None)


def _integrated(folder: Path, vendor: str, total: int | None) -> bool:
    """An APU's memory is mostly what it can map of the computer's (GTT); a card's own is more.
    Intel's processor graphics always sit at 00:02.0."""
    if vendor == "amd":
        gtt = _number(folder / "mem_info_gtt_total")
        return bool(total and gtt and total <= 4 << 30 and gtt > 2 * total)
    return vendor == "intel" and folder.name.endswith(":00:02.0")


def _children(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.name.startswith(prefix))
    except OSError:
        return []


def _driver(folder: Path) -> str:
    try:
        return (folder / "driver").resolve(strict=True).name
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text, 0) if text.isdigit() or text.startswith("0x") else None
