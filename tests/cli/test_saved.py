"""The time that drafts save, from the counters of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_spec.cli.saved import saved_seconds
from gguf_spec.control import CostCurve


def report(
    *, steps: int, drafts: int, drafted: int, accepted: int, decode: float, drafting: float = 0.0
) -> dict[str, Any]:
    return {
        "prompt_tokens": 10,
        "spec": {
            "types": ["ngram-simple"], "steps": steps, "num_drafts": drafts,
            "num_draft_tokens": drafted, "num_accepted_tokens": accepted,
        },
        "timings": {"decode_seconds": decode, "draft_seconds": drafting},
    }  # fmt: skip


@pytest.fixture
def curve() -> CostCurve:
    """A batch of four takes twice the time of one token, which was measured as something else."""
    one = CostCurve()
    one.observe(1, 0, 5.0)
    one.ratio = lambda width, depth: {1: 1.0, 4: 2.0}[width]  # type: ignore[method-assign]
    return one


@pytest.mark.parametrize(
    ("counts", "saved"),
    [
        # 10 plain steps of 1 s; then 10 with drafts of 3 of which all stand, for 2 s each.
        ({"steps": 20, "drafts": 10, "drafted": 30, "accepted": 30, "decode": 30.0}, 20.0),
        ({"steps": 10, "drafts": 10, "drafted": 30, "accepted": 0, "decode": 20.0}, -10.0),
        ({"steps": 10, "drafts": 0, "drafted": 0, "accepted": 0, "decode": 7.0}, 0.0),
        ({"steps": 10, "drafts": 0, "drafted": 0, "accepted": 0, "decode": 7.0, "drafting": 2.0},
         -2.0),
    ],
)  # fmt: skip
def test_the_answers_own_speed_counts(
    curve: CostCurve, counts: dict[str, Any], saved: float
) -> None:
    assert saved_seconds(report(**counts), curve) == pytest.approx(saved)


def test_unknown(curve: CostCurve) -> None:
    nothing = report(steps=0, drafts=0, drafted=0, accepted=0, decode=0.0)
    assert saved_seconds(nothing, curve) is None
    some = report(steps=9, drafts=0, drafted=0, accepted=0, decode=1.0)
    assert saved_seconds(some, CostCurve()) is None
    assert saved_seconds({**some, "spec": {**some["spec"], "types": []}}, curve) is None
