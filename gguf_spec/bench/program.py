"""Another program, with all that it starts: a script that prepares the environment and then calls
llama-server is one process more, and ending the script alone would leave the server behind."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

import psutil

from gguf_spec.bench.memory import peak_bytes

_STOP_SECONDS = 10.0


def start(command: Sequence[str], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """``command`` in a process group of its own, which Ctrl-C on a terminal does not reach; it
    reads nothing. Raises OSError."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def members(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What still runs of ``process`` and of all that it has started."""
    if os.name == "posix":
        group = [one for one in psutil.process_iter() if _group(one.pid) == process.pid]
    else:
        group = []
        with suppress(psutil.Error):
            own = psutil.Process(process.pid)
            group = [own, *own.children(recursive=True)]
    return [one for one in group if _runs(one)]


def end(process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> None:
    """End ``process`` and all that it has started: asked first, and made to after ``seconds``."""
    try:
        _each(process, "terminate")
        until = time.monotonic() + seconds
        while members(process) and time.monotonic() < until:
            process.poll()
            time.sleep(0.02)
    finally:  # an interrupt leaves nothing behind either
        _each(process, "kill")
        process.wait()


def peak(process: subprocess.Popen[bytes]) -> int | None:
    """The most memory that one of them has had resident."""
    sizes = [peak_bytes(one.pid) for one in members(process)]
    return max((size for size in sizes if size is not None), default=None)


def said(command: Sequence[str], most: int, seconds: float) -> bytes:
    """The first ``most`` bytes that ``command`` writes within ``seconds``. Raises OSError."""
    process = start(command, subprocess.PIPE)
    pipe, parts = process.stdout, []
    assert pipe is not None
    reader = threading.Thread(target=lambda: parts.append(pipe.read(most)), daemon=True)
    reader.start()
    try:
        reader.join(seconds)
    finally:
        end(process)  # nobody is left who could write
    reader.join()
    pipe.close()
    return b"".join(parts)


def _each(process: subprocess.Popen[bytes], what: str) -> None:
    for one in members(process):
        with suppress(psutil.Error):
            getattr(one, what)()


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
