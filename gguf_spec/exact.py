"""The token-identical mode: settings under which a batch computes what single decoding does.

On CPUs the differences between a batch and single decoding come from kernels that are chosen by
the number of rows: matrix products on repacked weights, attention without flash attention, and the
split attention of single tokens over an f16 cache. So weights are not repacked, flash attention is
on and the cache is bf16, or q8_0 where bf16 does not do. What then is identical, and up to which
width at which depth, is measured on this machine and remembered; drafts are kept within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gguf_spec.backend import LlamaContext
from gguf_spec.context import Run
from gguf_spec.errors import InputError
from gguf_spec.folders import home_cache_dir
from gguf_spec.profile import Target
from gguf_spec.setup import Setup
from gguf_spec.verify_store import (
    file_identity,
    load_record,
    merged_widths,
    record_path,
    replace_json,
    widths_of,
)
from gguf_spec.widths import WIDTHS, WidthLimits, WidthResult, limits_of

if TYPE_CHECKING:
    from gguf_spec.session import Session

#: Cache types in the order in which they are tried.
CACHE_TYPES = ("bf16", "q8_0")
#: Drafts in exact mode have no more rows than these, which are all measured.
EXACT_WIDTHS = tuple(width for width in WIDTHS if width <= 16)
_TIMED_STEPS = 48


def cache_types(target: Target) -> tuple[tuple[str, str], ...]:
    """The types of keys and values to try; what the profile says is not changed."""
    given = target.model_fields_set & {"type_k", "type_v"}
    if given:
        return ((target.type_k, target.type_v),)
    return tuple((kind, kind) for kind in CACHE_TYPES)


def conditions(setup: Setup, context: LlamaContext) -> dict[str, Any]:
    """All that the arithmetic of ``context`` depends on, as JSON can hold it.

    Raises:
        InputError: the model's files cannot be read.
    """
    lib, params, target = context.model.lib, context.params, setup.profile.target
    system = b""
    if lib.has("llama_print_system_info"):
        system = lib.api.llama_print_system_info()
    from gguf_spec.backend import list_devices

    return {
        "model": file_identity(setup.target.files),
        "lora": [[file_identity([lora.path]), lora.scale] for lora in setup.loras],
        "llama_cpp": lib.version,
        "system": system.decode("utf-8", "replace"),
        "devices": [[device.name, device.description] for device in list_devices()],
        "placement": [
            target.n_gpu_layers,
            target.n_cpu_moe,
            list(target.override_tensor),
            list(target.tensor_split),
            target.main_gpu,
            list(target.devices),
            target.split_mode,
        ],
        "threads": [params.n_threads, params.n_threads_batch],
        "cache": [params.type_k, params.type_v, params.swa_full],
        "flash_attn": params.flash_attn,
        "repack": not setup.profile.spec.exact,
        "rope": [list(item) for item in params.rope],
        "n_ubatch": context.n_ubatch,
    }


def store_path(setup: Setup, context: LlamaContext) -> Path:
    """Where the findings for these conditions are kept."""
    return record_path(home_cache_dir() / "verify", conditions(setup, context))


def costs_path(setup: Setup, context: LlamaContext) -> Path:
    """Where the costs of batches under these conditions are kept."""
    return record_path(home_cache_dir() / "costs", conditions(setup, context))


def remember(path: Path, findings: Mapping[str, Any], widths: Sequence[WidthResult]) -> None:
    """Add ``findings`` (a document of ``verify``) and ``widths`` to the record at ``path``.

    Raises:
        InputError: it cannot be written.
    """
    record = load_record(path)
    merged = merged_widths(widths_of(record), widths)
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record |= {**findings, "widths": [width.record() for width in merged], "measured": when}
    replace_json(path, record)


def summary_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """What ``run --json`` and ``/stats`` tell of a record; None if nothing was verified."""
    if "verdict" not in record:
        return None
    names = ("verdict", "max_logit_difference", "measured")
    return {name: record.get(name) for name in names}


def known_limits(session: Session, path: Path) -> WidthLimits:
    """Up to which widths the drafts of ``session`` may go: from the record, or measured now.

    A record may come from a shorter context, where fewer depths and widths were measured.
    """
    from gguf_spec.verification import comparable, measure_widths

    needed = [width for width in EXACT_WIDTHS if width <= session.setup.max_width]
    needed, depths = comparable(session.context, needed)
    found = widths_of(load_record(path))
    known = {(result.depth, result.width) for result in found}
    if any((depth, width) not in known for depth in depths for width in needed):
        found = measure_widths(session, report=session.report_wait, widths=needed)
        known = {(result.depth, result.width) for result in found}
        try:
            remember(path, {}, found)
        except InputError as error:
            session.warnings.append(f"what was measured for --exact is not kept: {error.message}")
    return limits_of(
        result for result in found if all((result.depth, width) in known for width in needed)
    )


def seconds_per_token(context: LlamaContext, prompt: Sequence[int]) -> float:
    """The median time of a plain step after ``prompt``, or as much of it as leaves room in the
    context, which has to hold two tokens. The sequence is cleared."""
    context.clear(0)
    prompt = prompt[: max(context.n_ctx - _TIMED_STEPS, 1)]
    for start in range(0, len(prompt), context.n_ubatch):
        chunk = list(prompt[start : start + context.n_ubatch])
        context.decode([Run(0, start, chunk, int(start + len(chunk) == len(prompt)))])
    token = int(context.logits(len(chunk) - 1).argmax())
    times = []
    for i in range(min(_TIMED_STEPS, context.n_ctx - len(prompt))):
        begun = perf_counter()
        context.decode([Run(0, len(prompt) + i, [token], 1)])
        token = int(context.logits(0).argmax())
        times.append(perf_counter() - begun)
    context.clear(0)
    return median(times)
