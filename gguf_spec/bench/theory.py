"""What the formulas of the literature predict of a speed-up, and what the difference consists of.

With a the chance that a drafted token stands, g the length of a draft and c the time of drafting a
token over that of a plain step (Leviathan et al. 2023, "Fast Inference from Transformers via
Speculative Decoding", equations 1 and 3.8):

    tokens per step   (1 - a^(g+1)) / (1 - a)
    speed-up          (1 - a^(g+1)) / ((1 - a) (g c + 1))

The second takes a step that verifies to cost as much as a plain one, everything else to be free,
and every step to have a draft. ``Explanation`` replaces these by what was measured, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def expected_tokens(a: float, g: float) -> float:
    """Tokens that a step with a draft of ``g`` tokens yields, the target's own included."""
    if a >= 1.0:
        return g + 1.0
    return float((1.0 - a ** (g + 1.0)) / (1.0 - a))


def expected_speedup(a: float, g: float, c: float) -> float:
    """Of drafts of ``g`` tokens, each of which costs ``c`` plain steps."""
    return expected_tokens(a, g) / (g * c + 1.0)


@dataclass(slots=True)
class Tally:
    """Rounds added up; times in seconds. A round is ``drafted`` if its step verified a draft.
    ``refuted`` drafts had a token that did not stand."""

    drafted: int = 0
    undrafted: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    refuted: int = 0
    draft_seconds: float = 0.0
    idle_draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    plain_seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(
        self, n_drafted: int, n_accepted: int, draft_seconds: float, decode_seconds: float
    ) -> None:
        """One round; ``decode_seconds`` is the target's part of it."""
        if n_drafted:
            self.drafted += 1
            self.n_drafted += n_drafted
            self.n_accepted += n_accepted
            self.refuted += n_accepted < n_drafted
            self.draft_seconds += draft_seconds
            self.verify_seconds += decode_seconds
        else:
            self.undrafted += 1
            self.idle_draft_seconds += draft_seconds
            self.plain_seconds += decode_seconds

    def join(self, other: Tally) -> None:
        """Add another one."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def steps(self) -> int:
        """Steps of both kinds."""
        return self.drafted + self.undrafted

    @property
    def engine_seconds(self) -> float:
        """What is neither drafting nor the target: sampling, verification, bookkeeping, text."""
        known = self.draft_seconds + self.idle_draft_seconds
        known += self.verify_seconds + self.plain_seconds
        return max(self.decode_seconds - known, 0.0)

    @property
    def acceptance(self) -> float | None:
        """The chance a that a token stands if those before it do: the likeliest one for these
        drafts, each of which ends at its first refuted token."""
        tested = self.n_accepted + self.refuted
        return self.n_accepted / tested if tested else None

    @property
    def seconds_per_token(self) -> float:
        """Of decoding, all tokens but the first."""
        return self.decode_seconds / (self.steps + self.n_accepted)


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them added up."""
    result = Tally()
    for tally in tallies:
        result.join(tally)
    return result


@dataclass(frozen=True, slots=True)
class Explanation:
    """``a``, ``g``, ``c`` of a set-up, in units of a plain step of ``plain_ms``; ``steps`` are
    factors from the textbook's speed-up to the measured one, each with what it puts right."""

    a: float
    g: float
    c: float
    plain_ms: float
    draft_ms: float
    verify_ms: float
    engine_ms: float
    tokens: tuple[float, float]
    speedups: tuple[tuple[str, float], ...]

    def record(self) -> dict[str, Any]:
        """As JSON. Milliseconds are of a step with a draft."""
        return {
            "a": self.a,
            "g": self.g,
            "c": self.c,
            "plain_step_ms": self.plain_ms,
            "draft_ms": self.draft_ms,
            "verify_ms": self.verify_ms,
            "engine_ms": self.engine_ms,
            "tokens_per_step": {"expected": self.tokens[0], "measured": self.tokens[1]},
            "speedup": [{"with": what, "value": value} for what, value in self.speedups],
        }


def explain(plain: Tally, drafted: Tally) -> Explanation | None:
    """Theory beside practice for a set-up, given what plain decoding took. None if it never
    drafted, or if there is nothing to compare with."""
    a = drafted.acceptance
    if a is None or not plain.steps or plain.decode_seconds <= 0 or drafted.decode_seconds <= 0:
        return None
    unit = plain.decode_seconds / plain.steps
    g = drafted.n_drafted / drafted.drafted
    c = drafted.draft_seconds / drafted.n_drafted / unit
    verify = drafted.verify_seconds / drafted.drafted / unit
    engine = drafted.engine_seconds / drafted.steps / unit
    tokens = 1.0 + drafted.n_accepted / drafted.drafted
    drafting = g * c
    return Explanation(
        a,
        g,
        c,
        1e3 * unit,
        1e3 * drafting * unit,
        1e3 * verify * unit,
        1e3 * engine * unit,
        (expected_tokens(a, g), tokens),
        (
            ("the formula", expected_speedup(a, g, c)),
            ("drafts of differing length and luck", tokens / (drafting + 1.0)),
            ("the time of verifying", tokens / (drafting + verify)),
            ("the engine's time", tokens / (drafting + verify + engine)),
            ("the steps without a draft: measured", unit / drafted.seconds_per_token),
        ),
    )
