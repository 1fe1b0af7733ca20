"""``gguf-spec doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from gguf_spec.cli.options import DebugOpt, JsonOpt, examples
from gguf_spec.cli.output import Output, printable

EPILOG = examples("gguf-spec doctor", "gguf-spec doctor --json > report.json")


def doctor(as_json: JsonOpt = False, debug: DebugOpt = False) -> None:
    """Show versions, devices, memory and folders, what is missing, and the command that fixes it.

    Exit code 1 if models cannot be run at all.
    """
    from gguf_spec.cli.examine import examine

    out = Output.of(as_json=as_json, debug=debug)
    with out.wait("looking around"):
        record = examine(debug=debug)
    out.record(record, _told(record))
    if not record["usable"]:
        raise typer.Exit(1)


def _told(record: Mapping[str, Any]) -> str:
    from gguf_spec.cli.summary import bytes_text, table

    memory, demo = record["memory"], record["demo"]
    rows: dict[str, object] = dict(record["versions"])
    rows["platform"] = record["platform"]
    rows["CPU threads"] = record["n_threads"]
    rows["RAM"] = f"{bytes_text(memory['total'])}, {bytes_text(memory['available'])} available"
    if memory["limited_by"]:
        rows["RAM"] = f"{rows['RAM']} (limited by {memory['limited_by']})"
    rows["backends"] = ", ".join(record["backends"]) or None
    for device in record["devices"]:
        rows[f"device {device['name']}"] = _device(device)
    for gpu in record["unusable_gpus"]:
        about = f"{gpu['name']}, driver {gpu['driver'] or 'none'}"
        if gpu["total"]:
            about += f", {bytes_text(gpu['total'])}"
        rows[f"not used {gpu['bus']}"] = about
    for number, note in enumerate(record["notes"], 1):
        rows[f"note {number}"] = note
    if record["memory_account"] is not None:
        rows["memory account"] = _account(record["memory_account"])
    rows["system info"] = record["system_info"]
    for symbol, feature in record["missing_features"].items():
        rows[f"lacks {symbol}"] = feature
    rows["config folder"] = record["paths"]["config"]
    rows["cache folder"] = record["paths"]["cache"]
    rows["profile folders"] = ", ".join(record["paths"]["profiles"])
    rows["demo model"] = demo["path"] or "not here yet: fetched once when it is first used"
    rows["tested"] = ", ".join(record["tested"])
    rows["not tested"] = ", ".join(record["not_tested"])
    lines = [table(rows)]
    for problem in record["problems"]:
        lines.append(f"\nproblem: {problem['message']}\n    fix: {problem['fix']}")
    return printable("\n".join(lines if record["problems"] else [*lines, "\nno problems found"]))


def _device(device: Mapping[str, Any]) -> str:
    from gguf_spec.cli.summary import bytes_text

    about = f"{device['description']} ({device['kind']})"
    about += f", {bytes_text(device['free'])} of {bytes_text(device['total'])} free"
    if device["kind"] == "igpu" or (device["unified"] and device["kind"] != "cpu"):
        about += ", shared with the CPU"
    if device["bandwidth"]:
        about += f", {device['bandwidth'] / 1e9:.0f} GB/s"
    return about


def _account(account: Mapping[str, Any]) -> str:
    """How libllama's own counts of bytes are read."""
    if not account["available"]:
        return "from llama.cpp's log, rounded to 0.01 MiB"
    return f"exact, by walking {account['layout']}{'' if account['tested'] else ' (not tested)'}"
