"""Signals that end a program: what it had to do is done first, and it dies of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")

CODE = """
import os, signal
from gguf_spec.interrupts import ended_in_order, interrupts_put_off
{before}
with ended_in_order():
    try:
        {inside}
    except KeyboardInterrupt:
        print("kept", flush=True)
print("not reached", flush=True)
"""


def said(signal_name: str, *, before: str = "", inside: str | None = None) -> tuple[int, str]:
    """How the program ended, and what it said."""
    kill = f"os.kill(os.getpid(), signal.{signal_name}); print('goes on', flush=True)"
    code = CODE.format(before=before, inside=inside or kill)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("before", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_the_end_is_in_order(name: str, before: str) -> None:
    """Also where a shell has let Ctrl-C be ignored."""
    assert said(name, before=before) == (-getattr(signal, name), "kept\n")


def test_what_is_ignored_stays_so() -> None:
    code, text = said("SIGHUP", before="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    assert (code, text) == (0, "goes on\nnot reached\n")


def test_it_waits_for_what_must_not_be_interrupted() -> None:
    inside = (
        "exec('with interrupts_put_off():\\n"
        " os.kill(os.getpid(), signal.SIGTERM)\\n"
        ' print("written", flush=True)\')'
    )
    assert said("SIGTERM", inside=inside) == (-signal.SIGTERM, "written\n")
