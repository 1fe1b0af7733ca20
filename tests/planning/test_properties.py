"""What holds for every target, ladder, draft and budget."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.quants import layer_bits
from gguf_spec.planning.record import plan_record
from gguf_spec.planning.types import Wish
from tests.planning.worlds import (
    GIB,
    drafts,
    ladders,
    machine,
    machines,
    memories,
    model,
    mtp,
    offers,
    rungs,
    wishes,
)

Wanted = list[tuple[str, int, int]]


@given(ladders(), machines(), wishes(), drafts(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_draft_changes_nothing_of_the_target(
    names: tuple[str, ...], there: Machine, wish: Wish, wanted: Wanted, one: bool
) -> None:
    ladder = rungs(*names)
    with_draft = plan_record(plan(ladder, there, wish, offers(wanted, names), one=one))
    without = plan_record(plan(ladder, there, wish))
    assert with_draft["target"] == without["target"]
    assert with_draft["fits"] == without["fits"]
    alone = [(r["quant"], r["total_bytes"], r["fits"]) for r in without["ladder"]]
    assert [(r["quant"], r["total_bytes"], r["fits"]) for r in with_draft["ladder"]] == alone


@given(ladders(), machines(), wishes(), drafts(), st.booleans())
@settings(max_examples=40, deadline=None)
def test_what_is_planned_fits_and_adds_up(
    names: tuple[str, ...], there: Machine, wish: Wish, wanted: Wanted, one: bool
) -> None:
    made = plan(rungs(*names), there, wish, offers(wanted, names), one=one)
    record = plan_record(made)
    if made.fits:
        assert not there.missing(made.target.items)
    else:  # or every quantization is below the floor
        assert there.missing(made.target.items) or "is below" in made.reasons[0]
    memories = [*record["devices"], record["host"]]
    for memory in memories:
        assert memory["used"] == sum(item["bytes"] for item in memory["items"])
        assert memory["headroom"] == memory["budget"] - memory["used"]
        assert memory["headroom"] >= 0 or not made.fits
    by_owner: dict[str, int] = {}
    for item in (item for memory in memories for item in memory["items"]):
        assert item["bytes"] >= 0
        by_owner[item["owner"]] = by_owner.get(item["owner"], 0) + item["bytes"]
    assert by_owner.pop("target") == sum(record["target"]["bytes"].values())
    assert by_owner.pop("draft", 0) == sum(sum(d["bytes"].values()) for d in record["drafts"])
    assert not by_owner
    chosen = [row for row in record["ladder"] if row["chosen"]]
    assert len(chosen) == 1
    assert chosen[0]["total_bytes"] == sum(record["target"]["bytes"].values())
    assert chosen[0]["fits"] or not record["fits"]
    assert (chosen[0]["missing_bytes"] == 0) == chosen[0]["fits"]
    admitted = [c["method"] for c in record["draft_candidates"] if c["admitted"]]
    assert admitted == [draft["method"] for draft in record["drafts"]]
    assert record["draft"] == (record["drafts"] or [None])[0]
    for verdict in made.verdicts:
        if verdict.missing:
            assert not verdict.admitted
            assert verdict.least is not None


@given(ladders(), wishes(), st.lists(memories(), min_size=1, max_size=2), st.data())
@settings(max_examples=60, deadline=None)
def test_more_vram_never_gives_a_lower_quantization(
    names: tuple[str, ...], wish: Wish, sizes: list[int], data: st.DataObject
) -> None:
    ladder = rungs(*names)
    more = [size + data.draw(memories()) for size in sizes]
    ram = GIB // 4 + data.draw(memories())
    small = plan(ladder, machine(*sizes, ram=ram), wish)
    large = plan(ladder, machine(*more, ram=ram), wish)
    if small.fits:
        assert large.fits
        bits = [layer_bits(made.target.rung.info) for made in (small, large)]
        assert bits[0] <= bits[1]
        assert small.target.n_ctx <= large.target.n_ctx


@given(ladders(), machines(), wishes())
@settings(max_examples=30, deadline=None)
def test_a_context_that_was_asked_for_is_kept(
    names: tuple[str, ...], there: Machine, wish: Wish
) -> None:
    ladder = rungs(*names)
    made = plan(ladder, there, wish)
    if isinstance(wish.n_ctx, int):
        assert made.target.n_ctx == wish.n_ctx
    if made.target.shrunk:
        # Nothing fits with the context that was asked for, and a step more does not fit either.
        longer = replace(wish, n_ctx=made.target.n_ctx + 256)
        lowest = [made.target.rung]
        assert not plan(lowest, there, longer).fits


@given(memories(), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_a_refused_head_says_exactly_what_is_missing(spare: int, n_max: int) -> None:
    ladder, wish = rungs("hybrid", "Q4_K"), Wish(MemoryParams(0), n_ctx=8192)
    roomy = plan(ladder, machine(24 * GIB), wish)
    alone = roomy.machine.used(roomy.items)["CUDA0"]
    there = machine(alone + spare)
    made = plan(ladder, there, wish, [mtp("hybrid", n_max=n_max)])
    (verdict,) = made.verdicts
    if not verdict.admitted:
        enough = machine(alone + spare + verdict.missing_bytes)
        less = machine(alone + spare + verdict.missing_bytes - 1)
        assert plan(ladder, enough, wish, [mtp("hybrid", n_max=n_max)]).drafts
        assert not plan(ladder, less, wish, [mtp("hybrid", n_max=n_max)]).drafts


def test_the_models_are_what_they_are_called() -> None:
    assert model("hybrid").n_layer_nextn == 1
    assert model("experts").arch == "qwen3moe"
