"""Records told in a line for people."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf_spec.setup import Setup


def setup_line(setup: Setup) -> str:
    """What is about to be loaded."""
    target = setup.target
    ref = os.path.basename(setup.ref) if "://" not in setup.ref else setup.ref
    types = ", ".join(setup.spec_types) or "no drafting"
    return f"{ref} · {target.arch} {target.quant} · n_ctx {setup.n_ctx} · {types}"


def answer_line(report: Mapping[str, Any]) -> str:
    """How an answer went: ``report`` is the document of ``run --json``."""
    timings, spec = report["timings"], report["spec"]
    parts = []
    if (speed := timings["decode_tokens_per_second"]) is not None:
        parts.append(f"{speed:.1f} tokens/s")
    parts.append(f"{report['completion_tokens']} tokens")
    prompt = f"prompt {report['prompt_tokens']}"
    if report["cached_tokens"]:
        prompt += f" ({report['cached_tokens']} cached)"
    parts.append(prompt)
    if spec["types"]:
        parts.append(draft_text(spec))
    if report["finish_reason"] != "stop":
        parts.append({"length": "cut by length"}.get(report["finish_reason"], "cancelled"))
    return " · ".join(parts)


def draft_text(spec: Mapping[str, Any]) -> str:
    """Drafted and accepted tokens, by type where there are several."""
    if not spec["num_draft_tokens"]:
        return "nothing drafted"
    text = _counts(spec)
    if len(spec["by_type"]) > 1:
        text += f" ({', '.join(f'{k}: {_counts(v)}' for k, v in spec['by_type'].items())})"
    return text


def _counts(counts: Mapping[str, Any]) -> str:
    drafted, accepted = counts["num_draft_tokens"], counts["num_accepted_tokens"]
    return f"accepted {accepted}/{drafted} ({accepted / drafted:.0%})"


def table(rows: Mapping[str, object]) -> str:
    """Names and values in two columns; a row without a value is left out."""
    shown = {name: value for name, value in rows.items() if value not in (None, "")}
    width = max((len(name) for name in shown), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def bytes_text(count: int) -> str:
    """A number of bytes in the unit that suits it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
