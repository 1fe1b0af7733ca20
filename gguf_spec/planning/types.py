"""What is planned with, and what comes out: plain values, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gguf_spec.header import ModelInfo
from gguf_spec.memory import MemoryItem, MemoryParams, Placement
from gguf_spec.planning.machine import Machine, summed

Tier = Literal["A", "B", "C"]
Origin = Literal["registry", "sibling", "cache", "asked"]

ALL = -1  # layers: all of them


@dataclass(frozen=True, slots=True)
class Rung:
    """One quantization of the target that could be had: a reference, and its header. It is not
    ``exact`` if the header is a sibling's, scaled to the size of this file."""

    ref: str
    info: ModelInfo
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked of the target.

    ``params`` but for its n_ctx, which follows from ``n_ctx`` (None: up to 8192). ``n_gpu_layers``
    and ``n_cpu_moe`` are None where the plan decides; ``tensor_split`` and ``override_tensor`` are
    the user's. ``min_quant`` None: nothing below the default floor. ``loras`` and ``mmproj`` are
    loaded beside the target, and part of its bill.
    """

    params: MemoryParams
    n_ctx: int | Literal["max"] | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    tensor_split: tuple[float, ...] = ()
    override_tensor: tuple[tuple[str, str], ...] = ()
    prefer: Literal["speed", "quality"] = "speed"
    min_quant: str | None = None
    draft_may_displace_layers: bool = False
    loras: tuple[ModelInfo, ...] = ()
    mmproj: ModelInfo | None = None


@dataclass(frozen=True, slots=True)
class DraftOffer:
    """A way to draft that may be admitted; ``rungs`` are its quantizations, the best first.

    No rung: an n-gram drafter. ``inside``: a head in the target's own file. ``problem`` is why it
    cannot be used, whatever the memory. ``n_max`` tokens and ``n_ubatch`` rows are where shrinking
    starts; it is left off for what the user has ``fixed`` (n_ubatch, types). ``n_gpu_layers`` None:
    all or none, as it fits. ``n_ctx`` None: the target's.
    """

    method: str
    rungs: tuple[Rung, ...] = ()
    inside: bool = False
    origin: Origin = "asked"
    n_max: int = 3
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    n_ctx: int | None = None
    n_gpu_layers: int | None = None
    devices: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    problem: str | None = None

    @property
    def ref(self) -> str | None:
        return self.rungs[0].ref if self.rungs and not self.inside else None

    @property
    def is_neural(self) -> bool:
        return self.method.startswith("draft-")


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """The target as it will be loaded. ``items`` are all it needs, extras included; ``params``
    are those without any draft. ``shrunk``: the context is shorter than was asked for."""

    rung: Rung
    tier: Tier
    n_ctx: int
    params: MemoryParams
    placement: Placement
    items: tuple[MemoryItem, ...]
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """An admitted draft, with everything that it costs. ``params`` are those of its context;
    None for n-gram drafters. ``changes`` say what was shrunk to make it fit."""

    offer: DraftOffer
    rung: Rung | None
    n_max: int
    params: MemoryParams | None
    placement: Placement | None
    items: tuple[MemoryItem, ...]
    changes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an offer: admitted, or how many bytes are missing where for the least of it.

    ``least`` is the smallest bundle there is, of a draft that was refused.
    """

    offer: DraftOffer
    bundle: Bundle | None
    missing: dict[str, int]
    reason: str
    least: Bundle | None = None

    @property
    def bytes(self) -> int:
        """Bytes of what was admitted, else of the least there is."""
        bundle = self.bundle or self.least
        return bundle.bytes if bundle is not None else 0

    @property
    def admitted(self) -> bool:
        return self.bundle is not None

    @property
    def missing_bytes(self) -> int:
        return summed(self.missing)


@dataclass(frozen=True, slots=True)
class Judged:
    """A rung of the ladder under the plan's tier and context: without a draft and with the plan's.

    ``missing`` and ``missing_with_draft`` are empty where it fits; ``draft`` is the method, None
    where there is none to be had.
    """

    rung: Rung
    bits: float
    total: int
    missing: dict[str, int]
    draft: str | None
    total_with_draft: int
    missing_with_draft: dict[str, int]
    chosen: bool


@dataclass(frozen=True, slots=True)
class Speed:
    """Expected tokens per second, and how they were worked out; None where nobody knows."""

    tokens_per_second: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be loaded where. If it ``fits`` not, ``target`` is what comes nearest.

    ``hints`` are ways out when it does not fit.
    """

    machine: Machine
    wish: Wish
    fits: bool
    target: TargetPlan
    ladder: tuple[Judged, ...]
    drafts: tuple[Bundle, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    speed: Speed | None = None
    speed_with_draft: Speed | None = None

    @property
    def items(self) -> tuple[MemoryItem, ...]:
        """Everything, the drafts' included."""
        return (*self.target.items, *(item for one in self.drafts for item in one.items))

    @property
    def missing(self) -> dict[str, int]:
        """Bytes by memory that are not there; empty if it fits."""
        return self.machine.missing(self.items)
