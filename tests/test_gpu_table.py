"""GPUs by the names that people and drivers give them."""

from __future__ import annotations

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.gpu_table import GIB, describe, find_gpu, gpu_names, parse_gpus


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("4090", "GeForce RTX 4090 24GB"),
        ("rtx4090", "GeForce RTX 4090 24GB"),
        (" RTX 4090 ", "GeForce RTX 4090 24GB"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090 24GB"),
        ("4090 laptop", "GeForce RTX 4090 Laptop 16GB"),
        ("4060ti 16 GB", "GeForce RTX 4060 Ti 16GB"),
        ("RTX 3060 8GiB", "GeForce RTX 3060 8GB"),
        ("4070 super", "GeForce RTX 4070 Super 12GB"),
        ("7900xtx", "Radeon RX 7900 XTX 24GB"),
        ("rx 7900xt", "Radeon RX 7900 XT 20GB"),
        ("a6000", "RTX A6000 48GB"),
        ("rtx 6000 ada", "RTX 6000 Ada 48GB"),
        ("pro 6000", "RTX PRO 6000 Blackwell 96GB"),
        ("arc b580", "Arc B580 12GB"),
        ("v100 32g", "Tesla V100 32GB"),
        ("M4 Max 64GB", "M4 Max 64GB"),
        ("apple m1 8gb", "M1 8GB"),
        ("ryzen ai max+ 395 128GB", "Strix Halo 128GB"),
    ],
)
def test_names_as_people_write_them(text: str, title: str) -> None:
    assert find_gpu(text).title == title


def test_every_name_finds_itself() -> None:
    assert [find_gpu(name).title for name in gpu_names()] == gpu_names()
    assert len(set(gpu_names())) == len(gpu_names())


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("4060 Ti", ["GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti 16GB"]),
        ("3080", ["GeForce RTX 3080 10GB", "GeForce RTX 3080 12GB"]),
        ("6000", ["RTX 6000 Ada 48GB", "RTX PRO 6000 Blackwell 96GB"]),
        ("M4", ["M4 16GB", "M4 24GB", "M4 32GB"]),
        ("H100", ["H100 PCIe 80GB", "H100 SXM 80GB", "H100 NVL 94GB"]),
    ],
)
def test_ambiguous_names_list_what_they_may_be(text: str, titles: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    for title in titles:
        assert title in caught.value.message
    assert "4060 Ti" in caught.value.message or "4060 Ti" not in text
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "near"),
    [("RTX 4091", "GeForce RTX 4090"), ("7900 XXX", "Radeon RX 7900 XTX"), ("nonsense", None)],
)
def test_unknown_names_have_near_ones(text: str, near: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        find_gpu(text)
    hint = caught.value.hint or ""
    assert "--vram" in hint
    assert ("did you mean" in hint) is (near is not None)
    assert near is None or near in hint


@pytest.mark.parametrize("text", ["", "24GB", ",", "x", "4090,", "GPU", "9" * 5000])
def test_no_name_at_all(text: str) -> None:
    with pytest.raises(UsageError):
        parse_gpus(text)


def test_a_size_that_is_not_sold() -> None:
    with pytest.raises(UsageError, match="no GeForce RTX 4090 has 48 GB: it is sold with 24 GB"):
        find_gpu("4090 48GB")


@pytest.mark.parametrize("text", ["2x 3090", "2x3090", "2 x RTX 3090", "3090,3090"])
def test_several_gpus(text: str) -> None:
    assert [gpu.title for gpu in parse_gpus(text)] == ["GeForce RTX 3090 24GB"] * 2


def test_different_gpus() -> None:
    assert [gpu.memory // GIB for gpu in parse_gpus("RTX 4090, RTX 3060 12GB")] == [24, 12]


@pytest.mark.parametrize("text", ["0x 3090", "99x 3090"])
def test_a_number_of_gpus_that_no_machine_has(text: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 64"):
        parse_gpus(text)


def test_facts() -> None:
    gpu = find_gpu("4090")
    assert (gpu.memory, gpu.bandwidth, gpu.share) == (24 * GIB, 1008 * 10**9, 0.81)
    assert gpu.measured
    assert not gpu.unified
    other = find_gpu("5070")
    assert (other.share, other.measured) == (0.75, False)
    assert find_gpu("M1 8GB").unified


@pytest.mark.parametrize(
    ("name", "total", "title"),
    [
        ("NVIDIA GeForce RTX 4090", 24564 << 20, "GeForce RTX 4090 24GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380 << 20, "GeForce RTX 4060 Ti 16GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376 << 20, "GeForce RTX 4090 Laptop 16GB"),
        ("NVIDIA H100 80GB HBM3", 81559 << 20, "H100 SXM 80GB"),
        ("NVIDIA H100 PCIe", 81559 << 20, "H100 PCIe 80GB"),
        ("NVIDIA A100-SXM4-40GB", 40960 << 20, "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", 81920 << 20, "A100 80GB"),
        ("Tesla V100-SXM2-16GB", 16160 << 20, "Tesla V100 16GB"),
        ("NVIDIA H200", 143771 << 20, "H200 141GB"),
        ("AMD Radeon RX 7900 XTX", 24560 << 20, "Radeon RX 7900 XTX 24GB"),
        ("Radeon 8060S Graphics", 96 << 30, "Strix Halo 96GB"),
        ("Intel(R) Arc(TM) A770 Graphics", 16 << 30, "Arc A770 16GB"),
        ("Apple M4 Max", 48 << 30, "M4 Max 48GB"),
        # The GPU of a Mac may use about three quarters of its memory.
        ("Apple M4 Max", 27 << 30, "M4 Max 36GB"),
        ("AMD Radeon Graphics", 1 << 30, None),
        ("llvmpipe (LLVM 15)", 0, None),
        ("", 0, None),
    ],
)
def test_names_as_drivers_write_them(name: str, total: int, title: str | None) -> None:
    gpu = describe(name, total)
    assert (gpu and gpu.title) == title
