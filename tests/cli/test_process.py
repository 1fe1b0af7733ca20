"""The program as a process: signals, pipes, streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import TARGET, spawn

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals and pipes")
# Greedily the tiny model repeats itself until the context is full, long after the test is over.
ENDLESS = ("run", TARGET, "-t", "1", "-c", "200000", "-n", "-1", "-p", "hello", "--temp", "0",
           "--spec-type", "none")  # fmt: skip
STORY = ("run", TARGET, "-t", "1", "-n", "40", "-p", "hello", "--temp", "0")


@posix
def test_interrupt_keeps_what_there_is() -> None:
    with spawn(*ENDLESS) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + out
    assert "Traceback" not in err


@posix
def test_interrupt_with_json_prints_the_whole_document() -> None:
    with spawn(*ENDLESS, "--json", "--debug") as process:
        assert process.stderr is not None
        while "reserve took" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert "Traceback" not in err


@posix
def test_interrupt_in_a_background_job() -> None:
    """A shell starts those with SIGINT ignored."""
    ignore = "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    command = [sys.executable, "-m", "gguf_spec", *ENDLESS]
    code = ignore + f"os.execv(sys.executable, {command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


@posix
def test_a_reader_that_leaves_early() -> None:
    with spawn(*ENDLESS) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk() -> None:
    command = [sys.executable, "-m", "gguf_spec", *STORY]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_streams_are_pure_and_stable() -> None:
    with spawn(*STORY) as process:
        out, err = process.communicate(timeout=60)
    with spawn(*STORY, "--json") as process:
        document, more = process.communicate(timeout=60)
    assert (err, more) == ("", "")
    assert json.loads(document)["text"] == out.removesuffix("\n")


def test_text_that_the_terminal_cannot_show() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    prompt = ("run", TARGET, "-t", "1", "-n", "30", "--temp", "2", "--seed", "5", "--raw",
              "--top-k", "0", "--top-p", "1", "--min-p", "0", "-p", "é 日本")  # fmt: skip
    with spawn(*prompt, env=environment) as process:
        assert process.wait(timeout=60) == 0
    with spawn(*prompt, "--json", env=environment) as process:
        out, _ = process.communicate(timeout=60)
    with spawn(*prompt, "--json") as process:
        wanted, _ = process.communicate(timeout=60)
    assert json.loads(out)["text"] == json.loads(wanted)["text"]


def test_unknown_command_in_a_process() -> None:
    with spawn("rnu") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ")


@posix
def test_a_closed_stdout() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "gguf_spec", *STORY],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@posix
def test_interrupt_ends_a_scripted_chat() -> None:
    command = [sys.executable, "-m", "gguf_spec", "chat", *ENDLESS[1:6], "--temp", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hello\nnever answered\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
