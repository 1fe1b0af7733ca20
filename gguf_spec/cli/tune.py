"""``gguf-spec tune``: the best drafting for this machine, this model and these prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gguf_spec.cli import values
from gguf_spec.cli.bench import LimitOpt
from gguf_spec.cli.options import (
    DebugOpt,
    JsonOpt,
    ModelOptions,
    QuietOpt,
    WhereArg,
    examples,
)
from gguf_spec.cli.output import Output, printable
from gguf_spec.errors import GgufSpecError, UsageError
from gguf_spec.interrupts import interrupts_put_off

if TYPE_CHECKING:
    from gguf_spec.profile import Profile
    from gguf_spec.setup import Setup
    from gguf_spec.tune import Tuning

EPILOG = examples(
    "gguf-spec tune --workload my-prompt.txt --workload other.txt",
    "gguf-spec tune model.gguf -d small.gguf --workload code-edit -o editing",
    "gguf-spec tune mine --spec-type ngram-simple,ngram-mod -o mine.toml --force",
)
N_ROUNDS = 7
#: What is tried where nobody has prompts of their own: different kinds of text, and not too long.
WORKLOADS = ("echo", "code-edit", "extract", "translation", "prose")

PromptsOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        metavar="NAME|FILE",
        help="What to be fast at: text files with your own prompts, or shipped workloads. "
        f"Repeatable; by default {', '.join(WORKLOADS)}.",
    ),
]
RepeatOpt = Annotated[
    int,
    typer.Option(
        "--repeat",
        metavar="N",
        callback=values.whole(5, 1000),
        help="Pairs in which the winner is measured anew; fewer than 5 say too little.",
    ),
]
ProfileOpt = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="NAME|FILE",
        show_default=False,
        help="The profile to write: a name, or a path that ends in .toml; by default the name of "
        "what is tuned with -tuned.",
    ),
]
ForceOpt = Annotated[bool, typer.Option("--force", help="Overwrite that profile.")]


def tune(
    ctx: typer.Context,
    where: WhereArg = None,
    workload: PromptsOpt = None,
    repeat: RepeatOpt = N_ROUNDS,
    n_predict: LimitOpt = None,
    output: ProfileOpt = None,
    force: ForceOpt = False,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Try spec types and lengths on your prompts, and write the best into a profile.

    Many settings are tried, the better ones more often, and the winner is measured anew beside
    plain decoding. Where no drafting is faster, the profile says to leave it off.
    """
    from gguf_spec.bench.measure import bench_profile
    from gguf_spec.bench.runner import Runner
    from gguf_spec.cli.answer import open_session, prepare_setup, warn_about_template
    from gguf_spec.cli.bench import check_conversations, chosen_values, find_workloads
    from gguf_spec.cli.choice import make_profile, profile_name
    from gguf_spec.cli.new_profile import check_path, new_path, write_profile
    from gguf_spec.setup import prepare
    from gguf_spec.tune import MAX_WIDTH, candidates, search, searched_profile

    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    profile = make_profile(where, options)
    workloads = find_workloads(workload or WORKLOADS)
    name = profile_name(where, options)
    path = new_path(output if output is not None else _name(profile, name))
    check_path(path, force=force)
    only = _only(options)
    searched = searched_profile(bench_profile(profile), prepare(profile), only=only)
    setup = prepare_setup(searched, out, name=name)
    with open_session(setup, out, least_width=MAX_WIDTH) as session:
        warn_about_template(session, out)
        if not session.spec_types:
            raise UsageError("nothing can draft for this model", hint="--debug shows why")
        with out.wait("tuning") as wait:
            runner = Runner(
                session,
                workloads,
                (),
                values=chosen_values(options, profile),
                max_tokens=n_predict,
                lenient=not workload,
                report=lambda what, done, total: wait.update(done, total, what),
            )
            check_conversations(runner)
            tried = candidates(searched, session.setup, session.spec_types)
            tuning = search(runner, tried, profile=searched, rounds=repeat)
    for one in runner.skipped:
        out.warning(f"not measured: {one['workload']}: {one['reason']}")
    text = tuned_text(profile, tuning, session.setup, [one.name for one in runner.conversations])
    told = printable(_told(tuning))
    try:
        with interrupts_put_off():
            write_profile(path, text, force=force)
    except GgufSpecError:
        out.text(f"{told}\n")  # it took long to find out
        raise
    record = {"profile": str(path), "model": {"ref": setup.ref}, **tuning.record()}
    out.record(record, f"{told}\n\nwritten: {printable(str(path))}")


def tuned_text(profile: Profile, tuning: Tuning, setup: Setup, workloads: Sequence[str]) -> str:
    """The profile that a search led to, with its measurements as comments."""
    from gguf_spec.cli.summary import counted
    from gguf_spec.cli.toml import to_toml
    from gguf_spec.profile import DRAFT_TYPES, apply_values, with_paths
    from gguf_spec.tune import profile_values

    wanted: dict[str, object] = dict(profile_values(tuning))
    about = "tuned: " + (tuning.winner.setup.name if tuning.worth_it and tuning.winner else "off")
    model = profile.target.model or "demo"
    wanted |= {"description": f"{Path(setup.ref).name}, {about}", "target.model": model}
    tuned = apply_values(profile, wanted)
    keys = tuned.model_dump(mode="python", by_alias=True, exclude_unset=True)
    written = with_paths(keys, Path.cwd())  # it may lie, and be used, in another folder
    written.pop("extends", None)
    if not any(kind in DRAFT_TYPES for kind in tuned.spec.types):  # a draft that is not used
        for table in ("draft", *DRAFT_TYPES):
            written["spec"].pop(table, None)
    lines = [
        f"Written by `gguf-spec tune` on {date.today().isoformat()}.",
        f"{Path(setup.ref).name}: {setup.target.arch} {setup.target.quant}, "
        f"{setup.n_threads} threads.",
        f"On {', '.join(workloads)}:",
        *_verdict(tuning),
        "",
        "Tried, with how many times as fast as plain decoding an answer was while choosing:",
        *(
            f"  {score:5.2f}  {name} ({counted(rounds, 'round')})"
            for name, score, rounds in tuning.tried
        ),
        *(f"  not equal: {name}: {reason}" for name, reason in tuning.refused.items()),
    ]
    head = "\n".join(f"# {printable(line)}".rstrip().replace("\n", " ") for line in lines)
    return f"{head}\n\n{to_toml(written)}\n"


def _verdict(tuning: Tuning) -> list[str]:
    """What the new measurement of the winner says, in lines."""
    if tuning.winner is None:
        return ["Nothing that was tried can be used: leave drafting off."]
    name, found = tuning.winner.setup.name, tuning.total
    if found is None:
        return [f"{name} looked best, and could not be measured again: leave drafting off."]
    told = (
        f"{found.median:.2f} x the speed of plain decoding, prompt included "
        f"({found.low:.2f} to {found.high:.2f}, {100 * found.confidence:.0f} %, {found.n} pairs)"
    )
    if not tuning.worth_it:
        return [f"Leave drafting off: the best, {name}, has {told}."]
    lines = [f"{name}: {told}."]
    for one in tuning.comparisons:
        total = one["total"]
        if total is not None:
            ratio = f"{total['median']:.2f} ({total['low']:.2f} to {total['high']:.2f})"
            lines.append(f"  {one['workload']}: {ratio}")
    return lines


def _told(tuning: Tuning) -> str:
    lines = _verdict(tuning)
    rows = [f"  {score:5.2f}  {name}" for name, score, _ in tuning.tried[:8]]
    return "\n".join([*lines, "", "tried, best first:", *rows])


def _only(options: ModelOptions) -> tuple[str, ...]:
    """The types that --spec-type limits the search to."""
    from gguf_spec.profile import parse_spec_types

    if options.spec_type is None:
        return ()
    types = parse_spec_types(options.spec_type)
    if types == ("none",):
        raise UsageError("--spec-type none leaves nothing to try")
    return () if types == ("auto",) else types


def _name(profile: Profile, name: str) -> str:
    """What the profile is called if nobody says."""
    stem = Path(name or profile.target.model or "demo").name
    stem = re.sub(r"\.(toml|gguf)$", "", stem)
    stem = re.sub(r"[^\w.+-]+", "-", stem).strip("-.") or "model"
    return f"{stem}-tuned"
