"""``gguf-spec bench``: how much faster is drafting, here, and is the text the same?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli import values
from gguf_spec.cli.options import DebugOpt, JsonOpt, ModelOptions, QuietOpt, examples
from gguf_spec.cli.output import Output, printable
from gguf_spec.errors import InputError, UsageError
from gguf_spec.interrupts import ended_in_order, interrupts_put_off

if TYPE_CHECKING:
    from gguf_spec.bench.document import Measured
    from gguf_spec.bench.runner import Runner
    from gguf_spec.session import Session
    from gguf_spec.workloads import Workload

EPILOG = examples(
    "gguf-spec bench                                  the demo, all workloads",
    "gguf-spec bench model.gguf -d small.gguf --spec-type ngram-simple,draft-simple",
    "gguf-spec bench mine --workload echo --workload my-prompt.txt --repeat 11",
    "gguf-spec bench model.gguf --peer llama-server=build/bin/llama-server",
    "gguf-spec bench model.gguf --synthetic 0.8 --spec-draft-n-max 5   the engine's cost alone",
    "gguf-spec bench show bench_results/bench-model-20260101-120000.json",
    "gguf-spec bench compare before.json after.json",
)
N_ROUNDS = 7
FOLDER = "bench_results"

WordsArg = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PROFILE|REF] | show FILE… | compare FILE…",
        show_default=False,
        help="What to measure: a profile or a model, by default the demo. Or records to show, or "
        "to compare with each other.",
    ),
]
WorkloadOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME|FILE",
        help="A workload that is shipped, a text file with a prompt, or a .toml file with turns. "
        "Repeatable; by default all that are shipped.",
    ),
]
RepeatOpt = Annotated[
    int,
    typer.Option(
        "--repeat",
        metavar="N",
        callback=values.whole(1, 1000),
        help="Pairs of each workload. Six are the fewest for an interval of 95 %.",
    ),
]
PeerOpt = Annotated[
    str | None,
    typer.Option(
        "--peer",
        metavar="llama-server[=PATH]",
        help="Run the same prompts on a llama-server with the same model and settings, in turn.",
    ),
]
SyntheticOpt = Annotated[
    float | None,
    typer.Option(
        "--synthetic",
        metavar="A",
        callback=values.real(0.0, 1.0),
        help="Replay drafts of which each token stands with this chance: what then is missing to "
        "the formula is the engine's cost. --spec-draft-n-max says how long they are.",
    ),
]
LimitOpt = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--predict",
        metavar="N",
        callback=values.whole(2, values.MAX_TOKENS),
        help="At most so many tokens of each answer.",
    ),
]
FolderOpt = Annotated[
    str, typer.Option("-o", "--output", metavar="DIR", help="Where the record is written.")
]


def bench(
    ctx: typer.Context,
    words: WordsArg = None,
    workload: WorkloadOpt = None,
    repeat: RepeatOpt = N_ROUNDS,
    peer: PeerOpt = None,
    synthetic: SyntheticOpt = None,
    n_predict: LimitOpt = None,
    output: FolderOpt = FOLDER,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Measure drafting beside plain decoding, in pairs, and keep the record.

    Every workload is decoded plainly and with drafts in turn. Without --spec-type, the profile's
    types are measured together; with a list, each by itself; with --fixed, without the controller.
    A speed is told only where the texts are equal. Ctrl-C keeps the runs that are finished.
    """
    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    first, others = (words or [""])[0], (words or [])[1:]
    if first in ("show", "compare"):
        _read(first, others, out)
        return
    if others:
        raise UsageError(
            f"too many arguments: {' '.join(others)}",
            hint="one PROFILE or REF; or show FILE…, or compare FILE…",
        )
    where = words[0] if words else None
    program = _peer_program(peer)
    folder = Path(os.path.expanduser(output))  # a shell leaves --output=~/x as it is
    with ended_in_order():
        _measure(where, options, workload, repeat, program, synthetic, n_predict, folder, out)


def _measure(
    where: str | None,
    options: ModelOptions,
    names: Sequence[str] | None,
    repeat: int,
    program: str | None,
    synthetic: float | None,
    n_predict: int | None,
    folder: Path,
    out: Output,
) -> None:
    from gguf_spec.bench.document import document, model_facts, own_command
    from gguf_spec.bench.measure import bench_profile, setups_for, synthetic_length
    from gguf_spec.bench.peer import find_program
    from gguf_spec.bench.records import check_folder
    from gguf_spec.cli.answer import open_session, prepare_setup, warn_about_template
    from gguf_spec.cli.choice import make_profile, profile_name

    profile = bench_profile(make_profile(where, options))
    workloads = find_workloads(names)
    if program is not None:
        program = find_program(program)
    check_folder(folder)
    setup = prepare_setup(profile, out, name=profile_name(where, options))
    width = 1 + synthetic_length(profile) if synthetic is not None else 1
    chosen = options.spec_type is not None
    with contextlib.ExitStack() as keeping, open_session(setup, out, least_width=width) as session:
        warn_about_template(session, out)
        setups = setups_for(
            session,
            each=chosen and options.spec_type != "auto",
            synthetic=synthetic,
            drafting=chosen or synthetic is None,
        )
        limits = {
            "lenient": not names,
            "max_tokens": n_predict,
            "values": chosen_values(options, profile),
        }
        with out.wait("hashing the model", unit="MiB") as wait:
            model = model_facts(session, lambda done, size: wait.update(done >> 20, size >> 20))
        measured = _rounds(session, setups, workloads, program, repeat, limits, out, keeping)
        _tell(document(measured, model, own_command()), folder, out)
    if measured.error is not None:
        out.warning(f"{measured.error.message}; the runs until then are kept")
        raise typer.Exit(1)
    if not measured.complete:
        raise typer.Exit(130)
    if any(found["verdict"] == "broken" for found in measured.runner.differences.values()):
        raise typer.Exit(1)


def _rounds(
    session: Session,
    setups: Sequence[Any],
    workloads: Sequence[Workload],
    program: str | None,
    repeat: int,
    limits: dict[str, Any],
    out: Output,
    keeping: contextlib.ExitStack,
) -> Measured:
    """Run everything, with a progress bar. Interrupts are put off from then on until ``keeping``
    ends."""
    from gguf_spec.bench.measure import measure, start_peers
    from gguf_spec.bench.runner import Runner

    with contextlib.ExitStack() as stack:
        peers = []
        if program is not None:
            with out.wait("starting llama-server"):
                peers = start_peers(program, session, setups)
            for server in peers:
                stack.enter_context(server)
        wait = stack.enter_context(out.wait("measuring"))
        runner = Runner(
            session,
            workloads,
            setups,
            peers=peers,
            report=lambda what, done, total: wait.update(done, total, what),
            **limits,
        )
        check_conversations(runner)
        measured = measure(runner, repeat)
        keeping.enter_context(interrupts_put_off())
        return measured


def check_conversations(runner: Runner) -> None:
    """Raise UsageError if there is nothing to decode."""
    if not runner.conversations:
        first, *others = [one["reason"] for one in runner.skipped]
        more = f"; nor can the {len(others)} others" if others else ""
        raise UsageError(
            f"no workload can be decoded: {first}{more}",
            hint="a larger -c, or --workload FILE with a short prompt",
        )


def _tell(record: dict[str, Any], folder: Path, out: Output) -> None:
    """Show the record and write it: shown first, in case that it cannot be written, and written
    even if nobody reads."""
    from gguf_spec.bench.chart import chart
    from gguf_spec.bench.records import write_record
    from gguf_spec.bench.table import told

    unseen: OSError | None = None
    if out.mode != "json":
        try:
            out.text(printable(told(record)))
        except OSError as error:
            unseen = error
    beside = {".md": told(record, markdown=True), ".svg": chart(record)}
    path = write_record(folder, record, beside)
    if unseen is not None:
        raise unseen
    if out.mode == "json":
        out.record({**record, "path": str(path)}, "")
    else:
        out.remark(f"written: {path}, .md and .svg")


def _read(word: str, names: Sequence[str], out: Output) -> None:
    """``bench show`` and ``bench compare``."""
    from gguf_spec.bench.document import cleaned
    from gguf_spec.bench.records import read_record

    if not names or (word == "compare" and len(names) < 2):
        raise UsageError(
            f"bench {word} needs {'a record' if word == 'show' else 'two records or more'}",
            hint=f"gguf-spec bench {word} {FOLDER}/bench-….json",
        )
    records = {name: read_record(Path(name)) for name in names}
    if word == "compare":
        shown = {cleaned(Path(name).stem): record for name, record in records.items()}
        if len(shown) < len(records):
            shown = {cleaned(name): record for name, record in records.items()}
    else:
        shown = {}
    text = _told_again(records, shown)
    one = next(iter(records.values()))
    document = one if word == "show" and len(records) == 1 else {"records": records}
    out.record(document, printable(text).rstrip("\n"))


def _told_again(
    records: Mapping[str, dict[str, Any]], compare: Mapping[str, dict[str, Any]]
) -> str:
    """The tables of ``records``; or those of ``compare`` side by side, if there are any.

    Raises:
        InputError: a record says it is one, but was changed by hand or cut.
    """
    from gguf_spec.bench.table import compared, told

    texts: list[str] = []
    try:
        for record in records.values():
            texts.append(told(record))
        return compared(compare) if compare else "\n".join(texts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # The first that was not told; or, if all were, one of those that are compared.
        name = next(iter([*records][len(texts) :]), " or ".join(records))
        raise InputError(
            f"{name}: is damaged: a value is missing or of the wrong kind ({printable(str(error))})"
        ) from error


def find_workloads(names: Sequence[str] | None) -> list[Workload]:
    """The workloads of these names or files; all that are shipped if there is no list.

    Raises:
        UsageError, InputError: as ``workloads.find_workload``; two have one name.
    """
    from gguf_spec.workloads import find_workload, shipped_names

    found = [find_workload(name) for name in names or shipped_names()]
    called = [workload.name for workload in found]
    twice = next((name for name in called if called.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--workload: two workloads are called {twice}", hint="rename one file")
    return found


def _peer_program(peer: str | None) -> str | None:
    """The program behind ``llama-server[=PATH]``."""
    if peer is None:
        return None
    name, equals, path = peer.partition("=")
    if name != "llama-server" or (equals and not path):
        raise UsageError(
            f"--peer: {peer!r} is not llama-server[=PATH]", hint="--peer llama-server=PATH"
        )
    return path or name


def chosen_values(options: ModelOptions, profile: Any) -> dict[str, Any]:
    """Settings on the command line that decide over those of the workloads."""
    named = {item.split("=", 1)[0].strip() for item in options.settings or ()}
    given = {
        "sampling.temperature": (options.temp, profile.sampling.temperature),
        "sampling.seed": (options.seed, profile.sampling.seed),
        "chat.system": (options.system, profile.chat.system),
    }
    return {
        key: value for key, (option, value) in given.items() if option is not None or key in named
    }
