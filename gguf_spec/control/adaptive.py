"""The controller that weighs what a draft costs against what it brings.

A round with a draft of k tokens takes c(k + 1) times a plain step, and the time of drafting; it is
expected to yield 1 + s1 + s1 s2 + ... tokens, with s the chances that each token stands. What gives
the most tokens per second is done, plain decoding included. What is lost all the same, because
estimates are wrong before they are right, comes out of a small budget, so that no text takes
noticeably longer than without drafts. What is lost is known only beside the time of a plain step:
so there is one soon after the beginning, one now and then, and one when steps take another time
than they should.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gguf_spec.control.acceptance import MatchChances, PositionChances
from gguf_spec.control.base import Choice, Offer, Round, possible_seconds, told_by_a_clock
from gguf_spec.control.costs import TIERS, CostCurve
from gguf_spec.control.paying import FIRST_PAUSE, Paying, Plan, learn_seconds, seconds_of

LENGTHS = tuple(width - 1 for width in TIERS if width > 1)

_BETTER = 1.03  # a draft has to promise this much more speed than none
_PROOF = 0.5  # so much more where nothing has been won yet,
_PROOF_TOKENS = 4.0  # less and less up to so many plain tokens
_SURE_MATCH = 8  # and nothing more where so many tokens agree
_BUDGET_TOKENS = 8.0  # what may be lost at once, in plain tokens
_BUDGET_SHARE = 0.03  # and over time
_RESERVE = 0.75  # of both, planned with: times are noisy
_CREDIT_TOKENS = 48.0  # gains beyond this do not pay for later losses
_LEAST_FLOOR = 0.1  # a lower one is not worth computing probabilities for
_ANCHOR = 64  # drafted rounds after which a plain one is due
_SOON = 8  # and when steps take another time than expected
_STRANGE = 0.15  # in log-seconds, on the average of some rounds
_FAST = 100.0  # plain tokens/s above which a mixture of experts hardly ever gains
_HOT = 0.8  # temperature from which on even likely tokens are often not drawn
_USUAL_TOKENS = 256.0  # of an answer, before any is known


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a controller knows of a drafter. ``ngram``: it only looks things up. ``size`` is how
    many tokens such a look-up has in common with the text at least. ``reads``: it follows the
    target through the prompt."""

    name: str
    ceiling: int
    floor: int = 1
    ngram: bool = False
    size: int = 1
    reads: bool = False


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


class AdaptiveController:
    """Chooses by measured cost and acceptance; see the module.

    ``curve`` is shared by the generations of a session and learns from all of them. Drafters that
    take time are first asked for ``first_length`` tokens: two are the best length of MTP heads on
    most GPUs.
    """

    def __init__(
        self,
        drafters: Sequence[DrafterFacts],
        curve: CostCurve,
        hints: Hints | None = None,
        *,
        first_length: int = 2,
    ) -> None:
        self._first_length = first_length
        self._facts = tuple(drafters)
        self._curve = curve
        self._matches: dict[int, MatchChances] = {}
        self._known: dict[tuple[int, bool], MatchChances | PositionChances] = {}
        self._paying = {
            i: Paying(
                facts.name,
                facts.floor,
                (*(n for n in LENGTHS if n < facts.ceiling), facts.ceiling),
                PositionChances(facts.ceiling),
                facts.reads,
            )
            for i, facts in enumerate(drafters)
            if not facts.ngram and facts.ceiling > 0
        }
        self._shadows: dict[int, _Shadow] = {}
        self._dropped: set[int] = set()
        self._asked: int | None = None
        self._rollback: dict[int, float] = {}
        self._n_last = 0
        self._tokens = 0
        self._started_at = 0
        self._usual = _USUAL_TOKENS
        self._elapsed = self._lost = 0.0
        self._depth = 0
        self._best_rate = 0.0
        self._until_plain = 0
        self._strange = 0.0
        self.begin(hints or Hints())

    # ------------------------------------------------------------ protocol

    def begin(self, hints: Hints) -> None:
        """A generation starts: its budget is new. What was learned stays, pauses too: a text may be
        another one than before, and many answers are shorter than what looking again would take."""
        n_answer = self._tokens - self._started_at
        self._started_at = self._tokens
        self._usual += 0.3 * (n_answer - self._usual) if n_answer else 0.0
        self._shadows.clear()
        self._elapsed = self._lost = 0.0
        self._until_plain, self._strange, self._n_last = _SOON, 0.0, 0
        self._curve.doubt_base()
        hot = hints.temperature >= _HOT
        base = self._curve.base
        fast = base is not None and base < 1.0 / _FAST
        for i, facts in enumerate(self._facts):
            if facts.ngram:
                known = self._known.setdefault((i, hot), MatchChances(hot=hot))
                assert isinstance(known, MatchChances)
                self._matches[i] = known
        for i, paying in self._paying.items():
            paying.requests.close(n_answer)
            chances = self._known.setdefault((i, hot), PositionChances(self._facts[i].ceiling))
            assert isinstance(chances, PositionChances)
            paying.begin(chances)
            if hints.experts and fast and not paying.seconds and not paying.reason:
                paying.rest(
                    self._tokens,
                    "waits: a batch reads more experts of this model, which decodes "
                    f"{1.0 / (base or 1.0):.0f} tokens/s without drafts",
                )

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        """Drafters whose reading of the prompt would cost more than their drafts bring. One that
        rested before has to read all of it, and the target once more for it."""
        resting = set()
        base = self._curve.base or 0.0
        target = base * self._curve.ratio(64, self._depth) / 64
        for i, paying in self._paying.items():
            requests = paying.requests
            paying.unread += n_new
            if not paying.follows:
                paying.prompt = paying.unread
            if requests.reading is None:
                continue
            cost = requests.reading * (n_new if paying.follows else paying.unread)
            if requests.resting and paying.follows:
                cost = requests.reading * n_prompt + target * (n_prompt - n_new)
            if requests.decide(cost, self._usual):
                resting.add(i)
        return frozenset(resting)

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """Drafter number ``drafter`` took so long for reading so many tokens of a prompt."""
        paying = self._paying.get(drafter)
        if paying is None or not n_tokens or not self._facts[drafter].reads:
            return
        paying.requests.read(possible_seconds(seconds) / n_tokens)

    def choose(self, limit: int) -> Sequence[Choice]:
        """N-grams first, in order, because asking them is free; then the best of the others."""
        self._asked = None
        choices = [
            Choice(i, min(limit, facts.ceiling), facts.floor)
            for i, facts in enumerate(self._facts)
            if facts.ngram and facts.ceiling > 0 and i not in self._dropped
        ]
        base = self._curve.base
        if base is None or self._until_plain <= 0:
            self._best_rate = float("inf")  # a plain step: n-gram drafts are looked at only
            return choices
        self._best_rate = _BETTER / base
        best: Choice | None = None
        for i, paying in self._paying.items():
            choice = self._plan(i, paying, limit, base)
            if choice is not None:
                best = choice
        if best is None:
            return choices
        self._asked = best.drafter
        return [*choices, best]

    def judge(self, choice: Choice, offer: Offer) -> int:
        """The length with the most expected tokens per second, if it is better than the rest."""
        n = len(offer.tokens)
        i = choice.drafter
        if i in self._paying:
            return n if n >= choice.n_min else 0
        match = offer.match or self._facts[i].size
        if i not in self._shadows and n:
            self._shadows[i] = _Shadow(tuple(offer.tokens), match)
        base = self._curve.base
        if base is None or n < choice.n_min or self._until_plain <= 0:
            return 0
        best, best_rate = 0, max(self._best_rate, self._proof(match) / base)
        chances = self._matches[i]
        if (
            chances.expected(match, (n,))[0]
            <= best_rate * base * self._curve.bounds(2, self._depth)[0]
        ):
            return 0  # not even if all of it took no longer than a draft of one token
        lengths, costs = self._affordable(n, choice.n_min, base)
        expected = chances.expected(match, lengths)
        for k, tokens, seconds in zip(lengths, expected, costs, strict=True):
            rate = tokens / seconds
            if rate > best_rate:
                best, best_rate = k, rate
        return best

    def _affordable(self, n: int, n_min: int, base: float) -> tuple[list[int], list[float]]:
        """Lengths of an n-gram draft of ``n`` tokens, with the seconds that they take, as far as
        there is room for losing them."""
        lengths: list[int] = []
        costs: list[float] = []
        room, depth, rollback = self._room(base), self._depth, self._rollback
        for length in (*LENGTHS, n):
            k = min(length, n)
            ratio, most = self._curve.bounds(k + 1, depth)
            extra = seconds_of(rollback, k) if rollback else 0.0
            if k >= n_min:
                if (most - 1.0) * base + extra > room:
                    break
                lengths.append(k)
                costs.append(ratio * base + extra)
            if k == n:
                break
        return lengths, costs

    def _proof(self, match: int) -> float:
        """How much faster than plain decoding an n-gram draft has to promise to be. Short matches
        are guesses until drafts have won something in this text, and many answers are short."""
        if match >= _SURE_MATCH:
            return _BETTER
        won = -self._lost / (self._curve.base or 1.0)
        return _BETTER + _PROOF * min(max(1.0 - won / _PROOF_TOKENS, 0.0), 1.0)

    def record(self, result: Round) -> None:
        """Learn what the round cost and what became of all drafts that are known."""
        result = told_by_a_clock(result)
        tokens, n_drafted = result.tokens, result.n_drafted
        n_new = len(tokens)
        self._learn_costs(result)
        base = self._curve.base or result.decode_seconds
        self._depth = result.depth + n_new
        self._tokens += n_new
        seconds = result.decode_seconds + result.draft_seconds
        self._elapsed += seconds + result.rollback_seconds
        drafted = result.drafter is not None and n_drafted > 0
        by = result.drafter if drafted else self._asked
        paid = None if by is None else self._paying.get(by)
        lost = seconds - n_new * base if drafted else result.draft_seconds
        if paid is not None:
            lost -= paid.prompt_seconds(max(n_drafted, 1), result.draft_seconds)
        self._lost = max(self._lost + lost + result.rollback_seconds, -_CREDIT_TOKENS * base)
        if self._shadows:
            self._compare(tokens)
        for paying in self._paying.values():
            paying.unread += n_new
        if paid is not None:
            # One that was asked in vain has drafted nothing that it believes in itself.
            paid.unread -= n_new
            paid.chances.observe(max(n_drafted, 1), result.n_accepted)
            paid.learn(max(n_drafted, 1), result.draft_seconds)
            paid.unread = n_new
            paid.probes = max(paid.probes - 1, 0)
            paid.requests.won -= min(lost, _BUDGET_TOKENS * base)  # more is none of its doing
        self._asked = None

    def drop(self, drafter: int) -> None:
        """Do not ask it again."""
        self._shadows.pop(drafter, None)
        self._paying.pop(drafter, None)
        self._dropped.add(drafter)

    # -------------------------------------------------------------- report

    @property
    def wasted_seconds(self) -> float:
        """The time lost to drafts so far, gains set against it as far as they count."""
        return self._lost

    @property
    def paused(self) -> str | None:
        """Why drafters are not asked at present; None if all of them are."""
        reasons = []
        for paying in self._paying.values():
            if paying.requests.resting:
                reasons.append(f"{paying.name} {paying.requests.reason}")
            elif paying.reason and self._tokens < paying.resume_at:
                reasons.append(paying.reason)
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

    def _learn_costs(self, result: Round) -> None:
        """Take the times of a round; decide when the next plain one is due."""
        curve, width = self._curve, result.n_drafted + 1
        if (result.rollback_seconds or self._rollback) and self._n_last:
            learn_seconds(self._rollback, self._n_last, result.rollback_seconds)
        self._n_last = result.n_drafted
        surprise = curve.observe(width, result.depth, result.decode_seconds)
        if width == 1:
            self._until_plain, self._strange = _ANCHOR, 0.0
            return
        self._until_plain -= 1
        self._strange += 0.3 * (surprise - self._strange)
        if abs(self._strange) > _STRANGE and self._until_plain < _ANCHOR - _SOON:
            self._until_plain, self._strange = 0, 0.0
            curve.doubt_base()

    def _plan(self, i: int, paying: Paying, limit: int, base: float) -> Choice | None:
        """What to ask of a drafter that costs time; None: nothing, it does not pay."""
        if self._tokens < paying.resume_at or paying.requests.resting:
            return None
        lengths = paying.possible(limit)
        backlog = paying.backlog(self._curve, self._depth)
        if backlog > self._room(base):
            return None
        if not paying.seconds:
            return self._probe(i, paying, lengths, base, backlog)
        plan = paying.best(lengths, self._curve, self._depth, self._rollback)
        if plan.speed < _BETTER:
            if paying.probes:
                return self._probe(i, paying, lengths, base, backlog)
            self._rest(paying, plan, cramped=lengths[-1] < paying.lengths[-1])
            return None
        extra = seconds_of(paying.seconds, plan.length) + seconds_of(self._rollback, plan.length)
        if self._at_stake(plan.length, base) + extra + backlog > self._room(base):
            return None
        paying.pause, paying.reason = FIRST_PAUSE, None
        paying.last_length = plan.length
        if plan.speed / base <= self._best_rate:
            return None
        self._best_rate = plan.speed / base
        floor = self._floor(paying, plan.length, plan.speed / base, base)
        return Choice(i, plan.length, paying.floor, floor)

    def _rest(self, paying: Paying, plan: Plan, *, cramped: bool) -> None:
        """``plan`` does not pay: do not ask for a while. ``cramped``: there was no room for longer
        drafts, whose fault it is not if one of those would."""
        if cramped:
            plan = paying.weighed(paying.lengths, self._curve, self._depth, self._rollback)
            if plan.speed >= _BETTER:
                paying.wait(self._tokens)
                return
        cost = plan.tokens / plan.speed if plan.speed else 0.0
        paying.rest(
            self._tokens,
            f"pauses: a draft of {plan.length} takes the time of {cost:.1f} plain tokens and "
            f"brings {plan.tokens:.1f}",
        )

    def _probe(
        self, i: int, paying: Paying, lengths: Sequence[int], base: float, backlog: float
    ) -> Choice | None:
        """A short draft to see what it costs and how good it is, if there is budget for it."""
        k = max(min(self._first_length, lengths[-1]), paying.floor)
        if k > lengths[-1]:
            return None
        guess = seconds_of(paying.seconds, k) if paying.seconds else base
        guess += seconds_of(self._rollback, k) + backlog
        if self._at_stake(k, base) + guess > self._room(base):
            return None
        return Choice(i, k, paying.floor)

    def _at_stake(self, k: int, base: float) -> float:
        """What verifying a draft of ``k`` tokens loses if none of them stands."""
        return (self._curve.most(k + 1, self._depth) - 1.0) * base

    def _floor(self, paying: Paying, k: int, rate: float, base: float) -> float:
        """The chance at which one token more is just worth its time."""
        if k < 2:
            return 0.0
        more = self._curve.ratio(k + 1, self._depth) - self._curve.ratio(k, self._depth)
        drafting = seconds_of(paying.seconds, k) - seconds_of(paying.seconds, k - 1)
        floor = rate * (more * base + max(drafting, 0.0))
        return min(floor, 1.0) if floor >= _LEAST_FLOOR else 0.0

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
