"""Speculative text equals plain text with every kind of sampling, whatever the drafter does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request
from gguf_spec.history import History
from gguf_spec.sampling import Row, Sampler, SamplingParams
from gguf_spec.verify import judge
from tests.test_engine import Hostile, Oracle, by_hand, plain, prompt_for, run_all
from tests.toy import ToyContext

SEEDS = range(24)
SAMPLED = SamplingParams(temperature=0.9, top_k=8, top_p=0.95, min_p=0.02)
UNFILTERED = SamplingParams(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)
KINDS = {
    "repeat": SamplingParams(repeat_penalty=1.3),
    "penalties": replace(
        SAMPLED, repeat_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2, penalty_last_n=9
    ),
    "top-k": replace(SAMPLED, top_p=1.0, min_p=0.0),
    "xtc": replace(SAMPLED, xtc_probability=0.5, xtc_threshold=0.11),
    "dry": SamplingParams(dry_multiplier=1.1, dry_allowed_length=1),
    "dry sampled": replace(SAMPLED, dry_multiplier=2.0, dry_penalty_last_n=15),
    "mirostat 1": replace(SAMPLED, mirostat=1, mirostat_tau=1.5, mirostat_eta=0.4),
    "mirostat 2": replace(SAMPLED, mirostat=2, mirostat_tau=1.5, mirostat_eta=0.4),
    "dynatemp": replace(UNFILTERED, dynatemp_range=0.6),
    "bias": SamplingParams(logit_bias=((4, 3.0), (7, -math.inf), (9, 2.5))),
    "everything": replace(
        SAMPLED,
        repeat_penalty=1.1,
        dry_multiplier=0.8,
        xtc_probability=0.3,
        dynatemp_range=0.3,
        logit_bias=((4, 1.5),),
    ),
}
# With the draft model's own choices; mirostat's limits are not known to it.
MEMORYLESS = [kind for kind in KINDS if not kind.startswith("mirostat")]


def breaks(token: int) -> bool:
    return token == 5


def request(kind: str, seed: int, max_tokens: int = 32) -> Request:
    sampler = Sampler(replace(KINDS[kind], seed=seed), breaks=breaks)
    return Request(prompt_for(seed), sampler, max_tokens)


def drafters(name: str, seed: int, removes: bool, text: Sequence[int]) -> Drafter:
    if name == "ngram":
        return NgramSimple(2, 15)
    if name == "hostile":
        return Hostile(seed, 24)
    if name == "oracle":
        return Oracle(text, frozenset({1, 4}), 24)
    return DraftModel(ToyContext(seed, removes_tail=removes, blur=0.25))


@pytest.mark.parametrize("kind", KINDS)
def test_plain_decoding_equals_a_loop_by_hand(kind: str) -> None:
    """The loop hands the sampler all of the text, the engine only what it asks for."""
    for seed in range(12):
        wanted = request(kind, seed)
        assert plain(wanted) == by_hand(wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("name", ["ngram", "draft model", "hostile", "oracle"])
def test_equals_plain_decoding(name: str, removes: bool, kind: str) -> None:
    accepted = rejected = 0
    for seed in SEEDS:
        wanted = request(kind, seed)
        expected = plain(wanted)
        for n_max in (2, 7):
            engine = Engine(ToyContext(seed, removes_tail=removes))
            text = [*wanted.prompt, *expected]
            drafter = drafters(name, seed, removes, text)
            sequence = engine.open([drafter], FixedPolicy([n_max]))
            assert run_all(engine, [(sequence, wanted)]) == [expected]
            total = sequence.progress.spec.total
            accepted += total.num_accepted_tokens
            rejected += total.num_draft_tokens - total.num_accepted_tokens
    assert rejected > 0
    if name in ("draft model", "oracle"):
        assert accepted > 100


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_sampling_matters(kind: str) -> None:
    """Otherwise equality would say nothing about it."""
    base = SAMPLED if KINDS[kind].temperature else SamplingParams()
    changed = 0
    for seed in SEEDS:
        other = Request(prompt_for(seed), Sampler(replace(base, seed=seed)), 32)
        changed += plain(request(kind, seed)) != plain(other)
    assert changed > 3


@pytest.mark.parametrize("kind", MEMORYLESS)
def test_a_model_drafting_for_itself_is_always_accepted(kind: str) -> None:
    for seed in range(12):
        engine = Engine(ToyContext(seed))
        sequence = engine.open([DraftModel(ToyContext(seed))], FixedPolicy([5]))
        run_all(engine, [(sequence, request(kind, seed))])
        assert sequence.progress.spec.total.acceptance_rate in (1.0, None)


@pytest.mark.parametrize("kind", ["mirostat 1", "mirostat 2"])
def test_a_draft_model_agrees_often_with_mirostat(kind: str) -> None:
    accepted = drafted = 0
    for seed in SEEDS:
        engine = Engine(ToyContext(seed))
        sequence = engine.open([DraftModel(ToyContext(seed))], FixedPolicy([3]))
        run_all(engine, [(sequence, request(kind, seed))])
        accepted += sequence.progress.spec.total.num_accepted_tokens
        drafted += sequence.progress.spec.total.num_draft_tokens
    assert accepted / drafted > 0.5


def test_sequences_do_not_share_what_mirostat_learns() -> None:
    for seed in range(12):
        wanted = [request("mirostat 2", seed + i) for i in range(3)]
        expected = []
        for one in wanted:
            engine = Engine(ToyContext(seed))
            expected += run_all(engine, [(engine.open([], FixedPolicy([])), one)])
        engine = Engine(ToyContext(seed, n_seq_max=3))
        sequences = [engine.open([NgramSimple(2, 15)], FixedPolicy([6])) for _ in wanted]
        assert run_all(engine, list(zip(sequences, wanted, strict=True))) == expected
        # The same requests again, on the same sequences.
        assert run_all(engine, list(zip(sequences, wanted, strict=True))) == expected


class Recorder(Sampler):
    """Draws as it is told and writes down what it was given to look back on."""

    def __init__(self, params: SamplingParams, choices: Callable[[int], int]) -> None:
        super().__init__(params)
        self._choices = choices
        self.seen: list[tuple[int, list[int]]] = []

    def sample(self, logits: Row, position: int, previous: Sequence[int] = ()) -> int:
        self.seen.append((position, list(previous)))
        return self._choices(position)


@pytest.mark.parametrize("n_agreed", range(5))
def test_the_sampler_looks_back_on_accepted_tokens_and_on_no_others(n_agreed: int) -> None:
    history = History([3, 1, 4, 1, 5])
    draft = [11, 12, 13, 14]
    row = ToyContext(1)._table[0, 0]
    truth = [*draft[:n_agreed], 20, 20, 20]
    params = SamplingParams(repeat_penalty=1.1, penalty_last_n=3)
    sampler = Recorder(params, lambda position: truth[position - 5])
    assert judge(draft, sampler, history, lambda _: row, 0) == (n_agreed, 20)
    for i, (position, previous) in enumerate(sampler.seen):
        assert position == 5 + i
        assert previous[-3:] == [*history, *draft][: 5 + i][-3:]
    assert len(sampler.seen) == n_agreed + 1
    # Without penalties nothing is copied.
    sampler = Recorder(SamplingParams(), lambda position: truth[position - 5])
    judge(draft, sampler, history, lambda _: row, 0)
    assert {tuple(previous) for _, previous in sampler.seen} == {()}
