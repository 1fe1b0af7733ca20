"""What ``verify`` found, remembered for the conditions under which it was found.

The arithmetic of a context depends on the model, the program that computes, the device, the numbers
of threads, the types of the cache and how attention and weights are laid out. All of these make the
name of a record, so that a record is found exactly when nothing of it has changed. The depths that
were measured are in the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gguf_spec.errors import InputError
from gguf_spec.widths import WidthResult

_VERSION = 1
_SAMPLE = 1 << 20
_LARGEST = 1 << 22  # bytes of a record that are read


def file_identity(files: Sequence[str | Path]) -> list[list[Any]]:
    """What tells the contents of model files apart without reading all of them: the size, and a
    digest of the first and the last mebibyte.

    Raises:
        InputError: a file cannot be read.
    """
    identity: list[list[Any]] = []
    for file in files:
        try:
            with open(file, "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                digest = hashlib.sha256(stream.read(_SAMPLE))
                stream.seek(max(size - _SAMPLE, 0))
                digest.update(stream.read(_SAMPLE))
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}") from error
        identity.append([size, digest.hexdigest()])
    return identity


def record_path(folder: Path, conditions: Mapping[str, Any]) -> Path:
    """The file for these ``conditions``, which JSON can hold."""
    text = json.dumps([_VERSION, conditions], sort_keys=True)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def load_record(path: Path) -> dict[str, Any]:
    """The record at ``path``; empty if there is none, or none that can be understood: it is made
    again then."""
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_LARGEST))
        widths_of(record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def widths_of(record: Mapping[str, Any]) -> list[WidthResult]:
    """The comparisons in a record. Raises TypeError, KeyError or ValueError for a damaged one."""
    return [WidthResult.from_record(width) for width in record.get("widths", [])]


def merged_widths(old: Sequence[WidthResult], new: Sequence[WidthResult]) -> list[WidthResult]:
    """Both, the newer result where both have one."""
    by_place = {(result.depth, result.width): result for result in [*old, *new]}
    return [by_place[place] for place in sorted(by_place)]


def replace_json(path: Path, record: Mapping[str, Any]) -> None:
    """Replace the file at ``path``; a reader sees the old one or the new one.

    Raises:
        InputError: it cannot be written.
    """
    name = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            name = file.name
            json.dump(record, file)
        os.replace(name, path)
    except OSError as error:
        if name is not None:
            with suppress(OSError):
                os.unlink(name)
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
