"""Heads and the prompt: each chunk of it has to be observed, and how it is cut changes nothing.

A head that misses a chunk drafts on from a text with a hole in it, or not at all. The text stays
that of plain decoding either way, so what tells is what is drafted and how much of it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.engine import SequenceState
from gguf_spec.history import History
from gguf_spec.sampling import Sampler
from tests.drafters.blocks import block_bench
from tests.drafters.heads import EXACT, Bench, bench
from tests.drafters.seeded import gemma4, gemma4_assistant, prompt, step35
from tests.test_backend import PROMPTS

KINDS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark", "chain", "assistant")
kinds = pytest.mark.parametrize("kind", KINDS)
CHUNK = 32
N_PROMPT = 150  # five chunks, the last one short
SMALL = {"n_batch": CHUNK, "n_ubatch": CHUNK}
Counts = tuple[list[int], int, int]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path | None]]:
    """Targets with heads that are always right, which the tiny family has none of."""
    folder = tmp_path_factory.mktemp("made up")
    return {
        "chain": (step35(folder / "step35.gguf", 3, exact=True), None),
        "assistant": (
            gemma4(folder / "gemma4.gguf", exact=True),
            gemma4_assistant(folder / "assistant.gguf", exact=True),
        ),
    }


@contextmanager
def opened(
    kind: str, made_up: dict[str, tuple[Path, Path | None]], **sizes: int
) -> Iterator[tuple[Bench, list[int]]]:
    """A bench for ``kind`` under exact settings, and a prompt of ``N_PROMPT`` tokens."""
    given: dict[str, Any] = {**EXACT, **sizes}
    if kind in made_up:
        with bench("draft-mtp", 3, *made_up[kind], **given) as made:
            yield made, prompt(N_PROMPT)
        return
    blocks = kind in ("draft-dflash", "draft-dspark")
    with (block_bench if blocks else bench)(kind, 3, **given) as made:
        tokens = made.prompt("\n".join(PROMPTS))
        yield made, (tokens * 2)[:N_PROMPT]


class Deaf:
    """Passes everything on to a drafter but one decode of the target, the one that starts at
    ``start``."""

    def __init__(self, inner: Drafter, start: int) -> None:
        self._inner, self._start = inner, start
        self.spec_type = inner.spec_type
        self.missed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, history: History) -> None:
        self._inner.begin(history)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        return self._inner.draft(limit, sampler)

    def observe(self, target: ModelContext, run: Run) -> None:
        if run.start == self._start:
            self.missed += 1
        else:
            self._inner.observe(target, run)


def counted(made: Bench, sequence: SequenceState, tokens: list[int]) -> Counts:
    """60 tokens after ``tokens``, how many were drafted, and how many of them stood."""
    text = made.answer(sequence, tokens, n=60)
    total = sequence.progress.spec.total
    return text, total.num_draft_tokens, total.num_accepted_tokens


@kinds
def test_prompts_longer_than_a_batch(kind: str, made_up: dict[str, Any]) -> None:
    """In one decode, in microbatches of one batch, and in batches."""
    found = []
    for sizes in ({}, {"n_ubatch": CHUNK}, SMALL):
        with opened(kind, made_up, **sizes) as (made, tokens):
            found.append(counted(made, made.open([made.drafter()], [3]), tokens))
    assert found[1:] == found[:1] * 2
    assert found[0][2] > 15


@kinds
def test_a_prompt_that_goes_on_from_a_cached_one(kind: str, made_up: dict[str, Any]) -> None:
    """The rest of it is longer than a batch, and drafts are those of a fresh sequence."""
    with opened(kind, made_up, **SMALL) as (made, tokens):
        expected = counted(made, made.open([made.drafter()], [3]), tokens)
        made.target.clear(0)
        sequence = made.open([made.drafter()], [3])
        made.answer(sequence, tokens[:70], n=1)
        assert counted(made, sequence, tokens) == expected
        if made.target.removes_tail:
            assert sequence.progress.cached_tokens >= 69


@kinds
@pytest.mark.parametrize("chunk", [*range(0, N_PROMPT, CHUNK), N_PROMPT - 1])
def test_a_chunk_that_is_missed_is_noticed(kind: str, chunk: int, made_up: dict[str, Any]) -> None:
    """By what the two tests above compare: they would fail if a chunk were not handed on."""
    with opened(kind, made_up, **SMALL) as (made, tokens):
        sequence = made.open([made.drafter()], [3])
        text, drafted, accepted = counted(made, sequence, tokens)
        deaf = Deaf(made.drafter(), chunk)
        engine_tokens, deaf_drafted, deaf_accepted = raw_counts(made, deaf, tokens)
        assert engine_tokens == text
        if chunk == N_PROMPT - 1 and not sequence.checkpoints.needed:
            assert deaf.missed == 0, "the last token is decoded with the others"
            return
        assert deaf.missed == 1
        if kind == "assistant" and chunk < N_PROMPT - 1:
            # It reads the target's own cache, and of the states the newest alone.
            assert (deaf_drafted, deaf_accepted) == (drafted, accepted)
        else:
            assert (deaf_drafted, deaf_accepted) != (drafted, accepted)
            assert deaf_accepted < accepted


def raw_counts(made: Bench, drafter: Any, tokens: list[int]) -> Counts:
    """As ``counted``, without a look into the caches, which are wrong."""
    made.target.clear(0)
    sequence = made.open([drafter], [3])
    text = []
    for step in made.engine.generate(sequence, made.request(tokens, 60)):
        text += step.tokens
    total = sequence.progress.spec.total
    return text, total.num_draft_tokens, total.num_accepted_tokens
