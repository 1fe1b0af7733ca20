"""The controller in invented texts: what it uses, what it leaves alone, and what it says."""

from __future__ import annotations

import pytest

from gguf_spec.control import AdaptiveController, CostCurve, DrafterFacts, Hints, Offer, Round
from tests.control.replay import CURVES, cost_of
from tests.control.simulated import (
    PLAIN,
    Copying,
    Cost,
    Neural,
    best_speed,
    controller_of,
    simulate,
    warm,
)


def linear(slope: float) -> Cost:
    return lambda width: 1.0 + slope * (width - 1)


GPU, EXPERTS, CPU = linear(0.1 / 3), linear(0.2), linear(0.57)


def always(chance: float) -> Neural:
    return Neural(lambda n: chance)


@pytest.mark.parametrize("cost", [GPU, EXPERTS], ids=["gpu", "experts"])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.5, 0.7, 0.9])
def test_nine_tenths_of_the_best_fixed_length(cost: Cost, chance: float) -> None:
    drafter = always(chance)
    trace = simulate(controller_of([drafter], warm(cost)), [drafter], cost, 3000)
    assert trace.speed >= 0.9 * best_speed(drafter, cost, chance)
    assert trace.worst <= 8.0


@pytest.mark.parametrize("cost", [GPU, EXPERTS, CPU], ids=["gpu", "experts", "cpu"])
def test_a_random_drafter_costs_next_to_nothing(cost: Cost) -> None:
    drafters = [Copying(lambda n: 0.02), Neural(lambda n: 0.02, 0.3, 0.3)]
    trace = simulate(controller_of(drafters, warm(cost)), drafters, cost, 1024)
    assert trace.steps - trace.n_tokens <= 0.03 * trace.steps + 8.0


@pytest.mark.parametrize("length", [2, 3, 4])
def test_the_first_draft_is_as_long_as_is_said(length: int) -> None:
    facts = [DrafterFacts("draft-mtp", 8)]
    controller = AdaptiveController(facts, warm(GPU), first_length=length)
    trace = simulate(controller, [always(0.9)], GPU, 200)
    lengths = [k for _, _, k in trace.rounds if k]
    assert lengths[0] == length
    assert max(lengths) > 4, "what is measured decides"


def test_a_drafter_that_becomes_good_again_is_used_within_512_tokens() -> None:
    for bad in (200, 1000, 3000):
        drafter = Neural(lambda n, bad=bad: 0.0 if n < bad else 0.9)  # type: ignore[misc]
        controller = controller_of([drafter], warm(GPU))
        trace = simulate(controller, [drafter], GPU, bad + 1024)
        after = [k for at, _, k in trace.rounds if bad + 512 <= at]
        assert sum(k > 2 for k in after) > 0.8 * len(after), bad


@pytest.mark.parametrize("costs", sorted(CURVES))
@pytest.mark.parametrize("bad", [300, 512, 1500])
def test_also_where_only_the_best_drafts_pay(costs: str, bad: int) -> None:
    cost = cost_of(costs)
    drafter = Neural(lambda n: float(n >= bad), 0.05, 0.05)
    trace = simulate(controller_of([drafter], warm(cost)), [drafter], cost, bad + 1024)
    after = [k for at, _, k in trace.rounds if bad + 512 <= at]
    assert sum(k > 0 for k in after) > 0.8 * len(after)


def test_prose_then_code_then_prose() -> None:
    chance = [0.1, 0.98, 0.1]
    drafters = [Copying(lambda n: chance[n // 500])]
    trace = simulate(controller_of(drafters, warm(CPU)), drafters, CPU, 1500)
    before, code, after = (trace.drafted_in(n, n + 500) for n in (0, 500, 1000))
    assert code > 5 * max(before, after)
    assert trace.worst <= 8.0
    # Of code, drafts of 16 yield 14.6 tokens in the time of 10.1.
    assert trace.speed > 0.95 * 1500 / (1000 + 500 * 10.1 / 14.6)


def test_of_two_neural_drafters_the_better_one_drafts() -> None:
    drafters = [
        Neural(lambda n: 0.5, name="draft-simple"),
        Neural(lambda n: 0.85, name="draft-mtp"),
    ]
    trace = simulate(controller_of(drafters, warm(GPU)), drafters, GPU, 1500)
    assert trace.drafted_in(300, 1500, 1) > 5 * trace.drafted_in(300, 1500, 0)


def test_copies_go_before_a_head_where_they_are_better_and_not_elsewhere() -> None:
    drafters = [Copying(lambda n: 0.995 if n >= 700 else 0.05), Neural(lambda n: 0.7)]
    trace = simulate(controller_of(drafters, warm(GPU)), drafters, GPU, 1400)
    assert trace.drafted_in(100, 700, 1) > 10 * trace.drafted_in(100, 700, 0)
    assert trace.drafted_in(800, 1400, 0) > trace.drafted_in(800, 1400, 1)


def recorded(seed: int) -> list[tuple[int, int | None, int]]:
    drafters = [Copying(lambda n: 0.9 if n % 200 > 100 else 0.3), Neural(lambda n: 0.6)]
    trace = simulate(controller_of(drafters, warm(GPU)), drafters, GPU, 800, seed=seed)
    return trace.rounds


def test_the_same_trace_gives_the_same_choices() -> None:
    assert recorded(5) == recorded(5)
    assert recorded(5) != recorded(6)


def test_a_machine_that_slows_down_is_noticed_and_not_blamed_on_drafts() -> None:
    drafter = always(0.8)
    controller = controller_of([drafter], warm(GPU))
    simulate(controller, [drafter], GPU, 600)
    slow: Cost = lambda width: 2.0 * GPU(width)  # noqa: E731
    late = simulate(controller, [Neural(drafter.chance, 0.1, 0.1)], slow, 1500)
    assert late.drafted_in(700, 1500) > 800
    for width, ratio in controller.cost().items():
        assert ratio == pytest.approx(GPU(int(width)), rel=0.35)


def test_reasons_are_in_words_and_go_away() -> None:
    drafter = Neural(lambda n: 0.05 if n < 300 else 0.95)
    controller = controller_of([drafter], warm(EXPERTS))
    simulate(controller, [drafter], EXPERTS, 250)
    assert controller.paused is not None
    assert controller.paused.startswith("draft-mtp pauses: a draft of ")
    assert "plain tokens" in controller.paused
    simulate(controller, [always(0.95)], EXPERTS, 800)
    assert controller.paused is None


def test_a_fast_mixture_of_experts_begins_with_a_pause_that_measurement_overrides() -> None:
    drafter = Neural(lambda n: 0.95)
    for experts, base in ((True, 0.005), (True, 0.05), (False, 0.005)):
        curve = CostCurve()
        curve.set_curve(0, {1: base, 4: 1.1 * base})
        controller = controller_of([drafter], curve, Hints(experts=experts))
        waits = experts and base < 0.01
        assert (controller.paused is not None) is waits
        if waits:
            assert "200 tokens/s" in str(controller.paused)
    curve = warm(GPU)
    curve.base = 0.005
    controller = controller_of([drafter], curve, Hints(experts=True))
    trace = simulate(controller, [drafter], lambda width: 0.5 * GPU(width), 600)
    assert trace.drafted_in(0, 60) == 0
    assert trace.drafted_in(100, 600) > 300


def test_a_dropped_drafter_is_not_asked_again() -> None:
    drafters = [Copying(lambda n: 0.9), always(0.9)]
    controller = controller_of(drafters, warm(GPU))
    simulate(controller, drafters, GPU, 100)
    controller.drop(1)
    controller.record(Round(1, 2, 1, 0.01, 0.01, [1, 1], 100))
    assert {choice.drafter for choice in controller.choose(10)} == {0}
    controller.drop(0)
    controller.drop(0)
    assert not controller.choose(10)
    controller.record(Round(None, 0, 0, 0.0, 0.01, [1], 102))
    controller.begin(Hints())
    assert not controller.choose(10)


def test_never_more_than_the_limit_nor_less_than_the_floor() -> None:
    facts = [DrafterFacts("ngram-simple", 48, 4, ngram=True), DrafterFacts("draft-mtp", 6, 3)]
    controller = AdaptiveController(facts, warm(GPU))
    for limit in (1, 2, 3, 5, 9):
        for choice in controller.choose(limit):
            assert choice.n_max <= limit
            offer = Offer(choice.drafter, [1] * min(limit, choice.n_max), 64)
            kept = controller.judge(choice, offer)
            assert kept == 0 or choice.n_min <= kept <= limit


def test_without_any_measurement_the_first_step_is_plain() -> None:
    drafters = [Copying(lambda n: 1.0), always(1.0)]
    controller = controller_of(drafters, CostCurve())
    trace = simulate(controller, drafters, GPU, 200)
    assert trace.rounds[0] == (0, None, 0)
    assert trace.speed > 2.0


def test_a_drafter_that_offers_nothing_is_let_rest() -> None:
    controller = AdaptiveController([DrafterFacts("draft-mtp", 4, reads=True)], warm(EXPERTS))
    asked = 0
    for position in range(300):
        asked += bool(controller.choose(10))
        spent = 0.5 * PLAIN if controller.choose(10) else 0.0
        controller.record(Round(None, 0, 0, spent, PLAIN, [1], position))
    assert 0 < asked < 30
    assert controller.paused is not None


def requests_of(
    controller: AdaptiveController, drafter: Neural, reading: float, n_prompt: int, count: int
) -> list[bool]:
    """Requests with a long prompt and an answer of 60 tokens; in which of them it rested."""
    rested = []
    for _ in range(count):
        controller.begin(Hints())
        resting = 0 in controller.resting(n_prompt, n_prompt)
        rested.append(resting)
        if not resting:
            controller.prefilled(0, n_prompt, reading * n_prompt)
        trace = simulate(controller, [drafter], GPU, 60)
        assert not (resting and trace.drafted_in(0, 60))
    return rested


def test_who_takes_longer_to_read_than_it_wins_rests_and_gets_another_chance() -> None:
    drafter = always(0.8)
    controller = controller_of([drafter], warm(GPU))
    rested = requests_of(controller, drafter, 0.1 * PLAIN, 5000, 12)
    assert rested[0] is False
    assert rested[1] is True
    assert 2 <= rested.count(False) <= 5
    assert rested[-1] is True
    assert "reading the prompt would take" in str(controller.paused)
    assert "usual answer of 6" in str(controller.paused)
    cheap = controller_of([drafter], warm(GPU))
    assert not any(requests_of(cheap, drafter, 0.0001 * PLAIN, 500, 6))


@pytest.mark.parametrize("n_prompt", [20, 200, 2000])
def test_a_draft_model_is_tried_however_long_the_prompt_is(n_prompt: int) -> None:
    """Reading it is weighed against whole answers, as for a head that reads along."""
    drafter = Neural(lambda n: 0.9, reads=False, reading=0.005, name="draft-simple")
    controller = controller_of([drafter], warm(GPU))
    trace = simulate(controller, [drafter], GPU, 150, n_prompt=n_prompt)
    assert trace.drafted_in(0, 150) > 100
    assert controller.wasted_seconds <= 8.0 * PLAIN, "the prompt is no part of it"


def test_a_draft_model_rests_where_reading_the_prompt_takes_longer_than_it_wins() -> None:
    drafter = Neural(lambda n: 0.8, reads=False, reading=0.05, name="draft-simple")
    controller = controller_of([drafter], warm(GPU))
    drafted = []
    for _ in range(8):
        controller.begin(Hints())
        trace = simulate(controller, [drafter], GPU, 60, n_prompt=5000)
        drafted.append(trace.drafted_in(0, 60) > 0)
    assert drafted[0] is True
    assert drafted[1] is False
    assert 2 <= drafted.count(True) <= 4, "and gets another chance"


def test_a_draft_model_with_a_prompt_that_becomes_good_again_is_used() -> None:
    drafter = Neural(lambda n: float(n >= 512), 0.0, 0.1, reads=False, name="draft-simple")
    controller = controller_of([drafter], warm(GPU))
    trace = simulate(controller, [drafter], GPU, 1280, n_prompt=60)
    assert trace.drafted_in(512, 1024) > 0
    assert trace.drafted_in(1024, 1280) > 100


def test_what_was_missed_of_the_answer_is_read_only_when_the_budget_allows_it() -> None:
    for reading, read in ((0.005, True), (0.5, False)):
        drafter = Neural(
            lambda n: float(n >= 64), reads=False, reading=reading, name="draft-simple"
        )
        controller = controller_of([drafter], warm(GPU))
        trace = simulate(controller, [drafter], GPU, 300, n_prompt=20)
        assert (trace.drafted_in(64, 300) > 0) is read, reading


def test_rollback_makes_drafts_dearer() -> None:
    drafter = always(0.6)
    free = simulate(controller_of([drafter], warm(GPU)), [drafter], GPU, 1000)
    dear_controller = controller_of([drafter], warm(GPU))
    dear = simulate(dear_controller, [drafter], GPU, 1000, rollback=1.5)
    assert free.speed > 1.3
    assert dear.drafted_in(200, 1000) < 0.1 * free.drafted_in(200, 1000)
    assert dear.worst <= 8.0


def test_the_floor_of_confidence_is_what_a_token_more_costs() -> None:
    drafter = Neural(lambda n: 0.9, 0.05, 0.1, ceiling=4)
    controller = controller_of([drafter], warm(EXPERTS))
    trace = simulate(controller, [drafter], EXPERTS, 400)
    choices = [c for c in controller.choose(50) if c.drafter == 0]
    assert choices
    speed = trace.speed
    # Another row costs 0.2 plain steps and drafting it 0.1, in which plain text would have gone on.
    assert choices[0].floor == pytest.approx(0.3 * speed, rel=0.3)
