"""Markdown for the terminal, block by block: a finished block never changes again."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown
from rich.rule import Rule
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

_PARSER = MarkdownIt().enable("strikethrough").enable("table")
# Colours of the terminal's own palette: they suit light and dark backgrounds.
_CODE_THEME = "ansi_dark"
_THEME = Theme(
    {
        "markdown.code": Style(color="cyan"),
        "markdown.h1": Style(bold=True, underline=True),
        "markdown.h2": Style(bold=True, underline=True),
        "markdown.h3": Style(bold=True),
        "markdown.item.number": Style(color="cyan"),
        "markdown.table.border": Style(dim=True),
        "markdown.table.header": Style(bold=True),
    }
)
# Blanks that fill a line up, with their styles. A terminal that is made narrower breaks them, too.
_PADDING = re.compile(r"(?:\x1b\[[0-9;]*m)*(?: (?:\x1b\[[0-9;]*m)*)+$")
_RESET = "\x1b[0m"


def finished(source: str) -> int:
    """How many leading characters of ``source`` are blocks that more text cannot change.

    The last block is never finished: another line may join it.
    """
    starts = [t.map[0] for t in _PARSER.parse(source) if t.level == 0 and t.map and t.nesting >= 0]
    if len(starts) < 2:
        return 0
    lines = source.split("\n")
    return sum(len(line) + 1 for line in lines[: starts[-1]])


def _unpadded(line: str) -> str:
    """``line`` without the blanks at its end."""
    short = _PADDING.sub("", line)
    return f"{short}{_RESET}" if "\x1b" in short and not short.endswith(_RESET) else short


class _Heading(Heading):
    """A heading at the left, as people write it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _CodeBlock(CodeBlock):
    """Code in colours, indented, on the terminal's own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        yield Syntax(
            code, self.lexer_name, theme=self.theme, word_wrap=True, padding=(0, 2),
            background_color="default",
        )  # fmt: skip


class _Rule(HorizontalRule):
    """A rule of lines, which cannot be taken for text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _Markdown(Markdown):
    elements = {  # noqa: RUF012 (as in rich)
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
        "hr": _Rule,
    }


class Painter:
    """Paints text as lines with ANSI styles, for a terminal of a width that may change."""

    def __init__(self) -> None:
        many = os.environ.get("COLORTERM") in ("truecolor", "24bit")
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor" if many else "256",
            legacy_windows=False,
            highlight=False,
            emoji=False,
            markup=False,
            theme=_THEME,
        )

    def markdown(self, source: str, width: int) -> list[str]:
        """``source`` rendered."""
        return self._lines(_Markdown(source, code_theme=_CODE_THEME, hyperlinks=False), width)

    def spans(self, spans: Sequence[tuple[str, str]], width: int) -> list[str]:
        """Pieces of plain text, each with a style, wrapped. Blank lines stay, but for the line that
        a last newline begins."""
        text = Text()
        for piece, style in spans:
            text.append(piece, style)
        if not text.plain:
            return []
        lines = self._printed(text, width)[:-1]
        return [_unpadded(line) for line in (lines[:-1] if text.plain[-1] == "\n" else lines)]

    def _printed(self, what: Markdown | Text, width: int) -> list[str]:
        stream = self._console.file = io.StringIO()
        self._console.print(what, width=width, overflow="fold")
        return stream.getvalue().split("\n")

    def _lines(self, what: Markdown, width: int) -> list[str]:
        lines = [line.rstrip(" ") for line in self._printed(what, width)]
        while lines and not lines[-1]:
            lines.pop()
        while lines and not lines[0]:  # rich sets lists apart
            lines.pop(0)
        return [_unpadded(line) for line in lines]
