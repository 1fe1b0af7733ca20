"""Hundreds of rounds with a drafter of each kind leave the memory of the process as it was."""

from __future__ import annotations

import psutil
import pytest

from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.ngram_registry import make_ngram
from gguf_spec.profile_schema import Spec
from gguf_spec.setup import NGRAM_TYPES
from tests.drafters.heads import GREEDY
from tests.drafters.test_two_neural import FILES, Side, side_by_side
from tests.test_backend import PROMPTS

ROUNDS = 500
N_GRAMS = Spec.model_validate(
    {
        "ngram-simple": {"size_n": 3, "size_m": 8},
        "ngram-map-k": {"size_n": 3, "size_m": 8},
        "ngram-map-k4v": {"size_n": 3, "size_m": 8},
        "ngram-mod": {"n_match": 3, "n_min": 2, "n_max": 8},
    }
)


def rounds(made: Side, drafters: list[Drafter], seed: int) -> tuple[int, int]:
    """Rounds and drafts of an answer; where there are heads, ``answer`` looks at their caches."""
    policy = FixedPolicy([8 if d.spec_type in NGRAM_TYPES else 3 for d in drafters])
    _, sequence = made.answer(drafters, policy, PROMPTS[seed % len(PROMPTS)], GREEDY, 300)
    return sequence.progress.spec.steps, sequence.progress.spec.total.num_drafts


@pytest.mark.parametrize("kind", [*NGRAM_TYPES, *FILES])
def test_memory_stays_flat(kind: str) -> None:
    """In llama.cpp, DSpark was reported to take more memory with every draft."""
    process = psutil.Process()
    is_ngram = kind in NGRAM_TYPES
    model = "tiny-mtp" if kind == "draft-mtp" else "tiny-target"
    with side_by_side([] if is_ngram else [kind], model, width=8) as made:
        drafter = make_ngram(kind, N_GRAMS) if is_ngram else made.drafter(kind)
        for seed in range(2):  # pages that are touched for the first time
            rounds(made, [drafter], seed)
        before, done, drafted = process.memory_info().rss, 0, 0
        seed = 0
        while done < ROUNDS:
            seed += 1
            n_rounds, n_drafts = rounds(made, [drafter], seed)
            done += n_rounds
            drafted += n_drafts
        assert drafted > (50 if is_ngram else 450)
        assert process.memory_info().rss - before < 2 << 20
