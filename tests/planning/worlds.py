"""Models, machines and drafts to plan with: headers of realistic size, and random ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from gguf_spec.gguf_reader import TensorInfo
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse
from gguf_spec.memory import MemoryParams
from gguf_spec.planning.machine import Gpu, Host, Machine
from gguf_spec.planning.types import DraftOffer, Rung, Wish
from tests.memory.described import SIZES, Described
from tests.memory.drafts import dflash, eagle3
from tests.memory.hybrids import qwen35, qwen35moe
from tests.memory.transformers import gemma3, llama, qwen3moe

MIB, GIB = 1 << 20, 1 << 30
QUANTS = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")


def header(described: Described) -> ModelInfo:
    return parse(MemorySource(described.header()))


def requantized(info: ModelInfo, quant: str) -> ModelInfo:
    """``info`` with the matrices that are Q4_K in another type, as far as rows fit it."""
    block, size = SIZES[quant]

    def changed(tensor: TensorInfo) -> TensorInfo:
        if tensor.type != "Q4_K" or tensor.shape[0] % block:
            return tensor
        return replace(tensor, type=quant, n_bytes=tensor.n_elements // block * size)

    tensors = tuple(changed(tensor) for tensor in info.tensors)
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    return replace(info, tensors=tensors, quant=quant, file_bytes=n_bytes)


@cache
def model(kind: str, quant: str = "Q4_K") -> ModelInfo:
    """One of some models in one quantization."""
    makers: dict[str, Callable[[], Described]] = {
        "dense": lambda: llama(12, 1024, 16, 4, 2816),
        "tied": lambda: llama(6, 512, 8, 2, 1536, output=False),
        "windowed": lambda: gemma3(12, 1024, 4, 2, 4096),
        "hybrid": lambda: qwen35(12, 1024, 8, 2, 3584),
        "experts": lambda: qwen3moe(8, 1024, 16, 4),
        "hybrid-experts": lambda: qwen35moe(8, 1024),
        "27b": qwen35,
        "eagle3": lambda: eagle3(1024, 16, 4, 2816, n_target=12, vocab=128256),
        "eagle3-27b": eagle3,
        "dflash": lambda: dflash(2, 1024, 8, 2, 2816, vocab=128256),
        "draft": lambda: llama(3, 256, 4, 2, 768),
    }
    return requantized(header(makers[kind]()), quant)


TARGETS = ("dense", "tied", "windowed", "hybrid", "experts", "hybrid-experts")


def rungs(kind: str, *quants: str) -> list[Rung]:
    return [Rung(f"{kind}-{quant}.gguf", model(kind, quant)) for quant in quants]


def machine(*vram: float, ram: float = 64 * GIB, **more: object) -> Machine:
    """GPUs with so many bytes to spend, and a host."""
    gpus = tuple(
        Gpu(f"CUDA{i}", "CUDA", int(size), int(size), int(size), 10**12, 0.7)
        for i, size in enumerate(vram)
    )
    return Machine(Host(int(ram), int(ram), int(ram)), gpus, **more)  # type: ignore[arg-type]


def mtp(kind: str, quant: str = "Q4_K", **more: object) -> DraftOffer:
    """The head in a target's own file."""
    return DraftOffer("draft-mtp", tuple(rungs(kind, quant)), inside=True, **more)  # type: ignore[arg-type]


def memories() -> st.SearchStrategy[int]:
    """Bytes of a GPU: about what a driver and a small model take, or plenty."""
    return sizes(60, 50 * MIB) | sizes(48, 512 * MIB)


def sizes(most: int, step: int) -> st.SearchStrategy[int]:
    """Bytes up to about ``most`` steps: hypothesis itself would stay close to none."""
    return st.builds(lambda n, more: n * step + more, st.integers(0, most), st.integers(0, MIB))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to three GPUs, some of them no larger than what a driver takes."""
    found = draw(st.lists(memories(), max_size=3))
    ram = 64 * MIB + draw(sizes(64, 64 * MIB) | sizes(64, GIB))
    available = ram * draw(st.integers(0, 4)) // 4
    gpus = tuple(
        Gpu(f"CUDA{i}", "CUDA", size, size, size, 10**12, 0.7) for i, size in enumerate(found)
    )
    if len(gpus) == 1 and draw(st.booleans()):
        gpus = (Gpu("MTL0", "Metal", found[0], found[0], found[0], unified=True),)
    return Machine(Host(ram, available, ram), gpus, mapped=draw(st.booleans()))


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    params = MemoryParams(
        0,
        n_seq_max=draw(st.sampled_from([1, 1, 3])),
        n_ubatch=draw(st.sampled_from([128, 512])),
        type_k=draw(st.sampled_from(["f16", "q8_0"])),
        type_v="f16",
        swa_full=draw(st.booleans()),
    )
    return Wish(
        params,
        n_ctx=draw(st.sampled_from([None, "max", 1, 512, 4096, 32768, 131072])),
        prefer=draw(st.sampled_from(["speed", "quality"])),
        min_quant=draw(st.sampled_from([None, "Q2_K", "Q3_K_M", "Q6_K"])),
    )


@st.composite
def ladders(draw: st.DrawFn) -> tuple[str, ...]:
    """What ``rungs`` makes a ladder of. Names, because hypothesis prints what it has drawn."""
    quants = draw(st.lists(st.sampled_from(QUANTS), min_size=1, max_size=4, unique=True))
    return draw(st.sampled_from(TARGETS)), *quants


@st.composite
def drafts(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """What ``offers`` makes drafts of: methods, their longest drafts, and rows at once."""
    methods = st.sampled_from([*_FILES, "ngram-simple", "draft-mtp"])
    chosen = draw(st.lists(methods, max_size=4, unique=True))
    rows = st.sampled_from([32, 128, 512])
    return [(method, draw(st.integers(1, 15)), draw(rows)) for method in chosen]


_FILES = {
    "draft-eagle3": ("eagle3", "Q4_K"),
    "draft-dflash": ("dflash", "Q4_K"),
    "draft-simple": ("draft", "Q8_0", "Q4_K"),
}


def offers(wanted: list[tuple[str, int, int]], ladder: tuple[str, ...]) -> list[DraftOffer]:
    """Drafts of every kind, whether they would suit the target or not: bytes are bytes."""
    found = []
    for method, n_max, n_ubatch in wanted:
        if method == "draft-mtp" and ladder[0] in ("hybrid", "hybrid-experts"):
            found.append(mtp(*ladder[:2], n_max=n_max, n_ubatch=n_ubatch))
        elif method in _FILES:
            files = tuple(rungs(*_FILES[method]))
            found.append(DraftOffer(method, files, n_max=n_max, n_ubatch=n_ubatch))
        else:
            problem = "it has none" if method == "draft-mtp" else None
            found.append(DraftOffer(method, n_max=4 * n_max, problem=problem))
    return found
