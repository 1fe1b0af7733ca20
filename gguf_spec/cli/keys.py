"""The keyboard while nobody reads it: what is typed then waits for the next prompt."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from gguf_spec.interrupts import handled

_restorers: list[Callable[[], None]] = []
# What prompt_toolkit and the screen switch on: no frame is held back, pasted lines are not marked,
# the cursor is seen, no colour; nothing is left of the line below the prompt.
_AS_USUAL = b"\x1b[?2026l\x1b[?2004l\x1b[?25h\x1b[0m\x1b[J"
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")


def restore_terminal() -> None:
    """Give the terminal back as it was found, for those who end the process without unwinding."""
    for restore in reversed(_restorers):
        restore()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no output
        if sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
            number = sys.stdout.fileno()
            waits = os.get_blocking(number)
            os.set_blocking(number, False)  # nobody may be reading any more, as after Ctrl-S
            try:
                os.write(number, _AS_USUAL)
            finally:
                os.set_blocking(number, waits)


def _end(number: int, frame: FrameType | None) -> None:
    """Give the terminal back, and die of the signal as ever."""
    restore_terminal()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def quiet_keys() -> Iterator[None]:
    """Within it the terminal shows nothing of what is typed, so that it does not run into what is
    written. The keys are kept, Ctrl-D too, and are read by the next prompt; Ctrl-C works as ever.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    try:
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (OSError, ValueError, AttributeError, termios.error):  # no terminal
        yield
        return
    # NOFLSH: Ctrl-C stops the answer, and does not take away what was typed.
    local = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    quiet = [*before[:3], local, *before[4:]]

    def restore() -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(number, termios.TCSANOW, before)

    _restorers.append(restore)
    try:
        with handled(_ENDING, _end):
            termios.tcsetattr(number, termios.TCSANOW, quiet)
            yield
    finally:
        restore()
        _restorers.pop()
