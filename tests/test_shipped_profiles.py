"""The profiles that come with the program: they load, say what they need, and are packaged."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from gguf_spec.draft_choice import AVAILABLE_TYPES
from gguf_spec.profile import DRAFT_TYPES, find_profiles, load_profile
from gguf_spec.profile_find import shipped_folder
from gguf_spec.refs import parse_ref
from tests.cli.conftest import MODELS, Cli, cli

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "profiles").glob("*.toml"))
REAL = [path for path in SHIPPED if path.stem != "demo"]
__all__ = ["cli"]  # a fixture


def test_there_is_one_for_each_kind_of_drafter() -> None:
    assert shipped_folder() == ROOT / "profiles"
    types = {kind for path in REAL for kind in load_profile(path).spec.types}
    assert types >= set(DRAFT_TYPES)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_loads_and_is_found_by_its_name(path: Path) -> None:
    profile = load_profile(path)
    assert profile.description
    assert profile.target.model
    assert set(profile.spec.types) <= set(AVAILABLE_TYPES)
    assert load_profile(path.stem, search=[path.parent]) == profile
    assert path.stem in {found.name for found in find_profiles(search=[path.parent])}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_each_says_where_its_files_come_from_and_why_it_drafts_so(path: Path) -> None:
    text, profile = path.read_text(encoding="utf-8"), load_profile(path)
    head = text[: text.index("description")]
    assert "hf download " in head
    assert re.search(r"\d GB", head)
    assert "Why this drafting: " in head
    refs = [profile.target.model]
    for kind in profile.spec.types:
        table = getattr(profile.spec, kind.replace("-", "_"))
        if kind in DRAFT_TYPES and table.model is not None:
            refs.append(table.model)
    for ref in refs:
        assert ref is not None
        found = parse_ref(ref)
        where = found.name if found.kind == "hf" else Path(found.name).name
        assert where in head, "the source is in the comment"
    assert all(len(line) <= 100 for line in text.splitlines())


def test_they_are_in_the_wheel() -> None:
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"profiles": "gguf_spec/shipped_profiles"}
    assert "/profiles" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_without_its_files_the_error_says_how_to_get_them(
    path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    result = cli("run", str(path), "-p", "a")
    assert result.code == 3
    assert f"hf download {parse_ref(str(load_profile(path).target.model)).name}" in result.err
    assert "-m/--model FILE" in result.err
    if load_profile(path).spec.types[-1] != "draft-mtp" or "assistant" in path.stem:
        target = str(MODELS / "tiny-target.gguf")
        draft = cli("run", str(path), "-m", target, "-p", "a")
        assert draft.code == 3
        assert "-d " in draft.err.splitlines()[-1]
        assert "--spec-type ngram-simple" in draft.err.splitlines()[-1]


def test_local_files_take_the_place_of_a_profile_s(cli: Cli) -> None:
    target, head = str(MODELS / "tiny-target.gguf"), str(MODELS / "tiny-eagle3.gguf")
    result = cli("run", str(ROOT / "profiles" / "qwen3-8b-eagle3.toml"), "-m", target, "-d", head,
                 "-p", "def f", "-n", "8", "-t", "1", "-c", "256", "--json")  # fmt: skip
    assert result.json["spec"]["types"] == ["ngram-mod", "draft-eagle3"]
    assert result.json["spec"]["drafts"][0]["ref"] == head
