"""Drafts from a model's own MTP head, which was trained to predict the token after next."""

from __future__ import annotations

from gguf_spec.drafters.hidden import HeadContext, HeadDrafter
from gguf_spec.hidden_states import NEXTN


class Mtp(HeadDrafter):
    """``draft-mtp``: one head, asked again and again.

    At position p the head takes the token x_p and the target's state of x_p-1, zeros for the first
    token, and predicts x_p+1. The next step feeds back the head's own state
    (``common_speculative_impl_draft_mtp`` in llama.cpp's common/speculative.cpp, the mode for heads
    that neither form a chain nor share the target's cache).
    """

    spec_type = "draft-mtp"
    shift = 0

    def __init__(self, context: HeadContext, seq: int = 0, *, p_min: float = 0.0) -> None:
        super().__init__(context, (NEXTN,), seq, p_min=p_min)
