"""What small models said to prompts of several kinds, said again with n-gram drafts.

SmolLM2-135M-Instruct (Q4_1) and gemma-3-270m (Q4_K_M) made the texts; the costs are those of two
x86 cores. ``hot`` was drawn at temperature 1.
"""

from __future__ import annotations

import functools
from statistics import fmean

import pytest

from gguf_spec.control import FixedPolicy, Hints
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_base import NgramDrafter
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.ngram_registry import AUTO_SIZES
from gguf_spec.drafters.pool import Pool
from tests.control.replay import Outcome, Stream, adaptive, cost_of, known_curve, replay, streams

MODELS = ("smollm2", "gemma3")
CASES = [(model, name) for model in MODELS for name in streams(model)]
RUNS = 6
LENGTH = AUTO_SIZES[1]


@functools.cache
def fixed(model: str, name: str) -> dict[str, Outcome]:
    """llama.cpp's types at their defaults, and other settings of the simplest."""
    cost, stream = cost_of(model), streams(model)[name]
    drafters: dict[str, tuple[NgramDrafter, int]] = {
        "simple": (NgramSimple(), 48),
        "map-k": (NgramMapK(), 48),
        "map-k4v": (NgramMapK4V(), 48),
        "mod": (NgramMod(), 64),
        "cache": (NgramCache(), 8),
    }
    drafters |= {
        f"simple {n} {m}": (NgramSimple(n, m), m) for n in (2, 3, 5, 8) for m in (4, 8, 16, 40)
    }
    return {
        kind: replay(stream, [drafter], FixedPolicy([longest]), cost)
        for kind, (drafter, longest) in drafters.items()
    }


@functools.cache
def automatic(model: str, name: str) -> tuple[float, float]:
    """The speed of ``auto``, in the first of two requests of this kind and in the second: means of
    some runs, because a time more or less may decide on a long draft."""
    cost, stream, hot = cost_of(model), streams(model)[name], name == "hot"
    speeds: list[list[float]] = [[], []]
    for seed in range(RUNS):
        controller = adaptive([LongestMatch(*AUTO_SIZES)], [LENGTH], known_curve(cost), hot=hot)
        for request in range(2):
            drafter = LongestMatch(*AUTO_SIZES)
            controller.begin(Hints(temperature=1.0 if hot else 0.0))
            outcome = replay(stream, [drafter], controller, cost, noise=0.05, seed=seed)
            assert outcome.worst <= 8.0
            assert outcome.speed >= 0.97
            speeds[request].append(outcome.speed)
    return fmean(speeds[0]), fmean(speeds[1])


@pytest.mark.parametrize(("model", "name"), CASES)
def test_never_slower_than_plain(model: str, name: str) -> None:
    assert min(automatic(model, name)) >= 0.97


@pytest.mark.parametrize("model", MODELS)
def test_texts_that_nothing_was_tuned_on_are_not_slower_either(model: str) -> None:
    for name, stream in streams(model, "holdout.json").items():
        cost, hot = cost_of(model), name.startswith("hot")
        for seed in range(3):
            controller = adaptive([LongestMatch(*AUTO_SIZES)], [LENGTH], known_curve(cost), hot=hot)
            drafter = LongestMatch(*AUTO_SIZES)
            outcome = replay(stream, [drafter], controller, cost, noise=0.05, seed=seed)
            assert outcome.speed >= 0.97, name
            assert outcome.worst <= 8.0, name


@pytest.mark.parametrize(("model", "least"), [("smollm2", 1.5), ("gemma3", 2.6)])
def test_an_echo_gains(model: str, least: float) -> None:
    """SmolLM2's echo has 107 tokens with four slips; drafts without any would gain 2.2."""
    assert automatic(model, "echo")[0] >= least


@pytest.mark.parametrize(("model", "name"), CASES)
def test_no_fixed_setting_is_much_faster(model: str, name: str) -> None:
    """The best of a sweep knows beforehand where the text will turn."""
    best = max(outcome.speed for outcome in fixed(model, name).values())
    assert min(automatic(model, name)) >= 0.88 * best


@pytest.mark.parametrize("request_number", [0, 1])
def test_over_all_texts_it_is_as_fast_as_the_best_setting_of_each(request_number: int) -> None:
    shares = [
        automatic(*case)[request_number] / max(outcome.speed for outcome in fixed(*case).values())
        for case in CASES
    ]
    assert fmean(shares) >= 0.99


def test_over_all_texts_it_is_faster_than_each_type_of_llama_cpp() -> None:
    for kind in ("simple", "map-k", "map-k4v", "mod", "cache"):
        gains = [automatic(*case)[0] / fixed(*case)[kind].speed for case in CASES]
        assert fmean(gains) > 1.1, kind


def test_a_replay_is_deterministic() -> None:
    stream, cost = streams("smollm2")["json"], cost_of("smollm2")

    def lengths() -> list[int]:
        drafter = LongestMatch(*AUTO_SIZES)
        controller = adaptive([drafter], [LENGTH], known_curve(cost))
        return replay(stream, [drafter], controller, cost, noise=0.1, seed=3).lengths

    assert lengths() == lengths()
    assert sum(lengths()) > 100


def with_pool(stream: Stream, *others: Stream) -> float:
    """The speed of ``auto`` after ``others`` have been said."""
    cost, pool = cost_of("smollm2"), Pool()
    for other in others:
        pool.add(other.prompt + other.tokens)
    drafter = LongestMatch(*AUTO_SIZES, pool)
    controller = adaptive([drafter], [LENGTH], known_curve(cost))
    return replay(stream, [drafter], controller, cost).speed


def test_a_repeated_request_gains_from_the_pool_and_another_one_loses_nothing() -> None:
    texts = streams("smollm2")
    for name in ("prose", "question", "table"):
        again, alone = with_pool(texts[name], texts[name]), with_pool(texts[name])
        assert again >= 1.7, name
        others = with_pool(texts[name], texts["echo"], texts["json"])
        assert others >= 0.97 * alone, name


def test_an_edited_answer_gains_from_the_pool() -> None:
    stream = streams("smollm2")["question"]
    edited = list(stream.tokens)
    for position in range(40, len(edited), 60):
        edited[position] += 1
    again = with_pool(Stream(stream.prompt, edited), stream)
    assert again >= 1.4
    assert again > 1.3 * with_pool(Stream(stream.prompt, edited))


def test_what_is_expected_is_drafted_from_the_first_token() -> None:
    stream, cost, pool = streams("smollm2")["question"], cost_of("smollm2"), Pool()
    pool.predict(stream.tokens)
    drafter = LongestMatch(*AUTO_SIZES, pool)
    controller = adaptive([drafter], [LENGTH], known_curve(cost))
    outcome = replay(stream, [drafter], controller, cost)
    assert outcome.lengths[0] > 4
    assert outcome.speed > 1.7
    wrong = Pool()
    wrong.predict(streams("smollm2")["prose"].tokens)
    drafter = LongestMatch(*AUTO_SIZES, wrong)
    controller = adaptive([drafter], [LENGTH], known_curve(cost))
    outcome = replay(stream, [drafter], controller, cost)
    assert outcome.worst <= 8.0
    assert outcome.speed >= 0.95
