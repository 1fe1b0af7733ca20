"""What a vocabulary spells: pieces in order, text cut where other text precedes it, equal pieces.

A text of a vocabulary is bytes here, not characters: a token may hold a part of a character.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

# What may stand in front of a text to keep a tokenizer from adding a space: one of them is a token
# of its own whatever comes after it.
_FRONTS = (b"\n", b".", b"0")


class Vocabulary(Protocol):
    """The tokens of a model and how a text is cut into them, as of ``backend.LlamaModel``."""

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""

    @property
    def add_bos(self) -> bool:
        """Whether a text begins with the BOS token."""

    @property
    def bos(self) -> int:
        """Id of the BOS token, -1 if there is none."""

    @property
    def eos(self) -> int:
        """Id of the EOS token, -1 if there is none."""

    @property
    def eot(self) -> int:
        """Id of the token that ends a turn, -1 if there is none."""

    def piece(self, token: int) -> bytes:
        """The bytes that ``token`` stands for; control tokens stand for none."""

    def special_text(self, token: int) -> str:
        """How ``token`` is written, control tokens included."""

    def is_control(self, token: int) -> bool:
        """Whether ``token`` is a control token: one that no ordinary text produces."""

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Token ids of ``text``."""


class Spelling(NamedTuple):
    """Tokens of a text, and where in it each of them ends, in bytes."""

    tokens: list[int]
    ends: list[int]


class Lexicon:
    """A vocabulary with the pieces of all of its tokens at hand: 262,144 take half a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.pieces = [vocabulary.piece(token) for token in range(vocabulary.n_vocab)]
        self.adds_space = self._join(vocabulary.tokenize("x")) == b" x"
        """Whether the tokenizer puts a space in front of a text (SentencePiece's dummy prefix)."""

    def spell(self, before: bytes, text: bytes) -> Spelling | None:
        """The tokens of ``text`` where it stands after ``before``, with ends in ``text``.

        The tokens of ``before`` are given: a token that would cross over from it is not taken, and
        ``text`` is cut on its own then. After nothing, a text begins as its tokenizer begins one.
        None if no tokens spell ``text``: it is not UTF-8, or has characters without a token.
        """
        if not before:
            return self._cut(text)
        for front in (before, *_FRONTS) if self.adds_space else (before,):
            whole = self._cut(front + text)
            after = bisect_right(whole.ends, len(front)) if whole else 0
            if whole and after and whole.ends[after - 1] == len(front):
                ends = [end - len(front) for end in whole.ends[after:]]
                return Spelling(whole.tokens[after:], ends)
        return None if self.adds_space else self._cut(text)

    def compatible(self, text: bytes) -> NDArray[np.int64]:
        """The tokens with which a text may begin that begins with ``text``, which is not empty:
        their pieces begin with it, or it with their pieces."""
        pieces, n = self._sorted, len(text)
        found = [self._order[self._range(text, n)]]
        for length in range(1, n):
            part = text[:length]
            found.append(self._order[bisect_left(pieces, part) : bisect_right(pieces, part)])
        return np.concatenate(found)

    def extends(self, piece: bytes) -> bool:
        """Whether a longer piece begins with ``piece``: then what follows may merge with it."""
        following = bisect_right(self._sorted, piece)
        return following < len(self._sorted) and self._sorted[following].startswith(piece)

    @cached_property
    def joins_lines(self) -> bool:
        """Whether some token holds the end of a line and the spaces that begin the next one."""
        found = self._range(b"\n ", 2)
        return bool(found.start < found.stop)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Token ids in the order of their pieces."""
        return np.array(sorted(range(len(self.pieces)), key=self.pieces.__getitem__), np.int64)

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self.pieces)

    def _range(self, text: bytes, n: int) -> slice:
        start = bisect_left(self._sorted, text)
        return slice(start, bisect_right(self._sorted, text, start, key=lambda piece: piece[:n]))

    def _join(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self.pieces[token] for token in tokens])

    def _cut(self, text: bytes) -> Spelling | None:
        try:
            tokens = self.vocabulary.tokenize(text.decode())
        except UnicodeDecodeError:
            return None
        spelled = self._join(tokens)
        added = int(self.adds_space and spelled == b" " + text)
        if not added and spelled != text:
            return None
        lengths = [len(self.pieces[token]) for token in tokens]
        return Spelling(tokens, [end - added for end in accumulate(lengths)])


def equal_tokens(target: Lexicon, drafter: Lexicon) -> dict[int, int]:
    """Tokens of the target -> tokens of the drafter that are the same: ordinary ones of equal
    pieces, control tokens of equal texts.

    Where several tokens have one piece, as a byte and a letter may, the last ones are a pair, those
    before them another: bytes come first in every vocabulary that has them.
    """
    ours, theirs = _by_text(target), _by_text(drafter)
    pairs: dict[int, int] = {}
    for key, tokens in ours.items():
        pairs.update(zip(reversed(tokens), reversed(theirs.get(key, [])), strict=False))
    return pairs


def control_images(target: Lexicon, drafter: Lexicon) -> dict[int, int]:
    """Control tokens of the target -> those of the drafter that mean the same: of equal text, or of
    the same role. A BOS counts as one where it is added to texts, so it is no chat marker."""
    ours, theirs = target.vocabulary, drafter.vocabulary
    images: dict[int, int] = {}
    if ours.add_bos and theirs.bos >= 0:
        images[ours.bos] = theirs.bos
    # The EOS of a chat model ends turns, that of another one texts.
    end = theirs.eot if theirs.eot >= 0 else theirs.eos
    if end >= 0:
        images.update({ours.eos: end, ours.eot: end})
    images.update({a: b for a, b in equal_tokens(target, drafter).items() if ours.is_control(a)})
    images.pop(-1, None)
    return images


def _by_text(lexicon: Lexicon) -> dict[tuple[bool, bytes], list[int]]:
    tokens: dict[tuple[bool, bytes], list[int]] = defaultdict(list)
    vocabulary = lexicon.vocabulary
    for token, piece in enumerate(lexicon.pieces):
        if piece:
            tokens[False, piece].append(token)
        elif vocabulary.is_control(token):
            tokens[True, vocabulary.special_text(token).encode()].append(token)
    return tokens
