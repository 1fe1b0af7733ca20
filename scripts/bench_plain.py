"""Plain greedy decoding beside llama-server, and what the engine costs outside libllama.

    scripts/bench_plain.py --server path/to/llama-server [--model demo] [--model file.gguf]

Both run the same prompt with the same settings, in turn: ours, theirs, ours, theirs …, after one
pair that is not counted. For a fair pair, llama-server has to be built from the sources inside the
sdist of the installed llama-cpp-python (vendor/llama.cpp) with the same options. Nothing else may
run meanwhile. Writes one JSON record to bench_results/.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from gguf_spec.bench.document import described, machine, ref_name
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.generation import GenerationParams
from gguf_spec.history import History
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare

ROOT = Path(__file__).resolve().parents[1]
PROMPT = (
    "The lighthouse keeper wrote in his log every evening. On the first of March he wrote about "
    "the weather, the ships that passed, and the birds that rested on the rail. On the second of "
    "March he wrote:"
)


def main() -> None:
    """Measure, print a summary, write a record."""
    options = parse()
    results = [measure(model, options) for model in options.model]
    record = {
        "what": "plain greedy decoding beside llama-server, interleaved pairs",
        "command": " ".join(["scripts/bench_plain.py", *described(sys.argv[1:])]),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "server": server_version(options.server),
        "results": results,
        "ngram_lookup": ngram_lookup(),
    }
    path = options.output / f"plain-{date.today():%Y%m%d}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for result in results:
        print(
            f"{result['model']['file']}: ours / llama-server {result['ratio']['median']:.3f} "
            f"(median of {len(result['pairs'])} pairs), "
            f"overhead {result['overhead_microseconds_per_step']['median']:.0f} us per step, "
            f"same text: {result['same_text']}"
        )
    print(f"n-gram look-up: {record['ngram_lookup']['median_microseconds']:.1f} us")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", type=Path, required=True, help="llama-server's path")
    parser.add_argument("--model", action="append", help="model reference (repeatable)")
    parser.add_argument("--pairs", type=int, default=9, help="counted pairs")
    parser.add_argument("-n", "--predict", type=int, default=200, help="tokens per run")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench_results")
    options = parser.parse_args()
    options.model = options.model or ["demo"]
    return options


def measure(ref: str, options: argparse.Namespace) -> dict[str, Any]:
    """Interleaved runs of one model."""
    profile = apply_values(
        Profile(),
        {
            "target.model": ref,
            "target.n_ctx": 4096,
            "target.flash_attn": "on",
            "target.n_threads": options.threads,
            "spec.types": ["none"],
        },
    )
    setup = prepare(profile)
    params = GenerationParams(SamplingParams(temperature=0.0), options.predict)
    pairs, overheads, texts = [], [], set()
    with Session(setup) as session, server(options, setup.path) as url:
        prompt = session.raw_prompt(PROMPT)
        for i in range(options.pairs + 1):
            ours, overhead, our_tokens = run_ours(session, prompt, params)
            time.sleep(0.5)
            theirs, their_tokens = run_server(url, prompt, options.predict)
            time.sleep(0.5)
            texts |= {tuple(our_tokens), tuple(their_tokens)}
            if i:
                pairs.append({"ours": ours, "llama_server": theirs, "ratio": ours / theirs})
                overheads.append(overhead)
    return {
        "model": {"file": setup.path.name, "sha256": sha256(setup.path), "ref": ref_name(ref)},
        "settings": {
            "n_ctx": 4096,
            "flash_attn": "on",
            "threads": options.threads,
            "n_predict": options.predict,
            "prompt": PROMPT,
            "n_prompt": len(prompt),
        },
        "unit": "tokens per second, (n - 1) / seconds from the first token to the last",
        "pairs": pairs,
        "median": {
            "ours": statistics.median(p["ours"] for p in pairs),
            "llama_server": statistics.median(p["llama_server"] for p in pairs),
        },
        "ratio": spread([p["ratio"] for p in pairs]),
        "overhead_microseconds_per_step": spread(overheads),
        "same_text": len(texts) == 1,
    }


def run_ours(
    session: Session, prompt: list[int], params: GenerationParams
) -> tuple[float, float, list[int]]:
    """Tokens per second, engine microseconds per step, and the tokens."""
    session.context.clear(0)
    session.sequence.consistent = False  # start cold, as the server does without its cache
    generation = session.generate(prompt, params)
    for _ in generation:
        pass
    report = generation.report()
    if report["completion_tokens"] != params.max_tokens:
        sys.exit(f"the model ended after {report['completion_tokens']} tokens: shorten -n")
    overhead = report["timings"]["overhead_seconds"] / report["spec"]["steps"] * 1e6
    return report["timings"]["decode_tokens_per_second"], overhead, generation.tokens


def run_server(url: str, prompt: list[int], n_predict: int) -> tuple[float, list[int]]:
    """Tokens per second and the tokens. Token ids are sent, so that no BOS is added twice."""
    body = {
        "prompt": prompt,
        "n_predict": n_predict,
        "temperature": 0.0,
        "cache_prompt": False,
        "return_tokens": True,
    }
    answer = post(f"{url}/completion", body)
    return float(answer["timings"]["predicted_per_second"]), list(answer["tokens"])


@contextmanager
def server(options: argparse.Namespace, model: Path) -> Iterator[str]:
    """A llama-server with the same settings as ours."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(options.server), "-m", str(model), "-c", "4096", "-fa", "on", "-np", "1",
        "-t", str(options.threads), "-tb", str(options.threads),
        "--host", "127.0.0.1", "--port", str(port),
        "-cram", "0", "--no-cache-prompt", "-ctxcp", "0", "--offline", "--no-webui",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(300):
                if process.poll() is not None:
                    sys.exit(f"llama-server ended with code {process.returncode}")
                try:
                    with urllib.request.urlopen(f"{url}/health", timeout=5):
                        break
                except OSError:
                    time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST JSON, read JSON."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


def ngram_lookup() -> dict[str, Any]:
    """An n-gram look-up in a history of 32k tokens that grows, every second time with a match."""
    numbers = random.Random(1)
    sampler = Sampler(SamplingParams())
    times = []
    history = History(numbers.randrange(49152) for _ in range(32768))
    drafter = NgramSimple(12, 48)
    drafter.begin(history)
    drafter.draft(48, sampler)
    found = 0
    for i in range(2000):
        start = numbers.randrange(20000)
        history.extend(history[start : start + 12] if i % 2 else [numbers.randrange(49152)])
        begun = perf_counter()
        draft = drafter.draft(48, sampler)
        times.append((perf_counter() - begun) * 1e6)
        found += bool(draft.tokens)
    return {
        "history_tokens": [32768, len(history)],
        "lookups": len(times),
        "matches": found,
        "median_microseconds": statistics.median(times),
        "p99_microseconds": sorted(times)[int(0.99 * len(times))],
    }


def spread(values: list[float]) -> dict[str, float]:
    """Minimum, median, maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def versions() -> dict[str, str]:
    """Of what decides about speed beside the model."""
    names = ("gguf-spec", "llama-cpp-python", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def server_version(path: Path) -> str:
    """What llama-server says it is."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    lines = [x for x in (done.stdout + done.stderr).splitlines() if x.startswith("version")]
    return lines[0] if lines else "unknown"


def sha256(path: Path) -> str:
    """Of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
