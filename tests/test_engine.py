"""Speculative decoding on a toy model equals plain decoding, exactly, whatever the drafter does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.context import ModelContext, Run
from gguf_spec.control import FixedPolicy, Round
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request, SequenceState, Step
from gguf_spec.errors import PromptError, RunError
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams
from tests.grids import lengths_of
from tests.toy import END, ToyContext

SEEDS = range(50)
LENGTHS = range(1, 16)
# Long enough for every drafter to be right and wrong many times, short enough for a large grid.
GRID_TOKENS = 32


class Hostile:
    """Drafts rubbish of all kinds: random, too long, end tokens, ids that do not exist."""

    spec_type = "hostile"

    def __init__(self, seed: int, n_vocab: int) -> None:
        self._random = random.Random(seed)
        self._n_vocab = n_vocab

    def begin(self, history: History) -> None: ...
    def observe(self, target: ModelContext, run: Run) -> None: ...
    def accept(self, n_accepted: int) -> None: ...
    def close(self) -> None: ...

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        r = self._random
        length = r.choice([0, 1, limit, limit + 5, 40])
        ids = [
            r.choice([r.randrange(self._n_vocab), END, -1, self._n_vocab, 2**31 - 1])
            if r.random() < 0.2
            else r.randrange(1, self._n_vocab)
            for _ in range(length)
        ]
        return Draft(ids, self.spec_type)


class Oracle:
    """Knows the plain text and plays it back, wrong at chosen positions of each draft."""

    spec_type = "oracle"

    def __init__(self, text: Sequence[int], wrong: frozenset[int], n_vocab: int) -> None:
        self._text = text
        self._wrong = wrong
        self._n_vocab = n_vocab
        self._history = History()

    def begin(self, history: History) -> None:
        self._history = history

    def observe(self, target: ModelContext, run: Run) -> None: ...
    def accept(self, n_accepted: int) -> None: ...
    def close(self) -> None: ...

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        start = len(self._history)
        ids = list(self._text[start : start + limit])
        for i in self._wrong & set(range(len(ids))):
            ids[i] = ids[i] % (self._n_vocab - 1) + 1
        return Draft(ids, self.spec_type)


def prompt_for(seed: int, n: int = 20) -> list[int]:
    r = random.Random(seed)
    word = [r.randrange(1, 24) for _ in range(7)]
    return [r.randrange(1, 24) for _ in range(n - 14)] + word + word


def request(
    seed: int,
    *,
    temperature: float = 0.0,
    max_tokens: int | None = 48,
    prompt: list[int] | None = None,
) -> Request:
    params = SamplingParams(temperature=temperature, top_k=8, top_p=0.95, min_p=0.02, seed=seed)
    return Request(prompt or prompt_for(seed), Sampler(params), max_tokens)


def run_all(engine: Engine, requests: Sequence[tuple[SequenceState, Request]]) -> list[list[int]]:
    texts: dict[int, list[int]] = {s.seq: [] for s, _ in requests}
    for sequence, wanted in requests:
        sequence.start(wanted)
    while any(s.active for s, _ in requests):
        for step in engine.step():
            texts[step.seq] += step.tokens
    for sequence, _ in requests:
        check(sequence)
    return [texts[s.seq] for s, _ in requests]


def check(sequence: SequenceState) -> None:
    """Counters and caches agree with what was emitted."""
    spec = sequence.progress.spec
    assert sequence.n_completion == 1 + spec.steps + spec.total.num_accepted_tokens
    assert spec.total.num_accepted_tokens <= spec.total.num_draft_tokens
    assert sum(spec.total.accepted_per_position) == spec.total.num_accepted_tokens
    context = sequence._target
    assert isinstance(context, ToyContext)
    assert context.cache[sequence.seq] == sequence.history[: sequence.n_cached]
    assert sequence.n_cached == len(sequence.history) - 1


def plain(wanted: Request, **options: int) -> list[int]:
    """The text of plain decoding, which is computed once for all drafters."""
    sampler = wanted.sampler
    if sampler.masked or type(sampler) is not Sampler:
        return _decoded(wanted, options)
    given = sampler.params, sampler._breaks, wanted.max_tokens, wanted.ignore_end
    key = (tuple(wanted.prompt), given, *sorted(options.items()))
    if key not in _plain_texts:
        _plain_texts[key] = _decoded(wanted, options)
    return list(_plain_texts[key])


_plain_texts: dict[object, list[int]] = {}


def _decoded(wanted: Request, options: dict[str, int]) -> list[int]:
    engine = Engine(ToyContext(wanted.sampler.params.seed, **options))  # type: ignore[arg-type]
    return run_all(engine, [(engine.open([], FixedPolicy([])), wanted)])[0]


def by_hand(wanted: Request) -> list[int]:
    """Plain decoding without the engine: the whole text anew for every token."""
    text = list(wanted.prompt)
    seed, sampler = wanted.sampler.params.seed, wanted.sampler.fresh()
    while len(text) < len(wanted.prompt) + (wanted.max_tokens or 0):
        toy = ToyContext(seed, n_ubatch=256)
        toy.decode([Run(0, 0, text, 1)])
        text.append(sampler.sample(toy.logits(len(text) - 1), len(text), text))
        if toy.is_end(text[-1]):
            break
    return text[len(wanted.prompt) :]


def ngram(seed: int, n_seq: int, removes: bool) -> list[Drafter]:
    return [NgramSimple(2, 15) for _ in range(n_seq)]


def draft_model(seed: int, n_seq: int, removes: bool) -> list[Drafter]:
    context = ToyContext(seed, n_seq_max=n_seq, removes_tail=removes, blur=0.25)
    return [DraftModel(context, i) for i in range(n_seq)]


def hostile(seed: int, n_seq: int, removes: bool) -> list[Drafter]:
    return [Hostile(seed + i, 24) for i in range(n_seq)]


Maker = Callable[[int, int, bool], list[Drafter]]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_plain_decoding_equals_a_loop_by_hand(temperature: float) -> None:
    for seed in range(10):
        wanted = request(seed, temperature=temperature)
        assert plain(wanted) == by_hand(wanted)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("make", [ngram, draft_model, hostile])
def test_equals_plain_decoding(make: Maker, removes: bool, temperature: float) -> None:
    accepted = drafted = 0
    for seed in SEEDS:
        wanted = request(seed, temperature=temperature, max_tokens=GRID_TOKENS)
        expected = plain(wanted)
        for n_max in lengths_of(LENGTHS, seed, 2 * removes + (temperature > 0)):
            engine = Engine(ToyContext(seed, removes_tail=removes))
            sequence = engine.open(make(seed, 1, removes), FixedPolicy([n_max]))
            assert run_all(engine, [(sequence, wanted)]) == [expected]
            accepted += sequence.progress.spec.total.num_accepted_tokens
            drafted += sequence.progress.spec.total.num_draft_tokens
    assert accepted > 0
    if make is draft_model or (make is ngram and temperature == 0.0):
        assert accepted / drafted > 0.2, "the drafter is wired wrongly: fluent, never accepted"


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("make", [ngram, draft_model, hostile])
def test_three_sequences_equal_plain_decoding(make: Maker, removes: bool) -> None:
    for seed in SEEDS:
        prompts = [prompt_for(seed + 100 * i, 20 + 9 * i) for i in range(3)]
        wanted = [
            request(seed, temperature=0.9 * (i % 2), max_tokens=GRID_TOKENS, prompt=p)
            for i, p in enumerate(prompts)
        ]
        expected = [plain(w) for w in wanted]
        for n_max in lengths_of(LENGTHS, seed, removes):
            engine = Engine(ToyContext(seed, n_seq_max=3, removes_tail=removes))
            drafters = make(seed, 3, removes)
            sequences = [engine.open([d], FixedPolicy([n_max])) for d in drafters]
            assert run_all(engine, list(zip(sequences, wanted, strict=True))) == expected
        # Sequences really share a decode.
        assert max(len(runs) for runs in engine.target.decodes) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("wrong", [(), (0,), (3,), (14,), (1, 2, 9)], ids=str)
def test_oracle_with_errors_at_chosen_positions(wrong: tuple[int, ...], removes: bool) -> None:
    for seed in range(10):
        wanted = request(seed, temperature=0.7)
        expected = plain(wanted)
        text = [*wanted.prompt, *expected]
        for n_max in LENGTHS:
            engine = Engine(ToyContext(seed, removes_tail=removes))
            oracle = Oracle(text, frozenset(wrong), 24)
            sequence = engine.open([oracle], FixedPolicy([n_max]))
            assert run_all(engine, [(sequence, wanted)]) == [expected]
            total = sequence.progress.spec.total
            if not set(wrong) & set(range(n_max)):
                assert total.num_accepted_tokens == total.num_draft_tokens


def test_a_model_drafting_for_itself_is_always_accepted() -> None:
    for temperature in (0.0, 1.0):
        for seed in range(10):
            engine = Engine(ToyContext(seed))
            drafter = DraftModel(ToyContext(seed))
            sequence = engine.open([drafter], FixedPolicy([5]))
            run_all(engine, [(sequence, request(seed, temperature=temperature))])
            assert sequence.progress.spec.total.acceptance_rate in (1.0, None)
            assert sequence.progress.spec.steps <= 1 + sequence.n_completion / 6 + 1


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 20])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    for seed in range(10):
        wanted = request(seed, max_tokens=max_tokens)
        expected = plain(wanted)
        for n_max in (1, 3, 15):
            for drafter in (NgramSimple(2, 15), DraftModel(ToyContext(seed)), Hostile(seed, 24)):
                engine = Engine(ToyContext(seed))
                sequence = engine.open([drafter], FixedPolicy([n_max]))
                assert run_all(engine, [(sequence, wanted)]) == [expected]
                assert sequence.n_completion <= max_tokens
                if expected[-1] != END:
                    assert sequence.n_completion == max_tokens
                    assert sequence.finish_reason == "length"


@pytest.mark.parametrize("n_ctx", [20, 21, 22, 25, 40])
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
def test_never_past_the_context(n_ctx: int, removes: bool) -> None:
    for seed in range(10):
        wanted = request(seed, max_tokens=None)
        expected = plain(wanted, n_ctx=n_ctx)
        for n_max in (1, 4, 15):
            for drafter in (
                NgramSimple(2, 15),
                DraftModel(ToyContext(seed, n_ctx=n_ctx)),
                DraftModel(ToyContext(seed, n_ctx=22)),
                Hostile(seed, 24),
            ):
                engine = Engine(ToyContext(seed, n_ctx=n_ctx, removes_tail=removes))
                sequence = engine.open([drafter], FixedPolicy([n_max]))
                assert run_all(engine, [(sequence, wanted)]) == [expected]
                if expected[-1] != END:
                    assert len(sequence.history) == n_ctx + 1
                    assert sequence.finish_reason == "length"


def test_an_end_token_inside_a_draft_ends_the_text_there() -> None:
    ended = 0
    for seed in range(40):
        wanted = request(seed, temperature=0.9, max_tokens=None)
        toy = ToyContext(seed, end_bias=2)
        engine = Engine(toy)
        expected = run_all(engine, [(engine.open([], FixedPolicy([])), wanted)])[0]
        text = [*wanted.prompt, *expected, 5, 6, 7, 8]
        engine = Engine(ToyContext(seed, end_bias=2))
        sequence = engine.open([Oracle(text, frozenset(), 24)], FixedPolicy([15]))
        assert run_all(engine, [(sequence, wanted)])[0] == expected
        if expected[-1] == END:
            ended += 1
            assert sequence.finish_reason == "stop"
            assert END not in [t for run in toy.decodes for r in run for t in r.tokens]
    assert ended > 10


def test_ignoring_the_end_drafts_through_it() -> None:
    sampler = Sampler(SamplingParams(temperature=0.9, seed=3))
    wanted = Request(prompt_for(3), sampler, 60, ignore_end=True)
    engine = Engine(ToyContext(3, end_bias=3))
    expected = run_all(engine, [(engine.open([], FixedPolicy([])), wanted)])[0]
    assert END in expected[:-1]
    assert len(expected) == 60
    engine = Engine(ToyContext(3, end_bias=3))
    oracle = Oracle([*wanted.prompt, *expected], frozenset(), 24)
    sequence = engine.open([oracle], FixedPolicy([7]))
    assert run_all(engine, [(sequence, wanted)])[0] == expected
    assert sequence.progress.spec.total.acceptance_rate == 1.0


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("make", [ngram, draft_model, hostile])
def test_a_consumer_may_stop_at_any_step(make: Maker, removes: bool) -> None:
    for stop_at in range(1, 25):
        seed = stop_at
        engine = Engine(ToyContext(seed, removes_tail=removes))
        sequence = engine.open(make(seed, 1, removes), FixedPolicy([6]))
        steps = engine.generate(sequence, request(seed, max_tokens=None))
        for _, step in zip(range(stop_at), steps, strict=False):
            assert isinstance(step, Step)
        steps.close()  # type: ignore[attr-defined]
        assert sequence.finish_reason in ("cancelled", "stop", "length")
        toy = engine.target
        assert isinstance(toy, ToyContext)
        assert toy.cache[0] == sequence.history[: sequence.n_cached]
        # The next answer is that of a fresh engine, on a prompt that shares a part.
        follow_up = [*sequence.history[:-3], 3, 4, 5]
        wanted = request(seed, prompt=follow_up, max_tokens=20)
        assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)


@pytest.mark.parametrize("make", [ngram, draft_model])
def test_prefix_reuse_decodes_only_what_is_new(make: Maker) -> None:
    engine = Engine(ToyContext(1))
    sequence = engine.open(make(1, 1, True), FixedPolicy([4]))
    first = request(1)
    answer = run_all(engine, [(sequence, first)])[0]
    follow_up = [*first.prompt, *answer, 7, 8, 9]
    wanted = request(1, prompt=follow_up)
    engine.target.decodes.clear()  # type: ignore[attr-defined]
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
    assert sequence.progress.cached_tokens == len(follow_up) - 4  # all but the last answer token
    assert len(engine.target.decodes[0][0].tokens) == 4  # type: ignore[attr-defined]
    shorter = request(1, prompt=follow_up[:9])
    assert run_all(engine, [(sequence, shorter)])[0] == plain(shorter)
    assert sequence.progress.cached_tokens == 8


def test_truncating_the_answer_keeps_the_cache_true() -> None:
    engine = Engine(ToyContext(5))
    sequence = engine.open([DraftModel(ToyContext(5))], FixedPolicy([6]))
    answer = run_all(engine, [(sequence, request(5))])[0]
    sequence.truncate(3)
    assert sequence.history[-3:] == answer[:3]
    assert engine.target.cache[0] == sequence.history[: sequence.n_cached]  # type: ignore[attr-defined]
    wanted = request(5, prompt=[*sequence.history, 9])
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)


def test_a_full_cache_drops_the_draft_then_ends() -> None:
    wanted = request(2)
    engine = Engine(ToyContext(2))
    engine.target.full_when_wider_than = 1  # type: ignore[attr-defined]
    sequence = engine.open([DraftModel(ToyContext(2))], FixedPolicy([5]))
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
    assert sequence.progress.spec.total.num_draft_tokens == 0
    engine.target.full_when_wider_than = 0  # type: ignore[attr-defined]
    assert [s.finish_reason for s in engine.generate(sequence, wanted)][-1] == "length"


def test_a_failed_decode_starts_over_with_a_clean_cache() -> None:
    class Breaks(ToyContext):
        broken = False

        def decode(self, runs: Sequence[Run]) -> None:
            super().decode(runs)
            if self.broken:
                raise RunError("computed, then failed")

    toy = Breaks(4)
    engine = Engine(toy)
    sequence = engine.open([DraftModel(ToyContext(4))], FixedPolicy([5]))
    with pytest.raises(RunError):  # noqa: PT012
        for n, _ in enumerate(engine.generate(sequence, request(4))):
            toy.broken = n == 3
    toy.broken = False
    assert run_all(engine, [(sequence, request(4))])[0] == plain(request(4))


def test_prefill_chunks_do_not_depend_on_speculation() -> None:
    prompt = prompt_for(1, 50)
    chunks = []
    for drafters in ([], [NgramSimple(2, 15)], [DraftModel(ToyContext(1))]):
        engine = Engine(ToyContext(1, n_ubatch=16))
        sequence = engine.open(drafters, FixedPolicy([5] * len(drafters)))
        steps = list(engine.generate(sequence, request(1, prompt=prompt, max_tokens=1)))
        assert [s.prefilled for s in steps] == [16, 32, 48, 50]
        chunks.append(
            [(r.start, len(r.tokens), r.n_outputs) for d in engine.target.decodes for r in d]
        )  # type: ignore[attr-defined]
    assert chunks[0] == chunks[1] == chunks[2] == [(0, 16, 0), (16, 16, 0), (32, 16, 0), (48, 2, 1)]


def test_several_drafters_are_tried_in_order() -> None:
    engine = Engine(ToyContext(6))
    sequence = engine.open(
        [NgramSimple(3, 9), DraftModel(ToyContext(6, blur=0.2))], FixedPolicy([9, 3])
    )
    wanted = request(6, max_tokens=120)
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
    by_type = sequence.progress.spec.by_type
    assert set(by_type) == {"ngram-simple", "draft-simple"}
    total = sequence.progress.spec.total
    assert sum(c.num_draft_tokens for c in by_type.values()) == total.num_draft_tokens


def test_bad_prompts_are_refused_with_the_numbers() -> None:
    engine = Engine(ToyContext(1, n_ctx=32))
    sequence = engine.open([], FixedPolicy([]))
    for prompt, words in (([], "empty"), ([3] * 33, "33 tokens"), ([99], "99"), ([-1], "-1")):
        with pytest.raises(PromptError, match=words):
            sequence.start(Request(prompt, Sampler(SamplingParams()), 5))
    with pytest.raises(RunError, match="1 sequences"):
        engine.open([], FixedPolicy([]))


def test_many_rounds_leave_nothing_behind() -> None:
    engine = Engine(ToyContext(8))
    sequence = engine.open([NgramSimple(2, 15), DraftModel(ToyContext(8))], FixedPolicy([7, 7]))
    rounds = 0
    for i in range(250):
        wanted = request(i, temperature=0.8, max_tokens=12)
        run_all(engine, [(sequence, wanted)])
        rounds += sequence.progress.spec.steps
        assert len(engine.target.cache[0]) < 64  # type: ignore[attr-defined]
    assert rounds > 500


class Diary(FixedPolicy):
    """Asks everybody, and remembers what it is told."""

    def __init__(self, ceilings: Sequence[int], n_min: int = 0) -> None:
        super().__init__(ceilings, [n_min] * len(ceilings))
        self.rounds: list[Round] = []

    def record(self, result: Round) -> None:
        self.rounds.append(result)


class Metered(ToyContext):
    """Every decode takes one second of its own clock, most of it where its logits are waited for,
    as a GPU does."""

    waiting = False

    def decode(self, runs: Sequence[Run]) -> None:
        super().decode(runs)
        self.busy_seconds += 0.25
        self.waiting = True

    def logits(self, row: int) -> NDArray[np.float32]:
        self.busy_seconds += 0.75 * self.waiting
        self.waiting = False
        return super().logits(row)


def test_the_controller_hears_of_every_round() -> None:
    wanted = request(3)
    text = [*wanted.prompt, *plain(wanted)]
    engine = Engine(Metered(3))
    diary = Diary([4])
    # The text runs out before the answer does, so the last rounds have no draft.
    sequence = engine.open([Oracle(text[:-6], frozenset({2}), 24)], diary)
    steps = [s for s in engine.generate(sequence, wanted) if s.tokens][1:]
    assert [(r.n_drafted, r.n_accepted) for r in diary.rounds] == [
        (s.n_drafted, s.n_accepted) for s in steps
    ]
    assert {r.n_drafted for r in diary.rounds} >= {0, 4}
    for step, result in zip(steps, diary.rounds, strict=True):
        assert result.decode_seconds == 1.0
        assert result.drafter == (0 if step.n_drafted else None)
        assert step.source == ("oracle" if step.n_drafted else None)
        assert len(step.tokens) == step.n_accepted + 1
    assert sequence.progress.spec.steps == len(steps)
    drafting = [r.draft_seconds for r in diary.rounds]
    assert min(drafting) > 0
    assert sequence.timings().draft_seconds > sum(drafting)  # the prompt was read besides


def test_a_dropped_draft_is_a_plain_round_to_the_controller() -> None:
    engine = Engine(ToyContext(2))
    engine.target.full_when_wider_than = 1  # type: ignore[attr-defined]
    diary = Diary([5])
    sequence = engine.open([DraftModel(ToyContext(2))], diary)
    run_all(engine, [(sequence, request(2))])
    assert len(diary.rounds) > 5
    assert {(r.drafter, r.n_drafted) for r in diary.rounds} == {(None, 0)}


def test_drafts_below_n_min_are_passed_on() -> None:
    wanted = request(3, max_tokens=40)
    expected = plain(wanted)
    text = [*wanted.prompt, *expected]
    engine = Engine(ToyContext(3))
    short = Oracle(text, frozenset(), 24)
    short.draft = lambda limit, sampler: Draft(text[len(short._history) :][:2], "short")  # type: ignore[method-assign]
    sequence = engine.open([short, Oracle(text, frozenset(), 24)], Diary([5, 4], n_min=3))
    steps = list(engine.generate(sequence, wanted))
    assert [t for s in steps for t in s.tokens] == expected
    assert {s.source for s in steps if s.n_drafted} == {"oracle"}
    assert {s.n_drafted for s in steps} <= {0, 3, 4}


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
def test_never_more_rows_than_the_target_takes(removes: bool) -> None:
    for max_width in (1, 2, 5):
        wanted = request(3)
        expected = plain(wanted)
        text = [*wanted.prompt, *expected]
        # The toy asserts that no decode is wider.
        engine = Engine(ToyContext(3, max_width=max_width, removes_tail=removes))
        sequence = engine.open([Oracle(text, frozenset(), 24)], FixedPolicy([15]))
        steps = list(engine.generate(sequence, wanted))
        assert [t for s in steps for t in s.tokens] == expected
        assert max(s.n_drafted for s in steps) == max_width - 1


def test_drafters_are_called_in_the_documented_order() -> None:
    wanted = request(3, max_tokens=30)
    text = [*wanted.prompt, *plain(wanted)]
    events: list[tuple[object, ...]] = []

    class Witness(Oracle):
        def begin(self, history: History) -> None:
            super().begin(history)
            events.append(("begin", len(history)))

        def observe(self, target: ModelContext, run: Run) -> None:
            events.append(("observe", len(self._history), run.start, list(run.tokens)))
            if run.n_outputs:
                target.logits(run.row + len(run.tokens) - 1)  # what was decoded is still there

        def draft(self, limit: int, sampler: Sampler) -> Draft:
            events.append(("draft", len(self._history)))
            return super().draft(limit, sampler)

        def accept(self, n_accepted: int) -> None:
            events.append(("accept", len(self._history), n_accepted))

    engine = Engine(ToyContext(3, n_ubatch=16))
    sequence = engine.open([Witness(text, frozenset({1}), 24)], FixedPolicy([3]))
    steps = [s for s in engine.generate(sequence, wanted) if s.tokens]
    length = len(wanted.prompt)
    expected: list[tuple[object, ...]] = [
        ("begin", length),
        ("observe", length, 0, wanted.prompt[:16]),
        ("observe", length, 16, wanted.prompt[16:]),
        ("accept", length + 1, 0),
    ]
    length += 1
    for step in steps[1:]:
        drafted = text[length : length + step.n_drafted]
        if len(drafted) > 1:
            drafted[1] = drafted[1] % 23 + 1
        if sequence._n_prompt + 30 - length > 1:
            expected.append(("draft", length))
        expected.append(("observe", length, length - 1, [text[length - 1], *drafted]))
        length += len(step.tokens)
        expected.append(("accept", length, step.n_accepted))
    assert events == expected


@pytest.mark.parametrize("computed", [True, False])
def test_after_a_failed_decode_the_cache_is_not_trusted(computed: bool) -> None:
    """The next prompt continues the text, so only the failure says that the cache is wrong."""

    class Breaks(ToyContext):
        broken = False

        def decode(self, runs: Sequence[Run]) -> None:
            if computed or not self.broken:
                super().decode(runs)
            if self.broken:
                raise RunError("failed")

    toy = Breaks(4)
    engine = Engine(toy)
    sequence = engine.open([DraftModel(ToyContext(4))], FixedPolicy([5]))
    with pytest.raises(RunError):  # noqa: PT012
        for n, _ in enumerate(engine.generate(sequence, request(4))):
            toy.broken = n == 3
    toy.broken = False
    wanted = request(4, prompt=[*sequence.history, 5])
    assert run_all(engine, [(sequence, wanted)])[0] == plain(wanted)
    assert sequence.progress.cached_tokens == 0


def test_sequences_take_turns_when_a_batch_does_not_hold_them_all() -> None:
    wanted = [request(i, prompt=prompt_for(i, 16), max_tokens=20) for i in range(3)]
    toy = ToyContext(0, n_seq_max=3)
    toy.n_batch = 16
    engine = Engine(toy)
    sequences = [engine.open([Hostile(i, 24)], FixedPolicy([4])) for i, _ in enumerate(wanted)]
    for sequence, one in zip(sequences, wanted, strict=True):
        sequence.start(one)
    order: list[int] = []
    while all(s.active for s in sequences):
        order += [step.seq for step in engine.step()]
    assert len(order) > 15
    # The last one may be the step that ends a sequence.
    assert all(len(set(order[i : i + 3])) == 3 for i in range(len(order) - 2))


def test_a_context_that_was_used_before_starts_clean() -> None:
    toy = ToyContext(4)
    toy.decode([Run(0, 0, [7, 7, 7], 1)])
    engine = Engine(toy)
    sequence = engine.open([], FixedPolicy([]))
    assert run_all(engine, [(sequence, request(4))])[0] == plain(request(4))


class Listening(FixedPolicy):
    """Keeps what it is told of prompts."""

    def __init__(self) -> None:
        super().__init__((4,))
        self.new: list[int] = []

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        self.new.append(n_new)
        return frozenset()


def test_a_controller_hears_how_much_of_a_prompt_is_read() -> None:
    """Of the cache, nothing is kept that may not be what it seems."""
    engine, controller = Engine(ToyContext(5)), Listening()
    sequence = engine.open([NgramSimple()], controller)
    for consistent, n_new in ((True, 4), (True, 1), (False, 4)):
        sequence.consistent = consistent
        run_all(engine, [(sequence, Request([5, 6, 7, 8], Sampler(SamplingParams()), 4))])
        assert controller.new[-1] == n_new
        assert sequence.progress.cached_tokens == 4 - n_new
