"""The controller without a model: its own time, and simulated drafters. See check_control.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from replay_control import recorded

from gguf_spec.control import AdaptiveController, Choice, Hints, Offer, Round
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_registry import AUTO_SIZES
from tests.control.replay import CURVES, Stream, adaptive, cost_of, known_curve, replay
from tests.control.simulated import Neural, best_speed, controller_of, simulate, warm

TURN, WITHIN = 512, 512
MICROSECONDS = 20.0
LEAST_SHARE = 0.9
CHANCES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95)
HOLDOUT = Path(__file__).resolve().parents[1] / "tests" / "control" / "holdout.json"


class Timed:
    """A controller whose own time is taken, round by round."""

    def __init__(self, inner: AdaptiveController) -> None:
        self._inner = inner
        self._spent = 0
        self.microseconds: list[float] = []

    def choose(self, limit: int) -> Sequence[Choice]:
        """As the other."""
        begun = perf_counter_ns()
        found = self._inner.choose(limit)
        self._spent += perf_counter_ns() - begun
        return found

    def judge(self, choice: Choice, offer: Offer) -> int:
        """As the other."""
        begun = perf_counter_ns()
        found = self._inner.judge(choice, offer)
        self._spent += perf_counter_ns() - begun
        return found

    def record(self, result: Round) -> None:
        """Pass it on; the round is over."""
        begun = perf_counter_ns()
        self._inner.record(result)
        self.microseconds.append((self._spent + perf_counter_ns() - begun) / 1e3)
        self._spent = 0

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        """As the other."""
        return self._inner.resting(n_prompt, n_new)

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """Pass it on."""
        self._inner.prefilled(drafter, n_tokens, seconds)

    def drop(self, drafter: int) -> None:
        """Pass it on."""
        self._inner.drop(drafter)


def own_time() -> list[dict[str, Any]]:
    """Microseconds of a round over recorded texts, and whether a text gives its drafts again."""
    rows = []
    for name, path in (("streams", None), ("holdout", HOLDOUT)):
        if path is not None and not path.exists():
            continue
        times: list[float] = []
        same = True
        for model, texts in recorded(path).items():
            for stream in texts.values():
                costs = model if model in CURVES else "smollm2"
                first, second = (rounds_of(stream, costs, times) for _ in range(2))
                same = same and first == second
        times.sort()
        middle = median(times)
        rows.append(
            {
                "texts": name,
                "rounds": len(times),
                "median_us": middle,
                "p99_us": times[int(0.99 * len(times))],
                "worst_us": times[-1],
                "deterministic": same,
                "met": same and middle <= MICROSECONDS,
            }
        )
    return rows


def rounds_of(stream: Stream, costs: str, times: list[float]) -> list[int]:
    """The lengths of all drafts; the controller's times are added to ``times``."""
    cost = cost_of(costs)
    controller = adaptive([LongestMatch(*AUTO_SIZES)], [AUTO_SIZES[1]], known_curve(cost))
    controller.begin(Hints())
    timed = Timed(controller)
    outcome = replay(stream, [LongestMatch(*AUTO_SIZES)], timed, cost, noise=0.1, seed=3)
    times += timed.microseconds
    return outcome.lengths


def simulated() -> list[dict[str, Any]]:
    """The share of the best fixed length's speed, by curve and chance."""
    rows = []
    for name in ("gpu", "experts"):
        cost = cost_of(name)
        for chance in CHANCES:
            drafter = Neural(lambda n, chance=chance: chance)  # type: ignore[misc]
            trace = simulate(controller_of([drafter], warm(cost)), [drafter], cost, 3000)
            best = best_speed(drafter, cost, chance)
            rows.append(
                {
                    "costs": name,
                    "c(4)": cost(4),
                    "chance": chance,
                    "times_plain": trace.speed,
                    "best": best,
                    "share": trace.speed / best,
                    "met": trace.speed >= LEAST_SHARE * best,
                }
            )
    return rows


def simulated_turn() -> list[dict[str, Any]]:
    """Where a simulated drafter is used that is right from position ``TURN`` on, by its costs."""
    rows = []
    for name, (first, each) in ((c, d) for c in sorted(CURVES) for d in ((0.0, 0.0), (0.05, 0.05))):
        cost = cost_of(name)
        drafter = Neural(lambda n: float(n >= TURN), first, each)
        trace = simulate(controller_of([drafter], warm(cost)), [drafter], cost, 4 * TURN)
        late = [k for at, _, k in trace.rounds if at >= TURN + WITHIN]
        drafted = sum(k > 0 for k in late) / len(late)
        used = next((at for at, _, k in trace.rounds if k and at >= TURN), None)
        rows.append(
            {
                "costs": name,
                "drafting": f"{first:g} + {each:g} k",
                "best": best_speed(drafter, cost, 1.0),
                "tried_after": used and used - TURN,
                "drafted_rounds_after_512": drafted,
                "met": drafted > 0.8,
            }
        )
    return rows
