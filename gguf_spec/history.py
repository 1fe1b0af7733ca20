"""The tokens of one sequence, in a form that n-gram look-ups can use as keys."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

_INT = array("i").itemsize
assert _INT == 4, "llama.cpp's tokens are 32-bit integers"


class History(Sequence[int]):
    """Prompt and emitted tokens. Its sequence writes, drafters read.

    The tokens are kept twice: as a list, because Python integers are what everybody wants, and as
    the bytes of 32-bit integers, because slices of those make exact dictionary keys without a
    tuple of objects. ``epoch`` changes whenever tokens are taken away, so that a reader with state
    of its own notices.
    """

    __slots__ = ("_raw", "_tokens", "epoch")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._tokens: list[int] = []
        self._raw = bytearray()
        self.epoch = 0
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens``."""
        self._tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        if length < len(self._tokens):
            del self._tokens[length:]
            del self._raw[length * _INT :]
            self.epoch += 1

    def common_prefix(self, tokens: Sequence[int]) -> int:
        """How many leading tokens agree with ``tokens``."""
        length = min(len(self._tokens), len(tokens))
        if self._tokens[:length] == list(tokens[:length]):
            return length
        for i in range(length):
            if self._tokens[i] != tokens[i]:
                return i
        return length

    def agreement(self, a: int, b: int, most: int) -> int:
        """How many tokens before position ``a`` agree with those before ``b``, up to ``most``."""
        tokens, n = self._tokens, 0
        most = min(most, a, b)
        while n < most and tokens[a - n - 1] == tokens[b - n - 1]:
            n += 1
        return n

    def ngram(self, start: int, n: int) -> bytes:
        """The ``n`` tokens from ``start`` as bytes: a key that is equal exactly when they are."""
        done = len(self._raw) // _INT
        if done < len(self._tokens):  # nobody pays for keys that nobody asks for
            self._raw += array("i", self._tokens[done:]).tobytes()
        return bytes(self._raw[start * _INT : (start + n) * _INT])
