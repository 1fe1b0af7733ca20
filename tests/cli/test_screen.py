"""What an answer looks like in a terminal, while it is made and afterwards."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence

import pyte
import pytest

from gguf_spec.cli import screen as screen_module
from gguf_spec.cli.live import LiveTail
from gguf_spec.cli.markdown import Painter, finished
from gguf_spec.cli.screen import Screen
from gguf_spec.reasoning import Part
from tests.terminal import Window

COLUMNS, ROWS = 60, 14
TEXT = """# Fruits

A list **with** `code`, 日本語の文章です。東京には人が多い。中文文本没有空格也要换行。

- apple
- pear

```python
def add(a, b):
    # a comment
    return a + b
```

| a | 値 |
|---|---|
| 1 | 日本 |

1. one
2. two

The end.
"""


class Terminal(io.StringIO):
    """A terminal in memory, with what has scrolled out of it."""

    def __init__(self, columns: int = COLUMNS, rows: int = ROWS) -> None:
        super().__init__()
        self.screen = Window(columns, rows, history=1000, ratio=0.5)
        self.stream = pyte.Stream(self.screen)
        self.frames: list[str] = []

    def write(self, text: str) -> int:
        self.frames.append(text)
        self.stream.feed(text)
        return len(text)

    @property
    def lines(self) -> list[str]:
        width = self.screen.columns
        rows = [
            *self.screen.history.top,
            *(self.screen.buffer[y] for y in range(self.screen.lines)),
        ]
        shown = ["".join(row[x].data for x in range(width)).rstrip() for row in rows]
        while shown and not shown[-1]:
            shown.pop()
        return shown


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    one = Terminal()
    monkeypatch.delenv("XTERM_VERSION", raising=False)
    monkeypatch.delenv("STY", raising=False)

    def size(self: LiveTail) -> tuple[int, int]:
        return one.screen.columns, one.screen.lines

    monkeypatch.setattr(LiveTail, "size", property(size))
    return one


@pytest.fixture
def every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame for every piece of text."""
    monkeypatch.setattr(screen_module, "_INTERVAL", 0.0)
    monkeypatch.setattr(screen_module, "_SHARE", 0)


def pieces(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def foot(width: int) -> Sequence[str]:
    return ["", "status"]


def plain(lines: Sequence[str]) -> list[str]:
    """Painted lines as a terminal shows them."""
    one = Terminal(200, 100)
    for line in lines:
        one.write(line + "\r\n")
    return one.lines


@pytest.mark.usefixtures("every_time")
@pytest.mark.parametrize("size", [1, 7])
def test_pieces_give_what_the_whole_text_gives(terminal: Terminal, size: int) -> None:
    screen = Screen(terminal)
    screen.start(foot)
    for piece in pieces(TEXT, size):
        screen.feed([Part("answer", piece)])
        screen.tick()
    screen.finish()
    assert terminal.lines == plain(Painter().markdown(TEXT, COLUMNS - 1))
    assert "日本語の文章です。" in "".join(terminal.lines)


@pytest.mark.usefixtures("every_time")
def test_nothing_is_erased_before_it_is_overwritten(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.start(foot)
    for piece in pieces(TEXT, 5):
        screen.feed([Part("answer", piece)])
        screen.tick()
        assert "status" in terminal.screen.display[terminal.screen.cursor.y - 1]
    for frame in terminal.frames:
        assert frame.startswith("\x1b[?2026h")
        assert frame.endswith("\x1b[?2026l")
        body = frame[: frame.rindex("\x1b[J")]
        assert "\x1b[J" not in body
        assert "\x1b[2K" not in body
        assert body.count("\x1b[K") == body.count("\r\n")


@pytest.mark.usefixtures("every_time")
def test_a_block_longer_than_the_screen_scrolls(terminal: Terminal) -> None:
    text = "```\n" + "".join(f"line {i}\n" for i in range(60)) + "```\n"
    screen = Screen(terminal)
    screen.start(foot)
    for piece in pieces(text, 9):
        screen.feed([Part("answer", piece)])
        screen.tick()
    screen.finish()
    assert [line.strip() for line in terminal.lines] == [f"line {i}" for i in range(60)]


@pytest.mark.usefixtures("every_time")
def test_a_wider_or_narrower_terminal(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.start(foot)
    words = " ".join(f"word{i}" for i in range(30))
    for i, piece in enumerate(pieces(words, 11)):
        screen.feed([Part("answer", piece)])
        if i == 8:
            terminal.screen.resize(ROWS, COLUMNS + 15)
        screen.tick()
    screen.finish()
    assert " ".join(terminal.lines).split() == words.split()


@pytest.mark.usefixtures("every_time")
def test_a_narrower_terminal_has_broken_lines(terminal: Terminal) -> None:
    tail = LiveTail(terminal)
    tail.draw(["x" * 50, "日" * 20])
    terminal.screen.resize(ROWS, 30)
    terminal.frames.clear()
    tail.draw(["short"])
    assert "\r\x1b[4A" in terminal.frames[0]  # two rows each


@pytest.mark.parametrize("name", ["XTERM_VERSION", "STY"])
def test_terminals_that_cut_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv(name, "1")
    tail = LiveTail(terminal)
    tail.draw(["above", "x" * 50, "y" * 50], final=1)
    pyte.HistoryScreen.resize(terminal.screen, ROWS, 30)
    tail.draw(["x" * 25, "y" * 25])
    assert terminal.lines == ["above", "x" * 25, "y" * 25]


PROSE = " ".join(f"word{i}" for i in range(90))
CODE = "```\n" + "".join(f"word{i} = x\n" for i in range(40)) + "```\n"
LIST = "".join(f"- word{i} **is** an item of many words that breaks\n" for i in range(12))
WIDE = "".join(f"word{i}の文章。" for i in range(44))
SIZES = {
    "narrower": [(31, ROWS)],
    "wider": [(COLUMNS + 40, ROWS)],
    "20 columns": [(20, ROWS), (COLUMNS, ROWS)],
    "3 rows": [(COLUMNS, 3), (COLUMNS, ROWS)],
    "1 row": [(COLUMNS, 1), (COLUMNS, ROWS)],
    "tiny": [(20, 3), (90, 40), (15, 4), (COLUMNS, ROWS)],
    "dragged": [(COLUMNS - 3 * i, ROWS - i) for i in range(1, 12)],
}


@pytest.mark.usefixtures("every_time")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("text", [PROSE, CODE, LIST, WIDE], ids=["prose", "code", "list", "wide"])
def test_a_resized_window_loses_and_repeats_nothing(
    terminal: Terminal, text: str, sizes: Sequence[tuple[int, int]]
) -> None:
    """The window gets each size for a while, whatever of the answer stands on the screen then."""
    screen = Screen(terminal)
    screen.start(foot)
    pause = len(text) // 17 // (len(sizes) + 1)
    for i, piece in enumerate(pieces(text, 17), 1):
        screen.feed([Part("answer", piece)])
        screen.tick()
        if i % pause == 0 and i // pause <= len(sizes):
            columns, rows = sizes[i // pause - 1]
            terminal.screen.resize(rows, columns)
    screen.finish()
    # A window that is too low for it has left some of what stood below the answer.
    assert _words("".join(terminal.lines).replace("status", "")) == _words(text)


def _words(text: str) -> list[str]:
    return re.findall(r"word\d+", "".join(text.split()))


@pytest.mark.usefixtures("every_time")
@pytest.mark.parametrize("rows", [2, 3, 5, 8])
def test_reasoning_in_a_low_window(terminal: Terminal, rows: int) -> None:
    terminal.screen.resize(rows, COLUMNS)
    screen = Screen(terminal)
    screen.start(foot)
    for i in range(20):
        screen.feed([Part("reasoning", f"thought {i}\n")])
        screen.tick()
    screen.feed([Part("answer", "One.\n\nTwo.\n\nThree.")])
    screen.finish()
    assert terminal.lines[0].startswith("Reasoned for")
    assert terminal.lines[1:] == ["", "One.", "", "Two.", "", "Three."]


def test_frames_are_rare(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(screen_module, "monotonic", lambda: now)
    screen = Screen(terminal)
    screen.start(foot)
    for i in range(1, 1001):
        now = i / 1000
        screen.feed([Part("answer", "word ")])
        screen.tick()
    assert 18 <= len(terminal.frames) <= 20


def test_drawing_takes_a_small_share_of_the_time(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each frame takes 10 ms here, by a clock that only drawing moves on."""
    now = 0.0

    def slow(width: int) -> Sequence[str]:
        nonlocal now
        now += 0.01
        return ()

    monkeypatch.setattr(screen_module, "monotonic", lambda: now)
    screen = Screen(terminal)
    screen.start(slow)
    n_ticks = 0
    while now < 10:
        now += 0.001
        screen.tick()
        n_ticks += 1
    assert 0.01 * len(terminal.frames) / now < 0.015


def test_reasoning_is_folded(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.start(foot, at_once=True)
    screen.feed([Part("mark", "<think>"), Part("reasoning", "\nfirst\nsecond\n")])
    screen.count(5)
    screen._next = 0.0
    screen.tick()
    assert terminal.lines == [
        "Reasoning for 0 s, 5 tokens", "│ first", "│ second", "", "status"
    ]  # fmt: skip
    screen.feed([Part("mark", "</think>"), Part("answer", "\n\nYes.")])
    screen.finish()
    assert terminal.lines == ["Reasoned for 0 s, 5 tokens: /think show", "", "Yes."]


def test_reasoning_is_shown_whole(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.expanded = True
    screen.start(foot)
    screen.feed([Part("reasoning", "a\n" * 30), Part("answer", "*Yes*")])
    screen.finish()
    assert terminal.lines == ["a"] * 30 + ["", "Yes"]


@pytest.mark.usefixtures("every_time")
def test_accepted_tokens_have_a_colour(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.colored = True
    screen.start(foot)
    for text, accepted in (("one ", False), ("two\n", True), ("three ", True), ("*4*", False)):
        screen.feed([Part("answer", text)], accepted=accepted)
        screen.tick()
    screen.finish()
    assert terminal.lines == ["one two", "three *4*"]
    cells = [terminal.screen.buffer[y][x] for y in range(2) for x in range(9)]
    green = "".join(cell.data for cell in cells if cell.fg == "green")
    assert green.strip() == "twothree"


@pytest.mark.usefixtures("every_time")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_blank_lines_stay_in_plain_text(terminal: Terminal, size: int) -> None:
    text = "one\n\ntwo\n\n\n  three\n\n"
    screen = Screen(terminal)
    screen.colored = screen.expanded = True
    screen.start(foot)
    for kind in ("reasoning", "answer"):
        for piece in pieces("\n\n" + text, size):
            screen.feed([Part(kind, piece)])  # type: ignore[arg-type]
            screen.tick()
    screen.finish()
    lines = ["one", "", "two", "", "", "  three"]
    assert terminal.lines == [*lines, "", *lines]


def test_a_model_cannot_steer_the_terminal(terminal: Terminal) -> None:
    screen = Screen(terminal)
    screen.start(foot)
    screen.feed([Part("answer", "a\x1b]0;title\x07\x1b[2Jb\x9b31mc\r\x08")])
    screen.finish()
    assert terminal.lines == ["a]0;title[2Jb31mc"]


@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("", 0),
        ("one paragraph", 0),
        ("one\n\n", 0),
        ("one\n\ntwo", 5),
        ("- a\n- b\n\n", 0),
        ("- a\n\n  still a", 0),
        ("```\nx\n\ny\n", 0),
        ("```\nx\n```\n\nz", 11),
        ("> q\n\np\n\n# h", 8),
    ],
)
def test_finished_blocks(source: str, length: int) -> None:
    assert finished(source) == length


def test_the_size_of_what_is_no_terminal() -> None:
    with open(os.devnull, "w", encoding="utf-8") as null:
        assert LiveTail(null).size == (80, 24)
