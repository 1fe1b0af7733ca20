"""Records of measurements that take minutes: begun, gone on with, and written after every part."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gguf_spec.bench.document import described, machine, model_facts, settings, versions
from gguf_spec.bench.records import check_folder
from gguf_spec.errors import GgufSpecError, InputError
from gguf_spec.interrupts import ended_in_order
from gguf_spec.session import Session
from gguf_spec.user_files import check_replaceable, read_whole, write_whole

_LARGEST = 1 << 27

_SAME = ("format", "version", "versions", "machine", "model", "settings", "n_predict", "n_rounds")


def begin(
    what: str, session: Session, resume: Path | None, n_predict: int, n_rounds: int
) -> dict[str, Any]:
    """A record of ``what`` without results, or the one at ``resume`` that is gone on with.

    Raises:
        InputError: that one cannot be read, or is of another model, machine or setting.
    """
    record: dict[str, Any] = {
        "format": f"gguf-spec {what}",
        "version": 1,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join([f"scripts/{Path(sys.argv[0]).name}", *described(sys.argv[1:])]),
        "complete": False,
        "versions": versions(session),
        "machine": machine(),
        "model": model_facts(session, lambda done, size: None),
        "settings": settings(session),
        "n_predict": n_predict,
        "n_rounds": n_rounds,
        "peers": [],
        "results": [],
    }
    if resume is None:
        return record
    try:
        before = json.loads(read_whole(resume, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{resume}: cannot be gone on with: {error}") from None
    if not isinstance(before, dict) or not isinstance(before.get("results"), list):
        raise InputError(f"{resume}: cannot be gone on with: it is no record")
    changed = [key for key in _SAME if before.get(key) != record[key]]
    if changed:
        raise InputError(f"{resume}: cannot be gone on with, these differ: {', '.join(changed)}")
    return before


def count(least: int, most: int = 1_000_000) -> Callable[[str], int]:
    """What argparse turns a whole number from ``least`` to ``most`` into one with."""

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return value

    return parsed


def new_path(folder: Path, what: str, session: Session) -> Path:
    """A name of now for a record of the session's model, which no other record has."""
    stem = f"{what}-{session.setup.path.stem.lower()}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    return path


def write(path: Path, record: Mapping[str, Any], tables: str) -> None:
    """The record and its tables, each whole or not at all. Raises InputError."""
    write_file(path, json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(path.with_suffix(".md"), tables)


def check_file(path: Path) -> None:
    """See whether ``path`` can be written, before anything is measured. Raises InputError."""
    try:
        check_replaceable(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    check_folder(path.resolve().parent)


def write_file(path: Path, text: str) -> None:
    """All of ``text``, or what was there before is there still. Raises InputError."""
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def run_main(measure: Callable[[], int]) -> int:
    """The exit code of ``measure``, errors told as ``gguf-spec`` tells them."""
    with ended_in_order():
        try:
            return measure()
        except KeyboardInterrupt:
            print("\ninterrupted: what is finished is kept", file=sys.stderr)
            return 130
        except GgufSpecError as error:
            print(*filter(None, (f"error: {error.message}", error.hint)), sep="\n", file=sys.stderr)
            return error.exit_code
