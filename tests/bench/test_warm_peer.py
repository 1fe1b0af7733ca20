"""llama-server for many short runs, played by ``fake_server``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.bench.runner import Runner
from gguf_spec.bench.setups import BenchSetup, plain_setup
from gguf_spec.session import Session
from scripts.warm_peer import WarmPeer
from tests.bench.conftest import WORKLOADS
from tests.bench.test_peer import Fake, _answers, _requests, fake

__all__ = ["fake"]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script that is a program")
MOD = BenchSetup("ngram-mod defaults", ("ngram-mod",), control=False)


@pytest.fixture(scope="module")
def runner(session: Session) -> Iterator[Runner]:
    return Runner(session, WORKLOADS[:2], [plain_setup()])


def with_answers(runner: Runner, fake: Fake, **settings: Any) -> str:
    return fake(answers=_answers(runner), **settings)


def test_drafters_that_remember_get_a_new_process_and_the_prompt_back(
    runner: Runner, fake: Fake, tmp_path: Path
) -> None:
    program = with_answers(runner, fake)
    one, talk = runner.conversations
    with WarmPeer(program, runner.session, MOD, tmp_path) as peer:
        for number in (1, 2):
            run = peer.run(number, talk)
            assert run is not None
            assert run.round == number
            assert [turn.tokens for turn in run.turns] == [p.reference for p in talk.prompts]
            # Two turns, and the reading of the prompt does not count.
            assert run.by_type == {"ngram-mod": {"num_draft_tokens": 20, "num_accepted_tokens": 14}}
        assert peer.run(3, one) is not None
    posted = _requests(program)
    # Before the first run of a workload there is one to see how much is the same.
    assert len({request["pid"] for request in posted}) == 5
    files = [request["filename"] for request in posted if "filename" in request]
    assert files == ["ngram-mod-talk.slot"] * 3 + ["ngram-mod-one.slot"] * 2
    assert all(request.get("cache_prompt", True) for request in posted)
    reading = [request for request in posted if request.get("n_predict") == 1]
    assert len(reading) == 5


def test_what_keeps_nothing_stays(runner: Runner, fake: Fake, tmp_path: Path) -> None:
    program = with_answers(runner, fake)
    with WarmPeer(program, runner.session, plain_setup(), tmp_path) as peer:
        assert peer.name == "llama-server plain"
        for number in (1, 2):
            run = peer.run(number, runner.conversations[0])
            assert run is not None
            assert run.by_type == {}
        assert peer.cut("one") is None
        (drawn,) = Runner(runner.session, WORKLOADS[2:], [plain_setup()]).conversations
        assert peer.run(1, drawn) is None
        assert "random" in peer.refused["warm"]
    assert len({request["pid"] for request in _requests(program)}) == 1


def test_a_text_that_goes_another_way(runner: Runner, fake: Fake, tmp_path: Path) -> None:
    (prompt,) = runner.conversations[0].prompts
    key = " ".join(str(token) for token in prompt.tokens)
    for same, limit in ((10, 10), (3, None)):
        tokens = [*prompt.reference[:same], *(t + 1 for t in prompt.reference[same:])]
        program = fake(answers={key: tokens})
        with WarmPeer(program, runner.session, plain_setup(), tmp_path) as peer:
            run = peer.run(1, runner.conversations[0])
            assert peer.cut("one") == limit
            assert (run is None) is (limit is None)
            assert ("one" in peer.refused) is (limit is None)
            if run is not None:
                assert len(run.turns[0].tokens) == limit
            peer.forget("one")
            assert peer.cut("one") is None


def test_names_that_llama_server_refuses(runner: Runner, fake: Fake, tmp_path: Path) -> None:
    """Its slots are kept in files, and the names of workloads are those of files, too."""
    program = with_answers(runner, fake)
    talk = runner.conversations[1]
    odd = replace(talk, workload=replace(talk.workload, name="日 本/../\udce9"))
    with WarmPeer(program, runner.session, MOD, tmp_path) as peer:
        peer.run(1, odd)
        peer.run(2, talk)
    files = {body["filename"] for body in _requests(program) if "filename" in body}
    assert len(files) == 2
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in files)
