"""``gguf-spec chat`` in a terminal of its own: keys go in, a screen comes out."""

from __future__ import annotations

import json
import os
import re
import signal
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import psutil
import pytest

from gguf_spec.cli.markdown import Painter
from tests.cli.conftest import TARGET, Cli
from tests.terminal import Terminal

Start = Callable[..., Terminal]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Terminal] = []

    def call(*arguments: str, **environment: str) -> Terminal:
        defaults = (TARGET, "-t", "1", "--temp", "0", "--spec-type", "none")
        started.append(Terminal(*defaults, *arguments, **environment))
        return started[-1]

    yield call
    for terminal in started:
        terminal.close()


def test_three_turns_evaluate_only_what_is_new(start: Start, cli: Cli) -> None:
    one = start("-n", "6")
    one.prompt()
    for i, message in enumerate(("hello", "more", "again"), 1):
        one.type(f"{message}\r")
        one.shows("tokens/s", i)
    one.type("/save chat.json\r")
    one.shows("(saved 3 messages")
    one.type("/exit\r")
    assert one.ended() == 0
    notes = [line for line in one.text.splitlines() if "tokens/s" in line]
    n_prompt, n_cached = (int(word) for word in _numbers(notes[2]))
    saved = json.loads(Path("chat.json").read_text(encoding="utf-8"))["messages"]
    # The new tokens: the end of the last answer, the message, the frame of the two.
    assert 0 < n_prompt - n_cached < 30
    script = "hello\nmore\nagain\n"
    piped = cli(
        "chat", TARGET, "-t", "1", "--temp", "0", "--spec-type", "none", "-n", "6", stdin=script
    )
    assert piped.out == "".join(f"{message['content']}\n" for message in saved[1::2])


def _numbers(note: str) -> list[str]:
    """Prompt and cached tokens of a line such as "… · prompt 76 (59 cached) · …"."""
    words = note[note.index("prompt ") :].replace("(", " ").split()
    return [words[1], words[2]]


def test_what_is_typed_meanwhile_waits_and_ctrl_c_keeps_the_answer(start: Start) -> None:
    one = start("-c", "4096")
    one.prompt()
    one.type("hello\r")
    one.shows("Ctrl-C stops")
    one.type("/stats")
    one.shows("Ctrl-C stops")
    one.type("\x03")
    shown = one.shows("cancelled")
    assert "/stats" not in shown.partition("cancelled")[0]
    one.until(lambda text: one.last_line(-2) == "> /stats")
    one.type("\r")
    one.shows("1 answers")
    one.prompt()
    one.type("\x03")
    one.shows("(Ctrl-C again or /exit leaves)")
    one.prompt()
    one.type("\x03")
    assert one.ended() == 130


def test_keys_between_two_prompts_are_not_lost(start: Start) -> None:
    one = start()
    one.prompt()
    for times in range(1, 9):
        one.type("/stats\r")
        one.shows("no answers yet", times)
        one.type("\x03")  # before the next prompt is there, or just after
        one.until(lambda text, n=times: text.count("Ctrl-C again") + text.count("(interr") == n)
    one.type("/stats\r")
    one.shows("no answers yet", 9)
    one.type("\x04")
    assert one.ended() == 0


def test_many_pasted_lines_are_one_message(start: Start) -> None:
    one = start("-n", "3", "-c", "4096")
    one.prompt()
    lines = "\r".join(f"line {i}" for i in range(200))
    one.type(f"\x1b[200~{lines}\x1b[201~")
    one.shows("line 199")
    one.type("\r")
    one.shows("cut at 3 tokens")
    one.prompt()
    one.type("/save pasted.json\r")
    one.shows("(saved 1 messages")
    one.type("\x04")
    assert one.ended() == 0
    messages = json.loads(Path("pasted.json").read_text(encoding="utf-8"))["messages"]
    assert messages[0]["content"].splitlines() == [f"line {i}" for i in range(200)]


def test_lines_history_and_completion(start: Start) -> None:
    Path("letter.txt").write_text("Dear John", encoding="utf-8")
    one = start("-n", "2")
    one.prompt()
    one.type("first\\\rsecond\x1b\rthird @let\t\r")
    one.shows("(attached: letter.txt)")
    one.shows("cut at 2 tokens")
    one.prompt()
    one.type("/sy\tBe brief.\r")
    one.shows("(the system message is set)")
    one.prompt()
    one.type("\x1b[A\x1b[A")
    one.shows("> first", 2)
    one.type("\x03/load letter.txt\r")
    one.shows("error: letter.txt cannot be read")
    one.type("/save a.json\r")
    one.shows("(saved 1 messages")
    one.type("/exit\r")
    assert one.ended() == 0
    saved = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert saved["system"] == "Be brief."
    assert saved["messages"][0]["content"].startswith("first\nsecond\nthird @letter.txt\n\n")
    assert "Dear John" in saved["messages"][0]["content"]
    history = (Path(os.environ["GGUF_SPEC_HOME"]) / "chat_history").stat()
    assert history.st_mode & 0o077 == 0


def test_the_menu_of_completions_goes_with_what_was_typed(start: Start) -> None:
    one = start("-n", "2")
    one.prompt()
    one.type("/s\t")
    one.shows("/system")
    one.type("\x03")
    one.until(lambda text: "/system" not in text)
    one.type("/s\t")
    one.shows("/system")
    one.type("\t\r")  # the first is taken, and is on the line then
    one.until(lambda text: "/system" not in text and "> /stats" in text)
    one.type("\r")
    one.shows("no answers yet")


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(start: Start, environment: dict[str, str]) -> None:
    one = start("-n", "4", **environment)
    seen: list[bytes] = []
    real = one.take
    one.take = lambda data: (seen.append(data), real(data))[1]  # type: ignore[method-assign]
    one.shows(">")
    one.type("hello\r")
    one.shows("cut at 4 tokens")
    one.type("/exit\r")
    assert one.ended() == 0
    output = b"".join(seen)
    assert b"\x1b[3" not in output
    assert b"\x1b[2m" not in output


SIZES = {
    "narrower, wider": [(37, 24), (131, 24)],
    "20 columns": [(20, 24), (80, 24)],
    "3 rows": [(80, 3), (80, 24)],
    "20 columns and 3 rows": [(20, 3), (90, 40)],
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_window_resized_while_an_answer_streams(
    start: Start, sizes: list[tuple[int, int]]
) -> None:
    """Nothing of it is lost, and nothing stands there twice. Quiet: the line below the answer,
    which a window that gets too low for it keeps, is in the tests of the screen."""
    one = start("-n", "900", "-c", "1024", "--temp", "0.8", "--seed", "5", "--quiet")
    one.prompt()
    one.type("def main(argv):\r")
    one.shows("> def main(argv):")
    during = 0
    for size in sizes:
        length = len(_marks(one.text))
        one.until(lambda shown, n=length: len(_marks(shown)) > n or _waits(one))  # type: ignore[misc]
        during += not _waits(one)
        one.resize(*size)
    assert during, "the answer was there before the first frame"
    shown = one.prompt()
    one.type("/save resized.json\r")
    one.until(lambda _: Path("resized.json").exists() and one.last_line(-2) == ">")
    answer = json.loads(Path("resized.json").read_text(encoding="utf-8"))["messages"][1]["content"]
    shown = shown[shown.index("def main(argv):") + 15 : shown.rindex("\n>")].partition("(cut")[0]
    assert _marks(shown) == _marks("\n".join(Painter().markdown(answer, 79)))


def _waits(one: Terminal) -> bool:
    """Whether the chat is at its prompt."""
    return one.last_line(-2) == ">"


def _marks(text: str) -> str:
    """What text has besides blanks, styles, and the lines that markdown is set with."""
    return re.sub(r"\x1b\[[0-9;]*m|[\s\u2500-\u259f]", "", text)


@pytest.mark.parametrize(
    ("name", "answering"),
    [("SIGTERM", True), ("SIGTERM", False), ("SIGHUP", True), ("SIGQUIT", False)],
)
def test_a_signal_that_ends_the_chat_leaves_the_terminal_as_it_was(
    start: Start, name: str, answering: bool
) -> None:
    one = start("-c", "4096")
    before = termios.tcgetattr(one.master)
    one.prompt()
    if answering:
        one.type("hello\r")
        one.shows("Ctrl-C stops")
    assert termios.tcgetattr(one.master) != before
    one.process.send_signal(getattr(signal, name))
    assert one.ended() == -getattr(signal, name)
    assert termios.tcgetattr(one.master) == before
    assert 2004 << 5 not in one.screen.mode  # bracketed paste
    assert not one.screen.cursor.hidden


def test_a_signal_ends_a_chat_whose_output_nobody_reads(start: Start) -> None:
    one = start("-c", "4096", "-n", "4000")
    one.prompt()
    one.type("hello\r")
    one.shows("Ctrl-C stops")
    before = None
    while (now := _cpu_seconds(one.process.pid)) != before:  # until it waits for room
        before = now
        sleep(0.3)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(60) == -signal.SIGTERM


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
