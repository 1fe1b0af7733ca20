"""Our steps beside llama.cpp's own samplers: the same candidates with the same probabilities."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest

from gguf_spec.backend import LlamaModel
from gguf_spec.sampling import DRY_BREAKERS, Row, Sampler, SamplingParams
from gguf_spec.sampling.maxima import Maxima
from gguf_spec.sampling.mirostat import Mirostat

api: Any = llama_cpp
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Candidates:
    """A llama_token_data_array over a row of logits."""

    def __init__(self, logits: Row) -> None:
        n = len(logits)
        self._data = (api.llama_token_data * n)()
        for i, logit in enumerate(logits):
            self._data[i].id = i
            self._data[i].logit = float(logit)
        pointer = ctypes.cast(self._data, api.llama_token_data_p)
        self.array = api.llama_token_data_array(pointer, n, -1, False)

    def apply(self, sampler: Any) -> None:
        api.llama_sampler_apply(sampler, ctypes.byref(self.array))

    def kept(self) -> tuple[list[int], list[float]]:
        """Ids, ascending, and logits."""
        entries = [self.array.data[i] for i in range(self.array.size)]
        pairs = sorted((e.id, e.logit) for e in entries if e.logit > -np.inf)
        return [i for i, _ in pairs], [x for _, x in pairs]

    @property
    def selected(self) -> int:
        return int(self.array.data[self.array.selected].id)


@contextmanager
def chain(
    params: SamplingParams, n_vocab: int, text: Sequence[int], vocab: Any = None
) -> Iterator[list[Any]]:
    """llama.cpp's samplers in the order of common_sampler_init, after ``text``."""
    bias = (api.llama_logit_bias * max(len(params.logit_bias), 1))()
    for entry, (token, value) in zip(bias, params.logit_bias, strict=False):
        entry.token, entry.bias = token, value
    breakers = (ctypes.c_char_p * len(DRY_BREAKERS))(*(b.encode() for b in DRY_BREAKERS))
    p = params
    samplers = [
        api.llama_sampler_init_logit_bias(n_vocab, len(p.logit_bias), bias),
        api.llama_sampler_init_penalties(
            n_vocab,
            p.penalty_last_n,
            p.repeat_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        ),
        # Without breakers the vocabulary is not looked at.
        api.llama_sampler_init_dry(
            vocab,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            p.dry_penalty_last_n,
            breakers,
            len(DRY_BREAKERS) if vocab else 0,
        ),
        api.llama_sampler_init_top_k(p.top_k),
        api.llama_sampler_init_top_p(p.top_p, 0),
        api.llama_sampler_init_min_p(p.min_p, 0),
        api.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 0, 1),
        api.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent),
    ]
    with ExitStack() as stack:
        for sampler in samplers:
            stack.callback(api.llama_sampler_free, sampler)
        for token in text:
            for sampler in samplers[:3]:
                api.llama_sampler_accept(sampler, token)
        yield samplers


def compare(
    logits: Row,
    params: SamplingParams,
    text: Sequence[int] = (),
    model: LlamaModel | None = None,
) -> None:
    theirs = Candidates(logits)
    vocab = api.llama_model_get_vocab(model.handle) if model else None
    with chain(params, len(logits), text, vocab) as samplers:
        for sampler in samplers:
            theirs.apply(sampler)
        ids, values = theirs.kept()
    ours = Sampler(params, breaks=breaks(model) if model else None)
    got, p = ours.distribution(logits, 3, text)
    weights = np.exp(np.array(values) - max(values))
    # A probability so small that it is 0 is not a candidate to us.
    possible = weights > 0.0
    assert got.tolist() == np.array(ids)[possible].tolist()
    assert p == pytest.approx((weights / weights.sum())[possible], rel=2e-3, abs=1e-7)


def breaks(model: LlamaModel) -> Any:
    return lambda token: any(b in model.special_text(token) for b in DRY_BREAKERS)


def cases(n: int, n_vocab: int = 400) -> Iterator[tuple[random.Random, Row, list[int]]]:
    for seed in range(n):
        r = random.Random(seed)
        rng = np.random.default_rng(seed)
        logits = rng.normal(-1.0, r.choice([1.0, 3.0]), n_vocab).astype(np.float32)
        few = [r.randrange(n_vocab) for _ in range(3)]
        text = [r.choice(few) if r.random() < 0.9 else r.randrange(n_vocab) for _ in range(90)]
        yield r, logits, text[: r.choice([0, 1, 2, 3, 20, 90])]


FILTERS = (
    {"top_k": 1},
    {"top_k": 17},
    {"top_p": 0.317},
    {"top_p": 0.951},
    {"min_p": 0.0513},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 3000, "top_p": 0.8},
)


@pytest.mark.parametrize("keys", FILTERS, ids=str)
def test_filters(keys: dict[str, Any]) -> None:
    for r, logits, _ in cases(25):
        compare(logits, replace(OFF, temperature=r.choice([0.3, 1.0, 1.7]), **keys))
    for _, logits, _ in cases(2, 9000):
        compare(logits, replace(OFF, **keys))


def test_penalties() -> None:
    for r, logits, text in cases(150):
        params = replace(
            OFF,
            repeat_penalty=r.choice([1.0, 1.3, 0.8]),
            frequency_penalty=r.choice([0.0, 0.3, -0.5]),
            presence_penalty=r.choice([0.0, 0.9]),
            penalty_last_n=r.choice([0, 1, 10, 64]),
            top_k=r.choice([0, 20]),
        )
        compare(logits, params, text)


def test_dry_without_breakers() -> None:
    for r, logits, text in cases(200):
        params = replace(
            OFF,
            dry_multiplier=r.choice([0.8, 2.0]),
            dry_base=r.choice([1.0, 1.3, 1.75]),
            dry_allowed_length=r.choice([0, 1, 2, 5]),
            dry_penalty_last_n=r.choice([3, 30, 64]),
        )
        compare(logits, params, text)


def test_dry_breakers_of_a_vocabulary(tiny_target: LlamaModel) -> None:
    is_breaker = breaks(tiny_target)
    n_vocab = tiny_target.n_vocab
    breakers = [i for i in range(n_vocab) if is_breaker(i)]
    others = [i for i in range(n_vocab) if not is_breaker(i)]
    assert len(breakers) >= len(DRY_BREAKERS)
    for seed in range(15):
        r = random.Random(seed)
        logits = np.random.default_rng(seed).normal(0.0, 2.0, n_vocab).astype(np.float32)
        word = [*r.sample(others, 3), *r.sample(breakers, r.randrange(2)), *r.sample(others, 2)]
        text = [*word, *r.sample(others, 2), *word, *word[: r.randrange(1, len(word))]]
        params = replace(OFF, dry_multiplier=3.0, dry_allowed_length=r.choice([0, 1, 2]))
        compare(logits, params, text, tiny_target)


@pytest.mark.parametrize("threshold", [0.0, 0.0213, 0.1041, 0.3017, 0.51])
@pytest.mark.parametrize("top_k", [0, 1, 30])
def test_xtc_when_it_acts(threshold: float, top_k: int) -> None:
    for _, logits, _ in cases(25):
        compare(logits, replace(OFF, xtc_probability=1.0, xtc_threshold=threshold, top_k=top_k))
        compare(
            logits * np.float32(0.1),
            replace(OFF, xtc_probability=1.0, xtc_threshold=threshold, temperature=0.0),
        )


def test_dynamic_temperature() -> None:
    for r, logits, _ in cases(100):
        params = replace(
            OFF,
            temperature=r.choice([0.0, 0.6, 1.0]),
            dynatemp_range=r.choice([0.2, 0.8, 2.0]),
            dynatemp_exponent=r.choice([0.5, 1.0, 2.0]),
            top_k=r.choice([0, 1, 25]),
        )
        compare(logits, params)


def test_everything_in_order() -> None:
    for r, logits, text in cases(200):
        params = SamplingParams(
            temperature=r.choice([0.0, 0.7, 1.3]),
            top_k=r.choice([0, 40]),
            top_p=r.choice([1.0, 0.9137]),
            min_p=r.choice([0.0, 0.0517]),
            repeat_penalty=r.choice([1.0, 1.3]),
            presence_penalty=r.choice([0.0, 0.4]),
            dry_multiplier=r.choice([0.0, 0.8]),
            xtc_probability=r.choice([0.0, 1.0]),
            xtc_threshold=0.0713,
            dynatemp_range=r.choice([0.0, 0.3]),
            logit_bias=((2, 4.0), (int(logits.argmax()), -2.0), (5, float("-inf"))),
        )
        compare(logits, params, text)


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_and_learns_the_same(version: int) -> None:
    n_vocab = 500
    for tau, eta in ((5.0, 0.1), (2.3, 0.6)):
        params = replace(OFF, mirostat=version, mirostat_tau=tau, mirostat_eta=eta)
        if version == 1:
            theirs = api.llama_sampler_init_mirostat(n_vocab, 7, tau, eta, 100)
        else:
            theirs = api.llama_sampler_init_mirostat_v2(7, tau, eta)
        ours = Mirostat(params)
        rng = np.random.default_rng(3)
        for _ in range(60):
            logits = rng.normal(0.0, rng.choice([0.5, 2.0, 4.0]), n_vocab).astype(np.float32)
            row = Candidates(logits)
            row.apply(theirs)
            kept = np.sort(ours.keep(Maxima(logits), 1.0))
            assert kept.tolist() == row.kept()[0]
            scores = logits[kept].astype(np.float64)
            ours.observe(scores, kept.tolist().index(row.selected))
        api.llama_sampler_free(theirs)


def test_at_temperature_zero_only_the_largest_logit_is_left() -> None:
    for _, logits, text in cases(20):
        for keys in ({}, {"repeat_penalty": 1.5}, {"dry_multiplier": 5.0}, {"top_k": 5}):
            compare(logits, replace(OFF, temperature=0.0, **keys), text)  # type: ignore[arg-type]
