"""Every pair in a head's cache against the text, on toy models: no state may be another token's."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.context import Run
from gguf_spec.control import Choice, FixedPolicy
from gguf_spec.drafters.hidden import HeadDrafter, RowBuffer
from gguf_spec.engine import Engine, SequenceState
from gguf_spec.errors import RunError
from gguf_spec.history import History
from tests.test_engine import Hostile, plain, prompt_for, request, run_all
from tests.toy import END, ToyContext

N_MAX = 5
ROLLBACKS = [None, 0, 2]
IDS = ["removes", "checkpoints", "snapshots"]


def state_of(prefix: Sequence[int]) -> tuple[float, float]:
    """What a toy target's state is after ``prefix``: nothing else has the same."""
    return float(len(prefix)), float(zlib.crc32(bytes(prefix)) % 65521)


class ToyTarget(ToyContext):
    """A target with states; ``n_rollback`` is None where any tail can be removed."""

    def __init__(self, seed: int, n_rollback: int | None, **options: Any) -> None:
        super().__init__(seed, removes_tail=n_rollback is None, **options)
        self.n_rollback = n_rollback or 0
        self._states: list[tuple[float, float]] = []
        self._left: dict[int, int] = {}

    def decode(self, runs: Sequence[Run]) -> None:
        super().decode(runs)
        self._states = [
            state_of(self.cache[run.seq][: run.start + i + 1])
            for run in runs
            for i in range(len(run.tokens))
        ]
        self._left |= {run.seq: min(len(run.tokens) - 1, self.n_rollback) for run in runs}

    def remove(self, seq: int, start: int) -> bool:
        back = len(self.cache[seq]) - start
        if 0 < back <= self._left.get(seq, 0) and not self.removes_tail:
            self._left[seq] = 0
            del self.cache[seq][start:]
            return True
        return super().remove(seq, start)

    def states(
        self, layers: Sequence[int], row: int, n: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        assert layers == (7,)
        assert 0 <= row <= row + n <= len(self._states)
        states = np.array(self._states[row : row + n], np.float32)
        if out is None:
            return states
        out[:] = states
        return out


class ToyHead:
    """A head's context: keeps its pairs, and says what the target would say, a quarter wrong."""

    def __init__(self, seed: int, shift: int, *, n_ctx: int = 256, n_ubatch: int = 8) -> None:
        self.n_ctx, self.n_ubatch = n_ctx, n_ubatch
        self.pairs: list[tuple[int, tuple[float, ...]]] = []
        self.first = 0
        self.fails = 0
        self._seed, self._shift = seed, shift
        self._outputs = 0

    def decode_states(
        self, run: Run, states: NDArray[np.float32], *, with_tokens: bool = True
    ) -> None:
        assert with_tokens
        if not self.pairs:
            self.first = run.start  # an empty cache may begin anywhere
        assert run.start == self.first + len(self.pairs), "a gap"
        assert 0 < len(run.tokens) == len(states) <= self.n_ubatch
        assert run.n_outputs in (0, len(run.tokens))
        assert run.start + len(run.tokens) <= self.n_ctx
        self.fails -= 1
        if self.fails == 0:
            raise RunError("failed")
        rows = [tuple(map(float, row)) for row in states]
        self.pairs += zip(run.tokens, rows, strict=True)
        self._outputs = run.n_outputs

    def logits(self, row: int) -> NDArray[np.float32]:
        assert row < self._outputs
        tokens = [1] * self._shift + [token for token, _ in self.pairs]
        oracle = ToyContext(self._seed, blur=0.4, n_ubatch=512, n_ctx=512)
        oracle.decode([Run(0, 0, tokens, 1)])
        return oracle.logits(len(tokens) - 1)

    def own_state(self, row: int) -> NDArray[np.float32]:
        assert row < self._outputs
        return np.array([-1.0, -1.0], np.float32)

    def draft_on(self, seq: int, position: int, limit: int, choose: Any, stride: int = 1) -> None:
        for at in range(position, position + limit):
            token = choose(self.logits(0))
            if token is None or at + 1 == position + limit or self.is_end(token):
                return
            self.decode_states(Run(seq, at, [token], 1), self.own_state(0).reshape(1, -1))

    def is_end(self, token: int) -> bool:
        return token == END

    def remove(self, seq: int, start: int) -> bool:
        assert start > self.first, "of a cache that becomes empty, clear it"
        del self.pairs[start - self.first :]
        return True

    def clear(self, seq: int) -> None:
        self.pairs.clear()


class ToyDrafter(HeadDrafter):
    """A head's drafter that knows whether it drafted from all that it should know."""

    spec_type = "toy"

    def __init__(self, head: ToyHead, shift: int) -> None:
        type(self).shift = shift
        super().__init__(head, (7,))
        self.head = head
        self.asked = self.offered = 0

    def draft(self, limit: int, sampler: Any) -> Any:
        draft = super().draft(limit, sampler)
        self.asked += 1
        self.offered += bool(draft.tokens)
        return draft

    def check(self, history: Sequence[int]) -> None:
        assert self._first_pair + len(self.head.pairs) == self._n_pairs
        assert self.head.first == self._first_pair or not self.head.pairs
        for e, (token, state) in enumerate(self.head.pairs, self._first_pair):
            place = e + self.shift
            assert token == history[place]
            assert state == (state_of(history[:place]) if place else (0.0, 0.0))
        rows = self._rows
        for r in range(rows.start, rows.end):
            assert tuple(rows.get(r, r + 1)[0]) == state_of(history[: r + 1])


class Moody(FixedPolicy):
    """A policy that asks this one, that one, both, or nobody, and now and then lets the head rest
    for a whole turn."""

    def __init__(self, seed: int) -> None:
        super().__init__([N_MAX] * 2)
        self._random = random.Random(seed)

    def choose(self, limit: int) -> Sequence[Choice]:
        asked = self._random.choice([(), (0,), (1,), (0, 1), (1,)])
        return [Choice(i, min(limit, N_MAX)) for i in asked]

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        self.rests = self._random.random() < 0.25
        return frozenset([1]) if self.rests else frozenset()


def turn(
    engine: Engine, sequence: SequenceState, drafter: ToyDrafter, wanted: Any, stop: int | None
) -> list[int]:
    text: list[int] = []
    steps = engine.generate(sequence, wanted)
    for step in steps:
        text += step.tokens
        if not getattr(sequence.stack.controller, "rests", False):
            drafter.check(sequence.history)
        if stop is not None and len(text) >= stop:
            break
    steps.close()  # type: ignore[attr-defined]
    return text


class Rebuilt(ToyDrafter):
    """A head that is rebuilt now and then: for no reason, which must do no harm."""

    def accept(self, n_accepted: int) -> None:
        super().accept(n_accepted)
        if random.Random(len(self._history)).random() < 0.15:
            self.rebuild()
            assert self.head.pairs == []
            self.rebuilt = True

    rebuilt = False


@pytest.mark.parametrize("kind", [ToyDrafter, Rebuilt])
@pytest.mark.parametrize("shift", [0, 1], ids=["mtp", "eagle3"])
@pytest.mark.parametrize("n_rollback", ROLLBACKS, ids=IDS)
def test_pairs_are_right_whatever_happens(
    n_rollback: int | None, shift: int, kind: type[ToyDrafter]
) -> None:
    """Turns that go on, turn off or start anew; answers that are stopped or cut; other drafters'
    rounds; rebuilt caches; and in the end the head has always had what it needed."""
    rebuilt: list[bool] = []
    for seed in range(25):
        r = random.Random(seed)
        drafter = kind(ToyHead(seed, shift, n_ubatch=r.choice([1, 2, 5, 8, 64])), shift)
        engine = Engine(ToyTarget(seed, n_rollback, n_ubatch=r.choice([1, 4, 16])))
        sequence = engine.open([Hostile(seed, 24), drafter], Moody(seed))
        prompt = [1, *prompt_for(seed)]
        for _ in range(4):
            wanted = request(seed, temperature=r.choice([0.0, 0.8]), prompt=prompt, max_tokens=24)
            stop = r.choice([None, None, r.randrange(1, 20)])
            text = turn(engine, sequence, drafter, wanted, stop)
            assert text == plain(wanted)[: len(text)]
            if r.random() < 0.3:
                sequence.truncate(r.randrange(len(text) + 1))
            whole = [t for t in [*prompt, *text] if t != END]
            keep = r.choice([len(whole), r.randrange(1, len(whole)), len(prompt), 1])
            prompt = [*whole[:keep], *(r.randrange(1, 24) for _ in range(r.randrange(1, 9)))]
        assert drafter.offered == drafter.asked
        rebuilt.append(getattr(drafter, "rebuilt", False))
    # A head that rests in most of its turns may not come to it.
    assert sum(rebuilt) > 20 if kind is Rebuilt else not any(rebuilt)


@pytest.mark.parametrize("shift", [0, 1], ids=["mtp", "eagle3"])
def test_rounds_of_others_cost_a_decode_per_batch(shift: int) -> None:
    head = ToyHead(1, shift, n_ubatch=16)
    drafter = ToyDrafter(head, shift)
    engine = Engine(ToyTarget(1, None))
    sequence = engine.open([Hostile(1, 24), drafter], FixedPolicy([N_MAX, 0]))
    turn(engine, sequence, drafter, request(1, prompt=[1, *prompt_for(1)], max_tokens=40), None)
    assert drafter._n_pairs >= 32
    assert drafter._rows.end - drafter._rows.start < 16


@pytest.mark.drops
@pytest.mark.parametrize("shift", [0, 1], ids=["mtp", "eagle3"])
def test_a_failed_head_is_left_out_with_an_empty_cache(shift: int) -> None:
    head = ToyHead(1, shift)
    drafter = ToyDrafter(head, shift)
    engine = Engine(ToyTarget(1, None))
    sequence = engine.open([drafter], FixedPolicy([N_MAX]))
    wanted = request(1, prompt=[1, *prompt_for(1)], max_tokens=24)
    head.fails = 20
    for n_events in (1, 0):
        assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
        assert len(sequence.progress.spec.events) == n_events
        assert head.pairs == []
    assert drafter.offered > 0


@pytest.mark.parametrize("shift", [0, 1], ids=["mtp", "eagle3"])
def test_a_rebuilt_head_goes_on_from_the_newest_state(shift: int) -> None:
    """And one that has not even that, from the next."""
    for lost in (False, True):
        drafter = ToyDrafter(ToyHead(1, shift), shift)
        engine = Engine(ToyTarget(1, None))
        sequence = engine.open([drafter], FixedPolicy([N_MAX]))
        steps = engine.generate(sequence, request(1, prompt=[1, *prompt_for(1)], max_tokens=40))
        for n, _ in enumerate(steps):
            drafter.check(sequence.history)
            if n == 4:
                if lost:
                    drafter._rows = RowBuffer()
                drafter.rebuild()
                place, asked, offered = len(sequence.history), drafter.asked, drafter.offered
        assert drafter.asked - asked - (drafter.offered - offered) == int(lost)
        first = place - 1 - shift + int(lost)
        assert drafter.head.first == drafter._first_pair == first
        # The next prompt may turn off before it.
        for keep in (place + 2, place - 5):
            follow_up = [*sequence.history[:keep], 7, 8, 9, 10]
            wanted = request(1, prompt=follow_up, max_tokens=20)
            drafter.asked = drafter.offered = 0
            assert turn(engine, sequence, drafter, wanted, None) == plain(wanted)
            assert drafter.offered == drafter.asked > 0
            assert sequence.progress.cached_tokens >= keep - 1


@pytest.mark.parametrize("shift", [0, 1], ids=["mtp", "eagle3"])
def test_a_text_that_is_longer_than_the_heads_context(shift: int) -> None:
    drafter = ToyDrafter(ToyHead(1, shift, n_ctx=30, n_ubatch=4), shift)
    engine = Engine(ToyTarget(1, None))
    sequence = engine.open([drafter], FixedPolicy([N_MAX]))
    wanted = request(1, prompt=[1, *prompt_for(1)], max_tokens=40)
    assert turn(engine, sequence, drafter, wanted, None) == plain(wanted)
    assert 0 < drafter.offered < drafter.asked
    # The cache is of use to a long text, which this head cannot follow, all the same.
    assert drafter.reusable(sequence.history, 50) == 50
    shorter = request(1, prompt=[1, *prompt_for(1)[:9]], max_tokens=8)
    drafter.asked = drafter.offered = 0
    assert turn(engine, sequence, drafter, shorter, None) == plain(shorter)
    assert drafter.offered == drafter.asked > 0


def test_a_prompt_may_be_any_sequence() -> None:
    """Not a list alone: what is kept of the text before is found all the same."""
    drafter = ToyDrafter(ToyHead(1, 1), 1)
    engine = Engine(ToyTarget(1, None))
    sequence = engine.open([drafter], FixedPolicy([N_MAX]))
    for prompt in ((1, *prompt_for(1)), (1, *prompt_for(1)), (1, *prompt_for(1)[:9], 5)):
        wanted = request(1, prompt=prompt, max_tokens=20)  # type: ignore[arg-type]
        assert turn(engine, sequence, drafter, wanted, None) == plain(wanted)
    assert sequence.progress.cached_tokens >= 9
    assert drafter.offered == drafter.asked > 0


def test_a_head_that_saw_nothing_drafts_nothing() -> None:
    drafter = ToyDrafter(ToyHead(1, 1), 1)
    sampler: Any = request(1).sampler
    for history in (History(), History([1]), History([1, 2, 3])):
        drafter.begin(history)
        assert drafter.draft(4, sampler).tokens == []
    assert drafter.head.pairs == []


def test_row_buffer() -> None:
    def rows(*values: int) -> NDArray[np.float32]:
        return np.array([[value] for value in values], np.float32)

    buffer = RowBuffer()
    buffer.put(0, rows(0, 1, 2))
    buffer.put(3, rows(3))
    buffer.put(2, rows(20, 30, 40))
    assert (buffer.start, buffer.end) == (0, 5)
    assert buffer.get(0, 5).ravel().tolist() == [0, 1, 20, 30, 40]
    buffer.drop(3)
    assert (buffer.start, buffer.end) == (3, 5)
    assert buffer.get(3, 5).ravel().tolist() == [30, 40]
    buffer.cut(4)
    assert (buffer.start, buffer.end) == (3, 4)
    buffer.cut(1)
    assert (buffer.start, buffer.end) == (3, 3)
    buffer.put(7, rows(7))
    assert (buffer.start, buffer.end) == (7, 8)
    buffer.drop(99)
    assert (buffer.start, buffer.end) == (8, 8)
    buffer.put(2, rows(2, 3))
    assert buffer.get(2, 4).ravel().tolist() == [2, 3]


def test_room_in_a_row_buffer() -> None:
    """Rows that are written into its room, among others and over many drops, against a list."""
    buffer, kept, start = RowBuffer(), [0.0], 0
    assert buffer.room(0, 1) is None, "the width is not known"
    buffer.put(0, np.zeros((1, 2), np.float32))
    chance = random.Random(1)
    for value in range(1, 2000):
        n = chance.randint(1, 9)
        at = chance.randint(start, start + len(kept)) if value % 100 else start + len(kept) + 3
        room = buffer.room(at, n)
        assert room is not None
        assert room.shape == (n, 2)
        room[:] = value
        if value % 3 == 0:
            other = room.copy()  # something else is put than what was asked for
            room[:], room = -1, other
        buffer.put(at, room)
        same = start <= at <= start + len(kept)
        kept, start = (
            [*kept[: at - start], *[value] * n] if same else [value] * n,
            start if same else at,
        )
        gone = chance.randint(0, len(kept))
        buffer.drop(start + gone)
        kept, start = kept[gone:], start + gone
        assert (buffer.start, buffer.end) == (start, start + len(kept))
        held = buffer.get(start, start + len(kept))
        assert held.tolist() == [[value, value] for value in kept]
    assert len(buffer._data) < 200, "what is dropped is used again"
