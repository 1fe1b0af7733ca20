"""The acceptance rule: which drafted tokens stand, and which token follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gguf_spec.history import History
from gguf_spec.sampling import Row, Sampler


@dataclass(frozen=True, slots=True)
class Verdict:
    """``n_accepted`` drafted tokens stand; ``next_token`` is the target's own token after them.

    It is ``recovered`` when it replaces a rejected token, ``bonus`` when the whole draft stands.
    """

    n_accepted: int
    next_token: int
    kind: Literal["recovered", "bonus"]


def match(draft: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Sample-and-match: a drafted token stands if it is the token that the target chooses.

    ``choose(i)`` is the target's choice given the first ``i`` drafted tokens; it is asked in order
    and never past the first disagreement, so rows that do not count are not looked at. The emitted
    tokens are the target's own choices whatever the draft holds: with the same seed the text is
    that of plain decoding.
    """
    for i, token in enumerate(draft):
        choice = choose(i)
        if choice != token:
            return Verdict(i, choice, "recovered")
    return Verdict(len(draft), choose(len(draft)), "bonus")


def judge(
    draft: Sequence[int],
    sampler: Sampler,
    history: History,
    logits: Callable[[int], Row],
    row: int,
) -> tuple[int, int]:
    """How many tokens of ``draft`` after ``history`` stand, and the target's own token after them.

    ``logits(row + i)`` are the target's after i drafted tokens. The choice there is made only where
    all of those stand: they are part of the text that the sampler looks back on. A rejected token
    never is, and ``sampler`` draws each token of the text once, as its state demands.
    """
    position, lookback = len(history), sampler.lookback
    recent = history[-lookback:] if lookback else []
    if not draft:
        return 0, sampler.sample(logits(row), position, recent)

    def choose(i: int) -> int:
        previous = [*recent, *draft[:i]] if lookback else recent
        return sampler.sample(logits(row + i), position + i, previous)

    verdict = match(draft, choose)
    return verdict.n_accepted, verdict.next_token
