"""What texts of earlier requests bring, and cost, beside llama-server's pool.

    scripts/bench_pool.py MODEL --peer llama-server [--case NAME …] [-n 128] [--repeat 7] [-t 2]
                          [-c 4096] [-o bench_results] [--resume FILE]

A case is a first request and three that come second: the same again, an edited one, and one that
has nothing to do with it. Each is decoded with nothing kept (``cold``) and after the first
(``kept``): by us with ``auto``, where the session keeps its texts, and by a llama-server with
ngram-mod, the type that keeps texts, at its defaults. Both decode plainly, too. A new controller,
new drafters, and for llama-server a new process, come before every cold request and every first
one. What is timed is decoding. Every second round goes the other way round.

Of every second request the record has, as paired ratios: kept beside plain and beside cold, ours
and llama-server's, and ours beside llama-server's. It is written again after every case: Ctrl-C
keeps those that are finished, and --resume goes on with the rest. Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sweep_record import begin, check_file, count, new_path, run_main, write
from sweep_tables import pool_markdown, pool_rows
from warm_peer import WarmPeer

from gguf_spec.bench.compare import comparison
from gguf_spec.bench.peer import find_program
from gguf_spec.bench.records import check_folder
from gguf_spec.bench.runner import BenchRun, Conversation, Prompt, Runner
from gguf_spec.bench.setups import PLAIN, BenchSetup, plain_setup
from gguf_spec.bench.table import render
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
WIDEST = 65
AUTO, MOD = "auto", "ngram-mod"
SECONDS = ("same", "edited", "different")


class Case(NamedTuple):
    """Requests of one user message each."""

    same: str
    edited: str
    different: str


CASES = {
    "letter": Case(
        "Write a letter to the library of a small town that asks for longer opening hours on "
        "Saturdays. Give three reasons.",
        "Write a letter to the library of a small town that asks for longer opening hours on "
        "Sundays. Give four reasons.",
        "Explain how a bicycle pump works, for a child of ten.",
    ),
    "code": Case(
        "Write a Python class Stack with the methods push, pop, peek, is_empty and size, each with "
        "a docstring.",
        "Write a Python class Stack with the methods push, pop, top, is_empty and size, each with "
        "a docstring.",
        "Name six rivers of Europe and say of each into which sea it flows.",
    ),
    "bread": Case(
        "Explain step by step how to bake a loaf of bread at home.",
        "Explain step by step how to bake two loaves of bread at home.",
        "Tell what a lighthouse keeper does from evening to morning.",
    ),
}


def main() -> int:
    """Measure all cases, write the record after each of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--peer", required=True, help="llama-server's path")
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument(
        "-n", "--predict", type=count(2), default=128, help="most tokens of an answer"
    )
    parser.add_argument("--repeat", type=count(1), default=7, help="rounds")
    parser.add_argument("-t", "--threads", type=count(1, 512), default=2)
    parser.add_argument("-c", "--ctx", type=count(1, 1 << 24), default=4096)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench_results")
    parser.add_argument("--resume", type=Path, help="a record whose cases are done")
    options = parser.parse_args()
    options.case = options.case or list(CASES)
    return run_main(lambda: measure(options))


def measure(options: argparse.Namespace) -> int:
    """The whole measurement; the exit code."""
    program = find_program(options.peer)
    if options.resume:
        check_file(options.resume)
    else:
        check_folder(options.output)
    values = {
        "target.model": options.model,
        "target.n_ctx": options.ctx,
        "target.n_threads": options.threads,
        "spec.pool": "session",
    }
    with ExitStack() as stack:
        session = Session(prepare(apply_values(Profile(), values)), least_width=WIDEST)
        stack.enter_context(session)
        record = begin("pool", session, options.resume, options.predict, options.repeat)
        path = options.resume or new_path(options.output, "pool", session)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        setups = (plain_setup(), BenchSetup(AUTO, session.spec_types))
        # ngram-mod is held beside ``auto``; its settings are llama.cpp's defaults.
        mod = BenchSetup(AUTO, (MOD,), control=False, spec=Profile().spec)
        peers = [
            stack.enter_context(WarmPeer(program, session, setup, folder))
            for setup in (setups[0], mod)
        ]
        peers[1].close()
        done = {one["case"] for one in record["results"]}
        for name in options.case:
            if name in done:
                continue
            record["results"].append(case(name, options, session, setups, peers))
            record["peers"] = [peer.record() for peer in peers]
            done.add(name)
            record["complete"] = done >= set(options.case)
            write(path, record, pool_markdown(record))
            print(f"{name}\n{render(pool_rows(record['results'][-1]))}", flush=True)
    print(path)
    return 0


def case(
    name: str,
    options: argparse.Namespace,
    session: Session,
    setups: Sequence[BenchSetup],
    peers: Sequence[WarmPeer],
) -> dict[str, Any]:
    """Measure one case, and tell what came of it."""
    begun = perf_counter()
    runner = Runner(session, (), setups, peers=peers, keep_prompts=True)
    n_predict = options.predict
    conversations = conversations_of(name, n_predict, runner)
    settle(conversations, peers)
    cuts = [cut for c in conversations.values() for p in peers if (cut := p.cut(c.name))]
    if cuts:  # a llama-server tells its time for whole answers only
        for conversation in conversations.values():
            for peer in peers:
                peer.forget(conversation.name)
        n_predict = min(cuts)
        conversations = conversations_of(name, n_predict, runner)
        settle(conversations, peers)
    runner.run(0, conversations["kept same"], setups[1])  # graphs of wide batches are built
    by_side: dict[tuple[str, str], list[BenchRun]] = {}
    for number in range(1, options.repeat + 1):
        for key, run in each(number, conversations, runner):
            by_side.setdefault((key, run.setup), []).append(last_turn(run))
    firsts = {key: c.prompts[-1] for key, c in conversations.items()}
    return {
        "case": name,
        "n_predict": n_predict,
        "prompt_tokens": {key: len(prompt.tokens) for key, prompt in firsts.items()},
        "completion_tokens": {key: len(prompt.reference) for key, prompt in firsts.items()},
        "refused_by_peer": {p.name: p.refused for p in peers if p.refused},
        "differences": [
            {"request": key[0], "setup": key[1], **found}
            for key, found in runner.differences.items()
        ],
        "seconds": round(perf_counter() - begun, 1),
        "requests": [conclude(second, by_side, runner, name) for second in SECONDS],
        "runs": [
            {
                "round": run.round,
                "request": key,
                "setup": setup,
                "tokens": run.n_tokens,
                "decode_seconds": run.decode_seconds,
                "by_type": run.by_type,
            }
            for (key, setup), runs in by_side.items()
            for run in runs
        ],
    }


def conversations_of(name: str, n_predict: int, runner: Runner) -> dict[str, Conversation]:
    """``cold`` and ``kept`` of each second request, with plain decoding's answers."""
    session = runner.session
    params = session.params(
        apply_values(session.setup.profile, {"sampling.temperature": 0.0}), max_tokens=n_predict
    )
    texts = CASES[name]._asdict()
    prompts: dict[str, Prompt] = {}
    for second, text in texts.items():
        tokens = tuple(session.chat_prompt([{"role": "user", "content": text}]))
        prompt = Prompt(tokens, params)
        for _ in range(2):  # the answer that counts begins with a cached prompt, as all others will
            workload = Workload(f"{name}-{second}", (text,))
            run = runner.run(0, Conversation(workload, (prompt,)), plain_setup())
        prompts[second] = replace(prompt, reference=run.turns[0].tokens)
    found = {}
    for second in SECONDS:
        for state, turns in (("cold", ()), ("kept", (prompts["same"],))):
            workload = Workload(f"{name}-{state}-{second}", tuple(texts.values()))
            found[f"{state} {second}"] = Conversation(workload, (*turns, prompts[second]))
    return found


def settle(conversations: Mapping[str, Conversation], peers: Sequence[WarmPeer]) -> None:
    """Find out how much of the texts llama-server has in common with us."""
    plain, mod = peers
    for key, conversation in conversations.items():
        mod.settle(conversation)
        if key.startswith("cold"):
            plain.settle(conversation)


def each(
    number: int, conversations: Mapping[str, Conversation], runner: Runner
) -> Iterator[tuple[str, BenchRun]]:
    """One round: what was decoded, and its run. Plain decoding knows of nothing that is kept."""
    plain_peer, mod_peer = runner.peers
    plain, auto = runner.setups
    order: list[tuple[str, Any]] = []
    for second in SECONDS:
        cold, kept = f"cold {second}", f"kept {second}"
        order += [(cold, plain), (cold, plain_peer), (cold, auto), (cold, mod_peer)]
        order += [(kept, auto), (kept, mod_peer)]
    for key, side in order if number % 2 else order[::-1]:
        time.sleep(0.02)  # the threads of the side before go to sleep
        conversation = conversations[key]
        if isinstance(side, BenchSetup):
            yield key, runner.run(number, conversation, side)
        else:
            run = side.run(number, conversation)
            if run is not None:
                yield key, run


def last_turn(run: BenchRun) -> BenchRun:
    """The run of the second request alone."""
    return replace(run, turns=run.turns[-1:])


def conclude(
    second: str, by_side: Mapping[tuple[str, str], list[BenchRun]], runner: Runner, case_name: str
) -> dict[str, Any]:
    """What is known of one second request."""
    cold, kept = f"cold {second}", f"kept {second}"
    plain_peer, mod_peer = (peer.name for peer in runner.peers)
    reasons = {
        f"{state} {second}": runner.differences.get((f"{case_name}-{state}-{second}", AUTO))
        for state in ("cold", "kept")
    }

    def beside(base: tuple[str, str], other: tuple[str, str]) -> dict[str, Any] | None:
        if base not in by_side or other not in by_side:
            return None
        reason = next((reasons[k] for k, s in (other, base) if s == AUTO and reasons[k]), None)
        one = comparison(by_side[base], by_side[other], reason)
        kept_keys = {k: one[k] for k in ("equal", "refused", "decode")}
        return {**kept_keys, "pairs": [pair["decode_ratio"] for pair in one["pairs"]]}

    return {
        "request": second,
        "ours_cold_beside_plain": beside((cold, PLAIN), (cold, AUTO)),
        "ours_kept_beside_plain": beside((cold, PLAIN), (kept, AUTO)),
        "ours_kept_beside_cold": beside((cold, AUTO), (kept, AUTO)),
        "peer_kept_beside_plain": beside((cold, plain_peer), (kept, mod_peer)),
        "peer_kept_beside_cold": beside((cold, mod_peer), (kept, mod_peer)),
        "ours_beside_peer": beside((kept, mod_peer), (kept, AUTO)),
        "plain_ours_beside_peer": beside((cold, plain_peer), (cold, PLAIN)),
    }


if __name__ == "__main__":
    sys.exit(main())
