"""What common GPUs have, to plan for a machine that one is not on.

``gpus.toml`` is the table; names are found as people write them: "4090", "rtx4090", "NVIDIA GeForce
RTX 4090", "M4 Max 64GB".
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_spec.errors import UsageError

GIB = 1 << 30
MTP_LENGTH = 2  # best on most GPUs
_TABLE = Path(__file__).with_name("gpus.toml")
_MOST_GPUS = 64
# Words that makers put around the name, and that people leave out.
_NOISE = frozenset([
    "nvidia", "geforce", "rtx", "amd", "radeon", "rx", "apple", "intel", "tesla", "instinct", "arc",
    "gpu", "graphics", "corporation", "generation", "edition", "workstation", "r", "tm",
])  # fmt: skip
# Sockets and kinds of memory, which drivers put into names; they tell H100s apart and nothing else.
_SOCKETS = frozenset(["sxm", "sxm2", "sxm3", "sxm4", "sxm5", "pcie", "hbm2", "hbm2e", "hbm3"])
_MEMORY = re.compile(r"(?<![\w.])(\d+)\s*(?:gib|gb|g)\b")
_COUNT = re.compile(r"(\d{1,2})\s*[x*×]\s*(.+)", re.IGNORECASE | re.DOTALL)
_WORD = re.compile(r"[a-z]+\d+[a-z]*\d*|\d+|[a-z]+")
_PREFIX = re.compile(r"(?<![a-z])(rtx|gtx|rx|arc|geforce|radeon|tesla)(?=\d)")
_SUFFIX = re.compile(r"(?<=\d)(ti|super|xtx|xt|gre|laptop|ada)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU with one size of memory. ``memory`` in bytes, ``bandwidth`` in bytes per second;
    ``share`` of it is what plain decoding uses, ``measured`` if that was seen on this very GPU and
    not on others of its maker. ``unified``: the memory is the computer's. MTP drafts of
    ``mtp_length`` tokens are worth trying first."""

    name: str
    vendor: str
    memory: int
    bandwidth: int
    share: float
    measured: bool = False
    unified: bool = False
    mtp_length: int = MTP_LENGTH

    @property
    def title(self) -> str:
        """The name with the memory."""
        return f"{self.name} {self.memory // GIB}GB"


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs as in "RTX 4090", "2x 3090" or "RTX 4090, RTX 3060 12GB".

    Raises:
        UsageError: an unknown or an ambiguous name.
    """
    gpus: list[Gpu] = []
    for part in text.split(","):
        count = _COUNT.fullmatch(part.strip())
        number, name = 1, part.strip()
        if count is not None:
            number, name = int(count[1]), count[2]
        if not 1 <= number <= _MOST_GPUS:
            raise UsageError(f"{part.strip()!r}: from 1 to {_MOST_GPUS} GPUs")
        gpus += [find_gpu(name)] * number
    return tuple(gpus)


def find_gpu(text: str) -> Gpu:
    """The one GPU that ``text`` names.

    Raises:
        UsageError: there is none, or there are several.
    """
    words, memory = _words(text)
    found = _matching(words)
    if not words or not found:
        raise _unknown(text)
    fitting = [gpu for gpu in found if memory in (None, gpu.memory)]
    if not fitting:
        sizes = _listed(f"{gpu.memory // GIB}" for gpu in found)
        raise UsageError(
            f"no {found[0].name} has {(memory or 0) // GIB} GB: it is sold with {sizes} GB",
            hint="--vram plans for any size",
        )
    if len(fitting) > 1:
        raise UsageError(
            f"{text.strip()!r} may be {_listed(gpu.title for gpu in fitting)}",
            hint=f"say which, as in --gpu {fitting[0].title!r}",
        )
    return fitting[0]


def describe(name: str, total: int) -> Gpu | None:
    """The GPU that a driver calls ``name`` and that has ``total`` bytes (drivers keep some for
    themselves, and count less than is sold); None if it is not in the table."""
    words, memory = _words(name)
    found = [gpu for gpu in _table() if words in _names()[gpu.name]]
    if not found:
        words -= _SOCKETS
        found = [gpu for gpu in _table() if words in _names()[gpu.name]]
    if not words or not found:
        return None
    wanted = memory or total
    by_size = sorted(found, key=lambda gpu: gpu.memory)
    return next((gpu for gpu in by_size if gpu.memory >= wanted), by_size[-1])


def gpu_names() -> list[str]:
    """Every GPU of the table with its memory."""
    return [gpu.title for gpu in _table()]


def _matching(words: frozenset[str]) -> list[Gpu]:
    """GPUs of exactly these words, else those that have these among others."""
    table, names = _table(), _names()
    exact = [gpu for gpu in table if words in names[gpu.name]]
    if exact:
        return exact
    return [gpu for gpu in table if any(words <= name for name in names[gpu.name])]


def _words(text: str) -> tuple[frozenset[str], int | None]:
    """The words that count, and bytes of memory if the text names them."""
    text = _SUFFIX.sub(r" \1", _PREFIX.sub(r"\1 ", text.lower()))
    sizes = _MEMORY.findall(text)
    text = _MEMORY.sub(" ", text)
    memory = int(sizes[-1]) * GIB if sizes and len(sizes[-1]) < 8 else None
    return frozenset(_WORD.findall(text)) - _NOISE, memory


def _unknown(text: str) -> UsageError:
    names = {gpu.name.lower(): gpu.name for gpu in _table()}
    asked = " ".join(sorted(_words(text)[0]))
    # Compared without the makers' words, by which all names are alike.
    short = {" ".join(sorted(_words(name)[0])): name for name in names.values()}
    near = difflib.get_close_matches(asked, short, n=3, cutoff=0.6)
    shown = text.strip() if len(text) <= 60 else text[:57] + "…"
    return UsageError(
        f"there is no GPU {shown!r} in the table",
        hint=(f"did you mean {_listed(short[name] for name in near)}? " if near else "")
        + "--vram 24GiB plans for any GPU",
    )


def _listed(words: Iterable[str]) -> str:
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


@functools.cache
def _table() -> tuple[Gpu, ...]:
    shares = _toml()["share"]
    return tuple(
        Gpu(
            name=row["name"],
            vendor=row["vendor"],
            memory=size * GIB,
            bandwidth=row["bandwidth"] * 10**9,
            share=row.get("share", shares[row["vendor"]]),
            measured="share" in row,
            unified=row.get("unified", False),
            mtp_length=row.get("mtp_length", MTP_LENGTH),
        )
        for row in _toml()["gpu"]
        for size in row["memory"]
    )


@functools.cache
def _names() -> dict[str, frozenset[frozenset[str]]]:
    """The words of each GPU's names."""
    names: dict[str, set[frozenset[str]]] = {}
    for row in _toml()["gpu"]:
        texts = (row["name"], *row.get("aliases", ()))
        names.setdefault(row["name"], set()).update(_words(text)[0] for text in texts)
    return {name: frozenset(words) for name, words in names.items()}


@functools.cache
def _toml() -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(_TABLE.read_text(encoding="utf-8"))
    return table
