"""libllama's grammar sampler as a mask: which tokens continue a text, by GBNF rules.

``llama_sampler_accept`` ends the process on a token that the grammar forbids, so nothing reaches it
that ``llama_sampler_apply`` has not let through first. And some tokens are never asked about:

- control tokens (unless they end the text): libllama would take them for the characters that they
  are written with, but they are no text;
- tokens that are not UTF-8 inside: libllama's decoder takes any byte for a continuation, and two
  of its functions disagree about characters that come out as 0, which ends the process.
"""

from __future__ import annotations

import codecs
import ctypes
import math
import weakref
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend.log import LOG, captured_stderr
from gguf_spec.backend.model import LlamaModel
from gguf_spec.errors import InputError, RunError
from gguf_spec.grammars import check_gbnf

#: ``llama_token_data``
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

# Below which byte after this one a character would be written with more bytes than it needs.
_LEAST_NEXT = {0xE0: 0xA0, 0xF0: 0x90}

# A token more, and a grammar that is this slow may take as long again, or twice as long: an
# ambiguous one follows all its readings at once, and their number can double with every token.
_PATIENCE = 2.0

Ids = NDArray[np.intp]


class GrammarMask:
    """A text's state in a grammar; see ``gguf_spec.sampling.Mask``.

    ``trigger``: everything is legal until this text has come, and the grammar begins behind it. A
    token may not run on beyond it.

    Raises (constructor):
        InputError: the grammar has an error, or is beyond the limits of ``gguf_spec.grammars``.
    """

    def __init__(
        self, model: LlamaModel, text: str, *, name: str = "grammar", trigger: str = ""
    ) -> None:
        check_gbnf(text, name)
        self._model = model
        self._api = model.lib.api
        self._words = _words(model)
        if not self._words.ends:
            raise InputError(f"{model.path.name} has no end token: no grammar would ever end")
        self._trigger = trigger.encode()
        self._seen = b""
        self._waiting = bool(trigger)
        self._least_next = 0
        mark = LOG.mark()
        with captured_stderr():
            sampler = self._api.llama_sampler_init_grammar(
                self._words.vocab, text.encode(), b"root"
            )
        if not sampler:  # a pointer, and never None
            said = [line.strip() for _, line in LOG.since(mark) if "grammar" in line]
            words = said[-1] if said else "it does not say why"
            raise InputError(f"{name}: libllama refuses the grammar: {words}")
        self._keep(sampler)

    def legal(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of ``ids`` may come next."""
        if self._waiting:
            return self._before_trigger(ids)
        askable = self._words.askable[ids]
        result = np.zeros(len(ids), np.bool_)
        asked = ids[askable]
        if not len(asked):
            return result
        candidates = np.zeros(len(asked), _CANDIDATE)
        candidates["id"] = asked
        array = self._api.llama_token_data_array(
            data=ctypes.cast(candidates.ctypes.data, self._api.llama_token_data_p),
            size=len(asked),
            selected=-1,
            sorted=False,
        )
        self._api.llama_sampler_apply(self._sampler, ctypes.byref(array))
        fits = candidates["logit"] != -math.inf
        if self._least_next:
            for i in fits.nonzero()[0]:  # they begin with a continuation byte, which few tokens do
                piece = self._words.pieces[int(asked[i])]
                fits[i] = not piece or piece[0] >= self._least_next
        result[askable] = fits
        return result

    def advance(self, token: int) -> None:
        """``token`` has come.

        Raises:
            RunError: it is not legal, or the grammar has too many readings of the text so far.
        """
        begun = perf_counter()
        known = 0 <= token < len(self._words.pieces)
        if not known or not self.legal(np.array([token]))[0]:
            text = self._model.special_text(token) if known else "no token"
            raise RunError(f"token {token} ({text!r}) is not one that the grammar allows")
        piece = self._words.pieces[token]
        if self._waiting:
            self._seen = (self._seen + self._words.written(token))[-len(self._trigger) :]
            self._waiting = self._seen != self._trigger
            return
        self._api.llama_sampler_accept(self._sampler, token)
        if piece:  # an overlong character could come out as 0
            self._least_next = _LEAST_NEXT.get(piece[-1], 0)
        if perf_counter() - begun > _PATIENCE:
            raise RunError(
                "the grammar is too ambiguous: it has so many readings of this text that following "
                f"them took {perf_counter() - begun:.0f} seconds for one token",
                hint="rewrite rules that can match the same text in several ways",
            )

    def copy(self) -> GrammarMask:
        """The same state, of its own."""
        twin = GrammarMask.__new__(GrammarMask)
        for name in ("_model", "_api", "_words", "_trigger", "_seen", "_waiting", "_least_next"):
            setattr(twin, name, getattr(self, name))
        twin._keep(self._api.llama_sampler_clone(self._sampler))
        return twin

    def _keep(self, sampler: Any) -> None:
        """Own ``sampler``: it is freed with this object."""
        self._sampler = sampler
        weakref.finalize(self, self._api.llama_sampler_free, sampler).atexit = False

    def _before_trigger(self, ids: Ids) -> NDArray[np.bool_]:
        """All but the tokens that would complete the trigger and go on."""
        trigger, seen = self._trigger, self._seen
        result = np.ones(len(ids), np.bool_)
        for i, token in enumerate(ids):
            text = seen + self._words.written(int(token))
            at = text.find(trigger)
            result[i] = at < 0 or at + len(trigger) == len(text)
        return result


class _Words:
    """The vocabulary as a grammar sees it."""

    def __init__(self, model: LlamaModel) -> None:
        api = model.lib.api
        self.vocab = vocab = api.llama_model_get_vocab(model.handle)
        ids = range(model.n_vocab)
        # Hundreds of thousands of calls: one buffer for all of them.
        room = 256
        buffer = ctypes.create_string_buffer(room)
        to_piece, is_end = api.llama_token_to_piece, api.llama_vocab_is_eog
        self.pieces: list[bytes] = []
        for token in ids:
            n = to_piece(vocab, token, buffer, room, 0, False)
            self.pieces.append(buffer.raw[:n] if n >= 0 else model.piece(token))
        self.ends = [token for token in ids if is_end(vocab, token)]
        self.askable = np.array([_is_text(piece) for piece in self.pieces], np.bool_)
        self.askable[self.ends] = True
        self._special = model.special_text

    def written(self, token: int) -> bytes:
        """The text of ``token``, that of a control token included."""
        return self.pieces[token] or self._special(token).encode()


def _words(model: LlamaModel) -> _Words:
    """Made once for a model."""
    words = model.__dict__.get("_grammar_words")
    if words is None:
        words = model.__dict__["_grammar_words"] = _Words(model)
    assert isinstance(words, _Words)
    return words


def _is_text(piece: bytes) -> bool:
    """Whether ``piece`` is UTF-8 but for a character cut at either end, and not empty."""
    if piece.isascii():
        return bool(piece) and b"\0" not in piece
    start = 0
    while start < min(len(piece), 3) and 0x80 <= piece[start] < 0xC0:
        start += 1
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(piece[start:])
    except UnicodeDecodeError:
        return False
    return b"\0" not in piece
