"""The end of the terminal's output, drawn again and again without flicker.

Lines that will not change any more are written once and scroll up, as any output does: the user can
scroll back, select and copy. Only the lines behind them are drawn again: the cursor goes up, each
line is overwritten and then cleared to its end, never cleared first. A frame is one write between
the marks of synchronized output (DEC mode 2026), which terminals that know them show at once.

A window that changes its size moves all that: terminals break lines that have become too long, and
what finds no room scrolls out of reach. So it is counted how much of the text stands for good, in
characters, which do not depend on the width.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import IO

from rich.cells import chop_cells

_BEGIN = "\x1b[?2026h\x1b[?25l"  # synchronized, cursor hidden
_CUT, _BREAK = "\x1b[?7l", "\x1b[?7h"  # what goes beyond the last column
_END = "\x1b[?25h\x1b[?2026l"
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
# Blanks, and the lines and bars that markdown is set with: how many there are depends on the width.
_NO_TEXT = re.compile(r"[\s\u2500-\u259f]")


class LiveTail:
    """Draws lines (with ANSI styles) at the end of ``stream``, a terminal.

    Lines are no wider than ``width``. What does not fit on the screen is written for good.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._drawn: list[str] = []
        """The lines on the screen that will be drawn again."""
        self._n_text = 0
        """How many of them are text that may stay; the others are not worth it."""
        self._columns = 0
        self._kept = 0
        """How many leading lines of the tail have been written for good,"""
        self._cut = 0
        """and how many characters of the line behind them."""
        self._n_kept = 0
        """The characters of both."""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        return columns or 80, rows or 24

    @property
    def width(self) -> int:
        """Cells that a line may have: the last column stays empty, where terminals differ."""
        return max(self.size[0] - 1, 10)

    def room(self, foot: Sequence[str]) -> int:
        """Lines that can be drawn again above ``foot``, the cursor's own below it; 0 if the window
        is one row."""
        rows = self.size[1]
        return max(rows - len(_low(foot, rows)) - 2, min(rows - 1, 1))

    def draw(
        self, lines: Sequence[str], foot: Sequence[str] = (), *, final: int = 0,
        passing: bool = False,
    ) -> None:  # fmt: skip
        """Show ``lines`` with ``foot`` below them, of which a low window shows the last ones.

        ``lines`` begin where the last call's did, behind its ``final`` ones: those are written for
        good, and the next call leaves them out. ``passing`` lines fit into the ``room``, and other
        ones take their place.
        """
        columns, rows = self.size
        foot, room = _low(foot, rows), self.room(foot)
        up, n_lost = self._reach(columns, rows)
        if n_lost or columns != self._columns:
            self._kept, self._cut = _position(lines, self._n_kept + n_lost)
        # The last line may go on: it is written when it is whole.
        keep = max(final, len(lines) - max(room, 1), min(self._kept, len(lines)))
        left = list(lines[self._kept :])
        if left and self._cut:
            left[0] = _behind(left[0], self._cut)
        fresh = left[: keep - self._kept]
        rest = [*left[len(fresh) :], *foot] if room else []
        out = [_BEGIN, f"\r\x1b[{up}A" if up else "\r", _BREAK]
        out += [_line(line) for line in fresh]
        out += [_CUT, *(_line(line) for line in rest), "\x1b[J", _BREAK, _END]
        self._stream.write("".join(out))
        self._stream.flush()
        self._cut = self._cut if keep == self._kept else 0
        self._kept = keep - final
        self._n_kept = sum(map(_count, lines[final:keep])) + self._cut
        self._drawn, self._columns = rest, columns
        self._n_text = 0 if passing else len(rest) - len(foot)

    def _reach(self, columns: int, rows: int) -> tuple[int, int]:
        """How many rows the first line that can be drawn again is above the cursor, and how many
        characters of text are above that: a window that has become narrower or lower has broken
        lines that no longer fit, and scrolled."""
        broken = [self._rows(line, columns) for line in self._drawn]
        parts = [(row, i < self._n_text) for i, line in enumerate(broken) for row in line]
        n_lost = max(len(parts) - (rows - 1), 0)
        lost = sum(_count(row) for row, is_text in parts[:n_lost] if is_text)
        return len(parts) - n_lost, lost

    def _rows(self, line: str, columns: int) -> list[str]:
        if columns >= self._columns or _cuts_lines():
            return [line]
        return chop_cells(_STYLE.sub("", line), columns) or [""]


def _cuts_lines() -> bool:
    """Whether this is one of the few terminals that cut lines which have become too long, instead
    of breaking them: xterm itself, and GNU screen."""
    return "TMUX" not in os.environ and not os.environ.keys().isdisjoint(("XTERM_VERSION", "STY"))


def _low(foot: Sequence[str], rows: int) -> Sequence[str]:
    """What of ``foot`` a window of so many rows has room for, with a line of text and the
    cursor's."""
    return foot[max(len(foot) - max(rows - 2, 0), 0) :]


def _line(line: str) -> str:
    return f"{line}\x1b[0m\x1b[K\r\n"


def _count(line: str) -> int:
    """The characters of text in ``line``."""
    return len(_NO_TEXT.sub("", _STYLE.sub("", line)))


def _position(lines: Sequence[str], n: int) -> tuple[int, int]:
    """(whole lines, characters of the next one) that the first ``n`` characters of text take."""
    for i, line in enumerate(lines):
        count = _count(line)
        if n < count:
            return i, n
        n -= count
    return len(lines), 0


def _behind(line: str, n: int) -> str:
    """``line`` without its first ``n`` characters of text, in the styles it had there."""
    styles, parts = "", _STYLE.split(line)
    for i, part in enumerate(parts):
        if _STYLE.fullmatch(part):
            styles += part
            continue
        for at, char in enumerate(part):
            if n == 0 and not char.isspace():
                return "".join((styles, part[at:], *parts[i + 1 :]))
            n -= not _NO_TEXT.match(char)
    return styles
