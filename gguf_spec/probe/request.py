"""What is asked of the probe and what it answers, and both as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from gguf_spec.backend import ContextParams, ModelParams
from gguf_spec.backend.breakdown import BufferBytes
from gguf_spec.bare_header import HeaderFile, bare_headers
from gguf_spec.header import read_header, read_model

P = TypeVar("P", ModelParams, ContextParams)


@dataclass(frozen=True, slots=True)
class ProbeModel:
    """A model to be asked about: the headers of all its ``files``, and how it is loaded. ``path``
    is the first file if it is here: it is opened where headers cannot be written."""

    files: tuple[HeaderFile, ...]
    params: ModelParams
    path: Path | None = None

    @classmethod
    def local(cls, path: Path, params: ModelParams) -> ProbeModel:
        """The model in ``path`` and its other parts.

        Raises:
            HeaderError: they cannot be read.
        """
        info = read_model(path)
        parts = [info] if len(info.files) == 1 else [read_header(file) for file in info.files]
        return cls(bare_headers(parts), params, Path(info.files[0]))


@dataclass(frozen=True, slots=True)
class ProbeDraft:
    """A draft beside the target: ``model`` None is a head in the target's own file.

    ``on_target``: its context is handed the target's, which heads without embeddings of their own
    need (EAGLE-3, DFlash, DSpark, assistants, MTP heads).
    """

    model: ProbeModel | None
    context: ContextParams
    on_target: bool


@dataclass(frozen=True, slots=True)
class ContextBytes:
    """What one model with its context takes.

    ``output`` is the buffer of logits (rounded to 1/100 MiB), with the rows that are there before
    the first decode; it lies in host memory and in none of ``buffers``. ``source``: "walker" for
    exact counts, "log" for those that llama.cpp rounded to 1/100 MiB for its log, which names no
    weights and caches that were not allocated (``missing``). ``states``: the compute buffers have
    room for the hidden states that the context hands out, which come at its first decode.
    ``extrapolated``: there were more snapshots of a recurrent state than could be made; caches are
    exact all the same, compute buffers may be larger. The numbers of cells and rows are those that
    libllama settled for.
    """

    buffers: tuple[BufferBytes, ...]
    output: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    source: str = "walker"
    missing: tuple[str, ...] = ()
    states: bool = True
    extrapolated: bool = False

    def total(self, kind: str) -> int:
        """The bytes of ``kind`` (model, context, compute) in all buffers."""
        return sum(getattr(item, kind) for item in self.buffers)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The account of the target, and of the draft if one was asked about: weights that it shares
    with the target are not counted again."""

    target: ContextBytes
    draft: ContextBytes | None = None
    llama_cpp: str = ""
    seconds: float = field(default=0.0, compare=False)


def context_record(context: ContextParams) -> dict[str, Any]:
    assert context.other is None, "a probe makes its own contexts"
    return asdict(context)


def params_from(kind: type[P], record: Mapping[str, Any]) -> P:
    """The parameters in ``record``; arrays become the tuples that they were."""
    values: dict[str, Any] = {name: _tuples(value) for name, value in record.items()}
    return kind(**values)


def account_from(record: Mapping[str, Any]) -> ContextBytes:
    """The account in the child's answer.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    names = [item.name for item in fields(BufferBytes)]
    buffers = tuple(
        BufferBytes(**{name: buffer[name] for name in names}) for buffer in record["buffers"]
    )
    return ContextBytes(
        buffers=buffers,
        output=int(record["output"]),
        n_ctx=int(record["n_ctx"]),
        n_batch=int(record["n_batch"]),
        n_ubatch=int(record["n_ubatch"]),
        source=str(record["source"]),
        missing=tuple(record["missing"]),
        states=bool(record["states"]),
        extrapolated=bool(record["extrapolated"]),
    )


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
