"""Files that libllama has mapped: have they changed since they were loaded?

To read a mapped page behind the end of its file ends the process with SIGBUS, and a file that is
written again computes nonsense. A file that becomes shorter while an answer is being made cannot
be caught from here; between answers it can.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from gguf_spec.errors import InputError


class MappedFiles:
    """What the files of a session were when they were loaded."""

    def __init__(self) -> None:
        self._loaded: dict[str, os.stat_result] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Note ``paths``, which are about to be loaded."""
        for path in paths:
            try:
                self._loaded[path] = os.stat(path)
            except OSError:  # libllama says what is wrong with it
                continue

    def check(self) -> None:
        """Raises InputError if one of them was written to, with both sizes.

        Another file under the name of one, or none, is no change: the old one stays mapped.
        """
        for path, then in self._loaded.items():
            try:
                now = os.stat(path)
            except OSError:
                continue
            if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
                continue
            if (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns):
                raise InputError(
                    f"{path}: the file has changed since it was loaded: it had {then.st_size} "
                    f"bytes, now {now.st_size}",
                    hint="load it again",
                )
