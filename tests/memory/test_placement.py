"""Weights and caches on devices: whole and partial offload, splits, overrides, tied embeddings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import parse
from gguf_spec.memory import (
    Device,
    Hardware,
    MemoryParams,
    Placement,
    cpu_repack,
    layout_of,
    lora_items,
    mmproj_items,
    target_items,
)
from tests.gguf_writer import F32, Gguf
from tests.memory.described import Described
from tests.memory.sums import ONE_GPU, TWO_GPUS, bill, described, summed
from tests.memory.transformers import llama

PARAMS = MemoryParams(4096)
NONE, ALL = Placement(n_gpu_layers=0), Placement()


def tensor_bytes(name: str, *, only: str = "") -> int:
    return sum(t.n_bytes for t in described(name).tensors if t.name.startswith(only))


def weights(
    name: str, placement: Placement, hardware: Hardware = ONE_GPU, params: MemoryParams = PARAMS
) -> dict[str, int]:
    items = [i for i in bill(name, params, placement, hardware) if i.kind == "weights"]
    return {item.device: item.bytes for item in items}


def test_untied_the_embeddings_stay_on_the_cpu() -> None:
    total, embedding = tensor_bytes("llama-8b"), tensor_bytes("llama-8b", only="token_embd")
    assert weights("llama-8b", ALL) == {"CPU": embedding, "GPU0": total - embedding}
    assert weights("llama-8b", NONE) == {"CPU": total}


def test_tied_the_embeddings_are_on_both() -> None:
    name = "llama-1b-tied"
    total, embedding = tensor_bytes(name), tensor_bytes(name, only="token_embd")
    assert weights(name, ALL) == {"CPU": embedding, "GPU0": total}
    assert weights(name, NONE) == {"CPU": total}


def test_one_gpu_layer_is_the_output() -> None:
    name = "llama-8b"
    found = weights(name, Placement(n_gpu_layers=1))
    assert found["GPU0"] == tensor_bytes(name, only="output")
    items = bill(name, PARAMS, Placement(n_gpu_layers=1), ONE_GPU)
    assert summed(items, "kv_cache", "GPU0") == 0


def test_layers_are_counted_from_the_end_and_with_the_mtp_layer() -> None:
    where = layout_of(described("qwen35-27b"), Placement(n_gpu_layers=10), ONE_GPU)
    assert where.layers == ("CPU",) * 56 + ("GPU0",) * 9
    assert where.output == "GPU0"


def test_cuda_pads_rows_of_quantized_tensors() -> None:
    odd = Described("llama", 1000, block_count=1, embedding_length=96)
    odd.tensor("blk.0.attn_q.weight", 96, 64, quant="Q8_0")
    info = parse(MemorySource(odd.header()))
    (item,) = [i for i in target_items(info, PARAMS, ALL, ONE_GPU) if i.kind == "weights"]
    data, padding = 64 * 96 // 32 * 34, (512 - 96) // 32 * 34
    assert item.bytes == -(-(data + padding) // 128) * 128 == 7040


@pytest.mark.parametrize("arch", ["gemma4-12b", "gemma4-e4b"])
def test_gemma4_holds_its_embeddings_twice_on_the_cpu(arch: str) -> None:
    embedding = tensor_bytes(arch, only="token_embd")
    assert weights(arch, NONE)["CPU"] == tensor_bytes(arch) + embedding
    # On a GPU there is one copy, as with any tied model.
    split = weights(arch, ALL)
    assert split["CPU"] + split["GPU0"] == pytest.approx(tensor_bytes(arch) + embedding, abs=1e5)


@pytest.mark.parametrize(
    ("name", "repack", "twice"),
    [
        ("llama-tied-q4_k", "", False),
        ("llama-tied-q4_k", "avx2", True),
        ("llama-tied-q4_k", "neon", True),
        ("gemma3-tied-q4_0", "avx512", True),
        ("llama-1b-tied", "avx512", False),  # Q6_K
        ("llama-1b-tied", "neon", True),
        ("llama-8b", "avx512", False),  # an output of its own
    ],
)
def test_repacking_holds_tied_embeddings_twice(name: str, repack: str, twice: bool) -> None:
    items = bill(name, PARAMS, NONE, Hardware((), repack))
    (item,) = [item for item in items if item.kind == "weights"]
    more = tensor_bytes(name, only="token_embd") if twice else 0
    assert item.bytes == tensor_bytes(name) + more
    assert ("repacked" in item.why) == twice


@pytest.mark.parametrize(
    ("system_info", "found"),
    [
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | AVX512 = 1 | REPACK = 1 | ", "avx512"),
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | AVX512 = 0 | REPACK = 1 | ", "avx2"),
        (
            "Metal : X = 1 | CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | REPACK = 1 | ",
            "neon",
        ),
        ("CPU : NEON = 1 | ARM_FMA = 1 | REPACK = 1 | ", ""),
        ("CPU : SSE3 = 1 | AVX = 1 | REPACK = 1 | ", ""),
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | ", ""),
    ],
)
def test_what_the_cpu_repacks_is_told_by_its_features(system_info: str, found: str) -> None:
    assert cpu_repack(system_info) == found


def test_splits_cut_the_layers_by_share_or_by_free_memory() -> None:
    info = described("llama-8b")
    by_free = layout_of(info, ALL, TWO_GPUS)
    assert by_free.layers.count("GPU0") == 25  # three quarters of 33
    assert by_free.output == "GPU1"
    even = layout_of(info, Placement(tensor_split=(1, 1)), TWO_GPUS)
    assert even.layers.count("GPU0") == 17
    none = layout_of(info, Placement(tensor_split=(0, 1)), TWO_GPUS)
    assert set(none.layers) == {"GPU1"}
    one = layout_of(info, Placement(devices=("GPU1",)), TWO_GPUS)
    assert {*one.layers, one.output} == {"GPU1"}
    with pytest.raises(UsageError, match="3 shares of a split for 2 devices"):
        layout_of(info, Placement(tensor_split=(1, 1, 1)), TWO_GPUS)
    with pytest.raises(UsageError, match="there is no device 'GPU7'"):
        layout_of(info, Placement(devices=("GPU7",)), TWO_GPUS)


def test_all_experts_count_and_only_move() -> None:
    name = "qwen3moe-30b"
    metal = Hardware((Device("GPU0", "Metal"),))  # the same padding as the CPU's
    experts = sum(t.n_bytes for t in described(name).tensors if "_exps." in t.name)
    whole = weights(name, ALL, metal)
    assert sum(whole.values()) == tensor_bytes(name)
    for n in (0, 7, 48, 100):
        found = weights(name, Placement(n_cpu_moe=n), metal)
        assert sum(found.values()) == tensor_bytes(name)
        moved = found["CPU"] - whole["CPU"]
        assert moved == experts * min(n, 48) // 48


def test_overrides_win_in_their_order_and_by_search() -> None:
    name = "qwen3moe-30b"
    pattern = r"blk\.(1|2)\.ffn_.*_exps"
    by_hand = weights(name, Placement(override_tensor=((pattern, "CPU"),)))
    both = ((r"blk\.0\.", "GPU0"), (pattern, "CPU"), (r"ffn_.*_exps", "GPU0"))
    assert weights(name, Placement(override_tensor=both)) == by_hand
    # An explicit override comes before those of n_cpu_moe.
    kept = weights(name, Placement(override_tensor=((r"\.0\.ffn_.*_exps", "GPU0"),), n_cpu_moe=3))
    assert kept == by_hand
    with pytest.raises(UsageError, match="there is no device 'GPU3'"):
        weights(name, Placement(override_tensor=((pattern, "GPU3"),)))
    with pytest.raises(UsageError, match="no regular expression"):
        weights(name, Placement(override_tensor=(("(", "CPU"),)))


@pytest.mark.parametrize("placement", [ALL, NONE, Placement(n_gpu_layers=20, n_cpu_moe=30)])
def test_an_override_without_a_match_changes_nothing(placement: Placement) -> None:
    slow = replace(placement, override_tensor=(("no such tensor", "CPU"),))
    for name in ("qwen35moe-35b", "gemma4-e4b", "llama-1b-tied", "dspark", "gemma4-assistant"):
        for hardware in (ONE_GPU, TWO_GPUS):
            assert weights(name, slow, hardware) == weights(name, placement, hardware)


def test_mtp_layers_are_loaded_on_demand() -> None:
    name = "qwen35-27b"
    without = sum(weights(name, NONE).values())
    loaded = sum(weights(name, NONE, params=MemoryParams(4096, load_mtp=True)).values())
    assert loaded - without == 238_983_168
    assert without == 15_465_875_456


@pytest.mark.parametrize(("type_v", "scratch"), [("q8_0", 1 << 30), ("q4_0", 1 << 30), ("f16", 0)])
def test_cuda_unpacks_a_layer_of_a_quantized_cache(type_v: str, scratch: int) -> None:
    def compute(hardware: Hardware, kv_type: str) -> int:
        params = MemoryParams(262144, type_k=kv_type, type_v=kv_type)
        return summed(bill("qwen35-27b", params, ALL, hardware), "compute")

    more = compute(ONE_GPU, type_v) - compute(ONE_GPU, "f16")
    assert more == scratch
    metal = Hardware((Device("GPU0", "Metal"),))
    assert compute(metal, type_v) == compute(metal, "f16")
    assert compute(Hardware(), type_v) == compute(Hardware(), "f16")


def test_every_device_has_a_compute_buffer_and_several_have_copies_of_the_inputs() -> None:
    one = bill("llama-8b", PARAMS, ALL, ONE_GPU)
    two = bill("llama-8b", PARAMS, ALL, TWO_GPUS)
    single = summed(one, "compute", "GPU0")
    inputs = summed(one, "compute", "CPU")
    assert inputs == 4 * 512 * 4096 + 2 * 4096 * 512
    assert summed(two, "compute", "GPU0") == single + 3 * inputs
    assert summed(two, "compute", "GPU1") > 3 * inputs


def test_weights_on_the_cpu_are_copied_for_large_batches() -> None:
    moved = Placement(n_cpu_moe=10)
    layer = sum(
        t.n_bytes for t in described("qwen3moe-30b").tensors if t.name.startswith("blk.3.ffn_")
        and "_exps" in t.name
    )  # fmt: skip
    small, large = MemoryParams(4096, n_ubatch=16), MemoryParams(4096)
    for params, more in ((small, 0), (large, layer)):
        moved_compute = summed(bill("qwen3moe-30b", params, moved, ONE_GPU), "compute", "GPU0")
        plain = summed(bill("qwen3moe-30b", params, ALL, ONE_GPU), "compute", "GPU0")
        assert moved_compute - plain == more


def test_devices_in_use_have_an_overhead() -> None:
    items = bill("llama-8b", PARAMS, ALL, TWO_GPUS)
    for device in ("GPU0", "GPU1"):
        assert summed(items, "overhead", device) == (600 + 256) << 20
    # libllama opens the devices also when no layer goes there, unless there are none to use.
    idle = bill("llama-8b", PARAMS, NONE, TWO_GPUS)
    assert summed(idle, "overhead", "GPU1") == (600 + 256) << 20
    assert summed(idle, "compute", "GPU0") > summed(idle, "compute", "GPU1") == 0
    alone = bill("llama-8b", PARAMS, Placement(n_gpu_layers=0, devices=()), TWO_GPUS)
    assert {item.device for item in alone} == {"CPU"}


def test_adapters_lie_beside_what_they_change() -> None:
    adapter = (
        Gguf().key("general.type", "str", "adapter").key("general.architecture", "str", "llama")
    )
    for name, shape in (("blk.0.attn_q", (4096, 16)), ("blk.31.attn_q", (4096, 16)),
                        ("output", (4096, 16))):  # fmt: skip
        adapter.tensor(f"{name}.weight.lora_a", shape, F32)
    info = parse(MemorySource(adapter.build()))
    half = layout_of(described("llama-8b"), Placement(n_gpu_layers=10), ONE_GPU)
    items = lora_items(info, described("llama-8b"), half)
    size = 4096 * 16 * 4
    assert {item.device: item.bytes for item in items} == {"CPU": size, "GPU0": 2 * size}
    assert {item.owner for item in items} == {"lora"}


def test_a_projector_is_counted_whole() -> None:
    projector = Gguf().key("general.architecture", "str", "clip")
    projector.key("clip.vision.image_size", "u32", 896).key("clip.vision.patch_size", "u32", 14)
    projector.tensor("v.blk.0.ffn_up.weight", (1152, 4304), F32)
    weights_item, compute = mmproj_items(
        parse(MemorySource(projector.build())), Device("GPU0", "CUDA")
    )
    assert (weights_item.device, weights_item.bytes) == ("GPU0", 1152 * 4304 * 4)
    assert compute.is_lower_bound
    assert compute.bytes == 16 * 64 * 64 * 4304


def test_split_devices_each_hold_the_rope_factors() -> None:
    small = llama(4, 512, 8, 2, 1024, 1000)
    info = parse(MemorySource(small.header()))
    one, two = (
        summed(target_items(info, PARAMS, Placement(tensor_split=split), TWO_GPUS), "weights")
        for split in ((1, 0), (1, 1))
    )
    assert two - one == 128  # 32 floats, once more
