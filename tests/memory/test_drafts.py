"""What a draft costs: its own buffers, and those that it makes its target's grow by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gguf_spec.backend import ContextParams, load_lib
from gguf_spec.backend.params import raw_context_params
from gguf_spec.memory import (
    MemoryItem,
    MemoryParams,
    Placement,
    draft_context,
    draft_deltas,
    draft_items,
    facts,
    most_snapshots,
    snapshots,
    totals,
    with_draft,
)
from gguf_spec.memory.cache import context_size
from tests.memory.sums import CPU_ONLY, MIB, ONE_GPU, bill, described, summed

Q35 = "qwen35-27b"
TARGET = MemoryParams(32768)
ALL = Placement()


def own(
    kind: str, name: str, *, target: str = Q35, n_max: int = 3, n_ubatch: int = 128,
    params: MemoryParams = TARGET,
) -> list[MemoryItem]:  # fmt: skip
    context = draft_context(kind, params, n_max=n_max, n_ubatch=n_ubatch)
    return draft_items(kind, described(name), described(target), context, ALL, CPU_ONLY)


def deltas(
    kind: str, n_max: int, name: str | None, target: str = Q35, params: MemoryParams = TARGET
) -> list[MemoryItem]:
    draft = described(name) if name else None
    return draft_deltas(kind, n_max, draft, described(target), params, ALL, CPU_ONLY)


def test_an_mtp_head_costs_its_layer_and_a_cache_of_the_planned_length() -> None:
    items = own("draft-mtp", Q35, params=MemoryParams(4096))
    assert summed(items, "weights") == 238_983_168
    assert summed(items, "kv_cache") == 16_777_216
    assert summed(items, "recurrent_state") == 0
    assert summed(own("draft-mtp", Q35), "kv_cache") == 128 * MIB
    assert {item.owner for item in items} == {"draft"}


def test_with_mtp_the_whole_is_larger() -> None:
    plain = bill(Q35, MemoryParams(4096))
    drafted = own("draft-mtp", Q35) + deltas("draft-mtp", 3, Q35)
    assert all(item.bytes > 0 for item in drafted if item.kind != "overhead")
    assert totals(plain + drafted).by_device["CPU"] > totals(plain).by_device["CPU"]


def test_an_mtp_only_file_brings_embeddings_and_output_along() -> None:
    items = own("draft-mtp", "qwen35-mtp-only", params=MemoryParams(4096))
    assert summed(items, "weights") == sum(t.n_bytes for t in described("qwen35-mtp-only").tensors)
    assert summed(items, "weights") > 8 * 238_983_168
    assert summed(items, "kv_cache") == 16_777_216


@pytest.mark.parametrize(
    ("kind", "name", "weights", "cache"),
    [
        ("draft-eagle3", "eagle3", 250_757_120, 134_217_728),
        ("draft-dflash", "dflash", 973_460_480, 640 * MIB),
        ("draft-dflash", "dflash-windowed", 973_460_480, 640 * MIB),  # all of the window is kept
        ("draft-dspark", "dspark", 1_044_998_176, 640 * MIB),
    ],
)
def test_heads_without_embeddings_are_never_nothing(
    kind: str, name: str, weights: int, cache: int
) -> None:
    items = own(kind, name)
    assert (summed(items, "weights"), summed(items, "kv_cache")) == (weights, cache)
    assert not any(item.is_lower_bound for item in items)


def test_a_window_is_kept_small_unless_all_of_it_is_wanted() -> None:
    context = draft_context("draft-dflash", TARGET, n_max=3, n_ubatch=64)
    items = draft_items(
        "draft-dflash", described("dflash-windowed"), described(Q35),
        replace(context, swa_full=False), ALL, CPU_ONLY,
    )  # fmt: skip
    # Four layers of 2048 + 64 cells, padded to 2304, and one of 32768.
    assert summed(items, "kv_cache") == 4096 * (4 * 2304 + 32768)


def test_smaller_batches_make_heads_smaller() -> None:
    sizes = [summed(own("draft-eagle3", "eagle3", n_ubatch=n), "compute") / MIB for n in (512, 64)]
    assert sizes == pytest.approx([505, 63.1], abs=0.2)


def test_an_assistant_has_no_cache_of_its_own() -> None:
    items = own("draft-mtp", "gemma4-assistant", target="gemma4-12b")
    assert summed(items, "kv_cache") == 0
    assert summed(items, "weights") > 0
    assert summed(items, "compute") > 0


def test_a_draft_model_costs_what_it_costs_alone() -> None:
    context = draft_context("draft-simple", TARGET, n_max=8, n_ubatch=512)
    items = draft_items(
        "draft-simple", described("qwen3-0.6b"), described("qwen3-8b"), context, ALL, CPU_ONLY
    )
    alone = bill("qwen3-0.6b", context)
    for kind in ("weights", "kv_cache", "compute"):
        assert summed(items, kind) == summed(alone, kind)


def test_target_and_draft_add_up_device_by_device() -> None:
    target = bill("gemma3-4b", MemoryParams(8192), ALL, ONE_GPU)
    context = draft_context("draft-simple", MemoryParams(8192), n_max=4, n_ubatch=512)
    draft = draft_items(
        "draft-simple", described("qwen3-0.6b"), described("gemma3-4b"), context, ALL, ONE_GPU
    )
    both = totals(target + draft)
    for device in ("CPU", "GPU0"):
        assert both.by_device[device] == summed(target, None, device) + summed(draft, None, device)
    assert both.by_kind["GPU0"]["kv_cache"] == summed(target, "kv_cache") + summed(
        draft, "kv_cache"
    )


@pytest.mark.parametrize(("n_max", "copies"), [(1, 1), (3, 3), (15, 15), (40, 16)])
def test_snapshots_are_on_the_bill_of_the_draft(n_max: int, copies: int) -> None:
    items = deltas("draft-dflash", n_max, "dflash")
    assert summed(items, "snapshots") == copies * 156_893_184
    assert {item.owner for item in items} == {"draft"}


def test_plain_attention_needs_no_snapshots() -> None:
    items = deltas("draft-simple", 5, "qwen3-0.6b", "qwen3-8b")
    assert summed(items, "snapshots") == 0
    assert summed(items, "output") == 5 * 151936 * 4


def test_an_ngram_drafter_costs_rows_of_logits_only() -> None:
    items = deltas("ngram-simple", 12, None)
    assert {item.kind for item in items} <= {"output", "compute"}
    assert summed(items, "output") == 12 * 248320 * 4


def test_hidden_states_are_kept_for_every_row_of_a_batch() -> None:
    items = deltas("draft-eagle3", 3, "eagle3")
    logits, states = 3 * 248320 * 4, 3 * 5120 * 2048 * 4
    assert summed(items, "output") == logits + states
    assert summed(deltas("draft-mtp", 3, Q35), "output") == logits + states // 3
    assert summed(deltas("draft-dflash", 3, "dflash"), "output") == logits + 5 * states // 3
    assert summed(items, "compute") > 0


def test_a_draft_leaves_the_targets_own_numbers_alone() -> None:
    changed = with_draft("draft-mtp", 3, described(Q35), described(Q35), TARGET)
    assert (changed.n_rs_seq, changed.n_outputs_max, changed.nextn) == (3, 4, True)
    same = replace(changed, n_rs_seq=0, n_outputs_max=1, nextn=False)
    assert same == TARGET
    assert summed(bill(Q35, changed), "kv_cache") == summed(bill(Q35, TARGET), "kv_cache")


def test_more_snapshots_than_the_graph_has_room_for_are_not_asked_for() -> None:
    # libllama was tried: 13 and 20 are the most it survives with these two.
    assert most_snapshots(described("nemotron_h-9b")) == 12
    assert most_snapshots(described("lfm2-1.2b")) == 15
    assert most_snapshots(described(Q35)) is None
    assert snapshots(described("nemotron_h-9b"), 30) == 12
    assert snapshots(described(Q35), 30) == 16
    assert snapshots(described(Q35), 3) == 3


@pytest.mark.parametrize("n_ubatch", [1, 2, 3, 9, 18, 512])
@pytest.mark.parametrize("n_batch", [8, 2048])
def test_as_many_snapshots_are_planned_as_are_made(n_ubatch: int, n_batch: int) -> None:
    """A physical batch has to be longer than the rows that snapshots keep together."""
    target, known, n_ubatch = described(Q35), facts(described(Q35)), min(n_ubatch, n_batch)
    planned = MemoryParams(4096, n_batch=n_batch, n_ubatch=n_ubatch)
    for n_max in (1, 3, 40):
        changed = with_draft("draft-mtp", n_max, target, target, planned)
        wanted = snapshots(target, n_max)
        loaded = ContextParams(4096, n_batch=n_batch, n_ubatch=n_ubatch, n_rs_seq=wanted)
        made = raw_context_params(load_lib().api, loaded).n_rs_seq
        assert changed.n_rs_seq == made == max(min(wanted, n_ubatch - 2), 0)
        asked = replace(planned, n_rs_seq=wanted)
        assert context_size(known, asked).n_rs_seq == made
        assert summed(bill(Q35, asked), "recurrent_state") == 156_893_184 * (1 + made)
