"""An answer on the terminal while it is made: markdown, reasoning, and how it goes.

Everything is drawn in the thread that decodes, at most 20 times a second and for at most a small
share of the time: a second thread that computes would cost every call of libllama the interval at
which Python switches threads (5 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import IO

from gguf_spec.cli.live import LiveTail
from gguf_spec.cli.markdown import Painter, finished
from gguf_spec.cli.output import visible
from gguf_spec.reasoning import Part

_INTERVAL = 0.05  # seconds between two frames at least
_SHARE = 80  # a frame that took t is followed by none for this many t
_REASONING_LINES = 5  # that are seen of it at a time
_ACCEPTED = "green"

Foot = Callable[[int], Sequence[str]]


class Screen:
    """Shows one answer after the other on ``stream``, a terminal.

    ``expanded``: reasoning is shown whole, and stays. ``colored``: the answer is plain text in
    which the tokens of accepted drafts have a colour.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.expanded = False
        self.colored = False
        self._tail = LiveTail(stream)
        self._painter = Painter()
        self._foot: Foot = lambda width: ()
        self._next = 0.0
        self._begun = False
        """Whether the section has any text."""
        self._begin("answer")

    def start(self, foot: Foot, *, at_once: bool = False) -> None:
        """Begin an answer. ``foot`` gives the lines below it, for a width; ``at_once``: they are
        worth seeing before anything has come."""
        self._foot = foot
        self._next = monotonic() + (0.0 if at_once else _INTERVAL)
        self._begin("answer")
        self.tick()

    def feed(self, parts: Sequence[Part], *, accepted: bool = False) -> None:
        """Take what is new; ``accepted``: it comes from drafts."""
        style = _ACCEPTED if accepted else ""
        for kind, text in parts:
            if kind == "mark":
                continue
            if kind != self._kind:
                self._close()
                self._begin(kind)
            text = visible(text)
            if not self._begun:
                text = text.lstrip("\n") if kind == "answer" else text.lstrip()
            if not text:
                continue
            self._begun = True
            self._source += text
            if self._spans and self._spans[-1][1] == style:
                self._spans[-1] = (self._spans[-1][0] + text, style)
            else:
                self._spans.append((text, style))

    def count(self, n_tokens: int) -> None:
        """So many tokens have come."""
        self._n_tokens += n_tokens

    def tick(self) -> None:
        """Draw, if it is time."""
        begun = monotonic()
        if begun < self._next:
            return
        self._draw(self._foot(self._tail.width))
        now = monotonic()
        self._next = now + max(_INTERVAL, _SHARE * (now - begun))

    def finish(self) -> None:
        """The answer has ended: what is shown stays."""
        self._close()
        self._begin("answer")

    def show_reasoning(self, text: str) -> None:
        """Show the reasoning of an earlier answer."""
        lines = _stripped(self._painter.spans([(visible(text), "dim")], self._tail.width))
        self._tail.draw(lines, final=len(lines))

    # ------------------------------------------------------------------------------ sections

    def _begin(self, kind: str) -> None:
        self._kind = kind
        self._begun = False
        self._source = ""
        self._spans: list[tuple[str, str]] = []
        self._began = monotonic()
        self._n_tokens = 0

    def _close(self) -> None:
        """Write the section for good."""
        width = self._tail.width
        if self._kind == "reasoning" and not self.expanded:
            lines = self._painter.spans([(self._title(past=True), "dim")], width)
        else:
            lines = _stripped(self._lines(self._source, self._spans, width))
        if self._kind == "reasoning" and lines:
            lines.append("")
        self._tail.draw(lines, final=len(lines))

    def _draw(self, foot: Sequence[str]) -> None:
        """Draw the section; blocks of it that are finished are written for good."""
        width = self._tail.width
        if self._kind == "reasoning" and not self.expanded:
            recent = self._painter.spans([(self._source[-width * 8 :].rstrip(), "dim")], width - 2)
            title = self._painter.spans([(self._title(past=False), "dim")], width)
            most = min(self._tail.room(foot) - len(title), _REASONING_LINES)
            shown = [f"\x1b[2m│\x1b[0m {line}" for line in recent[-most:]] if most > 0 else []
            self._tail.draw([*title, *shown], foot, passing=True)
            return
        n = self._finished()
        if not n:
            lines = _stripped(self._lines(self._source, self._spans, width))
            self._tail.draw(lines, foot)
            return
        done, rest = _cut(self._spans, n)
        lines = self._lines(self._source[:n], done, width)
        if self._kind == "answer" and not self.colored:
            lines.append("")
        tail = _stripped(self._lines(self._source[n:], rest, width))
        self._tail.draw([*lines, *tail], foot, final=len(lines))
        self._source, self._spans = self._source[n:], rest

    def _finished(self) -> int:
        if self._kind == "answer" and not self.colored:
            return finished(self._source)
        # Blank lines at the end belong to what follows them, if anything does.
        return self._source.rfind("\n", 0, len(self._source.rstrip())) + 1

    def _lines(self, source: str, spans: Sequence[tuple[str, str]], width: int) -> list[str]:
        if self._kind == "reasoning":
            return self._painter.spans([(source, "dim")], width)
        if self.colored:
            return self._painter.spans(spans, width)
        return self._painter.markdown(source, width)

    def _title(self, *, past: bool) -> str:
        seconds = monotonic() - self._began
        verb, more = ("Reasoned", ": /think show") if past else ("Reasoning", "")
        return f"{verb} for {seconds:.0f} s, {self._n_tokens} tokens{more}"


def _stripped(lines: list[str]) -> list[str]:
    """``lines`` without the blank ones at their end."""
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _cut(
    spans: Sequence[tuple[str, str]], n: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """``spans`` before and behind their first ``n`` characters."""
    before: list[tuple[str, str]] = []
    behind: list[tuple[str, str]] = []
    for text, style in spans:
        if n > 0:
            before.append((text[:n], style))
        if n < len(text):
            behind.append((text[max(n, 0) :], style))
        n -= len(text)
    return before, behind
