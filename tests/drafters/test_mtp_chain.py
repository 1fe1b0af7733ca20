"""A chain of heads reads when it is asked, and drafts what it would if it had read at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft
from gguf_spec.drafters.hidden import Rows
from gguf_spec.drafters.mtp_chain import MtpChain
from gguf_spec.drafters.neural import head_params
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.errors import BackendError
from gguf_spec.hidden_states import NEXTN
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams, probability
from tests.drafters.heads import EXACT, GREEDY, bench
from tests.drafters.seeded import WIDTH, prompt, random_chain, step35

WARM = SamplingParams(temperature=1.5, seed=3, top_k=0, top_p=1.0, min_p=0.0)


class AtOnce:
    """The way of llama.cpp: after each decode of the target, every head reads every row of it."""

    def __init__(self, context: LlamaContext, n_heads: int, p_min: float) -> None:
        self.context, self.n_heads, self.p_min = context, n_heads, p_min
        self.pending: Rows = np.zeros((1, WIDTH), np.float32)
        self.rows: Rows = self.pending
        self.start = 0

    def process(self, target: LlamaContext, run: Run) -> None:
        rows = target.states((NEXTN,), run.row, len(run.tokens))
        states = np.concatenate([self.pending, rows[:-1]])
        for head in range(self.n_heads):
            self.context.remove(0, run.start)
            copied = Run(0, run.start, run.tokens, 0)
            self.context.decode_states(copied, states, head=head)
        self.rows, self.start, self.pending = rows, run.start, rows[-1:]

    def draft(self, history: History, limit: int, sampler: Sampler) -> list[int]:
        position, tokens, states = len(history) - 1, list[int](), [self.pending]
        for head in range(min(limit, self.n_heads)):
            self.context.remove(0, position)
            run = Run(0, position, [history[position], *tokens], 1)
            self.context.decode_states(run, np.concatenate(states), head=head)
            logits = self.context.logits(len(tokens))
            token = sampler.sample(logits, len(history) + len(tokens), [])
            if self.p_min and probability(logits, token) < self.p_min:
                break
            states.append(self.context.own_state(len(tokens)).reshape(1, -1).copy())
            tokens.append(token)
            if self.context.is_end(token):
                break
        self.context.remove(0, position)
        return tokens

    def accept(self, history: History) -> None:
        last = len(history) - 2  # the last decoded token that stays
        if last >= self.start:
            self.pending = self.rows[last - self.start : last - self.start + 1]
        self.context.remove(0, last + 1)


class Compared(MtpChain):
    """A chain that checks each of its drafts."""

    def __init__(self, context: LlamaContext, other: AtOnce, p_min: float) -> None:
        super().__init__(context, other.n_heads, p_min=p_min)
        self.other = other
        self.lengths: list[int] = []

    def begin(self, history: History) -> None:
        super().begin(history)
        self.other.context.clear(0)
        self.other.pending = np.zeros((1, WIDTH), np.float32)

    def observe(self, target: ModelContext, run: Run) -> None:
        assert isinstance(target, LlamaContext)
        super().observe(target, run)
        self.other.process(target, run)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        expected = self.other.draft(self._history, limit, sampler)
        draft = super().draft(limit, sampler)
        assert list(draft.tokens) == expected
        self.lengths.append(len(expected))
        return draft

    def accept(self, n_accepted: int) -> None:
        super().accept(n_accepted)
        self.other.accept(self._history)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("chains")
    return {exact: step35(folder / f"{exact}.gguf", 3, exact=exact) for exact in (True, False)}


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "random"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("p_min", [0.0, 0.03, 0.5])
@pytest.mark.parametrize("n_ubatch", [8, 512])
def test_drafts_of_heads_that_lag_behind(
    files: dict[bool, Path], exact: bool, params: SamplingParams, p_min: float, n_ubatch: int
) -> None:
    """With a ``p_min`` the later heads are not asked in each round, and behind n-grams no head is.
    Batches of 8 rows are read when they are full, by all heads at once."""
    with bench("draft-mtp", 16, files[exact], **EXACT) as made:
        model = made.head.model
        given = head_params("draft-mtp", model, made.target)
        sizes = {"n_ctx": 1024, "n_ubatch": n_ubatch, **EXACT, **given}
        with (
            LlamaContext(model, ContextParams(**sizes)) as head,
            LlamaContext(model, ContextParams(**{**sizes, "n_ubatch": 512})) as other,
        ):
            drafter = Compared(head, AtOnce(other, 3, p_min), p_min)
            sequence = made.open([NgramSimple(2, 16), drafter], [16, 3])
            made.answer(sequence, prompt(70), params, 100)
        assert len(drafter.lengths) > 10
        if exact:
            assert 3 in drafter.lengths
        if p_min and not exact:
            assert len(set(drafter.lengths)) > 1


@pytest.mark.parametrize("arch", ["hy_v3", "mimo2"])
def test_other_architectures_with_chains(tmp_path: Path, arch: str) -> None:
    with bench("draft-mtp", 3, random_chain(tmp_path / "chain.gguf", arch, 3), **EXACT) as made:
        model = made.head.model
        sizes = {"n_ctx": 1024, **EXACT, **head_params("draft-mtp", model, made.target)}
        expected = made.plain(prompt(20), WARM, 40)
        with LlamaContext(model, ContextParams(**sizes)) as other:
            drafter = Compared(made.head, AtOnce(other, 3, 0.0), 0.0)
            assert made.answer(made.open([drafter], [3]), prompt(20), WARM, 40) == expected
        assert drafter.lengths.count(3) > 10


def test_a_text_that_turns_back(files: dict[bool, Path]) -> None:
    """Heads that have read unequally far are cut back, and read on."""
    with bench("draft-mtp", 3, files[False], **EXACT) as made:
        model = made.head.model
        sizes = {"n_ctx": 1024, **EXACT, **head_params("draft-mtp", model, made.target)}
        with LlamaContext(model, ContextParams(**sizes)) as other:
            drafter = Compared(made.head, AtOnce(other, 3, 0.03), 0.03)
            sequence = made.open([drafter], [3])
            text = [*prompt(40), *made.answer(sequence, prompt(40), WARM, 60)]
            assert len(set(drafter._seen)) > 1
            drafter.other.context.clear(0)
            keep = made.answer(sequence, text[:70], WARM, 1)
            assert len(keep) == 1
            assert sequence.progress.cached_tokens > 60


def test_no_longer_than_the_chain_and_no_longer_than_asked(files: dict[bool, Path]) -> None:
    with bench("draft-mtp", 8, files[True]) as made:
        made.answer(made.open([made.drafter()], [8]), prompt(20), n=41)
        assert made.drafted == 30
        short = MtpChain(made.head, 2)
        made.answer(made.open([short], [8]), prompt(20), n=31)
        assert made.drafted == 50
        assert len(short._seen) == 2


def test_a_chain_that_is_never_asked(files: dict[bool, Path]) -> None:
    with bench("draft-mtp", 0, files[True]) as made:
        sequence = made.open([made.drafter()], [0])
        made.answer(sequence, prompt(20), n=10)
        assert (made.drafted, sequence.progress.spec.events) == (0, [])


def test_a_head_that_is_not_there_is_refused(files: dict[bool, Path]) -> None:
    with bench("draft-mtp", 3, files[True]) as made:
        for head in (-1, 3):
            with pytest.raises(BackendError, match=f"no MTP head {head}"):
                made.head.decode_states(
                    Run(0, 0, [5], 1), np.zeros((1, WIDTH), np.float32), head=head
                )
        with pytest.raises(BackendError, match="no MTP head 0"):
            made.target.decode_states(Run(0, 0, [5], 1), np.zeros((1, WIDTH), np.float32), head=0)
    with (
        LlamaModel(files[True], ModelParams(load_mtp=False)) as model,
        pytest.raises(BackendError, match="was not loaded"),
    ):
        LlamaContext(model, ContextParams(64, mtp=True))


def test_states_of_all_heads_are_final(files: dict[bool, Path]) -> None:
    """Between drafts the cache holds pairs of the text, never a drafted one."""
    seen: list[Sequence[int]] = []
    with bench("draft-mtp", 3, files[True]) as made:
        drafter = made.drafter()
        assert isinstance(drafter, MtpChain)
        sequence = made.open([drafter], [3])
        made.answer(sequence, prompt(20), n=30)  # looks after every round
        seen.append(drafter._seen)
        assert drafter.n_positions <= len(sequence.history)
