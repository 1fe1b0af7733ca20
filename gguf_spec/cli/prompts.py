"""The prompt of ``run``: from an option, a file, or what is piped in."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from gguf_spec.cli.output import is_terminal
from gguf_spec.errors import InputError, PromptError, UsageError
from gguf_spec.user_files import read_up_to, read_whole

_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class PromptSource:
    """Where the prompt comes from; made, and so checked, before anything is read."""

    text: str | None
    file: str | None
    piped: bool

    @classmethod
    def of(cls, text: str | None, file: str | None) -> PromptSource:
        """Raises UsageError unless there is exactly one prompt."""
        if text is not None and file is not None:
            raise UsageError(
                "-p/--prompt and -f/--file cannot be combined",
                hint="pipe the file in beside -p, or use -f alone",
            )
        piped = file == "-" or (file is None and is_piped())
        if text is None and file is None and not piped:
            raise UsageError(
                "there is no prompt", hint='give one with -p "TEXT" or -f FILE, or pipe it in'
            )
        return cls(text, None if file == "-" else file, piped)

    def read(self, *, raw: bool = False) -> str:
        """The whole prompt.

        One newline at the end of a file is an editor's or ``echo``'s, not the user's (llama.cpp
        drops it too); ``raw`` keeps it.

        Raises:
            InputError: it cannot be read or is not UTF-8.
            PromptError: it is empty.
        """
        parts = [self.text or ""]
        if self.file is not None:
            parts.append(read_text(self.file, "-f/--file", raw=raw))
        elif self.piped:
            parts.append(_whole(_read_stdin(), "stdin", raw))
        prompt = "\n\n".join(part for part in parts if part)
        if not prompt:
            where = self.file or ("stdin" if self.piped and not self.text else "-p/--prompt")
            raise PromptError(f"the prompt is empty ({where})", hint="give at least one character")
        return prompt


def is_piped() -> bool:
    """Whether something feeds stdin: a pipe, a file, a socket, but no terminal and no /dev/null."""
    stdin = sys.stdin
    if stdin is None or stdin.closed or is_terminal(stdin):
        return False
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return True  # not a file at all, but somebody put it there
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_stdin() -> bytes:
    if is_terminal(sys.stdin):
        print("type the prompt, end it with Ctrl-D on a line of its own", file=sys.stderr)
    if sys.stdin is None:
        return b""
    try:
        return read_up_to(sys.stdin.buffer, _MOST_BYTES)
    except OSError as error:
        raise InputError(f"stdin cannot be read: {error.strerror or error}") from None


def read_text(name: str, option: str, *, raw: bool = False) -> str:
    """The text in a file that was named with ``option``; ``raw`` keeps its last newline.

    Raises:
        InputError: it cannot be read or is not UTF-8.
    """
    try:
        data = read_whole(Path(name).expanduser(), _MOST_BYTES, pipes=True)
    except IsADirectoryError:
        raise InputError(f"{option} {name} is a folder", hint="name a text file in it") from None
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~ without a home folder
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{option} {name} cannot be read: {reason}") from None
    return _whole(data, name, raw)


def _whole(data: bytes, name: str, raw: bool) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text (byte {error.start} of {len(data)})",
            hint="convert it, for instance with iconv",
        ) from None
    return text if raw else text.removesuffix("\n").removesuffix("\r")
