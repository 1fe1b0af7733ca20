"""What the memory rules take and give: plain values, bytes as whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

CPU = "CPU"  # the device of everything in host memory

#: Every ``why`` of an item that may be too small begins with this.
LOWER_BOUND = "lower bound: "


#: What memory is for. Snapshots are copies of recurrent states that a draft needs.
Kind = Literal[
    "weights", "kv_cache", "recurrent_state", "snapshots", "compute", "output", "overhead"
]

#: How well a number is known: "exact" follows libllama's own sum, byte for byte; "formula" was
#: fitted to what libllama reserves; "probe" was read from libllama; "assumed" nobody can know
#: before the program runs on that device.
Source = Literal["exact", "formula", "probe", "assumed"]


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """``bytes`` on ``device`` ("CPU", "GPU0" …) for ``owner`` ("target", "draft", "mmproj" …).

    ``why`` says what was counted, and names the lines of llama.cpp whose rule it copies.
    """

    device: str
    owner: str
    kind: Kind
    bytes: int
    source: Source
    why: str

    @property
    def is_lower_bound(self) -> bool:
        """Whether more may be needed: the architecture, or a part of it, is not known here."""
        return self.why.startswith(LOWER_BOUND)


@dataclass(frozen=True, slots=True)
class MemoryParams:
    """The parameters of a context that its memory depends on, named as in llama.h.

    ``n_ctx`` is llama.cpp's: the cells of all ``n_seq_max`` sequences together; 0 is the length
    the model was trained for. ``n_outputs_max`` is the most rows with logits in one decode.
    ``load_mtp`` loads the model's MTP layers, ``mtp_context`` makes a context of them instead of
    one of the model. ``n_taps`` hidden states (layer inputs) are kept for every token of a batch,
    and with ``nextn`` the model's last one, too; ``own_states`` keeps it of rows with logits only.
    """

    n_ctx: int
    n_seq_max: int = 1
    kv_unified: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = False
    n_batch: int = 2048
    n_ubatch: int = 512
    n_outputs_max: int = 1
    n_rs_seq: int = 0
    flash_attn: str = "auto"
    offload_kqv: bool = True
    op_offload: bool = True
    load_mtp: bool = False
    mtp_context: bool = False
    n_taps: int = 0
    nextn: bool = False
    own_states: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Where layers and tensors go, as llama.cpp's options of the same names say.

    ``n_gpu_layers`` -1 is "all". ``tensor_split`` has one share for each of ``devices``; empty, the
    devices' free memory decides, as in llama.cpp. ``devices`` None is "all that there are", which
    libllama opens even if no layer goes there; () is the CPU alone. ``override_tensor`` are
    (regular expression, device) pairs, the first match wins; the experts of the first ``n_cpu_moe``
    layers follow after them, on the CPU (common/arg.cpp, ``-ncmoe``).
    """

    n_gpu_layers: int = -1
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device that layers may go to. ``backend``: "CUDA", "ROCm", "Metal", "Vulkan", "SYCL" …

    ``free`` bytes decide how layers are split where no split is given.
    """

    name: str
    backend: str = "CUDA"
    free: int = 0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine: its devices without the CPU, and whether its CPU backend repacks weights
    (``cpu_repack``: "", "avx2", "avx512" or "neon": the sets of types it repacks differ)."""

    devices: tuple[Device, ...] = ()
    cpu_repack: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over items, by device and, within, by kind."""

    by_device: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, dict[Kind, int]] = field(default_factory=dict)


def totals(items: Iterable[MemoryItem]) -> Totals:
    """What a list of items comes to on each device."""
    sums = Totals()
    for item in items:
        sums.by_device[item.device] = sums.by_device.get(item.device, 0) + item.bytes
        kinds = sums.by_kind.setdefault(item.device, {})
        kinds[item.kind] = kinds.get(item.kind, 0) + item.bytes
    return sums
