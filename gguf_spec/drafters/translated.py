"""Drafts from a smaller model of another vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft
from gguf_spec.drafters.draft_cache import DraftCache
from gguf_spec.history import History
from gguf_spec.sampling import Row, Sampler, probability
from gguf_spec.translation import Translation

#: Most tokens between a checkpoint and the text's end; so many are decoded again when a draft is
#: rejected, at most.
CHECKPOINT_EVERY = 32


class TranslatedDraft:
    """``draft-simple`` across vocabularies: the draft model reads the text in its own tokens, and
    what it drafts is translated (see ``gguf_spec.translation``).

    It drafts greedily: the noise of sampling is that of the target's tokens. A choice whose
    probability is below ``p_min`` ends the draft. As ``DraftModel``, it reads nothing until it is
    asked, and where its own tokens of the text fill its context, it drafts no more.

    A draft of n tokens takes more than n decodes, since the last piece of a text is not sure before
    the next one is known; ``2 n + 2`` at most.
    """

    spec_type = "draft-simple"

    def __init__(
        self,
        context: ModelContext,
        translation: Translation,
        seq: int = 0,
        *,
        p_min: float = 0.0,
    ) -> None:
        self.translation = translation
        self._context = context
        self._cache = DraftCache(context, seq)
        self._p_min = p_min
        self._history = History()
        self._begun = False
        # So many tokens of the cache are the translation's.
        self._agreed = 0

    def begin(self, history: History) -> None:
        """A generation starts; the text is read when the first draft is wanted."""
        self._history = history
        self._begun = False

    def observe(self, target: ModelContext, run: Run) -> None:
        """A draft model has no use for the target's states."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        translation = self.translation
        read = translation.read if self._begun else translation.begin
        self._agreed = min(self._agreed, read(self._history))
        self._begun = True
        tokens: list[int] = []
        if limit > 0 and 0 < len(translation.tokens) <= self._context.n_ctx:
            try:
                tokens = self._continue(limit)
            except BaseException:
                self._clear()
                raise
        return Draft(tokens, self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """What was drafted is compared with the text when the next draft is wanted."""

    def rebuild(self) -> None:
        """Read the text again when a draft is wanted next."""
        self._clear()

    def close(self) -> None:
        """Nothing to give back: the context belongs to whoever made it."""
        self._clear()

    def _continue(self, limit: int) -> list[int]:
        cache, translation = self._cache, self.translation
        row = self._catch_up()
        drafted: list[int] = []
        while True:
            token = self._choose(self._context.logits(row), drafted)
            if token is None:
                return translation.for_target(drafted, final=False)[:limit]
            if self._context.is_end(token) or translation.ends(token):
                return translation.for_target(drafted, final=True)[:limit]
            drafted.append(token)
            tokens = translation.for_target(drafted, final=False)
            full = len(cache.tokens) >= self._context.n_ctx
            if full or len(tokens) >= limit or len(drafted) >= 2 * limit + 2:
                return tokens[:limit]
            row = cache.decode([token], 1)

    def _catch_up(self) -> int:
        """Bring the cache up to the text; the batch row of its last token."""
        cache, translation = self._cache, self.translation
        cache.rewind(translation.tokens, self._agreed)
        if not self._context.removes_tail:
            self._renew_checkpoint(min(translation.settled, len(translation.tokens) - 1))
        row = cache.catch_up(translation.tokens)
        self._agreed = len(cache.tokens)
        return row

    def _renew_checkpoint(self, settled: int) -> None:
        """Take a checkpoint in front of what the next rounds may cut again, if that is not cached
        yet; after many drafts that stood it is, and the cache goes back to the last one first."""
        cache, tokens = self._cache, self.translation.tokens
        if settled - cache.saved > CHECKPOINT_EVERY:
            cache.rewind(tokens[: settled + 1], min(self._agreed, settled))
        if settled > len(cache.tokens):
            cache.catch_up(tokens[:settled])
            cache.save()

    def _choose(self, logits: Row, drafted: Sequence[int]) -> int | None:
        """The likeliest token that spells what is held, or of all; None if there is none."""
        candidates = self.translation.candidates(drafted)
        if candidates is not None:
            return int(candidates[logits[candidates].argmax()]) if len(candidates) else None
        token = int(logits.argmax())
        if self._p_min > 0.0 and probability(logits, token) < self._p_min:
            return None
        return token

    def _clear(self) -> None:
        self._cache.clear()
        self._agreed = 0
