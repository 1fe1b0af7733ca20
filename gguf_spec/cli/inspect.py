"""``gguf-spec inspect``: what a GGUF file says about itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gguf_spec.cli.options import DebugOpt, JsonOpt, OfflineOpt, examples
from gguf_spec.cli.output import Output, printable

EPILOG = examples(
    "gguf-spec inspect model.gguf",
    "gguf-spec inspect hf:owner/repo:Q4_K_M --json",
    "gguf-spec inspect model.gguf small.gguf      can small.gguf draft for model.gguf?",
)

_BAR = 78  # columns
_SIGNS = {
    "embeddings": "E", "attention": "A", "recurrent": "R", "feed_forward": "F", "experts": "X",
    "output": "O", "draft": "D", "other": "·",
}  # fmt: skip

RefArg = Annotated[str, typer.Argument(metavar="REF", help="A model.", show_default=False)]
DraftArg = Annotated[
    str | None,
    typer.Argument(metavar="REF", help="A draft for it to be paired with.", show_default=False),
]


def inspect(
    ref: RefArg,
    draft: DraftArg = None,
    offline: OfflineOpt = False,
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show the facts in a model's header; with a second model, whether it can draft for the first.

    Weights are neither read nor downloaded: of a model that is not here the header is asked for.
    The second model's facts are under "draft" in the JSON document.
    """
    from gguf_spec.hub.lookup import header_of
    from gguf_spec.hub.web import Web, offline_by
    from gguf_spec.inspection import inspect_model, inspect_models

    out = Output.of(as_json=as_json, debug=debug)
    away = offline or offline_by(os.environ)
    with out.wait("looking at the model") as wait, Web(offline=away, tell=out.remark) as web:
        infos = [
            header_of(web, one, progress=wait.stage) for one in (ref, draft) if one is not None
        ]
        record = inspect_model(infos[0]) if draft is None else inspect_models(*infos)
    out.record(record, _told(record))


def _told(record: Mapping[str, Any]) -> str:
    from gguf_spec.cli.summary import table

    text = table(_rows(record)) + _bar(record["tensor_bytes"])
    if "pair" in record:
        pair = record["pair"]
        answer = f"yes, as {pair['type']}" if pair["usable"] else "no"
        text += f"\n\ndraft:\n{table(_rows(record['draft']))}"
        text += _bar(record["draft"]["tensor_bytes"])
        text += f"\n\ncan it draft? {answer}: {pair['reason']}"
        if pair["hint"]:
            text += f"\nhint: {pair['hint']}"
    else:
        text += _drafting(record)
    return printable(text)


def _bar(parts: Mapping[str, int]) -> str:
    """Where the bytes of the tensors are: a line of letters, and what they stand for."""
    from gguf_spec.cli.summary import bytes_text

    whole = sum(parts.values())
    if not whole:
        return ""
    bar, key, so_far = "", [], 0
    for part, n_bytes in parts.items():
        so_far += n_bytes
        bar += _SIGNS[part] * (round(_BAR * so_far / whole) - len(bar))
        key.append(f"{_SIGNS[part]} {part.replace('_', '-')} {bytes_text(n_bytes)}")
    lines = [""]
    for one in key:  # a part is never broken
        if lines[-1] and len(lines[-1]) + 2 + len(one) > _BAR:
            lines.append("")
        lines[-1] += f"  {one}" if lines[-1] else one
    return "\n\n" + "\n".join([bar, *lines])


def _drafting(record: Mapping[str, Any]) -> str:
    """What can draft for a target, or what a head drafts for; and the files beside it."""
    from gguf_spec.cli.summary import table

    words = {"alone": "yes", "file": "with a file", "no": "no"}
    rows: dict[str, object] = {
        kind: f"{words[how]}: {reason}" if how != "file" else reason
        for kind, (how, reason) in record["draft_types"].items()
    }
    text = f"\n\ndrafting:\n{table(rows)}" if rows else ""
    folder = os.path.realpath(os.path.dirname(record["parts"][0]))
    files: dict[str, object] = {}
    for one in record["sidecars"]:
        answer = f"yes, as {one['type']}" if one["usable"] else "no"
        files[os.path.relpath(one["path"], folder)] = f"{answer}: {one['reason']}"
    if files or record["sidecar_problems"]:
        text += f"\n\nbeside it:\n{table(files)}" + "".join(
            f"\n{problem}" for problem in record["sidecar_problems"]
        )
    return text


def _rows(record: Mapping[str, Any]) -> dict[str, object]:
    from gguf_spec.cli.summary import bytes_text

    nextn, tokenizer = record["n_layer_nextn"], record["tokenizer"]
    heads = record["n_head"]
    if heads is not None and record["n_head_kv"] is not None:
        heads = f"{heads} ({record['n_head_kv']} for keys and values)"
    parts = record["parts"]
    return {
        "file": parts[0] if len(parts) == 1 else f"{parts[0]} and {len(parts) - 1} more parts",
        "name": record["name"],
        "architecture": record["arch"],
        "role": record["role"],
        "quantization": f"{record['quant']} ({record['bits_per_weight']:.2f} bits per weight)",
        "parameters": f"{record['n_params']:,}",
        "layers": f"{record['n_layer']} + {nextn} for MTP" if nextn else record["n_layer"],
        "embedding": record["n_embd"],
        "heads": heads,
        "trained context": record["n_ctx_train"],
        "vocabulary": record["vocab_size"],
        "tokenizer": " ".join(str(v) for v in tokenizer.values() if v is not None),
        "chat template": "yes" if record["chat_template"] else "no",
        "size": f"{bytes_text(record['file_bytes'])}, header {bytes_text(record['header_bytes'])}",
        "size check": record["size_check"],
        "drafts for": record["made_for"] and record["made_for"]["target"],
        "spec types": ", ".join(record["spec_types"]),
    }
