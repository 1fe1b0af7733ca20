"""The tables of bench_sweep.py and bench_pool.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gguf_spec.bench.table import Rows, render

#: What auto is to reach, times the best setting that was chosen on the other half.
LIMITS = {"auto_beside_fixed": 0.95, "auto_beside_peer": 0.97}


def markdown(record: Mapping[str, Any]) -> str:
    """The tables of the record."""
    parts = [
        head(record, "auto beside fixed settings"),
        "Times as fast, decoding, medians with intervals. The best setting is chosen on one half "
        "of the rounds and compared on the other; both halves together.",
        render(summary(record["results"]), markdown=True),
    ]
    lines = missed(record["results"])
    if lines:
        parts.append("Short of the limits:\n\n" + "\n".join(f"- {line}" for line in lines))
    for one in record["results"]:
        parts += [f"### {one['workload']}", render(rows_of(one), markdown=True)]
        if one["same_settings"]:
            parts.append(render(same_rows(one), markdown=True))
    return "\n\n".join(parts) + "\n"


def summary(workloads: Sequence[Mapping[str, Any]]) -> Rows:
    """Auto beside the best, by workload: two names if the halves chose differently."""
    rows: Rows = [
        ["workload", "plain tokens/s", "best fixed", "auto / it", "best peer", "auto / it"]
    ]
    for one in workloads:
        speeds = one["plain_tokens_per_second"]
        row = [one["workload"], f"{median(speeds):.1f}"]
        for key in ("auto_beside_fixed", "auto_beside_peer"):
            found = one[key]
            names = dict.fromkeys(str(half["best"]) for half in found["halves"] if half["best"])
            row += [", ".join(names) or "-", shown(found["ratio"])]
        rows.append(row)
    return rows


def missed(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What falls short, a line each: medians below the limits, and lower acceptance."""
    lines = []
    for one in results:
        for key, limit in LIMITS.items():
            found = one[key]["ratio"]
            if found and found["median"] < limit:
                best = one[key]["halves"][0]["best"]
                lines.append(
                    f"{one['workload']}: auto has {shown(found)} of {best}, not {limit:.2f}"
                )
        for c in one["same_settings"]:
            if c["decode"] and c["decode"]["median"] < 1.0:
                lines.append(
                    f"{one['workload']}: {c['setup']} has {shown(c['decode'])} of its peer"
                )
            ours, theirs = c["acceptance"]["rate"], c["peer_acceptance"]["rate"]
            if theirs is not None and (ours is None or ours < theirs):
                lines.append(
                    f"{one['workload']}: {c['setup']} has an acceptance of {ours or 0.0:.3f}, its "
                    f"peer {theirs:.3f}"
                )
    return lines


def rows_of(one: Mapping[str, Any]) -> Rows:
    """Every side of a workload beside plain decoding, and auto beside every side."""
    auto = {c["baseline"]: c for c in one["auto_beside"]}
    rows: Rows = [["side", "times plain", "auto, times this", "accepted", ""]]
    for c in one["beside_plain"]:
        accepted = one["acceptance"][c["setup"]]
        rate = f"{accepted['rate']:.0%} of {accepted['drafted']}" if accepted["drafted"] else "-"
        other = auto.get(c["setup"])
        remark = c["refused"] or ("" if c["equal"] else f"first {c['compared_tokens']} tokens")
        rows.append(
            [c["setup"], shown(c["decode"]), shown(other and other["decode"]), rate, remark]
        )
    return rows


def same_rows(one: Mapping[str, Any]) -> Rows:
    """Ours beside llama-server's, at the same settings."""
    rows: Rows = [["same settings", "ours, times llama-server's", "accepted", "llama-server's", ""]]
    for c in one["same_settings"]:
        rates = []
        for key in ("acceptance", "peer_acceptance"):
            found = c[key]
            rates.append(f"{found['accepted']} of {found['drafted']}" if found["drafted"] else "-")
        rows.append([c["setup"], shown(c["decode"]), *rates, c["refused"] or ""])
    return rows


def pool_markdown(record: Mapping[str, Any]) -> str:
    """The tables of a record of kept texts."""
    parts = [
        head(record, "texts of earlier requests"),
        "Times as fast, decoding, medians with intervals; kept: after the first request, cold: "
        "without it. llama-server drafts with ngram-mod.",
    ]
    for one in record["results"]:
        parts += [f"### {one['case']}", render(pool_rows(one), markdown=True)]
    return "\n\n".join(parts) + "\n"


def pool_rows(one: Mapping[str, Any]) -> Rows:
    """The second requests of a case."""
    columns = {
        "ours kept / plain": "ours_kept_beside_plain",
        "ours kept / cold": "ours_kept_beside_cold",
        "llama-server kept / plain": "peer_kept_beside_plain",
        "llama-server kept / cold": "peer_kept_beside_cold",
        "ours / llama-server, kept": "ours_beside_peer",
        "plain": "plain_ours_beside_peer",
    }
    rows: Rows = [["second request", *columns, ""]]
    for request in one["requests"]:
        found = [request[key] for key in columns.values()]
        refused = dict.fromkeys(c["refused"] for c in found if c and c["refused"])
        shown_ones = [shown(c and c["decode"]) for c in found]
        rows.append([request["request"], *shown_ones, "; ".join(refused)])
    return rows


def head(record: Mapping[str, Any], what: str) -> str:
    """What was measured, and where."""
    title = f"## {record['model']['files'][0]['file']}: {what}"
    cpu, threads = record["machine"]["cpu"], record["settings"]["n_threads"]
    text = f"{cpu}, {threads} threads · {record['date']} · {record['command']}"
    unfinished = [] if record["complete"] else ["Not finished: more can follow."]
    return "\n\n".join([title, text, *unfinished])


def shown(found: Mapping[str, Any] | None) -> str:
    """A median with its interval."""
    if not found:
        return "-"
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
