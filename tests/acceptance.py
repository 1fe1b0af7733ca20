"""How many tested draft tokens stand on the tiny models, by the way that they are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gguf_spec import verify
from gguf_spec.engine import Request
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Distribution, Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from tests.conftest import MODELS
from tests.test_backend import PROMPTS

#: Settings under which a batch computes what single tokens do.
EXACT = {"target.flash_attn": "on", "target.type_k": "bf16", "target.type_v": "bf16"}
ONE_THREAD = {"target.n_threads": 1, "target.n_threads_batch": 1, "target.n_ctx": 1024}
PAIRS: dict[str, dict[str, object]] = {
    "draft-simple": {
        "target.model": str(MODELS / "tiny-target.gguf"),
        "spec.draft.model": str(MODELS / "tiny-draft.gguf"),
        "spec.draft.type_k": "bf16",
        "spec.draft.type_v": "bf16",
    },
    "draft-mtp": {"target.model": str(MODELS / "tiny-mtp.gguf")},
}
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@dataclass
class Tested:
    """Draft tokens that were tested, and those that stood. Tokens after the first rejected one of a
    draft are neither. ``overlaps`` are sum(min(target_probs, draft_probs)) where they were tested,
    with the residual rule alone."""

    accepted: int = 0
    tested: int = 0
    overlaps: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.accepted / self.tested

    @property
    def overlap(self) -> float:
        """What ``rate`` should be."""
        return float(np.mean(self.overlaps))

    @property
    def deviation(self) -> float:
        """Standard deviation of ``rate`` around ``overlap``, from coins of these probabilities."""
        p = np.array(self.overlaps)
        return math.sqrt(float((p * (1.0 - p)).sum())) / len(p)


def session(kind: str, **spec: object) -> Session:
    """The tiny models of ``kind`` with [spec] keys, drafts of 3 tokens, one thread, exact."""
    values: dict[str, object] = {**EXACT, **ONE_THREAD, **PAIRS[kind]}
    values |= {"spec.types": [kind], "spec.n_max": 3, "spec.control": False}
    values |= {f"spec.{key}": value for key, value in spec.items()}
    return Session(prepare(apply_values(Profile(), values)))


def measure(
    kind: str, way: str, n_tested: int, params: SamplingParams = UNFILTERED, n: int = 200
) -> Tested:
    """Generate until ``n_tested`` tokens were tested."""
    rule = "residual" if way == "own" else "match"
    tested = Tested()
    with session(kind, verify=rule, draft_sampling=way) as made, _watched(tested):
        for seed in range(10**6):
            text = PROMPTS[seed % len(PROMPTS)]
            for step in _steps(made, text, replace(params, seed=seed), n):
                if way != "own":
                    tested.accepted += step.n_accepted
                    tested.tested += min(step.n_accepted + 1, step.n_drafted)
            if tested.tested >= n_tested:
                return tested
    raise AssertionError("unreachable")


def text_of(made: Session, prompt: str, seed: int, n: int) -> list[int]:
    """The tokens of an answer."""
    return [
        t for step in _steps(made, prompt, replace(UNFILTERED, seed=seed), n) for t in step.tokens
    ]


def _steps(made: Session, prompt: str, params: SamplingParams, n: int) -> Iterator[Any]:
    request = Request(made.model.tokenize(prompt, parse_special=True), Sampler(params), n)
    return made.engine.generate(made.sequence, request)


@contextmanager
def _watched(tested: Tested) -> Iterator[None]:
    """Count what residual verification tests."""
    original = verify.stands

    def stands(token: int, target: Distribution, draft: Distribution, uniform: float) -> bool:
        kept = original(token, target, draft, uniform)
        tested.overlaps.append(_overlap(_dense(target), _dense(draft)))
        tested.tested += 1
        tested.accepted += kept
        return kept

    verify.stands = stands
    try:
        yield
    finally:
        verify.stands = original


def _dense(probs: Distribution) -> Mapping[int, float]:
    return dict(zip(probs.ids.tolist(), probs.probs.tolist(), strict=True))


def _overlap(target: Mapping[int, float], draft: Mapping[int, float]) -> float:
    return sum(min(p, draft.get(token, 0.0)) for token, p in target.items())
