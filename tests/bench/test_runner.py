"""Runs of a tiny model: equal work for all, nothing left over from the run before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gguf_spec.bench.measure import measure, setups_for
from gguf_spec.bench.runner import BenchRun, Conversation, Runner
from gguf_spec.bench.setups import BenchSetup, Replay, plain_setup, synthetic_setup
from gguf_spec.context import Run
from gguf_spec.control import AdaptiveController
from gguf_spec.errors import InputError, UsageError
from gguf_spec.history import History
from gguf_spec.profile import Profile, apply_values
from gguf_spec.prompt import template_arguments
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.workloads import Workload
from tests.bench.conftest import MODELS, WORKLOADS, open_session

FIXED = BenchSetup("draft-simple fixed", ("draft-simple",), control=False)
AUTO = BenchSetup("auto", ("ngram-simple", "draft-simple"))


@pytest.fixture(scope="module")
def runs(session: Session) -> list[BenchRun]:
    setups = [plain_setup(), AUTO, FIXED, synthetic_setup(0.5, 4)]
    runner = Runner(session, WORKLOADS, setups)
    found = list(runner.rounds(2))
    assert runner.differences == {}
    return found


def test_the_order_is_mirrored(runs: list[BenchRun]) -> None:
    order = [(run.workload, run.setup) for run in runs]
    half = len(order) // 2
    for name in ("one", "talk", "warm"):
        first = [setup for workload, setup in order[:half] if workload == name]
        second = [setup for workload, setup in order[half:] if workload == name]
        assert first == second[::-1]
        assert first[0] == "plain"


def test_all_decode_the_same(runs: list[BenchRun]) -> None:
    for name in ("one", "talk", "warm"):
        texts = {tuple(t.tokens for t in run.turns) for run in runs if run.workload == name}
        assert len(texts) == 1
        prompts = {tuple(t.n_prompt for t in run.turns) for run in runs if run.workload == name}
        assert len(prompts) == 1


def test_who_drafts(runs: list[BenchRun]) -> None:
    for run in runs:
        kinds = {kind for kind, counts in run.by_type.items() if counts["num_draft_tokens"]}
        if run.setup == "plain":
            assert not kinds
            assert run.tally.drafted == 0
        elif run.setup == FIXED.name:
            assert kinds == {"draft-simple"}
        elif run.setup == AUTO.name:
            assert kinds <= set(AUTO.types)
        else:
            assert kinds == {"synthetic"}


def test_counts_and_times_fit_together(runs: list[BenchRun]) -> None:
    for run in runs:
        tally = run.tally
        assert run.n_tokens == len(run.turns) + tally.steps + tally.n_accepted
        assert sum(run.positions) == tally.n_accepted
        assert sum(run.offered) == tally.n_drafted
        assert tally.decode_seconds == pytest.approx(run.decode_seconds)
        for turn in run.turns:
            assert all(a <= b for a, b in pairwise(turn.times))
            assert len(turn.times) == len(turn.tokens)


def test_every_run_starts_cold(runs: list[BenchRun]) -> None:
    """Counts of a set-up whose decisions do not depend on time are equal in all rounds; the second
    turn of a conversation finds the first in the cache."""
    for name in ("one", "talk", "warm"):
        fixed = [run for run in runs if (run.workload, run.setup) == (name, FIXED.name)]
        assert fixed[0].positions == fixed[1].positions
        assert fixed[0].offered == fixed[1].offered
    for run in runs:
        assert run.turns[0].cached == 0
        assert all(turn.cached > 0 for turn in run.turns[1:])


def test_prompts_can_stay_where_only_decoding_counts() -> None:
    """Nothing else does: not what n-grams have seen. Types that the session does not have are
    measured as well."""
    profile = apply_values(
        Profile(),
        {
            "target.model": str(MODELS / "tiny-target.gguf"),
            "target.n_ctx": 256,
            "target.n_threads": 1,
            "spec.types": ["ngram-simple"],
            "spec.pool": "request",
            "spec.control": False,
            "spec.ngram-simple.size_n": 1,
            "spec.ngram-simple.size_m": 4,
            "spec.ngram-cache.n_draft": 3,
        },
    )
    cache = BenchSetup("cache", ("ngram-cache",), control=False, spec=profile.spec)
    simple = BenchSetup("simple", ("ngram-simple",), control=False, spec=profile.spec)
    with Session(prepare(profile), least_width=9) as session:
        cold = Runner(session, WORKLOADS[:1], [plain_setup()])
        runner = Runner(session, WORKLOADS[:1], [plain_setup(), cache, simple], keep_prompts=True)
        found = list(runner.rounds(2))
    assert [c.prompts for c in runner.conversations] == [c.prompts for c in cold.conversations]
    assert runner.differences == {}
    drafted: dict[str, list[list[int]]] = {}
    for run in found:
        assert run.turns[0].cached == run.turns[0].n_prompt - 1
        drafted.setdefault(run.setup, []).append(run.offered)
    assert all(first == second for first, second in drafted.values())
    assert 0 < len(drafted["cache"][0]) <= 3
    assert drafted["simple"][0]
    assert not drafted["plain"][0]


def test_prompts_do_not_stay_where_drafters_read_them() -> None:
    with open_session() as session:
        runner = Runner(session, WORKLOADS[:1], [plain_setup(), FIXED], keep_prompts=True)
        assert all(run.turns[0].cached == 0 for run in runner.rounds(1))


@pytest.mark.parametrize("draft", ["tiny-draft.gguf", "tiny-othervocab-draft.gguf"])
def test_drafters_start_cold_too(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft model reads the prompt in every run, as if for the first time."""
    with open_session(draft) as session:
        runner = Runner(session, WORKLOADS[:1], [plain_setup(), FIXED])
        context = session.draft_contexts["draft-simple"]
        decode, counts = context.decode, [0]

        def counted(batch: Sequence[Run]) -> None:
            counts[-1] += sum(len(run.tokens) for run in batch)
            decode(batch)

        monkeypatch.setattr(context, "decode", counted)
        for number in (1, 2, 3):
            runner.run(number, runner.conversations[0], FIXED)
            counts.append(0)
    assert counts[0] == counts[1] == counts[2] > 10


def test_heads_go_on_in_the_second_turn() -> None:
    """A head reads on from what it has of the first turn."""
    head = BenchSetup("head", ("draft-eagle3",), control=False)
    with open_session("tiny-eagle3.gguf", "draft-eagle3") as session:
        runner = Runner(session, WORKLOADS[1:2], [plain_setup(), head])
        plain, drafted = runner.rounds(1)
        assert runner.differences == {}
    assert drafted.events == []
    assert [turn.tokens for turn in drafted.turns] == [turn.tokens for turn in plain.turns]
    assert drafted.tally.drafted > 0


def test_the_session_is_as_before(session: Session, runs: list[BenchRun]) -> None:
    assert [d.spec_type for d in session.sequence.drafters] == ["ngram-simple", "draft-simple"]
    assert isinstance(session.sequence.stack.controller, AdaptiveController)
    assert session.controller is session.sequence.stack.controller


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_replay_accepts_as_told(acceptance: float) -> None:
    text = [i % 50 for i in range(20_000)]
    drafter, history = Replay([text], acceptance, 51), History([7])
    drafter.begin(history)
    tested = stood = 0
    sampler = Sampler(SamplingParams())
    while len(history) < 19_000:
        done = len(history) - 1
        draft = list(drafter.draft(4, sampler).tokens)
        n = next((i for i in range(4) if draft[i] != text[done + i]), 4)
        tested += min(n + 1, 4)
        stood += n
        history.extend(text[done : done + n + 1])
    # some 10,000 tests: the standard error is below 0.005
    assert stood / tested == pytest.approx(acceptance, abs=0.02)


def test_a_text_that_differs_is_examined(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that accepts everything: what it writes is not what plain decoding writes."""
    runner = Runner(session, WORKLOADS[:1], [plain_setup(), FIXED])

    def accepts_all(
        draft: Sequence[int], sampler: Any, history: Any, logits: Any, row: int, drawn: Any
    ) -> tuple[int, int]:
        return len(draft), int(logits(row + len(draft)).argmax())

    monkeypatch.setattr("gguf_spec.engine.judge", accepts_all)
    measured = measure(runner, 1)
    assert measured.runs
    assert runner.differences["one", FIXED.name]["verdict"] == "broken"


def test_examining_a_text_does_not_empty_the_cache_of_the_next_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decodes the text again: after the run, or the next prompt would be read as a whole, which
    no other run has to do."""
    runner = Runner(session, WORKLOADS[1:2], [plain_setup(), FIXED])
    monkeypatch.setattr(
        "gguf_spec.engine.judge",
        lambda draft, sampler, history, logits, row, drawn: (
            len(draft),
            int(logits(row + len(draft)).argmax()),
        ),
    )
    found = [runner.run(number, runner.conversations[0], FIXED) for number in (1, 2)]
    difference = runner.differences["talk", FIXED.name]
    assert (difference["turn"], difference["verdict"]) == (0, "broken")
    assert found[0].turns[1].cached == found[1].turns[1].cached > 0


def test_prompts_are_those_of_a_chat(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that a profile says about reasoning."""
    chat = {"chat.think": "on", "chat.reasoning_effort": "low", "chat.think_budget": 3}
    profile = apply_values(session.setup.profile, chat)
    monkeypatch.setattr(session, "setup", replace(session.setup, profile=profile))
    given: list[dict[str, Any]] = []
    render = session.template.render

    def rendered(messages: Any, arguments: Any) -> str:
        given.append(dict(arguments))
        return render(messages, arguments)

    limits: list[int] = []
    monkeypatch.setattr(session.template, "render", rendered)
    monkeypatch.setattr(
        session.thinking, "limited", lambda prompt, budget, mask: limits.append(budget)
    )
    Runner(session, WORKLOADS[:1], [plain_setup()])
    assert given == [template_arguments(profile)]
    assert given[0]["thinking"]
    assert limits == [3]


def test_an_interrupt_keeps_what_is_finished(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(session, WORKLOADS[:1], [plain_setup(), FIXED])
    run = runner.run
    done = 0

    def interrupted(number: int, conversation: Conversation, setup: BenchSetup) -> BenchRun:
        nonlocal done
        done += 1
        if done == 6:  # after the warm-up of both, a pair, and one more
            raise KeyboardInterrupt
        return run(number, conversation, setup)

    monkeypatch.setattr(runner, "run", interrupted)
    measured = measure(runner, 3)
    assert not measured.complete
    assert [(one.round, one.setup) for one in measured.runs] == [
        (1, "plain"),
        (1, FIXED.name),
        (2, FIXED.name),
    ]
    monkeypatch.setattr(runner, "warm_up", lambda: None)
    done = 5
    with pytest.raises(KeyboardInterrupt):
        measure(runner, 3)


def test_setups_from_types(session: Session) -> None:
    names = [one.name for one in setups_for(session, each=True, synthetic=0.8)]
    assert names == ["plain", "ngram-simple", "draft-simple", "synthetic 0.8"]
    assert [one.name for one in setups_for(session, each=False, synthetic=None)][1:] == ["auto"]
    with pytest.raises(UsageError, match="nothing to compare"):
        setups_for(session, each=False, synthetic=None, drafting=False)


def test_a_workload_that_does_not_fit(session: Session) -> None:
    long = Workload("long", ("word " * 300,))
    with pytest.raises(InputError, match=r"workload long needs .* the context has 256"):
        Runner(session, [long], [plain_setup(), FIXED])
    runner = Runner(session, [long, WORKLOADS[0]], [plain_setup(), FIXED], lenient=True)
    assert [one.name for one in runner.conversations] == ["one"]
    assert runner.skipped[0]["workload"] == "long"


def test_settings_of_the_command_line_win(session: Session) -> None:
    values = {"sampling.temperature": 0.5, "sampling.seed": 9, "chat.system": "Be brief."}
    runner = Runner(session, WORKLOADS[:1], [plain_setup()], values=values, max_tokens=5)
    prompt = runner.conversations[0].prompts[0]
    assert prompt.params.sampling.temperature == 0.5
    assert prompt.params.sampling.seed == 9
    assert prompt.params.max_tokens == 5
    without = Runner(session, WORKLOADS[:1], [plain_setup()]).conversations[0].prompts[0]
    assert len(prompt.tokens) > len(without.tokens)
