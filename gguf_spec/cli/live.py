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
        self._drawn: list[int] = []
        """Cells of each line that is on the screen and will be drawn again."""
        self._width = 0
        self.kept = 0
        """How many leading lines of the tail have been written for good since ``reset``."""

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
        """Show ``lines`` with ``foot`` below them. The first ``final`` lines will not change.

        ``lines`` is the whole tail since ``reset``; those that were kept are not written again.
        """
        columns, rows = self.size
        room = max(rows - len(foot) - 2, 1)
        keep = max(final, len(lines) - room, self.kept)
        fresh, rest = lines[self.kept : keep], [*lines[keep:], *foot]
        out = [_BEGIN, self._up(columns)]
        out += [f"{line}\x1b[0m\x1b[K\r\n" for line in (*fresh, *rest)]
        out += ["\x1b[J", _END]
        self._stream.write("".join(out))
        self._stream.flush()
        self.kept = max(keep, self.kept)
        self._drawn = [_cells(line) for line in rest]
        self._width = columns

    def reset(self) -> None:
        """What is drawn next is another tail, below the lines that were kept."""
        self.kept = 0

    def _up(self, columns: int) -> str:
        """Move to the first line that is drawn again. A terminal that was made narrower has broken
        lines that no longer fit."""
        rows = len(self._drawn)
        if columns < self._width:
            rows = sum(max(-(-cells // columns), 1) for cells in self._drawn)
        rows = min(rows, self.size[1] - 1)
        return f"\r\x1b[{rows}A" if rows else "\r"


def _cells(line: str) -> int:
    return cell_len(Text.from_ansi(line).plain)
