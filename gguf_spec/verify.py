"""The acceptance rules: which drafted tokens stand, and which token follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gguf_spec.history import History
from gguf_spec.residual import residual, stands
from gguf_spec.sampling import Distribution, Drawn, Row, Sampler
from gguf_spec.sampling.noise import ACCEPT, RESIDUAL


class Verdict(NamedTuple):
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


def accept_or_replace(
    n_decoded: int,
    drawn: Sequence[Drawn],
    target: Callable[[int], Distribution],
    uniform: Callable[[int], float],
    replace: Callable[[int, Distribution], int],
    choose: Callable[[int], int],
) -> Verdict:
    """Residual verification of ``drawn`` tokens, of which the target has decoded ``n_decoded``.

    ``target(i)`` is what the target draws from given the first ``i`` of them, ``uniform(i)`` a
    number in (0, 1), ``replace(i, distribution)`` a draw, and ``choose(i)`` the target's own choice
    where nothing was drawn. The emitted tokens are distributed as in plain decoding, see
    ``residual``; but they are others than with the same seed.

    A token that was drawn is tested even if it was not decoded, as an end token is not: if it
    stands, it is the next token. To draw another in its place would change the probabilities, for
    then a test that is or is not made depends on what was drawn. See ``untested``.
    """
    for i in range(n_decoded + 1):
        if i == len(drawn):
            return Verdict(i, choose(i), "bonus")
        token, draft_probs = drawn[i]
        assert draft_probs is not None
        target_probs = target(i)
        if not stands(token, target_probs, draft_probs, uniform(i)):
            return Verdict(i, replace(i, residual(target_probs, draft_probs)), "recovered")
    return Verdict(n_decoded, drawn[n_decoded].token, "bonus")


def untested(drawn: Sequence[Drawn], next_token: int) -> Sequence[Drawn]:
    """What has to be tested in the next round, of ``drawn`` tokens from the rejected one on.

    There is something if ``next_token`` is the first of them: it stands, and those after it were
    not looked at because the cache had no room for them.
    """
    return drawn[1:] if drawn and drawn[0].token == next_token else ()


def judge(
    draft: Sequence[int],
    sampler: Sampler,
    history: History,
    logits: Callable[[int], Row],
    row: int,
    drawn: Sequence[Drawn] = (),
) -> tuple[int, int]:
    """How many tokens of ``draft`` after ``history`` stand, and the target's own token after them.

    ``logits(row + i)`` are the target's after i drafted tokens. The choice there is made only where
    all of those stand: they are part of the text that the sampler looks back on. A rejected token
    never is, and ``sampler`` draws each token of the text once, as its state demands.

    With ``drawn``, which begins with the tokens of ``draft``, the rule is the residual one.
    """
    position, lookback = len(history), sampler.lookback
    recent = history[-lookback:] if lookback else []
    if not draft and not drawn:
        return 0, sampler.sample(logits(row), position, recent)

    def previous(i: int) -> Sequence[int]:
        return [*recent, *draft[:i]] if lookback else recent

    def choose(i: int) -> int:
        if not lookback:
            return sampler.sample(logits(row + i), position + i)
        return sampler.sample(logits(row + i), position + i, previous(i))

    def target(i: int) -> Distribution:
        return sampler.distribution(logits(row + i), position + i, previous(i))

    def replace(i: int, probs: Distribution) -> int:
        return probs.drawn(sampler.uniform(position + i, RESIDUAL))

    if drawn:
        verdict = accept_or_replace(
            len(draft),
            drawn,
            target,
            lambda i: sampler.uniform(position + i, ACCEPT),
            replace,
            choose,
        )
    else:
        verdict = match(draft, choose)
    return verdict.n_accepted, verdict.next_token
