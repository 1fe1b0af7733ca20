"""Profile files as text: reading TOML, finding lines, and saying what is wrong where.

``tomllib`` keeps no line numbers, so :func:`key_lines` walks the text a second time. It is used for
messages only and on text that ``tomllib`` has accepted, which lets it stay small: it need not
recognise wrong TOML.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from gguf_spec.errors import ProfileError
from gguf_spec.profile_find import is_file
from gguf_spec.profile_schema import Profile
from gguf_spec.profile_values import SHORT_TYPES, nearest_name

MAX_BYTES = 2**20
#: Tables nest three deep in the schema; only chat.template may go on, within reason.
MAX_DEPTH = 32

KeyPath = tuple[str, ...]
_TOO_LARGE = "a number has more than 64 bits"
_toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


# ---------------------------------------------------------------------------- reading


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; every failure is a ValueError whose message may end in "(at line N, …)"."""
    try:
        data: dict[str, Any] = _toml.loads(text)
    except RecursionError:
        raise ValueError("arrays or tables are nested too deeply") from None
    except ValueError as error:
        if isinstance(error, _toml.TOMLDecodeError) or "digits" not in str(error):
            raise
        raise ValueError(_TOO_LARGE) from None  # more digits than Python converts
    _check_values(data)
    return data


def _check_values(data: object) -> None:
    """Refuse what later code should not have to fear: deep nesting, and huge hexadecimal numbers.

    Goes level by level: recursion could overflow before the answer is known.
    """
    depth, level = 0, [data]
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"tables are nested more than {MAX_DEPTH} deep")
        children: list[object] = []
        for item in level:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list):
                children.extend(item)
            elif isinstance(item, int) and not -(2**63) <= item < 2**64:
                raise ValueError(_TOO_LARGE)
        depth, level = depth + 1, children


def read_profile_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Read one file and return (text, parsed). Raises ProfileError with file and line."""
    shown = show_path(path)
    try:
        if path.is_dir():
            raise ProfileError(
                f"{shown} is a folder, not a profile", hint="name a .toml file in it"
            )
        if path.exists() and not is_file(path):
            raise ProfileError(f"{shown} is not a regular file", hint="name a .toml file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ProfileError(f"{shown}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProfileError(f"{shown}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise ProfileError(f"{shown} is larger than {MAX_BYTES} bytes and so not a profile")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(f"{shown}:{line}: is not UTF-8 text") from None
    try:
        return text, parse_toml(text)
    except ValueError as error:
        raise ProfileError(_syntax_message(shown, text, str(error))) from None


def _syntax_message(shown: str, text: str, message: str) -> str:
    """Move the parser's "(at line 3, column 5)" to where editors look for it."""
    match = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)", message)
    if match is None:
        return f"{shown}: {message}"
    line = match[1] or str(text.rstrip().count("\n") + 1)
    return f"{shown}:{line}: {message[: match.start()]}"


def show_path(path: Path) -> str:
    """Shorten a path below the working folder to what the user would type."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


# ------------------------------------------------------------------------------ lines


def key_lines(text: str) -> dict[KeyPath, int]:
    """Map every key and table of a TOML text to the line (from 1) where it is first written."""
    return _LineScanner(text).scan()


class _LineScanner:
    """Walks tables, keys and values; values are only skipped, inline tables are entered."""

    _blank = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
    _space = re.compile(r"[ \t]*")
    _bare = re.compile(r"[A-Za-z0-9_-]+")
    _plain = re.compile(r"[^,\]}#\n]*")
    _string = re.compile(
        r'"""(?:[^\\]|\\.)*?"{3,5}(?!")'
        r"|'''.*?'{3,5}(?!')"
        r'|"(?:[^"\\\n]|\\.)*"'
        r"|'[^'\n]*'",
        re.DOTALL,
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self._line, self._counted = 1, 0

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while True:
            self._skip(self._blank)
            start = self.at
            if self._take("["):
                self._take("[")
                table = self._key(())
                while self._take("]"):
                    pass
            elif self.at < len(self.text):
                self._pair(table)
            if self.at == start:  # the end (or not TOML: better no line than a loop)
                return self.lines

    def _pair(self, table: KeyPath) -> None:
        path = self._key(table)
        if self._take("="):
            self._value(path)

    def _key(self, prefix: KeyPath) -> KeyPath:
        """Read a dotted key and note the line of each of its parts."""
        while True:
            self._skip(self._space)
            if quoted := self._skip(self._string):
                part = next(iter(parse_toml(f"{quoted} = 0")), "")
            else:
                part = self._skip(self._bare)
            prefix = (*prefix, part)
            self.lines.setdefault(prefix, self._line_here())
            self._skip(self._space)
            if not self._take("."):
                return prefix

    def _value(self, path: KeyPath) -> None:
        self._skip(self._space)
        if self._take("{"):
            self._items(path, "}")
        elif self._take("["):
            self._items(path, "]")
        elif not self._skip(self._string):
            self._skip(self._plain)

    def _items(self, path: KeyPath, end: str) -> None:
        while True:
            self._skip(self._blank)
            start = self.at
            if self._take(end):
                return
            if end == "}":
                self._pair(path)
            else:
                self._value(path)
            self._skip(self._blank)
            self._take(",")
            if self.at == start:
                return

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""

    def _take(self, char: str) -> bool:
        found = self.text.startswith(char, self.at)
        self.at += len(char) if found else 0
        return found

    def _line_here(self) -> int:
        """Count only the text since the last call, so that a scan stays linear."""
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


# --------------------------------------------------------------------------- problems


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the key, and a sentence about it (which names the key)."""

    path: KeyPath
    text: str

    def in_file(self, shown: str, lines: Mapping[KeyPath, int]) -> str:
        """Say it with file and line; a key that was not written has the line of its table."""
        path = self.path
        while path and path not in lines:
            path = path[:-1]
        where = f"{shown}:{lines[path]}" if path else shown
        return f"{where}: {self.text}"


def table_fields(path: KeyPath) -> dict[str, FieldInfo]:
    """List the keys of one table (by the name used in TOML); empty for anything else."""
    model: type[BaseModel] = Profile
    for part in path:
        field = _keys(model).get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return {}
        model = annotation
    return _keys(model)


def _keys(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def find_problems(raw: Mapping[str, Any]) -> list[Problem]:
    """Validate one file's tables and return every problem, in the order of the schema."""
    try:
        Profile.model_validate(raw)
    except ValidationError as error:
        return [_problem(dict(item)) for item in error.errors(include_url=False)]
    return []


def _problem(error: dict[str, Any]) -> Problem:
    loc = error["loc"]
    while loc and isinstance(loc[-1], int):  # an element of an array: speak of the array
        loc = loc[:-1]
    path = tuple(str(part) for part in loc)
    if error["type"] == "extra_forbidden":
        return Problem(path, _unknown_key(path, error["input"]))
    if error["type"] == "model_type":
        return Problem(path, f"[{'.'.join(path)}] must be a table, got {_short(error['input'])}")
    table, key = path[:-1], path[-1] if path else ""
    cause = error.get("ctx", {}).get("error")
    message = str(cause) if cause is not None else _plain_words(str(error["msg"]))
    place = _in_table(table)
    got = "" if "got " in message else f", got {_short(error['input'])}"
    if message.startswith(("must ", "needs ", "gives ")):
        return Problem(path, f"`{key}`{place} {message}{got}")
    return Problem(path, f"`{key}`{place}: {message}")


def _plain_words(message: str) -> str:
    """Say it in the words of a profile rather than in those of pydantic."""
    message = re.sub(r"^(Input|String|Value) should ", "must ", message)
    for old, new in (
        ("a valid integer", "a whole number"),
        ("a valid number", "a number"),
        ("a valid string", "a text in quotes"),
        ("a valid boolean", "true or false"),
        ("a valid dictionary", "a table"),
        ("greater than or equal to", "at least"),
        ("less than or equal to", "at most"),
        ("have at least 1 character", "not be empty"),
    ):
        message = message.replace(old, new)
    return message


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 60 else text[:57] + "…"


#: Names from elsewhere (llama.cpp's options, other programs) and the key that means the same.
_KEY_ALIASES: dict[str, str] = {
    **{short: name for short, name in SHORT_TYPES.items() if short != "draft"},
    "ctx_size": "n_ctx",
    "context": "n_ctx",
    "context_length": "n_ctx",
    "num_ctx": "n_ctx",
    "ngl": "n_gpu_layers",
    "gpu_layers": "n_gpu_layers",
    "num_gpu": "n_gpu_layers",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "threads": "n_threads",
    "threads_batch": "n_threads_batch",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "ctk": "type_k",
    "ctv": "type_v",
    "mmap": "use_mmap",
    "mlock": "use_mlock",
    "device": "devices",
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "penalty_freq": "frequency_penalty",
    "penalty_present": "presence_penalty",
    "draft_max": "n_max",
    "draft_min": "n_min",
    "draft_p_min": "p_min",
}


def _unknown_key(path: KeyPath, value: object) -> str:
    """Name the key that was meant: spelled alike here, the same in another table, or nearest."""
    table, key = path[:-1], path[-1]
    what = "table" if isinstance(value, dict) and len(path) < 3 else "key"
    unknown = f"unknown {what} `{key[:60]}`{_in_table(table)}"
    known = list(table_fields(table))
    plain = key.lower().replace("-", "_")
    meant = _KEY_ALIASES.get(plain, plain)
    for candidate in (meant, meant.replace("_", "-")):
        if candidate in known:
            return f"{unknown}; did you mean `{candidate}`?"
    alike = difflib.get_close_matches(key[:100], known, n=1, cutoff=0.75)
    elsewhere = [other for other in _all_tables() if meant in table_fields(other)]
    if elsewhere and not alike:
        home = f"[{'.'.join(elsewhere[0])}]" if elsewhere[0] else "the top of the file"
        return f"{unknown}; did you mean `{meant}` in {home}?"
    return f"{unknown}; did you mean `{alike[0] if alike else nearest_name(key, known)}`?"


def _all_tables() -> list[KeyPath]:
    tables: list[KeyPath] = [()]
    for path in tables:  # grows while it is walked, one level at a time
        tables.extend((*path, key) for key in table_fields(path) if table_fields((*path, key)))
    return tables


def _in_table(table: KeyPath) -> str:
    return f" in [{'.'.join(table)}]" if table else ""
