"""Sizes that users asked about, planned: the target, its draft, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.offers import own_offer
from gguf_spec.planning.record import plan_record
from gguf_spec.planning.types import ALL, DraftOffer, Rung, Wish
from tests.planning.worlds import GIB, MIB, machine, model, mtp, rungs

Q35 = rungs("27b", "Q4_K")
LARGE = machine(80 * GIB)


def wish(n_ctx: Any = 4096, **params: Any) -> Wish:
    return Wish(MemoryParams(0, **params), n_ctx=n_ctx)


def record(there: Machine = LARGE, asked: Wish | None = None, *offers: DraftOffer) -> Any:
    return plan_record(plan(Q35, there, asked or wish(), offers))


def eagle3(**more: Any) -> DraftOffer:
    return DraftOffer("draft-eagle3", tuple(rungs("eagle3-27b", "Q4_K")), n_ubatch=128, **more)


def total(made: Any) -> int:
    return int(sum(device["used"] for device in made["devices"]) + made["host"]["used"])


def test_the_built_in_head_is_charged() -> None:
    without, with_head = record(), record(LARGE, None, mtp("27b"))
    assert total(with_head) > total(without)
    draft = with_head["draft"]
    assert draft["method"] == "draft-mtp"
    assert draft["ref"] is None
    assert draft["bytes"]["weights"] == 238_983_168
    assert draft["bytes"]["kv_cache"] == 16_777_216
    assert draft["bytes"]["snapshots"] == 3 * 156_893_184


def test_a_drafts_cache_is_as_long_as_the_planned_context() -> None:
    # Not as the one the model was trained for, which would be 262144 tokens.
    assert record(LARGE, wish(32768), mtp("27b"))["draft"]["bytes"]["kv_cache"] == 32768 * 4096


@pytest.mark.parametrize("n_rs_seq", [0, 3, 15])
def test_snapshots_that_were_asked_for_are_the_targets(n_rs_seq: int) -> None:
    made = record(LARGE, wish(n_rs_seq=n_rs_seq))
    assert made["target"]["bytes"]["recurrent_state"] == 156_893_184 * (1 + n_rs_seq)


def test_a_head_that_borrows_embeddings_is_never_nothing() -> None:
    made = record(LARGE, wish(32768), eagle3())
    assert made["draft"]["bytes"]["weights"] == pytest.approx(250_757_120, abs=4096)
    assert made["draft"]["bytes"]["kv_cache"] == 134_217_728


def test_a_draft_is_refused_with_the_missing_bytes() -> None:
    alone = record()["devices"][0]["used"]
    least = mtp("27b", n_max=1, n_ubatch=32, fixed=frozenset(["types"]))
    need = record(LARGE, None, least)["devices"][0]["used"] - alone
    refused = record(machine(alone + need - 300 * MIB), None, least)
    (candidate,) = refused["draft_candidates"]
    assert not candidate["admitted"]
    assert candidate["missing_bytes"] == 300 * MIB
    assert "300.0 MiB are missing" in candidate["reason"]
    assert refused["draft"] is None
    admitted = record(machine(alone + need), None, least)
    assert admitted["draft"]["method"] == "draft-mtp"
    assert admitted["devices"][0]["headroom"] == 0
    assert refused["target"] == admitted["target"] == record()["target"]


def test_hybrids_have_a_cache_in_every_fourth_layer() -> None:
    whole = record(LARGE, wish(262144))["target"]["bytes"]
    assert (whole["kv_cache"], whole["recurrent_state"]) == (17_179_869_184, 156_893_184)
    small = record(LARGE, wish(262144, type_k="q8_0", type_v="q8_0"))["target"]["bytes"]
    assert small["kv_cache"] == 9_126_805_504


@pytest.mark.parametrize(("types", "scratch"), [("q8_0", True), ("q4_0", True), ("f16", False)])
def test_quantized_caches_need_scratch_on_cuda(types: str, scratch: bool) -> None:
    items = record(LARGE, wish(262144, type_k=types, type_v=types))["devices"][0]["items"]
    assert (1_073_741_824 in [item["bytes"] for item in items]) == scratch
    host = record(machine(), wish(262144, type_k=types, type_v=types))["host"]["items"]
    assert 1_073_741_824 not in [item["bytes"] for item in host]


def test_placements_of_the_user_are_inputs_and_may_not_fit() -> None:
    small = machine(12 * GIB)
    made = plan(Q35, small, replace(wish(), n_gpu_layers=ALL))
    assert not made.fits
    assert "-g auto would fit" in made.hints
    some = plan(Q35, small, replace(wish(), n_gpu_layers=20))
    assert some.fits
    assert some.target.placement.n_gpu_layers == 20
    assert some.target.tier == "B"


def test_with_partial_offload_the_card_is_full() -> None:
    made = plan(Q35, machine(12 * GIB), wish())
    layers = made.target.placement.n_gpu_layers
    assert made.target.tier == "B"
    assert 0 < layers < 66
    more = plan(Q35, machine(12 * GIB), replace(wish(), n_gpu_layers=layers + 1))
    assert set(more.missing) == {"CUDA0"}


def test_experts_stay_in_host_memory_before_layers_do() -> None:
    moe = rungs("experts", "Q4_K")
    whole = plan(moe, machine(64 * GIB), wish())
    assert (whole.target.tier, whole.target.placement.n_cpu_moe) == ("A", 0)
    alone = whole.machine.used(whole.items)["CUDA0"]
    made = plan(moe, machine(alone - 100 * MIB), wish())
    assert made.target.tier == "A"
    placement = made.target.placement
    assert placement.n_gpu_layers == 9
    assert 0 < placement.n_cpu_moe <= 8
    fewer = Wish(MemoryParams(0), 4096, n_cpu_moe=placement.n_cpu_moe - 1, n_gpu_layers=ALL)
    assert not plan(moe, machine(alone - 100 * MIB), fewer).fits


def test_a_draft_shrinks_itself_before_it_is_refused() -> None:
    alone = record()["devices"][0]["used"]
    full = record(LARGE, None, mtp("27b"))
    need = full["devices"][0]["used"] - alone
    changes = []
    for part in (need, need - 8 * MIB, need - 250 * MIB, need - 400 * MIB):
        made = record(machine(alone + part), None, mtp("27b"))
        assert made["target"] == full["target"]
        changes.append(made["draft"]["changes"])
        assert made["devices"][0]["headroom"] >= 0
    assert changes[0] == []
    assert changes[1][0].endswith("rows at once instead of 512")
    assert any(change.startswith("drafts of 2 instead of 3") for change in changes[2])
    assert any(change.startswith("drafts of 1 instead of 3") for change in changes[3])


def test_the_next_method_is_tried_where_one_is_refused() -> None:
    alone = record()["devices"][0]["used"]
    ngram = DraftOffer("ngram-simple", n_max=48)
    made = record(machine(alone), None, mtp("27b"), eagle3(), ngram)
    assert [c["admitted"] for c in made["draft_candidates"]] == [False, False, True]
    assert made["draft"]["method"] == "ngram-simple"
    roomy = record(LARGE, None, mtp("27b"), eagle3(), ngram)
    assert [draft["method"] for draft in roomy["drafts"]] == ["draft-mtp", "ngram-simple"]


def test_a_draft_model_takes_a_lower_quantization_then_the_cpu() -> None:
    dense = rungs("dense", "Q4_K")
    offer = DraftOffer("draft-simple", tuple(rungs("draft", "Q8_0", "Q4_K")), n_ubatch=32)
    alone = plan(dense, machine(24 * GIB), wish())
    used = alone.machine.used(alone.items)["CUDA0"]

    def admitted(spare: int) -> Any:
        (bundle,) = plan(dense, machine(used + spare), wish(), [offer]).drafts
        return bundle

    whole = admitted(2 * GIB)
    assert whole.rung.info.quant == "Q8_0"
    need = sum(item.bytes for item in whole.items if item.device == "CUDA0")
    smaller = [admitted(need - step * MIB) for step in range(1, int(need / MIB))]
    assert any(bundle.rung.info.quant == "Q4_K" for bundle in smaller)
    assert smaller[-1].placement.n_gpu_layers == 0
    assert "its weights on the CPU" in smaller[-1].changes
    assert not any(item.device == "CUDA0" and item.kind == "weights" for item in smaller[-1].items)


def test_layers_give_way_to_a_draft_only_if_they_may() -> None:
    small = machine(14 * GIB)
    kept = plan(Q35, small, wish(), [mtp("27b")])
    assert not kept.drafts
    moved = plan(Q35, small, replace(wish(), draft_may_displace_layers=True), [mtp("27b")])
    assert [bundle.offer.method for bundle in moved.drafts] == ["draft-mtp"]
    before, after = kept.target, moved.target
    assert (before.rung, before.n_ctx) == (after.rung, after.n_ctx)
    assert after.placement.n_gpu_layers < before.placement.n_gpu_layers
    assert any("displaces" in r and r.count("tokens/s") == 2 for r in moved.reasons)
    assert not moved.missing
    # One layer fewer would not have been enough.
    fewer = replace(wish(), n_gpu_layers=after.placement.n_gpu_layers + 1)
    assert not plan(Q35, small, fewer, [mtp("27b")]).drafts


def test_a_model_without_a_head_says_so() -> None:
    offer = own_offer(Rung("dense", model("dense")))
    made = plan_record(plan(rungs("dense", "Q4_K"), LARGE, wish(), [offer]))
    (candidate,) = made["draft_candidates"]
    assert not candidate["admitted"]
    assert "head" in candidate["reason"] or "MTP" in candidate["reason"]


def test_every_device_has_compute_buffers_and_a_split() -> None:
    made = record(machine(12 * GIB, 12 * GIB), wish(32768))
    assert made["target"]["tier"] == "A"
    assert sum(made["target"]["placement"]["tensor_split"]) == 66
    for device in made["devices"]:
        assert [i for i in device["items"] if i["kind"] == "compute"]
        assert device["headroom"] >= 0


def test_unified_memory_is_one_device() -> None:
    from gguf_spec.planning.machine import Gpu, Host

    gpu = Gpu("MTL0", "Metal", 36 * GIB, 24 * GIB, 23 * GIB, unified=True)
    made = record(Machine(Host(36 * GIB, 36 * GIB, 36 * GIB), (gpu,)))
    assert made["host"]["items"] == []
    assert made["host"]["used"] == 0
    (device,) = made["devices"]
    assert device["used"] == sum(made["target"]["bytes"].values())


def test_a_device_that_cannot_hold_its_own_driver_is_not_used() -> None:
    tiny = plan(Q35, machine(100 * MIB), wish())
    assert tiny.fits
    assert tiny.target.placement.devices == ()
    assert tiny.machine.used(tiny.items)["CUDA0"] == 0
    both = plan(Q35, machine(24 * GIB, 100 * MIB), wish(), [mtp("27b")])
    assert (both.target.tier, both.target.placement.devices) == ("A", ("CUDA0",))
    assert both.target.placement.tensor_split == ()
    assert both.drafts
    assert plan(Q35, machine(24 * GIB, 2 * GIB), wish()).target.placement.devices is None
