"""How models are loaded, as far as it can be told without loading one."""

from __future__ import annotations

import pytest

from gguf_spec.backend import Device
from gguf_spec.loading import first_length
from gguf_spec.profile import Profile, apply_values


def device(name: str, description: str, kind: str = "gpu", gib: int = 16) -> Device:
    return Device(name, description, kind, gib << 30, gib << 30, "CUDA")


CPU = device("CPU", "Some processor", "cpu")
ADA = device("CUDA0", "NVIDIA GeForce RTX 4090", gib=24)
BLACKWELL = device("CUDA1", "NVIDIA GeForce RTX 5090", gib=32)
SMALL = device("CUDA0", "NVIDIA GeForce RTX 5060 Ti")


@pytest.mark.parametrize(
    ("devices", "target", "length"),
    [
        ([CPU], {}, 2),
        ([CPU, ADA], {}, 2),
        ([CPU, BLACKWELL], {}, 3),
        ([CPU, SMALL], {}, 4),
        ([CPU, ADA, BLACKWELL], {}, 2),
        ([CPU, ADA, BLACKWELL], {"target.devices": ["CUDA1"]}, 3),
        ([CPU, SMALL], {"target.n_gpu_layers": 0}, 2),
        ([CPU, device("CUDA0", "A card of tomorrow")], {}, 2),
    ],
)
def test_the_first_drafts_are_as_long_as_was_best_on_the_gpu(
    devices: list[Device], target: dict[str, object], length: int
) -> None:
    profile = apply_values(Profile(), target)
    assert first_length(profile.target, devices) == length
