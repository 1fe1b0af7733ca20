"""What the context of a draft model holds, and what it should hold."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_spec.context import ModelContext, Run


class DraftCache:
    """The tokens in one sequence of a draft context: decoded when they are needed, dropped when
    they turn out to be wrong. Where a cache cannot be cut back, it goes back to a checkpoint."""

    def __init__(self, context: ModelContext, seq: int) -> None:
        self.tokens: list[int] = []
        self._context = context
        self._seq = seq
        self._checkpoint: tuple[int, object] | None = None
        context.clear(seq)

    def catch_up(self, text: Sequence[int]) -> int:
        """Decode what the cache lacks of ``text``; the batch row of its last token."""
        row = 0
        length = len(text)
        while len(self.tokens) < length:
            start = len(self.tokens)
            end = min(start + self._context.n_ubatch, length)
            row = self.decode(text[start:end], int(end == length))
        return row

    def decode(self, tokens: Sequence[int], n_outputs: int) -> int:
        """Append ``tokens``; the batch row of the last one."""
        run = Run(self._seq, len(self.tokens), tokens, n_outputs)
        self._context.decode([run])
        self.tokens += tokens
        return run.row + len(tokens) - 1

    def save(self) -> None:
        """Take a checkpoint, if the cache cannot be cut back without one."""
        if not self._context.removes_tail:
            self._checkpoint = (len(self.tokens), self._context.save(self._seq))

    @property
    def saved(self) -> int:
        """Length of the checkpoint, 0 if there is none."""
        return self._checkpoint[0] if self._checkpoint else 0

    def rewind(self, text: Sequence[int], agreed: int) -> None:
        """Drop the tokens that are not those of ``text``; the first ``agreed`` are known to be.

        The last token of the text stays out: its logits are needed again.
        """
        cached = self.tokens
        keep = min(agreed, len(cached))
        end = min(len(cached), len(text) - 1)
        while keep < end and cached[keep] == text[keep]:
            keep += 1
        keep = min(keep, max(end, 0))
        if keep == len(cached):
            return
        if self._context.remove(self._seq, keep):
            del cached[keep:]
        elif self._checkpoint and self._checkpoint[0] <= keep:
            length, state = self._checkpoint
            self._context.restore(self._seq, state)
            del cached[length:]
        else:
            self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._context.clear(self._seq)
        self.tokens.clear()
        self._checkpoint = None
