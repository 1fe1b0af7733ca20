"""Drafts from DFlash 2 heads: the path through the lattice is the one of the drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.sampling import Row, Sampler, SamplingParams
from tests.drafters.blocks import block_bench, dflash2
from tests.drafters.heads import EXACT, GREEDY
from tests.test_backend import PROMPTS

#: So hot that a drawn token is often not the likeliest one of its slot.
HOT = SamplingParams(temperature=2.0, seed=1, top_k=0, top_p=1.0, min_p=0.0)
Choose = Callable[[Row, int], int]


def _walk(lattices: list[Row], k: int, n_vocab: int, choose: Choose, stray: str = "") -> list[int]:
    """The path through a lattice, of which each row is k ids and then k scores for each of k
    predecessors; ``stray`` goes wrong in one of the ways that are easily taken for right."""
    tokens: list[int] = []
    place = 0
    for slot, lattice in enumerate(lattices):
        ids, scores = lattice[:k].astype(int), lattice[k : k + k * k].reshape(k, k)
        if stray == "transposed":
            scores = scores.T
        row = np.full(n_vocab, -np.inf, np.float32)
        row[ids] = scores[0 if stray == "first predecessor" else place]
        tokens.append(choose(row, slot))
        place = int((ids == tokens[-1]).argmax())
        if stray == "likeliest predecessor":
            place = int(row[ids].argmax())
    return tokens


@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "hot"])
def test_a_lattice_is_walked_from_the_token_before(tmp_path: Path, params: SamplingParams) -> None:
    """The selector outweighs the slots, so that every wrong turn shows."""
    k, n_slots = 4, 7
    file, _ = dflash2(tmp_path / "dflash2.gguf", k, strength=3.0)
    strays = ["transposed", "first predecessor"]
    if params is HOT:
        strays.append("likeliest predecessor")
    differ = dict.fromkeys(strays, 0)
    with block_bench("draft-dflash", n_slots, file=file, **EXACT) as made:
        for text in PROMPTS[:4]:
            drafter = made.drafter()
            sequence = made.open([drafter], [n_slots])
            made.answer(sequence, made.prompt(text), params, 40)
            drafter.begin(sequence.history)
            sampler = Sampler(params)
            tokens = drafter.draft(n_slots, sampler).tokens
            start, n_vocab = len(sequence.history), made.head.n_vocab
            lattices = [made.head.own_state(row).copy() for row in range(1, n_slots + 1)]

            def choose(row: Row, slot: int, start: int = start, by: Sampler = sampler) -> int:
                return by.sample(row, start + slot, [])

            path = _walk(lattices, k, n_vocab, choose)
            assert list(tokens) == path[: len(tokens)]
            assert len(tokens) == n_slots or made.head.is_end(tokens[-1])
            for stray in strays:
                wrong = _walk(lattices, k, n_vocab, choose, stray)
                differ[stray] += wrong[: len(tokens)] != list(tokens)
    assert all(differ.values()), differ
