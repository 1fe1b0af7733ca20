"""Signals that end a program whose work took long: what is finished is kept first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_ENDING = ("SIGTERM", "SIGHUP")


@contextlib.contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Within it Ctrl-C does nothing: what took long is kept, which does not, and then it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP do what Ctrl-C does, so that what is finished is kept and other
    processes are ended; afterwards this process dies of the signal, as it would have at once. One
    that is ignored, as SIGHUP by nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in a shell's background
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    taken = [n for n in numbers if signal.getsignal(n) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        if came:
            os.kill(os.getpid(), came[0])
