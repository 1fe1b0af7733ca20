"""Drafts from DFlash and DSpark heads: the text stays, and as many tokens are accepted as in
llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.block_format import BlockFormat
from gguf_spec.context import ModelContext, Run
from gguf_spec.control import Choice, FixedPolicy
from gguf_spec.drafters.base import Drafter, Draws
from gguf_spec.drafters.dflash import DFlash, DFlash2, DSpark, make_block_drafter
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request
from gguf_spec.errors import InputError
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams
from tests.drafters.blocks import FILES, BlockBench, block_bench, dflash2, rewrite
from tests.drafters.heads import EXACT, GREEDY, plain_once
from tests.test_backend import PROMPTS

WARM = SamplingParams(temperature=0.8, seed=1)
KINDS = ["draft-dflash", "draft-dspark"]
NATIVE = [
    ("draft-dflash", 3, 0.577),
    ("draft-dflash", 7, 0.273),
    ("draft-dspark", 3, 0.555),
    ("draft-dspark", 7, 0.332),
]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(("kind", "n_max", "native"), NATIVE)
def test_acceptance_is_that_of_llama_cpp(kind: str, n_max: int, native: float) -> None:
    with block_bench(kind, n_max) as made:
        made.run(n_max)
        assert made.rate == pytest.approx(native, abs=0.03)
        assert made.drafted > 1500  # in every round


class Shifted(DFlash):
    """Takes the state of the token before for that of each token."""

    def observe(self, target: ModelContext, run: Run) -> None:
        states = target.states(self.needs, run.row, len(run.tokens))  # type: ignore[attr-defined]
        self._rows.put(run.start, np.roll(states, 1, axis=0))


class Forgetful(DFlash):
    """Misses the states of rounds in which drafted tokens were accepted."""

    def observe(self, target: ModelContext, run: Run) -> None:
        if not run.n_outputs or len(run.tokens) == 1:
            super().observe(target, run)


@pytest.mark.parametrize("mutant", [Shifted, Forgetful])
def test_wrong_states_would_be_noticed(mutant: type[DFlash]) -> None:
    """The measure of the test above tells a drafter that is wired wrongly."""
    with block_bench("draft-dflash", 3) as made:
        made.make = mutant
        for text in PROMPTS:
            engine = Engine(made.target)
            sequence = engine.open([made.drafter()], FixedPolicy([3]))
            prompt = made.prompt(text)
            for _ in engine.generate(sequence, Request(prompt, Sampler(GREEDY), 256)):
                pass
            total = sequence.progress.spec.total
            made.drafted += total.num_draft_tokens
            made.accepted += total.num_accepted_tokens
        assert made.drafted < 500 or made.rate < 0.577 - 0.1


@pytest.mark.parametrize(("kind", "native"), [("draft-dflash", 0.219), ("draft-dspark", 0.223)])
def test_the_targets_noise_helps_where_text_is_drawn(kind: str, native: float) -> None:
    with block_bench(kind, 3) as made:
        made.run(3, WARM)
        assert made.rate > native + 0.03


@kinds
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "behind n-grams"])
@pytest.mark.parametrize("target", ["tiny-target", "tiny-mtp"])
def test_the_text_is_that_of_plain_decoding(
    kind: str, params: SamplingParams, stacked: bool, target: str
) -> None:
    """tiny-mtp has a recurrent state, and the heads were not trained for it."""
    with block_bench(kind, 16, target=target, **EXACT) as made:
        for text in PROMPTS[:: 2 - stacked]:  # n-grams have less to say in each text
            prompt = made.prompt(text)
            drafters: list[Drafter] = [made.drafter()]
            ceilings = [3]
            if stacked:
                drafters.insert(0, NgramSimple(3, 16))
                ceilings.insert(0, 16)
            expected = plain_once(made, prompt, params, 160)
            sequence = made.open(drafters, ceilings)
            assert made.answer(sequence, prompt, params, 160) == expected
        assert made.sources == ({kind, "ngram-simple"} if stacked else {kind})
        assert made.rate > (0.2 if target == "tiny-target" else 0.0)


@kinds
def test_a_second_turn_reuses_the_first(kind: str) -> None:
    """Cached states stay good: drafts of the second turn are those of a fresh sequence."""
    with block_bench(kind, 3, **EXACT) as made:
        for cut in (None, 40, 90):
            sequence = made.open([made.drafter()], [3])
            first = made.prompt(PROMPTS[0])
            text = [*first, *made.answer(sequence, first, n=120)]
            second = [*text[:cut], *made.prompt("\n\n" + PROMPTS[2])]
            answer = made.answer(sequence, second)
            assert sequence.progress.cached_tokens >= (cut or len(text)) - 2
            reused = sequence.progress.spec.total
            sequence = made.open([made.drafter()], [3])
            assert made.answer(sequence, second) == answer
            fresh = sequence.progress.spec.total
            assert reused.num_accepted_tokens == pytest.approx(fresh.num_accepted_tokens, abs=5)
            assert reused.num_draft_tokens == pytest.approx(fresh.num_draft_tokens, abs=15)


class Pausing(FixedPolicy):
    """Five rounds with drafts, then five without."""

    def __init__(self) -> None:
        super().__init__([3])
        self.rounds = 0

    def choose(self, limit: int) -> Sequence[Choice]:
        return super().choose(limit) if self.rounds % 10 < 5 else []

    def record(self, result: object) -> None:
        self.rounds += 1


@kinds
def test_pauses_cost_no_acceptance(kind: str) -> None:
    with block_bench(kind, 3, **EXACT) as made:
        for text in PROMPTS:
            made.engine = Engine(made.target)
            sequence = made.engine.open([made.drafter()], Pausing())
            prompt = made.prompt(text)
            assert made.answer(sequence, prompt) == made.plain(prompt)
        assert made.rate > 0.5


@kinds
def test_there_are_no_drafts_from_missing_context(kind: str) -> None:
    with block_bench(kind, 3) as made:
        drafter = made.drafter()
        history = History(range(10, 40))
        drafter.begin(history)
        assert drafter.draft(3, Sampler(GREEDY)).tokens == []
        made.target.decode([Run(0, 0, history[:10], 0)])
        made.target.decode([Run(0, 10, history[10:29], 0)])
        drafter.observe(made.target, Run(0, 10, history[10:29], 0))
        assert drafter.draft(3, Sampler(GREEDY)).tokens == []
        assert made.head._length(0) == 0


@kinds
@pytest.mark.parametrize(
    ("n_ctx", "head_n_ctx"), [(64, 40), (64, 64), (64, 65), (64, 128), (256, 256), (300, 256)]
)
def test_the_end_of_the_context(kind: str, n_ctx: int, head_n_ctx: int) -> None:
    """libllama makes a cache of 256 cells where fewer are asked for."""
    with block_bench(kind, 3, n_ctx=n_ctx, head_n_ctx=head_n_ctx, **EXACT) as made:
        prompt = made.prompt(PROMPTS[0])
        expected = made.plain(prompt, n=1000)
        assert len(prompt) + len(expected) == n_ctx + 1
        sequence = made.open([made.drafter()], [3])
        assert made.answer(sequence, prompt, n=1000) == expected
        assert made.rate > 0.2


@kinds
@pytest.mark.parametrize("stop_after", [1, 2, 9])
def test_stopping_at_any_time(kind: str, stop_after: int) -> None:
    with block_bench(kind, 3, **EXACT) as made:
        sequence = made.open([made.drafter()], [3])
        prompt = made.prompt(PROMPTS[1])
        expected = made.plain(prompt)
        made.target.clear(0)
        sequence = made.open([made.drafter()], [3])
        begun = made.answer(sequence, prompt, stop_after=stop_after)
        assert begun == expected[: len(begun)]
        assert made.answer(sequence, prompt) == expected
        assert made.rate > 0.3


@kinds
def test_drafts_are_no_longer_than_a_block(kind: str) -> None:
    with block_bench(kind, 20) as made:
        assert made.form.n_max == (7 if kind == "draft-dflash" else 8)
        sequence = made.open([made.drafter()], [20])
        made.answer(sequence, made.prompt(PROMPTS[0]))
        lengths = sequence.progress.spec.total.accepted_per_position
        assert len(lengths) <= made.form.n_max
        drafts = sequence.progress.spec.total
        assert drafts.num_draft_tokens > drafts.num_drafts * (made.form.n_max - 1)


@pytest.mark.parametrize(
    ("kind", "thresholds"), [("draft-dflash", (0.0, 0.3, 0.6)), ("draft-dspark", (0.0, 0.6, 0.8))]
)
def test_a_threshold_leaves_the_better_drafts(kind: str, thresholds: tuple[float, ...]) -> None:
    rates = []
    for p_min in thresholds:
        with block_bench(kind, 7, p_min=p_min) as made:
            made.run(7, n=128)
            rates.append(made.rate)
    assert rates[0] + 0.05 < rates[1] < rates[2] - 0.05


def test_the_confidence_is_a_probability() -> None:
    """And a true one, more or less: tokens of more confidence are accepted more often."""
    with block_bench("draft-dspark", 3, p_min=0.01) as made:
        drafter = made.drafter()
        sequence = made.open([drafter], [3])
        seen: list[float] = []
        read = drafter._logits

        def logits(row: int) -> object:
            state = made.head.own_state(row)
            assert (state == state[0]).all()
            seen.append(float(state[0]))
            return read(row)

        drafter._logits = logits  # type: ignore[assignment, method-assign]
        made.answer(sequence, made.prompt(PROMPTS[0]))
        assert 0.0 <= min(seen) < 0.5 < max(seen) <= 1.0
        assert np.mean(seen) == pytest.approx(made.rate, abs=0.2)


def test_a_bonus_anchor(tmp_path: Path) -> None:
    """tiny-dspark told to leave the row of the last token idle. It was not trained for that, but
    its rows are then those of DFlash: one more than tokens."""
    file = rewrite(
        FILES["draft-dspark"], tmp_path / "bonus.gguf", {"dflash.sample_from_anchor": False}
    )
    with block_bench("draft-dspark", 8, file=file, **EXACT) as made:
        assert made.form.first_row == 1
        assert made.form.n_max == 7
        decoded: list[Run] = []
        sequence = made.open([record(made, decoded)], [8])
        prompt = made.prompt(PROMPTS[0])
        text = made.answer(sequence, prompt, n=100)
        total = sequence.progress.spec.total
        assert text == made.plain(prompt, n=100)
        assert sum(len(run.tokens) - 1 for run in decoded) == total.num_draft_tokens
        assert made.rate > 0.05


@kinds
def test_a_block_is_the_last_token_and_masks(kind: str) -> None:
    with block_bench(kind, 3) as made:
        decoded: list[Run] = []
        sequence = made.open([record(made, decoded)], [3])
        prompt = made.prompt(PROMPTS[0])
        text = [*prompt, *made.answer(sequence, prompt, n=50)]
        for run in decoded:
            assert run.tokens[0] == text[run.start]
            assert set(run.tokens[1:]) <= {made.form.mask}
            assert run.n_outputs == len(run.tokens)
        assert {len(run.tokens) for run in decoded[:5]} == {3 + made.form.first_row}


@pytest.mark.parametrize("causal", [False, True])
def test_the_rows_of_a_block_see_each_other(tmp_path: Path, causal: bool) -> None:
    """Unless the file says otherwise: then those behind a row have no influence on it."""
    keys = {"dflash.attention.causal": causal}
    file = rewrite(FILES["draft-dflash"], tmp_path / "causal.gguf", keys)
    with block_bench("draft-dflash", 7, file=file, **EXACT) as made:
        assert made.form.causal == causal
        drafter = made.drafter()
        sequence = made.open([drafter], [7])
        made.answer(sequence, made.prompt(PROMPTS[0]), n=20)
        rows = []
        for n in (2, 7):
            assert len(drafter.draft(n, Sampler(GREEDY)).tokens) == n
            rows.append(made.head.logits(1).copy())
        assert (np.abs(rows[0] - rows[1]).max() < 1e-3) == causal


def record(made: BlockBench, decoded: list[Run]) -> DFlash:
    """A drafter whose blocks are appended to ``decoded``."""
    head = made.head
    decode = head.decode

    def watched(runs: Sequence[Run]) -> None:
        decoded.extend(runs)
        decode(runs)

    head.decode = watched  # type: ignore[method-assign]
    return made.drafter()


def test_a_head_for_several_position_axes(tmp_path: Path) -> None:
    """For text all axes hold the same position, so nothing may change."""
    sections = {"dflash.rope.dimension_sections": [32, 0, 0, 0]}
    file = rewrite(FILES["draft-dflash"], tmp_path / "mrope.gguf", sections)
    counts = []
    for path in (file, FILES["draft-dflash"]):
        with block_bench("draft-dflash", 3, file=path) as made:
            made.run(3, n=128)
            counts.append((made.drafted, made.accepted))
    assert counts[0] == counts[1]


def test_a_head_with_a_sliding_window(tmp_path: Path) -> None:
    """A wide window changes nothing; behind a narrow one, prompts may turn back all the same."""
    key = "dflash.attention.sliding_window"
    layers = {f"{key}_pattern": [True, False]}
    counts = []
    for file in (
        rewrite(FILES["draft-dflash"], tmp_path / "wide.gguf", {key: 1024, **layers}),
        FILES["draft-dflash"],
    ):
        with block_bench("draft-dflash", 3, file=file) as made:
            made.run(3, n=128)
            counts.append((made.drafted, made.accepted))
    assert counts[0] == counts[1]
    narrow = rewrite(FILES["draft-dflash"], tmp_path / "narrow.gguf", {key: 16, **layers})
    with block_bench("draft-dflash", 3, file=narrow, **EXACT) as made:
        sequence = made.open([made.drafter()], [3])
        prompt = made.prompt(PROMPTS[0])
        text = [*prompt, *made.answer(sequence, prompt)]
        second = [*text[:60], *made.prompt(PROMPTS[2])]
        answer = made.answer(sequence, second)
        assert sequence.progress.cached_tokens >= 59
        assert sequence.progress.spec.total.num_drafts > 20
        assert answer == made.plain(second)


@kinds
def test_two_sequences_at_a_time(kind: str) -> None:
    with block_bench(kind, 3, n_seq_max=2, **EXACT) as made:
        prompts = [made.prompt(text) for text in PROMPTS[:2]]
        alone = []
        for prompt in prompts:
            sequence = made.open([made.drafter()], [3])
            text = made.answer(sequence, prompt, n=100)
            alone.append((text, sequence.progress.spec.total.num_accepted_tokens))
        engine = Engine(made.target)
        drafters = [make_block_drafter(made.head, made.form, made.layers, seq) for seq in (0, 1)]
        sequences = [engine.open([drafter], FixedPolicy([3])) for drafter in drafters]
        for sequence, prompt in zip(sequences, prompts, strict=True):
            sequence.start(Request(prompt, Sampler(GREEDY), 100))
        while any(sequence.active for sequence in sequences):
            engine.step()
        for sequence, prompt, (text, accepted) in zip(sequences, prompts, alone, strict=True):
            assert sequence.history[len(prompt) :] == text
            assert sequence.progress.spec.total.num_accepted_tokens == pytest.approx(
                accepted, abs=3
            )


def test_a_selector_that_selects_nothing_drafts_as_dflash(tmp_path: Path) -> None:
    file, _ = dflash2(tmp_path / "dflash2.gguf", 4, strength=0.0)
    counts = []
    for path in (file, FILES["draft-dflash"]):
        with block_bench("draft-dflash", 7, file=path) as made:
            assert isinstance(made.drafter(), DFlash2) == (path == file)
            made.run(7, n=128)
            counts.append((made.drafted, made.accepted))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
def test_a_selector_and_its_lattice(tmp_path: Path, params: SamplingParams) -> None:
    k = 4
    file, selector = dflash2(tmp_path / "dflash2.gguf", k, strength=0.3)
    after, before = (selector[f"selector_{n}.weight"] for n in ("successor", "predecessor"))
    with block_bench("draft-dflash", 7, file=file, **EXACT) as made:
        drafter = made.drafter()
        sequence = made.open([drafter], [7])
        prompt = made.prompt(PROMPTS[0])
        assert made.answer(sequence, prompt, params, 100) == made.plain(prompt, params, 100)
        assert made.rate > 0.05
        # The lattice of one more block: what llama.cpp makes of the selector.
        drafter.begin(sequence.history)
        tokens = drafter.draft(7, Sampler(params)).tokens
        assert len(tokens) == 7
        ids = [made.head.own_state(row)[:k].astype(int) for row in range(8)]
        anchor = sequence.history[-1]
        for row in range(1, 8):
            logits = made.head.logits(row)
            assert set(ids[row]) == set(np.argsort(logits)[-k:])
            assert tokens[row - 1] in ids[row]
            scores = made.head.own_state(row)[k : k + k * k].reshape(k, k)
            previous = ids[row - 1] if row > 1 else np.full(k, anchor)
            # Of rank 1: one factor, the gate of the slot, for all pairs.
            gates = (scores - logits[ids[row]]) / (before[previous] @ after[ids[row]].T)
            assert np.ptp(gates) < 0.05 * abs(gates).mean() + 0.01


class Lattice:
    """A context that hands out ``rows`` of a lattice; for ``DFlash2._read`` alone."""

    n_vocab, n_ctx, n_ubatch, max_width = 50, 100, 8, 9

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows = np.array(rows, np.float32)

    def own_state(self, row: int) -> np.ndarray:
        return self.rows[row]

    def is_end(self, token: int) -> bool:
        return token == 49

    def clear(self, seq: int) -> None:
        pass


@pytest.mark.parametrize(("p_min", "expected"), [(0.0, [21, 30, 41]), (0.7, [21]), (0.9, [])])
def test_walking_a_lattice(p_min: float, expected: list[int]) -> None:
    """The scores of a slot depend on which candidate of the slot before was taken."""
    rows = [
        [0, 0, 0, 0, 0, 0],
        [20, 21, 0, 2, 9, 0],  # the first predecessor is the anchor: the first line counts
        [30, 31, 0, 9, 0.5, 0],
        [40, 41, 1, 2, 9, 0],
    ]
    drafter = DFlash2(Lattice(rows), BlockFormat(4, 3, selector=2), (), p_min=p_min)  # type: ignore[arg-type]
    draws = Draws(History([1]), Sampler(GREEDY), p_min)
    drafter._read(draws, range(1, 4))
    assert draws.tokens == expected


def test_the_file_chooses_the_drafter() -> None:
    context = Lattice([])
    for form, kind in (
        (BlockFormat(8, 3), DFlash),
        (BlockFormat(8, 3, markov=True), DSpark),
        (BlockFormat(8, 3, selector=2), DFlash2),
    ):
        made = make_block_drafter(context, form, (1,))  # type: ignore[arg-type]
        assert type(made) is kind
        assert made.needs == (1,)
        assert made.spec_type == form.spec_type
    with pytest.raises(InputError, match="no confidence"):
        make_block_drafter(context, BlockFormat(8, 3, markov=True), (), p_min=0.5)  # type: ignore[arg-type]
