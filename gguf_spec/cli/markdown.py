"""Markdown for the terminal, block by block: a finished block never changes again."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

_PARSER = MarkdownIt().enable("strikethrough").enable("table")
# Colours of the terminal's own palette: they suit light and dark backgrounds.
_CODE_THEME = "ansi_dark"


def finished(source: str) -> int:
    """How many leading characters of ``source`` are blocks that more text cannot change.

    The last block is never finished: a line may join it. Neither is a block of links' addresses,
    which shows nothing.
    """
    starts = [t.map[0] for t in _PARSER.parse(source) if t.level == 0 and t.map and t.nesting >= 0]
    if len(starts) < 2:
        return 0
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: starts[-1]]))


class Painter:
    """Paints text as lines with ANSI styles, for a terminal of a width that may change."""

    def __init__(self) -> None:
        self._console: Console | None = None

    def markdown(self, source: str, width: int) -> list[str]:
        """``source`` rendered."""
        return self._lines(Markdown(source, code_theme=_CODE_THEME, hyperlinks=False), width)

    def spans(self, spans: Sequence[tuple[str, str]], width: int) -> list[str]:
        """Pieces of plain text, each with a style, wrapped."""
        text = Text()
        for piece, style in spans:
            text.append(piece, style)
        return self._lines(text, width) if text.plain else []

    def _lines(self, what: Markdown | Text, width: int) -> list[str]:
        console = self._console
        if console is None:
            color = "truecolor" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256"
            console = self._console = Console(
                file=io.StringIO(),
                force_terminal=True,
                color_system="truecolor" if color == "truecolor" else "256",
                legacy_windows=False,
                highlight=False,
                emoji=False,
                markup=False,
            )
        stream = console.file = io.StringIO()
        console.print(what, width=width, crop=True, overflow="fold")
        return stream.getvalue().rstrip("\n").split("\n")
