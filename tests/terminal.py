"""A chat in a pseudo-terminal, for tests and for pictures of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from time import monotonic
from typing import Any

import pyte
from pyte.screens import Char, StaticDefaultDict

COLUMNS, ROWS = 80, 24
_PATIENCE = 60.0  # seconds; only a failure takes so long
_FRAME = (b"\x1b[?2026h", b"\x1b[?2026l")


class _Row(StaticDefaultDict[int, Char]):
    """A row of the screen; ``broken``: its line goes on in the next row."""

    broken = False


class Window(pyte.HistoryScreen):
    """A screen that is resized as terminals of today do it: lines that have become too long go on
    in the next row, and are whole again when there is room; rows that find none scroll out."""

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        lines, columns = lines or self.lines, columns or self.columns
        old = [*self.history.top, *(self.buffer[y] for y in range(self.lines))]
        at = len(self.history.top) + self.cursor.y
        while len(old) > at + 1 and not self._cells(old[-1]):
            old.pop()
        rows: list[_Row] = []
        cells: list[Char] = []
        here = 0
        for i, row in enumerate(old):
            if i == at:
                here = len(rows) + len(cells) // columns
            cells += self._cells(row)
            if not getattr(row, "broken", False):
                rows += self._rows(cells, columns)
                cells = []
        top = max(len(rows) - lines, 0)
        self.history.top.clear()
        self.history.top.extend(rows[:top])
        self.buffer.clear()
        self.buffer.update(enumerate(rows[top:]))
        self.lines, self.columns = lines, columns
        self.cursor.y = min(max(here - top, 0), lines - 1)
        self.cursor.x = min(self.cursor.x, columns)
        self.dirty.update(range(lines))
        self.set_margins()

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        super().erase_in_line(how, private)
        self._end(self.cursor.y)

    def erase_in_display(self, how: int = 0, *args: Any, **options: Any) -> None:
        super().erase_in_display(how, *args, **options)
        for y in range(self.cursor.y if how == 0 else 0, self.lines):
            self._end(y)

    def _end(self, y: int) -> None:
        row = self.buffer[y]
        if isinstance(row, _Row):
            row.broken = False

    def _cells(self, row: StaticDefaultDict[int, Char]) -> list[Char]:
        """What is in a row, without the blanks behind the end of its line."""
        if getattr(row, "broken", False):
            return [row[x] for x in range(max(row) + 1)]
        cells = [row[x] for x in range(self.columns)]
        while cells and cells[-1].data == " ":
            cells.pop()
        return cells

    def _rows(self, cells: list[Char], columns: int) -> list[_Row]:
        """A line in rows; both halves of a wide character stay together."""
        rows = [_Row(self.default_char)]
        x = 0
        for i, cell in enumerate(cells):
            wide = i + 1 < len(cells) and cells[i + 1].data == ""
            if x + 1 + wide > columns and cell.data:
                rows[-1].broken = True
                rows.append(_Row(self.default_char))
                x = 0
            rows[-1][x] = cell
            x += 1
        return rows


class Terminal:
    """A chat in a pseudo-terminal. It answers when it is asked where the cursor is."""

    def __init__(
        self, *arguments: str, size: tuple[int, int] = (COLUMNS, ROWS), **environment: str
    ) -> None:
        self.screen = Window(*size, history=5000, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = pty.openpty()
        self.screen.write_process_input = lambda data: os.write(self.master, data.encode())  # type: ignore[method-assign]
        self._set_size(*size)
        self._last = b""
        others = ("NO_COLOR", "COLUMNS", "LINES", "XTERM_VERSION", "STY")  # another terminal's
        given = {k: v for k, v in os.environ.items() if k not in others}
        given |= {"TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gguf_spec", "chat", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=given, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        """Make the window another size, between two frames of the program."""
        while True:
            self._hold()
            if self._last.rfind(_FRAME[0]) <= self._last.rfind(_FRAME[1]):
                break
            self.process.send_signal(signal.SIGCONT)
            self._read()
        self._set_size(columns, rows)
        self.screen.resize(rows, columns)
        self.process.send_signal(signal.SIGCONT)

    def _hold(self) -> None:
        """Stop the program, and read what it has written."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        while select.select([self.master], [], [], 0)[0] and self._read():
            pass

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    @property
    def text(self) -> str:
        """All lines, those that have scrolled out included."""
        rows = [
            *self.screen.history.top,
            *(self.screen.buffer[y] for y in range(self.screen.lines)),
        ]
        width = self.screen.columns
        return "\n".join("".join(row[x].data for x in range(width)).rstrip() for row in rows)

    def until(self, seen: Callable[[str], bool]) -> str:
        """Read until the text is as ``seen`` says."""
        end = monotonic() + _PATIENCE
        while not seen(self.text):
            ready, _, _ = select.select([self.master], [], [], max(end - monotonic(), 0))
            if not ready or not self._read():
                raise AssertionError(f"not seen in:\n{self.text}")
            while select.select([self.master], [], [], 0)[0] and self._read():
                pass  # looking takes longer than reading
        return self.text

    def shows(self, text: str, times: int = 1) -> str:
        return self.until(lambda shown: shown.count(text) >= times)

    def prompt(self) -> str:
        """Read until a message can be typed."""
        return self.until(lambda shown: self.last_line(-2) == ">")

    def last_line(self, at: int) -> str:
        lines = [line for line in self.text.splitlines() if line]
        return lines[at].strip() if len(lines) >= -at else ""

    def ended(self) -> int:
        """Read to the end; the exit code."""
        end = monotonic() + _PATIENCE
        while select.select([self.master], [], [], max(end - monotonic(), 0))[0]:
            if not self._read():
                return self.process.wait(_PATIENCE)
        raise AssertionError(f"it has not ended:\n{self.text}")

    def _read(self) -> bool:
        data = b""
        with contextlib.suppress(OSError):  # the terminal closes with the program
            data = os.read(self.master, 65536)
        self._last = (self._last + data)[-(1 << 16) :]
        self.take(data)
        return bool(data)

    def take(self, data: bytes) -> None:
        """Show what the program has written."""
        self.stream.feed(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
