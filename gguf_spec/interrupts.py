"""Signals that end a program whose work took long: what is finished is kept first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
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
    processes are ended; afterwards this process dies of the signal, as it would have at once."""
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in a shell's background
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    try:
        with handled(_ENDING, end):
            yield
    finally:
        if came:
            os.kill(os.getpid(), came[0])


@contextlib.contextmanager
def handled(
    names: Sequence[str], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Within it ``handler`` gets those signals of ``names`` that would end the process. One that
    is ignored, as SIGHUP by nohup, stays so; signals are the main thread's, and elsewhere none is
    taken."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    taken = [n for n in numbers if signal.getsignal(n) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        taken = []
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
