"""A text that is invented while it is said: how drafts stand is a matter of chances, and what
everything takes is known exactly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gguf_spec.control import AdaptiveController, CostCurve, DrafterFacts, Hints, Offer, Round

PLAIN = 0.01  # seconds of a plain step
Cost = Callable[[int], float]
Chances = Callable[[int], float]  # the chance that a token stands, by its position in the text


@dataclass(frozen=True)
class Neural:
    """A drafter that takes ``first + each * k`` plain steps for k tokens."""

    chance: Chances
    first: float = 0.05
    each: float = 0.05
    ceiling: int = 8
    reads: bool = True
    reading: float = 0.0  # plain steps for each token of the text that it has not seen
    name: str = "draft-mtp"


@dataclass(frozen=True)
class Copying:
    """An n-gram drafter with a place to copy from whose next token is right with a chance. A token
    that is right makes the match longer, one that is wrong ends it."""

    chance: Chances
    ceiling: int = 48
    name: str = "ngram-simple"


@dataclass
class Trace:
    """What happened: all in plain steps. ``worst`` is the most that was lost at any prefix beyond
    3 % of the time, by true costs."""

    steps: float = 0.0
    n_tokens: int = 0
    worst: float = 0.0
    rounds: list[tuple[int, int | None, int]] = field(default_factory=list)
    """(position, drafter, drafted tokens)"""

    @property
    def speed(self) -> float:
        return self.n_tokens / self.steps

    def drafted_in(self, begin: int, end: int, drafter: int | None = None) -> int:
        """Drafted tokens in rounds that began at these positions of the text."""
        return sum(n for at, by, n in self.rounds if begin <= at < end and drafter in (None, by))


def controller_of(
    drafters: Sequence[Neural | Copying], curve: CostCurve, hints: Hints | None = None
) -> AdaptiveController:
    """A controller that knows what a session would tell it."""
    facts = [
        DrafterFacts(d.name, d.ceiling, ngram=True, size=2)
        if isinstance(d, Copying)
        else DrafterFacts(d.name, d.ceiling, reads=d.reads)
        for d in drafters
    ]
    return AdaptiveController(facts, curve, hints)


def warm(cost: Cost, widths: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16)) -> CostCurve:
    """What a warm-up finds."""
    curve = CostCurve()
    curve.set_curve(0, {width: PLAIN * cost(width) for width in widths})
    return curve


def simulate(
    controller: AdaptiveController,
    drafters: Sequence[Neural | Copying],
    cost: Cost,
    n_tokens: int,
    *,
    noise: float = 0.05,
    seed: int = 0,
    rollback: float = 0.0,
    n_prompt: int = 0,
) -> Trace:
    """Say ``n_tokens`` after a prompt of ``n_prompt`` that is new to all. ``noise``: times are off
    by up to this share, each on its own. A draft costs ``rollback`` plain steps besides."""
    rng = random.Random(seed)
    trace = Trace()
    unread = dict.fromkeys(range(len(drafters)), n_prompt)
    if n_prompt:
        controller.resting(n_prompt, n_prompt)
    bits = {i: _Bits(d, rng) for i, d in enumerate(drafters) if isinstance(d, Copying)}
    before = 0.0

    def noisy(steps: float) -> float:
        return PLAIN * steps * (1.0 + noise * rng.uniform(-1.0, 1.0))

    while trace.n_tokens < n_tokens:
        at = trace.n_tokens
        drafting, used, k, accepted = 0.0, None, 0, 0
        for choice in controller.choose(n_tokens):
            i, drafter = choice.drafter, drafters[choice.drafter]
            if isinstance(drafter, Copying):
                offer = Offer(i, [1] * choice.n_max, bits[i].match)
            else:
                drafting += drafter.first + drafter.each * choice.n_max
                drafting += drafter.reading * unread[i]
                unread[i] = 0
                offer = Offer(i, [1] * choice.n_max)
            k = controller.judge(choice, offer)
            if k:
                used = i
                accepted = _standing(drafter, bits.get(i), at, k, rng)
                break
        new = accepted + 1
        tokens = [0] * new
        for i, copied in bits.items():
            # One n-gram drafter is compared with the text token by token.
            tokens = copied.take(at, new, sure=accepted if i == used else 0)
        for i in unread:
            unread[i] += new
        decode = cost(k + 1)
        took = noisy(drafting) if drafting else 0.0
        controller.record(Round(used, k, accepted, took, noisy(decode), tokens, at, PLAIN * before))
        before = rollback if k else 0.0
        trace.steps += decode + drafting + before
        trace.n_tokens += new
        trace.rounds.append((at, used, k))
        trace.worst = max(trace.worst, 0.97 * trace.steps - trace.n_tokens)
    return trace


def best_speed(drafter: Neural, cost: Cost, chance: float) -> float:
    """The speed of the best fixed length, plain decoding included, for a constant chance."""
    speeds = [1.0]
    for k in range(1, drafter.ceiling + 1):
        tokens = sum(chance**i for i in range(k + 1))
        speeds.append(tokens / (cost(k + 1) + drafter.first + drafter.each * k))
    return max(speeds)


class _Bits:
    """Whether each token of the text is what the copied place has."""

    def __init__(self, drafter: Copying, rng: random.Random) -> None:
        self._chance, self._rng = drafter.chance, rng
        self._known: dict[int, int] = {}
        self.match = 2

    def at(self, position: int) -> int:
        if position not in self._known:
            self._known[position] = int(self._rng.random() < self._chance(position))
        return self._known[position]

    def take(self, at: int, n: int, sure: int) -> list[int]:
        taken = [self.at(at + j) for j in range(n)]
        assert all(taken[:sure])
        for bit in taken:
            self.match = min(self.match + 1, 64) if bit else 2
        return taken


def _standing(
    drafter: Neural | Copying, bits: _Bits | None, at: int, k: int, rng: random.Random
) -> int:
    accepted = 0
    while accepted < k:
        if bits is not None:
            stands = bool(bits.at(at + accepted))
        else:
            stands = rng.random() < drafter.chance(at + accepted)
        if not stands:
            break
        accepted += 1
    return accepted
