"""The end of the terminal's output, drawn again and again without flicker.

Lines that will not change any more are written once and scroll up, as any output does: the user can
scroll back, select and copy. Only the lines behind them are drawn again: the cursor goes up, each
line is overwritten and then cleared to its end, never cleared first. A frame is one write between
the marks of synchronized output (DEC mode 2026), which terminals that know them show at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

from rich.cells import cell_len
from rich.text import Text

_BEGIN = "\x1b[?2026h\x1b[?25l\x1b[?7l"  # synchronized, cursor hidden, no wrapping
_END = "\x1b[?7h\x1b[?25h\x1b[?2026l"


class LiveTail:
    """Draws lines (with ANSI styles) at the end of ``stream``, a terminal.

    Lines are no wider than ``width``. What does not fit on the screen is written for good.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._drawn: list[str] = []
        """The lines on the screen that will be drawn again."""
        self._columns = 0
        self._kept = 0
        """How many leading lines of the tail have been written for good."""

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

    def draw(self, lines: Sequence[str], foot: Sequence[str] = (), *, final: int = 0) -> None:
        """Show ``lines`` with ``foot`` below them.

        ``lines`` begin where the last call's did, behind its ``final`` ones: those are written for
        good, and the next call leaves them out.
        """
        columns, rows = self.size
        room = max(rows - len(foot) - 2, 1)
        keep = max(final, len(lines) - room, self._kept)
        fresh, rest = lines[self._kept : keep], [*lines[keep:], *foot]
        out = [_BEGIN, self._up(columns)]
        out += [f"{line}\x1b[0m\x1b[K\r\n" for line in (*fresh, *rest)]
        out += ["\x1b[J", _END]
        self._stream.write("".join(out))
        self._stream.flush()
        self._kept = keep - final
        self._drawn = rest
        self._columns = columns

    def _up(self, columns: int) -> str:
        """Move to the first line that is drawn again. A terminal that was made narrower has broken
        lines that no longer fit."""
        rows = len(self._drawn)
        if columns < self._columns:
            cells = (cell_len(Text.from_ansi(line).plain) for line in self._drawn)
            rows = sum(max(-(-count // columns), 1) for count in cells)
        rows = min(rows, self.size[1] - 1)
        return f"\r\x1b[{rows}A" if rows else "\r"
