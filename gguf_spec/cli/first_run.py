"""``gguf-spec chat`` without a model: what lies on this machine is offered, or the demo."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from gguf_spec.cli.output import Output, is_terminal, printable

_MOST_SHOWN = 9
_MOST_LOOKED_AT = 20000  # folders and files; a home folder may hold millions
_DEPTH = 5
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


def offered(out: Output) -> str | None:
    """The model that the user chooses among local files; None: the demo, also when nobody can be
    asked or there is nothing to choose."""
    if out.mode != "human" or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return None
    models = local_models()
    if not models:
        out.note("no model was named, and none was found here: this is the demo model")
        out.note("(gguf-spec chat path/to/model.gguf, or hf:owner/repo:QUANT, takes another)")
        return None
    from gguf_spec.cli.summary import bytes_text

    out.say("No model was named. On this machine:")
    for number, path in enumerate(models, 1):
        size = bytes_text(path.stat().st_size)
        out.say(f"  {number}  {printable(path.name)}  ({size}, {printable(_place(path))})")
    out.say("  Enter  the demo model, SmolLM2-135M")
    while True:
        print("Which? ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip()
        if answer in ("", "demo"):
            return None
        if answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(models):
            return str(models[int(answer) - 1])
        out.say(f"a number from 1 to {len(models)}, or Enter")


def local_models() -> list[Path]:
    """GGUF models that can be chatted with, the newest first; no drafters, projectors, or later
    parts of a split file."""
    from gguf_spec.siblings import hinted_type

    found: dict[Path, float] = {}
    for path in _files():
        name = path.name.lower()
        if "mmproj" in name or hinted_type(path.name) or _LATER_PART.search(name):
            continue
        try:
            found.setdefault(path.resolve(), path.stat().st_mtime)
        except OSError:
            continue
    return sorted(found, key=lambda path: -found[path])[:_MOST_SHOWN]


def _files() -> Iterator[Path]:
    from gguf_spec.folders import home_cache_dir

    home = Path.home()
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or home / ".cache" / "huggingface", "hub"
    )
    yield from _below(Path.cwd(), 1)
    for folder in (
        Path("models").absolute(), home / "models", home_cache_dir(), Path(hub),
        home / ".lmstudio" / "models", home / ".cache" / "llama.cpp",
    ):  # fmt: skip
        yield from _below(folder, _DEPTH)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """GGUF files in ``folder`` and the folders below, ``depth`` levels in all."""
    looked_at = 0
    folders = [(str(folder), depth)]
    while folders:
        name, left = folders.pop()
        try:
            entries = list(os.scandir(name))
        except OSError:
            continue
        looked_at += len(entries) + 1
        for entry in entries:
            try:
                if entry.name.lower().endswith(".gguf") and entry.is_file():
                    yield Path(entry.path)
                elif left > 1 and entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, left - 1))
            except OSError:
                continue
        if looked_at > _MOST_LOOKED_AT:
            return


def _place(path: Path) -> str:
    """The folder of a file, as short as it can be told."""
    for base, sign in ((Path.cwd(), "."), (Path.home(), "~")):
        if path.is_relative_to(base):
            return os.path.join(sign, path.parent.relative_to(base)).rstrip("/.") or sign
    return str(path.parent)
