"""``gguf-spec pull``: have a model here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli.options import CtxSizeOpt, DebugOpt, JsonOpt, QuietOpt, examples
from gguf_spec.cli.output import Output, printable
from gguf_spec.errors import UsageError

if TYPE_CHECKING:
    from gguf_spec.hub.pull import Pulled

EPILOG = examples(
    "gguf-spec pull hf:owner/repo:Q4_K_M",
    "gguf-spec pull hf:owner/repo/path/in/repo.gguf@main",
    "gguf-spec pull hf:owner/repo --plan            the best that fits here, and its draft",
    "gguf-spec pull https://host/model.gguf",
)

RefArg = Annotated[str, typer.Argument(metavar="REF", help="A model.", show_default=False)]


PlanOpt = Annotated[
    bool,
    typer.Option(
        "--plan",
        help="First plan for this machine, and refuse what does not fit. Without a quantization: "
        "the best that fits; and the draft that fits beside it.",
    ),
]
DraftOpt = Annotated[
    str,
    typer.Option(
        "-d", "--draft", metavar="REF|auto|none", help="With --plan: the draft to plan with."
    ),
]


def pull(
    ref: RefArg,
    plan: PlanOpt = False,
    ctx_size: CtxSizeOpt = None,
    draft: DraftOpt = "auto",
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Download a model, or see that it is here and up to date. Prints the path of its file.

    An interrupted download goes on where it stopped. Models of hf: references are kept in the
    Hugging Face cache, which hf, llama.cpp and others share; HF_TOKEN, HF_ENDPOINT and HF_HOME are
    honoured.
    """
    from gguf_spec.hub.pull import pull as download
    from gguf_spec.hub.web import Web

    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    if not plan and (ctx_size is not None or draft != "auto"):
        raise UsageError("-c and -d are for planning", hint="add --plan")
    refs, record = [ref], None
    if plan:
        refs, record = _planned(ref, ctx_size, draft, out)
    with out.wait(f"looking for {ref}") as wait, Web(tell=out.remark) as web:
        done = [download(web, one, wait.stage) for one in refs]
    _show(done, record, out)


def _planned(
    ref: str, ctx_size: str | None, draft: str, out: Output
) -> tuple[list[str], dict[str, Any]]:
    """What to download by a plan for this machine, pinned; and the plan's record.

    Raises NoFitError where nothing fits.
    """
    from gguf_spec.cli.plan import llama_cpp_version, make_wish
    from gguf_spec.cli.plan_options import PlanOptions
    from gguf_spec.cli.plan_text import plan_text
    from gguf_spec.errors import NoFitError
    from gguf_spec.plan_machine import Limits, this_machine
    from gguf_spec.plan_request import PlanRequest, make_plan
    from gguf_spec.planning.record import plan_record
    from gguf_spec.planning.target import shortage

    request = PlanRequest(ref, draft, wish=make_wish(PlanOptions(ctx_size=ctx_size)))
    with out.wait("planning") as wait:
        made, warnings = make_plan(request, this_machine(Limits()), progress=wait.stage)
    for warning in warnings:
        out.warning(warning)
    record = plan_record(made, llama_cpp=llama_cpp_version())
    if out.mode == "human":
        out.say(plan_text(record))
    if not made.fits or made.target is None:
        hint = "; ".join(made.hints) or "gguf-spec plan shows what would"
        raise NoFitError(
            f"{ref} does not fit: {shortage(made.missing)} are missing; nothing was downloaded",
            hint=hint,
        )
    refs = [made.target.rung.ref]
    for bundle in made.drafts:
        if bundle.rung is not None and not bundle.offer.inside:
            refs.append(bundle.rung.ref)
    return refs, record


def _show(done: Sequence[Pulled], plan: dict[str, Any] | None, out: Output) -> None:
    """Print what is here now: the paths to use are the answer, the rest a remark."""
    from gguf_spec.cli.summary import bytes_text

    target, *drafts = done
    record = _record(target)
    if plan is not None:
        record |= {"drafts": [_record(draft) for draft in drafts], "plan": plan}
    out.record(record, printable("\n".join(str(one.path) for one in done)))
    if out.mode == "human":
        for one in done:
            at = f" at revision {one.revision[:12]}" if one.revision else ""
            how = "downloaded" if one.fresh else "already here"
            out.note(f"{how}: {bytes_text(one.bytes)}{at}")


def _record(done: Pulled) -> dict[str, Any]:
    return {
        "ref": done.ref,
        "path": str(done.path),
        "files": [str(path) for path in done.files],
        "bytes": done.bytes,
        "revision": done.revision,
        "fresh": done.fresh,
    }
