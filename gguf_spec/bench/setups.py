"""What is compared, and the drafters and controller for each run of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gguf_spec.context import ModelContext, Run
from gguf_spec.control import AdaptiveController, Choice, FixedPolicy, Offer, Round
from gguf_spec.control.base import Controller
from gguf_spec.drafters.base import Absent, Draft, Drafter
from gguf_spec.drafters.ngram_registry import make_ngram, ngram_ceiling
from gguf_spec.history import History
from gguf_spec.loading import drafter_facts, first_length
from gguf_spec.profile import Spec
from gguf_spec.sampling import Sampler
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """One side of a comparison. Without ``types`` and ``synthetic`` it is plain decoding.

    ``control``: the controller decides how much is drafted; else every drafter in order drafts up
    to its ceiling. ``ceilings`` replace those of the profile, ``spec`` its n-gram parameters; with
    ``spec`` the types may be n-gram types that the session does not have.
    ``synthetic``: drafts whose tokens stand with this chance, of ``synthetic_length`` tokens.
    """

    name: str
    types: tuple[str, ...] = ()
    control: bool = True
    ceilings: Mapping[str, int] = field(default_factory=dict)
    spec: Spec | None = None
    synthetic: float | None = None
    synthetic_length: int = 0

    def record(self) -> dict[str, Any]:
        """As JSON."""
        more: dict[str, Any] = {}
        if self.ceilings:
            more["n_max"] = dict(self.ceilings)
        if self.synthetic is not None:
            more |= {"synthetic": self.synthetic, "n_max": self.synthetic_length}
        return {"name": self.name, "types": list(self.types), "control": self.control, **more}


def plain_setup() -> BenchSetup:
    """Plain decoding: what everything is compared with."""
    return BenchSetup(PLAIN)


def synthetic_setup(acceptance: float, length: int) -> BenchSetup:
    """Drafts of ``length`` tokens, each of which stands with chance ``acceptance``."""
    name = f"synthetic {acceptance:g}"
    return BenchSetup(name, control=False, synthetic=acceptance, synthetic_length=length)


class Replay:
    """Drafts from texts that are known beforehand, one for each completion, spoilt so that each
    token stands with a given chance. They cost next to nothing: what is measured is the rest."""

    spec_type = "synthetic"

    def __init__(self, texts: Sequence[Sequence[int]], acceptance: float, n_vocab: int) -> None:
        self._texts = iter(texts)
        self._text: Sequence[int] = ()
        self._acceptance = acceptance
        self._n_vocab = n_vocab
        self._history = History()
        self._n_prompt = 0
        # Nothing secret: equal records need equal drafts.
        self._numbers = random.Random(f"{acceptance}")

    def begin(self, history: History) -> None:
        """The next completion starts at the end of ``history``."""
        self._history, self._n_prompt = history, len(history)
        self._text = next(self._texts, ())

    def observe(self, target: ModelContext, run: Run) -> None:
        """Nothing to learn."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """The text that follows, with its first spoilt token, if any, changed."""
        done = len(self._history) - self._n_prompt
        tokens = list(self._text[done : done + limit])
        for i, token in enumerate(tokens):
            if self._numbers.random() >= self._acceptance:
                tokens[i] = (token + 1) % self._n_vocab
                break
        return Draft(tokens, self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to give back."""


class Recorder:
    """A controller that keeps what came of every round, and leaves all decisions to another."""

    def __init__(self, inner: Controller) -> None:
        self.inner = inner
        self.rounds: list[Round] = []

    def choose(self, limit: int) -> Sequence[Choice]:
        """As the other."""
        return self.inner.choose(limit)

    def judge(self, choice: Choice, offer: Offer) -> int:
        """As the other."""
        return self.inner.judge(choice, offer)

    def record(self, result: Round) -> None:
        """Keep it, and pass it on."""
        self.rounds.append(result)
        self.inner.record(result)

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        """As the other."""
        return self.inner.resting(n_prompt, n_new)

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """Pass it on."""
        self.inner.prefilled(drafter, n_tokens, seconds)

    def drop(self, drafter: int) -> None:
        """Pass it on."""
        self.inner.drop(drafter)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Drafters and controller of a run."""

    drafters: tuple[Drafter, ...]
    controller: Recorder


def arrange(
    session: Session,
    setup: BenchSetup,
    owned: Sequence[Drafter],
    texts: Sequence[Sequence[int]],
) -> Arrangement:
    """For one run of ``setup``: n-gram drafters and a controller that know nothing yet, and of the
    session's ``owned`` drafters those that are models. What does not take part is ``Absent``, so
    that it costs nothing. ``texts`` are what plain decoding gave in each turn, for replaying.
    """
    if setup.synthetic is not None:
        replay = Replay(texts, setup.synthetic, session.model.n_vocab)
        return Arrangement((replay,), Recorder(FixedPolicy([setup.synthetic_length])))
    spec = setup.spec or session.setup.profile.spec
    pool = session.pool
    kinds, floors = session.spec_types, session.setup.floors
    of_kind = dict(zip(session.setup.spec_types, session.setup.ceilings, strict=True))
    if setup.spec is not None and not set(setup.types) <= set(kinds):
        kinds, floors = setup.types, (setup.spec.n_min,) * len(setup.types)
        of_kind = {kind: ngram_ceiling(kind, setup.spec) for kind in kinds}
    drafters: list[Drafter] = []
    ceilings: list[int] = []
    has_pool = False
    for i, kind in enumerate(kinds):
        ceiling = setup.ceilings.get(kind, of_kind[kind])
        drafter: Drafter = Absent(kind)
        if kind in setup.types and kind in NGRAM_TYPES:
            given = None if has_pool else pool
            drafter = make_ngram(kind, spec, given, n_vocab=session.model.n_vocab)
            has_pool = True
            if setup.spec is not None:
                ceiling = ngram_ceiling(kind, spec)
                ceiling = min(ceiling, spec.n_max) if isinstance(spec.n_max, int) else ceiling
        elif kind in setup.types:
            drafter = owned[i]
        drafters.append(drafter)
        ceilings.append(ceiling if kind in setup.types else 0)
    if not any(ceilings):
        return Arrangement((), Recorder(FixedPolicy(())))
    inner: Controller = FixedPolicy(ceilings, floors)
    if setup.control:
        facts = drafter_facts(drafters, ceilings, floors)
        length = first_length(session.setup.profile.target)
        inner = AdaptiveController(facts, session.curve, first_length=length)
    return Arrangement(tuple(drafters), Recorder(inner))
