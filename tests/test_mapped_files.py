"""Files that change under a session are noticed before libllama reads their pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_spec.errors import InputError
from gguf_spec.profile import Profile
from gguf_spec.session import Session
from gguf_spec.setup import prepare

MODELS = Path(__file__).parent / "models"


def session(folder: Path, *, mapped: bool = True) -> Session:
    """The tiny target and its draft model, copied into ``folder``."""
    for name in ("target", "draft"):
        shutil.copy(MODELS / f"tiny-{name}.gguf", folder / f"{name}.gguf")
    target = {"model": str(folder / "target.gguf"), "n_ctx": 64, "n_threads": 1}
    spec = {"draft": {"model": str(folder / "draft.gguf")}, "control": False}
    profile = Profile.model_validate({"target": {**target, "use_mmap": mapped}, "spec": spec})
    return Session(prepare(profile))


def answer(session: Session) -> list[int]:
    generation = session.generate(session.raw_prompt("def read("), session.params(max_tokens=3))
    for _ in generation:
        pass
    return generation.tokens


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    data, then = path.read_bytes(), path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(then, then + 1))  # clocks of file systems may be coarse


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("name", ["target", "draft"])
@pytest.mark.parametrize("change", [cut, rewrite, append])
def test_a_file_that_was_written_to_is_refused(
    tmp_path: Path, change: Callable[[Path], None], name: str
) -> None:
    path = tmp_path / f"{name}.gguf"
    with session(tmp_path) as loaded:
        assert answer(loaded)
        before = path.stat().st_size
        change(path)
        with pytest.raises(InputError, match="has changed since it was loaded") as caught:
            answer(loaded)
    for text in (str(path), str(before), str(path.stat().st_size)):
        assert text in caught.value.message


def test_another_file_of_that_name_changes_nothing(tmp_path: Path) -> None:
    with session(tmp_path) as loaded:
        assert answer(loaded)
        (tmp_path / "new").write_bytes(b"GGUF")
        os.replace(tmp_path / "new", tmp_path / "target.gguf")
        (tmp_path / "draft.gguf").unlink()
        assert answer(loaded)


def test_what_was_read_into_memory_may_change(tmp_path: Path) -> None:
    with session(tmp_path, mapped=False) as loaded:
        assert answer(loaded)
        rewrite(tmp_path / "target.gguf")
        assert answer(loaded)
