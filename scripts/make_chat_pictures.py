#!/usr/bin/env python3
"""Drive ``gguf-spec chat`` in a pseudo-terminal and draw its states: docs/pictures/chat-*.svg.

    scripts/make_chat_pictures.py [NAME …]

All of it runs for real, with the demo model. For the pictures of reasoning that model gets a chat
template that makes it reason, because it does not by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cli.test_chat_commands import TEMPLATE  # noqa: E402 (the repository's own)
from tests.terminal import Terminal  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
COMMON = ("-t", "1", "--seed", "3")
ECHO = ("--spec-type", "ngram-simple", "--set", "spec.ngram-simple.size_n=3")


class Drawn(Terminal):
    """A terminal that can be drawn. pyte knows no dim text, so that is grey here."""

    def take(self, data: bytes) -> None:
        """Show what the program has written."""
        super().take(data.replace(b"\x1b[2m", b"\x1b[90m").replace(b";2m", b";90m"))

    def draw(self, name: str, title: str) -> None:
        """Write ``docs/pictures/name.svg``."""
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            width = self.screen.columns
            console = Console(record=True, width=width, file=nowhere, highlight=False)
            lines = [self._line(y) for y in range(self.screen.lines)]
            while lines and not lines[-1].plain.strip():
                lines.pop()
            for line in lines:
                console.print(line, soft_wrap=True)
            console.print()
            svg = console.export_svg(title=title, unique_id=name)
        # Some viewers fold spaces otherwise.
        svg = svg.replace("<text ", '<text xml:space="preserve" ')
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
        print(f"docs/pictures/{name}.svg")

    def _line(self, y: int) -> Text:
        line = Text(no_wrap=True)
        for x in range(self.screen.columns):
            cell = self.screen.buffer[y][x]
            line.append(cell.data, style=_style(cell))
        line.rstrip()
        return line

    def ask(self, text: str) -> None:
        """Type a message or a command."""
        self.prompt()
        self.type(text + "\r")


def _style(cell: pyte.screens.Char) -> str:
    names = {"default": "", "brightblack": "bright_black", "brown": "yellow"}
    color = names.get(cell.fg, cell.fg)
    if len(color) == 6 and all(c in "0123456789abcdef" for c in color):
        color = f"#{color}"
    elif color.startswith("bright") and "_" not in color:
        color = color.replace("bright", "bright_")
    parts = ["bold" * cell.bold, "italic" * cell.italics, "underline" * cell.underscore, color]
    return " ".join(part for part in parts if part)


def main() -> None:
    """Draw the pictures of the functions that are named, or all of them."""
    PICTURES.mkdir(exist_ok=True)
    wanted = sys.argv[1:] or list(DRAWN)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GGUF_SPEC_HOME"] = str(Path(folder) / "home")
        os.environ["HOME"] = folder
        os.environ["PYTHONPATH"] = str(ROOT)
        os.chdir(folder)
        for name in wanted:
            DRAWN[name]()


def streaming() -> None:
    """An answer in the making, what is typed meanwhile, and how it is stopped."""
    chat = Drawn("demo", *COMMON, size=(80, 24))
    chat.ask("Explain binary search with a markdown list and a Python function.")
    chat.until(lambda shown: "while left" in shown and "tokens/s" in chat.last_line(-1))
    chat.type("And in which language is it fastest?")
    chat.type("\x03")
    # What was read so far; drawing takes its time.
    chat.draw("chat-streaming", "an answer while it is written")
    chat.shows("cancelled")
    chat.until(lambda shown: chat.last_line(-2) == "> And in which language is it fastest?")
    chat.draw("chat-stopped", "stopped; what was typed meanwhile is there")
    chat.close()


def broken_file() -> None:
    """Files that cannot be loaded: the conversation stays as it was."""
    Path("broken.json").write_text('{"broken": ', encoding="utf-8")
    chat = Drawn("demo", *COMMON, "-n", "24", size=(80, 16))
    chat.ask("Name three rivers.")
    chat.shows("tokens · prompt")
    chat.ask("/load broken.json")
    chat.shows("broken.json cannot be read")
    chat.ask("/load missing.json")
    chat.shows("missing.json cannot be read")
    chat.prompt()
    chat.draw("chat-broken-file", "a file that is broken, and one that is not there")
    chat.close()


def paste() -> None:
    """Many lines at once, and Ctrl-C until the chat ends."""
    chat = Drawn("demo", *COMMON, size=(80, 24))
    chat.prompt()
    chat.type("\x1b[200~" + "\r".join(f"pasted line {i}" for i in range(1, 201)) + "\x1b[201~")
    chat.shows("pasted line 200")
    chat.draw("chat-paste", "200 pasted lines are one message")
    chat.close()
    chat = Drawn("demo", *COMMON, size=(80, 10))
    chat.prompt()
    chat.type("a message that is thought better of")
    chat.shows("better of")
    chat.type("\x03")
    chat.prompt()
    chat.type("\x03")
    chat.shows("Ctrl-C again")
    chat.prompt()
    chat.draw("chat-ctrl-c", "Ctrl-C clears the message; at an empty prompt, twice, it leaves")
    chat.type("\x03")
    assert chat.ended() == 130
    chat.close()


def resized() -> None:
    """A window that becomes narrower, and wider, while an answer is written."""
    chat = Drawn("demo", *COMMON, "-n", "230", size=(80, 24))
    chat.ask("Explain binary search with a markdown list and a Python function.")
    chat.until(lambda shown: "It works by" in shown and "tokens/s" in chat.last_line(-1))
    chat.resize(44, 24)
    chat.until(lambda shown: "Here is" in shown and "tokens/s" in chat.last_line(-1))
    chat.draw("chat-narrower", "44 columns, while it is written")
    chat.resize(100, 24)
    chat.shows("tokens · prompt")
    chat.prompt()
    chat.draw("chat-wider", "100 columns")
    chat.close()


def turns() -> None:
    """Three turns, each of which evaluates only what is new."""
    chat = Drawn("demo", *COMMON, "-n", "40", size=(80, 30))
    for i, message in enumerate(("Name a river.", "Name another one.", "And a mountain?"), 1):
        chat.ask(message)
        chat.shows("tokens · prompt", i)
    chat.prompt()
    chat.draw("chat-turns", "three turns: what is cached is not evaluated again")
    chat.close()


def drafts() -> None:
    """Accepted tokens in green, and the statistics."""
    chat = Drawn("demo", *COMMON, *ECHO, "--temp", "0", "-n", "70", size=(80, 46))
    chat.ask("/color on")
    chat.ask("Tell a long story about a fox.")
    chat.shows("tokens · prompt")
    chat.ask("/retry")  # the same again, which n-grams know by now
    chat.shows("tokens · prompt", 2)
    chat.ask("/stats")
    chat.shows("context: ")
    chat.prompt()
    chat.draw("chat-stats", "tokens of accepted drafts, and what they are worth")
    chat.close()


def reasoning() -> None:
    """Reasoning while it goes on, and folded."""
    from gguf_spec.refs import resolve

    model = Path.cwd() / "reasoning.gguf"
    subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", "--chat-template",
         TEMPLATE, str(resolve("demo")), str(model)], check=True, capture_output=True,
    )  # fmt: skip
    chat = Drawn(
        str(model), "-t", "1", "--seed", "4", "--think-budget", "80", "-n", "260", size=(80, 20)
    )
    chat.ask("Why is the sky blue?")
    chat.until(lambda shown: shown.count("│") >= 4)
    chat.draw("chat-reasoning", "reasoning, while it goes on")
    chat.shows("tokens · prompt")
    chat.ask("/think")
    chat.shows("at most 80")
    chat.prompt()
    chat.draw("chat-reasoned", "the answer, the reasoning folded")
    chat.close()


def first_run() -> None:
    """A chat without a model, and help."""
    chat = Drawn(*COMMON, size=(80, 30))
    chat.shows("Which?")
    chat.type("\r")
    chat.ask("/help")
    chat.shows("Ctrl-C stops an answer")
    chat.prompt()
    chat.draw("chat-first-run", "gguf-spec chat, without a model")
    chat.close()


def plain() -> None:
    """Without colours, and characters of two columns."""
    chat = Drawn("demo", *COMMON, "-n", "56", size=(60, 14), NO_COLOR="1")
    chat.ask("次の文を繰り返してください。日本語の文章です。東京には人が多い。")
    chat.shows("tokens · prompt")
    chat.prompt()
    chat.draw("chat-no-color", "NO_COLOR, 60 columns")
    chat.close()


DRAWN = {
    function.__name__: function
    for function in (
        streaming,
        broken_file,
        paste,
        resized,
        turns,
        drafts,
        reasoning,
        first_run,
        plain,
    )
}

if __name__ == "__main__":
    main()
