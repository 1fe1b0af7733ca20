"""How drafters draw, and which rule verifies: chosen by the settings, and by what was accepted.

| way | the drafter takes | rule |
|---|---|---|
| ``greedy`` | the likeliest token | match |
| ``coupled`` | the token that the target's noise draws from its distribution | match |
| ``own`` | a token drawn by chance of its own | residual |

With one distribution for the target and one for the drafter, a token stands in this share of cases:
greedy in target_probs(likeliest of the drafter), own in sum(min(target_probs, draft_probs)), which
no other draw from draft_probs exceeds, and coupled in a little less than that. Greedy is better
than both where the drafter is too unsure. So with ``auto`` it is measured. The text depends on the
choice under the residual rule alone: by ``match`` every token is the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from gguf_spec.sampling import DraftWay, Sampler, SamplingParams

Rule: TypeAlias = Literal["match", "residual"]
Exactness: TypeAlias = Literal["seed-exact", "distribution-exact"]

# Rounds of one way in a row while ways are compared, such blocks for each at first, and rounds of
# the better way until the next comparison. Any numbers are right; with these one round in
# seventeen goes to the second of two ways.
_BLOCK = 16
_FIRST_BLOCKS = 2
_KEEP = 256
# Tested tokens that a way's acceptance is remembered over: text changes.
_MEMORY = 512.0


class Trial:
    """Several ways to draw for one drafter, and which of them is accepted most.

    Blocks of rounds take turns, then the better way is kept for a while, then the others have a
    block each again. Another way takes over when its share of accepted among tested tokens is
    larger by more than its uncertainty, so equal ones do not change places. Tokens after a rejected
    one have not been tested and do not count.
    """

    def __init__(self, ways: Sequence[DraftWay]) -> None:
        self._ways = tuple(ways)
        self._tested = [0.0] * len(ways)
        self._accepted = [0.0] * len(ways)
        self._best = 0
        # Whose turn it is, for how many rounds, and the turns after it.
        self._turns = [(i, _BLOCK) for _ in range(_FIRST_BLOCKS) for i in range(len(ways))]
        self._current, self._left = self._turns.pop(0)

    @property
    def way(self) -> DraftWay:
        """How to draw the next draft."""
        return self._ways[self._current]

    def record(self, n_drafted: int, n_accepted: int) -> None:
        """``n_accepted`` of ``n_drafted`` tokens, drawn in this way, stood."""
        if not n_drafted or len(self._ways) == 1:
            return
        self._tested[self._current] += min(n_accepted + 1, n_drafted)
        self._accepted[self._current] += n_accepted
        self._left -= 1
        if self._left:
            return
        if not self._turns:
            self._compare()
            others = [(i, _BLOCK) for i in range(len(self._ways)) if i != self._best]
            self._turns = [(self._best, _KEEP), *others]
        self._current, self._left = self._turns.pop(0)

    def _compare(self) -> None:
        rates = [a / t for a, t in zip(self._accepted, self._tested, strict=True)]
        first, best = rates.index(max(rates)), self._best
        # A share of n cases is uncertain by at most sqrt(1/4 / n).
        uncertainty = math.sqrt(0.25 / self._tested[first] + 0.25 / self._tested[best])
        if rates[first] - rates[best] > uncertainty:
            self._best = first
        for i, tested in enumerate(self._tested):
            if tested > _MEMORY:
                self._tested[i], self._accepted[i] = _MEMORY, rates[i] * _MEMORY


class DraftSampling:
    """How the drafters of a sequence draw, round by round. ``verify`` and ``draft_sampling`` are
    the keys of [spec]; with the residual rule and ``auto``, drafters draw by chance of their own.

    ``rule`` is that of the generation in progress. There is nothing left to chance at temperature
    0, and what mirostat allows at a position is known only when it gets there: both are matched.
    """

    def __init__(self, verify: str = "match", draft_sampling: str = "coupled") -> None:
        self._verify = verify
        self._wanted = draft_sampling
        self._ways: tuple[DraftWay, ...] = ()
        self._samplers: dict[DraftWay, Sampler] = {}
        self._trials: dict[int, Trial] = {}
        self._conditions: object = None
        self.rule: Rule = "match"

    @property
    def exactness(self) -> Exactness:
        """What is equal to plain decoding: the text of a seed, or the distribution of texts."""
        return "distribution-exact" if self.rule == "residual" else "seed-exact"

    def start(self, sampler: Sampler) -> None:
        """A generation begins, whose target draws with ``sampler``. What is known of acceptance is
        kept if only the seed has changed."""
        params = sampler.params
        ways, self.rule = self._chosen(params)
        conditions = (ways, replace(params, seed=0))
        if conditions != self._conditions:
            self._ways, self._conditions = ways, conditions
            self._trials.clear()
        self._samplers = {way: sampler.for_drafter(way) for way in ways}

    def rule_for(self, params: SamplingParams) -> Rule:
        """The rule of a generation whose target draws with ``params``."""
        return self._chosen(params)[1]

    def _chosen(self, params: SamplingParams) -> tuple[tuple[DraftWay, ...], Rule]:
        by_chance = params.temperature > 0.0
        ways = _ways(self._verify, self._wanted) if by_chance else ("coupled",)
        if params.mirostat and self._verify != "match" and "own" in ways:
            ways = _ways("match", "auto")
        residual = self._verify != "match" and "own" in ways
        return ways, "residual" if residual else "match"

    def sampler(self, drafter: int) -> Sampler:
        """What drafter number ``drafter`` draws its next draft with."""
        trial = self._trials.get(drafter)
        if trial is None:
            trial = self._trials[drafter] = Trial(self._ways)
        return self._samplers[trial.way]

    def record(self, drafter: int | None, n_drafted: int, n_accepted: int) -> None:
        """Learn what came of a draft; ``drafter`` None: there was none."""
        if drafter is not None and drafter in self._trials:
            self._trials[drafter].record(n_drafted, n_accepted)


def _ways(verify: str, wanted: str) -> tuple[DraftWay, ...]:
    """The ways to choose from; the first is the one to begin with."""
    choices: dict[str, tuple[DraftWay, ...]] = {
        "greedy": ("greedy",),
        "coupled": ("coupled",),
        "own": ("own",),
    }
    automatic: dict[str, tuple[DraftWay, ...]] = {
        "match": ("coupled", "greedy"),
        "residual": ("own",),
        "auto": ("own", "greedy"),
    }
    return choices[wanted] if wanted in choices else automatic[verify]


def sampling_warning(verify: str, draft_sampling: str) -> str | None:
    """What two settings of [spec] keep each other from, for the user to read."""
    if verify == "match" and draft_sampling == "own":
        return (
            'draft_sampling "own" with verify "match": drafts are accepted less often than with '
            '"coupled" (--verify residual accepts the most, but the text is another one)'
        )
    if verify == "residual" and draft_sampling in ("greedy", "coupled"):
        return (
            f'verify "residual" has nothing to do with draft_sampling "{draft_sampling}": such '
            "drafts are matched"
        )
    return None
