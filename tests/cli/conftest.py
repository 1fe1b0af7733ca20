"""A command line in this process, and one in a process of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.cli.app import run_cli

MODELS = Path(__file__).parent.parent / "models"
TARGET = str(MODELS / "tiny-target.gguf")
DRAFT = str(MODELS / "tiny-draft.gguf")
OTHER_VOCABULARY = str(MODELS / "tiny-othervocab-draft.gguf")


@dataclass(frozen=True)
class Result:
    """What a command line gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No profile and no setting of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path / "home"))


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli("run", …, stdin="text")`` in this process; without stdin there is none."""

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with open(os.devnull, encoding="utf-8") as null:
            source = null if data is None else io.TextIOWrapper(io.BytesIO(data), "utf-8")
            monkeypatch.setattr(sys, "stdin", source)
            capfd.readouterr()
            code = run_cli(arguments)
            captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def tiny(cli: Cli) -> Cli:
    """``tiny(…)`` runs the tiny target on one thread, greedily unless it is told otherwise, and
    drafts as much as it may: what a controller does depends on how fast the machine is."""

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return cli("run", TARGET, "-t", "1", "--temp", "0", "--fixed", *arguments, stdin=stdin)

    return call


@pytest.fixture
def verify(cli: Cli) -> Cli:
    """``verify(…)`` examines the tiny target on one thread."""

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        where = () if "-m" in arguments else (TARGET,)
        return cli("verify", *where, "-t", "1", *arguments, stdin=stdin)

    return call


def spawn(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """``gguf-spec`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gguf_spec", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        **options,
    )
