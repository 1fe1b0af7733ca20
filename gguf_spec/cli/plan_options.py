"""The options of ``gguf-spec plan``, each as a named type, and all of them as one parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from gguf_spec.cli import values
from gguf_spec.cli.options import (
    CpuMoeOpt,
    CtxSizeOpt,
    GpuLayersOpt,
    SpecMaxOpt,
    SpecTypeOpt,
    TensorSplitOpt,
)

#: ``gguf_spec.memory.cache.KV_TYPES``, which a help text cannot wait for.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")

PlanDraftOpt = Annotated[
    str,
    typer.Option(
        "-d",
        "--draft",
        metavar="REF|auto|none",
        help="What may draft; auto: the target's own head, and drafts beside it.",
    ),
]
VramOpt = Annotated[
    str | None,
    typer.Option(
        "--vram",
        metavar="SIZE[,SIZE…]",
        help="Plan for GPUs with so much memory, as in 24GiB or 24GiB,16GiB (units are binary).",
    ),
]
GpuOpt = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help='Plan for known GPUs, as in "2x RTX 3090".'),
]
RamOpt = Annotated[
    str | None,
    typer.Option(
        "--ram", metavar="SIZE", help="Host memory to plan with; by default what is here."
    ),
]
ReserveOpt = Annotated[
    str | None,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="What stays free on every device; by default 1GiB. Without GPUs it is host memory.",
    ),
]
TypeKOpt = Annotated[
    str,
    typer.Option(
        "--type-k",
        metavar="T",
        callback=values.one_of(*CACHE_TYPES),
        help=f"Type of cached keys: {', '.join(CACHE_TYPES)}.",
    ),
]
TypeVOpt = Annotated[
    str,
    typer.Option(
        "--type-v",
        metavar="T",
        callback=values.one_of(*CACHE_TYPES),
        help="Type of cached values.",
    ),
]
SeqOpt = Annotated[
    int,
    typer.Option(
        "--n-seq",
        metavar="N",
        callback=values.whole(1, 256),
        help="Sequences that share the context.",
    ),
]
BatchOpt = Annotated[
    int,
    typer.Option(
        "--n-batch", metavar="N", callback=values.whole(1, values.MAX_TOKENS), help="Batch size."
    ),
]
UbatchOpt = Annotated[
    int,
    typer.Option(
        "--n-ubatch",
        metavar="N",
        callback=values.whole(1, values.MAX_TOKENS),
        help="Tokens computed at once.",
    ),
]
SwaFullOpt = Annotated[
    bool, typer.Option("--swa-full", help="Whole contexts for layers with a sliding window.")
]
SnapshotsOpt = Annotated[
    int,
    typer.Option(
        "--n-rs-seq",
        metavar="N",
        callback=values.whole(0, 4096),
        help="Snapshots of recurrent states, beyond those that drafts need.",
    ),
]
UnifiedOpt = Annotated[
    bool, typer.Option("--kv-unified", help="One cache for all sequences, instead of one each.")
]
MmprojOpt = Annotated[
    str | None, typer.Option("--mmproj", metavar="REF", help="A projector to be loaded, too.")
]
PreferOpt = Annotated[
    str,
    typer.Option(
        "--prefer",
        metavar="speed|quality",
        callback=values.one_of("speed", "quality"),
        help="quality: a better quantization may push layers off the GPU.",
    ),
]
MinQuantOpt = Annotated[
    str | None,
    typer.Option(
        "--min-quant",
        metavar="Q",
        help="The lowest quantization to choose; by default nothing below Q4_K_M.",
    ),
]
DisplaceOpt = Annotated[
    bool,
    typer.Option(
        "--draft-may-displace-layers",
        help="A draft may push layers off the GPU, never quantization or context.",
    ),
]
ProbeOpt = Annotated[
    str,
    typer.Option(
        "--probe",
        metavar="auto|off|require",
        callback=values.one_of("auto", "off", "require"),
        help="Whether libllama is asked, in a process of its own, what it would allocate.",
    ),
]
OfflineOpt = Annotated[
    bool, typer.Option("--offline", help="Use what is on this machine, and nothing else.")
]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What to plan, and for which machine."""

    draft: PlanDraftOpt = "auto"
    ctx_size: CtxSizeOpt = None
    vram: VramOpt = None
    gpu: GpuOpt = None
    ram: RamOpt = None
    reserve: ReserveOpt = None
    type_k: TypeKOpt = "f16"
    type_v: TypeVOpt = "f16"
    n_seq: SeqOpt = 1
    spec_type: SpecTypeOpt = None
    spec_draft_n_max: SpecMaxOpt = None
    n_batch: BatchOpt = 2048
    n_ubatch: UbatchOpt = 512
    swa_full: SwaFullOpt = False
    n_rs_seq: SnapshotsOpt = 0
    kv_unified: UnifiedOpt = False
    gpu_layers: GpuLayersOpt = None
    n_cpu_moe: CpuMoeOpt = None
    tensor_split: TensorSplitOpt = None
    mmproj: MmprojOpt = None
    prefer: PreferOpt = "speed"
    min_quant: MinQuantOpt = None
    draft_may_displace_layers: DisplaceOpt = False
    probe: ProbeOpt = "auto"
    offline: OfflineOpt = False
