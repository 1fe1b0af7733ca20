"""How often drafts stand on the tiny models at temperature 1, by the way that they are drawn.

``scripts/check_sampling.py models`` measures the same on 10,000 tokens. Here tolerances follow from
the number of tested tokens: a share of n coins has a standard deviation of at most .5 / sqrt(n).
"""

from __future__ import annotations

import pytest

from tests.acceptance import PAIRS, PROMPTS, measure, session, text_of

N = 800


@pytest.mark.parametrize("kind", PAIRS)
def test_acceptance_of_the_ways(kind: str) -> None:
    own, coupled, greedy = (measure(kind, way, N) for way in ("own", "coupled", "greedy"))
    # Four standard deviations of the coins that were thrown: about .06.
    assert abs(own.rate - own.overlap) < 4 * own.deviation
    # Of 10,000 tokens: own .530, coupled .482, greedy .299; with the MTP head .698, .627, .299.
    # That much apart, 800 tokens each put ways in order with more than five standard deviations.
    assert min(own.rate, coupled.rate) > greedy.rate + 0.05
    assert coupled.rate > 0.7 * own.rate


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("way", ["coupled", "auto"])
def test_matched_text_is_that_of_the_seed(kind: str, way: str) -> None:
    with session(kind, draft_sampling=way) as drafting, session(kind, types=["none"]) as plain:
        for seed, prompt in enumerate(PROMPTS):
            assert text_of(drafting, prompt, seed, 60) == text_of(plain, prompt, seed, 60)


@pytest.mark.parametrize("kind", PAIRS)
def test_residual_text_is_repeated_by_its_seed(kind: str) -> None:
    texts = []
    for _ in range(2):
        with session(kind, verify="residual") as made:
            texts.append([text_of(made, prompt, 5, 60) for prompt in PROMPTS[:2]])
            assert made.sequence.stack.sampling.rule == "residual"
    assert texts[0] == texts[1]
    with session(kind, types=["none"]) as plain:
        assert texts[0] != [text_of(plain, prompt, 5, 60) for prompt in PROMPTS[:2]]
