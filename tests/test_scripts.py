"""What the scripts that measure do with what cannot be measured or written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gguf_spec.errors import InputError
from gguf_spec.session import Session
from scripts.sweep_record import new_path, write

ROOT = Path(__file__).parents[1]
TARGET = str(ROOT / "tests" / "models" / "tiny-target.gguf")
posix = pytest.mark.skipif(os.name != "posix", reason="named pipes")


def script(name: str, *arguments: str, folder: Path) -> tuple[int, str]:
    """The exit code, and what was said of errors."""
    command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), TARGET, "-t", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "code", "message"),
    [
        ("bench_sweep", ("-n", "1"), 2, "from 2 to"),
        ("bench_sweep", ("--repeat", "x"), 2, "no whole number"),
        ("bench_sweep", ("--workload", "echo", "--workload", "ecko"), 2, "did you mean 'echo'"),
        ("bench_sweep", ("--workload", "a/p.txt", "--workload", "b/p.txt"), 2, "two workloads"),
        ("bench_sweep", ("-o", "a/p.txt"), 3, "cannot be written"),
        ("bench_sweep", ("-c", "300", "--resume", "a/p.txt"), 3, "cannot be gone on with"),
        ("bench_pool", ("--peer", sys.executable, "-n", "0"), 2, "from 2 to"),
        ("bench_pool", ("--peer", sys.executable, "--repeat", "0"), 2, "from 1 to"),
        ("bench_pool", ("--peer", sys.executable, "-o", "a/p.txt"), 3, "cannot be written"),
        ("check_control", ("--only", "nothing"), 2, "no part has that in its name"),
        ("check_control", ("--pairs", "0"), 2, "from 1 to"),
        ("check_control", ("--tokens", "5000"), 2, "to 4000"),
        ("check_control", ("-o", "a"), 3, "a: cannot be written"),
    ],
)
def test_bad_input(
    tmp_path: Path, name: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """It is told before anything is measured."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.txt").write_text("x y z")
    found, said = script(name, *arguments, folder=tmp_path)
    assert found == code
    assert message in said


@posix
@pytest.mark.parametrize(("name", "option"), [("check_control", "-o"), ("bench_sweep", "--resume")])
def test_a_pipe_is_neither_read_nor_replaced(tmp_path: Path, name: str, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, said = script(name, option, "pipe", folder=tmp_path)
    assert code == 3
    assert "not a regular file" in said
    assert (tmp_path / "pipe").is_fifo()


def test_a_workload_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("x y z x y z")
    more = ("--workload", "./p.txt", "-n", "2", "--repeat", "2", "-c", "128", "-o", "kept")
    assert script("bench_sweep", *more, folder=tmp_path) == (0, "")
    (path,) = (tmp_path / "kept").glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["complete"]
    assert [one["workload"] for one in record["results"]] == ["p.txt"]


def test_names_of_records_are_not_taken_again(tmp_path: Path) -> None:
    """Also within a second."""
    session = cast("Session", SimpleNamespace(setup=SimpleNamespace(path=Path("M.gguf"))))
    names = set()
    for _ in range(5):
        path = new_path(tmp_path, "sweep", session)
        write(path, {"a": 1}, "tables")
        names.add(path.name)
    assert len(names) == 5
    assert len(list(tmp_path.iterdir())) == 10


def test_a_record_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.json"
    write(path, {"a": 1}, "tables")

    def full(source: object, goal: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write(path, {"a": 2}, "others")
    assert json.loads(path.read_text()) == {"a": 1}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["r.json", "r.md"]
