"""What is known of a drafter that costs time: how long it takes, how good it is, if it rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gguf_spec.control.acceptance import PositionChances
from gguf_spec.control.costs import CostCurve

PROBE_ROUNDS = 3
_PROBES_AFTER_PAUSE = 5  # perfect ones have to outweigh what was bad before
FIRST_PAUSE = 64  # tokens
_LONGEST_PAUSE = 384
_STAY = 1.05  # another length than the last has to be this much better
_DOUBT = 1.0
_THINK_ROUNDS = 4
_RATE = 0.2  # what a new time weighs
_MOST = 2.0  # a time is not taken for more than this, in known ones
_BACKLOG = 16  # unread tokens that a draft may have to read without being called slow
_LONGEST_REST = 16  # requests


@dataclass(slots=True)
class Plan:
    """A length of draft, the tokens that the round is expected to yield, and how much faster that
    is than plain decoding."""

    length: int = 0
    tokens: float = 1.0
    speed: float = 0.0


@dataclass(slots=True)
class Requests:
    """What a drafter's reading of prompts costs and what its drafts bring, request by request.

    ``reading`` and ``gain`` are seconds per token of the prompt and of the answer, the first of
    them from so many ``readings``. ``resting``: it
    does not take part in the request in progress, of which there have been ``rested`` in a row.
    """

    reading: float | None = None
    readings: int = 0
    gain: float | None = None
    won: float = 0.0
    resting: bool = False
    rested: int = 0
    most: int = 1
    reason: str | None = None

    def read(self, rate: float) -> None:
        """A prompt has been read, in ``rate`` seconds for each token."""
        if self.reading is None:
            self.reading = rate
        elif self.readings == 1:  # it may have been the first one that was slow
            self.reading = min(self.reading, rate)
        else:
            self.reading = followed(self.reading, rate, 0.5)
        self.readings += 1

    def close(self, n_tokens: int) -> None:
        """A request has ended, with an answer of ``n_tokens``."""
        if n_tokens and not self.resting:
            gain = self.won / n_tokens
            self.gain = gain if self.gain is None else self.gain + 0.5 * (gain - self.gain)
        self.won = 0.0

    def decide(self, cost: float, usual: float) -> bool:
        """Whether to rest in the next request, whose prompt takes ``cost`` seconds, if answers have
        ``usual`` tokens. After 1, 2, 4 … 16 such requests it has another chance."""
        gain = max(self.gain or 0.0, 0.0) * usual
        pays = self.gain is None or cost <= gain
        if pays:
            self.most = 1
        elif self.rested >= self.most:
            self.most = min(2 * self.most, _LONGEST_REST)
            pays = True
        self.rested = 0 if pays else self.rested + 1
        self.resting = not pays
        self.reason = (
            None
            if pays
            else (
                f"rests for this answer: reading the prompt would take {_duration(cost)}, and its "
                f"drafts win {_duration(gain)} in a usual answer of {usual:.0f} tokens"
            )
        )
        return self.resting


@dataclass(slots=True)
class Paying:
    """A drafter that takes time. ``seconds`` of drafting by length; ``unread`` tokens of the text
    that it has not seen, ``reading`` seconds for each of them; one that ``follows`` the target has
    seen all. ``prompt`` of the unread ones are the prompt's: reading those is weighed against a
    whole answer, see ``Requests``, and not against what may be lost now. ``cramped``: what it waits
    for is room. ``measured`` drafts were timed."""

    name: str
    floor: int
    lengths: tuple[int, ...]
    chances: PositionChances
    follows: bool = False
    seconds: dict[int, float] = field(default_factory=dict)
    probes: int = PROBE_ROUNDS
    resume_at: int = 0
    pause: int = FIRST_PAUSE
    last_length: int = 0
    reason: str | None = None
    plan: Plan | None = None
    age: int = 0
    unread: int = 0
    prompt: int = 0
    reading: float | None = None
    requests: Requests = field(default_factory=Requests)
    cramped: bool = False
    measured: int = 0

    def possible(self, limit: int) -> list[int]:
        """The lengths of draft up to ``limit``, ascending, that are told apart."""
        lengths = [k for k in self.lengths if k < limit]
        if not lengths or lengths[-1] < self.lengths[-1]:
            lengths.append(min(limit, self.lengths[-1]))
        return lengths

    def best(
        self, lengths: Sequence[int], curve: CostCurve, depth: int, rollback: dict[int, float]
    ) -> Plan:
        """The best of ``lengths``. It is thought over every few rounds: one changes little."""
        known = self.plan
        if known is not None and self.age < _THINK_ROUNDS and known.length <= lengths[-1]:
            self.age += 1
            return known
        self.plan = self.weighed(lengths, curve, depth, rollback)
        self.age = 0
        return self.plan

    def weighed(
        self, lengths: Sequence[int], curve: CostCurve, depth: int, rollback: dict[int, float]
    ) -> Plan:
        """As ``best``, thought over now; an empty plan if all are shorter than the floor."""
        base = curve.base
        assert base is not None
        best, stay = Plan(), Plan()
        for k, tokens in zip(lengths, self.chances.expected(lengths), strict=True):
            if k < self.floor:
                continue
            extra = seconds_of(self.seconds, k) + seconds_of(rollback, k)
            speed = tokens / (curve.ratio(k + 1, depth) + extra / base)
            if speed > best.speed:
                best = Plan(k, tokens, speed)
            if k == self.last_length:
                stay = Plan(k, tokens, speed)
        return stay if stay.speed * _STAY > best.speed else best

    def backlog(self, curve: CostCurve, depth: int) -> float:
        """Seconds that reading what it has missed of the answer will take. The first time that is a
        guess: its batches gain what those of the target gain, and it takes as long as the target at
        most."""
        missed = self.unread - self.prompt
        if missed <= _BACKLOG or self.follows:
            return 0.0
        reading = self.reading
        if reading is None:
            single = seconds_of(self.seconds, 1) if self.seconds else curve.base or 0.0
            reading = single * curve.ratio(64, depth) / 64
        return reading * missed

    def prompt_seconds(self, n_drafted: int, took: float) -> float:
        """How much of ``took``, the time of a draft, was for reading the prompt."""
        if not self.prompt or self.unread <= _BACKLOG:
            return 0.0
        rate = max(took - seconds_of(self.seconds, n_drafted), 0.0) / self.unread
        return rate * self.prompt

    def learn(self, n_drafted: int, took: float) -> None:
        """It ``took`` so many seconds to draft, and to read what it had missed."""
        if self.unread > _BACKLOG and not self.follows:
            rate = max(took - seconds_of(self.seconds, n_drafted), 0.0) / self.unread
            self.reading = rate if self.reading is None else followed(self.reading, rate, 0.5)
            if self.prompt > _BACKLOG:
                self.requests.read(rate)
        else:
            learn_seconds(self.seconds, n_drafted, took)
            self.measured += 1
        self.unread = self.prompt = 0

    def rest(self, now: int, reason: str) -> None:
        """Do not ask for a while; afterwards look again, with what was learned in doubt."""
        self.resume_at, self.cramped = now + self.pause, False
        self.pause = min(2 * self.pause, _LONGEST_PAUSE)
        self.probes = _PROBES_AFTER_PAUSE
        self.reason = f"{self.name} {reason}"
        self.chances.doubt(_DOUBT)
        self.plan = None

    def wait(self, now: int) -> None:
        """A draft would pay, and there is no room for it: most likely the answer ends. Look again
        after a while, or in the next answer, which begins as if nothing had been."""
        self.resume_at, self.cramped = now + FIRST_PAUSE, True
        self.probes = PROBE_ROUNDS
        self.plan = self.reason = None

    def begin(self, chances: PositionChances) -> None:
        """An answer begins, in which drafts stand with these ``chances``."""
        self.chances, self.plan = chances, None
        if self.measured == 1:  # it may have been the first one that was slow: look once more
            self.seconds.clear()
            self.probes = PROBE_ROUNDS
            self.resume_at = 0
        if self.cramped:
            self.resume_at = self.probes = 0
            self.cramped = False


def learn_seconds(seconds: dict[int, float], n: int, took: float) -> None:
    """Remember that a draft of ``n`` tokens ``took`` seconds."""
    before = seconds.get(n)
    seconds[n] = took if before is None else followed(before, took, _RATE)


def followed(before: float, now: float, rate: float) -> float:
    """What is known of a time, ``before``, after it took ``now``. One that took far longer says
    more of the machine, which was asleep or had others to serve, than of what was timed."""
    if before > 0.0:
        now = min(now, _MOST * before)
    return before + rate * (now - before)


def seconds_of(seconds: dict[int, float], n: int) -> float:
    """The time of a draft of ``n`` tokens, from that of the nearest lengths known."""
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


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{1000 * seconds:.0f} ms"
