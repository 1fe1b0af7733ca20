"""Finding the best drafting for given prompts on this machine.

Many settings are tried a little, the better ones more, and the one that looks best is measured
anew: of many noisy measurements the best one flatters, so what chose the winner does not count for
what is said of it. If the winner's interval does not lie above 1, the answer is to leave it off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, cast

from gguf_spec.bench.compare import comparison, overall
from gguf_spec.bench.runner import BenchRun, Runner
from gguf_spec.bench.setups import PLAIN, BenchSetup, plain_setup
from gguf_spec.bench.statistics import Estimate, geometric_mean
from gguf_spec.profile import Profile, apply_values
from gguf_spec.setup import NGRAM_TYPES, Setup

#: N-gram types that are tried, with the lengths that they look up and draft.
SEARCHED = ("ngram-simple", "ngram-map-k4v", "ngram-mod")
_LOOKED_UP = (3, 6, 12)
_DRAFTED = (8, 24)
_LONGEST = 48
#: Lengths of drafts by models and heads.
LENGTHS = (1, 2, 3, 5, 8)
#: What batches must have room for.
MAX_WIDTH = 1 + _LONGEST
_LEAST_GAIN = 1.02  # less is not worth a setting
_KEPT = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A set-up with the keys of a profile that lead to it."""

    setup: BenchSetup
    values: Mapping[str, Any]


@dataclass(slots=True)
class Tuning:
    """What came of a search. ``tried`` are (name, score, rounds) of all candidates, the best first:
    a score is the geometric mean over workloads of how many times as fast an answer was, the
    median over rounds. ``comparisons`` and ``total`` are the winner's, from new rounds.
    """

    winner: Candidate | None = None
    tried: list[tuple[str, float, int]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    total: Estimate | None = None
    decode: Estimate | None = None

    @property
    def worth_it(self) -> bool:
        """Whether the winner is faster than plain decoding, beyond doubt and noticeably."""
        found = self.total
        return found is not None and found.low > 1.0 and found.median >= _LEAST_GAIN

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "worth_it": self.worth_it,
            "winner": None if self.winner is None else self.winner.setup.name,
            "values": dict(self.winner.values) if self.winner and self.worth_it else {},
            "total": self.total and self.total.record(),
            "decode": self.decode and self.decode.record(),
            "comparisons": self.comparisons,
            "tried": [
                {"name": name, "total_ratio": score, "rounds": rounds}
                for name, score, rounds in self.tried
            ],
            "refused": self.refused,
        }


def searched_profile(profile: Profile, setup: Setup, *, only: Sequence[str] = ()) -> Profile:
    """``profile`` with everything loaded that is tried: the n-gram types and the drafts of
    ``setup``, with room for the longest drafts; or ``only`` some types."""
    neural = [draft.spec_type for draft in setup.drafts]
    types = [kind for kind in (*SEARCHED, *neural) if not only or kind in only]
    types += [kind for kind in only if kind not in types]
    values: dict[str, object] = {"spec.types": types}
    for kind in neural:
        values[f"spec.{kind}.n_max"] = max(LENGTHS)
        values[f"spec.{kind}.n_min"] = 0
    return apply_values(profile, values)


def candidates(profile: Profile, setup: Setup, types: Iterable[str]) -> list[Candidate]:
    """What is tried with these ``types``, which ``setup`` has with their longest drafts."""
    found: list[Candidate] = []
    for kind in types:
        if kind in NGRAM_TYPES:
            for values in _ngram_settings(kind):
                found += _ngram(profile, kind, values)
            continue
        longest = setup.ceilings[setup.spec_types.index(kind)]
        found += [_neural(kind, n, control=False) for n in LENGTHS if n <= longest]
        found.append(_neural(kind, longest, control=True))
    return found


def search(
    runner: Runner, tried: Sequence[Candidate], *, profile: Profile, rounds: int = 7
) -> Tuning:
    """Find the best of ``tried`` and measure it in ``rounds`` new rounds."""
    result = Tuning()
    scores: dict[str, list[float]] = {}
    by_name = {one.setup.name: one for one in tried}
    _score(runner, list(by_name.values()), 1, scores, result)
    kept = _best(scores, by_name)
    both = _combined(profile, kept, runner.session.spec_types)
    if both is not None:
        by_name[both.setup.name] = both
        kept = [*kept[: _KEPT - 1], both]
    _score(runner, kept, 3, scores, result)
    finalists = {one.setup.name: scores[one.setup.name] for one in kept if one.setup.name in scores}
    ranked = sorted(scores, key=lambda name: -median(scores[name]))
    result.tried = [(name, median(scores[name]), len(scores[name])) for name in ranked]
    best = _best(finalists, by_name)
    if not best:
        return result
    result.winner = best[0]
    result.comparisons = _measured(runner, [best[0]], rounds)[best[0].setup.name]
    told = overall(result.comparisons)
    result.total, result.decode = (
        Estimate(**told[name]) if told[name] else None for name in ("total", "decode")
    )
    return result


def profile_values(tuning: Tuning) -> dict[str, Any]:
    """The keys of a profile that follow from a search."""
    if tuning.winner is None or not tuning.worth_it:
        return {"spec.types": ["none"]}
    return dict(tuning.winner.values)


def _score(
    runner: Runner,
    tried: Sequence[Candidate],
    rounds: int,
    scores: dict[str, list[float]],
    result: Tuning,
) -> None:
    """Measure ``tried`` in more rounds, and add to their ``scores``, a value for each round."""
    for name, comparisons in _measured(runner, tried, rounds).items():
        refused = next((one for one in comparisons if one["refused"] is not None), None)
        if refused is not None:
            result.refused[name] = f"{refused['workload']}: {refused['refused']}"
            scores.pop(name, None)
            continue
        by_round: dict[int, list[float]] = {}
        for one in comparisons:
            for item in one["pairs"]:
                if item["total_ratio"] is not None:
                    by_round.setdefault(item["round"], []).append(item["total_ratio"])
        scores.setdefault(name, []).extend(geometric_mean(v) for v in by_round.values())


def _measured(
    runner: Runner, tried: Sequence[Candidate], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Comparisons with plain decoding by set-up, one for each workload."""
    runner.setups = (plain_setup(), *(one.setup for one in tried))
    runs: dict[tuple[str, str], list[BenchRun]] = {}
    for run in runner.rounds(rounds):
        runs.setdefault((run.setup, run.workload), []).append(run)
    names = [conversation.name for conversation in runner.conversations]
    return {
        one.setup.name: [
            comparison(
                runs[PLAIN, name],
                runs[one.setup.name, name],
                runner.differences.get((name, one.setup.name)),
            )
            for name in names
        ]
        for one in tried
    }


def _best(
    scores: Mapping[str, Sequence[float]], by_name: Mapping[str, Candidate]
) -> list[Candidate]:
    """The best few, the best first."""
    ranked = sorted(scores, key=lambda name: -median(scores[name]))
    return [by_name[name] for name in ranked[:_KEPT]]


def _combined(
    profile: Profile, kept: Sequence[Candidate], types: Sequence[str]
) -> Candidate | None:
    """The best n-gram settings and the best model or head in a stack, if both are among the best;
    the controller decides which drafts."""
    ngram = next((one for one in kept if one.setup.types[0] in NGRAM_TYPES), None)
    neural = next((one for one in kept if one.setup.types[0] not in NGRAM_TYPES), None)
    if ngram is None or neural is None:
        return None
    order = sorted((*ngram.setup.types, *neural.setup.types), key=list(types).index)
    values = {**neural.values, **ngram.values, "spec.types": order, "spec.control": True}
    setup = BenchSetup(
        f"{ngram.setup.name} + {neural.setup.name}",
        tuple(order),
        True,
        neural.setup.ceilings,
        ngram.setup.spec,
    )
    return Candidate(setup, values)


def _ngram_settings(kind: str) -> list[dict[str, int]]:
    """The longest drafts first, which a controller cuts as it sees fit."""
    lengths = (_LONGEST, *_DRAFTED)
    if kind == "ngram-cache":
        return [{"n_draft": n} for n in _DRAFTED]
    if kind == "ngram-mod":
        return [{"n_match": n, "n_min": 1, "n_max": m} for n in _LOOKED_UP[1:] for m in lengths]
    return [{"size_n": n, "size_m": m} for n in _LOOKED_UP for m in lengths]


def _ngram(profile: Profile, kind: str, settings: Mapping[str, int]) -> list[Candidate]:
    """With the controller where drafts may be long, fixed where they are short."""
    control = max(settings.values()) == _LONGEST
    keys = {f"spec.{kind}.{key}": value for key, value in settings.items()}
    values: dict[str, Any] = {"spec.types": [kind], "spec.control": control, **keys}
    told = " ".join(f"{key}={value}" for key, value in settings.items() if key != "n_min")
    name = f"{kind} {told}{'' if control else ' fixed'}"
    spec = apply_values(profile, cast("dict[str, object]", keys)).spec
    return [Candidate(BenchSetup(name, (kind,), control, {}, spec), values)]


def _neural(kind: str, n_max: int, *, control: bool) -> Candidate:
    keys = f"spec.{kind}.n_max", f"spec.{kind}.n_min"
    values = {"spec.types": [kind], "spec.control": control, keys[0]: n_max, keys[1]: 0}
    name = f"{kind} n_max={n_max}{'' if control else ' fixed'}"
    return Candidate(BenchSetup(name, (kind,), control, {kind: n_max}), values)
