"""A progress bar for waits that get long."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from types import TracebackType
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DELAY = 0.4  # seconds; a bar that only flashes is noise


class Wait:
    """A wait with a bar on stderr. It appears after a moment, and leaves nothing behind.

    The bar writes to a stream of its own: loading a model redirects file descriptor 2 for a while.
    """

    def __init__(self, title: str, *, unit: str = "", shown: bool = True) -> None:
        self._title = title
        self._unit = unit
        self._shown = shown
        self._lock = threading.Lock()
        self._done: float = 0
        self._total: float | None = None
        self._stream: IO[str] | None = None
        self._timer: threading.Timer | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Wait:
        if self._shown:
            try:
                number = os.dup(sys.stderr.fileno())
            except (OSError, ValueError, AttributeError):
                return self
            self._stream = os.fdopen(number, "w", encoding="utf-8", errors="replace")
            self._timer = threading.Timer(_DELAY, self._start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer.join()
        with contextlib.suppress(OSError):
            if self._progress is not None:
                self._progress.stop()
            if self._stream is not None:
                self._stream.close()

    def update(self, done: float, total: float | None, title: str | None = None) -> None:
        """How far it is."""
        with self._lock:
            self._done, self._total = done, total
            self._title = title or self._title
            if self._progress is not None and self._task is not None:
                self._progress.update(
                    self._task, completed=done, total=total, description=self._text()
                )

    def fraction(self, name: str, done: float) -> None:
        """A loading model."""
        self.update(done * 100, 100, f"loading {name}")

    def stage(self, stage: str, done: int | None, total: int | None) -> None:
        """A download or what follows it, in bytes; ``total`` None is a wait without an end."""
        scale = 1 << 20
        self._unit = "MiB" if done or total else ""
        title = f"{stage} of the demo model" if stage in ("download", "extract") else stage
        self.update((done or 0) // scale, total and total // scale, title)

    def _start(self) -> None:
        """Runs on the timer's thread."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        plain = bool(os.environ.get("NO_COLOR"))
        console = Console(file=self._stream, color_system=None if plain else "auto")
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with self._lock:
            self._task = progress.add_task(
                self._text(), completed=int(self._done), total=self._total
            )
            progress.start()
            self._progress = progress

    def _text(self) -> str:
        if not self._unit:
            return self._title
        total = "" if self._total is None else f"/{self._total:.0f}"
        return f"{self._title} {self._done:.0f}{total} {self._unit}"
