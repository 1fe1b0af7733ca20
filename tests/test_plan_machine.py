"""The machine to plan for: sizes, names, reserves, and what is here."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_spec import plan_machine
from gguf_spec.backend import list_backends, list_devices, load_lib, system_info
from gguf_spec.devices import Device, HostMemory
from gguf_spec.devices import Machine as Found
from gguf_spec.errors import InputError, UsageError
from gguf_spec.gpu_table import parse_gpus
from gguf_spec.plan_machine import Limits, named_machine, sized_machine, this_machine

GIB = 1 << 30


def device(name: str, kind: str = "gpu", free: int = 20) -> Device:
    return Device(name, "NVIDIA GeForce RTX 3090", "CUDA", kind, 24 * GIB, free * GIB)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    def found(*devices: Device, ram: int = 64, available: int = 48) -> None:
        host = HostMemory(ram * GIB, available * GIB)
        machine = Found((*devices, device("CPU", "cpu")), (), host, ("CUDA",))
        monkeypatch.setattr(plan_machine, "survey", lambda: machine)

    return found


def test_free_memory_without_the_reserve_is_the_budget(here: Any) -> None:
    here(device("CUDA0"), device("CUDA1", free=0))
    machine = this_machine(Limits())
    assert [(gpu.name, gpu.budget) for gpu in machine.gpus] == [("CUDA0", 19 * GIB), ("CUDA1", 0)]
    assert (machine.host.available, machine.host.budget) == (48 * GIB, 63 * GIB)
    assert this_machine(Limits(reserve=0)).gpus[0].budget == 20 * GIB
    assert machine.gpus[0].share > 0


def test_limits_bound_what_is_here(here: Any) -> None:
    here(device("CUDA0"), device("CUDA1"))
    one = this_machine(Limits(vram=(8 * GIB,), reserve=0))
    assert [gpu.budget for gpu in one.gpus] == [8 * GIB, 8 * GIB]
    two = this_machine(Limits(vram=(8 * GIB, 99 * GIB), reserve=0))
    assert [gpu.budget for gpu in two.gpus] == [8 * GIB, 24 * GIB]
    assert [g.name for g in this_machine(Limits(), devices=["CUDA1"]).gpus] == ["CUDA1"]
    assert this_machine(Limits(), devices=[]).gpus == ()
    with pytest.raises(InputError, match="no device CUDA7"):
        this_machine(Limits(), devices=["CUDA7"])


def test_a_gpu_of_the_host_counts_only_without_another(here: Any) -> None:
    here(device("CUDA0"), device("Vulkan0", "igpu"))
    assert [gpu.name for gpu in this_machine(Limits()).gpus] == ["CUDA0"]
    here(device("Vulkan0", "igpu"))
    assert [gpu.name for gpu in this_machine(Limits()).gpus] == ["Vulkan0"]


def test_a_small_host_keeps_a_part_free_and_what_is_asked_where_it_is_alone(here: Any) -> None:
    here(ram=2, available=1)
    assert this_machine(Limits()).host.budget == 2 * GIB - 2 * GIB // 16
    assert this_machine(Limits(reserve=GIB)).host.budget == GIB
    here(device("CUDA0"), ram=64)
    assert this_machine(Limits(reserve=8 * GIB)).host.budget == 60 * GIB


def test_sizes_and_names() -> None:
    sized = sized_machine(Limits((24 * GIB, 0), 16 * GIB, 2 * GIB))
    assert [(g.name, g.total, g.budget) for g in sized.gpus] == [("CUDA0", 24 * GIB, 22 * GIB)]
    assert sized.host.total == sized.host.available == 16 * GIB
    named = named_machine(parse_gpus("2x RTX 3090"), Limits())
    assert [gpu.name for gpu in named.gpus] == ["CUDA0", "CUDA1"]
    assert named.gpus[0].bandwidth == 936 * 10**9
    apple = named_machine(parse_gpus("M4 Max 64GB"), Limits())
    assert apple.unified is apple.gpus[0]
    assert apple.gpus[0].budget == 48 * GIB - GIB
    with pytest.raises(UsageError, match="alone"):
        named_machine(parse_gpus("M4 Max 64GB, RTX 3090"), Limits())


def test_ggml_says_the_same_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices and CPU features are asked of the libraries themselves."""
    told = load_lib().api.llama_print_system_info().decode()
    assert "CPU" in told
    assert system_info() == told
    assert [device.kind for device in list_devices()][-1:] == ["cpu"]
    assert "CPU" in list_backends()
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/nowhere")
    assert system_info() == ""
