"""Which way drafters draw: what settings and acceptance choose."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest

from gguf_spec.draft_sampling import DraftSampling, Trial, sampling_warning
from gguf_spec.sampling import DraftWay, Sampler, SamplingParams

WARM = SamplingParams(temperature=0.8)


def play(trial: Trial, rates: Mapping[DraftWay, float], n: int, seed: int = 0) -> list[DraftWay]:
    """The ways of ``n`` drafts of three tokens, each of which stands with the rate of its way."""
    r = random.Random(seed)
    ways = []
    for _ in range(n):
        way = trial.way
        ways.append(way)
        n_accepted = next((i for i in range(3) if r.random() >= rates[way]), 3)
        trial.record(3, n_accepted)
    return ways


def test_blocks_take_turns_before_one_is_chosen() -> None:
    trial = Trial(["coupled", "greedy"])
    ways = play(trial, {"coupled": 0.7, "greedy": 0.3}, 64)
    assert ways == [*["coupled"] * 16, *["greedy"] * 16] * 2


@pytest.mark.parametrize("best", ["coupled", "greedy"])
def test_the_better_way_is_kept(best: DraftWay) -> None:
    rates: dict[DraftWay, float] = {"coupled": 0.3, "greedy": 0.3, best: 0.6}
    for seed in range(5):
        ways = play(Trial(["coupled", "greedy"]), rates, 2000, seed)
        assert ways[64:].count(best) > 0.9 * len(ways[64:])


def test_equal_ways_do_not_change_places() -> None:
    trial, ways = Trial(["coupled", "greedy"]), []
    for _ in range(64 + 10 * (256 + 16)):
        ways.append(trial.way)
        trial.record(4, 2)
    assert ways[64:] == [*["coupled"] * 256, *["greedy"] * 16] * 10


def test_what_was_better_once_is_left_when_the_text_changes() -> None:
    trial = Trial(["coupled", "greedy"])
    play(trial, {"coupled": 0.7, "greedy": 0.3}, 1000)
    play(trial, {"coupled": 0.2, "greedy": 0.6}, 3000)
    ways = play(trial, {"coupled": 0.2, "greedy": 0.6}, 1000)
    assert ways.count("greedy") > 900


def test_rounds_without_a_draft_do_not_count() -> None:
    trial = Trial(["coupled", "greedy"])
    for _ in range(100):
        trial.record(0, 0)
    assert trial.way == "coupled"
    assert play(trial, {"coupled": 0.5, "greedy": 0.5}, 17)[-1] == "greedy"


def test_tokens_after_a_rejected_one_are_not_tested() -> None:
    """One way drafts 1 token of which .6 stand, the other 8 of which .5 stand: .07 of all, but
    more of those that were looked at than a way with .3."""
    trial, r = Trial(["coupled", "greedy"]), random.Random(1)
    for _ in range(64):
        rate, n = (0.3, 1) if trial.way == "coupled" else (0.6, 8)
        trial.record(n, next((i for i in range(n) if r.random() >= rate), n))
    assert trial.way == "greedy"


def rules(verify: str, wanted: str, params: SamplingParams) -> tuple[str, str, Sequence[str]]:
    sampling = DraftSampling(verify, wanted)
    sampling.start(Sampler(params))
    return sampling.rule, sampling.exactness, sampling._ways


@pytest.mark.parametrize(
    ("verify", "wanted", "rule", "ways"),
    [
        ("match", "auto", "match", ("coupled", "greedy")),
        ("match", "own", "match", ("own",)),
        ("match", "greedy", "match", ("greedy",)),
        ("residual", "auto", "residual", ("own",)),
        ("residual", "own", "residual", ("own",)),
        ("residual", "coupled", "match", ("coupled",)),
        ("residual", "greedy", "match", ("greedy",)),
        ("auto", "auto", "residual", ("own", "greedy")),
        ("auto", "own", "residual", ("own",)),
        ("auto", "coupled", "match", ("coupled",)),
    ],
)
def test_settings(verify: str, wanted: str, rule: str, ways: tuple[str, ...]) -> None:
    exactness = "distribution-exact" if rule == "residual" else "seed-exact"
    assert rules(verify, wanted, WARM) == (rule, exactness, ways)


def test_nothing_is_drawn_at_temperature_0_or_with_mirostat() -> None:
    for verify, wanted in product(("match", "residual", "auto"), ("auto", "own", "coupled")):
        assert rules(verify, wanted, SamplingParams())[:2] == ("match", "seed-exact")
        warm = replace(WARM, mirostat=2)
        assert rules(verify, wanted, warm)[:2] == ("match", "seed-exact")
        xtc = SamplingParams(xtc_probability=1.0)
        assert rules(verify, wanted, xtc)[:2] == ("match", "seed-exact")


def test_the_default_is_seed_exact_and_begins_coupled() -> None:
    assert rules("match", "auto", WARM) == ("match", "seed-exact", ("coupled", "greedy"))


def test_acceptance_is_remembered_while_only_the_seed_changes() -> None:
    sampling = DraftSampling("match", "auto")
    sampling.start(Sampler(WARM))
    for _ in range(64):
        greedy = sampling.sampler(1).greedy
        sampling.record(1, 3, 3 if greedy else 0)
    sampling.record(None, 0, 0)
    sampling.start(Sampler(replace(WARM, seed=5)))
    assert sampling.sampler(1).greedy
    assert sampling.sampler(1).params.seed == 5
    assert not sampling.sampler(0).greedy  # each drafter for itself
    sampling.start(Sampler(replace(WARM, temperature=0.9)))
    assert not sampling.sampler(1).greedy


@pytest.mark.parametrize("changed", [{}, {"temperature": 0.0}, {"mirostat": 2}])
@pytest.mark.parametrize("wanted", ["auto", "own", "greedy", "coupled"])
@pytest.mark.parametrize("verify", ["match", "residual", "auto"])
def test_the_rule_is_known_before_a_generation(
    verify: str, wanted: str, changed: dict[str, float]
) -> None:
    params = replace(WARM, **changed)  # type: ignore[arg-type]
    sampling = DraftSampling(verify, wanted)
    rule = sampling.rule_for(params)
    assert sampling.rule == "match"  # that of no generation yet
    sampling.start(Sampler(params))
    assert sampling.rule == rule
    expected = verify != "match" and wanted in ("auto", "own") and not changed
    assert (rule == "residual") is expected


def test_settings_that_keep_each_other_from_something_are_named() -> None:
    assert "accepted less often" in (sampling_warning("match", "own") or "")
    assert "are matched" in (sampling_warning("residual", "greedy") or "")
    for verify, wanted in (
        ("match", "auto"), ("match", "coupled"), ("residual", "auto"), ("residual", "own"),
        ("auto", "auto"), ("auto", "greedy"),
    ):  # fmt: skip
        assert sampling_warning(verify, wanted) is None
