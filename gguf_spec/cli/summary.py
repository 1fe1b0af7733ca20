"""Records told in a line for people."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf_spec.session import Session
    from gguf_spec.setup import Setup
    from gguf_spec.widths import WidthLimits

_WIDTH = 80  # columns of a terminal that nobody has made wider


def setup_line(setup: Setup) -> str:
    """What is about to be loaded."""
    target = setup.target
    ref = os.path.basename(setup.ref) if "://" not in setup.ref else setup.ref
    types = [*setup.spec_types] or ["no drafting"]
    return _filled([[ref], [f"{target.arch} {target.quant}"], [f"n_ctx {setup.n_ctx}"], types])


def exact_line(session: Session) -> str:
    """What the token-identical mode does to this session, and what it costs if that is known."""
    params, limits = session.context.params, session.limits
    parts = [f"exact: cache {params.type_k}", "flash attention", "weights not repacked"]
    if params.type_v != params.type_k:
        parts[0] += f" and {params.type_v}"
    if session.spec_types:
        parts.append(_drafts_allowed(limits))
    cost = session.exact_cost
    told = "measured by gguf-spec verify --exact"
    parts.append(
        f"cost not {told}" if cost is None else f"a plain token takes {cost:.2f} x the time, {told}"
    )
    return _filled([[part] for part in parts])


def _drafts_allowed(limits: WidthLimits) -> str:
    narrowest = limits.narrowest
    if limits.deepest == 0 or max(limits.limits) == 1:
        return "no drafts: here every batch differs from single decoding"
    if narrowest == 1:
        known = zip(limits.depths, limits.limits, strict=True)
        text = ", ".join(f"{limit - 1} at {depth} tokens" for depth, limit in known)
        return f"drafts of at most {text}"
    return f"drafts of at most {narrowest - 1}, up to {limits.deepest} tokens of context"


def answer_line(report: Mapping[str, Any], *, title: str = "") -> str:
    """How an answer went: ``report`` is the document of ``run --json``.

    It is one line unless many types have drafted or the terminal is narrow; then it goes on below.
    """
    timings, spec = report["timings"], report["spec"]
    parts: list[list[str]] = []
    if (speed := timings["decode_tokens_per_second"]) is not None:
        parts.append([f"{speed:.1f} tokens/s"])
    parts.append([f"{report['completion_tokens']} tokens"])
    prompt = f"prompt {report['prompt_tokens']}"
    if report["cached_tokens"]:
        prompt += f" ({report['cached_tokens']} cached)"
    parts.append([prompt])
    if spec["types"]:
        parts.append(_drafts(spec))
    if paused := spec.get("control", {}).get("paused"):
        # The reasons in full are in the JSON document.
        parts.append([reason.partition(":")[0] for reason in paused.split("; ")])
    if spec["exactness"] != "seed-exact":
        parts.append([spec["exactness"]])
    if report["finish_reason"] != "stop":
        parts.append([{"length": "cut by length"}.get(report["finish_reason"], "cancelled")])
    return _filled(parts, title)


def draft_line(spec: Mapping[str, Any], *, title: str = "") -> str:
    """Accepted and drafted tokens, by type where several have drafted."""
    return _filled([_drafts(spec)], title)


def _drafts(spec: Mapping[str, Any]) -> list[str]:
    """``draft_line`` in pieces."""
    drafted, accepted = spec["num_draft_tokens"], spec["num_accepted_tokens"]
    if not drafted:
        return ["nothing drafted"]
    text = f"accepted {accepted}/{drafted} ({accepted / drafted:.0%})"
    counts = {kind: spec["by_type"][kind] for kind in spec["types"] if kind in spec["by_type"]}
    by_type = [
        f"{kind} {count['num_accepted_tokens']}/{count['num_draft_tokens']}"
        for kind, count in counts.items()
        if count["num_draft_tokens"]
    ]
    if len(by_type) > 1:
        return [f"{text}: {by_type[0]}", *by_type[1:]]
    several = len(spec["types"]) > 1 and by_type
    return [f"{text} by {by_type[0].split()[0]}" if several else text]


def _filled(parts: Sequence[Sequence[str]], title: str = "") -> str:
    """Parts with dots between them and pieces with commas, broken only where it gets too wide.

    A part goes on in a new line as a whole if it fits there.
    """
    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    room = min(columns, _WIDTH) - 2  # a dot or a comma may follow
    lines, line = [], title
    margin = " " * (len(title) or 2)
    for i, part in enumerate(parts):
        whole = ", ".join(part)
        if i and len(f"{line} · {whole}") > room >= len(f"{margin}{whole}"):
            lines.append(f"{line} ·")
            line = margin + whole
            continue
        for j, piece in enumerate(part):
            between = ", " if j else " · " if i else ""
            if between and len(f"{line}{between}{piece}") > room:
                lines.append(line + between.rstrip())
                line = margin + piece
            else:
                line += between + piece
    return "\n".join([*lines, line])


def table(rows: Mapping[str, object]) -> str:
    """Names and values in two columns; a row without a value is left out."""
    shown = {name: value for name, value in rows.items() if value not in (None, "")}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def counted(number: int, thing: str) -> str:
    """A number with its noun."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def bytes_text(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
