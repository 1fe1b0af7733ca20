"""Every drafter and several stacks of them on the tiny models, held against plain decoding.

``scripts/check_equality.py`` goes through the whole grid of stacks, draft lengths and prompts; the
suite through a slice of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from gguf_spec.engine import Request
from gguf_spec.equality import compare_widths, rows_needed
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Row, Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES, prepare
from tests.conftest import MODELS
from tests.drafters.heads import rewrite
from tests.test_backend import PROMPTS

LENGTHS = range(1, 9)
GREEDY = SamplingParams()
WARM = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
#: n-gram tables with which short texts are drafted for, too.
SHORT_NGRAMS: dict[str, object] = {
    "spec.ngram-simple.size_n": 3,
    "spec.ngram-simple.size_m": 8,
    "spec.ngram-map-k.size_n": 3,
    "spec.ngram-map-k.size_m": 8,
    "spec.ngram-map-k4v.size_n": 3,
    "spec.ngram-map-k4v.size_m": 8,
    "spec.ngram-mod.n_match": 3,
    "spec.ngram-mod.n_min": 1,
    "spec.ngram-mod.n_max": 8,
}
#: Twenty beginnings of Python files: those of the acceptance tests, and some that repeat.
MANY_PROMPTS = (
    *PROMPTS,
    "import sys\nimport os\nimport re\nimport sys\nimport os\n",
    "x = 1\ny = 2\nx = 1\ny = 2\nx = 1\n",
    "class A:\n    def a(self):\n        pass\n\nclass B:\n    def b(self):\n",
    '"""Tests."""\n\nimport unittest\n\nclass TestList(unittest.TestCase):\n',
    "for i in range(10):\n    print(i)\n\nfor j in range(10):\n",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "# -*- coding: utf-8 -*-\n# Ünïcödé, 日本語\n",
    "if __name__ == '__main__':\n",
    "    raise ValueError('",
    "from typing import",
    "async def main():\n    await",
    "d = {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6}\n",
)
TRUNK, HEAD = "trunk", "head"
"""The two parts of tiny-mtp, which ``split_mtp`` makes."""


@dataclass(frozen=True)
class Stack:
    """Spec types with the tiny model of each that is one; ``target`` is a tiny model, too."""

    types: tuple[str, ...]
    target: str = "tiny-target"
    files: tuple[tuple[str, str], ...] = ()
    translate: bool = False

    @property
    def name(self) -> str:
        """How it is called in tables."""
        own = "+".join(self.types) if set(self.types) != set(NGRAM_TYPES) else "all n-gram types"
        own += " (translated)" if self.translate else ""
        return f"{own} on {self.target}"


def _heads(*kinds: str) -> tuple[tuple[str, str], ...]:
    files = {"draft-simple": "tiny-draft"}
    return tuple((kind, files.get(kind, kind.replace("draft", "tiny"))) for kind in kinds)


STACKS = (
    *(Stack((kind,)) for kind in NGRAM_TYPES),
    Stack(NGRAM_TYPES),
    Stack(("ngram-simple",), "tiny-mtp"),
    Stack(("draft-simple",), files=_heads("draft-simple")),
    Stack(("draft-mtp",), "tiny-mtp"),
    Stack(("draft-mtp",), TRUNK, (("draft-mtp", HEAD),)),
    Stack(("draft-eagle3",), files=_heads("draft-eagle3")),
    Stack(("draft-dflash",), files=_heads("draft-dflash")),
    Stack(("draft-dspark",), files=_heads("draft-dspark")),
    Stack(("draft-simple",), files=(("draft-simple", "tiny-othervocab-draft"),), translate=True),
    Stack(("draft-eagle3", "draft-dflash"), files=_heads("draft-eagle3", "draft-dflash")),
    Stack(("draft-simple", "draft-dspark"), files=_heads("draft-simple", "draft-dspark")),
    Stack(("draft-mtp", "draft-eagle3"), "tiny-mtp", _heads("draft-eagle3")),
    Stack(("ngram-mod", "draft-simple"), files=_heads("draft-simple")),
    Stack(("ngram-simple", "draft-mtp"), "tiny-mtp"),
    Stack(("ngram-map-k4v", "draft-eagle3"), files=_heads("draft-eagle3")),
    Stack(("ngram-cache", "draft-dflash"), files=_heads("draft-dflash")),
)


def split_mtp(folder: Path) -> None:
    """Write tiny-mtp as two files into ``folder``: the model, and its MTP head."""
    source = MODELS / "tiny-mtp.gguf"
    rewrite(source, folder / f"{HEAD}.gguf", lambda n: n.startswith("blk.4.") or "blk." not in n)
    rewrite(
        source,
        folder / f"{TRUNK}.gguf",
        lambda name: not name.startswith("blk.4."),
        changed={"qwen35.nextn_predict_layers": None, "qwen35.block_count": 4},
    )


@contextmanager
def opened(stack: Stack, n_max: int, folder: Path, *, exact: bool) -> Iterator[Session]:
    """A session with drafts of up to ``n_max`` tokens, always as long as possible; ``folder`` holds
    the parts of ``split_mtp``. ``n_max`` 0 is plain decoding."""

    def path(name: str) -> str:
        return str((folder if name in (TRUNK, HEAD) else MODELS) / f"{name}.gguf")

    values: dict[str, object] = {
        "target.model": path(stack.target),
        "target.n_ctx": 512,
        "target.n_threads": 1,
        "spec.types": list(stack.types) if n_max else ["none"],
        "spec.exact": exact,
        "spec.control": False,
        "spec.translate": stack.translate,
        **SHORT_NGRAMS,
    }
    if n_max:
        values["spec.n_max"] = n_max
        values |= {f"spec.{kind}.model": path(file) for kind, file in stack.files}
    with Session(prepare(apply_values(Profile(), values))) as session:
        assert session.warnings == []
        assert len(session.spec_types) == (len(stack.types) if n_max else 0)
        yield session


class Recorder(Sampler):
    """A sampler that keeps the logits it saw."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self.rows: list[Row] = []

    def fresh(self) -> Sampler:
        return self

    def sample(self, logits: Row, position: int, previous: Sequence[int] = ()) -> int:
        self.rows.append(logits.copy())
        return super().sample(logits, position, previous)


def text_of(session: Session, prompt: Sequence[int], sampler: Sampler, n: int) -> list[int]:
    """``n`` tokens after ``prompt``, less if the model ends, with empty caches to begin with."""
    session.sequence.consistent = False  # the target's cache is not used again
    steps = session.engine.generate(session.sequence, Request(prompt, sampler, n))
    return [token for step in steps for token in step.tokens]


@dataclass(frozen=True)
class Plain:
    """A text of plain decoding, and how much better the best token was than the second."""

    prompt: tuple[int, ...]
    tokens: list[int]
    gaps: list[float]

    def noise(self, session: Session, index: int) -> float:
        """The largest difference between logits of batches and of single decoding before token
        ``index``."""
        target = session.context
        text = [*self.prompt, *self.tokens]
        widths = [width for width in range(2, 10) if width <= target.max_width]
        depth = max(len(self.prompt) + index - rows_needed(widths), 1)
        depth = min(depth, len(text) - rows_needed(widths))
        session.sequence.consistent = False
        found = compare_widths(target, text, widths, [depth])
        return max(result.max_logit_difference for result in found)


@cache
def plain_texts(
    target: str, folder: Path, params: SamplingParams, prompts: tuple[str, ...], n: int, exact: bool
) -> tuple[Plain, ...]:
    """What plain decoding says to ``prompts``, prompt i with the seed i."""
    made = []
    with opened(Stack((), target), 0, folder, exact=exact) as session:
        for seed, prompt_text in enumerate(prompts):
            prompt = tuple(session.model.tokenize(prompt_text, parse_special=True))
            sampler = Recorder(replace(params, seed=seed))
            tokens = text_of(session, prompt, sampler, n)
            best = [np.partition(row, -2)[-2:] for row in sampler.rows]
            made.append(Plain(prompt, tokens, [float(two[1] - two[0]) for two in best]))
    return tuple(made)


@dataclass
class Found:
    """How the texts of a stack compare with plain decoding."""

    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    near_ties: int = 0
    different: int = 0
    limit: int = 0
    """The widest batch at any depth that exact settings allowed."""

    def add(self, other: Found) -> None:
        """Count ``other`` in."""
        for name in ("texts", "tokens", "drafted", "accepted", "near_ties", "different"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.limit = max(self.limit, other.limit)


def compare(
    stack: Stack,
    n_max: int,
    folder: Path,
    params: SamplingParams,
    prompts: tuple[str, ...],
    n: int,
    *,
    exact: bool,
) -> Found:
    """Texts with drafts of up to ``n_max`` tokens against plain ones. Where greedy text of inexact
    settings differs first, the two best tokens have to be no further apart than batches and single
    decoding are: then it is a near-tie."""
    found = Found()
    with opened(stack, n_max, folder, exact=exact) as session:
        found.limit = max(session.limits.limits, default=0)
        for seed, plain in enumerate(plain_texts(stack.target, folder, params, prompts, n, exact)):
            tokens = text_of(session, plain.prompt, Sampler(replace(params, seed=seed)), n)
            total = session.sequence.progress.spec.total
            events = session.sequence.progress.spec.events
            assert {event.kind for event in events} <= {"rebuilt"}
            found.texts += 1
            found.tokens += len(tokens)
            found.drafted += total.num_draft_tokens
            found.accepted += total.num_accepted_tokens
            if tokens == plain.tokens:
                continue
            pairs = enumerate(zip(tokens, plain.tokens, strict=False))
            first = next((i for i, (a, b) in pairs if a != b), None)
            tie = (
                not exact
                and params.temperature == 0.0
                and first is not None
                and plain.gaps[first] <= plain.noise(session, first)
            )
            found.near_ties += tie
            found.different += not tie
    return found
