"""Automatic drafting beside every fixed setting that somebody might try, and beside llama-server.

    scripts/bench_sweep.py MODEL [--peer llama-server] [--workload NAME …] [-n 64] [--repeat 8]
                           [-t 2] [-c 4096] [-o bench_results] [--resume FILE]

For each workload, in turn: plain decoding, ``auto``, each n-gram type at llama.cpp's defaults and
at other sizes; and with --peer a llama-server that decodes plainly and one for each n-gram type at
its defaults, right behind ours. Every second round goes the other way round. Drafters, pool and
controller are new in every run. The prompt stays in the cache on all sides, so what is timed is
decoding: from the first token to the last, as llama-server does itself.

The record answers three questions for each workload:

    auto_beside_fixed   auto beside the best fixed setting (plain decoding is one of them)
    auto_beside_peer    auto beside the best of llama-server's n-gram types
    same_settings       ours beside llama-server's at the same settings, and the acceptance of both

The best is chosen on the odd rounds and compared on the even ones, and the other way round. Speeds
are told only of texts that are equal, as in ``gguf-spec bench``. The record is written again after
every workload: Ctrl-C keeps those that are finished, and --resume goes on with the rest. Nothing
else may run meanwhile. The exit code is 1 if a text is broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from halves import crossed
from sweep_record import begin, check_file, count, new_path, run_main, write
from sweep_tables import markdown, missed, rows_of
from warm_peer import WarmPeer

from gguf_spec.bench.compare import comparison
from gguf_spec.bench.measure import bench_profile
from gguf_spec.bench.peer import find_program
from gguf_spec.bench.records import check_folder
from gguf_spec.bench.runner import BenchRun, Runner
from gguf_spec.bench.setups import PLAIN, BenchSetup, plain_setup
from gguf_spec.bench.table import render
from gguf_spec.cli.bench import find_workloads
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES, prepare
from gguf_spec.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ("echo", "code-edit", "chinese", "chat", "prose", "reasoning")
WIDEST = 65  # rows of the widest draft of all, 64 tokens, with the token before it
AUTO = "auto"
#: Sizes beside llama.cpp's defaults: shorter keys, shorter drafts.
SIZES: dict[str, list[dict[str, int]]] = {
    "ngram-simple": [
        {"size_n": 2, "size_m": 8},
        {"size_n": 3, "size_m": 16},
        {"size_n": 5, "size_m": 32},
    ],
    "ngram-map-k": [{"size_n": 4, "size_m": 16}],
    "ngram-map-k4v": [{"size_n": 4, "size_m": 16}],
    "ngram-mod": [
        {"n_match": 8, "n_min": 1, "n_max": 16},
        {"n_match": 12, "n_min": 4, "n_max": 32},
    ],
    "ngram-cache": [{"n_draft": 3}],
}


def main() -> int:
    """Measure all workloads, write the record after each of them."""
    options = parse()
    return run_main(lambda: measure(options))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--peer", help="llama-server's path")
    parser.add_argument("--workload", action="append", help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument(
        "-n", "--predict", type=count(2), default=64, help="most tokens of an answer"
    )
    parser.add_argument("--repeat", type=count(2), default=8, help="rounds; an even number")
    parser.add_argument("-t", "--threads", type=count(1, 512), default=2)
    parser.add_argument("-c", "--ctx", type=count(1, 1 << 24), default=4096)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench_results")
    parser.add_argument("--resume", type=Path, help="a record whose workloads are done")
    return parser.parse_args()


def setups_for(session: Session) -> list[BenchSetup]:
    """Plain decoding, ``auto``, and the fixed settings: the defaults of every type first."""
    profile = session.setup.profile
    setups = [plain_setup(), BenchSetup(AUTO, session.spec_types)]
    for kind in NGRAM_TYPES:
        for sizes in [{}, *SIZES[kind]]:
            values: dict[str, Any] = {f"spec.{kind}.{name}": n for name, n in sizes.items()}
            values |= {"spec.types": [kind], "spec.control": False}
            shown = "/".join(str(n) for n in sizes.values()) or "defaults"
            spec = apply_values(profile, values).spec
            setups.append(BenchSetup(f"{kind} {shown}", (kind,), control=False, spec=spec))
    return setups


def default_of(kind: str) -> str:
    """The set-up of ``kind`` that has llama-server as its peer."""
    return f"{kind} defaults"


def open_session(options: argparse.Namespace) -> Session:
    """The model as ``auto`` has it, with room for the widest of all drafts."""
    profile = apply_values(
        Profile(),
        {
            "target.model": options.model,
            "target.n_ctx": options.ctx,
            "target.n_threads": options.threads,
        },
    )
    return Session(prepare(bench_profile(profile)), least_width=WIDEST)


def measure(options: argparse.Namespace) -> int:
    """The whole measurement; the exit code."""
    program = find_program(options.peer) if options.peer else None
    workloads = find_workloads(options.workload or WORKLOADS)
    if options.resume:
        check_file(options.resume)
    else:
        check_folder(options.output)
    with ExitStack() as stack:
        session = stack.enter_context(open_session(options))
        record = begin("sweep", session, options.resume, options.predict, options.repeat)
        path = options.resume or new_path(options.output, "sweep", session)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        setups = setups_for(session)
        record["setups"] = [described_setup(setup) for setup in setups]
        peers = []
        if program is not None:
            with_peer = {PLAIN, *(default_of(kind) for kind in NGRAM_TYPES)}
            for setup in setups:
                if setup.name in with_peer:
                    peers.append(stack.enter_context(WarmPeer(program, session, setup, folder)))
            for peer in peers:
                if peer.record()["fresh"]:
                    peer.close()
        measured = 0
        done = {result["workload"] for result in record["results"]}
        for one in workloads:
            if one.name in done:
                continue
            found = measured_workload(one, options, session, setups, peers, warm_up=not measured)
            measured += 1
            record["results"].append(found)
            record["peers"] = [peer.record() for peer in peers]
            done.add(one.name)
            record["complete"] = done >= {workload.name for workload in workloads}
            write(path, record, markdown(record))
            print(f"{one.name}\n{render(rows_of(record['results'][-1]))}", flush=True)
    print(*(f"short of the limits: {line}" for line in missed(record["results"])), path, sep="\n")
    verdicts = [d["verdict"] for one in record["results"] for d in one["differences"]]
    return int("broken" in verdicts)


def described_setup(setup: BenchSetup) -> dict[str, Any]:
    """As JSON, with the sizes of n-gram types."""
    record = setup.record()
    if setup.spec is not None:
        table = getattr(setup.spec, setup.types[0].replace("-", "_"))
        record["sizes"] = table.model_dump(exclude_none=True)
    return record


def measured_workload(
    work: Workload,
    options: argparse.Namespace,
    session: Session,
    setups: Sequence[BenchSetup],
    peers: Sequence[WarmPeer],
    *,
    warm_up: bool,
) -> dict[str, Any]:
    """Measure one workload, and tell what came of it. Where a llama-server's text goes another way
    at a near-tie, all sides decode what precedes it: it tells its time for whole answers only."""
    begun, name = perf_counter(), work.name
    runner = runner_of(work, options.predict, session, setups, peers)
    for setup in setups if warm_up else ():  # first runs find pages missing and graphs unbuilt
        runner.run(0, runner.conversations[0], setup)
    for peer in peers:
        peer.settle(runner.conversations[0])
    cuts = [cut for peer in peers if (cut := peer.cut(name)) is not None]
    if cuts:
        for peer in peers:
            peer.forget(name)
        runner = runner_of(work, min(cuts), session, setups, peers)
        for peer in peers:
            peer.settle(runner.conversations[0])
    runs = list(runner.rounds(options.repeat))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    result = conclude(runs, runner.differences, work)
    prompts = runner.conversations[0].prompts
    result |= {
        "prompt_tokens": [len(prompt.tokens) for prompt in prompts],
        "completion_tokens": [len(prompt.reference) for prompt in prompts],
        "cut_to": min(cuts, default=None),
        "refused_by_peer": {p.name: p.refused[name] for p in peers if name in p.refused},
        "seconds": round(perf_counter() - begun, 1),
    }
    return result


def runner_of(
    work: Workload,
    n_predict: int,
    session: Session,
    setups: Sequence[BenchSetup],
    peers: Sequence[WarmPeer],
) -> Runner:
    """What decodes the workload ``work``."""

    def report(what: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{work.name}: {what}", end="", file=sys.stderr, flush=True)
        time.sleep(0.02)  # the threads of the side before go to sleep

    return Runner(
        session,
        [work],
        setups,
        peers=peers,
        max_tokens=n_predict,
        report=report,
        keep_prompts=True,
    )


def conclude(
    runs: Sequence[BenchRun],
    differences: Mapping[tuple[str, str], dict[str, Any]],
    work: Workload,
) -> dict[str, Any]:
    """What the runs of one workload say."""
    by_side: dict[str, list[BenchRun]] = {}
    for run in runs:
        by_side.setdefault(run.setup, []).append(run)
    found = {setup: differences[key] for key in differences if (setup := key[1])}

    def beside(base: str, other: str) -> dict[str, Any]:
        reason = found.get(other) or found.get(base)
        return comparison(by_side[base], by_side[other], reason)

    plain = {side: beside(PLAIN, side) for side in by_side if side != PLAIN}
    speeds = {side: ratios(one) for side, one in plain.items()}
    theirs = [side for side in by_side if side.startswith("llama-server ")]
    drafting = [side for side in theirs if side != "llama-server plain"]
    fixed = [side for side in by_side if side not in (AUTO, *theirs)]
    speeds[PLAIN] = {run.round: 1.0 for run in by_side[PLAIN]}
    auto = {side: beside(side, AUTO) for side in by_side if side != AUTO}
    shares = {side: ratios(one) for side, one in auto.items()}
    return {
        "workload": work.name,
        "plain_tokens_per_second": sorted(speed_of(run) for run in by_side[PLAIN]),
        "beside_plain": [slim(one) for one in plain.values()],
        "auto_beside": [slim(one) for one in auto.values()],
        "auto_beside_fixed": crossed({s: speeds[s] for s in fixed}, shares),
        "auto_beside_peer": crossed({s: speeds[s] for s in drafting}, shares),
        "same_settings": [
            same_settings(by_side, beside, ours, side)
            for side in theirs
            if (ours := ours_of(side)) in by_side
            and (ours == PLAIN or not work.predict)  # nobody tells llama-server what to expect
        ],
        "acceptance": {side: acceptance(by_side[side]) for side in by_side},
        "differences": [{"setup": setup, **one} for setup, one in found.items()],
        "runs": [slim_run(run) for run in runs],
    }


def ours_of(side: str) -> str:
    """Our set-up with the settings of a llama-server."""
    kind = side.removeprefix("llama-server ")
    return PLAIN if kind == PLAIN else default_of(kind)


def same_settings(by_side: Any, beside: Any, ours: str, theirs: str) -> dict[str, Any]:
    """Ours beside llama-server's, times as fast, and both acceptances."""
    return {
        **slim(beside(theirs, ours)),
        "acceptance": acceptance(by_side[ours]),
        "peer_acceptance": acceptance(by_side[theirs]),
    }


def ratios(one: Mapping[str, Any]) -> dict[int, float]:
    """Decoding, by round; none where nothing is claimed."""
    if one["refused"] is not None:
        return {}
    return {p["round"]: p["decode_ratio"] for p in one["pairs"] if p["decode_ratio"] is not None}


def acceptance(runs: Sequence[BenchRun]) -> dict[str, Any]:
    """Drafted and accepted tokens of all runs."""
    counts = [c for run in runs for c in run.by_type.values()]
    drafted = sum(c["num_draft_tokens"] for c in counts)
    accepted = sum(c["num_accepted_tokens"] for c in counts)
    rate = accepted / drafted if drafted else None
    return {"drafted": drafted, "accepted": accepted, "rate": rate}


def slim(one: Mapping[str, Any]) -> dict[str, Any]:
    """A comparison with its pairs as ratios; the seconds are in the runs."""
    kept = {k: one[k] for k in ("setup", "baseline", "equal", "refused", "decode")}
    compared = [pair["compared_tokens"] for pair in one["pairs"]]
    return {
        **kept,
        "pairs": [pair["decode_ratio"] for pair in one["pairs"]],
        "compared_tokens": min(compared, default=0),
    }


def slim_run(run: BenchRun) -> dict[str, Any]:
    """One run as JSON."""
    return {
        "round": run.round,
        "setup": run.setup,
        "tokens": run.n_tokens,
        "cached_tokens": sum(turn.cached for turn in run.turns),
        "decode_seconds": run.decode_seconds,
        "by_type": run.by_type,
        "events": run.events,
    }


def speed_of(run: BenchRun) -> float:
    """Tokens per second from the first token of a turn to its last."""
    n = run.n_tokens - len(run.turns)
    return round(n / run.decode_seconds, 2) if run.decode_seconds > 0 else 0.0


if __name__ == "__main__":
    sys.exit(main())
