"""Which quantization is taken: tiers, floors, contexts that shrink, and the order of it all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.planning.quants import USUAL_BITS, at_least, floor_bits, layer_bits, plain_name
from gguf_spec.planning.target import Ladder
from gguf_spec.planning.types import Plan, Wish
from tests.planning.worlds import GIB, MIB, machine, model, rungs

LADDER = rungs("27b", "Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K")
WISH = Wish(MemoryParams(0), n_ctx=4096)


def planned(vram: float, wish: Wish = WISH, *, ram: float = 64) -> Plan:
    return plan(LADDER, machine(vram * GIB, ram=ram * GIB), wish)


@pytest.mark.parametrize(
    ("vram", "quant", "tier"),
    [(40, "Q8_0", "A"), (26, "Q6_K", "A"), (18, "Q4_K", "A"), (12, "Q4_K", "B"), (0, "Q4_K", "B")],
)
def test_the_highest_quantization_of_the_first_tier(vram: int, quant: str, tier: str) -> None:
    made = planned(vram)
    assert (made.target.rung.info.quant, made.target.tier) == (quant, tier)


def test_quality_may_push_layers_off_the_gpu() -> None:
    made = planned(12, replace(WISH, prefer="quality"))
    assert (made.target.rung.info.quant, made.target.tier) == ("Q8_0", "B")
    assert 0 < made.target.placement.n_gpu_layers < 66


def test_below_the_floor_only_if_that_is_allowed() -> None:
    # Neither GPU nor host can hold a part of Q4_K that would be enough.
    assert not planned(14, ram=1).fits
    allowed = planned(14, replace(WISH, min_quant="Q2_K"), ram=1.2)
    assert (allowed.target.rung.info.quant, allowed.target.tier) == ("Q3_K", "C")
    assert any(hint.startswith("--min-quant Q3_K") for hint in planned(14, ram=1.2).hints)
    # Where the floor has a place, it is taken, even with fewer layers on the GPU.
    assert planned(14, replace(WISH, min_quant="Q2_K")).target.tier == "B"


def test_a_higher_floor_is_kept() -> None:
    made = planned(18, replace(WISH, min_quant="Q6_K"))
    assert (made.target.rung.info.quant, made.target.tier) == ("Q6_K", "B")


def test_a_single_file_is_its_users_choice() -> None:
    made = plan(LADDER[-1:], machine(16 * GIB), WISH)
    assert (made.target.rung.info.quant, made.target.tier, made.fits) == ("Q2_K", "A", True)


def test_only_low_quantizations_are_not_chosen_by_themselves() -> None:
    made = plan(LADDER[-2:], machine(40 * GIB), WISH)
    assert not made.fits
    assert made.hints == ("--min-quant Q3_K would fit",)
    assert made.reasons[0] == "every quantization is below Q4_K_M, the best is Q3_K"


def test_max_shrinks_only_where_nothing_fits_and_a_number_never() -> None:
    longest = replace(WISH, n_ctx="max")
    roomy = planned(16, longest)
    assert (roomy.target.n_ctx, roomy.target.tier) == (262144, "B")
    tight = planned(12, longest, ram=8)
    assert tight.fits
    assert tight.target.shrunk
    assert tight.target.n_ctx % 256 == 0
    assert not planned(12, replace(WISH, n_ctx=tight.target.n_ctx + 256), ram=8).fits
    refused = planned(12, replace(WISH, n_ctx=262144), ram=8)
    assert not refused.fits
    # A little less than the most, which may be gone in a moment.
    offered = tight.target.n_ctx * 31 // 32 // 256 * 256
    assert refused.hints[0] == f"-c {offered} would fit (Q4_K)"
    assert refused.target.n_ctx == 262144
    assert planned(80, replace(WISH, n_ctx=None)).target.n_ctx == 8192


def test_mapped_weights_may_exceed_what_is_free_but_not_all_there_is() -> None:
    need = plan(LADDER[2:3], machine(ram=64 * GIB), WISH)
    total = need.machine.used(need.items)["CPU"]
    rest = total - sum(item.bytes for item in need.items if item.kind == "weights")
    for ram, available, mapped, fits in (
        (total, rest, True, True),
        (total, rest - 1, True, False),
        (total - 1, total, True, False),
        (total, rest, False, False),
        (total, total, False, True),
    ):
        there = machine(ram=ram, mapped=mapped)
        there = replace(there, host=replace(there.host, available=available))
        assert plan(LADDER[2:3], there, WISH).fits == fits


def test_every_rung_is_judged_with_the_missing_bytes() -> None:
    made = planned(18)
    judged = {row.rung.info.quant: row for row in made.ladder}
    assert list(judged) == ["Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K"]
    assert [bool(row.missing) for row in judged.values()] == [True, True, False, False, False]
    missing = judged["Q8_0"].missing["CUDA0"]
    assert plan(LADDER, machine(18 * GIB + missing), WISH).target.rung.info.quant == "Q8_0"
    assert plan(LADDER, machine(18 * GIB + missing - 1), WISH).target.rung.info.quant != "Q8_0"


def test_rungs_are_sorted_by_what_their_layers_take() -> None:
    shuffled = [LADDER[3], LADDER[0], LADDER[4], LADDER[2], LADDER[1]]
    ladder = Ladder.of(shuffled, None)
    assert [rung.info.quant for rung in ladder.rungs] == ["Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K"]
    assert layer_bits(model("27b", "Q8_0")) == pytest.approx(8.5, abs=0.05)
    larger = replace(LADDER[2], info=replace(LADDER[2].info, file_bytes=99 * GIB))
    assert Ladder.of([LADDER[2], larger], None).rungs == (larger, LADDER[2])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("Q4_K_M", "Q4_K_M"), ("UD-Q4_K_XL", "Q4_K_M"), ("q4-k-m", "Q4_K_M"), ("Q4_K", "Q4_K_M"),
        ("IQ4_XS", "IQ4_XS"), ("UD-IQ2_XXS", "IQ2_XXS"), ("Q6_K_L", "Q6_K"), ("Q2_K_L", "Q2_K"),
    ],
)  # fmt: skip
def test_makers_marks_are_not_the_quantization(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_a_floor_that_no_file_has_stands_for_its_usual_size() -> None:
    ladder = [("Q5_K", 5.5), ("IQ4_XS", 4.25), ("NEW", 4.8), ("NEWER", 4.3)]
    assert [at_least(n, b, "Q4_K_M", ladder) for n, b in ladder] == [True, False, True, False]
    with_floor = [("Q4_K_M", 4.6), ("UD-Q4_K_S", 4.7), ("Q4_K_S", 4.5)]
    assert [at_least(n, b, "Q4_K_M", with_floor) for n, b in with_floor] == [True, True, False]
    assert at_least("MXFP4_MOE", 4.25, "Q4_K_M", [])
    assert not at_least("MXFP4_MOE", 4.25, "Q5_K_M", [("Q5_K_M", 5.7)])


def test_an_unknown_floor_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Q9_K") as caught:
        floor_bits("Q9_K")
    assert "did you mean Q" in (caught.value.hint or "")
    assert all(bits > 1 for bits in USUAL_BITS.values())


def test_a_reserve_is_not_planned_with() -> None:
    whole = planned(40)
    used = whole.machine.used(whole.items)["CUDA0"]
    assert plan(LADDER, machine(used), WISH).target.rung.info.quant == "Q8_0"
    assert plan(LADDER, machine(used - MIB), WISH).target.rung.info.quant == "Q6_K"
