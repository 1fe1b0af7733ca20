"""What ``verify`` puts into a session: a controller, and drafters that remember."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gguf_spec.context import ModelContext, Run
from gguf_spec.control.base import Choice, Offer, Round
from gguf_spec.drafters.base import Draft, Drafter, StatesDrafter
from gguf_spec.history import History
from gguf_spec.sampling import Sampler


class Asking:
    """A controller that asks some of the drafters, each up to its ceiling."""

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._choices = tuple(choices)

    def choose(self, limit: int) -> Sequence[Choice]:
        return [Choice(c.drafter, min(c.n_max, limit), c.n_min) for c in self._choices]

    def judge(self, choice: Choice, offer: Offer) -> int:
        n = len(offer.tokens)
        return n if n >= choice.n_min else 0

    def record(self, result: Round) -> None:
        """It learns nothing."""

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        return frozenset()

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """Nor from this."""

    def drop(self, drafter: int) -> None:
        self._choices = tuple(c for c in self._choices if c.drafter != drafter)


class Witness:
    """A drafter that keeps what it drafted, by the length of the text that the draft continues."""

    def __init__(self, drafter: Drafter) -> None:
        self.spec_type = drafter.spec_type
        self.drafts: dict[int, tuple[int, ...]] = {}
        self._drafter = drafter
        self._history = History()

    def begin(self, history: History) -> None:
        self._history = history
        self._drafter.begin(history)

    def observe(self, target: ModelContext, run: Run) -> None:
        self._drafter.observe(target, run)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        draft = self._drafter.draft(limit, sampler)
        self.drafts[len(self._history)] = tuple(draft.tokens[:limit])
        return draft

    def accept(self, n_accepted: int) -> None:
        self._drafter.accept(n_accepted)

    def close(self) -> None:
        self._drafter.close()


class StatesWitness(Witness):
    """A witness of a drafter that reads the target's hidden states."""

    def __init__(self, drafter: StatesDrafter) -> None:
        super().__init__(drafter)
        self.needs = drafter.needs
        self.reusable = drafter.reusable


def witness_of(drafter: Drafter) -> Witness:
    """A witness of ``drafter``, which reads hidden states if that does."""
    return StatesWitness(drafter) if isinstance(drafter, StatesDrafter) else Witness(drafter)
