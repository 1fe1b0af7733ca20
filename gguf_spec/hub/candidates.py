"""What could draft for a target, before anybody has named it: ``--draft auto``.

Three places are looked at: files beside the target that are named as llama.cpp names drafters, the
registry of known drafters, and the models that are on this machine already. Each candidate is
checked by its header before it is offered. Offline, what is kept of the registry's repositories is
used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gguf_spec.errors import GgufSpecError, HubError
from gguf_spec.header import ModelInfo
from gguf_spec.hub.ladder import (
    LadderFile,
    all_rungs,
    is_auxiliary,
    quant_of,
    remote_header,
)
from gguf_spec.hub.local import local_models
from gguf_spec.hub.remote import PARALLEL, hub_folder
from gguf_spec.hub.repository import Repository, open_repository
from gguf_spec.hub.sibling import scaled
from gguf_spec.hub.web import Web
from gguf_spec.loadable import check_loadable
from gguf_spec.pairing import ROLE_TYPES, check_pair
from gguf_spec.registry import KINDS, PAYS, Row, known_drafters
from gguf_spec.siblings import KEYWORDS, hinted_type, search

Origin = Literal["registry", "sibling", "cache"]

MOST_ROWS = 6  # of the registry that are asked for on the network
TENTH = 0.1  # of the target's size: what a draft model should have
LARGEST = 0.5  # of it, beyond which it is no draft model


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to draft with a file. ``rungs`` are its quantizations, (reference, header), what fits
    the target best first; of those the first header was read, others are scaled from it.

    ``said`` is why it is known, ``reason`` why it can be used or not, ``pays`` and ``note`` what
    the registry says of it.
    """

    kind: str
    rungs: tuple[tuple[str, ModelInfo], ...]
    origin: Origin
    said: str
    usable: bool
    reason: str
    pays: str = "unknown"
    note: str = ""

    @property
    def ref(self) -> str:
        return self.rungs[0][0]

    @property
    def info(self) -> ModelInfo:
        return self.rungs[0][1]


@dataclass(slots=True)
class Found:
    """Candidates, the best first. ``problems``: what could not be looked at, and why."""

    candidates: list[Candidate] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_candidates(
    web: Web,
    target: ModelInfo,
    *,
    repository: Repository | None = None,
    kinds: Iterable[str] = KINDS,
) -> Found:
    """Everything that could draft for ``target``, which is a file here or one in ``repository``.

    No error is raised for what cannot be had: it is a problem, and the rest is still there.
    """
    found = Found()
    wanted = frozenset(kinds)
    if repository is not None:
        _in_repository(web, target, repository, found)
    else:
        _beside(target, found)
    _registered(web, target, repository, wanted, found)
    _on_this_machine(target, found)
    found.candidates = _sorted(target, [c for c in found.candidates if c.kind in wanted])
    return found


def _judged(
    target: ModelInfo,
    rungs: Sequence[tuple[str, ModelInfo]],
    origin: Origin,
    said: str,
    row: Row | None = None,
) -> Candidate:
    info = rungs[0][1]
    kind, usable = ROLE_TYPES.get(info.role, "draft-simple"), False
    try:
        check_loadable(info)
        pair = check_pair(target, info)
        kind, usable, reason = pair.type or kind, pair.usable, pair.reason
    except GgufSpecError as error:
        reason = error.message
    if usable and kind == "draft-simple" and info.n_params > LARGEST * target.n_params:
        usable, reason = False, f"it has {info.n_params:,} parameters: too many for a draft"
    pays, note = (row.pays, row.note) if row is not None else ("unknown", "")
    return Candidate(kind, tuple(rungs), origin, said, usable, reason, pays, note)


# -- beside the target -------------------------------------------------------------------------


def _beside(target: ModelInfo, found: Found) -> None:
    if not Path(target.path).is_file():
        return
    looked = search(target)
    found.problems += looked.problems
    for sibling in looked.look():
        if sibling.info is not None and sibling.type is not None and sibling.belongs:
            ref = str(sibling.path)
            said = sibling.where
            found.candidates.append(_judged(target, [(ref, sibling.info)], "sibling", said))


def _in_repository(web: Web, target: ModelInfo, repository: Repository, found: Found) -> None:
    """The drafters in the target's repository, by llama.cpp's rule: in its folder or one above, the
    deepest first, then the same quantization, then the nearest number of bits."""
    path = target.files[0].partition("@")[0].removeprefix(f"hf:{repository.name}/")
    for kind in KEYWORDS:
        files = [
            rung
            for rung in all_rungs(repository)
            if hinted_type(rung.path.rpartition("/")[2]) == kind and "mmproj" not in rung.path
        ]
        ranked = sorted(files, key=lambda rung: _sibling_rank(path, target.quant, rung))
        ranked = [rung for rung in ranked if _depth(path, rung.path) is not None]
        if ranked:
            said = f"{ranked[0].path} in the same repository"
            _read_first(web, target, repository, ranked, "sibling", said, found)


def _sibling_rank(path: str, quant: str, rung: LadderFile) -> tuple[int, bool, int, int]:
    own = quant_of(path) or quant
    apart = abs(_bits(own) - _bits(rung.quant))
    return -(_depth(path, rung.path) or 0), own.upper() != rung.quant, apart, -rung.bytes


def _depth(path: str, other: str) -> int | None:
    """How many folders ``other`` shares with ``path``; None if it lies in none of its folders."""
    ours, theirs = path.split("/")[:-1], other.split("/")[:-1]
    # MTP/ and the like hold nothing but drafters of the models above them
    if theirs and theirs[-1].lower() in ("mtp", "eagle3", "dflash", "dspark", "draft"):
        theirs = theirs[:-1]
    return len(theirs) if ours[: len(theirs)] == theirs else None


def _read_first(
    web: Web,
    target: ModelInfo,
    repository: Repository,
    files: Sequence[LadderFile],
    origin: Origin,
    said: str,
    found: Found,
    row: Row | None = None,
) -> None:
    """Read the first file's header; the others are its quantizations, if they are called alike."""
    try:
        info = remote_header(web, repository, files[0])
    except GgufSpecError as error:
        found.problems.append(error.message)
        return
    rungs = [(files[0].ref, info)]
    rungs += [(file.ref, scaled(info, file.ref, file.quant, file.bytes)) for file in files[1:]]
    found.candidates.append(_judged(target, rungs, origin, said, row))


# -- the registry ------------------------------------------------------------------------------


def _registered(
    web: Web,
    target: ModelInfo,
    repository: Repository | None,
    wanted: frozenset[str],
    found: Found,
) -> None:
    names = [] if repository is None else [repository.name.partition("/")[2]]
    try:
        known = [row for row in known_drafters(target, names) if row.kind in wanted]
    except GgufSpecError as error:
        found.problems.append(error.message)
        return
    own = None if repository is None else repository.name.lower()
    for row in known:
        if not row.gguf:
            found.problems.append(
                f"{row.kind}: {row.repo} is known, and has to be converted first "
                "(convert_hf_to_gguf.py of llama.cpp)"
            )
    asked = [row for row in known if row.gguf and row.repo.lower() != own][:MOST_ROWS]
    rows_of_own = [row for row in known if row.gguf and row.repo.lower() == own]
    _mark(found, rows_of_own)

    silent: list[str] = []  # why the host is asked no more

    def ask(row: Row) -> Found:
        part = Found()
        if silent:
            return part
        try:
            _ask(quick, target, row, part)
        except GgufSpecError as error:
            kind = error.kind if isinstance(error, HubError) else ""
            if kind in ("connect", "endpoint"):
                silent.append(error.message.removeprefix(f"hf:{row.repo}: "))
            else:
                apart = "not looked at, " if kind in ("offline", "extra") else ""
                part.problems.append(f"{row.kind}: {apart}{error.message}")
        return part

    with web.hurried() as quick, ThreadPoolExecutor(PARALLEL) as pool:
        for part in pool.map(ask, asked):
            found.candidates += part.candidates
            found.problems += part.problems
    if silent:
        found.problems.append(f"known drafts were not looked at: {silent[0]}")


def _mark(found: Found, rows: Sequence[Row]) -> None:
    """Let siblings know what the registry says of them."""
    for index, one in enumerate(found.candidates):
        row = next((row for row in rows if row.kind == one.kind), None)
        if row is not None:
            found.candidates[index] = Candidate(
                one.kind,
                one.rungs,
                one.origin,
                one.said,
                one.usable,
                one.reason,
                row.pays,
                row.note,
            )


def _ask(web: Web, target: ModelInfo, row: Row, found: Found) -> None:
    repository = open_repository(web, row.repo, None, hub_folder())
    simple = row.kind == "draft-simple"
    files = [
        rung
        for rung in all_rungs(repository)
        if row.takes(rung.path) and (not simple or not is_auxiliary(rung.path))
    ]
    if not files:
        found.problems.append(f"{row.kind}: {row.repo} has no file {row.files} any more")
        return
    # a draft model in 8 bits agrees more often than it costs; heads follow their target
    aim = 8 if simple else _bits(target.quant)
    files.sort(key=lambda rung: (abs(_bits(rung.quant) - aim), -rung.bytes))
    said = f"known for {row.target} ({row.source})"
    _read_first(web, target, repository, files, "registry", said, found, row)


# -- this machine ------------------------------------------------------------------------------


def _on_this_machine(target: ModelInfo, found: Found) -> None:
    """Models that are here, have the target's tokenizer, and are small; and heads made for it."""
    there = {str(one.info.path) for one in found.candidates}
    own = {str(Path(file).resolve()) for file in target.files}
    for local in local_models():
        info = local.info
        if info is None or str(local.path) in there or str(local.path.resolve()) in own:
            continue
        if info.role == "target" and not same_family(target, info):
            continue
        if info.role not in ROLE_TYPES:
            continue
        one = _judged(target, [(local.ref, info)], "cache", f"in the folder of {local.place}")
        if one.usable:
            found.candidates.append(one)


def same_family(target: ModelInfo, draft: ModelInfo) -> bool:
    """The vocabularies may agree: asked before texts are compared, which takes a while."""
    ours, theirs = target.tokenizer, draft.tokenizer
    if ours.fingerprint is not None and ours.fingerprint == theirs.fingerprint:
        return True
    sizes = (target.vocab_size or 0, draft.vocab_size or 0)
    return (ours.model, ours.pre) == (theirs.model, theirs.pre) and abs(sizes[0] - sizes[1]) <= 128


# -- order -------------------------------------------------------------------------------------


def _sorted(target: ModelInfo, candidates: Sequence[Candidate]) -> list[Candidate]:
    """By kind; then what can be used, what pays, what is here; of draft models those with the very
    same tokenizer first, then the nearest to a tenth of the target's size."""
    places = ("sibling", "cache", "registry")

    def rank(one: Candidate) -> tuple[int, bool, int, bool, float, int, str]:
        ratio = one.info.n_params / max(target.n_params, 1)
        off = abs(math.log(max(ratio, 1e-9) / TENTH)) if one.kind == "draft-simple" else 0.0
        other = one.info.tokenizer.fingerprint != target.tokenizer.fingerprint
        kind = KINDS.index(one.kind) if one.kind in KINDS else len(KINDS)
        return (
            kind,
            not one.usable,
            PAYS.index(one.pays),
            other,
            round(off, 6),
            places.index(one.origin),
            one.ref,
        )

    return sorted(candidates, key=rank)


def _bits(quant: str) -> int:
    """Q4_0 -> 4, F16 -> 16, as llama.cpp counts; 0 where nothing is told."""
    number = re.search(r"\d+", quant)
    return int(number[0]) if number else 0
