"""What drafts have saved of the time of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf_spec.control import CostCurve


def saved_seconds(report: Mapping[str, Any], curve: CostCurve) -> float | None:
    """Plain decoding's time minus that of the answer in ``report``; None if it is not known.

    The time of a plain step is taken from the answer itself, because a machine is not equally fast
    all the time: its steps took that time, and those with a draft as many times more as ``curve``
    says for their mean width.
    """
    spec, timings = report["spec"], report["timings"]
    if curve.base is None or not spec["types"]:
        return None
    n_drafts, n_steps = spec["num_drafts"], spec["steps"]
    ratio = 1.0
    if n_drafts:
        width = 1 + round(spec["num_draft_tokens"] / n_drafts)
        ratio = curve.ratio(width, report["prompt_tokens"])
    decode = timings["decode_seconds"]
    weight = n_steps - n_drafts + ratio * n_drafts
    if weight <= 0:
        return None
    step = max(decode - timings["draft_seconds"], 0.0) / weight
    return float(step * (n_steps + spec["num_accepted_tokens"]) - decode)
