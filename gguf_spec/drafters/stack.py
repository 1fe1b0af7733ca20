"""The drafters of one sequence: asked in turn, timed, mended, and left out when they fail.

Drafting is an offer that nobody depends on. So whatever a drafter raises, the generation goes on
without it: the target's cache and the text do not know of it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from gguf_spec.context import ModelContext, Run
from gguf_spec.control.base import Controller, Offer, Round
from gguf_spec.draft_sampling import DraftSampling
from gguf_spec.drafters.base import Absent, Draft, Drafter, Rebuildable, StatesDrafter, Unsure
from gguf_spec.drafters.ngram_base import NgramDrafter
from gguf_spec.errors import GgufSpecError
from gguf_spec.history import History
from gguf_spec.recovery import DROUGHT, Recovery
from gguf_spec.stats import DraftEvent, SpecStats

NO_DRAFT = Draft((), "")


class Stack:
    """Drafters and the controller that chooses among them by their numbers.

    A drafter that raises is closed, and an ``Absent`` one takes its number for good. What is no
    ``Exception`` passes: ``KeyboardInterrupt`` and its like.
    """

    def __init__(
        self, drafters: Sequence[Drafter], controller: Controller, sampling: DraftSampling
    ) -> None:
        self.drafters = tuple(drafters)
        self.controller = controller
        self.sampling = sampling
        self.draft = NO_DRAFT
        """The draft of the round in progress."""
        self.seconds = 0.0
        """Time that the drafters took since this was last set to 0."""
        self.rollback_seconds = 0.0
        """What the last round's draft took beside the decode: a checkpoint, and going back to it.
        """
        self._drafter: int | None = None
        self._history = History()
        self._stats = SpecStats()
        self._n_prompt = 0
        self._resting: frozenset[int] = frozenset()
        self._reading: dict[int, float] | None = None
        self._n_read = 0
        self._recoveries: list[Recovery] = []
        self._unsure: dict[int, Unsure] = {}
        self._observers: list[int] = []

    def start(self, stats: SpecStats) -> None:
        """A generation starts, whose events go into ``stats``."""
        self._stats = stats
        self.seconds = self.rollback_seconds = 0.0
        self._recoveries = [Recovery() for _ in self.drafters]
        # Asked once: looking a protocol's members up takes longer than all else in a round.
        self._unsure = {i: d for i, d in enumerate(self.drafters) if isinstance(d, Unsure)}
        self.no_draft()

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        """How many of ``keep`` cached tokens the target may keep for all drafters to see what they
        miss; see ``StatesDrafter``. Those that rest in this generation miss all of it."""
        self._resting = self.controller.resting(len(prompt), len(prompt) - keep)
        self._reading, self._n_read = {}, 0
        # Those that read the text alone would be shown something in every round, for nothing.
        blind = {i for i, d in enumerate(self.drafters) if isinstance(d, NgramDrafter)}
        self._observers = [i for i, _ in self._awake() if i not in blind]
        for i, drafter in self._awake():
            if isinstance(drafter, StatesDrafter):
                try:
                    keep = max(min(drafter.reusable(prompt, keep), keep), 0)
                except Exception as error:
                    self._drop(i, error)
        return keep

    def begin(self, history: History) -> None:
        """The prompt stands in ``history``."""
        self._history, self._n_prompt = history, len(history)
        for i, drafter in self._awake():
            try:
                drafter.begin(history)
            except Exception as error:
                self._drop(i, error)

    def observe(self, target: ModelContext, run: Run) -> None:
        """The target has decoded ``run``."""
        self._n_read += len(run.tokens)
        if not self._observers:
            return
        first = begun = perf_counter()
        for i in self._observers:
            try:
                self.drafters[i].observe(target, run)
            except Exception as error:
                self._drop(i, error)
            if self._reading is not None:
                now = perf_counter()
                self._reading[i] = self._reading.get(i, 0.0) + now - begun
                begun = now
        self.seconds += perf_counter() - first

    def propose(
        self,
        limit: int,
        legal: Callable[[Sequence[int]], Sequence[int]],
    ) -> Draft:
        """The first draft of up to ``limit`` tokens that a chosen drafter offers, cut by ``legal``
        to what may be verified; kept as ``draft``."""
        begun = perf_counter()
        self.no_draft()
        for choice in self.controller.choose(limit):
            i, n_max = choice.drafter, min(choice.n_max, limit)
            if i in self._resting:
                continue
            drafter = self.drafters[i]
            try:
                if i in self._unsure:
                    self._unsure[i].floor = choice.floor
                made = drafter.draft(n_max, self.sampling.sampler(i))
                tokens = legal(made.tokens[:n_max])
            except Exception as error:
                self._drop(i, error)
                continue
            if made.drawn and self.sampling.rule == "residual":
                # All of it, whatever was drawn: see ``residual``.
                self.draft = Draft(tokens, made.source, drawn=made.drawn)
                self._drafter = i if tokens else None
                break
            if tokens and (n := self.controller.judge(choice, Offer(i, tokens, made.match))):
                self.draft, self._drafter = Draft(tokens[:n], made.source), i
                break
        self.seconds += perf_counter() - begun
        return self.draft

    def hold(self, draft: Draft) -> Draft:
        """Verify ``draft`` in this round, which no drafter has made for it."""
        self.draft, self._drafter = draft, None
        return draft

    def no_draft(self) -> None:
        """The round in progress has no draft."""
        self.draft, self._drafter = NO_DRAFT, None

    def accept(self, n_accepted: int) -> None:
        """The history has grown by ``n_accepted`` tokens of the draft and the target's next one."""
        begun = perf_counter()
        if self._reading is not None:  # the prompt has been read
            for i, seconds in self._reading.items():
                self.controller.prefilled(i, self._n_read, seconds)
            self._reading = None
        for i, drafter in self._awake():
            try:
                drafter.accept(n_accepted)
            except Exception as error:
                self._drop(i, error)
        drafted_by = self._drafter
        if drafted_by is not None and self._recoveries[drafted_by].observe(n_accepted):
            self._rebuild(drafted_by)
        self.seconds += perf_counter() - begun

    def record(
        self,
        n_drafted: int,
        n_accepted: int,
        decode_seconds: float,
        tokens: Sequence[int],
        depth: int,
    ) -> None:
        """Tell the controller what came of the round, which took the target ``decode_seconds``; see
        ``Round``."""
        self.sampling.record(self._drafter, n_drafted, n_accepted)
        taken = self.seconds, decode_seconds
        before, self.rollback_seconds = self.rollback_seconds, 0.0
        self.controller.record(
            Round(self._drafter, n_drafted, n_accepted, *taken, tokens, depth, before)
        )

    def _awake(self) -> Iterator[tuple[int, Drafter]]:
        """The drafters that take part in this generation, with their numbers."""
        resting = self._resting
        if not resting:
            return enumerate(self.drafters)
        return ((i, d) for i, d in enumerate(self.drafters) if i not in resting)

    def _rebuild(self, i: int) -> None:
        drafter = self.drafters[i]
        if not isinstance(drafter, Rebuildable):
            return
        try:
            drafter.rebuild()
        except Exception as error:
            self._drop(i, error)
            return
        told = (
            f"{drafter.spec_type}: none of its last {DROUGHT} drafts stood after a good start, "
            f"its context was rebuilt at token {self._n_completion}"
        )
        self._stats.events.append(
            DraftEvent("rebuilt", drafter.spec_type, self._n_completion, told)
        )

    def _drop(self, i: int, error: Exception) -> None:
        drafter = self.drafters[i]
        self._unsure.pop(i, None)
        kind = drafter.spec_type
        reason = error.message if isinstance(error, GgufSpecError) else repr(error)
        trace = "".join(traceback.format_exception(error))
        told = f"{kind} failed and drafts no more: {reason}"
        self._stats.events.append(DraftEvent("dropped", kind, self._n_completion, told, trace))
        self.drafters = (*self.drafters[:i], Absent(kind), *self.drafters[i + 1 :])
        self.controller.drop(i)
        try:
            drafter.close()
        except Exception as second:  # what cannot be closed is left to whoever made it
            self._stats.events[-1].trace += "".join(traceback.format_exception(second))

    @property
    def _n_completion(self) -> int:
        return max(len(self._history) - self._n_prompt, 0)
