"""Every step of sampling against the rule written down plainly: whole vocabulary, no shortcuts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.errors import RunError
from gguf_spec.sampling import Row, Sampler, SamplingParams
from gguf_spec.sampling.noise import XTC, Noise

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
BREAKERS = frozenset({5, 9})


def is_breaker(token: int) -> bool:
    return token in BREAKERS


# The rules


def adjusted(logits: Row, params: SamplingParams, previous: Sequence[int]) -> list[np.float32]:
    """Bias, penalties, DRY; float32 as in llama.cpp."""
    row = list(logits)
    for token, bias in params.logit_bias:
        if token < len(row):
            row[token] += np.float32(bias)
    if params.mirostat:
        return row
    recent = last(previous, params.penalty_last_n)
    if params.penalizes:
        for token in set(recent):
            if token >= len(row):
                continue
            factor = np.float32(params.repeat_penalty)
            row[token] = row[token] * factor if row[token] <= 0 else row[token] / factor
            row[token] -= np.float32(recent.count(token)) * np.float32(
                params.frequency_penalty
            ) + np.float32(params.presence_penalty)
    if params.dries:
        for token in range(len(row)):
            length = repetition(token, last(previous, params.dry_penalty_last_n), params)
            if length is not None and not is_breaker(token):
                penalty = params.dry_multiplier * params.dry_base ** (
                    length - params.dry_allowed_length
                )
                row[token] -= np.float32(penalty)
    return row


def last(previous: Sequence[int], n: int) -> list[int]:
    """The last ``n`` tokens; -1: all."""
    return list(previous)[-n:] if n > 0 else list(previous)[: -n * len(previous)]


def repetition(token: int, window: list[int], params: SamplingParams) -> int | None:
    """How many tokens ``token`` would repeat; None if too few."""
    if len(window) <= params.dry_allowed_length:
        return None
    limit = len(window)  # tokens since the last breaker
    for i in range(len(window)):
        if is_breaker(window[len(window) - 1 - i]):
            limit = i
            break
    longest = None
    for end in range(1, len(window)):
        if window[end] != token:
            continue
        before, length = window[:end], 0
        while length < len(before) and before[-1 - length] == window[-1 - length]:
            length += 1
        length = min(length, limit)
        if limit >= params.dry_allowed_length and length >= params.dry_allowed_length:
            longest = max(longest or 0, length)
    return longest


def softmax(values: Sequence[float]) -> list[float]:
    peak = max(values)
    weights = [math.exp(v - peak) for v in values]
    total = math.fsum(weights)
    return [w / total for w in weights]


def chain(
    logits: Row,
    params: SamplingParams,
    position: int,
    previous: Sequence[int],
    mu: float = 0.0,
) -> tuple[list[int], list[float]]:
    """Ids that may be drawn, ascending, and their logits / temperature."""
    row = adjusted(logits, params, previous)
    value = [float(v) for v in row]
    kept = sorted(range(len(row)), key=lambda i: (-value[i], i))
    if params.temperature <= 0.0 and params.mirostat:
        return kept[:1], [0.0]
    if params.mirostat == 1:
        kept = kept[: zipf_count([value[i] / params.temperature for i in kept], mu)]
    elif params.mirostat == 2:
        p = softmax([value[i] / params.temperature for i in kept])
        n = sum(x > 0.0 and -math.log2(x) <= mu for x in p)
        kept = kept[: max(n, 1)]
    else:
        kept = filtered(kept, value, params)
        if params.xtc_probability and params.xtc_threshold <= 0.5 and len(kept) > 1:
            chance = Noise(params.seed).uniform(position, XTC)
            if chance <= params.xtc_probability:
                p = softmax([value[i] for i in kept])
                n = sum(x >= params.xtc_threshold and x > 0.0 for x in p)
                kept = kept[max(n - 1, 0) :]
    temperature = params.temperature
    if params.dynatemp_range > 0.0 and not params.mirostat and len(kept) > 1:
        p = softmax([value[i] for i in kept])
        entropy = -math.fsum(x * math.log(x) for x in p if x > 0.0) / math.log(len(kept))
        low = max(0.0, temperature - params.dynatemp_range)
        high = temperature + params.dynatemp_range
        temperature = low + (high - low) * min(entropy, 1.0) ** params.dynatemp_exponent
    if temperature <= 0.0:
        return kept[:1], [0.0]
    kept.sort()
    return kept, [value[i] / temperature for i in kept]


def filtered(kept: list[int], value: list[float], params: SamplingParams) -> list[int]:
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        reach = 0.0
        for n, x in enumerate(softmax([value[i] for i in kept]), 1):
            reach += x
            if reach >= params.top_p:
                kept = kept[:n]
                break
    if params.min_p > 0.0:
        floor = np.float32(value[kept[0]] + math.log(params.min_p))
        kept = [i for i in kept if value[i] >= floor]
    return kept


def zipf_count(falling: list[float], mu: float) -> int:
    """Mirostat 1: how many to keep by an estimate of Zipf's exponent."""
    head = falling[:100]
    num = den = 0.0
    for i in range(len(head) - 1):
        t = math.log((i + 2) / (i + 1))
        num += t * (head[i] - head[i + 1])
        den += t * t
    s = num / den
    e = s - 1.0
    k = (e * 2.0**mu / (1.0 - len(falling) ** -e)) ** (1.0 / s)
    return min(max(int(k), 1), len(falling))


# Comparisons


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Small vocabularies, and some that are looked at by columns. No two logits are equal."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_vocab = draw(st.sampled_from([2, 7, 30, 300, 300, 4096, 5003]))
    return rng.normal(0.0, draw(st.sampled_from([0.5, 2.0, 6.0])), n_vocab).astype(np.float32)


def texts(n_vocab: int = 12) -> st.SearchStrategy[list[int]]:
    """Few different tokens, so that they repeat; some are in no vocabulary of ours."""
    few = st.lists(st.integers(0, 3), max_size=60)
    return few | st.lists(st.integers(0, n_vocab) | st.just(70_000), max_size=60)


# Thresholds that no sum of few probabilities hits exactly.
FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.31, 0.83, 1.0, 2.3]),
    "top_k": st.sampled_from([0, 0, 1, 4, 40, 700]),
    "top_p": st.sampled_from([1.0, 1.0, 0.3127, 0.93713]),
    "min_p": st.sampled_from([0.0, 0.0, 0.0513]),
    "seed": st.integers(0, 2**64),
}
PENALTIES: dict[str, st.SearchStrategy[Any]] = {
    "repeat_penalty": st.sampled_from([1.0, 1.3, 0.7, 30.0]),
    "frequency_penalty": st.sampled_from([0.0, 0.4, -1.5]),
    "presence_penalty": st.sampled_from([0.0, 1.1, -3.0]),
    "penalty_last_n": st.sampled_from([0, 1, 5, 64, -1]),
}
DRY: dict[str, st.SearchStrategy[Any]] = {
    "dry_multiplier": st.sampled_from([0.0, 0.8, 3.0]),
    "dry_base": st.sampled_from([1.0, 1.75, 0.5]),
    "dry_allowed_length": st.integers(0, 4),
    "dry_penalty_last_n": st.sampled_from([0, 3, 20, 64, -1]),
}
XTC_KEYS: dict[str, st.SearchStrategy[Any]] = {
    "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
    "xtc_threshold": st.sampled_from([0.0, 0.0213, 0.1041, 0.3017, 0.51]),
}
DYNATEMP: dict[str, st.SearchStrategy[Any]] = {
    "dynatemp_range": st.sampled_from([0.0, 0.4, 1.5]),
    "dynatemp_exponent": st.sampled_from([0.0, 1.0, 2.5]),
}
BIAS: dict[str, st.SearchStrategy[Any]] = {
    "logit_bias": st.lists(
        st.tuples(
            st.integers(0, 9) | st.just(70_000), st.sampled_from([0.7, -3.0, 9.0, -math.inf])
        ),
        max_size=6,
        unique_by=lambda pair: pair[0],
    ).map(tuple),
}
EVERYTHING = FILTERS | PENALTIES | DRY | XTC_KEYS | DYNATEMP | BIAS


def params_of(*tables: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[SamplingParams]:
    merged = {name: strategy for table in tables for name, strategy in table.items()}
    return st.builds(SamplingParams, **merged)


def compare(logits: Row, params: SamplingParams, position: int, previous: list[int]) -> None:
    before = logits.copy()
    row = adjusted(logits, params, previous)
    sampler = Sampler(params, breaks=is_breaker)
    if max(row) == -math.inf:
        with pytest.raises(RunError):
            sampler.sample(logits, position, previous)
        return
    ids, scores = chain(logits, params, position, previous)
    got, p = sampler.distribution(logits, position, previous)
    expected = np.array(softmax(scores))
    possible = expected > 0.0
    assert got.tolist() == np.array(ids)[possible].tolist()
    assert p == pytest.approx(expected[possible], rel=2e-4, abs=1e-9)
    noise = sampler.noise(position, np.array(ids))
    winner = ids[int((np.array(scores) - max(scores) + noise).argmax())]
    assert sampler.sample(logits, position, previous) == winner
    assert np.array_equal(logits, before)
    # No more of the text matters than the sampler says.
    enough = previous[-sampler.lookback :] if sampler.lookback else []
    assert sampler.sample(logits, position, enough) == winner


@settings(max_examples=150, deadline=None)
@given(rows(), params_of(FILTERS, PENALTIES), texts())
def test_penalties(logits: Row, params: SamplingParams, previous: list[int]) -> None:
    compare(logits, params, 7, previous)


@settings(max_examples=250, deadline=None)
@given(rows(), params_of(FILTERS, DRY), texts())
def test_dry(logits: Row, params: SamplingParams, previous: list[int]) -> None:
    compare(logits, params, 7, previous)


@settings(max_examples=150, deadline=None)
@given(rows(), params_of(FILTERS, XTC_KEYS), st.integers(0, 1000))
def test_xtc(logits: Row, params: SamplingParams, position: int) -> None:
    compare(logits, params, position, [])


@settings(max_examples=150, deadline=None)
@given(rows(), params_of(FILTERS, DYNATEMP))
def test_dynamic_temperature(logits: Row, params: SamplingParams) -> None:
    compare(logits, params, 7, [])


@settings(max_examples=150, deadline=None)
@given(rows(), params_of(FILTERS, BIAS))
def test_logit_bias(logits: Row, params: SamplingParams) -> None:
    compare(logits, params, 7, [])


@settings(max_examples=300, deadline=None)
@given(rows(), params_of(EVERYTHING), st.integers(0, 1000), texts())
def test_everything_at_once(
    logits: Row, params: SamplingParams, position: int, previous: list[int]
) -> None:
    compare(logits, params, position, previous)


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2]),
    st.sampled_from([0.0, 0.61, 1.0, 1.9]),
    st.sampled_from([1.13, 3.07, 5.0]),
    st.sampled_from([0.0, 0.1, 0.77]),
    st.sampled_from([120, 700, 5003]),
)
def test_mirostat(
    seed: int, version: int, temperature: float, tau: float, eta: float, n_vocab: int
) -> None:
    rng = np.random.default_rng(seed)
    params = SamplingParams(
        temperature=temperature, seed=seed, mirostat=version, mirostat_tau=tau, mirostat_eta=eta
    )
    # Penalties and filters have no part in it.
    params = replace(params, repeat_penalty=5.0, top_k=1, xtc_probability=1.0, dry_multiplier=2.0)
    params = replace(params, logit_bias=((3, 2.5),), dynatemp_range=1.0)
    sampler = Sampler(params)
    mu = 2.0 * tau
    for position in range(12):
        logits = rng.normal(0.0, 2.5, n_vocab).astype(np.float32)
        ids, scores = chain(logits, params, position, [3, 3, 3], mu)
        got, p = sampler.distribution(logits, position, [3, 3, 3])
        assert got.tolist() == ids
        assert p == pytest.approx(softmax(scores), rel=1e-5)
        noise = sampler.noise(position, np.array(ids))
        winner = int((np.array(scores) - max(scores) + noise).argmax())
        assert sampler.sample(logits, position, [3, 3, 3]) == ids[winner]
        mu -= eta * (-math.log2(softmax(scores)[winner]) - tau)
    assert sampler.lookback == 0


def test_mirostat_survives_rows_without_an_estimate() -> None:
    """Equal logits, a single one that is possible, one token: llama.cpp divides by zero there."""
    for version in (1, 2):
        for row in ([0.0] * 50, [1.0, *[-math.inf] * 49], [2.0], [1.0, 1.0]):
            logits = np.array(row, np.float32)
            sampler = Sampler(replace(OFF, mirostat=version))
            for position in range(20):
                assert logits[sampler.sample(logits, position)] > -math.inf


def test_a_forbidden_token_is_never_taken_and_a_raised_one_becomes_a_candidate() -> None:
    logits = np.random.default_rng(1).normal(0.0, 2.0, 6000).astype(np.float32)
    best, worst = int(logits.argmax()), int(logits.argmin())
    for params in (SamplingParams(), SamplingParams(temperature=0.7), OFF):
        forbidden = Sampler(replace(params, logit_bias=((best, -math.inf),)))
        raised = Sampler(replace(params, logit_bias=((worst, 60.0),)))
        for position in range(30):
            assert forbidden.sample(logits, position) != best
            assert raised.sample(logits, position) == worst


def test_xtc_acts_as_often_as_it_should_and_independently_of_the_draw() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04])).astype(np.float32)
    params = replace(OFF, xtc_probability=0.3, xtc_threshold=0.1)
    n = 20_000
    counts = np.zeros(5)
    for position in range(n):
        counts[Sampler(params).sample(logits, position)] += 1
    # With XTC 2, 3 and 4 are left, of 0.3 together.
    p = np.array([0.4, 0.3, 0.2, 0.06, 0.04]) * 0.7
    p[2:] += 0.3 * np.array([0.2, 0.06, 0.04]) / 0.3
    chi2 = float(((counts - n * p) ** 2 / (n * p)).sum())
    # Chi-square with 4 degrees of freedom: mean 4, variance 8; five standard deviations.
    assert chi2 < 4 + 5 * math.sqrt(8)


def test_a_drafters_sampler_has_no_state_and_the_same_noise() -> None:
    logits = np.random.default_rng(2).normal(0.0, 2.0, 400).astype(np.float32)
    for version in (0, 1, 2):
        params = replace(OFF, mirostat=version, seed=4, repeat_penalty=1.5)
        sampler = Sampler(params)
        drafter = sampler.for_drafter()
        draws = [drafter.sample(logits, 3, [1, 2]) for _ in range(5)]
        assert len(set(draws)) == 1
        ids = np.arange(50)
        assert np.array_equal(drafter.noise(3, ids), sampler.noise(3, ids))
        fresh = [sampler.fresh().sample(logits, i) for i in range(10)]
        assert fresh[0] == sampler.sample(logits, 0)
        if version == 0:
            assert draws[0] == sampler.sample(logits, 3, [1, 2])


def test_minus_one_looks_back_at_everything() -> None:
    previous = [3, *([7] * 5000)]
    logits = np.zeros(16, np.float32)
    for steps in ({"repeat_penalty": 1.5, "presence_penalty": 1.0}, {"dry_multiplier": 2.0}):
        keys = {"penalty_last_n": -1, "dry_penalty_last_n": -1, "dry_allowed_length": 1}
        sampler = Sampler(replace(OFF, **{**keys, **steps}))
        assert sampler.lookback > len(previous)
        ids, p = sampler.distribution(logits, 0, [3, *previous, 3])
        assert p[ids == 3][0] < p[ids == 1][0] or p[ids == 7][0] < p[ids == 1][0]
    sampler = Sampler(replace(OFF, penalty_last_n=-1, presence_penalty=1.0))
    ids, p = sampler.distribution(logits, 0, previous)
    assert p[ids == 3][0] < p[ids == 1][0]


def test_xtc_leaves_what_may_be_drawn() -> None:
    logits = np.array([0.1, 0.0, 0.2], np.float32)
    for filters in ({}, {"top_k": 5}):
        for dynatemp_range in (0.0, 0.5):
            params = replace(
                OFF, xtc_probability=1.0, xtc_threshold=0.0, logit_bias=((1, -math.inf),),
                dynatemp_range=dynatemp_range, **filters,
            )  # fmt: skip
            assert Sampler(params).sample(logits, 0) == 0


def test_extreme_settings_draw_without_a_warning() -> None:
    logits = np.linspace(-30, 30, 5000).astype(np.float32)
    for changes in (
        {"repeat_penalty": 1e-300},
        {"repeat_penalty": 1e300},
        {"presence_penalty": -1e300},
        {"frequency_penalty": 1e300},
        {"mirostat": 1, "mirostat_eta": 1e300},
        {"mirostat": 2, "mirostat_eta": 1e300},
        {"mirostat": 2, "mirostat_tau": 1e300},
        {"dry_multiplier": 1e300, "dry_allowed_length": 0},
    ):
        sampler = Sampler(replace(OFF, **changes))
        for position in range(4):
            with contextlib.suppress(RunError):  # infinite logits are not drawn from
                sampler.sample(logits, position, [1, 2, 1, 2])
    with pytest.raises(RunError) as caught:
        Sampler(OFF).sample(np.array([1.0, math.nan], np.float32), 0)
    assert "[sampling]" in str(caught.value.hint)
    assert "rope_*" in str(caught.value.hint)


def test_fresh_forgets_what_mirostat_has_learned() -> None:
    rng = np.random.default_rng(2)
    rows = [rng.normal(0.0, 0.5, 900).astype(np.float32) for _ in range(33)]
    sampler = Sampler(replace(OFF, mirostat=2, mirostat_tau=2.0, mirostat_eta=0.9))
    first = [sampler.sample(row, i) for i, row in enumerate(rows)]
    again = sampler.fresh()
    assert [again.sample(row, i) for i, row in enumerate(rows)] == first
    assert [sampler.sample(row, i) for i, row in enumerate(rows)] != first
