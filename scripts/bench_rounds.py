"""What a round with a neural drafter costs outside libllama.

    scripts/bench_rounds.py [--model demo] [-t 1] [--repeats 1] [--only KIND …] [-o bench_results]

A round is a draft, the target's decode of it, and all that follows until the next draft. From its
time goes what the contexts of target and drafter say they spent inside libllama: decoding, waiting
for it, dropping tails, asking where states lie. What asking for a row of logits takes is left in,
1 µs or so. Every decode empties the processor's caches: the larger the models, the longer the same
code takes after them. ``plain`` is a step without a draft, which has one decode instead of four.

Where others use the machine, the least of several repeats says more than one median. Records of two
versions compare if their ``text`` is the same: the digest of the tokens. Measured are the drafters
of the tiny models (vocabulary 1024), and an EAGLE-3 head and a draft model with the vocabulary of
``--model`` (default: the demo model, 49k). These two are made here: their form is right and their
weights are noise, so nearly all of their drafts are rejected. Writes one JSON record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

import gguf
import numpy as np
from bench_plain import PROMPT, sha256, versions

from gguf_spec.bench.document import machine, ref_name
from gguf_spec.engine import Request
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "tests" / "models"
CODE = "import os\n\n\ndef read_file(path):\n    "
SAMPLERS = {
    "greedy": SamplingParams(temperature=0.0),
    "temp 0.8, top_k 40, top_p 0.95, min_p 0.05": SamplingParams(0.8, 40, 0.95, 0.05, seed=1),
}
KINDS = ("draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
N_MAX = 3
SCALE = 0.02  # of the seeded weights


def main() -> None:
    """Measure, print, write a record."""
    options = parse()
    code = str(TINY / "tiny-target.gguf"), "none", None, CODE
    results: dict[str, Any] = {"tiny (1024)": {"plain": measure(*code, options)}}
    for kind in wanted(options, KINDS):
        inside = kind == "draft-mtp"
        target = TINY / ("tiny-mtp.gguf" if inside else "tiny-target.gguf")
        name = "draft" if kind == "draft-simple" else kind.removeprefix("draft-")
        draft = None if inside else TINY / f"tiny-{name}.gguf"
        results["tiny (1024)"][kind] = measure(str(target), kind, draft, CODE, options)
    with tempfile.TemporaryDirectory() as folder:
        setup = prepare(profile(options.model, "none", None, options.threads))
        size = f"{setup.path.stem} ({setup.target.vocab_size})"
        results[size] = {"plain": measure(options.model, "none", None, PROMPT, options)}
        results[size] |= {
            kind: measure(options.model, kind, make(setup.path, Path(folder)), PROMPT, options)
            for kind, make in (("draft-simple", small_model), ("draft-eagle3", eagle3_head))
            if kind in wanted(options, KINDS)
        }
    record = {
        "what": "microseconds of a round outside libllama",
        "command": f"scripts/bench_rounds.py --model {ref_name(options.model)}",
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "model": {"file": setup.path.name, "sha256": sha256(setup.path)},
        "n_max": N_MAX,
        "n_threads": options.threads,
        "repeats": options.repeats,
        "results": results,
    }
    path = options.output / f"rounds-{setup.path.stem.lower()}-{date.today():%Y%m%d}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=400, help="rounds of each kind")
    parser.add_argument("--repeats", type=int, default=1, help="so often; the least median counts")
    parser.add_argument("--only", nargs="*", choices=KINDS, help="not all kinds")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench_results")
    return parser.parse_args()


def wanted(options: argparse.Namespace, kinds: Sequence[str]) -> list[str]:
    """Those of ``kinds`` that were asked for."""
    return [kind for kind in kinds if kind in (options.only or kinds)]


def profile(model: str, kind: str, draft: Path | None, threads: int) -> Profile:
    """Exact settings, so that each kind decodes the same text."""
    values: dict[str, object] = {
        "target.model": model,
        "target.n_ctx": 2048,
        "target.n_threads": threads,
        "target.flash_attn": "on",
        "target.type_k": "bf16",
        "target.type_v": "bf16",
        "spec.types": [kind],
        "spec.control": False,
        "spec.draft.n_max": N_MAX,
    }
    if draft is not None:
        values[f"spec.{kind}.model"] = str(draft)
    return apply_values(Profile(), values)


def measure(
    model: str, kind: str, draft: Path | None, prompt: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Rounds of one drafter, by sampler."""
    with Session(prepare(profile(model, kind, draft, options.threads))) as session:
        tokens = session.raw_prompt(prompt)
        return {
            name: min(
                (rounds(session, tokens, params, options.rounds) for _ in range(options.repeats)),
                key=lambda result: float(result["median"]),
            )
            for name, params in SAMPLERS.items()
        }


def rounds(
    session: Session, prompt: Sequence[int], params: SamplingParams, n_rounds: int
) -> dict[str, Any]:
    """Answers until there are ``n_rounds`` rounds with a draft; the first twenty do not count."""
    sequence = session.sequence
    contexts = [session.context, *session.draft_contexts.values()]
    outside: list[float] = []
    plain = not session.spec_types
    text: list[int] = []
    drafted = accepted = 0
    while len(outside) < n_rounds + 20:
        steps = session.engine.generate(
            sequence, Request(prompt, Sampler(params), 400, ignore_end=True)
        )
        while True:
            busy = sum(context.busy_seconds for context in contexts)
            begun = perf_counter()
            step = next(steps, None)
            seconds = perf_counter() - begun
            if step is None:
                break
            text += step.tokens
            busy = sum(context.busy_seconds for context in contexts) - busy
            if step.n_drafted or (plain and step.tokens):
                outside.append((seconds - busy) * 1e6)
                drafted += step.n_drafted
                accepted += step.n_accepted
    counted = sorted(outside[20:])
    return {
        "rounds": len(counted),
        "median": round(statistics.median(counted), 1),
        "p90": round(counted[int(0.9 * len(counted))], 1),
        "text": hashlib.sha256(str(text).encode()).hexdigest()[:12],
        "drafted_per_round": round(drafted / len(outside), 2),
        "acceptance_rate": round(accepted / max(drafted, 1), 3),
    }


def eagle3_head(target: Path, folder: Path) -> Path:
    """An EAGLE-3 head for ``target``, whose embeddings and output it shares."""
    reader = gguf.GGUFReader(target)
    arch = reader.fields["general.architecture"].contents()
    width = int(reader.fields[f"{arch}.embedding_length"].contents())
    layers = int(reader.fields[f"{arch}.block_count"].contents())
    n_head, n_head_kv, size, n_ff = 8, 2, 64, 2 * width
    keys = {
        "context_length": 2048, "embedding_length": width, "block_count": 1,
        "feed_forward_length": n_ff, "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv, "attention.key_length": size,
        "attention.value_length": size, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0, "rope.dimension_count": size,
        "target_layers": [2, layers // 2, layers - 3], "target_hidden_size": width,
        "norm_before_residual": False, "norm_before_fc": False,
    }  # fmt: skip
    shapes = {
        "fc": (width, 3 * width), "output_norm": (width,), "blk.0.attn_norm": (width,),
        "blk.0.attn_norm_2": (width,), "blk.0.attn_q": (n_head * size, 2 * width),
        "blk.0.attn_k": (n_head_kv * size, 2 * width),
        "blk.0.attn_v": (n_head_kv * size, 2 * width),
        "blk.0.attn_output": (width, n_head * size), "blk.0.ffn_norm": (width,),
        "blk.0.ffn_gate": (n_ff, width), "blk.0.ffn_up": (n_ff, width),
        "blk.0.ffn_down": (width, n_ff),
    }  # fmt: skip
    return write(folder / "eagle3.gguf", "eagle3", keys, shapes, reader)


def small_model(target: Path, folder: Path) -> Path:
    """A model of two narrow layers with the vocabulary of ``target``."""
    reader = gguf.GGUFReader(target)
    n_vocab = len(reader.fields["tokenizer.ggml.tokens"].data)
    width, n_ff, n_head, n_layer = 64, 128, 2, 2
    size = width // n_head
    keys = {
        "context_length": 2048, "embedding_length": width, "block_count": n_layer,
        "feed_forward_length": n_ff, "attention.head_count": n_head,
        "attention.head_count_kv": n_head, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0, "rope.dimension_count": size, "vocab_size": n_vocab,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (n_vocab, width), "output_norm": (width,),
    }  # fmt: skip
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.attn_norm": (width,), f"blk.{i}.attn_q": (width, width),
            f"blk.{i}.attn_k": (width, width), f"blk.{i}.attn_v": (width, width),
            f"blk.{i}.attn_output": (width, width), f"blk.{i}.ffn_norm": (width,),
            f"blk.{i}.ffn_gate": (n_ff, width), f"blk.{i}.ffn_up": (n_ff, width),
            f"blk.{i}.ffn_down": (width, n_ff),
        }  # fmt: skip
    return write(folder / "small.gguf", "llama", keys, shapes, reader)


def write(
    path: Path,
    arch: str,
    keys: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    reader: gguf.GGUFReader,
) -> Path:
    """A file with these keys, the tokenizer of ``reader``, and weights from a seed."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.name", path.stem)
    for name, value in keys.items():
        key = f"{arch}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    for name, entry in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = entry.types[0]
            inner = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, entry.contents(), kind, inner)
    numbers = np.random.default_rng(1)
    for name, shape in shapes.items():
        if len(shape) == 1:
            data = np.ones(shape, np.float32)
            writer.add_tensor(f"{name}.weight", data)
            continue
        data = numbers.standard_normal(shape, np.float32) * np.float32(SCALE)
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    main()
