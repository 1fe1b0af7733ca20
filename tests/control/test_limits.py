"""What a controller does where there is little room for a draft, and with times that no clock of
sound mind tells."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.control import AdaptiveController, CostCurve, DrafterFacts, Hints, Offer, Round
from tests.control.simulated import PLAIN, Cost, warm


def _block(floor: int = 1) -> DrafterFacts:
    return DrafterFacts("draft-dflash", 15, floor=floor, reads=True)


def _flat(width: int) -> float:
    return 1.0 + 0.03 * (width - 1)


def _answer(
    controller: AdaptiveController,
    n_tokens: int,
    *,
    stands: Callable[[int], int],
    drafting: float,
    cost: Cost = _flat,
    room: Callable[[int], int],
) -> tuple[int, int]:
    """Say ``n_tokens``; ``room`` is the limit by position. The number of drafts, and that of rounds
    without one where there was room for the longest."""
    at = drafts = idle = 0
    while at < n_tokens:
        drafted = accepted = 0
        seconds = 0.0
        limit = room(at)
        for choice in controller.choose(limit) if limit > 0 else ():
            seconds, drafted = drafting * PLAIN, choice.n_max
            assert controller.judge(choice, Offer(0, [1] * drafted)) == drafted
            accepted = stands(drafted)
        drafts += drafted > 0
        idle += not drafted and limit >= 15
        tokens = [1] * (accepted + 1)
        used = 0 if drafted else None
        controller.record(
            Round(used, drafted, accepted, seconds, PLAIN * cost(drafted + 1), tokens, at)
        )
        at += len(tokens)
    return drafts, idle


@pytest.mark.parametrize(("floor", "drafting"), [(1, 2.0), (4, 0.2)])
def test_the_end_of_an_answer_is_no_reason_to_rest(floor: int, drafting: float) -> None:
    """A block takes its time however short it is, and some are of no use when short. In the last
    tokens there is no room for a draft that pays; the next answer begins as if there had been."""
    controller = AdaptiveController([_block(floor)], warm(_flat))
    rng = random.Random(1)

    def stands(drafted: int) -> int:
        return next((i for i in range(drafted) if rng.random() >= 0.9), drafted)

    _answer(controller, 300, stands=lambda n: n, drafting=0.2, room=lambda at: 15)
    for _ in range(6):
        controller.begin(Hints())
        _, idle = _answer(
            controller, 90, stands=stands, drafting=drafting, room=lambda at: 90 - at - 1
        )
        assert idle <= 4
        assert controller.paused is None


def test_what_never_has_room_is_looked_at_again() -> None:
    """Where all of an answer is cramped, a drafter waits as any other does, and is tried again."""
    controller = AdaptiveController([_block()], warm(_flat))
    _answer(controller, 60, stands=lambda n: n, drafting=1.2, room=lambda at: 15)
    before, _ = _answer(controller, 400, stands=lambda n: 0, drafting=1.2, room=lambda at: 1)
    assert 3 <= before <= 20
    after, _ = _answer(controller, 2000, stands=lambda n: n, drafting=0.2, room=lambda at: 1)
    assert after >= 500


#: Zero, a clock that goes back, one that stands, one that leaps, one that knows nothing.
_odd_times = st.sampled_from(
    [0.0, -1.0, -1e-9, 1e-9, 1e-320, 1e-3, 1.0, 1e9, 1e308, math.inf, math.nan]
)
_facts = st.builds(
    DrafterFacts,
    st.just("d"),
    st.sampled_from([0, 1, 2, 7, 16, 200]),
    floor=st.sampled_from([1, 2, 20]),
    ngram=st.booleans(),
    size=st.sampled_from([1, 12]),
    reads=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    facts=st.lists(_facts, max_size=4),
    times=st.lists(_odd_times, min_size=1, max_size=12),
    warmed=st.lists(_odd_times, max_size=4),
    seed=st.integers(0, 10_000),
)
def test_nothing_a_clock_says_makes_it_fail(
    facts: list[DrafterFacts], times: list[float], warmed: list[float], seed: int
) -> None:
    """No exception, no draft that there is no room for, no number that JSON does not know, and the
    same decisions for the same rounds."""
    first = _hostile(facts, times, warmed, seed)
    assert first == _hostile(facts, times, warmed, seed)


def _hostile(
    facts: list[DrafterFacts], times: list[float], warmed: list[float], seed: int
) -> list[object]:
    rng = random.Random(seed)
    curve = CostCurve()
    if warmed:
        curve.set_curve(0, {1 + 2 * i: time for i, time in enumerate(warmed)})
    controller = AdaptiveController(facts, curve)
    told: list[object] = []
    alive = set(range(len(facts)))
    depth = rng.choice([0, 1000, 70_000])
    for _ in range(60):
        if rng.random() < 0.05:
            controller.begin(Hints(rng.random() < 0.5, rng.choice([0.0, 1.0, math.inf])))
            resting = controller.resting(rng.randint(0, 5000), rng.randint(0, 50))
            for i in range(len(facts)):
                if i not in resting:
                    controller.prefilled(i, rng.choice([0, 50]), rng.choice(times))
        if alive and rng.random() < 0.02:
            controller.drop(dropped := rng.choice(sorted(alive)))
            alive.discard(dropped)
        limit, used, drafted = rng.choice([0, 1, 2, 7, 63, 200]), None, 0
        for choice in controller.choose(limit):
            assert choice.drafter in alive
            assert choice.n_max <= min(limit, facts[choice.drafter].ceiling)
            assert 0.0 <= choice.floor <= 1.0
            tokens = [rng.randint(0, 1) for _ in range(rng.randint(0, choice.n_max))]
            offer = Offer(choice.drafter, tokens, rng.choice([0, 1, 5, 100]))
            drafted = controller.judge(choice, offer)
            assert drafted <= len(tokens)
            if drafted:
                used = choice.drafter
                break
        accepted = rng.randint(0, drafted)
        new = [rng.randint(0, 1) for _ in range(accepted + 1)]
        odd = [rng.choice(times) for _ in range(3)]
        controller.record(Round(used, drafted, accepted, odd[0], odd[1], new, depth, odd[2]))
        depth += len(new)
        told += [used, drafted, controller.paused, json.dumps(controller.cost(), allow_nan=False)]
    assert math.isfinite(controller.wasted_seconds)
    CostCurve.from_record(json.loads(json.dumps(curve.record(), allow_nan=False)))
    return told


@pytest.mark.parametrize("stalled", ["draft", "decode", "prompt"])
@pytest.mark.parametrize("at", [1, 2, 10])
@pytest.mark.parametrize("seconds", [0.1, 1.0, 3600.0])
def test_one_time_that_is_far_off_does_not_end_drafting(
    stalled: str, at: int, seconds: float
) -> None:
    """A machine that sleeps, swaps, or compiles for the first draft: what that took is lost, and
    from the second answer after it on drafts come as if nothing had been."""
    controller = AdaptiveController([DrafterFacts("draft-mtp", 4, reads=True)], warm(_flat))
    n_drafts = 0

    def answer(number: int) -> int:
        nonlocal n_drafts
        position = drafts = 0
        while position < 200:
            drafted = 0
            drafting, decoding = 0.0, PLAIN
            for choice in controller.choose(200 - position):
                drafted, n_drafts = choice.n_max, n_drafts + 1
                late = seconds if n_drafts == at else 0.0
                drafting = 0.2 * PLAIN + late * (stalled == "draft")
                decoding = PLAIN * _flat(drafted + 1) + late * (stalled == "decode")
            accepted = min(drafted, 1 + position % 4)
            tokens = [1] * (accepted + 1)
            used = 0 if drafted else None
            controller.record(Round(used, drafted, accepted, drafting, decoding, tokens, position))
            position += len(tokens)
            drafts += drafted > 0
        return drafts

    counts = []
    for number in range(6):
        controller.begin(Hints())
        if not controller.resting(100, 100):
            late = seconds if (number, stalled) == (at // 2 % 3, "prompt") else 0.0
            controller.prefilled(0, 100, 0.05 + late)
        counts.append(answer(number))
    assert min(counts[-2:]) >= 40
