"""From tokens to text, as they come: UTF-8 across token borders, and stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Turns tokens into text one by one; ``piece`` gives the bytes of a token.

    A character whose bytes are spread over several tokens comes out with the last of them.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that ``token`` completes; may be empty."""
        return self._decoder.decode(self._piece(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Lets text through until one of ``stops`` appears, holding back what may become one."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit: str | None = None
        """The stop string that ended the text."""

    def feed(self, text: str) -> str:
        """The text that can be shown now. After a hit, nothing more comes out."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if found:
            at, self.hit = min(found, key=lambda pair: pair[0])
            self._held = ""
            return held[:at]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ``text`` ends with."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
