"""Which base and which drafting suit a machine and a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.header import read_model
from gguf_spec.profile import load_profile
from gguf_spec.profile_class import CLASSES, base_for, drafting_for
from gguf_spec.profile_find import shipped_folder
from tests.headers.files import whole

GIB = 1 << 30


@pytest.mark.parametrize(
    ("gib", "base"),
    [
        (0, "base-cpu"),
        (2, "base-8gb"),
        (7.7, "base-8gb"),
        (11.0, "base-8gb"),
        (11.6, "base-12gb"),
        (15.7, "base-16gb"),
        (20.0, "base-16gb"),
        (23.5, "base-24gb"),
        (31.8, "base-32gb"),
        (2 * 23.6, "base-48gb"),
        (141, "base-48gb"),
    ],
)
def test_the_class_of_a_machine(gib: float, base: str) -> None:
    assert base_for(int(gib * GIB)) == base


def test_every_class_has_its_profile() -> None:
    for base in (*(f"base-{size}gb" for size in CLASSES), "base-mac", "base-cpu"):
        assert load_profile(base, search=[shipped_folder()]).target.model is None
    assert base_for(12 * GIB, apple=True) == "base-mac"


@pytest.mark.parametrize(
    ("name", "speed", "types"),
    [
        ("llama-3.1-8b-q4_k_m", 300.0, ("ngram-mod",)),
        ("qwen3.6-27b-mtp-q4_k_m", 300.0, ("ngram-mod", "draft-mtp")),
        ("qwen3.6-27b-mtp-q4_k_m", None, ("ngram-mod", "draft-mtp")),
        ("qwen3.6-35b-a3b-mtp-q4_k_xl", 101.0, ("none",)),
        ("qwen3.6-35b-a3b-mtp-q4_k_xl", 40.0, ("ngram-mod", "draft-mtp")),
        ("gpt-oss-20b-mxfp4", 200.0, ("none",)),
        ("gpt-oss-20b-mxfp4", None, ("ngram-mod",)),
    ],
)
def test_drafting_that_suits_a_model(
    name: str, speed: float | None, types: tuple[str, ...], tmp_path: Path
) -> None:
    found, why = drafting_for(read_model(whole(name, tmp_path)), ("ngram-mod",), speed)
    assert found == types
    assert why
