"""``gguf-spec plan``: what fits, before anything is loaded or downloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli import values
from gguf_spec.cli.options import DebugOpt, JsonOpt, examples
from gguf_spec.cli.output import Output
from gguf_spec.cli.plan_options import PlanOptions

if TYPE_CHECKING:
    from gguf_spec.plan_request import PlanRequest
    from gguf_spec.planning.machine import Machine
    from gguf_spec.planning.types import Plan, Wish

EPILOG = examples(
    "gguf-spec plan model.gguf",
    "gguf-spec plan models/gemma-3-27b-it/ -c max       the best quantization in a folder",
    "gguf-spec plan hf:owner/repo --vram 24GiB         all quantizations, before any download",
    "gguf-spec plan model.gguf -d head.gguf --vram 24GiB",
    'gguf-spec plan model.gguf --gpu "2x RTX 3090" --ram 64GiB --json',
)

TargetArg = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        show_default=False,
        help="A model, or a folder or repository with quantizations of it.",
    ),
]


def plan(
    target: TargetArg,
    options: PlanOptions = PlanOptions(),  # noqa: B008 (frozen)
    as_json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show what fits where: the best quantization, its placement, and which draft fits beside it.

    -c is the context of all sequences together, as llama.cpp counts. The target is planned as if
    there were no draft; a draft gets what remains, or is refused with the reason. Exit code 0 if
    the target fits, 4 if it does not.
    """
    from gguf_spec.plan_request import make_plan

    out = Output.of(as_json=as_json, debug=debug)
    request = _request(target, options)
    with out.wait("planning") as wait:
        machine, notes = _machine(options)
        made, warnings = make_plan(request, machine, progress=wait.stage)
        if options.probe != "off":
            from gguf_spec.plan_probe import cross_checked

            here = options.vram is None and options.gpu is None and options.ram is None
            made = cross_checked(
                made, options.probe, here=here, again=lambda less: make_plan(request, less)[0]
            )
    for warning in warnings:
        out.warning(warning)
    _show(replace(made, reasons=(*made.reasons, *notes)), out)


def _show(made: Plan, out: Output) -> None:
    from gguf_spec.cli.plan_text import plan_text
    from gguf_spec.planning.record import plan_record

    record: dict[str, Any] = plan_record(made, llama_cpp=llama_cpp_version())
    out.record(record, plan_text(record) if out.mode != "json" else "")
    if not made.fits:
        out.say(f"error: it does not fit: {made.reasons[0]}")
        for hint in made.hints:
            out.say(f"hint: {hint}")
        raise typer.Exit(4)


def llama_cpp_version() -> str:
    """Whose rules a plan follows."""
    from importlib import metadata

    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def _request(target: str, options: PlanOptions) -> PlanRequest:
    from gguf_spec.plan_request import PlanRequest

    types: tuple[str, ...] = ("auto",)
    if options.spec_type is not None:
        from gguf_spec.profile_values import parse_spec_types

        types = parse_spec_types(options.spec_type)
    return PlanRequest(
        target,
        options.draft,
        types,
        options.spec_draft_n_max,
        options.mmproj,
        make_wish(options),
        options.offline,
    )


def make_wish(options: PlanOptions) -> Wish:
    """What the options ask of the target."""
    from gguf_spec.memory import MemoryParams
    from gguf_spec.planning.types import ALL, Wish

    params = MemoryParams(
        n_ctx=0,
        n_seq_max=options.n_seq,
        kv_unified=options.kv_unified,
        type_k=options.type_k,
        type_v=options.type_v,
        swa_full=options.swa_full,
        n_batch=options.n_batch,
        n_ubatch=options.n_ubatch,
        n_outputs_max=options.n_seq,
        n_rs_seq=options.n_rs_seq,
    )
    n_ctx: Any = None if options.ctx_size is None else values.word_or_number(options.ctx_size)
    layers = options.gpu_layers
    wanted = None if layers in (None, "auto") else ALL if layers == "all" else int(layers or 0)
    prefer: Any = options.prefer
    return Wish(
        params,
        n_ctx=n_ctx,
        n_gpu_layers=wanted,
        n_cpu_moe=options.n_cpu_moe,
        tensor_split=tuple(float(part) for part in (options.tensor_split or "").split(",") if part),
        prefer=prefer,
        min_quant=options.min_quant,
        draft_may_displace_layers=options.draft_may_displace_layers,
    )


def _machine(options: PlanOptions) -> tuple[Machine, list[str]]:
    """The machine that the options describe, and what has to be said about it."""
    from gguf_spec.errors import UsageError
    from gguf_spec.plan_machine import Limits, named_machine, sized_machine, this_machine

    if options.vram is not None and options.gpu is not None:
        raise UsageError("--vram and --gpu: name the sizes or the GPUs", hint="leave one out")
    vram = _sizes("--vram", options.vram)
    ram, reserve = _sizes("--ram", options.ram), _sizes("--reserve", options.reserve)
    limits = Limits(vram, ram and ram[0], reserve and reserve[0])
    notes = []
    if (options.vram or options.gpu) and ram is None:
        notes.append("host memory is that of this machine (--ram says otherwise)")
    if vram is not None:
        return sized_machine(limits), notes
    if options.gpu is not None:
        from gguf_spec.gpu_table import parse_gpus

        return named_machine(parse_gpus(options.gpu), limits), notes
    return this_machine(limits), notes


def _sizes(option: str, text: str | None) -> Any:
    """The sizes that an option names."""
    if text is None:
        return None
    from gguf_spec.errors import UsageError
    from gguf_spec.profile_values import parse_memories

    try:
        sizes = parse_memories(text)
    except UsageError as error:
        hint = error.hint or "units are binary: 24GB and 24GiB are both 24 x 1024^3 bytes"
        raise UsageError(f"{option}: {error.message}", hint=hint) from None
    if len(sizes) > 1 and option != "--vram":
        raise UsageError(f"{option}: one size, not {len(sizes)}")
    return sizes
