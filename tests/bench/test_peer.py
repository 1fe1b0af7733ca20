"""A llama-server beside us, played by ``fake_server``."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gguf_spec.bench.compare import comparison
from gguf_spec.bench.document import Measured, document
from gguf_spec.bench.measure import measure, start_peers
from gguf_spec.bench.peer import LlamaServer, find_program, spec_arguments
from gguf_spec.bench.runner import Runner
from gguf_spec.bench.setups import BenchSetup, plain_setup, synthetic_setup
from gguf_spec.errors import InputError, RunError, UsageError
from gguf_spec.session import Session
from tests.bench.conftest import MODELS, WORKLOADS

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script that is a program")
Fake = Callable[..., str]
BOTH = BenchSetup("auto", ("ngram-simple", "draft-simple"))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """``fake(mode, answers=…, props=…, meta=…)`` is the path of a program."""

    def make(mode: str = "ok", **settings: Any) -> str:
        defaults: dict[str, Any] = {"answers": {}, "props": {}, "meta": None}
        path = tmp_path / "settings.json"
        log = str(tmp_path / "requests")
        path.write_text(json.dumps({"mode": mode, "log": log, **defaults, **settings}))
        monkeypatch.setenv("FAKE_SERVER", str(path))
        script = Path(__file__).with_name("fake_server.py")
        program = tmp_path / "llama-server"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    return make


def _answers(runner: Runner) -> dict[str, list[int]]:
    return {
        " ".join(str(token) for token in prompt.tokens): list(prompt.reference)
        for conversation in runner.conversations
        for prompt in conversation.prompts
    }


def _requests(program: str) -> list[dict[str, Any]]:
    lines = Path(program).with_name("requests").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_pairs_with_a_server(session: Session, fake: Fake) -> None:
    runner = Runner(session, WORKLOADS, [plain_setup()])
    program = fake(answers=_answers(runner))
    with LlamaServer(program, session, plain_setup()) as server:
        pid = server._process.pid
        runner.peers = (server,)
        measured = measure(runner, 2)
        assert server.build == "b1-fake"
        assert server.version == "version: 1 (fake)"
    assert not psutil.pid_exists(pid)
    theirs = [run for run in measured.runs if run.setup == server.name]
    # At temperature 1 the random numbers are others: nothing to compare.
    assert {run.workload for run in theirs} == {"one", "talk"}
    assert theirs[0].prefill_seconds == pytest.approx(0.05)
    assert theirs[0].decode_seconds == pytest.approx(0.01 * (theirs[0].n_tokens - 1))
    ours = [run for run in measured.runs if (run.setup, run.workload) == ("plain", "one")]
    found = comparison([run for run in theirs if run.workload == "one"], ours)
    assert found["equal"]
    assert found["decode"]["n"] == 2
    for body in _requests(program):
        assert body["n_probs"] == 0
        assert body["return_tokens"]
        assert isinstance(body["prompt"], list)
    firsts = {tuple(c.prompts[0].tokens) for c in runner.conversations}
    assert all(b["cache_prompt"] == (tuple(b["prompt"]) not in firsts) for b in _requests(program))
    model = {"files": [{"file": "x", "sha256": "0"}], "arch": "a", "quant": "q", "drafts": []}
    record = document(Measured(runner, measured.runs, measured.peers), model, [])
    assert record["peers"][0]["arguments"].count("-np") == 1
    assert {one["baseline"] for one in record["comparisons"]} == {server.name}


def test_a_text_that_goes_another_way_is_cut_or_left_out(session: Session, fake: Fake) -> None:
    runner = Runner(session, WORKLOADS[:1], [plain_setup()])
    ((key, answer),) = _answers(runner).items()
    late = [*answer[:12], *((t + 1) % 100 for t in answer[12:])]
    program = fake(answers={key: late})
    with LlamaServer(program, session, plain_setup()) as server:
        run = server.run(1, runner.conversations[0])
        assert run is not None
        assert run.turns[0].tokens == tuple(answer[:12])
    early = [*answer[:3], *((t + 1) % 100 for t in answer[3:])]
    with LlamaServer(fake(answers={key: early}), session, plain_setup()) as server:
        assert server.run(1, runner.conversations[0]) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"props": {"model_path": "/other/model.gguf"}}, "the peer serves /other/model.gguf"),
        ({"meta": {"n_vocab": 77}}, "a vocabulary of 77 tokens"),
        ({"meta": {"size": 10**12}}, "1000000000000 bytes of weights"),
    ],
)
def test_another_model(
    session: Session, fake: Fake, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        LlamaServer(fake(**settings), session, plain_setup())
    assert not _children()


@pytest.mark.parametrize("path", ["/health", "/props"])
@pytest.mark.parametrize("text", ["<html>Welcome to nginx</html>", "[1]", "[" * 100_000])
def test_another_program(session: Session, fake: Fake, path: str, text: str) -> None:
    """That is told at once: nobody waits until it answers as it should."""
    with pytest.raises(RunError, match="is it llama-server"):
        LlamaServer(fake(raw={path: text}), session, plain_setup(), start_seconds=1000.0)
    assert not _children()


@pytest.mark.parametrize(
    "text",
    ["<html>", "[]", "{}", '{"data": {"a": 1}}', '{"data": [5]}', '{"data": [{"meta": "x"}]}'],
)
def test_models_that_it_does_not_describe(session: Session, fake: Fake, text: str) -> None:
    """Then nothing is known of them, as with older ones."""
    LlamaServer(fake(raw={"/v1/models": text}), session, plain_setup()).close()


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": [1, 2], "timings": {"prompt_ms": NaN, "predicted_ms": 1}}',
        '{"tokens": [1, 2], "timings": {"prompt_ms": 1, "predicted_ms": 1e999}}',
        '{"tokens": [1, 2], "timings": {"prompt_ms": -1, "predicted_ms": 1}}',
        '{"tokens": [1, 2], "timings": {"prompt_ms": 1, "predicted_ms": 1, "prompt_n": 1e999}}',
        '{"tokens": [1e999], "timings": {"prompt_ms": 1, "predicted_ms": 1}}',
        '{"tokens": 5, "timings": {"prompt_ms": 1, "predicted_ms": 1}}',
        '{"tokens": [1, 2], "timings": 7}',
        '{"tokens": ["a"], "timings": {"prompt_ms": 1, "predicted_ms": 1}}',
        "<html>",
    ],
)
def test_answers_that_are_none(session: Session, fake: Fake, text: str) -> None:
    runner = Runner(session, WORKLOADS[:1], [plain_setup()])
    program = fake(raw={"/completion": text})
    with (
        LlamaServer(program, session, plain_setup()) as server,
        pytest.raises(RunError, match="is it llama-server"),
    ):
        server.run(1, runner.conversations[0])


def test_what_is_measured_outlives_the_server(session: Session, fake: Fake) -> None:
    setups = [plain_setup(), BOTH]
    runner = Runner(session, WORKLOADS[:1], setups)
    answers = _answers(runner)
    with LlamaServer(fake(answers=answers, lasts=4), session, plain_setup()) as server:
        runner.peers = (server,)
        measured = measure(runner, 5)
        assert not measured.complete
        assert measured.error is not None
        assert "code 9" in measured.error.message
        assert len(measured.runs) >= 6
    with LlamaServer(fake(answers=answers, lasts=0), session, plain_setup()) as server:
        runner.peers = (server,)
        with pytest.raises(RunError, match="code 9"):
            measure(runner, 5)


def test_a_server_that_cannot_start(session: Session, fake: Fake) -> None:
    with pytest.raises(RunError, match=r"code 7 .* error: failed to load the model"):
        LlamaServer(fake("die"), session, plain_setup())
    for mode in ("loading", "slow"):
        with pytest.raises(RunError, match="not ready"):
            LlamaServer(fake(mode), session, plain_setup(), start_seconds=0.3)
    assert not _children()


def test_one_that_fails_takes_the_others_along(
    session: Session, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake()
    started: list[LlamaServer] = []
    begin = LlamaServer._wait

    def second_fails(server: LlamaServer, seconds: float) -> None:
        begin(server, seconds)
        started.append(server)
        if len(started) == 2:
            raise RunError("no")

    monkeypatch.setattr(LlamaServer, "_wait", second_fails)
    with pytest.raises(RunError, match="no"):
        start_peers(program, session, [plain_setup(), BOTH])
    assert len(started) == 2
    assert not _children()


def test_no_llama_server(session: Session, fake: Fake) -> None:
    runner = Runner(session, WORKLOADS[:1], [plain_setup()])
    with (
        LlamaServer(fake("nonsense"), session, plain_setup()) as server,
        pytest.raises(RunError, match="is it llama-server"),
    ):
        server.run(1, runner.conversations[0])
    with pytest.raises(UsageError, match="no program"):
        find_program("no-such-llama-server")


def test_programs_that_are_none(session: Session, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    with pytest.raises(UsageError, match="not executable"):
        find_program(str(text))
    with pytest.raises(UsageError, match="no program"):
        find_program(str(tmp_path))
    endless = tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec yes\n")
    endless.chmod(0o755)
    with pytest.raises(RunError, match="writes without end"):
        LlamaServer(str(endless), session, plain_setup())


def test_an_answer_without_end(
    session: Session, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_spec.bench.peer._LARGEST_ANSWER", 1000)
    program = fake(raw={"/completion": json.dumps({"content": "x" * 1000})})
    with (
        LlamaServer(program, session, plain_setup()) as server,
        pytest.raises(RunError, match="no JSON"),
    ):
        server.ask("/completion", {"prompt": []})


def test_a_script_that_starts_a_server_ends_with_it(
    session: Session, fake: Fake, tmp_path: Path
) -> None:
    """As one that sets LD_LIBRARY_PATH: the server is not the process that was started."""
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\n"{fake()}" "$@"\nexit $?\n')
    script.chmod(0o755)
    with LlamaServer(str(script), session, plain_setup()):
        assert len(_children()) == 1
    assert not _children()


def test_a_server_that_goes_away(session: Session, fake: Fake) -> None:
    runner = Runner(session, WORKLOADS[:1], [plain_setup()])
    with LlamaServer(fake(), session, plain_setup()) as server:
        server._process.kill()
        server._process.wait()
        with pytest.raises(RunError, match="it ended with code -9"):
            server.run(1, runner.conversations[0])


def _serves(process: psutil.Process) -> bool:
    """Whether it is a server; one that was asked for its version may have ended by now."""
    try:
        return "--port" in process.cmdline()
    except psutil.Error:
        return False


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_ends_us_ends_the_server(fake: Fake, tmp_path: Path, name: str) -> None:
    """It holds a whole model, and nobody else would ever end it."""
    command = [sys.executable, "-m", "gguf_spec", "bench", str(MODELS / "tiny-target.gguf")]
    command += ["-t", "1", "-c", "256", "--workload", "echo", "-n", "2", "-o", str(tmp_path)]
    command += ["--spec-type", "ngram-simple", "--peer", f"llama-server={fake('loading')}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as ours:
        try:
            until = time.monotonic() + 60.0
            theirs: list[psutil.Process] = []
            while not theirs and time.monotonic() < until:
                theirs = [child for child in psutil.Process(ours.pid).children() if _serves(child)]
                time.sleep(0.02)
            assert theirs
            number = getattr(signal, name)
            ours.send_signal(number)
            assert ours.wait(20) == -number
        finally:
            ours.kill()
    _, alive = psutil.wait_procs(theirs, timeout=20)
    for child in alive:
        child.kill()
    assert not alive


def test_a_server_that_has_ended_has_no_peak(session: Session, fake: Fake) -> None:
    """As after Ctrl-C, which reaches both: a process that nobody has waited for has no memory."""
    with LlamaServer(fake(), session, plain_setup()) as server:
        assert server.peak_bytes() > 1 << 20  # type: ignore[operator]
        os.kill(server._process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server._process.pid, os.WEXITED | os.WNOWAIT)
        assert server.peak_bytes() is None


def test_the_same_settings(session: Session) -> None:
    assert spec_arguments(session, plain_setup()) == []
    told = " ".join(spec_arguments(session, BOTH))
    assert "--spec-type ngram-simple,draft-simple" in told
    assert "--spec-ngram-simple-size-n 12 --spec-ngram-simple-size-m 48" in told
    assert "--spec-draft-n-max 3" in told
    assert f"-md {MODELS / 'tiny-draft.gguf'}" in told


def test_the_same_placement(session: Session, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the plan, where the profile leaves it to the plan."""
    placed = session.setup.placed.model_copy(update={"n_gpu_layers": 7, "n_cpu_moe": 2})
    monkeypatch.setattr(session, "setup", replace(session.setup, placed=placed))
    assert session.setup.profile.target.n_gpu_layers == "auto"
    with LlamaServer(fake(), session, plain_setup()) as server:
        told = " ".join(server.arguments)
    assert "-ngl 7 -ncmoe 2" in told


def test_synthetic_drafts_have_no_peer(session: Session, fake: Fake) -> None:
    servers = start_peers(fake(), session, [plain_setup(), synthetic_setup(0.5, 3)])
    for server in servers:
        server.close()
    assert [server.peer_of for server in servers] == ["plain"]


def _children() -> list[str]:
    """Servers of this process that still run."""
    found = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    return [command for command in found if "fake_server" in command]
