"""A plan for people: a bar for each memory, the ladder, drafts and reasons, in 80 columns."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gguf_spec.cli.output import is_terminal, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_WIDTH = 80
#: Parts of a bar: (name, what belongs to it, sign without colours, colour).
_PARTS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("weights", ("weights",), "W", "blue"),
    ("KV", ("kv_cache",), "K", "green"),
    ("state", ("recurrent_state", "snapshots"), "S", "cyan"),
    ("compute", ("compute", "output"), "C", "yellow"),
    ("other", ("overhead",), "O", "magenta"),
    ("draft", (), "D", "red"),
)
_FREE = "·"


def plan_text(record: Mapping[str, Any], *, coloured: bool | None = None) -> str:
    """What ``plan`` prints for the record of a plan."""
    from rich.console import Console

    if coloured is None:
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        coloured = is_terminal(sys.stdout) and not dumb
    terminal = shutil.get_terminal_size((_WIDTH, 24)).columns if coloured else _WIDTH
    console = Console(
        file=io.StringIO(),
        width=min(max(terminal, 40), _WIDTH),
        force_terminal=coloured,
        color_system="standard" if coloured else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(_title(record))
    console.print()
    _print_bars(console, record, coloured)
    console.print()
    _print_ladder(console, record)
    _print_speed(console, record)
    for reason in record["reasons"]:
        _print_point(console, reason)
    stream = console.file
    assert isinstance(stream, io.StringIO)
    lines = stream.getvalue().rstrip("\n").split("\n")
    return "\n".join(line.rstrip() for line in lines)


def _title(record: Mapping[str, Any]) -> Text:
    from rich.text import Text

    target = record["target"]
    placement = target["placement"]
    words = [f"{target['arch']} {target['quant']}", f"n_ctx {target['n_ctx']}"]
    if record["devices"]:
        words.append(f"{placement['n_gpu_layers']} layers on GPU")
    if placement["n_cpu_moe"]:
        words.append(f"experts of {placement['n_cpu_moe']} on CPU")
    if placement["tensor_split"]:
        words.append("split " + ",".join(f"{share:g}" for share in placement["tensor_split"]))
    draft = record["draft"]
    words.append(f"draft: {draft['method']}" if draft else "no draft")
    verdict = ("fits", "bold green") if record["fits"] else ("does NOT fit", "bold red")
    return Text.assemble(
        (printable(str(target["ref"])), "bold"), ": ", verdict, "\n", " · ".join(words)
    )


def _print_bars(console: Console, record: Mapping[str, Any], coloured: bool) -> None:
    from rich.text import Text

    memories = list(record["devices"])
    if record["host"]["total"] or not memories:
        memories.append({**record["host"], "name": "host"})
    name_width = max(len(memory["name"]) for memory in memories)
    room = console.width - name_width - 2 - 22
    shown: set[str] = set()
    for memory in memories:
        sums = _sums(memory["items"])
        whole = max(memory["total"], memory["used"], 1)
        line = Text(f"{memory['name']:<{name_width}} ")
        drawn = 0
        for (name, _, sign, colour), n_bytes in zip(_PARTS, sums, strict=True):
            cells = _cells(sum(sums[: _index(name) + 1]), whole, room) - drawn
            if n_bytes and drawn + cells <= room:
                shown.add(name)
                line.append(("█" if coloured else sign) * cells, colour if coloured else "")
                drawn += cells
        line.append(_FREE * (room - drawn), "dim" if coloured else "")
        line.append(f" {_gib(memory['used'])} of {_gib(memory['budget'])} GiB")
        console.print(line, no_wrap=True, crop=True)
    _print_key(console, memories, shown, name_width + 1, coloured)


def _print_key(
    console: Console,
    memories: Sequence[Mapping[str, Any]],
    shown: Collection[str],
    margin: int,
    coloured: bool,
) -> None:
    """What the parts of the bars are, with their sums; a part is never broken."""
    from rich.text import Text

    line = Text(" " * margin)
    for name, _, sign, colour in (*_PARTS, ("free", (), _FREE, "dim")):
        if name not in shown and name != "free":
            continue
        size = "" if name == "free" else f" {_gib(_total(memories, name))}"
        part = Text()
        part.append(_FREE if name == "free" else "█" if coloured else sign, colour)
        part.append(f" {name}{size}  ")
        if len(line) + len(part) > console.width:
            console.print(line)
            line = Text(" " * margin)
        line.append_text(part)
    console.print(line)


def _index(name: str) -> int:
    return next(i for i, part in enumerate(_PARTS) if part[0] == name)


def _cells(n_bytes: int, whole: int, room: int) -> int:
    return round(room * n_bytes / whole)


def _sums(items: Sequence[Mapping[str, Any]]) -> list[int]:
    """Bytes of each part."""
    sums = [0] * len(_PARTS)
    for item in items:
        kinds = (i for i, part in enumerate(_PARTS) if item["kind"] in part[1])
        index = len(_PARTS) - 1 if item["owner"] == "draft" else next(kinds, len(_PARTS) - 2)
        sums[index] += item["bytes"]
    return sums


def _total(memories: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(_sums(memory["items"])[_index(name)] for memory in memories)


def _print_ladder(console: Console, record: Mapping[str, Any]) -> None:
    from rich.table import Table

    rows = record["ladder"]
    drafts = any(row["with_draft"] for row in rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("quant")
    for name in ("file GiB", "needs GiB", "missing", *(("with draft", "missing") * drafts)):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [
            "*" if row["chosen"] else "",
            printable(row["quant"]),
            _gib(row["file_bytes"]),
            ("" if row["exact"] else "~") + _gib(row["total_bytes"]),
            _missing(row),
        ]
        if drafts:
            cells += [_gib(row["with_draft"]["total_bytes"]), _missing(row["with_draft"])]
        table.add_row(*cells)
    console.print(table)
    console.print()
    if not all(row["exact"] for row in rows):
        _print_point(console, "~: estimated by the size of the file; its header was not needed")


def _missing(row: Mapping[str, Any]) -> str:
    return "fits" if row["fits"] else f"{_gib(row['missing_bytes'])} GiB"


def _print_speed(console: Console, record: Mapping[str, Any]) -> None:
    parts = []
    for key, name in (("speed", "plain"), ("speed_with_draft", "with the draft")):
        speed = record[key]
        if speed is not None and speed["tokens_per_second"] is not None:
            parts.append(f"{name} {speed['tokens_per_second']:.1f} tokens/s")
    if parts:
        _print_point(console, f"estimated speed: {', '.join(parts)}")


def _print_point(console: Console, text: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    lines = Text(printable(text)).wrap(console, console.width - 2)
    for i, line in enumerate(lines):
        console.print(Padding(line, (0, 0, 0, 2)) if i else Text("- ").append_text(line))


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f}"
