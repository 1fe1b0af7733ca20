"""``gguf-spec verify``: is speculation token-identical to plain decoding on this machine?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli import values
from gguf_spec.cli.options import (
    DebugOpt,
    JsonOpt,
    ModelOptions,
    QuietOpt,
    WhereArg,
    examples,
)
from gguf_spec.cli.output import Output, printable

if TYPE_CHECKING:
    from gguf_spec.session import Session
    from gguf_spec.setup import Setup

EPILOG = examples(
    "gguf-spec verify",
    "gguf-spec verify model.gguf --spec-type ngram-mod,draft-simple -d small.gguf",
    "gguf-spec verify model.gguf --exact --depth 6000     drafts up to 6000 tokens of context",
    "gguf-spec verify model.gguf --json",
)
N_PREDICT = 96

LengthOpt = Annotated[
    int,
    typer.Option(
        "-n",
        "--predict",
        metavar="N",
        callback=values.whole(2, values.MAX_TOKENS),
        help="Tokens decoded after each of the built-in prompts.",
    ),
]
DepthOpt = Annotated[
    list[int] | None,
    typer.Option(
        "--depth",
        metavar="N",
        callback=values.each(values.whole(1, values.MAX_TOKENS)),
        help="Compare batches after N cached tokens too. Repeatable.",
    ),
]


def verify(
    ctx: typer.Context,
    where: WhereArg = None,
    n_predict: LengthOpt = N_PREDICT,
    depth: DepthOpt = None,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Measure whether drafting changes the text on this machine, with this model and profile.

    Batches of 1 to 64 tokens are compared with single decoding, logit by logit, at several depths
    of the cache; then every spec type with plain decoding, token by token. What is found is
    remembered, and run --json and /stats tell it. Exit code 1: something is broken.
    """
    from gguf_spec.cli.answer import open_session, prepare_setup
    from gguf_spec.cli.choice import make_profile, profile_name
    from gguf_spec.equality import rows_needed
    from gguf_spec.errors import InputError, UsageError
    from gguf_spec.exact import remember, store_path
    from gguf_spec.verification import verify_session
    from gguf_spec.widths import DEPTHS, WIDTHS

    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    profile = make_profile(where, options)
    setup = prepare_setup(profile, out, name=profile_name(where, options))
    deepest = max(depth or [0])
    n_rows = rows_needed([*WIDTHS, setup.max_width])
    if deepest and deepest + n_rows > setup.n_ctx:
        raise UsageError(
            f"--depth {deepest} leaves {max(setup.n_ctx - deepest, 0)} tokens of room in a context "
            f"of {setup.n_ctx}, and {n_rows} are compared",
            hint=f"-c {deepest + n_rows} would do",
        )
    with open_session(setup, out, least_width=max(WIDTHS)) as session:
        with out.wait("comparing") as wait:
            result = verify_session(
                session,
                n_tokens=n_predict,
                depths=sorted({*DEPTHS, *(depth or [])}),
                progress=lambda what, done, total: wait.update(done, total, what),
            )
        record = {**_facts(session), **result.record()}
        path = store_path(setup, session.context)
        record["exact_cost"] = None
        prompt = session.raw_prompt(_timed_prompt())
        if profile.spec.exact:
            timed = _seconds(session, prompt)
    if profile.spec.exact:
        record["exact_cost"] = timed / _plain_seconds(setup, out)
    kept = {name: record[name] for name in ("verdict", "max_logit_difference", "exact_cost")}
    out.record(record, printable(_told(record)))
    try:
        remember(path, kept, result.widths)
    except InputError as error:
        out.warning(f"this is not remembered: {error.message}")
    if record["verdict"] == "broken":
        raise typer.Exit(1)


def _facts(session: Session) -> dict[str, Any]:
    params, setup = session.context.params, session.setup
    return {
        "model": {"ref": setup.ref, "arch": setup.target.arch, "quant": setup.target.quant},
        "llama_cpp": session.model.lib.version,
        "settings": {
            "n_threads": params.n_threads,
            "n_threads_batch": params.n_threads_batch,
            "type_k": params.type_k,
            "type_v": params.type_v,
            "flash_attn": params.flash_attn,
            "exact": setup.profile.spec.exact,
            "n_ctx": params.n_ctx,
        },
    }


def _timed_prompt() -> str:
    from gguf_spec.verify_prompts import FILLER

    return FILLER


def _seconds(session: Session, prompt: list[int]) -> float:
    from gguf_spec.exact import seconds_per_token

    return seconds_per_token(session.context, prompt)


def _plain_seconds(setup: Setup, out: Output) -> float:
    """Seconds of a plain step with the profile's own settings: the model is loaded once more."""
    from dataclasses import replace

    from gguf_spec.cli.answer import open_session

    spec = setup.profile.spec.model_copy(update={"exact": False})
    plain = replace(
        setup,
        profile=setup.profile.model_copy(update={"spec": spec}),
        spec_types=(),
        ceilings=(),
        floors=(),
        drafts=(),
    )
    with open_session(plain, out) as session:
        return _seconds(session, session.raw_prompt(_timed_prompt()))


_MEANING = {
    "token-identical": "every token, and every logit where drafts reach, is that of plain decoding",
    "identical-up-to-near-ties": "where the text differs, two tokens were as good as equal",
    "broken": "the text differs where no rounding explains it, or a drafter's cache is wrong",
}


def _told(record: Mapping[str, Any]) -> str:
    lines = _widths_table(record["widths"], record["max_width"])
    if record["spec_types"]:
        lines += ["", *_types_table(record["spec_types"])]
    lines += ["", f"{record['verdict']}: {_MEANING[record['verdict']]}"]
    if record["verdict"] == "identical-up-to-near-ties":
        lines.append("--exact keeps to settings and draft lengths where that cannot happen")
    if record["exact_cost"] is not None:
        lines.append(f"exact mode: a plain token takes {record['exact_cost']:.2f} x the time")
    return "\n".join(lines)


def _widths_table(widths: list[dict[str, Any]], used: int) -> list[str]:
    """One line per depth: the widths that are identical, and what the others differ by."""
    lines = ["batches beside single decoding:"]
    for depth in sorted({width["depth"] for width in widths}):
        here = [width for width in widths if width["depth"] == depth]
        same = [width["width"] for width in here if width["identical_rows"] == width["rows"]]
        other = [width for width in here if width["identical_rows"] != width["rows"]]
        text = f"  {depth:>6} cached  identical: {_ranges(same, [w['width'] for w in here])}"
        if other:
            worst = max(width["max_logit_difference"] for width in other)
            flips = sum(width["argmax_flips"] for width in other)
            rows = sum(width["rows"] for width in other)
            names = _ranges([w["width"] for w in other], [w["width"] for w in here])
            text += (
                f" · not: {names}, by up to {worst:.2g}, another best token in {flips} of {rows}"
            )
        lines.append(text)
    return [*lines, f"  this profile drafts for widths up to {used}"]


def _ranges(widths: list[int], known: list[int]) -> str:
    """Widths, neighbours among ``known`` joined: 1-16, 32."""
    groups: list[list[int]] = []
    for width in widths:
        if groups and known.index(width) == known.index(groups[-1][-1]) + 1:
            groups[-1].append(width)
        else:
            groups.append([width])
    texts = [str(g[0]) if len(g) == 1 else f"{g[0]}-{g[-1]}" for g in groups]
    return ", ".join(texts) or "none"


def _types_table(types: list[dict[str, Any]]) -> list[str]:
    lines = ["texts beside plain decoding:"]
    width = max(len(item["type"]) for item in types)
    for item in types:
        text = f"  {item['type']:<{width}}  "
        if item["equal"]:
            text += f"equal, {item['tokens']} tokens"
        else:
            text += (
                f"{item['divergences']} of {item['prompts']} texts differ, at the earliest after "
                f"{item['first_divergence']} tokens: gap {item['gap']:.2g}, "
                f"rounding {item['noise']:.2g}"
            )
        text += f" · accepted {item['num_accepted_tokens']}/{item['num_draft_tokens']}"
        if item["draft_checks"]:
            text += f" · drafter checked {item['draft_checks_agreed']}/{item['draft_checks']}"
        lines.append(text + (" · BROKEN" if item["broken"] else ""))
    return lines
