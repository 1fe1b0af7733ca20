"""Sampling against slow, obvious references, and its noise against the Gumbel distribution."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from gguf_spec.errors import RunError
from gguf_spec.sampling import Sampler, SamplingParams, candidates, probability
from gguf_spec.sampling.maxima import Maxima
from gguf_spec.sampling.noise import Noise

Row = NDArray[np.float32]
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
EULER = 0.5772156649015329


def float32(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, width=32)


LOGITS = (
    float32(-10, 10),
    float32(-10_000, 10_000),
    st.sampled_from([-3.0, 0.0, 1.0, 1.5]),  # many ties
    st.one_of(float32(-5, 5), st.just(-math.inf)),
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    n_vocab = draw(st.one_of(st.integers(1, 12), st.integers(13, 90)))
    elements = draw(st.sampled_from(LOGITS))
    row = draw(hnp.arrays(np.float32, n_vocab, elements=elements))
    if draw(st.booleans()):
        row[:] = row[0]
    if row.max() == -math.inf:
        row[n_vocab // 2] = 0.5
    return row


@st.composite
def wide_rows(draw: st.DrawFn) -> Row:
    """Thousands of tokens, with ties, so that the shortcuts for large vocabularies are taken."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_vocab = draw(st.sampled_from([3000, 4096, 5003, 9000]))
    row = rng.normal(0.0, draw(st.sampled_from([0.1, 3.0, 40.0])), n_vocab)
    row = np.round(row, draw(st.integers(0, 4))).astype(np.float32)
    if draw(st.booleans()):
        row[rng.random(n_vocab) < draw(st.sampled_from([0.01, 0.9, 0.999]))] = -math.inf
        row[rng.integers(n_vocab)] = 0.25
    return row


FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.05, 0.8, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 1000, 5000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**64),
)


def reference(logits: Row, params: SamplingParams) -> list[int]:
    """llama.cpp's chain with a full sort: top-k, top-p (of what is left), min-p."""
    kept = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if params.top_k > 0:
        kept = kept[: params.top_k]
    peak = float(logits[kept[0]])
    if params.top_p < 1.0:
        weights = [math.exp(float(logits[i]) - peak) for i in kept]
        reach, total = 0.0, math.fsum(weights)
        for n, weight in enumerate(weights, 1):
            reach += weight
            if reach >= params.top_p * total:
                kept = kept[:n]
                break
    if params.min_p > 0.0:
        floor = np.float32(peak + math.log(params.min_p))
        kept = [i for i in kept if logits[i] >= floor]
    return sorted(kept)


@settings(max_examples=400, deadline=None)
@given(st.one_of(rows(), rows(), wide_rows()), FILTERS)
def test_candidates_equal_the_reference(logits: Row, params: SamplingParams) -> None:
    before = logits.copy()
    got = candidates(logits, params).tolist()
    if got != reference(logits, params):
        # The sum that top-p compares with may differ in its last digits; nothing else may.
        assert 0.0 < params.top_p < 1.0
        few = reference(logits, replace(params, top_p=params.top_p * (1 - 1e-6)))
        many = reference(logits, replace(params, top_p=params.top_p * (1 + 1e-6)))
        assert set(few) <= set(got) <= set(many)
        order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
        assert got == sorted(order[: len(got)])
    assert np.array_equal(logits, before)


@settings(max_examples=300, deadline=None)
@given(st.one_of(rows(), wide_rows()), FILTERS, st.booleans(), st.integers(0, 10**6))
def test_sample_is_gumbel_max_over_the_candidates(
    logits: Row, params: SamplingParams, unfiltered: bool, position: int
) -> None:
    if unfiltered:
        params = replace(params, top_k=0, top_p=1.0, min_p=0.0)
    sampler = Sampler(params)
    ids = np.arange(len(logits)) if unfiltered else candidates(logits, params)
    relative = logits[ids].astype(np.float64) - float(logits.max())
    scores = relative / params.temperature + sampler.noise(position, ids)
    assert sampler.sample(logits, position) == ids[scores.argmax()]


def test_a_token_far_below_the_first_stage_can_win() -> None:
    # One token above 2000 equal ones that lie just outside of the first stage (10 temperatures).
    # Together they have 2000 e^-11 / (1 + 2000 e^-11) = 3.2 % of the probability.
    logits = np.full(2001, -11.0, np.float32)
    logits[7] = 0.0
    sampler = Sampler(replace(OFF, seed=5))
    tail = sum(sampler.sample(logits, i) != 7 for i in range(4000))
    # 129 expected, standard deviation 11; five of them.
    assert 129 - 56 < tail < 129 + 56


@given(rows())
@settings(deadline=None)
def test_greedy_is_argmax(logits: Row) -> None:
    for temperature in (0.0, -1.0):
        sampler = Sampler(SamplingParams(temperature=temperature))
        assert sampler.greedy
        assert sampler.sample(logits, 3) == int(np.argmax(logits))


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = np.array([1, 7, 3, 7, 7], np.float32)
    assert Sampler(SamplingParams()).sample(logits, 0) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("row", ["one NaN", "all NaN", "inf", "all -inf"])
def test_unusable_logits_are_an_error(row: str, filtered: bool, temperature: float) -> None:
    logits = np.arange(100, dtype=np.float32)
    if row == "one NaN":
        logits[3] = math.nan
    elif row == "inf":
        logits[3] = math.inf
    else:
        logits[:] = math.nan if row == "all NaN" else -math.inf
    params = SamplingParams() if filtered else OFF
    sampler = Sampler(replace(params, temperature=temperature))
    with pytest.raises(RunError, match=r"position 17: the largest is (NaN|inf|-inf)"):
        sampler.sample(logits, 17)


def test_most_likely_token_survives_every_filter() -> None:
    logits = np.array([0.1, 0.30000001192092896, 0.2], np.float32)
    for params in (
        SamplingParams(top_k=1, top_p=0.0, min_p=1.0),
        SamplingParams(top_k=0, top_p=1.0, min_p=1.0),
        SamplingParams(top_k=0, top_p=-1.0, min_p=5.0),
    ):
        assert candidates(logits, params).tolist() == [1]


def test_worked_example_of_the_filters() -> None:
    p = np.array([0.05, 0.4, 0.2, 0.3, 0.05])
    logits = np.log(p).astype(np.float32)
    for kwargs, kept in (
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 4}, [0, 1, 2, 3]),  # of the two at 0.05 the lower id
        ({"top_p": 0.69}, [1, 3]),
        ({"top_p": 0.71}, [1, 2, 3]),
        # After top-k 2 the first token has 0.4 / 0.7 = 0.57 of what is left.
        ({"top_k": 2, "top_p": 0.56}, [1]),
        ({"top_k": 2, "top_p": 0.58}, [1, 3]),
        ({"min_p": 0.49}, [1, 2, 3]),
        ({"min_p": 0.51}, [1, 3]),
        ({"top_p": 0.69, "min_p": 0.1}, [1, 3]),
    ):
        assert candidates(logits, replace(OFF, **kwargs)).tolist() == kept, kwargs


def test_top_k_finds_its_tokens_however_far_down() -> None:
    logits = np.array([-5000.0, 0.0, -100.0, -9000.0, -20.0], np.float32)
    for k, kept in ((2, [1, 4]), (3, [1, 2, 4]), (4, [0, 1, 2, 4])):
        assert candidates(logits, replace(OFF, top_k=k)).tolist() == kept


def test_top_p_is_reached_by_equality() -> None:
    # Weights of exactly 1: two of four are exactly one half.
    logits = np.zeros(4, np.float32)
    assert candidates(logits, replace(OFF, top_p=0.5)).tolist() == [0, 1]
    assert candidates(logits, replace(OFF, top_p=0.5, top_k=2)).tolist() == [0]


# The noise


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    ids = np.array([0, 1, 5, 262_143, 5])
    sampler = Sampler(replace(OFF, seed=11))
    together = sampler.noise(40, ids)
    assert together[2] == together[4]
    sampler.sample(np.zeros(8, np.float32), 1)
    for token, noise in zip(ids, together, strict=True):
        assert Sampler(replace(OFF, seed=11)).noise(40, np.array([token]))[0] == noise
    assert ids.tolist() == [0, 1, 5, 262_143, 5]
    # Greedy or not, and whatever the filters: a drafter may have other ones.
    assert np.array_equal(Sampler(SamplingParams(seed=11)).noise(40, ids), together)


def test_noise_of_today_is_noise_of_tomorrow() -> None:
    """A seed gives the same text in every version: values computed once with Python integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    for seed in (0, 1, 2**63, -1):
        for position in (0, 1, 77, 100_000):
            key = mix(mix(seed & mask ^ golden) + position * golden & mask)
            for token in (0, 1, 49_151):
                uniform = ((mix(token * golden + key & mask) >> 12) + 0.5) / 2**52
                noise = Sampler(replace(OFF, seed=seed)).noise(position, np.array([token]))[0]
                assert noise == pytest.approx(-math.log(-math.log(uniform)), rel=1e-12)


def test_seeds_wrap_at_64_bits() -> None:
    def noise(seed: int) -> list[float]:
        return Sampler(replace(OFF, seed=seed)).noise(3, np.arange(20)).tolist()

    assert noise(-1) == noise(2**64 - 1)
    assert noise(2**64 + 5) == noise(5)
    assert noise(-(2**70)) == noise(0)
    assert len({tuple(noise(s)) for s in (0, 1, 2, -1, 2**63, 2**32)}) == 6


@pytest.mark.parametrize("axis", ["token", "position", "seed"])
def test_noise_has_the_gumbel_distribution(axis: str) -> None:
    n = 20_000
    if axis == "token":
        noise = Sampler(replace(OFF, seed=3)).noise(9, np.arange(n))
    elif axis == "position":
        sampler = Sampler(replace(OFF, seed=3))
        noise = np.concatenate([sampler.noise(i, np.array([42])) for i in range(n)])
    else:
        one = np.array([42])
        noise = np.concatenate([Sampler(replace(OFF, seed=s)).noise(9, one) for s in range(n)])
    # Kolmogorov-Smirnov: D * sqrt(n) > 1.95 has a probability of 0.001 (2 exp(-2 * 1.95^2)).
    cdf = np.exp(-np.exp(-np.sort(noise)))
    steps = np.arange(n + 1) / n
    distance = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    assert distance * math.sqrt(n) < 1.95
    # Mean and variance: standard errors 1.28 / sqrt(n) and sqrt((5.4 - 1) / n) * 1.645; four each.
    assert abs(noise.mean() - EULER) < 4 * 1.283 / math.sqrt(n)
    assert abs(noise.var() - math.pi**2 / 6) < 4 * 1.645 * math.sqrt(4.4 / n)


@pytest.mark.parametrize("axis", ["token", "position", "seed"])
def test_noise_is_independent_between_neighbours(axis: str) -> None:
    n = 20_000
    ids = np.arange(n)
    noise = Sampler(replace(OFF, seed=3)).noise(9, ids)
    for step in (1, 2, 64, 2**32):
        if axis == "token":
            other = Sampler(replace(OFF, seed=3)).noise(9, ids + step)
        elif axis == "position":
            other = Sampler(replace(OFF, seed=3)).noise(9 + step, ids)
        else:
            other = Sampler(replace(OFF, seed=3 + step)).noise(9, ids)
        # The correlation of independent values has the standard deviation 1 / sqrt(n); four.
        assert abs(np.corrcoef(noise, other)[0, 1]) < 4 / math.sqrt(n), step
        # (seed, position, token) are not simply added up anywhere.
        assert not set(noise.tolist()) & set(other.tolist()) or axis == "token"


def test_frequencies_approach_the_distribution() -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(0.0, 1.5, 40).astype(np.float32)
    params = SamplingParams(temperature=1.3, top_k=15, top_p=0.95, min_p=0.03, seed=8)
    ids, p = Sampler(params).distribution(logits)
    assert ids.tolist() == candidates(logits, params).tolist()
    assert 5 < len(ids) < 15
    n = 50_000
    sampler = Sampler(params)
    counts = np.bincount([sampler.sample(logits, i) for i in range(n)], minlength=40)
    assert counts[ids].sum() == n
    chi2 = float((((counts[ids] - n * p) ** 2) / (n * p)).sum())
    # Chi-square with d degrees of freedom has mean d and variance 2 d; five standard deviations.
    d = len(ids) - 1
    assert chi2 < d + 5 * math.sqrt(2 * d)


@given(st.one_of(rows(), wide_rows()), st.integers(1, 6000), st.floats(-130, 130))
@settings(max_examples=200, deadline=None)
def test_maxima_find_what_a_full_sort_finds(logits: Row, k: int, floor: float) -> None:
    top = Maxima(logits)
    assert top.peak == logits.max()
    assert top.largest(k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()
    for limit in (floor, float(logits[k % len(logits)]), -math.inf, math.inf):
        expected = [i for i, x in enumerate(logits) if x >= np.float32(limit)]
        assert top.reaching(limit).tolist() == expected


@pytest.mark.parametrize("where", [0, 4095, 4096, 5002])
def test_maxima_do_not_lose_a_logit_or_a_nan_anywhere(where: int) -> None:
    logits = np.zeros(5003, np.float32)
    logits[where] = 3.0
    assert Maxima(logits).peak == 3.0
    assert Maxima(logits).largest(2).tolist() == [where, 1 if where == 0 else 0]
    logits[where] = math.nan
    assert math.isnan(Maxima(logits).peak)


@pytest.mark.parametrize("level", [-9.0, -1.0, 0.0, 2.5, 7.0, 12.0, 40.0, math.inf])
def test_noise_that_reaches_a_level_is_found_without_logarithms(level: float) -> None:
    n_vocab = 70_001
    for position in (0, 9, 100_000):
        noise = Noise(position + 3)
        exact = noise.gumbel(position, np.arange(n_vocab))
        found = noise.reaching(position, n_vocab, level)
        assert np.all(np.diff(found) > 0)
        missing = np.setdiff1d((exact >= level).nonzero()[0], found)
        assert not len(missing)
        # Hardly more than needed: the rounding is to 31 bits.
        assert len(found) - (exact >= level).sum() <= 2


@pytest.mark.parametrize("params", [OFF, SamplingParams(top_k=3, top_p=1.0, min_p=0.0)])
def test_distribution_is_a_softmax_at_the_temperature(params: SamplingParams) -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4])).astype(np.float32)
    ids, p = Sampler(replace(params, temperature=0.5)).distribution(logits)
    squares = np.array([0.01, 0.04, 0.09, 0.16])[ids]
    assert ids.tolist() == ([0, 1, 2, 3] if params is OFF else [1, 2, 3])
    assert p == pytest.approx(squares / squares.sum(), rel=1e-6)
    ids, p = Sampler(replace(params, temperature=0.0)).distribution(logits)
    assert (ids.tolist(), p.tolist()) == ([3], [1.0])


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-300, 5e-324])
@pytest.mark.parametrize("params", [OFF, SamplingParams()])
def test_tiny_temperatures_are_greedy(params: SamplingParams, temperature: float) -> None:
    logits = np.array([-1e4, 3.0, 1e4 - 1, 1e4, -math.inf], np.float32)
    params = replace(params, temperature=temperature)
    assert {Sampler(params).sample(logits, i) for i in range(50)} == {3}
    ids, p = Sampler(params).distribution(logits)
    assert p[ids == 3] == [1.0]


@pytest.mark.parametrize("temperature", [1e6, 1e35, 1e300, math.inf])
@pytest.mark.parametrize("params", [OFF, replace(OFF, top_k=3)])
def test_huge_temperatures_draw_evenly(params: SamplingParams, temperature: float) -> None:
    logits = np.array([5.0, -20.0, 0.0, 10.0, -9.0], np.float32)
    sampler = Sampler(replace(params, temperature=temperature))
    n = 2000
    counts = np.bincount([sampler.sample(logits, i) for i in range(n)], minlength=5)
    kept = [0, 1, 2, 3, 4] if params == OFF else [0, 2, 3]
    # Binomial: standard deviation sqrt(n q (1 - q)); five.
    q = 1 / len(kept)
    assert np.abs(counts[kept] - n * q).max() < 5 * math.sqrt(n * q * (1 - q))
    assert counts.sum() == counts[kept].sum()


def test_ties_are_drawn_evenly_even_when_cold() -> None:
    logits = np.array([9.0, 9.0, 1.0, 9.0], np.float32)
    sampler = Sampler(replace(OFF, temperature=1e-25))
    counts = np.bincount([sampler.sample(logits, i) for i in range(3000)], minlength=4)
    assert counts[2] == 0
    # 1000 each, standard deviation 26; five.
    assert np.abs(counts[[0, 1, 3]] - 1000).max() < 130


def test_position_and_seed_change_the_draw() -> None:
    logits = np.zeros(1000, np.float32)
    by_position = [Sampler(OFF).sample(logits, i) for i in range(50)]
    by_seed = [Sampler(replace(OFF, seed=i)).sample(logits, 0) for i in range(50)]
    # Of 50 draws from 1000, about one pair coincides.
    assert len(set(by_position)) > 40
    assert len(set(by_seed)) > 40
    assert by_position[1:] != by_seed[1:]


@given(rows())
@settings(deadline=None)
def test_probability_is_the_softmax_over_all(logits: Row) -> None:
    exact = np.exp(logits.astype(np.float64) - float(logits.max()))
    exact /= exact.sum()
    got = [probability(logits, i) for i in range(len(logits))]
    assert got == pytest.approx(exact.tolist(), rel=1e-5, abs=1e-30)
