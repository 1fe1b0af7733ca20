"""Counters and timings of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class DraftCounts:
    """What one source of drafts offered and what stood.

    ``accepted_per_position[i]`` counts drafts whose token ``i`` stood. A round without a draft is
    not counted here.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def observe_draft(self, n_drafted: int, n_accepted: int) -> None:
        """Count one verified draft."""
        self.num_drafts += 1
        self.num_draft_tokens += n_drafted
        self.num_accepted_tokens += n_accepted
        missing = n_drafted - len(self.accepted_per_position)
        if missing > 0:
            self.accepted_per_position.extend([0] * missing)
        for i in range(n_accepted):
            self.accepted_per_position[i] += 1

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens; None when nothing was drafted."""
        if not self.num_draft_tokens:
            return None
        return self.num_accepted_tokens / self.num_draft_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens / drafts: the tokens that a drafted step yields, bonus included."""
        if not self.num_drafts:
            return None
        return 1.0 + self.num_accepted_tokens / self.num_drafts


@dataclass(slots=True)
class DraftEvent:
    """What happened to a drafter after ``n_tokens`` of the completion, and as the user is told.

    ``rebuilt``: its context was made anew, see ``recovery``. ``dropped``: it raised an error, whose
    ``trace`` is for whoever looks for the cause, and drafts no more.
    """

    kind: Literal["rebuilt", "dropped"]
    spec_type: str
    n_tokens: int
    message: str
    trace: str = ""


@dataclass(slots=True)
class SpecStats:
    """Counters of one generation. ``completion tokens = 1 + steps + accepted`` unless cut."""

    steps: int = 0
    total: DraftCounts = field(default_factory=DraftCounts)
    by_type: dict[str, DraftCounts] = field(default_factory=dict)
    events: list[DraftEvent] = field(default_factory=list)

    def observe_step(self, source: str | None, n_drafted: int, n_accepted: int) -> None:
        """Count one target decode after prefill; ``source`` drafted for it, if anything did."""
        self.steps += 1
        if source is None or n_drafted == 0:
            return
        self.total.observe_draft(n_drafted, n_accepted)
        self.by_type.setdefault(source, DraftCounts()).observe_draft(n_drafted, n_accepted)


@dataclass(slots=True)
class Timings:
    """Seconds of one generation.

    ``decode_seconds`` runs from the first token to the last, ``overhead_seconds`` is the part of it
    spent outside the target's libllama context. ``draft_seconds`` is what drafters took, all
    together: for drafts, and for reading what the target has decoded, the prompt included.
    """

    load_seconds: float = 0.0
    warmup_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    overhead_seconds: float = 0.0
    draft_seconds: float = 0.0


@dataclass(slots=True)
class Progress:
    """Times (``perf_counter`` seconds) and counters of the generation in progress."""

    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    busy_at_first: float = 0.0
    busy_at_last: float = 0.0
    draft_seconds: float = 0.0
    cached_tokens: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
