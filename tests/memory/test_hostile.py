"""Damaged headers cost an error message, or are counted, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import parse
from tests.memory.mutants import MODELS

N = 2400


def test_the_undamaged_headers_are_read() -> None:
    assert all(parse(MemorySource(header)).arch for header, _ in MODELS)


def test_thousands_of_damaged_headers_are_survived_in_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.mutants", str(N)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["counted"] + found["refused"] == N
    assert found["counted"] > N // 4
    assert found["refused"] > N // 4
    assert found["peak_kib"] < 300 * 1024
