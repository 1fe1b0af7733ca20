"""What memory is there: from ggml, NVML, sysfs and control groups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from gguf_spec.backend import Device as GgmlDevice
from gguf_spec.devices import FoundGpu, HostMemory, host_memory, match, merge, survey
from gguf_spec.devices.nvml import bus_address, nvml_gpus
from gguf_spec.devices.sysfs import sysfs_gpus

GIB = 1 << 30
HOST = HostMemory(64 * GIB, 40 * GIB)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def pci(root: Path, address: str, files: dict[str, str], driver: str = "") -> None:
    folder = root / "sys/bus/pci/devices" / address
    write(folder, {name: text + "\n" for name, text in files.items()})
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


# ---------------------------------------------------------------------------- sysfs


def test_sysfs(tmp_path: Path) -> None:
    card = {
        "vendor": "0x1002",
        "class": "0x030000",
        "device": "0x744c",
        "product_name": "Radeon RX 7900 XTX",
        "mem_info_vram_total": str(24 * GIB),
        "mem_info_vram_used": str(GIB),
        "mem_info_gtt_total": str(32 * GIB),
    }
    pci(tmp_path, "0000:0c:00.0", card, "amdgpu")
    pci(
        tmp_path,
        "0000:01:00.0",
        {"vendor": "0x10DE".lower(), "class": "0x030200", "device": "0x2684"},
    )
    pci(
        tmp_path,
        "0000:03:00.0",
        {
            "vendor": "0x8086",
            "class": "0x030000",
            "device": "0x56a0",
            "drm/card1/lmem_total_bytes": str(16 * GIB),
            "drm/card1/lmem_avail_bytes": str(15 * GIB),
        },
        "i915",
    )
    pci(
        tmp_path,
        "0000:04:00.0",
        {
            "vendor": "0x8086",
            "class": "0x030000",
            "device": "0xe20b",
            "tile0/physical_vram_size_bytes": hex(12 * GIB),
        },
        "xe",
    )
    pci(
        tmp_path, "0000:02:00.0", {"vendor": "0x8086", "class": "0x020000"}, "e1000"
    )  # a network card
    assert sysfs_gpus(tmp_path) == [
        FoundGpu("sysfs", "nvidia", "nvidia GPU 0x2684", "0000:01:00.0"),
        FoundGpu("sysfs", "intel", "intel GPU 0x56a0", "0000:03:00.0", 16 * GIB, 15 * GIB, "i915"),
        FoundGpu("sysfs", "intel", "intel GPU 0xe20b", "0000:04:00.0", 12 * GIB, None, "xe"),
        FoundGpu(
            "sysfs", "amd", "Radeon RX 7900 XTX", "0000:0c:00.0", 24 * GIB, 23 * GIB, "amdgpu"
        ),
    ]


def test_sysfs_integrated(tmp_path: Path) -> None:
    apu = {
        "vendor": "0x1002",
        "class": "0x038000",
        "mem_info_vram_total": str(GIB // 2),
        "mem_info_vram_used": str(GIB // 4),
        "mem_info_gtt_total": str(48 * GIB),
    }
    pci(tmp_path, "0000:c1:00.0", apu, "amdgpu")
    pci(tmp_path, "0000:00:02.0", {"vendor": "0x8086", "class": "0x030000"}, "i915")
    assert [gpu.integrated for gpu in sysfs_gpus(tmp_path)] == [True, True]


def test_sysfs_of_other_systems_and_odd_files(tmp_path: Path) -> None:
    assert sysfs_gpus(tmp_path) == []
    odd = {"vendor": "0x1002", "class": "0x030000", "mem_info_vram_total": "soon"}
    pci(tmp_path, "0000:01:00.0", odd)
    assert sysfs_gpus(tmp_path)[0].total is None


# ----------------------------------------------------------------------------- NVML


class Nvml(SimpleNamespace):
    """The functions of pynvml, with its errors; ``broken`` GPUs do not answer."""

    class NVMLError(Exception):
        pass

    gpus: tuple[tuple[str, str, int, int], ...] = ()
    broken: tuple[int, ...] = ()
    alive = True
    n_open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.alive:
            raise self.NVMLError("Driver Not Loaded")
        self.n_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.n_open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"575.1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index in self.broken:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self.gpus[handle][1])

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return self.gpus[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        _, _, total, free = self.gpus[handle]
        if not total:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=total, free=free, used=total - free)


TWO = (
    ("NVIDIA GeForce RTX 4090", "00000000:01:00.0", 24 * GIB, 23 * GIB),
    ("NVIDIA GeForce RTX 3090", "00000000:C1:00.0", 24 * GIB, 20 * GIB),
)


def test_nvml() -> None:
    nvml: Any = Nvml(gpus=TWO)
    gpus, note = nvml_gpus(nvml)
    assert gpus == [
        FoundGpu("nvml", "nvidia", TWO[0][0], "0000:01:00.0", 24 * GIB, 23 * GIB, "nvidia 575.1"),
        FoundGpu("nvml", "nvidia", TWO[1][0], "0000:c1:00.0", 24 * GIB, 20 * GIB, "nvidia 575.1"),
    ]
    assert note == ""
    assert nvml.n_open == 0


def test_nvml_with_a_lost_gpu() -> None:
    nvml: Any = Nvml(gpus=TWO, broken=(0,))
    gpus, note = nvml_gpus(nvml)
    assert [gpu.bus for gpu in gpus] == ["0000:c1:00.0"]
    assert "GPU 0" in note
    assert nvml.n_open == 0


def test_nvml_where_memory_is_shared() -> None:
    spark: Any = Nvml(gpus=(("NVIDIA GB10", "0000000F:01:00.0", 0, 0),))
    (gpu,), _ = nvml_gpus(spark)
    assert (gpu.bus, gpu.total, gpu.free, gpu.integrated) == ("000f:01:00.0", None, None, True)


def test_nvml_without_a_driver() -> None:
    nvml: Any = Nvml(alive=False)
    assert nvml_gpus(nvml) == ([], "NVML does not answer: Driver Not Loaded")


def test_nvml_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    gpus, note = nvml_gpus()
    assert gpus == []
    assert "gguf-spec[nvidia]" in note


@pytest.mark.parametrize(
    ("text", "address"),
    [("00000000:C1:00.0", "0000:c1:00.0"), ("odd", "odd"), ("x:01:00.0", "x:01:00.0")],
)
def test_bus_addresses(text: str, address: str) -> None:
    assert bus_address(text) == address


# ------------------------------------------------------------------- putting together


def found(bus: str, vendor: str = "nvidia", free: int | None = 20 * GIB, **more: Any) -> FoundGpu:
    total = None if free is None else 24 * GIB
    return FoundGpu("nvml", vendor, "a card", bus, total, free, **more)


def ggml(name: str, backend: str, bus: str = "", kind: str = "gpu", **more: Any) -> GgmlDevice:
    sizes = {"total": 24 * GIB, "free": 19 * GIB} | more
    return GgmlDevice(name, "NVIDIA GeForce RTX 4090", kind, backend=backend, bus=bus, **sizes)


def test_merging_fills_gaps_and_keeps_what_is_known() -> None:
    sysfs = [found("a", free=7), found("b", free=None), found("c", free=3)]
    merged = merge([found("a", free=5), found("c", free=None)], sysfs)
    assert [(gpu.bus, gpu.free) for gpu in merged] == [("a", 5), ("c", 3), ("b", None)]


def test_free_memory_is_the_drivers() -> None:
    """ggml's own figure lacks what the look at it took."""
    devices, unusable = match([ggml("CUDA0", "CUDA", "a")], [found("a")], HOST)
    assert (devices[0].total, devices[0].free) == (24 * GIB, 20 * GIB)
    assert devices[0].bandwidth == 1008 * 10**9
    assert not devices[0].unified
    assert not unusable


def test_gpus_are_told_apart_by_address() -> None:
    gpus = [found("a", free=1), found("b", free=2), found("c", "amd", free=3)]
    devices, unusable = match([ggml("CUDA0", "CUDA", "b")], gpus, HOST)
    assert devices[0].free == 2
    assert [gpu.bus for gpu in unusable] == ["a", "c"]


def test_gpus_without_address_are_told_apart_by_order() -> None:
    gpus = [found("a", free=1), found("c", "amd", free=3), found("b", free=2)]
    devices, unusable = match([ggml("CUDA0", "CUDA"), ggml("CUDA1", "CUDA")], gpus, HOST)
    assert [device.free for device in devices] == [1, 2]
    assert [gpu.bus for gpu in unusable] == ["c"]
    # With one hidden (CUDA_VISIBLE_DEVICES) nobody knows which it is.
    devices, _ = match([ggml("CUDA0", "CUDA")], gpus, HOST)
    assert devices[0].free == 19 * GIB


def test_a_build_without_the_gpus_backend_cannot_use_it() -> None:
    cpu = GgmlDevice("CPU", "a CPU", "cpu", 99 * GIB, 99 * GIB, "CPU")
    devices, unusable = match([cpu], [found("a")], HOST)
    assert [gpu.bus for gpu in unusable] == ["a"]
    # The CPU's memory is the host's, as far as its control group lets it.
    assert (devices[0].total, devices[0].free) == (HOST.total, HOST.available)
    assert devices[0].unified


def test_integrated_gpus_and_macs_share_their_memory() -> None:
    for device in (ggml("Vulkan0", "Vulkan", "a", "igpu"), ggml("MTL0", "MTL")):
        devices, _ = match([device], [found("a", "intel")], HOST)
        assert devices[0].unified
        assert (devices[0].total, devices[0].free) == (24 * GIB, 19 * GIB)


# -------------------------------------------------------------------- control groups


def cgroup(root: Path, line: str, files: dict[str, str]) -> HostMemory:
    write(root, {"proc/self/cgroup": line + "\n"})
    write(root / "sys/fs/cgroup", files)
    return host_memory(root)


def test_host_memory_without_limits(tmp_path: Path) -> None:
    memory = host_memory(tmp_path)
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.available <= memory.total
    assert memory.limited_by == ""
    unlimited = cgroup(tmp_path, "0::/a", {"a/memory.max": "max", "a/memory.current": "5"})
    assert (unlimited.total, unlimited.limited_by) == (memory.total, "")


def test_host_memory_in_a_container(tmp_path: Path) -> None:
    """The page cache counts as used, and gives way."""
    memory = cgroup(
        tmp_path,
        "0::/",
        {
            "memory.max": "64000000",
            "memory.current": "50000000",
            "memory.stat": "anon 1\ninactive_file 20000000\n",
        },
    )
    assert (memory.total, memory.available) == (64_000_000, 34_000_000)
    assert memory.limited_by.endswith("sys/fs/cgroup/memory.max")


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "64000000",
        "a/memory.current": "60000000",
        "a/b/memory.max": "90000000",
        "a/b/memory.current": "1000",
        "a/b/c/memory.max": "max",
    }
    memory = cgroup(tmp_path, "0::/a/b/c", files)
    assert (memory.total, memory.available) == (64_000_000, 4_000_000)


def test_an_overdrawn_group_has_nothing_left(tmp_path: Path) -> None:
    files = {"memory.max": "64000000", "memory.current": "65000000"}
    assert cgroup(tmp_path, "0::/", files).available == 0


def test_control_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {
        "memory/docker/x/memory.limit_in_bytes": "32000000",
        "memory/docker/x/memory.usage_in_bytes": "10000000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
    }
    memory = cgroup(tmp_path, "11:cpu:/\n5:memory:/docker/x\n0::/", files)
    assert (memory.total, memory.available) == (32_000_000, 22_000_000)


def test_this_machine() -> None:
    machine = survey()
    cpu = next(device for device in machine.devices if device.kind == "cpu")
    assert cpu.backend == "CPU"
    assert "CPU" in machine.backends
    assert (cpu.total, cpu.unified) == (machine.host.total, True)
    assert 0 < machine.host.available <= machine.host.total
