"""A tiny session to measure, and what it decodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.workloads import Workload

MODELS = Path(__file__).parent.parent / "models"

WORKLOADS = (
    Workload("one", ("x y z x y z x y",), max_tokens=16),
    Workload("talk", ("hello there", "and then"), max_tokens=10, predict="so it is"),
    Workload("warm", ("hello",), temperature=1.0, seed=5, max_tokens=12),
)


def open_session(draft: str = "tiny-draft.gguf", kind: str = "draft-simple") -> Session:
    """The tiny target with an n-gram drafter and a draft model or head."""
    profile = apply_values(
        Profile(),
        {
            "target.model": str(MODELS / "tiny-target.gguf"),
            "target.n_ctx": 256,
            "target.n_threads": 1,
            "spec.types": ["ngram-simple", kind],
            f"spec.{kind}.model": str(MODELS / draft),
            "spec.translate": True,
            "spec.pool": "request",
        },
    )
    return Session(prepare(profile), least_width=9)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """That session."""
    with open_session() as opened:
        yield opened
