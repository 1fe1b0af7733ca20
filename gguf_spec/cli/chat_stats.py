"""``/stats``: how the answers of a chat went, in numbers and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gguf_spec.cli.summary import answer_line, draft_line
from gguf_spec.cli.turns import Turns

_BAR = 30  # cells
_MOST_POSITIONS = 16


def stats_lines(turns: Turns) -> list[str]:
    """The statistics of ``turns``, which has answers."""
    reports = turns.reports
    last = reports[-1]
    lines = [answer_line(last, title="last: ")]
    seconds = sum(report["timings"]["decode_seconds"] for report in reports)
    tokens = sum(report["completion_tokens"] for report in reports)
    speed = f", {(tokens - len(reports)) / seconds:.1f} tokens/s" if seconds > 0 else ""
    lines.append(f"all: {len(reports)} answers, {tokens} tokens{speed}")
    if last["spec"]["types"]:
        lines.append(draft_line(total(reports), title="drafts: "))
        lines += positions(reports)
        lines += _time_saved(turns.saved_seconds)
        paused = last["spec"]["control"]["paused"]
        lines += [f"control: {paused}"] if paused else []
        lines.append(_verified(last["spec"]["verified"]))
    n_ctx = last["model"]["n_ctx"]
    # The token on which a full context ends an answer is not in it.
    used = min(last["prompt_tokens"] + last["completion_tokens"], n_ctx)
    lines.append(f"context: {used} of {n_ctx} tokens after the last answer")
    return lines


def _verified(found: Mapping[str, Any] | None) -> str:
    """What ``verify`` has found under the conditions of this chat."""
    if found is None:
        return "verified: not here, with these settings (gguf-spec verify)"
    return f"verified: {found['verdict']} ({found['measured'][:10]})"


def positions(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """A bar for each position of a draft: in what share of the drafts its token stood."""
    n_drafts = sum(report["spec"]["num_drafts"] for report in reports)
    counts: list[int] = []
    for report in reports:
        accepted = report["spec"]["accepted_per_position"]
        counts += [0] * (len(accepted) - len(counts))
        for i, count in enumerate(accepted):
            counts[i] += count
    while counts and not counts[-1]:
        counts.pop()
    if not n_drafts or not counts:
        return []
    lines = [f"tokens that stood, by their place in {n_drafts} drafts:"]
    for i, count in enumerate(counts[:_MOST_POSITIONS]):
        share = count / n_drafts
        lines.append(f"{i + 1:4}  {_bar(share):<{_BAR}} {share:4.0%}  {count}")
    if len(counts) > _MOST_POSITIONS:
        lines.append(f"   …  up to place {len(counts)}")
    return lines


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _time_saved(saved: Sequence[float | None]) -> list[str]:
    known = [seconds for seconds in saved if seconds is not None]
    if not known:
        return ["time saved: not known (nothing was measured: --fixed, or nothing drafts)"]
    total_saved = sum(known)
    what = "saved" if total_saved >= 0 else "lost"
    return [f"time {what}: about {abs(total_saved):.2f} s, by the costs of drafts measured here"]


def total(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The drafting counters of all answers together."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    sums: dict[str, Any] = {name: sum(report["spec"][name] for report in reports) for name in names}
    by_type: dict[str, dict[str, int]] = {}
    for report in reports:
        for kind, counts in report["spec"]["by_type"].items():
            of_type = by_type.setdefault(kind, dict.fromkeys(names, 0))
            for name in names:
                of_type[name] += counts[name]
    types = dict.fromkeys(kind for report in reports for kind in report["spec"]["types"])
    return {**sums, "types": list(types), "by_type": by_type}
