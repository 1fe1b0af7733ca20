"""A text of the target in the drafter's tokens, and drafts the other way round.

Both ways are incremental: a round costs what it added to the text, and a few tokens before that.
Neither can make a wrong text, only drafts that are rejected: the target verifies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gguf_spec.vocabulary import Lexicon, Vocabulary, control_images, equal_tokens

#: From which share of the larger vocabulary on tokens are mapped one by one. Vocabularies of one
#: family have more than 95 % in common; those of two families less than 60 %, and cut the text
#: elsewhere.
NEARLY_EQUAL = 0.9
#: The drafter's last tokens, which the text that follows may still change.
UNSETTLED = 8
#: Tokens in front that are cut along with a text, so that its words begin where they do.
ANCHOR = 8
#: Most spaces at the end of a text that are left to the drafter to repeat.
MOST_HELD = 32
_CONTROL = b"\xff"  # stands for a control token in a text: never a part of UTF-8


class Translation(Protocol):
    """A history of the target in the drafter's tokens.

    ``tokens`` are those; with ``held`` in mind, what of the text they leave out. ``settled`` of
    them stay as they are, whatever follows.
    """

    tokens: list[int]
    held: bytes
    settled: int

    def begin(self, history: Sequence[int]) -> int:
        """A text begins that may share its beginning with the last one; else as ``read``."""

    def read(self, history: Sequence[int]) -> int:
        """``history`` has grown; how many leading ``tokens`` are what they were before."""

    def candidates(self, drafted: Sequence[int]) -> NDArray[np.int64] | None:
        """The tokens that may follow ``drafted``, while those repeat what is held; None: all."""

    def ends(self, token: int) -> bool:
        """Whether a draft ends before ``token``, for want of a translation."""

    def for_target(self, drafted: Sequence[int], *, final: bool) -> list[int]:
        """``drafted`` in the target's tokens, as far as they are sure. ``final``: nothing goes on
        after it."""


def make_translation(target: Vocabulary, drafter: Vocabulary) -> Translation:
    """The way that suits the two vocabularies: token by token where they are nearly equal."""
    ours, theirs = Lexicon(target), Lexicon(drafter)
    images = equal_tokens(ours, theirs)
    if len(images) >= NEARLY_EQUAL * max(target.n_vocab, drafter.n_vocab):
        return MapTranslation(ours, theirs)
    return TextTranslation(ours, theirs)


class _Reader(ABC):
    """What both ways share: how far the history was read, and the texts of control tokens."""

    def __init__(self, target: Lexicon, drafter: Lexicon) -> None:
        self._target, self._drafter = target, drafter
        self._controls = control_images(target, drafter)
        self._read: list[int] = []
        self.held = b""
        bos = drafter.vocabulary.bos
        self.tokens = [bos] if drafter.vocabulary.add_bos and bos >= 0 else []
        self.settled = 0

    def begin(self, history: Sequence[int]) -> int:
        """See ``Translation``."""
        common = 0
        for ours, theirs in zip(self._read, history, strict=False):
            if ours != theirs:
                break
            common += 1
        before = self._cut_back(common) if common < len(self._read) else len(self.tokens)
        return min(before, self.read(history))

    @abstractmethod
    def read(self, history: Sequence[int]) -> int:
        """See ``Translation.read``."""

    @abstractmethod
    def _cut_back(self, common: int) -> int:
        """Forget all but ``common`` tokens of the history; how many ``tokens`` are left."""

    def _is_added_bos(self, token: int) -> bool:
        """Whether ``token``, which comes next, is a BOS that the drafter's own stands for."""
        vocabulary = self._target.vocabulary
        return not self._read and vocabulary.add_bos and token == vocabulary.bos

    def _written(self, token: int) -> bytes:
        """The bytes of ``token``; a control token without an image is read as it is written."""
        vocabulary = self._target.vocabulary
        if vocabulary.is_control(token):
            return vocabulary.special_text(token).encode()
        return self._target.pieces[token]


class MapTranslation(_Reader):
    """Nearly equal vocabularies: token by token. What has no image in the drafter's is bridged by
    its text; a draft ends before what has none in the target's."""

    def __init__(self, target: Lexicon, drafter: Lexicon) -> None:
        super().__init__(target, drafter)
        equal = equal_tokens(target, drafter)
        self._images = {**self._controls, **equal}
        self._back = {theirs: ours for ours, theirs in equal.items()}
        self._first = len(self.tokens)
        self._ends: list[int] = []  # per token of the history: drafter's tokens up to its end

    def read(self, history: Sequence[int]) -> int:
        """See ``Translation``."""
        unchanged = len(self.tokens)
        for token in history[len(self._read) :]:
            if not self._is_added_bos(token):
                image = self._images.get(token)
                self.tokens += self._bridge(token) if image is None else [image]
            self._read.append(token)
            self._ends.append(len(self.tokens))
        self.settled = len(self.tokens)
        return unchanged

    def candidates(self, drafted: Sequence[int]) -> NDArray[np.int64] | None:
        """See ``Translation``: nothing is ever held."""
        return None

    def ends(self, token: int) -> bool:
        """See ``Translation``."""
        return token not in self._back

    def for_target(self, drafted: Sequence[int], *, final: bool) -> list[int]:
        """See ``Translation``."""
        return [self._back[token] for token in drafted]

    def _bridge(self, token: int) -> list[int]:
        text = self._written(token).decode("utf-8", "replace")
        return self._drafter.vocabulary.tokenize(text) if text else []

    def _cut_back(self, common: int) -> int:
        del self._read[common:], self._ends[common:]
        del self.tokens[self._ends[-1] if common else self._first :]
        return len(self.tokens)


class TextTranslation(_Reader):
    """Any two vocabularies: through the text.

    The text is what the history spells, with a mark for each control token that has an image: texts
    between these are cut on their own. The drafter's last ``UNSETTLED`` tokens are cut again when
    the text grows, after some in front of them.

    Left out at the end, and ``held``: an incomplete character, and spaces. Where one vocabulary has
    a token of four spaces and another one of three before a word with its own, a drafter that has
    read three expects no fourth. So it reads none, and drafts what begins with three. Nor does it
    read the end of the line before them, if it has tokens for both together.
    """

    def __init__(self, target: Lexicon, drafter: Lexicon) -> None:
        super().__init__(target, drafter)
        self._text = bytearray()
        self._offsets: list[int] = []  # per token of the history: length of the text up to its end
        self._ends = [0] * len(self.tokens)  # per drafter's token: the same
        # Where texts begin, behind control tokens: (drafter's tokens, length of the text) before.
        self._starts = [(len(self.tokens), 0)]
        self._anchor = b""

    def read(self, history: Sequence[int]) -> int:
        """See ``Translation``."""
        unchanged = len(self.tokens)
        for token in history[len(self._read) :]:
            image = self._controls.get(token)
            if self._is_added_bos(token):
                pass
            elif image is None:
                self._text += self._spelled(token)
            else:
                unchanged = min(unchanged, self._cut_again(len(self._text)))
                self._text += _CONTROL
                self._add([image], [len(self._text)])
                self._starts.append((len(self.tokens), len(self._text)))
            self._read.append(token)
            self._offsets.append(len(self._text))
        self.held = self._to_hold()
        unchanged = min(unchanged, self._cut_again(len(self._text) - len(self.held)))
        self.settled = self._unsettled_from()
        self._anchor = self._last_text()
        return unchanged

    def candidates(self, drafted: Sequence[int]) -> NDArray[np.int64] | None:
        """See ``Translation``."""
        held = self.held[sum(len(self._drafter.pieces[token]) for token in drafted) :]
        return self._drafter.compatible(held) if held else None

    def ends(self, token: int) -> bool:
        """See ``Translation``: control tokens spell nothing."""
        return not self._drafter.pieces[token]

    def for_target(self, drafted: Sequence[int], *, final: bool) -> list[int]:
        """See ``Translation``. Tokens are left out from the first one on that what follows may
        change: some piece begins with all of the text from there on, and is longer."""
        target, anchor = self._target, self._anchor
        text = b"".join([self._drafter.pieces[token] for token in drafted])[len(self.held) :]
        whole = len(text) - _incomplete(anchor + text)
        if whole <= 0:
            return []
        spelling = target.spell(anchor, text[:whole])
        if spelling is None:
            return []
        if not (final and whole == len(text)):
            for i, start in enumerate([0, *spelling.ends[:-1]]):
                if target.extends(text[start:whole]):
                    return spelling.tokens[:i]
        return spelling.tokens

    def _spelled(self, token: int) -> bytes:
        """The text of ``token`` as the next of the history, without the space that the target's
        tokenizer adds in front of a text."""
        written = self._written(token)
        at_start = len(self._text) == self._starts[-1][1]
        if at_start and self._target.adds_space and written.startswith(b" "):
            return written[1:]
        return written

    def _to_hold(self) -> bytes:
        first, origin = self._starts[-1]
        text = bytes(self._text[max(origin, len(self._text) - MOST_HELD) :])
        incomplete = _incomplete(text)
        if incomplete:
            return text[-incomplete:]
        rest = text.rstrip(b" \t")
        if len(rest) < len(text) and self._drafter.joins_lines:
            rest = rest.rstrip(b"\n")
        # A drafter has to read something, and a longer run is no indentation.
        if not rest and (len(text) == MOST_HELD or not first):
            return b""
        return text[len(rest) :]

    def _unsettled_from(self) -> int:
        """The first of the drafter's tokens that more text may change: it begins a character."""
        first, _ = self._starts[-1]
        index = max(first, len(self.tokens) - UNSETTLED)
        while index > first and not self._begins(index):
            index -= 1
        return index

    def _begins(self, index: int) -> bool:
        """Whether the text can be cut in front of the drafter's token ``index``: not between the
        added space and the text, not within a character, nor among tokens of which only the last
        one is known to end somewhere."""
        at = self._ends[index - 1]
        inside = at < len(self._text) and self._text[at] & 0xC0 == 0x80
        known = index == len(self._ends) or at < self._ends[index]
        return known and not inside and at > self._starts[-1][1]

    def _cut_again(self, end: int) -> int:
        """Let ``tokens`` spell the text up to ``end``; how many of them stay."""
        first, origin = self._starts[-1]
        if end == (self._ends[-1] if len(self.tokens) > first else origin):
            return len(self.tokens)
        keep = self._unsettled_from()
        while keep > first and self._ends[keep - 1] > end:
            keep -= 1
        begin = self._ends[keep - 1] if keep > first else origin
        before = max(keep - ANCHOR, first)
        anchor = self._text[self._ends[before - 1] if before > first else origin : begin]
        text = bytes(self._text[begin:end])
        spelling = self._drafter.spell(_whole_characters(anchor), text)
        del self.tokens[keep:], self._ends[keep:]
        if spelling is not None:
            self._add(spelling.tokens, [begin + at for at in spelling.ends])
        else:  # characters that the drafter has no tokens for: only the end of them all is known
            tokens = self._drafter.vocabulary.tokenize(text.decode("utf-8", "replace"))
            self._add(tokens, [end] * len(tokens))
        return keep

    def _add(self, tokens: Sequence[int], ends: Sequence[int]) -> None:
        self.tokens += tokens
        self._ends += ends

    def _last_text(self) -> bytes:
        """The bytes of the target's last tokens, back to a control token at most: in front of them
        drafts are cut into tokens."""
        target = self._target
        start = len(self._read)
        while start and len(self._read) - start < ANCHOR:
            if target.vocabulary.is_control(self._read[start - 1]):
                break
            start -= 1
        text = b"".join([target.pieces[token] for token in self._read[start:]])
        at_start = not start or target.vocabulary.is_control(self._read[start - 1])
        if at_start and target.adds_space and text.startswith(b" "):
            return text[1:]
        return _whole_characters(text)

    def _cut_back(self, common: int) -> int:
        length = self._offsets[common - 1] if common else 0
        del self._read[common:], self._offsets[common:], self._text[length:]
        while self._starts[-1][1] > length:
            self._starts.pop()
        first, _ = self._starts[-1]
        keep = max(first, bisect_right(self._ends, length))
        del self.tokens[keep:], self._ends[keep:]
        return keep


def _incomplete(text: bytes) -> int:
    """Bytes at the end of ``text`` that are the beginning of a character."""
    for n in range(1, min(4, len(text) + 1)):
        byte = text[-n]
        if byte & 0xC0 != 0x80:
            size = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4
            return n if 0xC2 <= byte < 0xF5 and n < size else 0
    return 0


def _whole_characters(text: bytes | bytearray) -> bytes:
    """``text`` without the end of a character in front of it."""
    start = 0
    while start < min(3, len(text)) and text[start] & 0xC0 == 0x80:
        start += 1
    return bytes(text[start:])
