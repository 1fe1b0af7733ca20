"""Pairs of runs become ratios, over those tokens that both texts have in common.

A speed is a claim about one text. Where two texts differ, at a near-tie, only what precedes the
difference is compared, and if that is less than half of the text nothing is claimed at all; neither
is it where the difference has another reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gguf_spec.bench.runner import BenchRun, Turn, common_prefix
from gguf_spec.bench.statistics import estimate, geometric_mean
from gguf_spec.bench.theory import Tally, explain, total

_LEAST_SHARE = 0.5
_NEAR_TIE = "identical-up-to-near-ties"
_SHARE = 0.03  # of its time that drafting may lose, beside the tokens that are told


def compared_tokens(base: Turn, other: Turn) -> int:
    """How many tokens of the two answers are compared: all if they are equal, else those of the
    steps before the first difference. All of the ``base``, too, if ``other`` only goes on: a server
    is asked for as much as is equal, and tells one time for all of it. The step of ``other`` that
    reaches beyond its end counts whole, against ``other``."""
    n = common_prefix(base.tokens, other.tokens)
    if n == len(base.tokens):
        return n
    while n and any(n < len(t.times) and t.times[n] == t.times[n - 1] for t in (base, other)):
        n -= 1
    return n


def most_lost(base: Turn, other: Turn, n: int) -> float:
    """The most that ``other`` had lost at the end of any of its steps, up to ``n`` tokens, beyond
    3 % of its time until then, in plain tokens. Decoding only: from the first token on."""
    if n < 2:
        return 0.0
    step = (base.times[n - 1] - base.times[0]) / (n - 1)
    ends = [i for i in range(n) if i == n - 1 or other.times[i + 1] > other.times[i]]
    lost = max(
        (1.0 - _SHARE) * (other.times[i] - other.times[0]) - (base.times[i] - base.times[0])
        for i in ends
    )
    return max(lost, 0.0) / step if step > 0.0 else 0.0


def pair(base: BenchRun, other: BenchRun) -> dict[str, Any]:
    """One pair as JSON: seconds of both over the tokens in common. The ratios say how many times
    as fast ``other`` is; None where there is nothing to divide."""
    sides: list[list[float]] = [[0.0, 0.0], [0.0, 0.0]]
    n_compared = n_decoded = n_tokens = 0
    lost = 0.0
    divergence = None
    for index, (a, b) in enumerate(zip(base.turns, other.turns, strict=False)):
        n = compared_tokens(a, b)
        n_tokens += len(a.tokens)
        n_compared += n
        n_decoded += max(n - 1, 0)
        lost = max(lost, most_lost(a, b, n))
        if a.tokens != b.tokens and divergence is None:
            divergence = {"turn": index, "token": common_prefix(a.tokens, b.tokens)}
        for side, turn in zip(sides, (a, b), strict=True):
            if n:
                side[0] += turn.times[0]
                side[1] += turn.times[n - 1] - turn.times[0]
    return {
        "round": base.round,
        "baseline": _seconds(sides[0], n_decoded),
        "setup": _seconds(sides[1], n_decoded),
        "decode_ratio": _ratio(sides[0][1], sides[1][1]),
        "total_ratio": _ratio(sum(sides[0]), sum(sides[1])),
        "most_lost_tokens": round(lost, 2),
        "compared_tokens": n_compared,
        "tokens": n_tokens,
        "first_divergence": divergence,
    }


def comparison(
    base: Sequence[BenchRun],
    other: Sequence[BenchRun],
    difference: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All pairs of one workload and two set-ups as JSON. ``difference`` is what is known of the
    reason if the texts differ."""
    by_round = {run.round: run for run in base}
    pairs = [pair(by_round[run.round], run) for run in other if run.round in by_round]
    refused = _refusal(pairs, other, difference)
    result: dict[str, Any] = {
        "workload": other[0].workload,
        "setup": other[0].setup,
        "baseline": base[0].setup,
        "equal": all(one["first_divergence"] is None for one in pairs),
        "difference": difference,
        "refused": refused,
        "decode": None,
        "total": None,
        "pairs": pairs,
    }
    if refused is None:
        for name in ("decode", "total"):
            values = [one[f"{name}_ratio"] for one in pairs if one[f"{name}_ratio"] is not None]
            found = estimate(values)
            result[name] = found and found.record()
    return result


def overall(comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The comparisons of one set-up over all workloads: the geometric mean of a round's ratios is
    one value, and the median is over rounds. Workloads of which nothing is claimed are left out."""
    result: dict[str, Any] = {
        "setup": comparisons[0]["setup"],
        "baseline": comparisons[0]["baseline"],
        "refused": [one["workload"] for one in comparisons if one["refused"] is not None],
    }
    for name in ("decode", "total"):
        claimed = [one for one in comparisons if one["refused"] is None and one[name] is not None]
        by_round: dict[int, list[float]] = {}
        for one in claimed:
            for item in one["pairs"]:
                if item[f"{name}_ratio"] is not None:
                    by_round.setdefault(item["round"], []).append(item[f"{name}_ratio"])
        values = [geometric_mean(v) for v in by_round.values() if len(v) == len(claimed)]
        found = estimate(values)
        result[name] = found and found.record()
        result[f"{name}_workloads"] = len(claimed)
    return result


def practice(base: Sequence[BenchRun], other: Sequence[BenchRun]) -> dict[str, Any] | None:
    """Theory beside what was measured, over these runs; None if nothing was drafted."""
    found = explain(_tally(base), _tally(other))
    if found is None:
        return None
    offered, stood = _added([r.offered for r in other]), _added([r.positions for r in other])
    return {**found.record(), "offered_per_position": offered, "accepted_per_position": stood}


def _tally(runs: Sequence[BenchRun]) -> Tally:
    return total(run.tally for run in runs)


def _refusal(
    pairs: Sequence[Mapping[str, Any]],
    runs: Sequence[BenchRun],
    difference: Mapping[str, Any] | None,
) -> str | None:
    """Why nothing can be said about the speed, or None."""
    if not pairs:
        return "there is no complete pair"
    failed = [event for run in runs for event in run.events]
    if failed:
        return failed[0]
    differing = [one for one in pairs if one["first_divergence"] is not None]
    if not differing:
        return None
    first = differing[0]["first_divergence"]
    where = f"the text differs from token {first['token'] + 1}"
    if first["turn"]:
        where += f" of turn {first['turn'] + 1}"
    verdict = None if difference is None else difference["verdict"]
    if verdict is not None and verdict != _NEAR_TIE:
        return f"{where}: {verdict}"
    if any(one["compared_tokens"] < _LEAST_SHARE * one["tokens"] for one in differing):
        return f"{where}{': a near-tie' if verdict else ''}, and less than half is left to compare"
    return None


def _added(counts: Sequence[Sequence[int]]) -> list[int]:
    longest = max((len(one) for one in counts), default=0)
    return [sum(one[i] for one in counts if i < len(one)) for i in range(longest)]


def _seconds(times: Sequence[float], n_decoded: int) -> dict[str, Any]:
    prefill, decode = times
    speed = n_decoded / decode if decode > 0 and n_decoded else None
    return {
        "prefill_seconds": prefill,
        "decode_seconds": decode,
        "tokens_per_second": speed,
    }


def _ratio(base: float, other: float) -> float | None:
    return base / other if base > 0 and other > 0 else None
