"""What models say to prompts of several kinds, for replay_control.py: what it is not tuned on.

    scripts/record_streams.py NAME=MODEL … -o tests/control/holdout.json [-n 256] [-t 2]

NAME is what the texts are filed under: ``smollm2`` and ``gemma3`` have cost curves of their own in
tests/control/replay.py. Each prompt is answered by plain decoding: greedily, and those whose name
begins with ``hot`` at temperature 1. Workloads of the program are among them, in languages and of
kinds that the texts in streams.json are not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.workloads import find_workload

SHIPPED = ("chinese", "japanese", "extract", "translation")
OWN = {
    "german": "Beschreibe einen Herbsttag an einem See, an dem ein Boot repariert wird.",
    "recipe": "Write a recipe for lentil soup: first the ingredients as a list, then the steps.",
    "dialogue": "Write a conversation between a station master and a traveller who has missed the "
    "last train. Each line begins with the speaker's name.",
    "sql": "Write SQL that creates the tables authors, books and loans, with keys, and then five "
    "queries on them, each with a comment.",
    "correct": "Correct the spelling in this text and give back all of it:\n\nThe harbor master "
    "rote down every ship that came in. On Monday ther were three, and on Tuesday non. The "
    "smallest of them caried salt and rope, and its captan asked for a berth near the mill. The "
    "harbor master rote that down too, and lit his lamp.",
    "hot-letter": "Write a letter to a friend who is going to move into your street.",
    "hot-names": "Invent twelve names for small boats, and say in a sentence why each is called "
    "so.",
}


def main() -> None:
    """Record all prompts with all models, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-n", "--predict", type=int, default=256)
    parser.add_argument("-t", "--threads", type=int, default=2)
    options = parser.parse_args()
    found = {}
    for named in options.models:
        name, _, model = named.partition("=")
        found[name] = record(model, options.predict, options.threads)
    options.output.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")


def record(model: str, n_predict: int, n_threads: int) -> dict[str, dict[str, list[int]]]:
    """The prompts and answers of ``model`` as tokens, by name."""
    values = {
        "target.model": model,
        "target.n_ctx": 2048,
        "target.n_threads": n_threads,
        "spec.types": ["none"],
    }
    prompts = {name: find_workload(name).turns[0] for name in SHIPPED} | OWN
    texts = {}
    with Session(prepare(apply_values(Profile(), values))) as session:
        for name, prompt in prompts.items():
            hot = name.startswith("hot")
            drawn = {"sampling.temperature": 1.0 if hot else 0.0, "sampling.seed": 3}
            params = session.params(
                apply_values(session.setup.profile, drawn), max_tokens=n_predict
            )
            tokens = session.chat_prompt([{"role": "user", "content": prompt}])
            generation = session.generate(tokens, params)
            for _ in generation:
                pass
            texts[name] = {"prompt": tokens, "tokens": generation.tokens}
            print(f"{model}: {name}: {len(tokens)} and {len(generation.tokens)} tokens", flush=True)
    return texts


if __name__ == "__main__":
    main()
