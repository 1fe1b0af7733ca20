"""Reading what the user types, or what a script pipes in, line by line."""

from __future__ import annotations

import contextlib
import sys

from gguf_spec.cli.output import is_terminal

PROMPT = "> "


class LineReader:
    """Lines from stdin; on a terminal with a prompt, editing, and ``\\`` to go on in a new line."""

    def __init__(self) -> None:
        self.interactive = is_terminal(sys.stdin)
        self.interrupted = False
        """Whether the user left with Ctrl-C."""
        self._editing = self.interactive and is_terminal(sys.stdout)
        if self._editing:
            with contextlib.suppress(ImportError):  # not on every platform
                import readline  # noqa: F401 (input() uses it once it is imported)

    def read(self) -> str | None:
        """The next line that is not blank; None at the end, or after Ctrl-C twice."""
        return self._typed() if self.interactive else self._piped()

    @staticmethod
    def keys() -> contextlib.AbstractContextManager[None]:
        """The keyboard between two prompts is left alone: ``input`` may need it line by line."""
        return contextlib.nullcontext()

    def _piped(self) -> str | None:
        for line in sys.stdin:
            if line.strip():
                return line.rstrip("\r\n")
        return None

    def _typed(self) -> str | None:
        warned = False
        while True:
            try:
                line = self._message()
            except EOFError:
                self._say("")
                return None
            except KeyboardInterrupt:
                self._say("")
                if _line_buffer():
                    warned = False
                    continue
                if warned:
                    self.interrupted = True
                    return None
                warned = True
                self._say("(Ctrl-C again or /exit leaves)")
                continue
            if line.strip():
                return line
            warned = False

    def _message(self) -> str:
        line = self._line(PROMPT)
        while line.endswith("\\"):
            line = line[:-1] + "\n" + self._line(". ")
        return line

    def _line(self, prompt: str) -> str:
        if self._editing:
            return input(prompt)
        # stdout goes to a file: the prompt must not.
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _line_buffer() -> str:
    """What stood on the line when it was interrupted, as far as readline tells."""
    readline = sys.modules.get("readline")
    return "" if readline is None else str(readline.get_line_buffer())
