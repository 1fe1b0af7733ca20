"""The controller that weighs what a draft costs against what it brings.

A round with a draft of k tokens takes c(k + 1) times a plain step, and the time of drafting; it is
expected to yield 1 + s1 + s1 s2 + ... tokens, with s the chances that each token stands. What gives
the most tokens per second is done, plain decoding included. What is lost all the same, because
estimates are wrong before they are right, comes out of a small budget, so that no text takes
noticeably longer than without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gguf_spec.control.acceptance import MatchChances, PositionChances
from gguf_spec.control.base import Choice, Offer, Round
from gguf_spec.control.costs import TIERS, CostCurve

LENGTHS = tuple(width - 1 for width in TIERS if width > 1)

_BETTER = 1.03  # a draft has to promise this much more speed than none
_STAY = 1.05  # another length than the last has to be this much better
_BUDGET_TOKENS = 8.0  # what may be lost at once, in plain tokens
_BUDGET_SHARE = 0.03  # and over time
_RESERVE = 0.75  # of both, planned with: times are noisy
_CREDIT_TOKENS = 48.0  # gains beyond this do not pay for later losses
_PROBE_LENGTH = 2
_PROBE_ROUNDS = 3
_FIRST_PAUSE = 64  # tokens
_LONGEST_PAUSE = 384
_DOUBT = 3.0
_THINK_ROUNDS = 4
_FAST = 100.0  # plain tokens/s above which a mixture of experts hardly ever gains


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a controller knows of a drafter. ``ngram``: it only looks things up. ``size`` is how
    many tokens such a look-up has in common with the text at least."""

    name: str
    ceiling: int
    floor: int = 1
    ngram: bool = False
    size: int = 1


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of a generation beforehand: whether the target is a mixture of experts, and the
    temperature."""

    experts: bool = False
    temperature: float = 0.0


@dataclass(slots=True)
class _Shadow:
    """An n-gram draft that the text is compared with as it grows."""

    tokens: Sequence[int]
    match: int
    position: int = 0


@dataclass(slots=True)
class _Neural:
    """A drafter that costs something: what it costs, how good it is, whether it rests."""

    chances: PositionChances
    lengths: tuple[int, ...]
    seconds: dict[int, float] = field(default_factory=dict)
    probes: int = _PROBE_ROUNDS
    resume_at: int = 0
    pause: int = _FIRST_PAUSE
    last_length: int = 0
    reason: str | None = None
    estimate: tuple[int, float, float] | None = None
    age: int = 0


class AdaptiveController:
    """Chooses by measured cost and acceptance; see the module.

    ``curve`` is shared by the generations of a session and learns from all of them.
    """

    def __init__(
        self, drafters: Sequence[DrafterFacts], curve: CostCurve, hints: Hints | None = None
    ) -> None:
        self._facts = tuple(drafters)
        self._curve = curve
        self._matches = {i: MatchChances() for i, facts in enumerate(drafters) if facts.ngram}
        self._neural = {
            i: _Neural(
                PositionChances(facts.ceiling),
                (*(n for n in LENGTHS if n < facts.ceiling), facts.ceiling),
            )
            for i, facts in enumerate(drafters)
            if not facts.ngram and facts.ceiling > 0
        }
        self._shadows: dict[int, _Shadow] = {}
        self._dropped: set[int] = set()
        self._tokens = 0
        self._elapsed = 0.0
        self._lost = 0.0
        self._depth = 0
        self._best_rate = 0.0
        self.begin(hints or Hints())

    # ------------------------------------------------------------ protocol

    def begin(self, hints: Hints) -> None:
        """A generation starts: its budget is new. What was learned stays, pauses too: a text may be
        another one than before, and many answers are shorter than what looking again would take."""
        self._shadows.clear()
        self._elapsed = self._lost = 0.0
        base = self._curve.base
        fast = base is not None and base < 1.0 / _FAST
        for i, neural in self._neural.items():
            if hints.experts and fast and not neural.seconds:
                self._rest(
                    neural,
                    f"{self._facts[i].name} waits: a batch reads more experts of this model, which "
                    f"decodes {1.0 / (base or 1.0):.0f} tokens/s without drafts",
                )

    def choose(self, limit: int) -> Sequence[Choice]:
        """N-grams first, in order, because asking them is free; then the best of the others."""
        choices = [
            Choice(i, min(limit, facts.ceiling), facts.floor)
            for i, facts in enumerate(self._facts)
            if facts.ngram and facts.ceiling > 0 and i not in self._dropped
        ]
        base = self._curve.base
        if base is None:  # nothing is known yet: a plain step tells
            self._best_rate = float("inf")
            return choices
        self._best_rate = _BETTER / base
        best: Choice | None = None
        for i, neural in self._neural.items():
            choice = self._plan(i, neural, limit, base)
            if choice is not None:
                best = choice
        return [*choices, best] if best is not None else choices

    def judge(self, choice: Choice, offer: Offer) -> int:
        """The length with the most expected tokens per second, if it is better than the rest."""
        n = len(offer.tokens)
        i = choice.drafter
        if i in self._neural:
            return n if n >= choice.n_min else 0
        match = max(offer.match, self._facts[i].size)
        if i not in self._shadows and n:
            self._shadows[i] = _Shadow(tuple(offer.tokens), match)
        base = self._curve.base
        if base is None or n < choice.n_min:
            return 0
        lengths = [k for k in LENGTHS if k < n]
        lengths.append(n)
        expected = self._matches[i].expected(match, lengths)
        room = self._room(base)
        best, best_rate = 0, self._best_rate
        for k, tokens in zip(lengths, expected, strict=True):
            cost = self._curve.ratio(k + 1, self._depth)
            if k < choice.n_min:
                continue
            if (cost - 1.0) * base > room:
                break
            rate = tokens / (cost * base)
            if rate > best_rate:
                best, best_rate = k, rate
        return best

    def record(self, result: Round) -> None:
        """Learn what the round cost and what became of all drafts that are known."""
        tokens = result.tokens
        n_new = len(tokens)
        width = result.n_drafted + 1
        curve = self._curve
        curve.observe(width, result.depth, result.decode_seconds)
        base = curve.base or result.decode_seconds
        self._depth = result.depth + n_new
        self._tokens += n_new
        seconds = result.decode_seconds + result.draft_seconds
        self._elapsed += seconds
        drafted = result.drafter is not None and result.n_drafted > 0
        lost = seconds - n_new * base if drafted else result.draft_seconds
        self._lost = max(self._lost + lost, -_CREDIT_TOKENS * base)
        if self._shadows:
            self._compare(tokens)
        neural = self._neural.get(result.drafter) if result.drafter is not None else None
        if neural is not None and drafted:
            neural.chances.observe(result.n_drafted, result.n_accepted)
            _learn_seconds(neural.seconds, result.n_drafted, result.draft_seconds)
            neural.probes = max(neural.probes - 1, 0)

    def drop(self, drafter: int) -> None:
        """Do not ask it again."""
        self._matches.pop(drafter, None)
        self._shadows.pop(drafter, None)
        self._neural.pop(drafter, None)
        self._dropped.add(drafter)

    # -------------------------------------------------------------- report

    @property
    def wasted_seconds(self) -> float:
        """The time lost to drafts so far, gains set against it as far as they count."""
        return self._lost

    @property
    def paused(self) -> str | None:
        """Why drafters are not asked at present; None if all of them are."""
        reasons = [
            neural.reason
            for neural in self._neural.values()
            if neural.reason and self._tokens < neural.resume_at
        ]
        return "; ".join(reasons) or None

    def cost(self) -> dict[str, float]:
        """The measured curve at the present depth, by width."""
        known = self._curve.known(self._depth)
        return {str(width): round(ratio, 3) for width, ratio in known.items()}

    # ---------------------------------------------------------------- rest

    def _room(self, base: float) -> float:
        """The time that a draft may lose now."""
        budget = _BUDGET_TOKENS * base + _BUDGET_SHARE * self._elapsed
        return _RESERVE * budget - self._lost

    def _plan(self, i: int, neural: _Neural, limit: int, base: float) -> Choice | None:
        """What to ask of a drafter that costs time; None: nothing, it does not pay."""
        if self._tokens < neural.resume_at:
            return None
        facts = self._facts[i]
        lengths = [k for k in neural.lengths if k < limit]
        if not lengths or lengths[-1] < neural.lengths[-1]:
            lengths.append(min(limit, neural.lengths[-1]))
        if not neural.seconds:
            return self._probe(i, neural, lengths, base)
        best, best_tokens, relative = self._estimate(neural, lengths, facts.floor, base)
        best_rate = relative / base
        if best_rate * base < _BETTER:
            if neural.probes:
                return self._probe(i, neural, lengths, base)
            cost = best_tokens / (best_rate * base) if best_rate else 0.0
            self._rest(
                neural,
                f"{facts.name} pauses: a draft of {best} takes the time of {cost:.1f} plain tokens "
                f"and brings {best_tokens:.1f}",
            )
            return None
        seconds = best_tokens / best_rate
        if seconds - base > self._room(base):
            return None
        neural.pause, neural.reason = _FIRST_PAUSE, None
        neural.last_length = best
        if best_rate <= self._best_rate:
            return None
        self._best_rate = best_rate
        return Choice(i, best, facts.floor, self._floor(neural, best, best_rate, base))

    def _estimate(
        self, neural: _Neural, lengths: Sequence[int], floor: int, base: float
    ) -> tuple[int, float, float]:
        """The best length, the tokens that it yields and its speed beside plain decoding. It is
        thought over every few rounds: one round changes little."""
        known = neural.estimate
        if known is not None and neural.age < _THINK_ROUNDS and known[0] <= lengths[-1]:
            neural.age += 1
            return known
        best, best_tokens, best_speed, stay = 0, 1.0, 0.0, (0, 1.0, 0.0)
        expected = neural.chances.expected(lengths)
        for k, tokens in zip(lengths, expected, strict=True):
            if k < floor:
                continue
            cost = self._curve.ratio(k + 1, self._depth) + _seconds(neural.seconds, k) / base
            speed = tokens / cost
            if speed > best_speed:
                best, best_tokens, best_speed = k, tokens, speed
            if k == neural.last_length:
                stay = k, tokens, speed
        neural.estimate, neural.age = (best, best_tokens, best_speed), 0
        if stay[2] * _STAY > best_speed:
            neural.estimate = stay
        return neural.estimate

    def _probe(self, i: int, neural: _Neural, lengths: Sequence[int], base: float) -> Choice | None:
        """A short draft to see what it costs and how good it is, if there is budget for it."""
        k = max(min(_PROBE_LENGTH, lengths[-1]), self._facts[i].floor)
        if k > lengths[-1]:
            return None
        guess = _seconds(neural.seconds, k) if neural.seconds else base
        if (self._curve.ratio(k + 1, self._depth) - 1.0) * base + guess > self._room(base):
            return None
        return Choice(i, k, self._facts[i].floor)

    def _rest(self, neural: _Neural, reason: str) -> None:
        """Do not ask for a while; afterwards look again, with what was learned in doubt."""
        neural.resume_at = self._tokens + neural.pause
        neural.pause = min(2 * neural.pause, _LONGEST_PAUSE)
        neural.probes = _PROBE_ROUNDS
        neural.reason = reason
        neural.chances.doubt(_DOUBT)
        neural.estimate = None

    def _floor(self, neural: _Neural, k: int, rate: float, base: float) -> float:
        """The chance at which one token more is just worth its time."""
        more = self._curve.ratio(k + 1, self._depth) - self._curve.ratio(max(k, 1), self._depth)
        drafting = _seconds(neural.seconds, k) - _seconds(neural.seconds, k - 1) if k > 1 else 0.0
        return min(max(rate * (more * base + max(drafting, 0.0)), 0.0), 1.0)

    def _compare(self, tokens: Sequence[int]) -> None:
        """Hold the known n-gram drafts against the tokens that came."""
        for i in list(self._shadows):
            shadow, chances = self._shadows[i], self._matches[i]
            drafted, position, match = shadow.tokens, shadow.position, shadow.match
            for token in tokens:
                stood = drafted[position] == token
                chances.observe(match + position, stood)
                position += 1
                if not stood or position == len(drafted):
                    del self._shadows[i]
                    break
            shadow.position = position


def _learn_seconds(seconds: dict[int, float], n: int, took: float) -> None:
    """Remember that drafting ``n`` tokens ``took`` seconds."""
    before = seconds.get(n)
    seconds[n] = took if before is None else before + 0.2 * (took - before)


def _seconds(seconds: dict[int, float], n: int) -> float:
    """The time of drafting ``n`` tokens, from that of the nearest lengths known."""
    if n in seconds:
        return seconds[n]
    if n <= 0 or not seconds:
        return 0.0
    near = sorted(seconds, key=lambda k: abs(k - n))[:2]
    if len(near) == 1:
        return seconds[near[0]] * (n + 1) / (near[0] + 1)
    a, b = sorted(near)
    slope = max((seconds[b] - seconds[a]) / (b - a), 0.0)
    return max(seconds[a] + slope * (n - a), 0.0)
