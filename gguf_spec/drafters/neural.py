"""Drafters that are models or parts of models, by spec type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gguf_spec.backend import LlamaContext, LlamaModel
from gguf_spec.block_format import BlockFormat
from gguf_spec.drafters.assistant import Assistant
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.dflash import block_params, make_block_drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.eagle3 import Eagle3
from gguf_spec.drafters.mtp import Mtp
from gguf_spec.drafters.mtp_chain import MtpChain
from gguf_spec.drafters.translated import TranslatedDraft
from gguf_spec.hidden_states import ASSISTANT_ARCH
from gguf_spec.translation import make_translation
from gguf_spec.vocabulary import Vocabulary


def head_params(
    kind: str,
    model: LlamaModel,
    target: LlamaContext,
    form: BlockFormat | None = None,
    *,
    n_max: int = 1,
    p_min: float = 0.0,
) -> dict[str, Any]:
    """What the context of a draft head of type ``kind`` in ``model`` needs: fields of
    ``ContextParams`` that are not a matter of taste. Empty for models of their own. ``form`` is of
    DFlash and DSpark files, whose contexts have room for drafts of ``n_max`` tokens."""
    if form is not None:
        return block_params(target, form, n_max, p_min)
    if kind == "draft-mtp":
        params = {"mtp": True, "own_states": True, "other": target}
        if model.arch == ASSISTANT_ARCH:
            # Its cache is the target's, of which it has to think the same.
            names = ("n_ctx", "n_seq_max", "type_k", "type_v", "flash_attn", "swa_full")
            return params | {name: getattr(target.params, name) for name in names}
        # A chain needs every position to stay in its cell.
        return params | ({"swa_full": True} if model.n_layer_nextn > 1 else {})
    if kind == "draft-eagle3":
        return {"own_states": True, "other": target}
    return {}


def make_neural(
    kind: str,
    context: LlamaContext,
    layers: Sequence[int],
    form: BlockFormat | None = None,
    *,
    n_max: int = 1,
    p_min: float = 0.0,
    translate_for: Vocabulary | None = None,
) -> Drafter:
    """The drafter of type ``kind`` on its ``context``, for drafts of up to ``n_max`` tokens;
    ``layers`` are the target's states that it reads, ``form`` is of DFlash and DSpark files.
    ``translate_for`` is the target's vocabulary, if that of a draft model is another one."""
    if form is not None:
        return make_block_drafter(context, form, layers, p_min=p_min)
    if kind == "draft-mtp":
        model = context.model
        if model.arch == ASSISTANT_ARCH:
            return Assistant(context, p_min=p_min)
        if model.n_layer_nextn > 1:
            return MtpChain(context, max(min(model.n_layer_nextn, n_max), 1), p_min=p_min)
        return Mtp(context, p_min=p_min)
    if kind == "draft-eagle3":
        return Eagle3(context, layers, p_min=p_min)
    if translate_for is not None:
        translation = make_translation(translate_for, context.model)
        return TranslatedDraft(context, translation, p_min=p_min)
    return DraftModel(context, p_min=p_min)
