#!/usr/bin/env python3
"""Does drawing slow decoding down? Tokens per second of ``chat`` in a terminal, and of ``run``.

    scripts/bench_chat.py [MODEL] [--repeat N] [--tokens N] [--threads N]

The two alternate, with the same prompt and greedy sampling, and without drafts, so that both decode
the same tokens one by one. Prints one JSON record; ``ratio`` is the median of the pairs' ratios and
should be 0.98 or more.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench_plain import versions  # noqa: E402

from gguf_spec.bench.document import described, machine, ref_name  # noqa: E402
from tests.terminal import Terminal  # noqa: E402 (the repository's own)

PROMPT = "Explain in markdown, with headings, lists and code, how a binary search works."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    common = [
        given.model, "-t", str(given.threads), "--temp", "0", "--spec-type", "none",
        "-n", str(given.tokens),
    ]  # fmt: skip
    runs: list[float] = []
    chats: list[float] = []
    for i in range(given.repeat):
        for measure in (of_run, of_chat) if i % 2 else (of_chat, of_run):
            (runs if measure is of_run else chats).append(measure(common))
    ratios = [chat / run for chat, run in zip(chats, runs, strict=True)]
    record = {
        "what": "tokens/s of chat in a terminal beside run, plain decoding, interleaved",
        "command": " ".join(["scripts/bench_chat.py", *described(sys.argv[1:])]),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "model": ref_name(given.model),
        "run": runs,
        "chat": chats,
        "ratio": statistics.median(ratios),
    }
    print(json.dumps(record, indent=1))


def of_run(common: list[str]) -> float:
    """Tokens per second of ``run --json``, which shows nothing while it decodes."""
    command = [sys.executable, "-m", "gguf_spec", "run", *common, "-p", PROMPT, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    return float(json.loads(done.stdout)["timings"]["decode_tokens_per_second"])


def of_chat(common: list[str]) -> float:
    """Tokens per second that a chat shows below its answer."""
    terminal = Terminal(*common)
    try:
        terminal.prompt()
        terminal.type(PROMPT + "\r")
        shown = terminal.shows("tokens · prompt")
        terminal.type("/exit\r")
        terminal.ended()
    finally:
        terminal.close()
    return float(re.findall(r"([\d.]+) tokens/s · \d+ tokens · prompt", shown)[-1])


if __name__ == "__main__":
    main()
