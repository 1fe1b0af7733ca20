"""The records that ``gguf-spec inspect`` prints: header facts as JSON-ready dictionaries."""

from __future__ import annotations

import os
import re
from typing import Any

from gguf_spec.header import ModelInfo, read_model
from gguf_spec.pairing import ROLE_TYPES, check_pair, offers
from gguf_spec.pairing_hints import made_for
from gguf_spec.siblings import search

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


def describe(info: ModelInfo) -> dict[str, Any]:
    """The record of one model. Sizes are bytes; what the file does not say is None."""
    return {
        "arch": info.arch,
        "name": info.name,
        "role": info.role,
        "quant": info.quant,
        "bits_per_weight": round(info.bits_per_weight, 4),
        "n_params": info.n_params,
        "n_layer": info.n_layer,
        "n_layer_nextn": info.n_layer_nextn,
        "n_embd": info.n_embd,
        "n_head": info.n_head,
        "n_head_kv": info.n_head_kv,
        "n_ctx_train": info.n_ctx_train,
        "vocab_size": info.vocab_size,
        "tokenizer": {
            "model": info.tokenizer.model,
            "pre": info.tokenizer.pre,
            "fingerprint": info.tokenizer.fingerprint,
        },
        "chat_template": bool(info.chat_template),
        "header_bytes": info.header_bytes,
        "file_bytes": info.file_bytes,
        "size_check": info.size_check,
        "tensor_bytes": tensor_bytes(info),
        "parts": list(info.files),
        "spec_types": list(info.spec_types),
        "draft_types": {offer.type: [offer.how, offer.reason] for offer in offers(info)},
        "made_for": _made_for(info),
    }


def tensor_bytes(info: ModelInfo) -> dict[str, int]:
    """Bytes of the tensors by what they do, parts that are there only. ``draft`` are the layers
    behind the trunk (MTP), ``recurrent`` are state space and linear attention layers."""
    sums = dict.fromkeys(
        ("embeddings", "attention", "recurrent", "feed_forward", "experts", "output", "draft"), 0
    )
    sums["other"] = 0
    for tensor in info.tensors:
        sums[_part(tensor.name, info.n_layer)] += tensor.n_bytes
    return {part: n_bytes for part, n_bytes in sums.items() if n_bytes}


def _part(name: str, n_layer: int | None) -> str:
    """The part of a model that a tensor belongs to, by its name in llama.cpp (llama-arch.cpp)."""
    block = _BLOCK.match(name)
    if block is None:
        stem = name.partition(".")[0]
        whole = {"output": "output", "cls": "output"}
        return "embeddings" if stem.endswith("_embd") else whole.get(stem, "other")
    if n_layer is not None and int(block[1]) >= n_layer:
        return "draft"
    stem = block[2]
    if "norm" in stem:
        return "other"
    if stem.startswith("ffn_"):
        return "experts" if re.search(r"_(ch)?exps\b", stem) else "feed_forward"
    if stem.startswith("attn_"):
        return "attention"
    return "recurrent" if stem.startswith(("ssm_", "time_mix_", "shortconv")) else "other"


def _made_for(info: ModelInfo) -> dict[str, str] | None:
    """What a draft head drafts for: its spec type, and what its target has to have."""
    kind = ROLE_TYPES.get(info.role)
    if kind is None or info.role == "target":
        return None
    return {"type": kind, "target": made_for(info, kind)}


def inspect_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The record of a file, or of the whole split set it is part of; raises HeaderError."""
    return inspect_model(read_model(path))


def inspect_model(info: ModelInfo) -> dict[str, Any]:
    """The record of a header, and of what lies beside the file if it is here."""
    return {**describe(info), **_sidecars(info)}


def _sidecars(info: ModelInfo) -> dict[str, Any]:
    """The files beside a target that are named like its drafters, each with its spec type, whether
    it can be used, and why (not); and why some may be missing."""
    if info.role != "target" or not os.path.exists(info.files[0]):
        return {"sidecars": [], "sidecar_problems": []}
    found = search(info)
    return {
        "sidecars": [
            {
                "path": str(sibling.path),
                "type": sibling.type,
                "usable": sibling.usable,
                "reason": sibling.reason,
                "auto": sibling.usable and sibling.belongs,
            }
            for sibling in found.look()
        ],
        "sidecar_problems": list(found.problems),
    }


def inspect_pair(target: str | os.PathLike[str], draft: str | os.PathLike[str]) -> dict[str, Any]:
    """``inspect_models`` of two files; raises HeaderError."""
    return inspect_models(read_model(target), read_model(draft))


def inspect_models(target: ModelInfo, draft: ModelInfo) -> dict[str, Any]:
    """The record of ``target`` with ``draft`` (its record) and ``pair`` (can it draft, and why)."""
    pair = check_pair(target, draft)
    return {
        **describe(target),
        "draft": describe(draft),
        "pair": {
            "usable": pair.usable,
            "type": pair.type,
            "reason": pair.reason,
            "hint": pair.hint or None,
        },
    }
