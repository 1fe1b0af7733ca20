"""The seam between the engine and whatever computes logits: libllama, or a table in a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gguf_spec.errors import PromptError, RunError


class NoSlotError(RunError):
    """The cache has no room for these rows; nothing was computed."""


@dataclass(slots=True)
class Run:
    """Consecutive tokens of one sequence, to be decoded at positions from ``start`` on.

    The last ``n_outputs`` of them get logits. ``row`` is the index of the first token in the batch
    that was decoded last; the target sets it.
    """

    seq: int
    start: int
    tokens: Sequence[int]
    n_outputs: int
    row: int = 0


class ModelContext(Protocol):
    """A context of a model, target or draft: a cache of several sequences, and logits of rows.

    A decode that raises leaves the cached length of its sequences unknown: ``clear`` them.
    """

    n_vocab: int
    n_ctx: int
    """Tokens that fit into the cache of one sequence."""
    n_seq_max: int
    n_batch: int
    """Most rows in one decode."""
    n_ubatch: int
    """Rows computed at a time: the size of a prefill chunk."""
    max_width: int
    """Most rows with logits that one sequence may have in one decode."""
    removes_tail: bool
    """Whether ``remove`` works on any tail of a sequence; if not, the engine takes checkpoints."""
    n_rollback: int
    """Where ``removes_tail`` is False: how many of the tokens of the last decode ``remove`` can
    drop all the same, once, as long as one of them stays."""
    busy_seconds: float
    """Time spent inside, summed over all calls."""

    def decode(self, runs: Sequence[Run]) -> None:
        """Compute the rows of all ``runs`` in one batch and append them to their sequences.

        Raises:
            NoSlotError: the cache is full; it is unchanged.
            BackendError: the computation failed.
        """

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of batch row ``row``, shape [n_vocab]: a view, valid until the next ``decode``."""

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""

    def remove(self, seq: int, start: int) -> bool:
        """Drop the tokens of ``seq`` from position ``start`` on; False if that is impossible,
        and then nothing has changed."""

    def save(self, seq: int) -> object:
        """A checkpoint of ``seq`` that ``restore`` understands."""

    def restore(self, seq: int, checkpoint: object) -> None:
        """Put ``seq`` back to the checkpoint, dropping what came later."""

    def clear(self, seq: int) -> None:
        """Drop all tokens of ``seq``."""


class StatesContext(ModelContext, Protocol):
    """A target whose hidden states were switched on, for drafters that compute on them."""

    def states(
        self, layers: Sequence[int], row: int, n: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The states ``layers`` (ids as in ``hidden_states``) of ``n`` tokens from batch row
        ``row`` of the last decode on, side by side: shape [n, widths summed]. They are copied into
        ``out``, or into a new array.

        Rows of all tokens are there, with logits or without, until the next ``decode``.
        """


def check_prompt(prompt: Sequence[int], target: ModelContext) -> None:
    """Raise a PromptError unless ``prompt`` can be prefilled and followed by a token."""
    if not prompt:
        raise PromptError("the prompt is empty", hint="give at least one token of text")
    if len(prompt) > target.n_ctx:
        raise PromptError(
            f"the prompt has {len(prompt)} tokens, the context holds {target.n_ctx}",
            hint="raise -c/--ctx-size, or shorten the prompt",
        )
    for token in prompt:
        if not 0 <= token < target.n_vocab:
            raise PromptError(f"token id {token} is outside the vocabulary of {target.n_vocab}")
