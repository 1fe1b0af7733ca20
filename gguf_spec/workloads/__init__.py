"""What is decoded to measure speed: prompts with their settings, shipped or of the user's own.

A workload is a TOML file in ``sets/``, or a text file, which is one prompt. ``{{name}}`` in a text
stands for ``texts/name.txt``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf_spec.errors import InputError, PromptError, UsageError
from gguf_spec.profile_text import parse_toml
from gguf_spec.profile_values import brief, nearest_name
from gguf_spec.user_files import read_whole

if TYPE_CHECKING:
    from importlib.abc import Traversable

DEFAULT_MAX_TOKENS = 128
MAX_BYTES = 1 << 22
_MOST_TOKENS = 1 << 20
_TEXT = re.compile(r"\{\{([a-z-]+)\}\}")
_TYPES: dict[str, tuple[type, ...]] = {
    "description": (str,),
    "system": (str,),
    "temperature": (int, float),
    "seed": (int,),
    "max_tokens": (int,),
    "turns": (list,),
    "predict": (str,),
}
_KINDS: dict[tuple[type, ...], str] = {
    (str,): "a text",
    (int,): "a whole number",
    (int, float): "a number",
    (list,): "an array of texts",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """One conversation: what the user says in each turn, and how it is answered.

    ``max_tokens`` is of each answer, ``predict`` is the answer that is expected of the last turn.
    ``shipped`` ones are a part of the program.
    """

    name: str
    turns: tuple[str, ...]
    description: str = ""
    system: str = ""
    temperature: float = 0.0
    seed: int = 1
    max_tokens: int = DEFAULT_MAX_TOKENS
    predict: str = ""
    shipped: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 over all that is decoded: records of equal digests are of the same work."""
        fields = asdict(self)
        for name in ("name", "description", "shipped"):
            del fields[name]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def shipped_names() -> tuple[str, ...]:
    """The workloads that come with the program, in alphabetical order."""
    found = (item.name for item in _folder("sets").iterdir())
    return tuple(sorted(name[:-5] for name in found if name.endswith(".toml")))


def find_workload(where: str) -> Workload:
    """The shipped workload of that name, or the one in that file.

    Raises:
        UsageError: there is neither.
        InputError: the file cannot be read, is not UTF-8, or is no workload.
        PromptError: the file is empty.
    """
    names = shipped_names()
    if where in names:
        text = (_folder("sets") / f"{where}.toml").read_text(encoding="utf-8")
        return _from_toml(where, where, text, shipped=True)
    path = Path(os.path.expanduser(where))  # where ~ means nothing it stays as it is
    if not os.path.exists(path):
        raise UsageError(
            f"there is no workload and no file named {where!r}; did you mean "
            f"{nearest_name(where, names)!r}?",
            hint=f"workloads: {', '.join(names)}; or a text file with a prompt",
        )
    text = _read(path, where)
    if path.suffix == ".toml":
        return _from_toml(path.stem, where, text, shipped=False)
    return Workload(path.name, (text,), f"the prompt in {path.name}")


def _read(path: Path, where: str) -> str:
    try:
        data = read_whole(path, MAX_BYTES, pipes=True)
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: is not UTF-8 text (byte {error.start} of {len(data)})",
            hint="convert it, for instance with iconv",
        ) from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text.strip():
        raise PromptError(f"{where}: the prompt is empty", hint="write the prompt into the file")
    return text


def _from_toml(name: str, where: str, text: str, *, shipped: bool) -> Workload:
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    _check(raw, where)
    fill = _filled if shipped else str
    return Workload(
        name,
        tuple(fill(turn).strip("\n") for turn in raw["turns"]),
        raw.get("description", ""),
        raw.get("system", ""),
        float(raw.get("temperature", 0.0)),
        raw.get("seed", 1),
        raw.get("max_tokens", DEFAULT_MAX_TOKENS),
        fill(raw.get("predict", "")),
        shipped,
    )


def _check(raw: dict[str, Any], where: str) -> None:
    """Raises InputError for what is no workload."""
    for key, value in raw.items():
        if key not in _TYPES:
            meant = nearest_name(key, tuple(_TYPES))
            raise InputError(f"{where}: unknown key `{key}`; did you mean `{meant}`?")
        if isinstance(value, bool) or not isinstance(value, _TYPES[key]):
            raise InputError(f"{where}: `{key}` must be {_KINDS[_TYPES[key]]}, got {brief(value)}")
    turns = raw.get("turns", [])
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise InputError(
            f"{where}: `turns` must be a list of texts, none of them empty",
            hint='turns = ["what the user says first", "and then"]',
        )
    tokens, temperature = raw.get("max_tokens", 1), raw.get("temperature", 0.0)
    if not 1 <= tokens <= _MOST_TOKENS:
        raise InputError(f"{where}: `max_tokens` is {tokens}: from 1 to {_MOST_TOKENS}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise InputError(f"{where}: `temperature` is {temperature}: from 0 up")
    if not 0 <= raw.get("seed", 1) < 2**32:
        raise InputError(f"{where}: `seed` is {raw['seed']}: from 0 to {2**32 - 1}")


def _filled(text: str) -> str:
    def content(match: re.Match[str]) -> str:
        path = _folder("texts") / f"{match[1]}.txt"
        return path.read_text(encoding="utf-8").strip("\n")

    return _TEXT.sub(content, text)


def _folder(name: str) -> Traversable:
    return files(__package__) / name
