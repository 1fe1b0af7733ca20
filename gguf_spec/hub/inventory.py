"""The models on this machine as records: what each is, and what it can draft for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf_spec.errors import GgufSpecError
from gguf_spec.header import ModelInfo
from gguf_spec.hub.candidates import LARGEST, same_family
from gguf_spec.hub.local import LocalModel, local_models
from gguf_spec.loadable import check_loadable
from gguf_spec.pairing import ROLE_TYPES, check_pair


def take_inventory(
    extra: tuple[Path, ...] = (), progress: Callable[[Path, int], None] = lambda path, n: None
) -> list[dict[str, Any]]:
    """A record of every model in the known folders and in ``extra``: ``path, ref, place, bytes,
    parts, name, arch, role, quant, n_params, drafts_for`` (references), ``spec_types`` and
    ``problem``; what is not known is None. Sorted by reference; no error is raised for a file."""
    found: list[LocalModel] = []
    for number, model in enumerate(local_models(extra), 1):
        progress(model.path, number)
        found.append(model)
    found.sort(key=lambda model: (model.ref.lower(), model.ref))
    targets = [model for model in found if model.info is not None and model.info.role == "target"]
    return [_record(model, targets) for model in found]


def _record(model: LocalModel, targets: list[LocalModel]) -> dict[str, Any]:
    info, problem = model.info, model.problem
    if info is not None:
        try:
            check_loadable(info)
        except GgufSpecError as error:
            # an adapter or a projector is no model, and nothing is wrong with it
            problem = error.message if info.role in ROLE_TYPES else None
    return {
        "path": str(model.path),
        "ref": model.ref,
        "place": model.place,
        "bytes": model.bytes,
        "parts": len(info.files) if info else None,
        "name": info.name if info else None,
        "arch": info.arch if info else None,
        "role": info.role if info else None,
        "quant": info.quant if info else None,
        "n_params": info.n_params if info else None,
        "spec_types": list(info.spec_types) if info else [],
        "drafts_for": [] if info is None or problem else _drafts_for(model, info, targets),
        "problem": problem,
    }


def _drafts_for(model: LocalModel, info: ModelInfo, targets: list[LocalModel]) -> list[str]:
    """The targets here that a file can draft for."""
    if info.role not in ROLE_TYPES:
        return []
    fitting = []
    for target in targets:
        theirs = target.info
        if theirs is None or target.path == model.path:
            continue
        if info.role == "target" and (
            info.n_params > LARGEST * theirs.n_params or not same_family(theirs, info)
        ):
            continue
        try:
            if check_pair(theirs, info).usable:
                fitting.append(target.ref)
        except GgufSpecError:  # it changed meanwhile
            continue
    return fitting
