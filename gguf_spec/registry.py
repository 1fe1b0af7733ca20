"""Which drafters are known for which targets: a table that is shipped, and one of the user's.

``drafters.toml`` beside this file says where its rows are from. A file of the same name and form in
the user's folder ($GGUF_SPEC_HOME) comes first: its rows replace those with the same target, kind
and repository, and ``pays = "never"`` takes one out. A row is a hint, like the name of a file; what
a drafter can be used for, its header decides.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gguf_spec.errors import InputError
from gguf_spec.folders import home_config_dir
from gguf_spec.header import ModelInfo
from gguf_spec.siblings import model_name

FILE = "drafters.toml"
KINDS = ("draft-mtp", "draft-dspark", "draft-dflash", "draft-eagle3", "draft-simple")
PAYS = ("yes", "depends", "unknown", "no", "never")
MAX_VOCABULARY_DIFFERENCE = 128  # tokens: what llama.cpp allows a draft model to differ by

_SHIPPED = Path(__file__).with_name(FILE)
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*")
# Words before the name of a model that say who made or converted it.
_MAKERS = frozenset(["meta", "google", "qwen", "openai", "mistralai", "microsoft", "nvidia"])


@dataclass(frozen=True, slots=True)
class Row:
    """A drafter that is known for a target.

    ``target`` is the name of the base model, ``arch``, ``pre``, ``vocab`` (tokens) and
    ``fingerprint`` (as ``inspect`` shows it) are what its header must say, None where it does not
    matter. ``files`` is a pattern for names in ``repo``. ``pays``: "yes", "depends" (on machine and
    text), "unknown", "no" (measured slower). ``gguf`` is False for weights that have to be
    converted first. ``source`` is who says so.
    """

    target: str
    kind: str
    repo: str
    source: str
    arch: str | None = None
    pre: str | None = None
    vocab: int | None = None
    fingerprint: str | None = None
    files: str = "*"
    pays: str = "unknown"
    note: str = ""
    gguf: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two rows the same entry."""
        return self.target.lower(), self.kind, self.repo.lower()

    def takes(self, path: str) -> bool:
        """Whether a file of the repository is meant."""
        name = path.rpartition("/")[2].lower()
        pattern = self.files.lower()
        return name.endswith(".gguf") and fnmatchcase(
            path.lower() if "/" in pattern else name, pattern
        )

    def matches(self, info: ModelInfo, names: Iterable[str] = ()) -> bool:
        """Whether ``info`` is the target of this row. ``names`` are further ones that it has, such
        as its repository's."""
        tokenizer = info.tokenizer
        if self.arch is not None and self.arch != info.arch:
            return False
        if self.fingerprint is not None and self.fingerprint != tokenizer.fingerprint:
            return False
        if self.pre is not None and self.pre != tokenizer.pre:
            return False
        if self.vocab is not None:
            size = info.vocab_size or 0
            if abs(self.vocab - size) > MAX_VOCABULARY_DIFFERENCE:
                return False
        wanted = words(self.target)
        return any(_begins(words(name), wanted) for name in (*names_of(info), *names))


def names_of(info: ModelInfo) -> list[str]:
    """What a model calls itself: its name, its base name with the size, its file's name."""
    text = info.metadata.get
    found = [info.name, model_name(re.split(r"[/\\]", info.path)[-1].partition("@")[0])[0]]
    base, size = text("general.basename"), text("general.size_label")
    if isinstance(base, str) and isinstance(size, str):
        found.append(f"{base} {size}")
    for number in range(4):
        name = text(f"general.base_model.{number}.name")
        if isinstance(name, str):
            found.append(name)
    return found


def words(name: str) -> list[str]:
    """A name in words, by which spellings of it agree.

    >>> words("Qwen_Qwen3.6-27B"), words("Meta Llama 3.1 8B")
    (['qwen3.6', '27b'], ['llama', '3.1', '8b'])
    """
    found = [word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word]
    while len(found) > 1 and found[0] in _MAKERS:
        found = found[1:]
    return found


def _begins(name: Sequence[str], wanted: Sequence[str]) -> bool:
    """What comes behind may be a version or "Instruct"; another model's name in front is not."""
    return bool(wanted) and list(name[: len(wanted)]) == list(wanted)


def known_drafters(info: ModelInfo, names: Iterable[str] = ()) -> list[Row]:
    """The rows for a target, in the order of KINDS; within one, what pays comes first.

    Raises InputError for a file of the user's that cannot be read.
    """
    names = list(names)
    found = [row for row in rows() if row.matches(info, names)]
    # the name that says most is the model's own: Qwen3-4B-Instruct-2507 is not just any Qwen3-4B
    longest = max((len(words(row.target)) for row in found), default=0)
    return sorted(
        found,
        key=lambda row: (
            KINDS.index(row.kind),
            PAYS.index(row.pays),
            not row.gguf,
            longest - len(words(row.target)),
        ),
    )


def rows() -> list[Row]:
    """All rows, the user's first. Raises InputError."""
    own = home_config_dir() / FILE
    mine = list(read_rows(own)) if own.is_file() else []
    replaced = {row.key for row in mine}
    every = [*mine, *(row for row in _shipped() if row.key not in replaced)]
    return [row for row in every if row.pays != "never"]


@functools.cache
def _shipped() -> tuple[Row, ...]:
    return read_rows(_SHIPPED)


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a file. Raises InputError with the row that is wrong."""
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {error}", hint=f"correct it, or delete it: {_SHIPPED} is used then"
        ) from error
    unknown = sorted(set(document) - {"drafter"})
    if unknown:
        raise InputError(f"{path}: unknown table {unknown[0]!r}", hint="rows are [[drafter]]")
    tables = document.get("drafter", [])
    if not isinstance(tables, list):
        raise InputError(f"{path}: drafter is no list of rows", hint="rows are [[drafter]]")
    return tuple(_row(path, number, table) for number, table in enumerate(tables, 1))


_TYPES = {
    "target": str, "kind": str, "repo": str, "source": str, "arch": str, "pre": str, "vocab": int,
    "fingerprint": str, "files": str, "pays": str, "note": str, "gguf": bool,
}  # fmt: skip
_NEEDED = ("target", "kind", "repo", "source")


def _row(path: Path, number: int, table: Any) -> Row:
    def wrong(what: str, hint: str) -> InputError:
        return InputError(f"{path}: row {number}: {what}", hint=hint)

    if not isinstance(table, dict):
        raise wrong("it is no table", "rows are [[drafter]]")
    for key, value in table.items():
        if key not in _TYPES:
            near = difflib.get_close_matches(key, _TYPES, n=1, cutoff=0.0)[0]
            raise wrong(f"unknown key {key!r}", f"did you mean {near}?")
        if type(value) is not _TYPES[key]:
            raise wrong(f"{key} is {value!r}", f"{key} is a {_TYPES[key].__name__}")
    missing = [key for key in _NEEDED if not table.get(key)]
    if missing:
        raise wrong(f"{', '.join(missing)} missing", f"each row has {', '.join(_NEEDED)}")
    for key, known in (("kind", KINDS), ("pays", PAYS)):
        if key in table and table[key] not in known:
            raise wrong(f"{key} is {table[key]!r}", f"one of {', '.join(known)}")
    if not _REPO.fullmatch(table["repo"]):
        raise wrong(f"repo is {table['repo']!r}", "a repository is owner/name")
    return Row(**table)
