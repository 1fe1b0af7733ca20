"""Programs that are ended with all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gguf_spec.bench import program

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells")


def child_of(process: subprocess.Popen[bytes], file: Path) -> psutil.Process:
    """The process whose number the program writes into ``file``."""
    while not (file.exists() and file.read_text().strip()):
        assert process.poll() is None or file.exists()
        time.sleep(0.01)
    return psutil.Process(int(file.read_text()))


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("last", ["wait", "exit 3"])
def test_what_a_script_started_ends_with_it(tmp_path: Path, last: str) -> None:
    """Also if the script itself has ended already."""
    file = tmp_path / "pid"
    script = f'sleep 600 & echo $! > "{file}"; {last}'
    process = program.start(["/bin/sh", "-c", script], subprocess.DEVNULL)
    child = child_of(process, file)
    if last != "wait":
        process.wait()
    assert runs(child)
    program.end(process)
    assert not runs(child)
    assert process.returncode is not None


def test_one_that_does_not_listen_is_made_to_end() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    code += "; time.sleep(600)"
    process = program.start([sys.executable, "-c", code], subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as pipe:
        pipe.readline()
        program.end(process, 0.1)
    assert process.returncode == -9


def test_an_interrupt_meanwhile_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    script = "trap '' TERM; echo; exec sleep 600"
    process = program.start(["/bin/sh", "-c", script], subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as pipe:
        pipe.readline()  # it does not listen any more
    monkeypatch.setattr(program.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.end(process)
    assert process.returncode is not None
    assert not program.members(process)


def test_the_memory_is_that_of_the_program_behind_a_script(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = "import os, sys, time; b = bytearray(b'x' * (64 << 20))\n"
    code += f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    script = f'"{sys.executable}" -c "$1"; true'
    process = program.start(["/bin/sh", "-c", script, "sh", code], subprocess.DEVNULL)
    try:
        child_of(process, file)
        peak = program.peak(process)
        assert peak is not None
        assert peak > 64 << 20
    finally:
        program.end(process)


def test_what_is_said_has_an_end() -> None:
    assert program.said(["/bin/echo", "hello"], 100, 10.0) == b"hello\n"
    assert program.said(["/bin/sh", "-c", "yes >&2"], 1000, 10.0) == b"y\n" * 500
    assert program.said(["/bin/sh", "-c", "echo a; sleep 600; true"], 100, 0.3) == b"a\n"
    assert program.said(["/bin/cat"], 100, 10.0) == b""  # there is nothing to read
    with pytest.raises(OSError, match="No such file"):
        program.said(["/no/such/program"], 100, 1.0)
