"""The options that commands share, each as a named type: a signature reads as documentation.

No heavy import here: ``gguf-spec --help`` reads this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from gguf_spec.cli import values
from gguf_spec.cli.output import State

#: ``gguf_spec.draft_choice.AVAILABLE_TYPES``, which a help text cannot wait for.
SPEC_TYPES = (
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "draft-simple",
    "draft-mtp",
    "draft-eagle3",
    "draft-dflash",
    "draft-dspark",
)


def _debug(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.ensure_object(State).debug = True
    return value


def examples(*lines: str) -> str:
    """The end of a command's help text. The mark keeps the lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


WhereArg = Annotated[
    str | None,
    typer.Argument(
        metavar="PROFILE|REF",
        show_default=False,
        help="A profile (name or .toml file) or a model: path/to/file.gguf, hf:owner/repo:QUANT, "
        "ollama:name, https://… Without it: the demo profile.",
    ),
]
ModelOpt = Annotated[
    str | None,
    typer.Option("-m", "--model", metavar="REF", help="Target model, instead of the profile's."),
]
DraftOpt = Annotated[
    list[str] | None,
    typer.Option(
        "-d",
        "--draft",
        metavar="[TYPE=]REF",
        help="Draft: a smaller model with the same vocabulary, or a head made for the target; its "
        "header says which. Repeatable with a TYPE for each.",
    ),
]
SpecTypeOpt = Annotated[
    str | None,
    typer.Option(
        "--spec-type",
        metavar="LIST",
        callback=values.spec_types,
        help="What drafts, tried in order, with commas between: "
        f"{', '.join(SPEC_TYPES)}; or auto, or none.",
    ),
]
SpecMaxOpt = Annotated[
    int | None,
    typer.Option(
        "--spec-draft-n-max",
        metavar="N",
        callback=values.whole(1, values.MAX_TOKENS),
        help="Most tokens in a draft, whatever the type.",
    ),
]
SpecMinOpt = Annotated[
    int | None,
    typer.Option(
        "--spec-draft-n-min",
        metavar="N",
        callback=values.whole(0, values.MAX_TOKENS),
        help="Drafts with fewer tokens are dropped.",
    ),
]
SpecPMinOpt = Annotated[
    float | None,
    typer.Option(
        "--spec-draft-p-min",
        metavar="P",
        callback=values.real(0.0, 1.0),
        help="A draft model stops at a token less likely than P.",
    ),
]
VerifyOpt = Annotated[
    str | None,
    typer.Option(
        "--verify",
        metavar="match|residual|auto",
        callback=values.verify_rule,
        help="match: the text of the seed, as without drafts. residual: another text of the same "
        "distribution, with more drafts accepted at a temperature. auto: whichever accepts more.",
    ),
]
FixedOpt = Annotated[
    bool, typer.Option("--fixed", help="Always draft as much as allowed, without measuring.")
]
ExactOpt = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Only settings and draft lengths that give the tokens of plain decoding, measured "
        "here once and remembered.",
    ),
]
CtxSizeOpt = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--ctx-size",
        metavar="N|max",
        callback=values.ctx_size,
        help="Context length in tokens; max: what the model was trained for.",
    ),
]
ThreadsOpt = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        metavar="N",
        callback=values.whole(1, values.MAX_THREADS),
        help="CPU threads; by default one for each physical core.",
    ),
]
ThreadsBatchOpt = Annotated[
    int | None,
    typer.Option(
        "--threads-batch",
        metavar="N",
        callback=values.whole(1, values.MAX_THREADS),
        help="CPU threads for prompts and for checking drafts; by default as --threads.",
    ),
]
GpuLayersOpt = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--n-gpu-layers",
        metavar="N|auto|all",
        callback=values.gpu_layers,
        help="Layers on GPUs.",
    ),
]
CpuMoeOpt = Annotated[
    int | None,
    typer.Option(
        "--n-cpu-moe",
        metavar="N",
        callback=values.whole(0, values.MAX_TOKENS),
        help="Keep the experts of the first N layers in the host's memory.",
    ),
]
DeviceOpt = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="LIST",
        callback=values.devices,
        help="GPUs to use, with commas between, as in CUDA0,CUDA1 (doctor lists them); or none.",
    ),
]
TensorSplitOpt = Annotated[
    str | None,
    typer.Option(
        "--tensor-split",
        metavar="LIST",
        callback=values.tensor_split,
        help="Share of each GPU, as in 3,1.",
    ),
]
TempOpt = Annotated[
    float | None,
    typer.Option(
        "--temp",
        metavar="F",
        callback=values.real(0.0),
        help="Temperature; 0 always takes the most likely token.",
    ),
]
TopKOpt = Annotated[
    int | None,
    typer.Option(
        "--top-k",
        metavar="N",
        callback=values.whole(0, values.MAX_TOKENS),
        help="Draw from the N most likely tokens; 0: all.",
    ),
]
TopPOpt = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        metavar="F",
        callback=values.real(0.0, 1.0),
        help="Draw from the top tokens that have this probability together; 1: all.",
    ),
]
MinPOpt = Annotated[
    float | None,
    typer.Option(
        "--min-p",
        metavar="F",
        callback=values.real(0.0, 1.0),
        help="Drop tokens less likely than this share of the likeliest; 0: none.",
    ),
]
RepeatPenaltyOpt = Annotated[
    float | None,
    typer.Option(
        "--repeat-penalty",
        metavar="F",
        callback=values.real(1e-3, 1e3),
        help="Make tokens of the last 64 less likely, as in 1.1; 1: off.",
    ),
]
SeedOpt = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        callback=values.whole(-1, values.MAX_SEED),
        help="The same seed gives the same text; -1: a new one each time.",
    ),
]
StopOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        callback=values.texts,
        help="End the answer before this text, taken literally. Repeatable.",
    ),
]
SystemOpt = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")]
ThinkOpt = Annotated[
    str | None,
    typer.Option(
        "--think",
        metavar="on|off|auto",
        callback=values.on_off_auto,
        help="Whether a reasoning model may reason; auto: as its chat template does.",
    ),
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=values.assignments,
        help="Change any key of the profile, as in target.flash_attn=on. Repeatable.",
    ),
]
PredictOpt = Annotated[
    int | None,
    typer.Option(
        "-n",
        "--predict",
        metavar="N",
        callback=values.n_predict,
        help="Most tokens in an answer; -1: unlimited.",
    ),
]
GrammarOpt = Annotated[
    str | None,
    typer.Option(
        "--grammar", metavar="FILE", help="Allow only what this grammar (GBNF) describes."
    ),
]
JsonSchemaOpt = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="FILE",
        help="Allow only JSON that is valid by this schema. With --think on, behind the reasoning.",
    ),
]
OfflineOpt = Annotated[
    bool,
    typer.Option("--offline", help="Ask no host: use what is here, lists and headers included."),
]
JsonOpt = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")
]
QuietOpt = Annotated[bool, typer.Option("--quiet", help="No progress and no statistics.")]
DebugOpt = Annotated[
    bool,
    typer.Option(
        "--debug",
        callback=_debug,
        is_eager=True,
        help="Show what llama.cpp says, and tracebacks.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What to load, how to draft and how to sample: the same for every command that generates."""

    model: ModelOpt = None
    draft: DraftOpt = None
    spec_type: SpecTypeOpt = None
    spec_draft_n_max: SpecMaxOpt = None
    spec_draft_n_min: SpecMinOpt = None
    spec_draft_p_min: SpecPMinOpt = None
    verify: VerifyOpt = None
    fixed: FixedOpt = False
    exact: ExactOpt = False
    ctx_size: CtxSizeOpt = None
    threads: ThreadsOpt = None
    threads_batch: ThreadsBatchOpt = None
    gpu_layers: GpuLayersOpt = None
    n_cpu_moe: CpuMoeOpt = None
    device: DeviceOpt = None
    tensor_split: TensorSplitOpt = None
    temp: TempOpt = None
    top_k: TopKOpt = None
    top_p: TopPOpt = None
    min_p: MinPOpt = None
    repeat_penalty: RepeatPenaltyOpt = None
    seed: SeedOpt = None
    stop: StopOpt = None
    system: SystemOpt = None
    think: ThinkOpt = None
    settings: SetOpt = None


@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """What an answer may be."""

    grammar: GrammarOpt = None
    json_schema: JsonSchemaOpt = None
