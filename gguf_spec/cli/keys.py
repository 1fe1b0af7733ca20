"""The keyboard while an answer is written: what is typed then waits for the next prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_keys() -> Iterator[None]:
    """Within it the terminal shows nothing of what is typed, so that it does not run into the
    answer. The keys are kept, and are read by the next prompt; Ctrl-C works as ever."""
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
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)
