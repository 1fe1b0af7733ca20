"""What the stack tells a controller, and does for it: rest, reading, rollback, floors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from gguf_spec import engine as engine_module
from gguf_spec.context import ModelContext, Run
from gguf_spec.control import (
    AdaptiveController,
    Choice,
    CostCurve,
    DrafterFacts,
    FixedPolicy,
    Round,
)
from gguf_spec.drafters import stack as stack_module
from gguf_spec.drafters.base import Draft, Draws, Unsure
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.engine import Engine
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams
from tests.test_engine import Oracle, plain, prompt_for, request, run_all
from tests.toy import ToyContext


class Telling(FixedPolicy):
    """Remembers what it is told; lets drafters rest as it was told to."""

    def __init__(self, n: int, resting: Sequence[frozenset[int]] = ()) -> None:
        super().__init__([3] * n)
        self.rounds: list[Round] = []
        self.read: list[tuple[int, int, float]] = []
        self.prompts: list[tuple[int, int]] = []
        self._resting = list(resting)

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        self.prompts.append((n_prompt, n_new))
        return self._resting.pop(0) if self._resting else frozenset()

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        self.read.append((drafter, n_tokens, seconds))

    def record(self, result: Round) -> None:
        self.rounds.append(result)


class Watched(Oracle):
    """Takes a second for each thing that it is asked to do."""

    needs = (1,)

    def __init__(self, text: Sequence[int], clock: list[float]) -> None:
        super().__init__(text, frozenset(), 24)
        self.clock, self.calls = clock, list[str]()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.clock[0] += 1.0

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        self._call("reusable")
        return keep

    def begin(self, history: History) -> None:
        self._call("begin")
        super().begin(history)

    def observe(self, target: ModelContext, run: Run) -> None:
        self._call("observe")

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        self._call("draft")
        return super().draft(limit, sampler)

    def accept(self, n_accepted: int) -> None:
        self._call("accept")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(stack_module, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(engine_module, "perf_counter", lambda: clock[0])
    return clock


def test_who_rests_is_asked_nothing_in_that_generation_and_takes_part_in_the_next(
    clock: list[float],
) -> None:
    first = request(4, max_tokens=20)
    text = [*first.prompt, *plain(first)]
    second = request(4, prompt=[*text, 7], max_tokens=20)
    engine = Engine(ToyContext(4))
    policy = Telling(2, [frozenset([0]), frozenset()])
    drafters = [Watched(text, clock), Watched(text, clock)]
    sequence = engine.open(drafters, policy)
    assert run_all(engine, [(sequence, first)])[0] == text[len(first.prompt) :]
    assert drafters[0].calls == []
    assert {r.drafter for r in policy.rounds if r.n_drafted} == {1}
    assert run_all(engine, [(sequence, second)])[0] == plain(second)
    assert set(drafters[0].calls) == {"reusable", "begin", "observe", "draft", "accept"}
    assert policy.prompts == [(len(first.prompt),) * 2, (len(text) + 1, 2)]


def test_reading_the_prompt_is_told_by_drafter(clock: list[float]) -> None:
    wanted = request(4, prompt=prompt_for(4, 40), max_tokens=20)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4, n_ubatch=16))
    policy = Telling(2)
    sequence = engine.open([Watched(text, clock), Watched(text, clock)], policy)
    run_all(engine, [(sequence, wanted)])
    assert policy.read == [(0, 40, 3.0), (1, 40, 3.0)], "three chunks"


class Checkpoints(ToyContext):
    """Takes 10 s to save and 100 s to restore."""

    clock: list[float]

    def save(self, seq: int) -> object:
        self.clock[0] += 10.0
        return super().save(seq)

    def restore(self, seq: int, checkpoint: object) -> None:
        self.clock[0] += 100.0
        super().restore(seq, checkpoint)


def test_a_checkpoint_and_going_back_to_it_are_told_with_the_next_round(
    clock: list[float],
) -> None:
    wanted = request(4, max_tokens=30)
    text = [*wanted.prompt, *plain(wanted)]
    target = Checkpoints(4, removes_tail=False)
    target.clock = clock
    engine = Engine(target)
    policy = Telling(1)
    sequence = engine.open([Oracle(text, frozenset({1}), 24)], policy)
    assert run_all(engine, [(sequence, wanted)])[0] == text[len(wanted.prompt) :]
    rounds = policy.rounds
    assert rounds[0].rollback_seconds == 0.0
    for before, after in pairwise(rounds):
        kept = before.n_accepted == before.n_drafted
        assert after.rollback_seconds == (10.0 * bool(before.n_drafted) + 100.0 * (not kept))
    assert rounds[-1].n_drafted == 0 or rounds[-1].n_accepted < rounds[-1].n_drafted
    before = len(rounds)
    run_all(engine, [(sequence, request(4, prompt=[*text, 3], max_tokens=5))])
    assert rounds[before].rollback_seconds == 0.0, "what came before is another text's"


def logits_of(*probabilities: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.log(np.array(probabilities, np.float32))


GREEDY = Sampler(SamplingParams(temperature=0.0))


@pytest.mark.parametrize(
    ("floor", "n"), [(0.0, 5), (0.3, 5), (0.4, 4), (0.5, 3), (0.65, 1), (0.9, 1), (1.0, 1)]
)
def test_a_draft_ends_where_the_product_of_probabilities_falls_below_the_floor(
    floor: float, n: int
) -> None:
    """With 0.8 for each: 0.8, 0.64, 0.51, 0.41, 0.33. The first token is drafted in any case."""
    draws = Draws(History([1]), GREEDY, 0.0, floor)
    while len(draws.tokens) < 5 and draws.next(logits_of(0.8, 0.1, 0.1)) is not None:
        pass
    assert len(draws.tokens) == n


def test_what_was_drawn_by_own_chance_is_not_cut() -> None:
    own = Sampler(SamplingParams(temperature=1.0, seed=3)).for_drafter("own")
    draws = Draws(History([1]), own, 0.0, 0.99)
    for _ in range(6):
        assert draws.next(logits_of(0.4, 0.3, 0.3)) is not None
    assert len(draws.draft("x").drawn) == 6


class Floor(FixedPolicy):
    """Hands a floor to the drafter."""

    floor = 0.0

    def choose(self, limit: int) -> Sequence[Choice]:
        return [choice._replace(floor=self.floor) for choice in super().choose(limit)]


def test_the_floor_reaches_the_drafter_round_by_round() -> None:
    wanted = request(4, max_tokens=40)
    lengths = []
    for floor in (0.0, 0.9999):
        engine = Engine(ToyContext(4))
        policy = Floor([5])
        policy.floor = floor
        drafter = DraftModel(ToyContext(4, blur=0.2))
        assert isinstance(drafter, Unsure)
        sequence = engine.open([drafter], policy)
        assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
        counts = sequence.progress.spec.total
        lengths.append(counts.num_draft_tokens / counts.num_drafts)
    assert lengths[0] > 3
    assert lengths[1] == 1.0


def test_an_adaptive_controller_in_an_engine_leaves_the_text_alone() -> None:
    for seed in range(4):
        wanted = request(seed, max_tokens=60, temperature=0.7 * (seed % 2))
        for removes in (True, False):
            engine = Engine(ToyContext(seed, removes_tail=removes))
            curve = CostCurve()
            curve.set_curve(0, {1: 1e-4, 16: 1.2e-4})
            facts = [DrafterFacts("oracle", 5, reads=True), DrafterFacts("draft-simple", 4)]
            controller = AdaptiveController(facts, curve)
            text = [*wanted.prompt, *plain(wanted)]
            drafters = [Oracle(text, frozenset({2}), 24), DraftModel(ToyContext(seed, blur=0.3))]
            sequence = engine.open(drafters, controller)
            assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
