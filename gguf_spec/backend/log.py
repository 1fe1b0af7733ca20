"""What llama.cpp says: kept in memory, shown when somebody asks or when something fails."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections import deque
from collections.abc import Iterator

_KEEP = 2000
# enum ggml_log_level in ggml.h
_LEVELS = {1: "debug", 2: "info", 3: "warn", 4: "error"}
_CONTINUE = 5


class LogBuffer:
    """Joins llama.cpp's log records into lines and keeps the last ones.

    A record may be part of a line: level 5 continues the record before it, and a load writes about
    a hundred of those to draw a row of dots.
    """

    def __init__(self) -> None:
        self.lines: deque[tuple[str, str]] = deque(maxlen=_KEEP)
        self.echo = False
        self._level = "info"
        self._partial = ""
        self._total = 0

    def write(self, level: int, text: bytes | None) -> None:
        """Take one record."""
        if level != _CONTINUE:
            self._flush()
            self._level = _LEVELS.get(level, "info")
        self._partial += (text or b"").decode("utf-8", errors="replace")
        *whole, self._partial = self._partial.split("\n")
        for line in whole:
            self._emit(line)

    def errors(self) -> list[str]:
        """Lines of warnings and errors, oldest first."""
        return [line for level, line in self.since(0) if level in ("warn", "error")]

    def mark(self) -> int:
        """Where the log stands now, for ``since``."""
        self._flush()
        return self._total

    def since(self, mark: int) -> list[tuple[str, str]]:
        """Lines after ``mark`` as (level, text), as far as they are still kept."""
        self._flush()
        fresh = min(self._total - mark, len(self.lines))
        return list(self.lines)[len(self.lines) - fresh :]

    def _flush(self) -> None:
        if self._partial:
            line, self._partial = self._partial, ""
            self._emit(line)

    def _emit(self, line: str) -> None:
        if line.strip():
            self.lines.append((self._level, line))
            self._total += 1
            if self.echo:
                print(line, file=sys.stderr)


LOG = LogBuffer()


def recent_log() -> LogBuffer:
    """The log of this process."""
    return LOG


@contextlib.contextmanager
def captured_stderr() -> Iterator[None]:
    """Put what C code writes straight to file descriptor 2 into the log.

    Some of llama.cpp's messages go past its log callback. Python's ``sys.stderr`` keeps writing to
    the terminal meanwhile, so that a progress bar stays visible.
    """
    try:
        real = os.dup(2)
    except OSError:  # started without a standard error
        yield
        return
    python_stderr = sys.stderr
    with tempfile.TemporaryFile() as file:
        try:
            if python_stderr is not None:
                python_stderr.flush()
                if _fileno(python_stderr) == 2:
                    sys.stderr = os.fdopen(
                        os.dup(real), "w", buffering=1, encoding="utf-8", errors="replace"
                    )
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            if sys.stderr is not python_stderr:
                sys.stderr.close()
                sys.stderr = python_stderr
            file.seek(0)
            for line in file.read().split(b"\n"):
                LOG.write(2, line + b"\n")


def _fileno(stream: object) -> int | None:
    try:
        number = stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
    return int(number)
