"""What the parts cost outside libllama: sampling a row, and n-gram drafters.

    scripts/bench_parts.py [--model file.gguf] [-o bench_results]

Rows of logits come from the model (default: the demo model). "after a decode" is measured between
decodes of the model, as in a generation: its weights have just gone through the caches, and what
Python needs has to be fetched again. Nothing else may run meanwhile. Writes one JSON record.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from bench_plain import sha256, versions

from gguf_spec.bench.document import machine, ref_name
from gguf_spec.context import Run
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_registry import AUTO_SIZES, make_ngram
from gguf_spec.drafters.pool import Pool
from gguf_spec.history import History
from gguf_spec.profile import Profile, Spec, apply_values
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES, prepare

ROOT = Path(__file__).resolve().parents[1]
SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0),
    "top_k 40, top_p 0.95, min_p 0.05": SamplingParams(0.8, 40, 0.95, 0.05),
    "temperature alone": SamplingParams(0.8, 0, 1.0, 0.0),
    "greedy, repeat_penalty 1.3": SamplingParams(temperature=0.0, repeat_penalty=1.3),
}
TEXT = "The lighthouse keeper wrote in his log every evening, and on the first of March he wrote"


def main() -> None:
    """Measure, print, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench_results")
    options = parser.parse_args()
    setup = prepare(
        apply_values(
            Profile(),
            {
                "target.model": options.model,
                "target.n_ctx": 1024,
                "target.n_threads": options.threads,
                "spec.types": ["none"],
            },
        )
    )
    with Session(setup) as session:
        sampling = {name: sample(session, params) for name, params in SAMPLERS.items()}
        automatic = {name: cold(session, pool) for name, pool in pools(session).items()}
        n_vocab = session.model.n_vocab
    record = {
        "what": "microseconds outside libllama",
        "command": f"scripts/bench_parts.py --model {ref_name(options.model)}",
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "model": {"file": setup.path.name, "sha256": sha256(setup.path), "n_vocab": n_vocab},
        "sampling_microseconds_per_row": sampling,
        "automatic_lookup_microseconds_after_a_decode": automatic,
        "ngram": {kind: ngram(kind) for kind in NGRAM_TYPES},
    }
    path = options.output / f"parts-{setup.path.stem.lower()}-{date.today():%Y%m%d}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {k: v for k, v in record.items() if "microseconds" in k or k == "ngram"}, indent=1
        )
    )


def sample(session: Session, params: SamplingParams) -> dict[str, float]:
    """Median cost of a row: in a loop on one row, and after each of 100 decodes."""
    context, model = session.context, session.model
    sampler = Sampler(params)
    context.clear(0)
    tokens = model.tokenize(TEXT, add_special=True)
    context.decode([Run(0, 0, tokens, 1)])
    row, after = len(tokens) - 1, []
    for _ in range(100):
        logits = context.logits(row)
        begun = perf_counter()
        token = sampler.sample(logits, len(tokens), tokens)
        after.append((perf_counter() - begun) * 1e6)
        context.decode([Run(0, len(tokens), [token], 1)])
        tokens.append(token)
        row = 0
    logits = np.array(context.logits(0))
    warm = [timed(lambda i=i: sampler.sample(logits, i, tokens)) for i in range(200)]
    return {"in a loop": statistics.median(warm), "after a decode": statistics.median(after)}


def pools(session: Session) -> dict[str, Pool | None]:
    """Earlier texts: none, and twenty of 300 tokens with the words of this one in other orders."""
    words, numbers = session.model.tokenize(TEXT), random.Random(2)
    pool = Pool()
    for _ in range(20):
        pool.add([numbers.choice(words) for _ in range(300)])
    return {"of the text alone": None, "with 20 earlier texts": pool}


def cold(session: Session, pool: Pool | None) -> float:
    """Median time of the look-up that ``auto`` makes in every round, after each of 200 decodes of
    an answer that decoding chose."""
    context, model = session.context, session.model
    sampler, drafter = Sampler(SamplingParams()), LongestMatch(*AUTO_SIZES, pool)
    context.clear(0)
    history = History(model.tokenize(TEXT, add_special=True))
    drafter.begin(history)
    context.decode([Run(0, 0, history[:], 1)])
    row, times = len(history) - 1, []
    for _ in range(200):
        history.extend([sampler.sample(context.logits(row), len(history))])
        times.append(timed(look_up(drafter, sampler)))
        drafter.accept(0)
        context.decode([Run(0, len(history) - 1, history[-1:], 1)])
        row = 0
    return statistics.median(times)


def ngram(kind: str) -> dict[str, Any]:
    """A drafter on 32k tokens of text that repeats itself here and there."""
    numbers = random.Random(1)
    text: list[int] = []
    while len(text) < 32768:
        if len(text) > 200 and numbers.random() < 0.3:
            start = numbers.randrange(len(text) - 100)
            text += text[start : start + numbers.randrange(20, 100)]
        else:
            text += [numbers.randrange(49152) for _ in range(numbers.randrange(10, 60))]
    history = History(text[:32768])
    drafter, sampler = make_ngram(kind, Spec()), Sampler(SamplingParams())
    drafter.begin(history)
    ingest = timed(lambda: drafter.draft(64, sampler)) / 1e6
    rounds = []
    for i in range(2000):
        start = numbers.randrange(20000)
        history.extend(history[start : start + 30] if i % 10 == 9 else [numbers.randrange(49152)])
        drafter.accept(0)
        rounds.append(timed(look_up(drafter, sampler)))
    return {
        "ingest_seconds_32k": ingest,
        "round_microseconds": {
            "median": statistics.median(rounds),
            "p99": sorted(rounds)[int(0.99 * len(rounds))],
        },
    }


def look_up(drafter: Drafter, sampler: Sampler) -> Callable[[], object]:
    """A round of an n-gram drafter: update and look-up."""
    return lambda: drafter.draft(64, sampler)


def timed(call: Callable[[], object]) -> float:
    """Microseconds of a call."""
    begun = perf_counter()
    call()
    return (perf_counter() - begun) * 1e6


if __name__ == "__main__":
    main()
