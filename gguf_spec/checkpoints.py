"""Places to which a cache that cannot be cut back can still return.

A recurrent state has no tail that could be dropped. A conversation goes back all the same: the next
prompt has the last answer without its reasoning, or other tokens for the same text, or ``/undo``
was typed. So the state is kept where turns begin and end.
"""

from __future__ import annotations

from gguf_spec.context import ModelContext

# As large as a recurrent state is, and as rarely as somebody goes back several turns.
_MOST = 6


class Checkpoints:
    """The states that were kept of one sequence, by how many tokens they hold. None are where the
    cache can be cut back anyway."""

    def __init__(self, target: ModelContext, seq: int) -> None:
        self._target = target
        self._seq = seq
        self._kept: dict[int, object] = {}

    def keep(self, n_tokens: int) -> None:
        """Keep the state as it is now, after ``n_tokens``."""
        needed = not self._target.removes_tail and getattr(self._target, "can_save", True)
        if not needed or n_tokens <= 0 or n_tokens in self._kept:
            return
        self._kept[n_tokens] = self._target.save(self._seq)
        while len(self._kept) > _MOST:
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
