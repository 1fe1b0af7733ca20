"""``gguf-spec models``: the GGUF files on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gguf_spec.cli.options import DebugOpt, JsonOpt, examples
from gguf_spec.cli.output import Output, printable

EPILOG = examples(
    "gguf-spec models",
    "gguf-spec models ~/models /mnt/models            these folders, too",
    "gguf-spec models --json",
)

FoldersArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FOLDER]...", help="Folders besides the known ones."),
]


def models(folders: FoldersArg = None, as_json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """List the models on this machine: size, quantization, role, and what each can draft for.

    Looked at are the folders of Hugging Face, LM Studio, Ollama, llama.cpp and gguf-spec.
    """
    from gguf_spec.errors import RefError
    from gguf_spec.hub.inventory import take_inventory

    places = tuple(Path(os.path.expanduser(folder)) for folder in folders or ())
    for folder in places:
        if not folder.is_dir():
            raise RefError(f"{folder} is no folder", hint="name a folder with .gguf files in it")
    out = Output.of(as_json=as_json, debug=debug)
    with out.wait("looking at the models") as wait:
        found = take_inventory(
            places,
            lambda path, number: wait.update(number, None, f"looking at {path.name}"),
        )
    out.record({"models": found}, _told(found))


def _told(models: Sequence[Mapping[str, Any]]) -> str:
    if not models:
        return "no models found; gguf-spec pull hf:owner/repo:QUANT gets one"
    from gguf_spec.cli.summary import bytes_text

    head = ("REF", "SIZE", "QUANT", "ROLE", "ARCH", "DRAFTS FOR")
    rows = [
        (
            one["ref"],
            bytes_text(one["bytes"]),
            one["quant"] or "-",
            one["role"] or f"unusable: {one['problem']}",
            one["arch"] or "-",
            _some(one["drafts_for"]),
        )
        for one in models
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    lines = [
        "  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[-1]])
        for row in (head, *rows)
    ]
    return printable("\n".join(line.rstrip() for line in lines))


def _some(refs: Sequence[str]) -> str:
    more = f" and {len(refs) - 2} more" if len(refs) > 2 else ""
    return ", ".join(refs[:2]) + more
