"""Files of measurements: a new name for each, written whole or not at all, and read defensively."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gguf_spec.bench.document import FORMAT, VERSION, cleaned
from gguf_spec.errors import InputError
from gguf_spec.user_files import read_whole

_LARGEST = 1 << 27
_MOST_NAMES = 1000
_PARTS: dict[str, type] = {
    "model": dict,
    "machine": dict,
    "versions": dict,
    "settings": dict,
    "setups": list,
    "workloads": list,
    "overall": list,
    "comparisons": list,
    "theory": list,
    "runs": list,
}


def check_folder(folder: Path) -> None:
    """Make ``folder`` and see whether files can be made in it, before anything is measured.

    Raises:
        InputError: they cannot.
    """
    probe = folder / f".{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        with suppress(OSError):
            probe.unlink()
        raise _cannot_write(folder, error) from error


def write_record(
    folder: Path, record: Mapping[str, Any], beside: Mapping[str, str] | None = None
) -> Path:
    """Write ``record`` under a new name in ``folder``; ``beside`` are files of the same name with
    other endings (".md": text).

    Raises:
        InputError: it cannot be written. Nothing is left of it, and no other file has changed.
    """
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    path = _new_name(folder, _stem(record), list(beside or ()))
    made: list[Path] = []
    try:
        for name, content in (
            (path, text),
            *((path.with_suffix(e), t) for e, t in (beside or {}).items()),
        ):
            made.append(name)
            _write(name, content)
    except BaseException as error:
        for name in (path, *made):
            with suppress(OSError):
                name.unlink()
        if isinstance(error, OSError):
            raise _cannot_write(path, error) from error
        raise
    return path


def read_record(path: Path) -> dict[str, Any]:
    """The record at ``path``.

    Raises:
        InputError: there is none that can be read.
    """
    try:
        data = read_whole(path, _LARGEST, pipes=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        record = cleaned(json.loads(data, parse_float=_finite, parse_constant=_finite))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: is no record of gguf-spec bench, or was cut or changed: it is no JSON "
            f"({_reason(error)})"
        ) from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path}: is no record of gguf-spec bench")
    if type(record.get("version")) is not int or record["version"] != VERSION:
        raise InputError(
            f"{path}: has version {record.get('version')!r} of the format, this program reads "
            f"{VERSION}"
        )
    wrong = [name for name, kind in _PARTS.items() if not isinstance(record.get(name), kind)]
    if wrong:
        raise InputError(f"{path}: is damaged: {', '.join(wrong)} cannot be understood")
    return record


def _reason(error: ValueError | RecursionError) -> str:
    """Why a text is no JSON, in a few words."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is no text"
    return "too deep" if isinstance(error, RecursionError) else "a number is none"


def _finite(text: str) -> float:
    """A number of a record. Raises ValueError for one that is none, which JSON does not know."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _stem(record: Mapping[str, Any]) -> str:
    name = Path(record["model"]["files"][0]["file"]).stem.lower()
    name = re.sub(r"[^a-z0-9._-]+", "-", name)[:60]
    return f"bench-{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _new_name(folder: Path, stem: str, endings: Sequence[str]) -> Path:
    """A name that nobody has yet, made now so that nobody else takes it."""
    for number in range(1, _MOST_NAMES):
        path = folder / (f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        if any(path.with_suffix(ending).exists() for ending in endings):
            continue
        try:
            path.open("xb").close()
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_write(path, error) from error
        return path
    raise InputError(f"{folder}: there are {_MOST_NAMES} records named {stem} already")


def _write(path: Path, text: str) -> None:
    """Write the file whole: whoever reads it sees all of it or what was there before."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError(
        f"{path}: cannot be written: {error.strerror}",
        hint="-o another folder; earlier records are as they were",
    )
