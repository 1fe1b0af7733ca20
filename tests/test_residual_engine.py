"""Residual verification in the loop: texts come as often as in plain decoding, whatever ends or
cuts a draft, and where nothing is drawn the text is that of the seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.context import Run
from gguf_spec.control import Choice, FixedPolicy
from gguf_spec.draft_sampling import DraftSampling
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.sampling import Sampler, SamplingParams
from tests.distributions import p_value
from tests.test_engine import Hostile, Oracle, plain, prompt_for, run_all
from tests.test_sampling_engine import KINDS, MEMORYLESS, breaks
from tests.toy import END, ToyContext

PROMPT = [3, 1, 2, 3]
N_VOCAB = 4
# Flat enough for drafts to be taken and refused, and for ends to be drawn in drafts.
FLAT = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0)
LENGTH = 4
LEAST_P = 0.001
TEXTS = 1200


def residual() -> DraftSampling:
    return DraftSampling("residual", "own")


def target(**options: object) -> ToyContext:
    return ToyContext(5, n_vocab=N_VOCAB, end_bias=2, **options)  # type: ignore[arg-type]


def drafting(n_vocab: int = N_VOCAB) -> ToyContext:
    return ToyContext(6, n_vocab=n_vocab, end_bias=2)


def probabilities(params: SamplingParams) -> NDArray[np.float64]:
    """Of every text of LENGTH tokens after PROMPT, shape [N_VOCAB] * LENGTH; after an end there are
    ends."""
    result = np.zeros([N_VOCAB] * LENGTH)
    sampler, context = Sampler(params), target()

    def spread(text: tuple[int, ...], share: float) -> None:
        if len(text) == LENGTH:
            result[text] += share
        elif text and text[-1] == END:
            spread((*text, END), share)
        else:
            tokens = [*PROMPT, *text]
            context.clear(0)
            context.decode([Run(0, 0, tokens, 1)])
            probs = sampler.distribution(context.logits(len(tokens) - 1), len(tokens), tokens)
            for token, p in zip(probs.ids.tolist(), probs.probs.tolist(), strict=True):
                spread((*text, token), share * p)

    spread((), 1.0)
    assert result.sum() == pytest.approx(1.0)
    return result


class AtLeast(FixedPolicy):
    """Drops drafts of fewer than two tokens."""

    def choose(self, limit: int) -> Sequence[Choice]:
        return [Choice(0, 3, 2)]


class Short(DraftModel):
    """Ends its drafts at a token, as one does that knows it to be improbable."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        draft = super().draft(limit, sampler)
        n = next((i for i, token in enumerate(draft.tokens) if token == 2), len(draft.tokens))
        return Draft(draft.tokens[:n], draft.source, draft.drawn[: n + 1])


def frequencies(
    context: ToyContext, drafter: Drafter, policy: FixedPolicy, params: SamplingParams = FLAT
) -> tuple[NDArray[np.int64], SequenceState]:
    counts = np.zeros([N_VOCAB] * LENGTH, np.int64)
    engine = Engine(context)
    sequence = engine.open([drafter], policy, residual())
    for seed in range(TEXTS):
        request = Request(PROMPT, Sampler(replace(params, seed=seed)), LENGTH)
        (text,) = run_all(engine, [(sequence, request)])
        counts[tuple([*text, *[END] * LENGTH][:LENGTH])] += 1
    return counts, sequence


CASES = {
    "as it is": (lambda: target(), lambda: DraftModel(drafting()), FixedPolicy([3])),
    "cut by n_min": (lambda: target(), lambda: DraftModel(drafting()), AtLeast([3])),
    "cut by p_min": (lambda: target(), lambda: DraftModel(drafting(), p_min=0.6), FixedPolicy([3])),
    "cut at a token": (lambda: target(), lambda: Short(drafting()), FixedPolicy([3])),
    "ids that the target does not know": (
        lambda: target(),
        lambda: DraftModel(drafting(N_VOCAB + 2)),
        FixedPolicy([3]),
    ),
    "no room for wide batches": (
        lambda: target(),
        lambda: DraftModel(drafting()),
        FixedPolicy([3]),
    ),
    "checkpoints": (
        lambda: target(removes_tail=False),
        lambda: DraftModel(drafting()),
        FixedPolicy([3]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_come_as_often_as_in_plain_decoding(name: str) -> None:
    make_target, make_drafter, policy = CASES[name]
    context = make_target()
    if name == "no room for wide batches":
        context.full_when_wider_than = 2
    counts, _ = frequencies(context, make_drafter(), policy)
    assert p_value(counts, probabilities(FLAT)) > LEAST_P


def test_with_filters_penalties_and_a_bias() -> None:
    params = replace(
        FLAT, top_k=3, min_p=0.1, presence_penalty=4.0, logit_bias=((1, 2.0), (END, -2.0)),
        dynatemp_range=1.0,
    )  # fmt: skip
    counts, _ = frequencies(target(), DraftModel(drafting()), FixedPolicy([3]), params)
    wanted = probabilities(params)
    assert p_value(counts, wanted) > LEAST_P
    assert p_value(counts, probabilities(FLAT)) < LEAST_P


def request(kind: str, seed: int) -> Request:
    return Request(prompt_for(seed), Sampler(replace(KINDS[kind], seed=seed), breaks=breaks), 32)


def answer(
    wanted: Request, drafter: Drafter, sampling: DraftSampling, removes: bool = True
) -> tuple[list[int], SequenceState]:
    engine = Engine(ToyContext(wanted.sampler.params.seed, removes_tail=removes))
    sequence = engine.open([drafter], FixedPolicy([5]), sampling)
    return run_all(engine, [(sequence, wanted)])[0], sequence


@pytest.mark.parametrize("kind", MEMORYLESS)
def test_a_model_drafting_for_itself_is_always_accepted(kind: str) -> None:
    for seed in range(8):
        wanted = request(kind, seed)
        _, sequence = answer(wanted, DraftModel(ToyContext(seed)), residual())
        assert sequence.progress.spec.total.acceptance_rate in (1.0, None)


def test_a_seed_gives_one_text_and_another_than_plain_decoding() -> None:
    changed = 0
    for seed in range(12):
        wanted = request("top-k", seed)
        texts = [
            answer(wanted, DraftModel(ToyContext(seed, blur=0.25)), residual(), removes)[0]
            for removes in (True, True, False)
        ]
        assert texts[0] == texts[1] == texts[2]
        changed += texts[0] != plain(wanted)
    assert changed > 6


@pytest.mark.parametrize("kind", ["repeat", "dry", "bias", "mirostat 1", "mirostat 2"])
@pytest.mark.parametrize("verify", ["residual", "auto"])
def test_where_nothing_is_drawn_the_text_is_that_of_the_seed(verify: str, kind: str) -> None:
    """At temperature 0, and with mirostat, whose limits depend on the text so far."""
    for seed in range(12):
        wanted = request(kind, seed)
        drafter = DraftModel(ToyContext(seed, blur=0.25))
        text, sequence = answer(wanted, drafter, DraftSampling(verify, "auto"))
        assert text == plain(wanted)
        assert sequence.stack.sampling.exactness == "seed-exact"


def test_drafts_that_are_not_drawn_are_matched() -> None:
    for seed in range(12):
        wanted = request("top-k", seed)
        expected = plain(wanted)
        known = [*wanted.prompt, *expected]
        for drafter in (
            NgramSimple(2, 15), Hostile(seed, 24), Oracle(known, frozenset({2}), 24),
        ):  # fmt: skip
            assert answer(wanted, drafter, residual())[0] == expected


@pytest.mark.parametrize("way", ["auto", "greedy", "coupled", "own"])
def test_matched_text_is_that_of_the_seed_however_drafts_are_drawn(way: str) -> None:
    accepted = 0
    for seed in range(12):
        wanted = request("top-k", seed)
        drafter = DraftModel(ToyContext(seed, blur=0.25))
        text, sequence = answer(wanted, drafter, DraftSampling("match", way))
        assert text == plain(wanted)
        accepted += sequence.progress.spec.total.num_accepted_tokens
    assert accepted > 20


def test_both_rules_in_one_text_of_several_sequences() -> None:
    """Sequences of one batch each keep to their own rule."""
    wanted = [request("top-k", 3), request("top-k", 4)]
    engine = Engine(ToyContext(3, n_seq_max=2))
    samplings = [residual(), DraftSampling()]
    sequences = [
        engine.open([DraftModel(ToyContext(3, blur=0.3))], FixedPolicy([4]), s) for s in samplings
    ]
    texts = run_all(engine, list(zip(sequences, wanted, strict=True)))
    alone = Engine(ToyContext(3))
    expected = run_all(alone, [(alone.open([], FixedPolicy([])), wanted[1])])
    assert texts[1] == expected[0]
    assert math.isfinite(sequences[0].progress.spec.total.acceptance_rate or 0.0)
