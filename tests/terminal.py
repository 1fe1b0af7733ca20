"""A chat in a pseudo-terminal, for tests and for pictures of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from time import monotonic

import pyte

COLUMNS, ROWS = 80, 24
_PATIENCE = 60.0  # seconds; only a failure takes so long


class Terminal:
    """A chat in a pseudo-terminal. It answers when it is asked where the cursor is."""

    def __init__(
        self, *arguments: str, size: tuple[int, int] = (COLUMNS, ROWS), **environment: str
    ) -> None:
        self.screen = pyte.HistoryScreen(*size, history=5000, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        self.master, slave = pty.openpty()
        self.screen.write_process_input = lambda data: os.write(self.master, data.encode())  # type: ignore[method-assign]
        self.resize(*size)
        given = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
        given |= {"TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gguf_spec", "chat", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=given, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

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
        while self._read():
            pass
        return self.process.wait(_PATIENCE)

    def _read(self) -> bool:
        data = b""
        with contextlib.suppress(OSError):  # the terminal closes with the program
            data = os.read(self.master, 65536)
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
