"""The keyboard while nobody reads it: what is typed then waits for the next prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

_restorers: list[Callable[[], None]] = []


def restore_terminal() -> None:
    """Give the terminal back as it was found, for those who end the process without unwinding."""
    for restore in reversed(_restorers):
        restore()


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
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        restore()
        _restorers.pop()
