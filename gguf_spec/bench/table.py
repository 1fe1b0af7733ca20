"""A record as tables: for a terminal, or as Markdown."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Rows = list[list[str]]
_NONE = "-"


def told(record: Mapping[str, Any], *, markdown: bool = False) -> str:
    """The whole record for people."""
    blocks = [_head(record, markdown)]
    for baseline in dict.fromkeys(one["baseline"] for one in record["comparisons"]):
        for setup in dict.fromkeys(
            one["setup"] for one in record["comparisons"] if one["baseline"] == baseline
        ):
            blocks.append(_side(record, setup, baseline, markdown))
    blocks += _theory(record, markdown)
    blocks += _notes(record)
    return "\n\n".join(blocks) + "\n"


def compared(records: Mapping[str, Mapping[str, Any]], *, markdown: bool = False) -> str:
    """Records side by side, by name: what each says of the same set-up and workload.

    A ratio is a pair of its own machine and minute, so ratios can be compared where speeds cannot.
    """
    names = list(records)
    keys: dict[tuple[str, str, str], None] = {}
    found: dict[tuple[str, str, str, str], Mapping[str, Any]] = {}
    for name, record in records.items():
        for one in [*record["comparisons"], *record["overall"]]:
            key = one["setup"], one["baseline"], one.get("workload", "all")
            keys[key] = None
            found[name, one["setup"], one["baseline"], key[2]] = one
    rows: Rows = [["set-up", "beside", "workload", *names, "differ"]]
    for key in keys:
        there = [found.get((name, key[0], key[1], key[2])) for name in names]
        rows.append([*key, *(_interval(one and one["decode"]) for one in there), _differ(there)])
    notes = [
        f"{what} differs: " + ", ".join(dict.fromkeys(values))
        for what, values in (
            ("the model", [_model_digest(record)[:12] for record in records.values()]),
            ("the machine", [str(record["machine"].get("cpu")) for record in records.values()]),
            ("libllama", [str(r["versions"].get("libllama")) for r in records.values()]),
        )
        if len(set(values)) > 1
    ]
    notes += _changed_workloads(records)
    text = "decoding speed, times that of what it is beside (interval)"
    return "\n\n".join([text, render(rows, markdown=markdown), *notes]) + "\n"


def render(rows: Rows, *, markdown: bool = False) -> str:
    """Columns: the first is on the left, as is the last, the others are on the right."""
    if markdown:
        head, *rest = rows
        lines = [head, ["---"] * len(head), *rest]
        return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in r) + " |" for r in lines)
    widths = [max(_width(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines_out = []
    for row in rows:
        cells = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            gap = " " * (width - _width(cell))
            cells.append(cell + gap if i in (0, len(row) - 1) else gap + cell)
        lines_out.append("  ".join(cells).rstrip())
    return "\n".join(lines_out)


def _head(record: Mapping[str, Any], markdown: bool) -> str:
    model, machine = record["model"], record["machine"]
    settings, versions = record["settings"], record["versions"]
    title = f"{model['files'][0]['file']}: {model['arch']} {model['quant']}"
    drafts = ", ".join(f"{d['type']} {d['files'][0]['file']}" for d in model["drafts"])
    lines = [
        f"## {title}" if markdown else title,
        f"sha256 {_model_digest(record)[:16]}… · {machine['cpu']}, {machine['cores']} cores, "
        f"{settings['n_threads']} threads · n_ctx {settings['n_ctx']}, cache {settings['type_k']}",
        f"{record['date']} · "
        + ", ".join(f"{name} {versions[name]}" for name in ("gguf-spec", "libllama"))
        + f" · {record['command']}",
    ]
    if drafts:
        lines.insert(1, f"drafts: {drafts}")
    if not record["complete"]:
        lines.append("interrupted: these are the runs that were finished")
    return ("\n\n" if markdown else "\n").join(lines)


def _side(record: Mapping[str, Any], setup: str, baseline: str, markdown: bool) -> str:
    """One set-up beside one other thing, by workload."""
    rows: Rows = [
        ["workload", "beside", "speed", "decoding", "end to end", "accepted", "pairs", ""]
    ]
    mine = [
        one
        for one in record["comparisons"]
        if one["setup"] == setup and one["baseline"] == baseline
    ]
    for one in mine:
        pairs = one["pairs"]
        rows.append(
            [
                one["workload"],
                _speed([pair["baseline"]["tokens_per_second"] for pair in pairs]),
                _speed([pair["setup"]["tokens_per_second"] for pair in pairs]),
                _interval(one["decode"]),
                _interval(one["total"]),
                _accepted(record, setup, one["workload"]),
                str(len(pairs)),
                _remark(one),
            ]
        )
    for one in record["overall"]:
        if one["setup"] == setup and one["baseline"] == baseline:
            decode, total = _interval(one["decode"]), _interval(one["total"])
            rows.append(["all (geometric mean)", "", "", decode, total, "", "", ""])
    text = f"{setup} beside {baseline}: tokens/s, and times as fast (interval of the median)"
    return f"{'### ' if markdown else ''}{text}\n\n{render(rows, markdown=markdown)}"


def _theory(record: Mapping[str, Any], markdown: bool) -> list[str]:
    blocks = []
    for one in record["theory"]:
        if one["workload"] is not None:
            continue
        tokens = one["tokens_per_step"]
        rows: Rows = [["speed-up", "", "with"]]
        rows += [[f"{step['value']:.2f}", "x", step["with"]] for step in one["speedup"]]
        title = f"{one['setup']}: theory beside practice, all workloads"
        text = (
            f"a = {one['a']:.3f} (a drafted token stands), g = {one['g']:.1f} (tokens in a draft), "
            f"c = {one['c']:.3f} (drafting a token, in plain steps)\n"
            f"tokens per drafted step: {tokens['expected']:.2f} expected, "
            f"{tokens['measured']:.2f} measured\n"
            f"plain step {one['plain_step_ms']:.2f} ms; a drafted step: draft "
            f"{one['draft_ms']:.2f} ms, verify {one['verify_ms']:.2f} ms, engine "
            f"{one['engine_ms']:.2f} ms\n"
            f"accepted by position: {_positions(one)}"
        )
        if markdown:
            title, text = f"### {title}", text.replace("\n", "  \n")
        blocks.append(f"{title}\n\n{text}\n\n{render(rows, markdown=markdown)}")
    return blocks


def _notes(record: Mapping[str, Any]) -> list[str]:
    notes = []
    levels = [one["decode"]["confidence"] for one in record["comparisons"] if one["decode"]]
    if levels and min(levels) == 0.0:
        notes.append("One pair alone says nothing about noise.")
    elif levels:
        notes.append(
            "An interval holds the true median with a probability of at least "
            f"{100 * min(levels):.1f} %, whatever the distribution of times."
        )
    if min(levels, default=1.0) < 0.95:
        notes[-1] += " Six pairs are the fewest for 95 %."
    peaks = record.get("peak_memory", {}).get("resident_bytes", {})
    if peaks:
        shown = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in peaks.items())
        notes.append(f"peak resident memory, drafters loaded: {shown}")
    notes += [f"skipped: {one['workload']}: {one['reason']}" for one in record.get("skipped", [])]
    return notes


def _remark(one: Mapping[str, Any]) -> str:
    if one["refused"] is not None:
        return f"no claim: {one['refused']}"
    if one["equal"]:
        return ""
    first = min(p["compared_tokens"] for p in one["pairs"] if p["first_divergence"])
    found = one["difference"] or {}
    why = f"near-tie, gap {found['gap']:.2g}" if found.get("gap") is not None else "texts differ"
    return f"first {first} of {one['pairs'][0]['tokens']} tokens ({why})"


def _accepted(record: Mapping[str, Any], setup: str, workload: str) -> str:
    runs = [r for r in record["runs"] if r["setup"] == setup and r["workload"] == workload]
    drafted = sum(run["num_draft_tokens"] for run in runs)
    accepted = sum(run["num_accepted_tokens"] for run in runs)
    return f"{accepted / drafted:.0%} of {drafted / len(runs):.0f}" if drafted else _NONE


def _positions(one: Mapping[str, Any]) -> str:
    rates = [
        f"{stood / offered:.2f}"
        for stood, offered in zip(
            [*one["accepted_per_position"], *[0] * len(one["offered_per_position"])],
            one["offered_per_position"],
            strict=False,
        )
    ]
    return " ".join(rates[:12]) + (" …" if len(rates) > 12 else "")


def _interval(found: Mapping[str, Any] | None) -> str:
    if not found:
        return _NONE
    if found["n"] == 1:
        return f"{found['median']:.2f}"
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _differ(there: Sequence[Mapping[str, Any] | None]) -> str:
    """Whether the intervals of first and last leave each other out."""
    first, last = (one and one["decode"] for one in (there[0], there[-1]))
    if not first or not last:
        return ""
    if last["low"] > first["high"]:
        return "faster"
    return "slower" if last["high"] < first["low"] else "no"


def _speed(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.1f}" if known else _NONE


def _model_digest(record: Mapping[str, Any]) -> str:
    return str(record["model"]["files"][0]["sha256"])


def _changed_workloads(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    digests: dict[str, set[str]] = {}
    for record in records.values():
        for workload in record["workloads"]:
            digests.setdefault(workload["name"], set()).add(workload["sha256"])
    changed = [name for name, found in digests.items() if len(found) > 1]
    return [f"not the same texts under one name: {', '.join(changed)}"] if changed else []


def _width(text: str) -> int:
    """Columns on a terminal."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in text)
