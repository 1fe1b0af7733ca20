"""Drafters that fail while running: the text is plain decoding's, and the others go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gguf_spec.context import ModelContext, NoSlotError, Run
from gguf_spec.control import Choice, FixedPolicy, Round
from gguf_spec.drafters import stack as stack_module
from gguf_spec.drafters.base import Absent, Draft, Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, SequenceState
from gguf_spec.errors import RunError
from gguf_spec.history import History
from gguf_spec.sampling import Sampler
from gguf_spec.stats import DraftCounts
from tests.test_engine import Oracle, plain, prompt_for, request, run_all
from tests.toy import ToyContext

METHODS = ["begin", "observe", "draft", "accept"]
ERRORS = [
    RunError("broken"), NoSlotError("no room"), ValueError("bad shape"), OSError(5, "device lost"),
    AssertionError(), MemoryError(),
]  # fmt: skip


class Fragile(Oracle):
    """Knows the text, is wrong now and then, and raises in one method at its n-th call."""

    def __init__(
        self, text: Sequence[int], method: str, at: int, error: BaseException, spec_type: str = "x"
    ) -> None:
        super().__init__(text, frozenset({2}), 24)
        self.spec_type = spec_type
        self.calls: list[str] = []
        self._breaks = method, at, error

    def _call(self, name: str) -> None:
        method, at, error = self._breaks
        self.calls.append(name)
        if name == method and self.calls.count(name) == at + 1:
            raise error

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

    def close(self) -> None:
        self._call("close")


def events(sequence: SequenceState) -> list[tuple[str, str]]:
    return [(e.kind, e.spec_type) for e in sequence.progress.spec.events]


class InTurn(FixedPolicy):
    """Asks one drafter after the other, one a round; remembers what it is told."""

    def __init__(self, n: int, n_max: int) -> None:
        super().__init__([n_max] * n)
        self.rounds: list[Round] = []
        self.gone: list[int] = []

    def choose(self, limit: int) -> Sequence[Choice]:
        choices = super().choose(limit)
        turn = len(self.rounds) % max(len(choices), 1)
        return choices[turn : turn + 1]

    def record(self, result: Round) -> None:
        self.rounds.append(result)

    def drop(self, drafter: int) -> None:
        super().drop(drafter)
        self.gone.append(drafter)


@pytest.mark.drops
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_a_failing_drafter_is_left_out(method: str, place: int, n_seq: int, removes: bool) -> None:
    """In each method, at each round, first or second of a stack. ``run_all`` looks at the cache of
    the target."""
    wanted = [
        request(4, temperature=0.7 * (i % 2), prompt=prompt_for(i, 20 + 9 * i), max_tokens=40)
        for i in range(n_seq)
    ]
    expected = [plain(one) for one in wanted]
    texts = [[*one.prompt, *text] for one, text in zip(wanted, expected, strict=True)]
    for at in range(6 if method != "begin" else 1):
        engine = Engine(ToyContext(4, n_seq_max=n_seq, removes_tail=removes))
        fragile = [Fragile(text, method, at, ERRORS[at % len(ERRORS)]) for text in texts]
        policies = [InTurn(2, 3) for _ in texts]
        sequences = []
        for one, text, policy in zip(fragile, texts, policies, strict=True):
            drafters: list[Drafter] = [Oracle(text, frozenset({1}), 24)]
            drafters.insert(place, one)
            sequences.append(engine.open(drafters, policy))
        assert run_all(engine, list(zip(sequences, wanted, strict=True))) == expected
        for one, policy, sequence in zip(fragile, policies, sequences, strict=True):
            assert events(sequence) == [("dropped", "x")]
            # It was closed right after the call that failed, and never called again.
            assert one.calls[-2:] == [method, "close"]
            assert one.calls.count(method) == at + 1
            assert policy.gone == [place]
            assert isinstance(sequence.drafters[place], Absent)
            assert sequence.spec_types == ("oracle",)
            # The other one drafts to the end, under its number. A draft that had been made before
            # ``observe`` or ``accept`` failed is still verified and recorded as the failed one's.
            numbers = [r.drafter for r in policy.rounds if r.drafter is not None]
            assert (
                numbers.count(place)
                == sequence.progress.spec.by_type.get("x", DraftCounts()).num_drafts
            )
            last = max((i for i, n in enumerate(numbers) if n == place), default=-1)
            assert set(numbers[last + 1 :]) == {1 - place}


@pytest.mark.drops
def test_a_failed_drafter_stays_out_of_later_requests() -> None:
    first = request(4, max_tokens=30)
    text = [*first.prompt, *plain(first)]
    second = request(4, prompt=[*text, 7, 8], max_tokens=30)
    whole = [*second.prompt, *plain(second)]
    engine = Engine(ToyContext(4))
    fragile = Fragile(text, "draft", 2, ValueError("bad shape"))
    other = Oracle(text, frozenset(), 24)
    sequence = engine.open([fragile, other], FixedPolicy([3, 3]))
    assert run_all(engine, [(sequence, first)]) == [text[len(first.prompt) :]]
    assert set(sequence.progress.spec.by_type) == {"x", "oracle"}
    (event,) = sequence.progress.spec.events
    assert event.message == "x failed and drafts no more: ValueError('bad shape')"
    assert "bad shape" in event.trace
    assert "in _call" in event.trace
    assert 0 < event.n_tokens < 30
    n_calls = len(fragile.calls)
    other._text = whole
    assert run_all(engine, [(sequence, second)]) == [whole[len(second.prompt) :]]
    assert set(sequence.progress.spec.by_type) == {"oracle"}
    assert sequence.progress.spec.events == []
    assert len(fragile.calls) == n_calls


@pytest.mark.drops
def test_when_all_have_failed_decoding_is_plain() -> None:
    wanted = request(4)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4))
    broken = [Fragile(text, method, 1, RunError("broken"), method) for method in METHODS[1:]]
    policy = InTurn(3, 3)
    sequence = engine.open(broken, policy)
    assert run_all(engine, [(sequence, wanted)])[0] == text[len(wanted.prompt) :]
    assert sorted(policy.gone) == [0, 1, 2]
    assert sequence.spec_types == ()
    assert sequence.progress.spec.steps > sequence.progress.spec.total.num_drafts + 5


class Unclosable(Fragile):
    """Cannot even be closed."""

    def close(self) -> None:
        super().close()
        raise OSError("still in use")


@pytest.mark.drops
def test_a_drafter_that_cannot_be_closed_is_left_out_all_the_same() -> None:
    wanted = request(4)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4))
    sequence = engine.open([Unclosable(text, "accept", 3, RunError("broken"))], FixedPolicy([3]))
    assert run_all(engine, [(sequence, wanted)])[0] == text[len(wanted.prompt) :]
    assert "still in use" in sequence.progress.spec.events[0].trace


class Nonsense(Oracle):
    """Offers what is no draft at all, from the third time on."""

    def __init__(self, text: Sequence[int], offer: object) -> None:
        super().__init__(text, frozenset(), 24)
        self._left, self._offer = 2, offer

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        self._left -= 1
        return super().draft(limit, sampler) if self._left >= 0 else self._offer  # type: ignore[return-value]


@pytest.mark.drops
@pytest.mark.parametrize("offer", [None, Draft(None, "x"), Draft(("a", "b"), "x")], ids=str)  # type: ignore[arg-type]
def test_an_offer_that_is_no_draft_is_a_failure(offer: object) -> None:
    wanted = request(4)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4))
    sequence = engine.open([Nonsense(text, offer)], FixedPolicy([3]))
    assert run_all(engine, [(sequence, wanted)])[0] == text[len(wanted.prompt) :]
    assert events(sequence) == [("dropped", "oracle")]


class Stateful(Fragile):
    """Asks for states, and fails when it is asked how many tokens may be kept."""

    needs = (1,)

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        self._call("reusable")
        return keep


@pytest.mark.drops
def test_failing_before_the_prompt_costs_nothing() -> None:
    first = request(4, max_tokens=30)
    text = [*first.prompt, *plain(first)]
    second = request(4, prompt=[*text, 7, 8], max_tokens=30)
    engine = Engine(ToyContext(4))
    drafter = Stateful(text, "reusable", 1, ValueError("broken"))
    sequence = engine.open([drafter, NgramSimple(2, 9)], FixedPolicy([3, 3]))
    run_all(engine, [(sequence, first)])
    assert run_all(engine, [(sequence, second)])[0] == plain(second)
    assert events(sequence) == [("dropped", "x")]
    assert drafter.calls[-2:] == ["reusable", "close"]
    assert sequence.progress.cached_tokens == len(text) - 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("method", METHODS)
def test_who_wants_to_stop_is_not_held_up(method: str, error: BaseException) -> None:
    wanted = request(4)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4))
    at = 0 if method == "begin" else 2
    sequence = engine.open([Fragile(text, method, at, error)], FixedPolicy([3]))
    with pytest.raises(type(error)):
        run_all(engine, [(sequence, wanted)])
    assert events(sequence) == []
    # And the next request is answered as ever.
    sequence.finish("cancelled")
    again = request(4, prompt=[*wanted.prompt, 5])
    assert run_all(engine, [(sequence, again)])[0] == plain(again)


class Breaks(ToyContext):
    """A draft model's context that fails at its n-th decode, for good."""

    left = 5

    def decode(self, runs: Sequence[Run]) -> None:
        self.left -= 1
        if self.left <= 0:
            raise NoSlotError("the cache has no room for 3 tokens")
        super().decode(runs)


@pytest.mark.drops
def test_a_draft_context_without_room_ends_its_drafts_alone() -> None:
    wanted = request(4)
    engine = Engine(ToyContext(4))
    drafters = [DraftModel(Breaks(4)), DraftModel(ToyContext(4))]
    sequence = engine.open(drafters, FixedPolicy([2, 2]))
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
    assert sequence.progress.spec.events[0].message == (
        "draft-simple failed and drafts no more: the cache has no room for 3 tokens"
    )
    assert sequence.progress.spec.total.acceptance_rate == 1.0
    assert sequence.progress.spec.total.num_drafts > 10


class Slow(Oracle):
    """Takes 1 s to observe, 10 s to draft and 100 s to accept, by the clock that it is given."""

    def __init__(self, text: Sequence[int], clock: list[float]) -> None:
        super().__init__(text, frozenset({1}), 24)
        self._clock = clock

    def observe(self, target: ModelContext, run: Run) -> None:
        self._clock[0] += 1

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        self._clock[0] += 10
        return super().draft(limit, sampler)

    def accept(self, n_accepted: int) -> None:
        self._clock[0] += 100


def test_all_of_a_drafters_time_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(stack_module, "perf_counter", lambda: clock[0])
    wanted = request(4, prompt=prompt_for(4, 40), max_tokens=20)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(ToyContext(4))
    policy = InTurn(1, 3)
    sequence = engine.open([Slow(text, clock)], policy)
    run_all(engine, [(sequence, wanted)])
    # The last round has no room for a draft.
    assert {r.draft_seconds for r in policy.rounds} == {111.0, 101.0}
    rounds = sum(r.draft_seconds for r in policy.rounds)
    # Three chunks of the prompt, and the first token.
    assert sequence.timings().draft_seconds == rounds + 3 + 100


def test_a_draft_that_was_dropped_for_want_of_room_is_still_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(stack_module, "perf_counter", lambda: clock[0])
    wanted = request(2)
    engine = Engine(ToyContext(2))
    engine.target.full_when_wider_than = 1  # type: ignore[attr-defined]
    policy = InTurn(1, 3)
    sequence = engine.open([Slow([*wanted.prompt, *plain(wanted)], clock)], policy)
    run_all(engine, [(sequence, wanted)])
    assert {(r.drafter, r.n_drafted) for r in policy.rounds} == {(None, 0)}
    assert policy.rounds[0].draft_seconds == 111.0
