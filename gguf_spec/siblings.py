"""Drafters that lie beside a target, found by name and judged by header.

The names are those of llama.cpp (``find_best_sibling`` in common/download.cpp): ``mtp-``,
``eagle3-``, ``dflash-`` and ``dspark-`` anywhere in the name of a .gguf file, in the target's
folder or in one above it. Nearer folders come first, then the same quantization, then the nearest
number of bits. There the best name is taken, here a name is a hint: a file is used if its header
says that it can draft for this target.

llama.cpp looks through one repository, where all files belong together. On a disk the folder may
hold many models, whose drafters can agree in every number and still be made for another model. So a
name that is the target's comes before one that is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf_spec.errors import GgufSpecError
from gguf_spec.header import SPLIT_NAME, ModelInfo, read_model
from gguf_spec.loadable import check_loadable
from gguf_spec.pairing import check_pair

#: Words in names, by spec type, in the order in which llama.cpp prefers the types (common/arg.cpp).
#: It writes them in small letters; files of other origin do not.
KEYWORDS = {
    "draft-mtp": ("mtp-", "-assistant"),  # Gemma 4's MTP heads are published as its assistants
    "draft-dspark": ("dspark-",),
    "draft-dflash": ("dflash-",),
    "draft-eagle3": ("eagle3-",),
}
HEAD_TYPES = tuple(KEYWORDS)
MAX_NAMES = 50_000  # of a folder, whatever they are: a tenth of a second
MAX_HEADERS = 16  # that are read for one target
MAX_SNAPSHOTS = 8  # of a repository in the Hugging Face cache

_NO_MODEL = re.compile(r"mmproj|imatrix", re.IGNORECASE)
# the end of a name that says how a file is quantized, such as -UD-Q4_K_XL or .Q4_1
_QUANT = re.compile(
    r"[-._](?P<tag>(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|NVFP\d\w*|B?F16|F32|B?F16_\w+))$",
    re.IGNORECASE,
)
_SEPARATORS = "-._ "
# what a name says of the kind of a head, with the separator before it
_HEAD = re.compile(
    rf"(?:^|[{_SEPARATORS}])(?:mtp|eagle3|dflash2?|dspark|assistant)(?=$|[{_SEPARATORS}])"
)


@dataclass(frozen=True, slots=True)
class Listing:
    """The .gguf names in a folder. ``distance`` 0 is the target's own folder, 1 the one above it.
    ``problem``: why the list is not whole; None if it is."""

    folder: Path
    distance: int
    names: tuple[str, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that a name suggests. ``hint`` is the spec type in its name.

    ``kinship``: 0 where the rest of the name is the target's, 1 where one holds the other, 2
    otherwise. ``alone``: no other model in the folders could be the one it was made for.
    """

    path: Path
    hint: str
    distance: int
    kinship: int
    alone: bool
    bits_apart: int
    same_quant: bool

    @property
    def rank(self) -> tuple[int, int, bool, int, str]:
        """Smaller is better."""
        return self.kinship, self.distance, not self.same_quant, self.bits_apart, self.path.name

    @property
    def belongs(self) -> bool:
        """Whether it is this target's by its name, or for want of another target."""
        return self.kinship < 2 or self.alone


@dataclass(frozen=True, slots=True)
class Sibling:
    """A file that was looked at. ``type`` is the spec type that its header says, None for a file
    that is no head. ``reason`` says why it can be used, or why not."""

    path: Path
    type: str | None
    usable: bool
    reason: str
    distance: int
    belongs: bool
    info: ModelInfo | None = None

    @property
    def where(self) -> str:
        """The file's name, and where it is."""
        place = "beside the model" if self.distance == 0 else "in the folder above the model"
        return f"{self.path.name} {place}"


def hinted_type(name: str) -> str | None:
    """The spec type that the name of a file suggests."""
    lower = name.lower()
    for kind, words in KEYWORDS.items():
        if any(word in lower for word in words):
            return kind
    return None


def model_name(file_name: str) -> tuple[str, str]:
    """(what the name calls the model, its quantization), both in small letters.

    >>> model_name("mtp-gemma-4-12B-it-Q8_0.gguf")
    ('gemma-4-12b-it', 'q8_0')
    """
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", file_name, flags=re.IGNORECASE)
    quant = _QUANT.search(stem)
    stem = (stem if quant is None else stem[: quant.start()]).lower()
    stem = _HEAD.sub("", stem).strip(_SEPARATORS)
    return stem, "" if quant is None else quant["tag"].lower()


def candidates(target: Path, listings: Sequence[Listing], quant: str = "") -> list[Candidate]:
    """The files that may draft for ``target``, the best name first. Pure.

    ``quant`` is the target's quantization where its name does not tell it.
    """
    ours, tag = model_name(target.name)
    tag = tag or quant.lower()
    found = []
    for listing in listings:
        near = [other for other in listings if other.distance <= listing.distance]
        alone = not _others(ours, near)
        for name in listing.names:
            kind = hinted_type(name)
            part = SPLIT_NAME.fullmatch(name)
            if kind is None or _NO_MODEL.search(name) or (part and int(part["number"]) != 1):
                continue
            if listing.distance == 0 and name == target.name:
                continue
            theirs, their_tag = model_name(name)
            found.append(
                Candidate(
                    path=listing.folder / name,
                    hint=kind,
                    distance=listing.distance,
                    kinship=_kinship(ours, theirs),
                    alone=alone,
                    bits_apart=abs(_bits(tag) - _bits(their_tag)),
                    same_quant=tag == their_tag,
                )
            )
    return sorted(found, key=lambda candidate: candidate.rank)


def judge(target: ModelInfo, candidate: Candidate) -> Sibling:
    """Look at a candidate's header. Whatever is wrong with the file is the reason, no error."""
    kind, usable, info = None, False, None
    try:
        info = read_model(candidate.path)
        check_loadable(info)
        pair = check_pair(target, info)
        kind, usable, reason = pair.type, pair.usable, pair.reason
        if kind == "draft-simple":
            kind, usable, reason = None, False, f"{info.name} is a whole model, no draft head"
    except GgufSpecError as error:
        reason = error.message.removeprefix(str(candidate.path)).removeprefix(":").lstrip()
        reason = reason.replace(str(candidate.path), candidate.path.name)
    except OSError as error:
        reason = str(error)
    return Sibling(
        candidate.path, kind, usable, reason, candidate.distance, candidate.belongs, info
    )


@dataclass(frozen=True, slots=True)
class Search:
    """What lies beside a target by name. ``problems``: why something may be missing."""

    target: ModelInfo
    found: tuple[Candidate, ...]
    problems: tuple[str, ...]

    def look(self, kinds: Iterable[str] = HEAD_TYPES) -> Iterator[Sibling]:
        """The files one after the other, headers read as they come: of the first type in ``kinds``
        the best name first, then of the next, at last those whose names suggest another type."""
        order = list(kinds)
        order += [kind for kind in HEAD_TYPES if kind not in order]
        for candidate in sorted(self.found, key=lambda one: (order.index(one.hint), one.rank)):
            yield judge(self.target, candidate)


def search(target: ModelInfo) -> Search:
    """List what lies beside ``target``. No header is read here, and no error is raised."""
    path = Path(target.files[0])
    listings = [_list(folder, distance) for folder, distance in _folders(path)]
    problems = [listing.problem for listing in listings if listing.problem is not None]
    seen = {os.path.realpath(file) for file in target.files}
    found: list[Candidate] = []
    named = candidates(path, listings, target.quant)
    for candidate in named:
        name = os.path.realpath(candidate.path)
        if name in seen:
            continue
        if len(found) == MAX_HEADERS:
            problems.append(
                f"{len(named)} files are named like drafters; only the {MAX_HEADERS} whose names "
                "fit best were looked at"
            )
            break
        seen.add(name)
        found.append(candidate)
    return Search(target, tuple(found), tuple(problems))


def _kinship(ours: str, theirs: str) -> int:
    if ours == theirs:
        return 0
    short, long = sorted((ours, theirs), key=len)
    if not short:
        return 2
    words = str.maketrans(dict.fromkeys(_SEPARATORS, " "))
    return 1 if f" {short} ".translate(words) in f" {long} ".translate(words) else 2


def _others(ours: str, listings: Sequence[Listing]) -> bool:
    """Whether a model lies there that is not the target in another quantization."""
    return any(
        hinted_type(name) is None and not _NO_MODEL.search(name) and model_name(name)[0] != ours
        for listing in listings
        for name in listing.names
    )


def _bits(tag: str) -> int:
    """Q4_0 -> 4, F16 -> 16, as llama.cpp counts; 0 where nothing is told."""
    number = re.search(r"\d+", tag)
    return int(number[0]) if number else 0


def _folders(target: Path) -> Iterator[tuple[Path, int]]:
    """Folders with their distance. Of a repository in the Hugging Face cache all snapshots count:
    a file that is downloaded later lands in a newer one."""
    here = Path(os.path.realpath(target.parent))
    seen: dict[Path, int] = {here: 0}
    above = [folder for folder in here.parents if folder.name == "snapshots"]
    if above and above[0].parent.name.startswith("models--"):
        snapshots = above[0]
        inside = here.relative_to(snapshots).parts[1:]
        others = _subfolders(snapshots)
        roots = [snapshots / here.relative_to(snapshots).parts[0], *others[:MAX_SNAPSHOTS]]
        for up in range(len(inside) + 1):
            for root in roots:
                seen.setdefault(root.joinpath(*inside[: len(inside) - up]), up)
    else:
        seen.setdefault(here.parent, 1)
        behind = Path(os.path.realpath(target)).parent  # of a link, where the file really is
        seen.setdefault(behind, 0)
        seen.setdefault(behind.parent, 1)
    yield from seen.items()


def _subfolders(folder: Path) -> list[Path]:
    """The folders in ``folder``, the newest first."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []
    return [Path(path) for _, path in sorted(found, reverse=True)]


def _list(folder: Path, distance: int) -> Listing:
    names: list[str] = []
    problem = None
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == MAX_NAMES:
                    problem = (
                        f"{folder} has more than {MAX_NAMES} files; the rest was not looked at"
                    )
                    break
                # ._name.gguf: what macOS writes beside a file on foreign disks
                if entry.name.lower().endswith(".gguf") and not entry.name.startswith("."):
                    names.append(entry.name)
    except FileNotFoundError:  # gone meanwhile, or in another snapshot only
        pass
    except OSError as error:
        problem = f"{folder} cannot be read: {error.strerror or error}"
    return Listing(folder, distance, tuple(sorted(names)), problem)
