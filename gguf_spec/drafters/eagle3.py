"""Drafts from an EAGLE-3 head: one layer on the states of three layers of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gguf_spec.drafters.hidden import HeadContext, HeadDrafter, Rows


class EncoderContext(HeadContext, Protocol):
    """The context of a head that first makes one row of its own width of the target's states."""

    def encode(self, states: Rows) -> Rows:
        """From shape [n, widths of the target's layers summed] to [n, width]: a view, at most
        ``n_ubatch`` rows."""


class Eagle3(HeadDrafter):
    """``draft-eagle3``.

    At position p the head takes the token x_p+1 and g_p, which its encoder makes of the target's
    states of x_p, and predicts x_p+2. The next step feeds back the head's own state, taken before
    its last norm (``common_speculative_impl_draft_eagle3`` in llama.cpp's common/speculative.cpp).
    A head with a smaller vocabulary of its own needs nothing here: libllama spreads its logits over
    the target's ids, with minus infinity for the others.
    """

    spec_type = "draft-eagle3"
    shift = 1

    def __init__(
        self, context: EncoderContext, needs: Sequence[int], seq: int = 0, *, p_min: float = 0.0
    ) -> None:
        super().__init__(context, needs, seq, p_min=p_min)
        self._encoder = context

    def _prepare(self, states: Rows) -> Rows:
        # Copied: the next decode writes over what the encoder left.
        return np.array(self._encoder.encode(states))
