#!/usr/bin/env python3
"""Hold every drafter and stack of drafters against plain decoding on the tiny models.

    scripts/check_equality.py [--prompts N] [--tokens N] [--lengths N] [--only TEXT] [-o FILE]

For every stack, draft lengths 1 to 8 and 20 prompts, 200 tokens are decoded: greedy, and drawn at
temperature 0.8 with a seed. With exact settings (bf16 cache, flash attention, weights as they are)
each text has to be that of plain decoding. With default settings a greedy text may differ first at
a near-tie: where the two best tokens of plain decoding are no further apart than logits of batches
are from those of single decoding.

The suite has a slice of this. Prints a table; the exit code is 1 if a text differs. With -o the
result is written as JSON, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gguf_spec.backend import load_lib
from tests.stacks import GREEDY, LENGTHS, MANY_PROMPTS, STACKS, WARM, Found, compare, split_mtp

WAYS = (
    ("exact, greedy", GREEDY, True),
    ("exact, 0.8", WARM, True),
    ("default, greedy", GREEDY, False),
    ("default, 0.8", WARM, False),
)


def main() -> int:
    """Run the grid; 1 if a text is different without a reason."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=len(MANY_PROMPTS))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--lengths", type=int, default=LENGTHS[-1], help="draft lengths 1 to this")
    parser.add_argument("--only", default="", help="stacks and ways whose names have this in them")
    parser.add_argument("-o", "--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    begun = perf_counter(), process_time()
    with tempfile.TemporaryDirectory() as name:
        os.environ["GGUF_SPEC_HOME"] = name
        split_mtp(Path(name))
        rows = grid(options, Path(name))
    seconds, cpu = perf_counter() - begun[0], process_time() - begun[1]
    different = sum(row["different"] for row in rows)
    texts, drafted = sum(row["texts"] for row in rows), sum(row["drafted"] for row in rows)
    print(f"{texts} texts, {drafted} drafted tokens, {seconds:.0f} s ({cpu:.0f} s CPU)")
    print(f"{different} texts differ" if different else "every text is that of plain decoding")
    return 1 if different else 0


def write(options: argparse.Namespace, rows: list[dict[str, object]]) -> None:
    """The result so far, after each row: a run of the whole takes a while."""
    if options.output is None:
        return
    names = ("prompts", "tokens", "lengths", "only")
    record: dict[str, object] = {"llama_cpp": load_lib().version}
    record |= {name: getattr(options, name) for name in names}
    text = json.dumps({**record, "rows": rows}, indent=1)
    options.output.write_text(text + "\n", encoding="utf-8")


def grid(options: argparse.Namespace, folder: Path) -> list[dict[str, object]]:
    """A row for every stack and way, over all lengths."""
    rows: list[dict[str, object]] = []
    prompts = MANY_PROMPTS[: options.prompts]
    print(f"{'':44} {'':16} {'texts':>6} {'accepted of drafted':>20} {'ties':>5} {'differ':>7}")
    for stack in STACKS:
        for way, params, exact in WAYS:
            if options.only not in f"{stack.name}, {way}":
                continue
            sum_of = Found()
            for n_max in range(options.lengths, 0, -1):  # widths are measured once, all of them
                given = stack, n_max, folder, params, prompts, options.tokens
                sum_of.add(compare(*given, exact=exact))
            counts = f"{sum_of.accepted} / {sum_of.drafted}"
            print(
                f"{stack.name:44} {way:16} {sum_of.texts:6} {counts:>20} {sum_of.near_ties:5} "
                f"{sum_of.different:7}",
                flush=True,
            )
            rows.append({"stack": stack.name, "way": way, **asdict(sum_of)})
            write(options, rows)
    return rows


if __name__ == "__main__":
    sys.exit(main())
