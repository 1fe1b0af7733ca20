"""Places to which a cache that cannot be cut back can still return.

A recurrent state has no tail that could be dropped, and a sliding window gives up cells that an
earlier position would look at. A conversation goes back all the same: the next prompt has the last
answer without its reasoning, or other tokens for the same text, or ``/undo`` was typed. So in a
conversation the state is kept where turns begin and end.
"""

from __future__ import annotations

from gguf_spec.context import ModelContext

# People rarely go back several turns.
_MOST = 6
# A state of a large window takes longer to copy, twice each turn, than it is worth.
_LARGEST = 256 << 20
_MOST_BYTES = 1 << 30


class Checkpoints:
    """The states that were kept of one sequence, by how many tokens they hold. None are kept while
    ``enabled`` is False, and where the cache can be cut back anyway."""

    def __init__(self, target: ModelContext, seq: int) -> None:
        self.enabled = False
        self._target = target
        self._seq = seq
        self._kept: dict[int, object] = {}

    @property
    def needed(self) -> bool:
        """Whether this cache cannot go back otherwise, and its states can be kept."""
        target = self._target
        cannot_cut = not target.removes_tail or getattr(target, "has_window", False)
        return cannot_cut and bool(getattr(target, "can_save", True))

    def keep(self, n_tokens: int) -> None:
        """Keep the state as it is now, after ``n_tokens``."""
        if not self.enabled or not self.needed or n_tokens <= 0 or n_tokens in self._kept:
            return
        state = self._target.save(self._seq)
        size = getattr(self._target, "saved_bytes", 0)
        if size > _LARGEST:
            self.enabled = False
            return
        self._kept[n_tokens] = state
        while len(self._kept) > min(_MOST, _MOST_BYTES // max(size, 1)):
            del self._kept[min(self._kept)]

    def forget_behind(self, n_tokens: int) -> None:
        """The text goes on differently after ``n_tokens``."""
        self._kept = {n: state for n, state in self._kept.items() if n <= n_tokens}

    def go_back(self, n_tokens: int) -> int:
        """Put the sequence back to the last state within the first ``n_tokens``, and say how many
        it holds; 0: there is none, and nothing has changed."""
        self.forget_behind(n_tokens)
        n = max(self._kept, default=0)
        if n:
            self._target.restore(self._seq, self._kept[n])
        return n
