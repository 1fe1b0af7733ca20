"""Log-probabilities, and the audit: the model's own opinion of a text."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gguf_spec.audit import audit
from gguf_spec.context import Run
from gguf_spec.control import FixedPolicy
from gguf_spec.engine import Engine, Request
from gguf_spec.sampling import Row, Sampler, SamplingParams, TokenLogprob, token_logprob
from tests.test_engine import Hostile, Oracle, plain, prompt_for
from tests.toy import ToyContext
from tests.toy_mask import ToyMask

SETTINGS = {
    "greedy": SamplingParams(seed=3),
    "warm": SamplingParams(temperature=0.9, seed=3),
    "no filters": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3),
    "penalties": SamplingParams(repeat_penalty=1.3, seed=3),
    "mirostat": SamplingParams(temperature=1.0, mirostat=2, seed=3),
}


def test_a_logprob_is_a_softmax_at_temperature_1() -> None:
    logits = np.array([1.0, 3.0, 3.0, -2.0], np.float32)
    total = sum(math.exp(x) for x in logits.tolist())
    found = token_logprob(logits, 0, 3)
    assert found.token == 0
    assert found.logprob == pytest.approx(1.0 - math.log(total), abs=1e-12)
    assert [token for token, _ in found.top] == [1, 2, 0]  # of equals the lowest id first
    assert found.top[2] == (0, found.logprob)
    assert sum(math.exp(p) for _, p in token_logprob(logits, 0, 9).top) == pytest.approx(1.0)
    assert token_logprob(logits, 3, 0).top == ()


def test_a_forbidden_token_has_none() -> None:
    logits = np.array([0.0, -math.inf], np.float32)
    assert token_logprob(logits, 1, 0).logprob == -math.inf


@pytest.mark.parametrize("name", SETTINGS)
def test_accepted_tokens_have_the_logprobs_of_plain_decoding(name: str) -> None:
    wanted = Request(prompt_for(3), Sampler(SETTINGS[name]), 40, logprobs=4)
    text = plain(wanted)

    def answer(drafts: bool) -> tuple[list[TokenLogprob], int]:
        engine = Engine(ToyContext(3))
        drafters = [Oracle([*wanted.prompt, *text], frozenset({3}), 24)] if drafts else []
        sequence = engine.open(drafters, FixedPolicy([6] * len(drafters)))
        found: list[TokenLogprob] = []
        for step in engine.generate(sequence, wanted):
            assert len(step.logprobs) == len(step.tokens)
            found += step.logprobs
        return found, sequence.progress.spec.total.num_accepted_tokens

    (plain_logprobs, _), (logprobs, n_accepted) = answer(False), answer(True)
    assert n_accepted > 10
    assert logprobs == plain_logprobs
    assert [one.token for one in logprobs] == text
    # Row for row, against a context that is asked anew.
    for i, one in enumerate(logprobs[:10]):
        toy = ToyContext(3, n_ubatch=256)
        before = [*wanted.prompt, *text[:i]]
        toy.decode([Run(0, 0, before, 1)])
        assert one == token_logprob(toy.logits(len(before) - 1), text[i], 4)


def test_nobody_pays_for_logprobs_that_nobody_asks_for() -> None:
    engine = Engine(ToyContext(1))
    sequence = engine.open([Hostile(1, 24)], FixedPolicy([6]))
    steps = engine.generate(sequence, Request(prompt_for(1), Sampler(SamplingParams()), 9))
    assert all(step.logprobs == () for step in steps)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_a_text_of_plain_decoding_passes(name: str, masked: bool) -> None:
    sampler = Sampler(SETTINGS[name], mask=ToyMask() if masked else None)
    wanted = Request(prompt_for(3), sampler, 40)
    text = plain(wanted)
    context = ToyContext(3)
    result = audit(context, 0, wanted.prompt, text, sampler.fresh())
    assert (result.checked, result.differing, result.noise) == (len(text), (), 0.0)
    assert result.verdict == "token-identical"
    assert result.report()["differing"] == []
    assert all(len(run.tokens) == 1 for (run,) in context.decodes if run.start >= 20)


def test_every_token_that_plain_decoding_would_not_have_chosen_is_told() -> None:
    sampler = Sampler(SETTINGS["warm"])
    wanted = Request(prompt_for(3), sampler, 30)
    text = plain(wanted)
    for places in ({0}, {7}, {3, 4, 20}, {29}):
        changed = [(t % 22) + 1 if i in places else t for i, t in enumerate(text)]
        result = audit(ToyContext(3), 0, wanted.prompt, changed, sampler.fresh())
        found = {one.index for one in result.differing}
        # What follows a changed token is judged after it, and may differ for its own reasons.
        assert min(places) == min(found)
        assert places & {one.index for one in result.differing if one.token == changed[one.index]}
        assert result.verdict == "broken"
        first = result.differing[0]
        assert first.expected == text[first.index]
        assert first.gap > 0.0


def test_a_token_that_the_grammar_forbids_is_infinitely_far_off() -> None:
    sampler = Sampler(SETTINGS["greedy"], mask=ToyMask())
    wanted = Request(prompt_for(3), sampler, 5)
    text = plain(wanted)
    mask = ToyMask()
    for token in text[:-1]:
        mask.advance(token)
    illegal = next(t for t in range(1, 24) if not mask.legal(np.array([t]))[0])
    result = audit(ToyContext(3), 0, wanted.prompt, [*text[:-1], illegal], sampler.fresh())
    (one,) = result.differing
    assert (one.index, one.token, one.gap) == (4, illegal, math.inf)
    assert result.verdict == "broken"
    assert result.report()["differing"][0]["gap"] is None


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(0.2, "identical-up-to-near-ties"), (0.3, "broken")]
)
def test_a_near_tie_is_a_gap_within_what_widths_make_of_a_logit(ahead: float, verdict: str) -> None:
    class Tied(ToyContext):
        """Token 6 wins, and 5 is second, by ``ahead``; in wider batches 6 has 0.25 less."""

        def logits(self, row: int) -> Row:
            found: Row = super().logits(row)
            found[5], found[6] = 30.0, 30.0 + ahead
            (run,) = self.decodes[-1]
            if run.start >= 20 and len(run.tokens) > 1:
                found[6] -= 0.25
            return found

    sampler = Sampler(SamplingParams())
    text = [6, 6, 5, 6, 6, 6]
    result = audit(Tied(3), 0, prompt_for(3), text, sampler)
    (one,) = result.differing
    assert (one.index, one.expected, one.token) == (2, 6, 5)
    assert one.gap == pytest.approx(ahead, abs=1e-5)
    assert result.noise == pytest.approx(0.25, abs=1e-5)
    assert result.verdict == verdict


@pytest.mark.parametrize("name", ["greedy", "warm", "no filters", "penalties"])
def test_a_gap_is_how_much_it_takes_to_change_the_choice(name: str) -> None:
    """Raise the other token's logit by a little less, and by a little more."""
    params = SETTINGS[name]
    checked = 0
    for seed in range(40):
        logits = (np.random.default_rng(seed).normal(size=24) * 2).astype(np.float32)
        sampler = Sampler(params)
        previous = [1, 2]
        chosen = sampler.sample(logits, seed, previous)
        # The second best, by the same rule: it is left when the best is gone.
        without = logits.copy()
        without[chosen] = -math.inf
        other = Sampler(params).sample(without, seed, previous)
        ids, _ = sampler.distribution(logits, seed, previous)
        if (other not in ids and params.temperature > 0) or other in previous:
            continue
        gap = sampler.gap(logits, seed, previous, chosen, other)
        checked += 1
        for factor, expected in ((0.98, chosen), (1.02, other)):
            nearer = logits.copy()
            nearer[other] += gap * factor
            if params.temperature > 0 and params.filters:
                continue  # what the filters keep changes with it
            assert Sampler(params).sample(nearer, seed, previous) == expected
    assert checked > 10


@pytest.mark.parametrize(
    ("filters", "lacks"),
    [
        # of 90, 4, 3 and 3 %
        ({"min_p": 0.05}, math.log(0.05 * 0.90 / 0.04)),
        ({"top_p": 0.895}, math.log((0.90 / 0.895 - 0.96) / 0.04)),
        ({"top_k": 1}, math.log(0.90 / 0.04)),
    ],
)
def test_a_token_that_was_dropped_lacks_what_the_filter_wants(
    filters: dict[str, float], lacks: float
) -> None:
    """Not what separates it from those that were kept: near a border that is far away."""
    logits = np.log(np.array([0.90, 0.04, 0.03, 0.03], dtype=np.float32))
    everything = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    sampler = Sampler(SamplingParams(temperature=1.0, **{**everything, **filters}))
    assert list(sampler.distribution(logits, 3)[0]) == [0]
    assert sampler.gap(logits, 3, (), 0, 1) == pytest.approx(lacks, abs=2e-3)
    logits[1] = -1e30
    assert sampler.gap(logits, 3, (), 0, 1) == pytest.approx(1e30, rel=1e-3)
    logits[1] = -math.inf
    assert sampler.gap(logits, 3, (), 0, 1) == math.inf


def test_texts_without_tokens_and_prompts_of_one() -> None:
    assert audit(ToyContext(1), 0, [5], [], Sampler(SamplingParams())).checked == 0
    text = plain(Request([5], Sampler(SamplingParams(seed=1)), 8))
    assert audit(ToyContext(1), 0, [5], text, Sampler(SamplingParams(seed=1))).differing == ()
