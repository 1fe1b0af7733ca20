"""Where a command's output goes: data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from gguf_spec.cli.progress import Wait

# Words of more than 200 characters keep so many at either end.
_LONG_WORD = re.compile(r"\S{201,}")
_KEPT = 90

Mode = Literal["human", "json", "quiet"]


@dataclass
class State:
    """What holds for the whole program run. typer hands it to the callbacks of options."""

    debug: bool = False


@dataclass(frozen=True)
class Output:
    """The one sink. ``human`` and ``quiet`` print text, ``json`` one document at the end."""

    mode: Mode = "human"
    debug: bool = False
    _warned: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def of(cls, *, as_json: bool = False, quiet: bool = False, debug: bool = False) -> Output:
        """The sink for a command's options; ``--json`` decides over ``--quiet``."""
        return cls("json" if as_json else "quiet" if quiet else "human", debug)

    def text(self, text: str) -> None:
        """A piece of an answer, shown at once. JSON has it in its document."""
        if text and self.mode != "json":
            sys.stdout.write(text)
            sys.stdout.flush()

    def record(self, record: Mapping[str, Any], human: str) -> None:
        """A result: the record as JSON, or what people read."""
        if self.mode == "json":
            print_json(record)
        else:
            print(human, flush=True)

    def say(self, text: str) -> None:
        """A message that is part of a dialogue and no data."""
        print(_wrapped(text, sys.stderr), file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        """Something that the user should know, said once; ``--quiet`` keeps it."""
        if text in self._warned:
            return
        self._warned.add(text)
        shown = _wrapped(f"warning: {shortened(printable(text))}", sys.stderr)
        print(shown, file=sys.stderr, flush=True)

    def remark(self, text: str) -> None:
        """Something that was chosen for the user; ``--quiet`` drops it."""
        if self.mode != "quiet":
            print(_wrapped(shortened(printable(text)), sys.stderr), file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line beside the answer, for somebody who watches."""
        if self.mode == "human" and is_terminal(sys.stderr):
            print(dim(text), file=sys.stderr, flush=True)

    def wait(self, title: str, *, unit: str = "") -> Wait:
        """A progress bar, shown if the wait gets long and somebody watches.

        llama.cpp's log would run through it, so there is none with ``--debug``.
        """
        shown = self.mode != "quiet" and not self.debug and is_terminal(sys.stderr)
        return Wait(title, unit=unit, shown=shown)


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON document; ASCII only where the stream could not hold the text."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    print(json.dumps(record, ensure_ascii=encoding != "utf8", default=str), flush=True)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether somebody watches ``stream``."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _wrapped(text: str, stream: IO[str]) -> str:
    """``text`` broken between words where the terminal ``stream`` would break it within one."""
    if not is_terminal(stream):
        return text
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        fits = len(line) <= width or not line.strip()
        lines += [line] if fits else textwrap.wrap(
            line, width, subsequent_indent=indent, replace_whitespace=False,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "\n".join(lines)


def dim(text: str) -> str:
    """``text`` in a quieter colour, where the terminal may be coloured (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[2m{text}\x1b[0m"


def shortened(text: str) -> str:
    """``text`` with the middle of very long words, such as paths, left out."""
    return _LONG_WORD.sub(lambda word: f"{word[0][:_KEPT]}…{word[0][-_KEPT:]}", text)


def printable(text: str) -> str:
    """``text`` without what a terminal would obey: names in a file are not ours."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def visible(text: str) -> str:
    """``text`` without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or not ("\0" <= c < " " or "\x7f" <= c <= "\x9f"))
