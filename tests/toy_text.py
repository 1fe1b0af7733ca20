"""Toy vocabularies, and a model that knows one text by heart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gguf_spec.context import Run
from gguf_spec.vocabulary import Lexicon, Vocabulary

TEXT = (
    "def add(a, b):\n    return a + b\n\n\n    if x:\n\t\tpass\n"
    "The cat and the theory of the other. 1234567 + 89\n\n"
    "日本語の文章です。東京には 人が多い。\n中文文本,没有空格。\n"
    "Fun 😀👍🏽 or 👩‍👩‍👧 and 🇯🇵! naïve café\n"
    "        deep    and      deeper\n   three\n"
)
BYTES = [bytes([byte]) for byte in range(256)]
#: Words with a space in front, runs of three and seven spaces, characters in parts.
LEADING = [
    b" the", b" theory", b" other", b" cat", b" and", b" of", b"The", b" return", b" if", b" a",
    b" b", b" +", b"   ", b"       ", b"\n\n", b":\n", b"def", b" add", b"pass", b" or", b" an",
    "日".encode()[:2], "本".encode(), "語の".encode(), "😀".encode()[:2], "👍".encode()[:3], b"th",
    b"ory", b" deep", b"er", b" three", b" x",
]  # fmt: skip
#: Words without a space, runs of any length, characters and words whole; lines join.
WHOLE = [
    b"the", b"theory", b"cat", b"and", b"return", b"a, ", b"add", b"deeper", b"  ", b"    ",
    b"\n    ", b"\n\n\n", b"123", b"other. ", "日本語".encode(), "東京".encode(), "です。".encode(),
    "中文".encode(), "😀👍".encode(), "👩‍".encode(), "café".encode(), b"deep", b"The ", b"of the",
]  # fmt: skip


class ToyVocabulary:
    """Cuts a text into the longest pieces from the left. The first tokens are control tokens.

    ``adds_space`` puts a space in front of a text, as SentencePiece does. What no piece begins is
    the unknown token, the last one, which spells nothing.
    """

    eot = -1

    def __init__(
        self,
        pieces: Sequence[bytes],
        controls: Sequence[str] = ("<end>", "<bos>"),
        *,
        add_bos: bool = False,
        adds_space: bool = False,
    ) -> None:
        self.controls = list(controls)
        self._pieces = [b""] * len(controls) + list(pieces) + [b""]
        self.n_vocab = len(self._pieces)
        self.add_bos = add_bos
        self.eos, self.bos = 0, 1 if len(controls) > 1 else -1
        self.tokenized: list[int] = []
        self._adds_space = adds_space
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(self._pieces):
            if piece:
                self._ids[piece] = token
        self._longest = max(map(len, self._ids))

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def special_text(self, token: int) -> str:
        return self.controls[token] if self.is_control(token) else self._pieces[token].decode()

    def is_control(self, token: int) -> bool:
        return token < len(self.controls)

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        data = text.encode()
        self.tokenized.append(len(data))
        if self._adds_space and data:
            data = b" " + data
        tokens, at = [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    break
            else:
                token, length = self.n_vocab - 1, 1
            tokens.append(token)
            at += length
        return tokens


def leading(**options: bool) -> ToyVocabulary:
    return ToyVocabulary(BYTES + LEADING, **options)


def whole(**options: bool) -> ToyVocabulary:
    return ToyVocabulary(BYTES + WHOLE, **options)


def spelled(vocabulary: Vocabulary, tokens: Sequence[int]) -> bytes:
    return b"".join(vocabulary.piece(token) for token in tokens)


class ScriptContext:
    """A model that knows ``script`` by heart, and a cache that it really reads from: its logits
    point to the next token wherever its tokens leave off, or nowhere if they spell another text.
    """

    n_rollback = 0
    n_seq_max = 1
    busy_seconds = 0.0

    def __init__(
        self,
        vocabulary: Vocabulary,
        script: str,
        *,
        n_ctx: int = 4096,
        removes_tail: bool = True,
        n_ubatch: int = 512,
    ) -> None:
        self.lexicon = Lexicon(vocabulary)
        self.n_vocab = vocabulary.n_vocab
        self.n_ctx, self.n_ubatch, self.max_width = n_ctx, n_ubatch, 16
        self.n_batch = n_ubatch + 16
        self.removes_tail = removes_tail
        self.cache: list[int] = []
        self.decodes: list[list[Run]] = []
        self.script = script.encode()
        spelling = self.lexicon.spell(b"", self.script)
        assert spelling is not None
        self.tokens = spelling.tokens
        self._next = dict(zip([0, *spelling.ends], spelling.tokens, strict=False))
        self._rows: dict[int, int] = {}

    def decode(self, runs: Sequence[Run]) -> None:
        (run,) = runs
        assert run.start == len(self.cache)
        assert run.tokens
        assert len(self.cache) + len(run.tokens) <= self.n_ctx
        assert all(0 <= token < self.n_vocab for token in run.tokens)
        self.decodes.append([Run(0, run.start, list(run.tokens), run.n_outputs)])
        self.cache += run.tokens
        run.row = 0
        length = len(self.cache)
        first = length - run.n_outputs
        self._rows = {i - run.start: i + 1 for i in range(first, length)}

    def logits(self, row: int) -> NDArray[np.float32]:
        text = spelled(self.lexicon.vocabulary, self.cache[: self._rows[row]])
        if self.lexicon.adds_space:
            text = text.removeprefix(b" ")
        logits = np.zeros(self.n_vocab, np.float32)
        if self.script.startswith(text) and len(text) < len(self.script):
            token = self._next.get(len(text))
            if token is None:
                token = self._within(len(text))
            logits[token] = 60.0
        else:
            logits[0] = 60.0
        return logits

    def is_end(self, token: int) -> bool:
        return token == self.lexicon.vocabulary.eos

    def remove(self, seq: int, start: int) -> bool:
        if start < len(self.cache) and not self.removes_tail and start > 0:
            return False
        del self.cache[start:]
        return True

    def save(self, seq: int) -> object:
        return list(self.cache)

    def restore(self, seq: int, checkpoint: object) -> None:
        assert isinstance(checkpoint, list)
        self.cache = list(checkpoint)

    def clear(self, seq: int) -> None:
        self.cache = []

    def _within(self, at: int) -> int:
        """The likeliest token inside of one of the script's own: the longest that goes on."""
        rest = self.script[at : at + 48]
        found = self.lexicon.compatible(rest)
        pieces = self.lexicon.pieces
        fitting = [int(t) for t in found if pieces[t] and rest.startswith(pieces[t])]
        return max(fitting, key=lambda token: len(pieces[token]))
