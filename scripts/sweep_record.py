"""Records of measurements that take minutes: begun, gone on with, and written after every part."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gguf_spec.bench.document import described, machine, model_facts, settings, versions
from gguf_spec.errors import GgufSpecError
from gguf_spec.session import Session

_SAME = ("format", "version", "versions", "machine", "model", "settings", "n_predict", "n_rounds")


def begin(
    what: str, session: Session, resume: Path | None, n_predict: int, n_rounds: int
) -> dict[str, Any]:
    """A record of ``what`` without results, or the one at ``resume`` that is gone on with.

    Raises:
        SystemExit: that one cannot be read, or is of another model, machine or setting.
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
        before: dict[str, Any] = json.loads(resume.read_text(encoding="utf-8"))
        changed = [key for key in _SAME if before.get(key) != record[key]]
    except (OSError, ValueError, AttributeError) as error:
        sys.exit(f"{resume}: cannot be gone on with: {error}")
    if changed:
        sys.exit(f"{resume}: cannot be gone on with, these differ: {', '.join(changed)}")
    return before


def new_path(folder: Path, what: str, session: Session) -> Path:
    """A name of now for a record of the session's model."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{what}-{session.setup.path.stem.lower()}-{datetime.now():%Y%m%d-%H%M%S}.json"


def write(path: Path, record: Mapping[str, Any], tables: str) -> None:
    """The record and its tables, each whole or not at all."""
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    for name, content in ((path, text), (path.with_suffix(".md"), tables)):
        temporary = name.with_name(f".{name.name}.tmp")
        temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, name)


def run_main(measure: Callable[[], int]) -> int:
    """The exit code of ``measure``, errors told as ``gguf-spec`` tells them."""
    try:
        return measure()
    except KeyboardInterrupt:
        print("\ninterrupted: what is finished is kept", file=sys.stderr)
        return 130
    except GgufSpecError as error:
        print(error.message, error.hint or "", sep="\n", file=sys.stderr)
        return error.exit_code
