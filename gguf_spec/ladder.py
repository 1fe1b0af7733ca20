"""The files behind a reference: quantizations of one model, and drafts that lie beside them.

What a file is, its header says; names are a hint only for which files beside a single one are
worth a look.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_spec.demo import Progress
from gguf_spec.errors import HeaderError, InputError, RefError
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.loadable import check_loadable
from gguf_spec.planning.types import Rung
from gguf_spec.refs import resolve_all

_NO_DRAFT = ("mmproj", "adapter")
_DRAFT_NAME = re.compile(
    r"(^|[-_.])(draft|mtp|eagle-?3|dflash|dspark|assistant|speculator)([-_.]|$)", re.IGNORECASE
)
_MOST_BESIDE = 16  # files beside a model that are looked at


@dataclass(frozen=True, slots=True)
class Found:
    """``rungs`` are the target's quantizations, ``drafts`` what may draft for it. ``warnings`` name
    the files that were left out, and why."""

    rungs: tuple[Rung, ...]
    drafts: tuple[Rung, ...] = ()
    warnings: tuple[str, ...] = ()


def find_target(text: str, *, progress: Progress | None = None) -> Found:
    """The quantizations that the reference ``text`` leads to, and drafts beside them.

    Raises:
        RefError, HeaderError: there is none, a part is missing, or it cannot be read.
        InputError: it leads to several models.
    """
    files = resolve_all(text, progress=progress)
    if len(files) == 1:
        info = read_model(files[0][1])
        check_loadable(info, as_target=True)
        return Found((Rung(text, info),), _beside(files[0][1]))
    rungs, warnings = _read(files)
    targets = [rung for rung in rungs if rung.info.role == "target"]
    heads = [rung for rung in rungs if rung.info.role not in ("target", *_NO_DRAFT)]
    if not targets:
        raise InputError(f"{text} has no model in it, only {_roles(rungs)}")
    groups: dict[tuple[object, ...], list[Rung]] = {}
    for rung in targets:
        groups.setdefault(_identity(rung.info), []).append(rung)
    largest = max(groups.values(), key=lambda group: group[0].info.n_params)
    others = [rung for group in groups.values() if group is not largest for rung in group]
    _check_one_model(text, largest, others)
    return Found(tuple(largest), (*heads, *others), tuple(warnings))


def find_drafts(text: str, *, progress: Progress | None = None) -> list[Rung]:
    """The drafts that a reference leads to: one, or the quantizations in a folder.

    Raises:
        RefError, HeaderError: as ``find_target``.
    """
    files = resolve_all(text, progress=progress)
    if len(files) == 1:
        info = read_model(files[0][1])
        check_loadable(info)
        return [Rung(text, info)]
    rungs, _ = _read(files)
    drafts = [rung for rung in rungs if rung.info.role not in _NO_DRAFT]
    if not drafts:
        raise InputError(f"{text} has no draft in it, only {_roles(rungs)}")
    return drafts


def _read(files: Sequence[tuple[str, Path]]) -> tuple[list[Rung], list[str]]:
    """The headers of ``files``, without those that libllama would not load."""
    rungs, warnings = [], []
    for name, path in files:
        try:
            info = read_model(path)
            check_loadable(info)
        except HeaderError as error:
            warnings.append(f"{name} is left out: {error.message}")
            continue
        rungs.append(Rung(name, info))
    if not rungs:
        raise HeaderError(warnings[0] if warnings else "there is no model")
    return rungs, warnings


def _identity(info: ModelInfo) -> tuple[object, ...]:
    """What quantizations of one model have in common."""
    return info.arch, info.n_layer, info.n_embd, info.n_head, info.vocab_size


def _check_one_model(text: str, largest: Sequence[Rung], others: Sequence[Rung]) -> None:
    """Other models beside the largest may be drafts for it, as long as they have its tokens."""
    info = largest[0].info
    strange = [rung for rung in others if rung.info.tokenizer.model != info.tokenizer.model]
    strange += [rung for rung in others if rung not in strange and not _is_small(rung.info, info)]
    if strange:
        names = ", ".join(dict.fromkeys(rung.info.name for rung in (largest[0], *strange)))
        raise InputError(
            f"{text} has several models in it: {names}",
            hint="name one of the files, or a folder with quantizations of one model",
        )


def _is_small(draft: ModelInfo, target: ModelInfo) -> bool:
    return 2 * draft.n_params <= target.n_params


def _beside(path: Path) -> tuple[Rung, ...]:
    """Drafts beside a single file, as far as their names say that they may be some."""
    try:
        names = sorted(one for one in path.parent.glob("*.gguf") if _DRAFT_NAME.search(one.stem))
    except OSError:
        return ()
    found = []
    for other in names[:_MOST_BESIDE]:
        if other == path:
            continue
        try:
            info = read_model(other)
            check_loadable(info)
        except (HeaderError, RefError):
            continue
        if info.role not in _NO_DRAFT:
            found.append(Rung(str(other), info))
    return tuple(found)


def _roles(rungs: Sequence[Rung]) -> str:
    return ", ".join(dict.fromkeys(rung.info.role for rung in rungs))
