"""A mask is applied before the filters, lazily but exactly, and follows the tokens that stand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.engine import Engine, Request
from gguf_spec.errors import RunError
from gguf_spec.sampling import Sampler, SamplingParams
from tests.test_engine import (
    Hostile,
    Oracle,
    by_hand,
    draft_model,
    hostile,
    ngram,
    prompt_for,
    run_all,
)
from tests.toy import END, ToyContext
from tests.toy_mask import ToyMask, obeys

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "defaults": {"temperature": 0.8},
    "top-k": {"temperature": 1.0, "top_k": 5, "top_p": 1.0, "min_p": 0.0},
    "top-p": {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    "min-p": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1},
    "top-p and min-p": {"temperature": 1.2, "top_k": 0, "top_p": 0.8, "min_p": 0.02},
    "no filters": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {"temperature": 0.7, "repeat_penalty": 1.3},
    "xtc": {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.1},
    "xtc alone": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    | {"xtc_probability": 1.0, "xtc_threshold": 0.05},
    "dynatemp": {"temperature": 0.8, "dynatemp_range": 0.5},
    "mirostat 1": {"temperature": 1.0, "mirostat": 1},
    "mirostat 2": {"temperature": 1.0, "mirostat": 2},
}


class Fixed:
    """Always the same tokens are legal."""

    def __init__(self, allowed: NDArray[np.bool_]) -> None:
        self.allowed = allowed
        self.asked = 0

    def legal(self, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
        self.asked += len(ids)
        return self.allowed[ids]

    def advance(self, token: int) -> None:
        assert self.allowed[token]

    def copy(self) -> Fixed:
        return self  # and so what was asked is counted in one place


def rows(n_vocab: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Logits, peaked or flat, with ties; and legal tokens, from a few to nearly all of them."""
    r = np.random.default_rng(seed)
    logits = (r.normal(size=n_vocab) * r.choice([0.3, 2.0, 5.0])).astype(np.float32)
    if r.random() < 0.5:
        logits = np.round(logits, 1)
    share = r.choice([0.001, 0.02, 0.5, 0.98])
    legal = r.random(n_vocab) < share
    legal[r.integers(n_vocab)] = True
    if r.random() < 0.3:  # the likeliest are illegal, as where a model would rather write prose
        legal[np.argsort(-logits)[: n_vocab // 50]] = False
        legal[int(logits.argmin())] = True
    return logits, legal


@pytest.mark.parametrize("n_vocab", [24, 700, 6000])
@pytest.mark.parametrize("name", SETTINGS)
def test_asking_about_some_is_as_good_as_asking_about_all(name: str, n_vocab: int) -> None:
    for seed in range(30 if n_vocab < 6000 else 12):
        params = SamplingParams(seed=seed, **SETTINGS[name])
        logits, legal = rows(n_vocab, seed)
        before = logits.copy()
        masked = np.where(legal, logits, -math.inf).astype(np.float32)
        previous = [int(t) for t in legal.nonzero()[0][:5]]
        sampler = Sampler(params, mask=Fixed(legal))
        token = sampler.sample(logits, 9, previous)
        if params.penalizes:
            # Penalties come first, and see the same logits: those of legal tokens.
            masked[~legal] = -1e30
        assert token == Sampler(params).sample(masked, 9, previous)
        assert legal[token]
        ids, p = Sampler(params, mask=Fixed(legal)).distribution(logits, 9, previous)
        kept, q = Sampler(params).distribution(masked, 9, previous)
        if not (params.xtc_probability or params.penalizes):
            assert (ids == kept).all()
            assert p == pytest.approx(q)
        assert legal[ids].all()
        assert (logits == before).all()


def test_few_tokens_are_asked_about_where_the_likely_ones_are_legal() -> None:
    logits = np.random.default_rng(1).normal(size=50_000).astype(np.float32) * 4
    for name, most in {"greedy": 8, "defaults": 600, "min-p": 600, "no filters": 80}.items():
        mask = Fixed(np.arange(50_000) % 10 > 0)
        Sampler(SamplingParams(**SETTINGS[name]), mask=mask).sample(logits, 0)
        assert 0 < mask.asked <= most, name


def test_no_legal_token_is_an_error_that_says_so() -> None:
    none = np.zeros(24, np.bool_)
    for name, settings in SETTINGS.items():
        sampler = Sampler(SamplingParams(**settings), mask=Fixed(none))
        with pytest.raises(RunError, match="position 7"):
            sampler.sample(np.zeros(24, np.float32), 7)
        assert name


def test_a_token_that_a_bias_forbids_is_not_chosen_for_being_the_only_legal_one() -> None:
    params = SamplingParams(logit_bias=((3, -math.inf),))
    sampler = Sampler(params, mask=Fixed(np.arange(24) == 3))
    with pytest.raises(RunError, match="allows none"):
        sampler.sample(np.zeros(24, np.float32), 0)


def test_it_follows_the_tokens_that_stand_not_those_that_were_drawn() -> None:
    start = ToyMask()
    sampler = Sampler(SamplingParams(), mask=start)
    logits = np.arange(24, dtype=np.float32)
    first = sampler.sample(logits, 10, [5])
    other = next(t for t in range(1, 24) if start.legal(np.array([t]))[0] and t != first)
    second = sampler.sample(logits, 11, [other])
    assert obeys([other, second])
    # The same position again gives the same token, and going back is refused.
    assert sampler.sample(logits, 11, [other]) == second
    with pytest.raises(RunError, match="position"):
        sampler.sample(logits, 10, [5])
    assert start.taken == []


def test_a_text_that_leaves_the_grammar_is_an_error_not_an_end_of_the_process() -> None:
    sampler = Sampler(SamplingParams(), mask=ToyMask())
    logits = np.arange(24, dtype=np.float32)
    sampler.sample(logits, 10, [5])
    illegal = next(t for t in range(1, 24) if not ToyMask().legal(np.array([t]))[0])
    with pytest.raises(RunError, match="not legal"):
        sampler.sample(logits, 11, [illegal])


def masked_request(seed: int, name: str) -> Request:
    params = SamplingParams(seed=seed, **SETTINGS[name])
    return Request(prompt_for(seed), Sampler(params, mask=ToyMask()), 40)


def plain_text(wanted: Request) -> list[int]:
    engine = Engine(ToyContext(wanted.sampler.params.seed))
    return run_all(engine, [(engine.open([], FixedPolicy([])), wanted)])[0]


MAKERS: dict[str, Callable[[int, int, bool], list[Drafter]]] = {
    "ngram": ngram,
    "draft model": draft_model,
    "hostile": hostile,
}


@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", MAKERS)
def test_speculative_decoding_is_plain_decoding(kind: str, name: str, removes: bool) -> None:
    for seed in range(2):
        wanted = masked_request(seed, name)
        expected = plain_text(wanted)
        assert obeys(expected)
        for length in (3, 15):
            engine = Engine(ToyContext(seed, removes_tail=removes))
            sequence = engine.open(MAKERS[kind](seed, 1, removes), FixedPolicy([length]))
            assert run_all(engine, [(sequence, wanted)]) == [expected]


@pytest.mark.parametrize("name", SETTINGS)
def test_plain_decoding_is_the_sampler_asked_for_one_token_after_the_other(name: str) -> None:
    wanted = masked_request(5, name)
    assert plain_text(wanted) == by_hand(wanted)


def test_illegal_tokens_are_never_decoded() -> None:
    for seed in range(20):
        wanted = masked_request(seed, "defaults")
        text = plain_text(wanted)
        context = ToyContext(seed)
        engine = Engine(context)
        drafters = [Hostile(seed, 24), Oracle(wanted.prompt + text, frozenset({2, 5}), 24)]
        sequence = engine.open(drafters, FixedPolicy([15, 15]))
        assert run_all(engine, [(sequence, wanted)]) == [text]
        n_prompt = len(wanted.prompt)
        for runs in context.decodes:
            (run,) = runs
            if run.start >= n_prompt:
                before = text[: run.start - n_prompt]
                assert obeys(before + list(run.tokens))


def test_a_draft_goes_up_to_where_the_grammar_must_end() -> None:
    """Legal, legal, and then only an end: the draft is cut there, and the end is the target's."""

    class Ends(ToyMask):
        def legal(self, ids: NDArray[np.intp]) -> NDArray[np.bool_]:
            complete = len(self.taken) >= 3
            return (ids == END) if complete else (ids != END)

        def advance(self, token: int) -> None:
            assert self.legal(np.array([token]))[0]
            self.taken.append(token)

        def copy(self) -> Ends:
            twin = Ends()
            twin.taken = list(self.taken)
            return twin

    wanted = Request(prompt_for(1), Sampler(SamplingParams(seed=1), mask=Ends()), 40)
    text = plain_text(wanted)
    assert len(text) == 4
    assert text[-1] == END
    context = ToyContext(1)
    engine = Engine(context)
    oracle = Oracle(list(wanted.prompt) + text[:3] + [5, 6, 7], frozenset(), 24)
    sequence = engine.open([oracle], FixedPolicy([8]))
    assert run_all(engine, [(sequence, wanted)]) == [text]
    assert sequence.finish_reason == "stop"
    spec = sequence.progress.spec.total
    assert (spec.num_draft_tokens, spec.num_accepted_tokens) == (2, 2)


def test_a_draft_model_that_knows_the_grammar_is_right_more_often() -> None:
    """It draws with a mask of its own, which runs ahead of the target's and back."""
    wanted = masked_request(3, "greedy")
    expected = plain_text(wanted)
    rates = []
    for knows in (True, False):
        engine = Engine(ToyContext(3))
        (drafter,) = draft_model(3, 1, True)
        drafter.context.blur = 0.0  # type: ignore[attr-defined]
        if not knows:
            drafter = Blind(drafter)
        sequence = engine.open([drafter], FixedPolicy([4]))
        assert run_all(engine, [(sequence, wanted)]) == [expected]
        spec = sequence.progress.spec
        rates.append(spec.total.num_accepted_tokens / (spec.steps + 1))
    assert rates[0] > rates[1]


class Blind:
    """A drafter that is handed a sampler without a mask."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.spec_type = drafter.spec_type

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        return self._drafter.draft(limit, Sampler(replace(sampler.params)))


def test_a_request_can_be_made_again() -> None:
    wanted = masked_request(4, "defaults")
    assert plain_text(wanted) == plain_text(wanted)
