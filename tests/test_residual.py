"""Residual verification: its arithmetic, and the texts that come of it on distributions of a few
tokens. ``scripts/check_sampling.py toy`` draws 50,000 texts for each case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gguf_spec import residual as rules
from gguf_spec import verify
from gguf_spec.residual import residual, stands
from gguf_spec.sampling import Distribution, DraftWay, Drawn, Row, Sampler, SamplingParams
from gguf_spec.sampling.noise import ACCEPT, RESIDUAL, XTC, draft_counter
from gguf_spec.verify import Verdict, accept_or_replace
from tests.distributions import OFF, PAIRS, Pair, chi_square_tail, draw, expected, p_value

LENGTHS = range(1, 6)
LEAST_P = 0.001
TEXTS = range(1000)


def made(*probs: float) -> Distribution:
    """A distribution over the tokens 0, 1, … with these probabilities; 0 is left out."""
    p = np.array(probs)
    ids = p.nonzero()[0]
    return Distribution(ids, p[ids] / p.sum())


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    weights = st.one_of(st.just(0.0), st.floats(1e-9, 1.0))
    values = draw(st.lists(weights, min_size=5, max_size=5).filter(any))
    return made(*values)


def dense(probs: Distribution, n: int = 5) -> NDArray[np.float64]:
    return np.array([probs.of(token) for token in range(n)])


# The arithmetic


def test_a_worked_example() -> None:
    target, draft = made(0.5, 0.3, 0.2, 0.0), made(0.2, 0.0, 0.4, 0.4)
    assert stands(0, target, draft, 0.999)
    assert stands(2, target, draft, 0.49)
    assert not stands(2, target, draft, 0.51)
    assert not stands(3, target, draft, 1e-16)
    left = residual(target, draft)
    assert left.ids.tolist() == [0, 1]
    assert left.probs.tolist() == pytest.approx([0.5, 0.5])


@given(distributions(), distributions())
def test_drafts_that_stand_and_replacements_add_up_to_the_target(
    target: Distribution, draft: Distribution
) -> None:
    p, q = dense(target), dense(draft)
    kept = np.minimum(p, q)
    left = residual(target, draft)
    assert left.probs.sum() == pytest.approx(1.0)
    assert (left.probs > 0.0).all()
    assert (np.diff(left.ids) > 0).all()
    np.testing.assert_allclose(kept + (1.0 - kept.sum()) * dense(left), p, atol=1e-12)


@given(distributions(), distributions(), st.integers(-2, 6), st.floats(1e-16, 1 - 1e-16))
def test_a_token_stands_by_the_quotient(
    target: Distribution, draft: Distribution, token: int, uniform: float
) -> None:
    p, q = target.of(token), draft.of(token)
    if q > 0.0 and abs(uniform - p / q) > 1e-9:
        assert stands(token, target, draft, uniform) == (uniform < p / q)
    if not p:
        assert not stands(token, target, draft, uniform)


@given(distributions())
def test_equal_distributions_leave_nothing_to_replace(target: Distribution) -> None:
    for token in target.ids.tolist():
        assert stands(token, target, target, 1.0 - 2.0**-53)
    assert residual(target, target) is target  # it is never asked, but must not divide by 0


def test_a_large_vocabulary_costs_what_its_candidates_cost() -> None:
    target = Distribution(np.array([7, 90_000, 262_143]), np.array([0.5, 0.25, 0.25]))
    draft = Distribution(np.array([8, 90_000]), np.array([0.5, 0.5]))
    left = residual(target, draft)
    assert left.ids.tolist() == [7, 262_143]
    assert left.probs.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert residual(draft, target).ids.tolist() == [8, 90_000]
    assert target.of(262_144) == target.of(-1) == draft.of(7) == 0.0


# The rule


def rule(
    drawn: list[Drawn], n_decoded: int, targets: list[Distribution], uniform: float
) -> Verdict:
    return accept_or_replace(
        n_decoded,
        drawn,
        targets.__getitem__,
        lambda i: uniform,
        lambda i, probs: int(probs.ids[-1]),
        lambda i: 100 + i,
    )


def test_drafts_stand_until_one_does_not() -> None:
    one, other = made(0.0, 1.0), made(0.5, 0.0, 0.5)
    drawn = [Drawn(1, one), Drawn(1, one), Drawn(1, one)]
    assert rule(drawn, 3, [one, one, one], 0.5) == Verdict(3, 103, "bonus")
    assert rule(drawn, 3, [one, other, one], 0.5) == Verdict(1, 2, "recovered")
    assert rule(drawn, 3, [other], 0.5) == Verdict(0, 2, "recovered")


def test_what_was_drawn_is_tested_even_if_it_was_not_decoded() -> None:
    one, other = made(0.0, 1.0), made(0.5, 0.0, 0.5)
    drawn = [Drawn(1, one), Drawn(1, one)]
    assert rule(drawn, 1, [one, one], 0.5) == Verdict(1, 1, "bonus")
    assert rule(drawn, 0, [one], 0.5) == Verdict(0, 1, "bonus")
    assert rule(drawn, 1, [one, other], 0.5) == Verdict(1, 2, "recovered")
    assert rule(drawn, 0, [other], 0.5) == Verdict(0, 2, "recovered")


# Texts of three tokens


@pytest.mark.parametrize("n_draft", LENGTHS)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_texts_come_as_often_as_in_plain_decoding(pair: Pair, n_draft: int) -> None:
    """So many texts are enough to find what is broken below."""
    assert p_value(draw(pair, "own", n_draft, TEXTS, n_draft), expected(pair)) > LEAST_P


def test_texts_without_drafts_come_as_often_as_they_should() -> None:
    for pair in PAIRS:
        assert p_value(draw(pair, "coupled", 0, TEXTS, 6), expected(pair)) > LEAST_P


@pytest.mark.parametrize("way", ["coupled", "greedy"])
def test_matched_texts_are_those_of_the_seed_whatever_is_drafted(way: DraftWay) -> None:
    """So they come as often, with drafts of any length."""
    for pair in PAIRS:
        few = draw(pair, way, 0, range(80), 6)
        for n_draft in LENGTHS:
            np.testing.assert_array_equal(draw(pair, way, n_draft, range(80), 6), few)


def _without_residual(target: Distribution, draft: Distribution) -> Distribution:
    return target


def _by_index(target: Distribution, draft: Distribution) -> Distribution:
    """What llama.cpp's examples/speculative does: candidates are taken for the same tokens."""
    taken = np.zeros(len(target.ids))
    n = min(len(target.ids), len(draft.ids))
    taken[:n] = draft.probs[:n]
    left = np.maximum(target.probs - taken, 0.0)
    return Distribution(target.ids[left > 0.0], left[left > 0.0] / left.sum())


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (_without_residual, "strangers"),
        (_without_residual, "supports that overlap"),
        (_without_residual, "top-k"),
        (_by_index, "supports that overlap"),
        (_by_index, "supports that do not"),
        (_by_index, "top-k"),
    ],
)
def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch, broken: object, name: str) -> None:
    monkeypatch.setattr(verify, "residual", broken)
    pair = next(pair for pair in PAIRS if pair.name == name)
    assert p_value(draw(pair, "own", 3, TEXTS, 3), expected(pair)) < LEAST_P


def test_a_rule_that_accepts_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(token: int, target: Distribution, draft: Distribution, uniform: float) -> bool:
        return rules.stands(token, target, draft, 0.8 * uniform)

    monkeypatch.setattr(verify, "stands", eager)
    assert p_value(draw(PAIRS[1], "own", 3, TEXTS, 3), expected(PAIRS[1])) < LEAST_P


def test_the_chi_square_tail_is_that_of_the_tables() -> None:
    for x, freedom, tail in (
        (3.841, 1, 0.05), (10.828, 1, 0.001), (18.307, 10, 0.05), (29.588, 10, 0.001),
        (124.342, 100, 0.05), (149.449, 100, 0.001), (77.929, 100, 0.95), (0.0, 4, 1.0),
    ):  # fmt: skip
        assert chi_square_tail(x, freedom) == pytest.approx(tail, rel=2e-3)


# The noise


COUNTERS = (XTC, ACCEPT, RESIDUAL, *(draft_counter(i) for i in (0, 1, 2, 64)))


def test_decisions_are_independent_of_each_other_and_of_the_text() -> None:
    """At a position, and at the position beside it."""
    n = 8000
    sampler, token = Sampler(SamplingParams(seed=5)), np.array([7])
    rows = [
        [float(sampler.noise(p, token)[0]), *(sampler.uniform(p, c) for c in COUNTERS)]
        for p in range(n + 1)
    ]
    here, beside = np.array(rows[:-1]).T, np.array(rows[1:]).T
    correlations = np.corrcoef([*here, *beside])
    np.fill_diagonal(correlations, 0.0)
    # The correlation of independent values has the standard deviation 1 / sqrt(n); 4.5, because
    # there are 120 pairs.
    assert np.abs(correlations).max() < 4.5 / n**0.5
    for uniforms in here[1:]:
        # Kolmogorov-Smirnov: 2.3 has a probability of 5e-5.
        assert np.abs(np.sort(uniforms) - np.arange(n) / n).max() * n**0.5 < 2.3


@pytest.mark.parametrize("counter", [None, RESIDUAL, draft_counter(1)])
def test_50000_draws_come_as_often_as_the_softmax_says(counter: int | None) -> None:
    """With the noise of the text, and with that of other decisions. Pairs of draws at neighbouring
    positions come as often as independent ones do."""
    row: Row = np.array([1.0, 0.0, -0.5, 2.0, -3.0, 0.7], np.float32)
    sampler = Sampler(replace(OFF, seed=8))
    target = sampler.distribution(row)
    draws = range(50_000)
    if counter is None:
        scores = np.log(target.probs)
        tokens = [int((scores + sampler.noise(i, target.ids)).argmax()) for i in draws]
    else:
        tokens = [target.drawn(sampler.uniform(i, counter)) for i in draws]
    assert p_value(np.bincount(tokens, minlength=6), target.probs) > LEAST_P
    pairs = np.zeros((6, 6), np.int64)
    np.add.at(pairs, (tokens[:-1:2], tokens[1::2]), 1)
    assert p_value(pairs, np.outer(target.probs, target.probs)) > LEAST_P


def test_every_number_draws_a_token() -> None:
    target = made(0.0, 0.25, 0.0, 0.75)
    numbers = (2.0**-53, 0.2499, 0.25, 0.2501, 1.0 - 2.0**-53)
    assert [target.drawn(u) for u in numbers] == [1, 1, 3, 3, 3]
    short = Distribution(np.array([4, 9]), np.array([0.5, 0.5 - 1e-12]))
    assert short.drawn(1.0 - 2.0**-53) == 9


def test_own_draws_come_from_the_filtered_distribution_that_they_name() -> None:
    row: Row = np.array([1.0, 0.0, -0.5, 2.0, -3.0, 0.7], np.float32)
    params = SamplingParams(temperature=0.8, top_k=4, top_p=1.0, min_p=0.0, seed=2)
    target = Sampler(params)
    own = target.for_drafter("own")
    counts = np.zeros(6, np.int64)
    for position in range(4000):
        one = own.propose(row, position, (), 0, 0.0)
        assert one is not None
        assert one.probs is not None
        counts[one.token] += 1
    wanted = target.distribution(row)
    assert np.array_equal(one.probs.probs, wanted.probs)
    assert p_value(counts, dense(wanted, 6)) > LEAST_P


def test_p_min_looks_at_the_likeliest_where_a_draw_must_not_decide() -> None:
    row: Row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
    own, coupled = sampler.for_drafter("own"), sampler.for_drafter("coupled")
    drawn = [own.propose(row, position, (), 0, 0.49) for position in range(60)]
    assert {one.token for one in drawn if one is not None} == {0, 1, 2}
    assert None not in drawn
    assert own.propose(row, 0, (), 0, 0.51) is None
    chosen = [coupled.propose(row, position, (), 0, 0.49) for position in range(60)]
    assert {one and one.token for one in chosen} == {0, None}


def test_ways_of_drafting() -> None:
    row: Row = np.array([1.0, 0.0, -0.5, 2.0, -3.0, 0.7], np.float32)
    params = replace(OFF, xtc_probability=1.0, dynatemp_range=0.5)
    sampler = Sampler(params)
    greedy = [sampler.for_drafter("greedy").propose(row, i, (), 0, 0.0) for i in range(40)]
    assert greedy == [Drawn(3, None)] * 40
    coupled = [sampler.for_drafter("coupled").propose(row, i, (), 0, 0.0) for i in range(40)]
    assert coupled == [Drawn(sampler.sample(row, i), None) for i in range(40)]
