"""Caches: anchors counted on real models, sizes that users asked about, and what is refused."""

from __future__ import annotations

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import parse
from gguf_spec.memory import Hardware, MemoryParams, Placement, cache_problem, facts, target_items
from tests.memory.described import Described, attention, basic, dense
from tests.memory.sums import MIB, ONE_GPU, bill, described, summed
from tests.memory.transformers import llama

Q35 = "qwen35-27b"


def cache_of(model: Described, params: MemoryParams) -> int:
    info = parse(MemorySource(model.header()))
    return summed(target_items(info, params, Placement(), Hardware()), "kv_cache")


@pytest.mark.parametrize(
    ("params", "n_bytes"),
    [
        (MemoryParams(4096), 28_311_552),
        (MemoryParams(4096, swa_full=True), 75_497_472),
        (MemoryParams(4096, n_ubatch=128), 24_379_392),
        (MemoryParams(4096, type_k="q8_0", type_v="q8_0"), 15_040_512),
        (MemoryParams(32768, n_seq_max=4), 163_577_856),
        (MemoryParams(32768, n_seq_max=4, kv_unified=True), 139_984_896),
        (MemoryParams(32768), 116_391_936),
    ],
)
def test_gemma3_270m_as_libllama_counts_the_real_file(params: MemoryParams, n_bytes: int) -> None:
    narrow = Described("gemma3", 262144, **basic(18, 640, 32768, 4, 1, 2048))
    narrow.keys(attention__key_length=256, attention__value_length=256)
    narrow.keys(attention__sliding_window=512)
    narrow.ends(640, output=False)
    for il in range(18):
        attention(narrow, il, 640, 4, 1, 256, 256)
        dense(narrow, il, 640, 2048)
    assert cache_of(narrow, params) == n_bytes


def test_cells_are_padded_to_256() -> None:
    smollm = llama(30, 576, 9, 3, 1536, 49152, output=False)
    assert cache_of(smollm, MemoryParams(1000)) == 23_592_960
    # 5000 cells for three sequences are 5376: three streams of 1792.
    per_cell = 23_592_960 // 1024
    assert cache_of(smollm, MemoryParams(5000, n_seq_max=3)) == 5376 * per_cell


def test_a_context_of_zero_is_as_long_as_the_training() -> None:
    long = bill("qwen3-8b", MemoryParams(0))
    assert summed(long, "kv_cache") == summed(bill("qwen3-8b", MemoryParams(40960)), "kv_cache")


def test_only_the_layers_that_attend_have_a_cache() -> None:  # every fourth, and the MTP layer not
    items = bill(Q35, MemoryParams(262144))
    assert summed(items, "kv_cache") == 17_179_869_184
    assert summed(items, "recurrent_state") == 156_893_184
    packed = bill(Q35, MemoryParams(262144, type_k="q8_0", type_v="q8_0"))
    assert summed(packed, "kv_cache") == 9_126_805_504


@pytest.mark.parametrize("snapshots", [0, 3, 15, 64])
def test_every_snapshot_is_a_whole_state(snapshots: int) -> None:
    items = bill(Q35, MemoryParams(4096, n_rs_seq=snapshots))
    assert summed(items, "recurrent_state") == 156_893_184 * (1 + snapshots)


def test_four_sequences_have_four_states() -> None:
    items = bill(Q35, MemoryParams(262144, n_seq_max=4))
    assert summed(items, "recurrent_state") / MIB == 598.5


def test_states_that_cannot_be_rolled_back_have_no_snapshots() -> None:
    plain = bill("mamba2-2.7b", MemoryParams(4096))
    asked = bill("mamba2-2.7b", MemoryParams(4096, n_rs_seq=7))
    assert summed(asked, "recurrent_state") == summed(plain, "recurrent_state")


def test_mla_keeps_keys_only() -> None:  # 576 values of 61 layers, not 192 + 128
    assert summed(bill("deepseek2-v3", MemoryParams(1024)), "kv_cache") == 61 * 576 * 2 * 1024


def test_without_offload_the_cache_stays_on_the_cpu() -> None:
    items = bill(Q35, MemoryParams(4096, offload_kqv=False), hardware=ONE_GPU)
    assert summed(items, "kv_cache", "GPU0") == summed(items, "recurrent_state", "GPU0") == 0
    assert summed(items, "kv_cache", "CPU") == 256 * MIB


def unknown(arch: str) -> Described:
    model = Described(arch, 32000, **basic(4, 512, 8192, 8, 2, 2048))
    model.ends(512)
    for il in range(4):
        attention(model, il, 512, 8, 2, 64, 64)
        dense(model, il, 512, 2048)
    return model


@pytest.mark.parametrize(
    ("arch", "tensors"), [("brand-new", 2), ("glm5-next", 2), ("deepseek4", 1)]
)
def test_an_unknown_cache_is_a_lower_bound_and_says_so(arch: str, tensors: int) -> None:
    info = parse(MemorySource(unknown(arch).header()))
    items = target_items(info, MemoryParams(4096), Placement(), Hardware())
    (cache,) = [item for item in items if item.kind == "kv_cache"]
    assert cache.is_lower_bound
    assert cache.source == "assumed"
    assert arch in cache.why
    assert cache.bytes == 4 * tensors * 128 * 2 * 4096
    assert summed(items, "weights") > 0
    for item in items:
        assert item.is_lower_bound == (item.kind not in ("output", "overhead"))


def test_unknown_and_without_numbers_there_is_still_an_item() -> None:
    info = parse(MemorySource(Described("brand-new", 10, block_count=3).header()))
    items = target_items(info, MemoryParams(4096), Placement(), Hardware())
    (cache,) = [item for item in items if item.kind == "kv_cache"]
    assert cache.is_lower_bound
    assert cache.bytes == 0


@pytest.mark.parametrize(
    ("name", "params", "problem"),
    [
        ("deepseek2-v3", MemoryParams(1, type_k="q8_0"), "needs one type: K is q8_0, V is f16"),
        ("qwen3-8b", MemoryParams(1, type_v="q8_0", flash_attn="off"), "needs flash attention"),
        ("phi3-mini", MemoryParams(1, type_k="q8_0"), None),
        ("qwen3-8b", MemoryParams(1, type_k="q8_0", type_v="q4_0"), None),
        ("mamba2-2.7b", MemoryParams(1, type_k="q8_0"), None),
    ],
)
def test_cache_types_that_libllama_refuses(
    name: str, params: MemoryParams, problem: str | None
) -> None:
    found = cache_problem(facts(described(name)), params)
    assert (found is None) == (problem is None)
    assert problem is None or problem in str(found)


def test_heads_must_be_whole_blocks() -> None:
    odd = llama(2, 80, 1, 1, 256, 1000)
    known = facts(parse(MemorySource(odd.header())))
    found = cache_problem(known, MemoryParams(1, type_k="q4_0"))
    assert found == "q4_0 needs heads of a multiple of 32, this model's are 80 wide"
    with pytest.raises(UsageError, match="unknown cache type 'q9'"):
        bill("qwen3-8b", MemoryParams(512, type_k="q9"))
