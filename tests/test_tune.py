"""The search for settings, on measurements that are made up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gguf_spec.bench.runner import BenchRun, Runner, Turn
from gguf_spec.bench.statistics import Estimate
from gguf_spec.cli.tune import tuned_text
from gguf_spec.profile import Profile, apply_values, load_profile
from gguf_spec.setup import Setup, prepare
from gguf_spec.tune import (
    LENGTHS,
    Candidate,
    Tuning,
    candidates,
    profile_values,
    search,
    searched_profile,
)

MODELS = Path(__file__).parent / "models"
TEXT = tuple(range(20))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return apply_values(
        Profile(),
        {
            "target.model": str(MODELS / "tiny-target.gguf"),
            "target.n_ctx": 256,
            "target.n_threads": 1,
            "spec.draft.model": str(MODELS / "tiny-draft.gguf"),
        },
    )


@pytest.fixture(scope="module")
def setup(profile: Profile) -> Setup:
    return prepare(searched_profile(profile, prepare(profile)))


class FakeRunner:
    """Runs whose speed is what ``speeds`` says, by set-up, with noise; others are as plain."""

    def __init__(self, speeds: dict[str, float], noise: float = 0.0, types: Any = ()) -> None:
        self.speeds = speeds
        self.setups: tuple[Any, ...] = ()
        self.conversations = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
        self.differences: dict[tuple[str, str], Any] = {}
        self.session = SimpleNamespace(spec_types=types)
        self.wrong: set[str] = set()
        self.n_runs = 0
        self._noise = noise
        self._numbers = random.Random(3)

    def rounds(self, n_rounds: int) -> Iterator[BenchRun]:
        for number in range(1, n_rounds + 1):
            for conversation in self.conversations:
                for one in self.setups:
                    self.n_runs += 1
                    speed = self.speeds.get(one.name, 1.0)
                    speed *= 1.0 + self._noise * self._numbers.random()
                    text = tuple(t + (one.name in self.wrong) for t in TEXT)
                    times = tuple((1.0 + i) / speed for i in range(len(text)))
                    yield BenchRun(number, conversation.name, one.name, [Turn(text, times)])


def _search(runner: FakeRunner, profile: Profile, setup: Setup) -> tuple[Tuning, list[Candidate]]:
    tried = candidates(profile, setup, setup.spec_types)
    runner.session.spec_types = setup.spec_types
    return search(cast("Runner", runner), tried, profile=profile, rounds=7), tried


def test_what_is_tried(profile: Profile, setup: Setup) -> None:
    tried = candidates(profile, setup, setup.spec_types)
    names = [one.setup.name for one in tried]
    assert len(names) == len(set(names))
    assert "draft-simple n_max=3 fixed" in names
    assert f"draft-simple n_max={max(LENGTHS)}" in names
    assert "ngram-mod n_match=6 n_max=48" in names
    for one in tried:
        applied = apply_values(profile, dict(one.values)).spec
        assert applied.types == one.setup.types
        assert applied.control == one.setup.control
        if one.setup.spec is not None:
            kind = one.setup.types[0].replace("-", "_")
            assert getattr(applied, kind) == getattr(one.setup.spec, kind)
    only = prepare(searched_profile(profile, prepare(profile), only=("ngram-cache",)))
    assert only.spec_types == ("ngram-cache",)
    assert candidates(profile, only, only.spec_types)


def test_the_best_wins(profile: Profile, setup: Setup) -> None:
    runner = FakeRunner({"draft-simple n_max=3 fixed": 1.5, "ngram-mod n_match=6 n_max=48": 1.2})
    found, tried = _search(runner, profile, setup)
    assert found.winner is not None
    assert found.winner.setup.name == "draft-simple n_max=3 fixed"
    assert found.worth_it
    assert found.total is not None
    assert found.total.median == pytest.approx(1.5)
    assert found.total.n == 7
    names = [name for name, _, _ in found.tried]
    assert names[0] == "draft-simple n_max=3 fixed"
    assert len(names) == len(tried) + 1  # the two best kinds in a stack
    assert "ngram-mod n_match=6 n_max=48 + draft-simple n_max=3 fixed" in names


def test_luck_while_choosing_does_not_count(profile: Profile, setup: Setup) -> None:
    """All are as fast as plain decoding. The best of many looks faster than it is; measured anew it
    is not."""
    runner = FakeRunner({}, noise=0.2)
    found, _ = _search(runner, profile, setup)
    assert found.winner is not None
    chosen = found.tried[0][1]
    assert found.total is not None
    assert chosen > 1.03
    assert abs(found.total.median - 1.0) < chosen - 1.0


def test_leave_it_off(profile: Profile, setup: Setup, tmp_path: Path) -> None:
    tried = candidates(profile, setup, setup.spec_types)
    runner = FakeRunner({one.setup.name: 0.8 for one in tried})
    found, _ = _search(runner, profile, setup)
    assert not found.worth_it
    text = tuned_text(profile, found, setup, ["a", "b"])
    assert "Leave drafting off" in text
    path = tmp_path / "off.toml"
    path.write_text(text, encoding="utf-8")
    off = load_profile(path)
    assert off.spec.types == ("none",)
    assert prepare(off).warnings == ()  # nothing about a draft that is not used


def test_another_text_is_never_chosen(profile: Profile, setup: Setup) -> None:
    best = "draft-simple n_max=5 fixed"
    runner = FakeRunner({best: 9.0, "draft-simple n_max=3 fixed": 1.5})
    runner.wrong = {best}
    found, _ = _search(runner, profile, setup)
    assert best in found.refused
    assert found.winner is not None
    assert found.winner.setup.name == "draft-simple n_max=3 fixed"


def test_a_small_gain_is_not_worth_a_setting(profile: Profile, setup: Setup) -> None:
    runner = FakeRunner({"draft-simple n_max=3 fixed": 1.01})
    found, _ = _search(runner, profile, setup)
    assert found.total is not None
    assert found.total.low > 1.0
    assert not found.worth_it


def test_the_profile_says_what_was_measured(profile: Profile, setup: Setup, tmp_path: Path) -> None:
    runner = FakeRunner({"draft-simple n_max=3 fixed": 1.5})
    found, _ = _search(runner, profile, setup)
    text = tuned_text(profile, found, setup, ["a", "b"])
    path = tmp_path / "tuned.toml"
    path.write_text(text, encoding="utf-8")
    tuned = load_profile(path)
    assert tuned.spec.types == ("draft-simple",)
    assert not tuned.spec.control
    assert tuned.spec.draft_simple.n_max == 3
    assert tuned.target.model == profile.target.model
    assert prepare(tuned).ceilings == (3,)
    assert "1.50 x the speed of plain decoding" in text
    assert "#   a: 1.50 (1.50 to 1.50)" in text


def test_a_stack_is_written_in_the_order_that_was_measured(profile: Profile) -> None:
    only = ("draft-simple", "ngram-cache")
    searched = searched_profile(profile, prepare(profile), only=only)
    setup = prepare(searched)
    runner = FakeRunner({"ngram-cache n_draft=8 fixed + draft-simple n_max=3 fixed": 2.0})
    runner.speeds |= {"draft-simple n_max=3 fixed": 1.5, "ngram-cache n_draft=8 fixed": 1.4}
    found, _ = _search(runner, searched, setup)
    assert found.winner is not None
    assert len(found.winner.setup.types) == 2
    assert tuple(profile_values(found)["spec.types"]) == found.winner.setup.types


@pytest.mark.parametrize("table", ["draft", "draft-simple"])
def test_short_drafts_may_win_where_the_profile_asks_for_long_ones(
    profile: Profile, tmp_path: Path, table: str
) -> None:
    """Lengths are measured without the profile's ``n_min``, so the tuned one has none either."""
    asking = apply_values(profile, {f"spec.{table}.n_min": 2})
    setup = prepare(searched_profile(asking, prepare(asking)))
    for n_max in (1, 5):
        runner = FakeRunner({f"draft-simple n_max={n_max} fixed": 1.5})
        found, _ = _search(runner, asking, setup)
        path = tmp_path / f"{n_max}.toml"
        path.write_text(tuned_text(asking, found, setup, ["a"]), encoding="utf-8")
        tuned = prepare(load_profile(path))
        assert (tuned.floors, tuned.ceilings) == ((0,), (n_max,))


def test_files_are_found_from_any_folder(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile's paths start at its own folder, those of a command line at the present one."""
    monkeypatch.chdir(MODELS)
    here = apply_values(
        profile, {"target.model": "tiny-target.gguf", "spec.draft.model": "tiny-draft.gguf"}
    )
    setup = prepare(searched_profile(here, prepare(here)))
    found, _ = _search(FakeRunner({"draft-simple n_max=3 fixed": 1.5}), here, setup)
    path = tmp_path / "tuned.toml"
    path.write_text(tuned_text(here, found, setup, ["a"]), encoding="utf-8")
    tuned = load_profile(path)
    assert tuned.spec.draft.model == str(MODELS / "tiny-draft.gguf")
    assert prepare(tuned).spec_types == ("draft-simple",)


def test_a_winner_in_doubt_is_left_off() -> None:
    doubtful = Tuning(total=Estimate(1.2, 0.98, 1.4, 0.98, 7))
    assert not doubtful.worth_it
    assert Tuning(total=Estimate(1.2, 1.01, 1.4, 0.98, 7)).worth_it
    assert not Tuning().worth_it
