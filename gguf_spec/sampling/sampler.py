"""Draws tokens: every step in order, then the largest of log-probability plus noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from gguf_spec.errors import RunError
from gguf_spec.sampling.adjust import Adjuster
from gguf_spec.sampling.distribution import Distribution, Drawn
from gguf_spec.sampling.filters import (
    dynamic_temperature,
    entropy_of,
    filtered,
    probability,
    total_weight,
    weights,
    without_top_choices,
)
from gguf_spec.sampling.mask import Follower, Mask, allowed, without
from gguf_spec.sampling.maxima import Maxima, Row
from gguf_spec.sampling.mirostat import Mirostat
from gguf_spec.sampling.noise import XTC, Ids, Noise, Scores, draft_counter
from gguf_spec.sampling.params import SamplingParams

# Beyond these a temperature changes nothing any more, but would make the arithmetic overflow.
_COLDEST, _HOTTEST = 1e-30, 1e30

# Without filters: so many of the likeliest tokens get their noise first. Any number is right.
_FAVOURITES = 256

# Without filters and with a mask: so many of the likeliest tokens are asked about, and so many that
# were drawn, before all are.
_ASKED = 64
_TRIES = 8
_HALVINGS = 24  # of a distance between logits that is looked for

#: How a drafter draws: the likeliest token, with the target's noise, or with noise of its own.
DraftWay: TypeAlias = Literal["greedy", "coupled", "own"]


class Sampler:
    """Draws the token at a position from a row of logits.

    The token is a function of (logits, seed, position, preceding tokens). ``lookback`` says how
    many preceding tokens count: 0 without penalties, DRY and a mask.

    Mirostat is the exception: what it allows depends on the tokens drawn before, so ``sample`` must
    be called once for each token of the text, in order. Such a sampler belongs to one generation:
    ``fresh`` makes one for the next. Whoever calls ``sample`` for tokens that may not stand, as
    drafters do, takes ``for_drafter`` instead.

    ``breaks`` tells whether a token's text contains one of ``DRY_BREAKERS``; without it, none does.
    ``mask``: what a grammar allows from the first position on that the sampler is asked for. It is
    copied, and learns of a token with the next position, from ``previous``: it may be asked for a
    position again, but not go back.

    One sampler may not be used by two threads at a time.
    """

    own_chance: ClassVar[bool] = False
    """Whether ``propose`` draws otherwise than ``sample``, and says from what."""

    __slots__ = (
        "_adjuster",
        "_ask_later",
        "_bare",
        "_breaks",
        "_follower",
        "_mirostat",
        "_noise",
        "_plain",
        "greedy",
        "lookback",
        "params",
    )

    def __init__(
        self,
        params: SamplingParams,
        *,
        breaks: Callable[[int], bool] | None = None,
        mask: Mask | Follower | None = None,
    ) -> None:
        self.params = params
        self._breaks = breaks
        self._noise = Noise(params.seed)
        self._adjuster = Adjuster(params, breaks)
        self._follower: Follower | None = None
        if mask is not None:
            self._follower = mask if isinstance(mask, Follower) else Follower(mask)
        self.lookback = max(self._adjuster.lookback, int(mask is not None))
        # XTC and a temperature range act before the coldest temperature takes what is left.
        self.greedy = params.temperature <= 0.0 and (
            params.mirostat != 0 or (not params.excludes and params.dynatemp_range <= 0.0)
        )
        # Greedy, and nothing changes the logits before.
        self._bare = self.greedy and not self._adjuster.active and self._follower is None
        self._mirostat = Mirostat(params) if params.mirostat and not self.greedy else None
        # Nothing but the temperature: the mask can wait for the token that is drawn.
        self._ask_later = not (params.filters or params.mirostat or params.excludes or self.greedy)
        self._ask_later = self._ask_later and params.temperature > 0.0
        self._ask_later = self._ask_later and params.dynatemp_range <= 0.0
        # Straight from the filters to the draw.
        self._plain = not self.greedy and self._mirostat is None and params.filters
        self._plain = self._plain and not params.excludes and params.dynatemp_range <= 0.0

    def sample(self, logits: Row, position: int, previous: Sequence[int] = ()) -> int:
        """The token at ``position`` (index in the sequence), given ``logits`` of shape [n_vocab].

        ``previous``: the tokens before it, at least the last ``lookback`` of them if there are so
        many. ``logits`` are not written to.

        Raises:
            RunError: the largest logit is NaN or infinite, or no token is legal, so that none can
                be chosen.
        """
        if self.greedy:
            row = logits if self._bare else self._adjusted(logits, position, previous)
            token = int(row.argmax())
            _check(row.item(token), position)
            return token
        later = self._ask_later
        top, kept, temperature = self._candidates(logits, position, previous, later)
        if kept is None:
            return self._draw_legal(top, position, temperature, previous)
        if self._mirostat is not None:
            with np.errstate(all="ignore"):  # what it learns has no bounds
                return self._draw_mirostat(self._mirostat, top, kept, position)
        return self._best(top, kept, position, temperature)[1]

    def distribution(
        self, logits: Row, position: int = 0, previous: Sequence[int] = ()
    ) -> Distribution:
        """What ``sample`` draws from, given the same arguments."""
        if self.greedy:
            top = Maxima(self._adjusted(logits, position, previous))
            _check(top.peak, position)
            return Distribution(top.largest(1), np.ones(1))
        top, kept, temperature = self._candidates(logits, position, previous)
        ids = np.arange(len(top.row)) if kept is None else np.sort(kept)
        probs = self._scores(top, ids, temperature)
        probs -= probs.max()
        np.exp(probs, out=probs)
        if not probs.all():
            ids, probs = ids[probs > 0.0], probs[probs > 0.0]
        probs /= probs.sum()
        return Distribution(ids, probs)

    def propose(
        self, logits: Row, position: int, previous: Sequence[int], index: int, p_min: float
    ) -> Drawn | None:
        """Token ``index`` of a draft, for ``position``; the other arguments are as for ``sample``.

        None if its probability (softmax over all of ``logits`` at temperature 1) is below
        ``p_min``: the draft then ends before it.
        """
        token = self.sample(logits, position, previous)
        if p_min > 0.0 and probability(logits, token) < p_min:
            return None
        return Drawn(token, None)

    def gap(
        self, logits: Row, position: int, previous: Sequence[int], chosen: int, other: int
    ) -> float:
        """By how much, in logits, the token ``chosen`` is ahead of ``other`` at ``position``.

        Where the filters have dropped ``other``: how much it lacks for them to keep it; infinite if
        it is not legal. Mirostat's limits and a temperature that adapts are not
        counted in.
        """
        mask = self._follower.at(position, previous) if self._follower else None
        if mask is not None and not mask.legal(np.array([other]))[0]:
            return math.inf
        row = self._adjusted(logits, position, previous)
        ahead = float(row[chosen]) - float(row[other])
        if self.greedy or self._mirostat is not None:
            return abs(ahead)
        _, kept, temperature = self._shaped(Maxima(row), position)
        if kept is not None and other not in kept:
            return self._lacking(row, position, other)
        noise = self._noise.gumbel(position, np.array([chosen, other]))
        return abs(ahead + temperature * float(noise[0] - noise[1]))

    def noise(self, position: int, ids: Ids) -> Scores:
        """Gumbel noise of the tokens ``ids`` at ``position``; shape like ``ids``."""
        return self._noise.gumbel(position, ids)

    def uniform(self, position: int, counter: int) -> float:
        """A number in (0, 1) for a decision at ``position`` that is not about a token."""
        return self._noise.uniform(position, counter)

    def fresh(self) -> Sampler:
        """The same sampler before it has drawn anything."""
        mask = self._follower.fresh() if self._follower else None
        return Sampler(self.params, breaks=self._breaks, mask=mask)

    @property
    def masked(self) -> bool:
        """Whether a mask says what is legal."""
        return self._follower is not None

    def legal_prefix(self, draft: Sequence[int], position: int, previous: Sequence[int]) -> int:
        """How many tokens of ``draft``, to follow ``previous`` at ``position``, the mask allows.

        They are tried on a copy, after the tokens that stand.
        """
        mask = self._follower.at(position, previous) if self._follower else None
        if mask is None or not draft:
            return len(draft)
        trial: Mask | None = None
        for i, token in enumerate(draft):
            if not (trial or mask).legal(np.array([token]))[0]:
                return i
            if i + 1 < len(draft):
                trial = trial or mask.copy()  # costs more than the question
                trial.advance(token)
        return len(draft)

    def for_drafter(self, way: DraftWay = "coupled") -> Sampler:
        """A sampler without state for whoever drafts for this one.

        ``coupled`` agrees with this one as often as it can. Mirostat is left out: its limits are
        those of the target's own text. The mask follows the text of this one's, and a draft ahead
        of it.
        """
        params = self.params
        if params.mirostat:
            params = SamplingParams(
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=1.0,
                min_p=0.0,
                seed=params.seed,
                logit_bias=params.logit_bias,
            )
        if way == "greedy":
            params = replace(params, temperature=0.0, xtc_probability=0.0, dynatemp_range=0.0)
        kind = OwnSampler if way == "own" else Sampler
        mask = self._follower.for_drafter() if self._follower else None
        return kind(params, breaks=self._breaks, mask=mask)

    def _adjusted(
        self, logits: Row, position: int, previous: Sequence[int], ask_later: bool = False
    ) -> Row:
        """The logits to filter and to draw from: bias and penalties applied, and the mask.

        ``ask_later``: the mask is left to ``_draw_legal``.
        """
        row = self._adjuster.adjusted(logits, previous) if self._adjuster.active else logits
        mask = self._follower.at(position, previous) if self._follower else None
        if mask is None or ask_later:
            return row
        return allowed(row, mask, self.params, self.greedy, self._adjuster.writable, position)

    def _candidates(
        self, logits: Row, position: int, previous: Sequence[int], ask_later: bool = False
    ) -> tuple[Maxima, Ids | None, float]:
        """The row, who of it may be drawn (None: all), and the temperature. Draws and both rules of
        verification have it from here."""
        top = Maxima(self._adjusted(logits, position, previous, ask_later))
        _check(top.peak, position)
        if self._plain:
            return top, filtered(top, self.params), _clamped(self.params.temperature)
        if self._mirostat is not None:
            temperature = _clamped(self.params.temperature)
            with np.errstate(all="ignore"):
                return top, self._mirostat.keep(top, temperature), temperature
        return self._shaped(top, position)

    def _shaped(self, top: Maxima, position: int) -> tuple[Maxima, Ids | None, float]:
        """After filters and XTC: the row, who is left (None: all), and the temperature."""
        params = self.params
        kept = filtered(top, params) if params.filters else None
        n_dropped = 0
        if params.excludes and self._noise.uniform(position, XTC) <= params.xtc_probability:
            top, kept, n_dropped = self._exclude(top, kept)
        temperature = params.temperature
        if params.dynatemp_range > 0.0:
            n_kept = len(top.row) - n_dropped if kept is None else len(kept)
            values = top.row if kept is None else top.row[kept]
            entropy = entropy_of(values, float(values.max()))
            temperature = dynamic_temperature(params, entropy, n_kept)
        if temperature <= 0.0:
            # Only the likeliest is left; of equals the lowest id.
            ids = np.arange(len(top.row)) if kept is None else np.sort(kept)
            kept = ids[[int(top.row[ids].argmax())]]
        return top, kept, _clamped(temperature)

    def _lacking(self, row: Row, position: int, other: int) -> float:
        """By how much the logit of ``other`` has to grow for the filters to keep it: at most until
        it is the largest. Their borders move with the probabilities of all, so it is tried out."""
        least, most = 0.0, float(row.max()) - float(row[other])
        if not math.isfinite(most):
            return math.inf
        nearer = row.copy()
        for _ in range(_HALVINGS):
            middle = 0.5 * (least + most)
            nearer[other] = row[other] + middle
            _, kept, _ = self._shaped(Maxima(nearer), position)
            if kept is None or other in kept:
                most = middle
            else:
                least = middle
        return most

    def _exclude(self, top: Maxima, kept: Ids | None) -> tuple[Maxima, Ids | None, int]:
        """Apply XTC, and say how many tokens it dropped. Without filters these get a logit of
        -inf."""
        threshold = self.params.xtc_threshold
        if kept is not None:
            values = top.row[kept]
            weight = float(weights(values, top.peak).sum())
            dropped = without_top_choices(kept, values, weight, top.peak, threshold)
            return top, np.delete(kept, dropped), len(dropped)
        weight = total_weight(top.row, top.peak)
        # A little lower than the threshold, so that rounding loses none: they are compared again.
        least = threshold * weight * 0.999
        ids = top.reaching(top.peak + math.log(least) if least > 0.0 else -math.inf)
        dropped = without_top_choices(ids, top.row[ids], weight, top.peak, threshold)
        if not len(dropped):
            return top, None, 0
        row = self._adjuster.writable(top.row)
        row[ids[dropped]] = -math.inf
        return Maxima(row), None, len(dropped)

    def _draw_mirostat(self, mirostat: Mirostat, top: Maxima, ids: Ids, position: int) -> int:
        scores = self._scores(top, ids, _clamped(self.params.temperature))
        winner = int((scores + self._noise.gumbel(position, ids)).argmax())
        mirostat.observe(scores, winner)
        return int(ids[winner])

    def _draw_legal(
        self, top: Maxima, position: int, temperature: float, previous: Sequence[int]
    ) -> int:
        """Draw from the whole vocabulary. With a mask, what is drawn is asked about: if the largest
        of all scores is a legal token's, it is the largest of all legal ones."""
        mask = self._follower.at(position, previous) if self._ask_later and self._follower else None
        if mask is None:
            return self._draw_from_all(top, position, temperature)
        row = top.row
        ids = top.largest(_ASKED)
        row = without(row, ids[~mask.legal(ids)], self._adjuster.writable)
        for _ in range(_TRIES):
            top = Maxima(row)
            if top.peak == -math.inf:
                break
            token = self._draw_from_all(top, position, temperature)
            if mask.legal(np.array([token]))[0]:
                return token
            row = without(row, np.array([token]), self._adjuster.writable)
        row = allowed(row, mask, self.params, False, self._adjuster.writable, position)
        return self._draw_from_all(Maxima(row), position, temperature)

    def _draw_from_all(self, top: Maxima, position: int, temperature: float) -> int:
        """Draw from the whole vocabulary. The noise of most tokens need not be computed.

        All tokens but the favourites have at most the logit of the last favourite. One of them
        wins only with more noise than the best favourite is ahead, and few have so much.
        """
        row, n_vocab = top.row, len(top.row)
        if n_vocab <= _FAVOURITES:
            return self._best(top, np.arange(n_vocab), position, temperature)[1]
        ids = top.largest(_FAVOURITES)
        score, token = self._best(top, ids, position, temperature)
        ahead = score - (float(row[ids[-1]]) - top.peak) / temperature
        others = self._noise.reaching(position, n_vocab, ahead)
        if len(others):
            rival_score, rival = self._best(top, others, position, temperature)
            if rival_score > score or (rival_score == score and rival < token):
                return rival
        return token

    def _best(self, top: Maxima, ids: Ids, position: int, temperature: float) -> tuple[float, int]:
        scores = self._scores(top, ids, temperature)
        scores += self._noise.gumbel(position, ids)
        winner = int(scores.argmax())
        return float(scores[winner]), int(ids[winner])

    @staticmethod
    def _scores(top: Maxima, ids: Ids, temperature: float) -> Scores:
        scores: Scores = top.row[ids].astype(np.float64)
        scores -= top.peak
        scores /= temperature
        return scores


class OwnSampler(Sampler):
    """Draws drafts by chance of its own, and says from which distribution: see ``residual``."""

    __slots__ = ()
    own_chance = True

    def propose(
        self, logits: Row, position: int, previous: Sequence[int], index: int, p_min: float
    ) -> Drawn | None:
        """See ``Sampler``; but what is compared with ``p_min`` is the likeliest token.

        Whether there is a draft at a position must not depend on what is drawn there: a drafter
        that keeps some draws to itself offers the others from another distribution than it says.
        """
        if p_min > 0.0 and probability(logits, int(logits.argmax())) < p_min:
            return None
        probs = self.distribution(logits, position, previous)
        return Drawn(probs.drawn(self.uniform(position, draft_counter(index))), probs)


def _check(peak: float, position: int) -> None:
    if not math.isfinite(peak):
        name = "NaN" if math.isnan(peak) else str(peak)
        raise RunError(
            f"the model computed no usable logits at position {position}: the largest is {name}",
            hint="the file may be damaged, a KV cache type may not suit this model, or a setting "
            "of [sampling], or of rope_* and yarn_* in [target], may be too extreme",
        )


def _clamped(temperature: float) -> float:
    return min(max(temperature, _COLDEST), _HOTTEST)
