#!/usr/bin/env python3
"""Check the rules of verification at full size; the test suite has smaller versions of this.

    scripts/check_sampling.py [toy | models | seeds] [--draws N] [--tested N] [--runs N]

toy: frequencies of texts of three tokens against their probabilities, for pairs of a target and a
drafter, both rules, and drafts of 1 to 5 tokens; every chi-square p has to exceed 0.001.
models: accepted of tested draft tokens of the tiny models at temperature 1, by the way drafts are
drawn. seeds: coupled drafts give the text of plain decoding.

Prints the figures; the exit code is 1 if one of them misses its bound.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.acceptance import PAIRS as MODELS
from tests.acceptance import PROMPTS, measure, session, text_of
from tests.distributions import PAIRS, draw, expected, p_value

LEAST_P = 0.001
NEAR_OVERLAP = 0.015
COUPLED_OF_RESIDUAL = 0.85
COUPLED_OF_GREEDY = 1.4


def main() -> int:
    """Run the parts that were asked for; 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="?", choices=("toy", "models", "seeds"))
    parser.add_argument("--draws", type=int, default=50_000, help="texts per toy case")
    parser.add_argument("--tested", type=int, default=10_000, help="draft tokens per model and way")
    parser.add_argument("--runs", type=int, default=100, help="seeds per model")
    options = parser.parse_args()
    missed: list[str] = []
    if options.part in (None, "toy"):
        toy(options.draws, missed)
    if options.part in (None, "models"):
        models(options.tested, missed)
    if options.part in (None, "seeds"):
        seeds(options.runs, missed)
    print("\n".join(f"MISSED: {line}" for line in missed) or "all bounds hold")
    return 1 if missed else 0


def toy(draws: int, missed: list[str]) -> None:
    """Texts of both rules against their probabilities."""
    print(f"chi-square p of {draws} texts, drafts of 1 to 5 tokens")
    for pair in PAIRS:
        for rule, way in (("residual", "own"), ("match", "greedy")):
            texts = range(draws)
            values = [
                p_value(draw(pair, way, n, texts, seed=n), expected(pair)) for n in range(1, 6)
            ]
            name = f"{pair.name}, {rule}"
            print(f"  {name:<40}", *(f"{p:.4f}" for p in values), flush=True)
            if min(values) <= LEAST_P:
                missed.append(f"{name}: p {min(values):.2g}, wanted more than {LEAST_P}")


def models(n_tested: int, missed: list[str]) -> None:
    """Acceptance of the three ways."""
    for kind in MODELS:
        found = {way: measure(kind, way, n_tested) for way in ("own", "coupled", "greedy")}
        own, rates = found["own"], {way: one.rate for way, one in found.items()}
        print(f"{kind}: accepted of tested draft tokens at temperature 1")
        for way, one in found.items():
            print(f"  {way:<8} {one.accepted}/{one.tested} = {one.rate:.4f}")
        print(f"  mean of sum(min(target, draft)) {own.overlap:.4f}, deviation {own.deviation:.4f}")
        of_residual = rates["coupled"] / rates["own"]
        of_greedy = rates["coupled"] / rates["greedy"]
        print(f"  coupled / own {of_residual:.3f}, coupled / greedy {of_greedy:.3f}", flush=True)
        if abs(own.rate - own.overlap) > NEAR_OVERLAP:
            missed.append(f"{kind}: own {own.rate:.4f}, theory {own.overlap:.4f}")
        if of_residual < COUPLED_OF_RESIDUAL:
            missed.append(f"{kind}: coupled / own {of_residual:.3f} < {COUPLED_OF_RESIDUAL}")
        if of_greedy < COUPLED_OF_GREEDY:
            missed.append(f"{kind}: coupled / greedy {of_greedy:.3f} < {COUPLED_OF_GREEDY}")


def seeds(runs: int, missed: list[str]) -> None:
    """Texts with coupled drafts against those without drafts."""
    for kind in MODELS:
        with (
            session(kind, draft_sampling="coupled") as drafting,
            session(kind, types=["none"]) as plain,
        ):
            equal = 0
            for seed in range(runs):
                prompt = PROMPTS[seed % len(PROMPTS)]
                texts = [text_of(made, prompt, seed, 128) for made in (drafting, plain)]
                equal += texts[0] == texts[1]
        print(f"{kind}: the same text with and without coupled drafts: {equal} of {runs} seeds")
        if equal < runs:
            missed.append(f"{kind}: {runs - equal} of {runs} texts differ")


if __name__ == "__main__":
    sys.exit(main())
