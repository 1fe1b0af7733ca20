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
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_interrupt_while_the_program_starts(options: list[str]) -> None:
    """The signal is sent from inside of the first import."""
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        f"sys.argv = {['gguf-spec', 'doctor', *options]}\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
    if options:
        assert json.loads(done.stdout)["error"]["type"] == "KeyboardInterrupt"


@posix
@pytest.mark.parametrize("where", ["typer.main.get_command", "gguf_spec.profile.find_profiles"])
def test_interrupt_anywhere_is_130(where: str) -> None:
    """Also where a library turns the interrupt into another exception."""
    code = (
        "import os, signal, sys\n"
        "import typer.main, gguf_spec.profile\n"
        "def interrupt(*args, **named):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt as error:\n"
        "        raise ImportError('something else') from error\n"
        "    return 0\n"
        f"{where} = interrupt\n"
        "sys.argv = ['gguf-spec', 'profiles', 'list']\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr


@posix
def test_interrupt_inside_of_exec(tmp_path: Path) -> None:
    """Which is where it falls while some import makes a dataclass."""
    code = (
        "import sys\n"
        "import gguf_spec.profile\n"
        "kill = 'import os, signal; os.kill(os.getpid(), signal.SIGINT)'\n"
        "gguf_spec.profile.find_profiles = lambda: exec(kill) or []\n"
        "sys.argv = ['gguf-spec', 'profiles', 'list']\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    (tmp_path / "interrupted.py").write_text(code, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


@posix
def test_interrupt_in_a_callback_of_libllama() -> None:
    code = (
        "import ctypes, os, signal, sys\n"
        "import gguf_spec.profile\n"
        "@ctypes.CFUNCTYPE(None)\n"
        "def callback():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "gguf_spec.profile.find_profiles = lambda: callback() or []\n"
        "sys.argv = ['gguf-spec', 'profiles', 'list']\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


@posix
def test_an_interrupt_at_the_very_end_changes_nothing() -> None:
    """What is done is done: Python would die of the signal while it ends."""
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['gguf-spec', '--version']\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gguf-spec ")


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


def test_a_second_interrupt_before_the_first_is_told() -> None:
    """Two of them in one moment, as a shell and a supervisor send them: it is told once."""
    code = (
        "import os, signal, sys\n"
        "from gguf_spec.cli import app\n"
        "def interrupted(arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "app.run_cli = interrupted\n"
        "app.main()\n"
    )
    command = [sys.executable, "-c", code, "bench", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["type"] == "KeyboardInterrupt"
    assert done.stderr == "error: interrupted\n"
