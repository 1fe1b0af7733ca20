"""Drafters that are models or parts of models, by spec type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gguf_spec.backend import LlamaContext
from gguf_spec.block_format import BlockFormat
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.dflash import block_params, make_block_drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.eagle3 import Eagle3
from gguf_spec.drafters.mtp import Mtp


def head_params(
    kind: str,
    target: LlamaContext,
    form: BlockFormat | None = None,
    *,
    n_max: int = 1,
    p_min: float = 0.0,
) -> dict[str, Any]:
    """What the context of a draft head of type ``kind`` needs besides sizes: fields of
    ``ContextParams``. Empty for models of their own. ``form`` is of DFlash and DSpark files, whose
    contexts have room for drafts of ``n_max`` tokens."""
    if form is not None:
        return block_params(target, form, n_max, p_min)
    if kind == "draft-mtp":
        return {"mtp": True, "own_states": True, "other": target}
    if kind == "draft-eagle3":
        return {"own_states": True, "other": target}
    return {}


def make_neural(
    kind: str,
    context: LlamaContext,
    layers: Sequence[int],
    form: BlockFormat | None = None,
    *,
    p_min: float,
) -> Drafter:
    """The drafter of type ``kind`` on its ``context``; ``layers`` are the target's states that it
    reads, ``form`` is of DFlash and DSpark files."""
    if form is not None:
        return make_block_drafter(context, form, layers, p_min=p_min)
    if kind == "draft-mtp":
        return Mtp(context, p_min=p_min)
    if kind == "draft-eagle3":
        return Eagle3(context, layers, p_min=p_min)
    return DraftModel(context, p_min=p_min)
