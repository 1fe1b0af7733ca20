"""The profiles that come with the program: they load, say what they need, and are packaged."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from gguf_spec.draft_choice import AVAILABLE_TYPES
from gguf_spec.profile import DRAFT_TYPES, Profile, find_profiles, load_profile
from gguf_spec.profile_find import shipped_folder
from gguf_spec.refs import parse_ref
from tests.cli.conftest import MODELS, Cli, cli

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[1]
SHIPPED = sorted((ROOT / "profiles").glob("*.toml"))
BASES = [path for path in SHIPPED if path.stem.startswith("base-")]
REAL = [path for path in SHIPPED if path.stem != "demo" and path not in BASES]
__all__ = ["cli"]  # a fixture


def _draft_files(profile: Profile) -> list[str]:
    """References to drafts in files of their own."""
    tables = {kind: getattr(profile.spec, kind.replace("-", "_")) for kind in profile.spec.types
              if kind in DRAFT_TYPES}  # fmt: skip
    return [table.model for table in tables.values() if table.model is not None]


def test_there_is_one_for_each_kind_of_drafter() -> None:
    assert shipped_folder() == ROOT / "profiles"
    types = {kind for path in REAL for kind in load_profile(path).spec.types}
    assert types >= set(DRAFT_TYPES)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_loads_and_is_found_by_its_name(path: Path) -> None:
    profile = load_profile(path)
    assert profile.description
    assert (profile.target.model is None) == (path in BASES)
    assert set(profile.spec.types) <= {*AVAILABLE_TYPES, "none", "auto"}
    assert load_profile(path.stem, search=[path.parent]) == profile
    assert path.stem in {found.name for found in find_profiles(search=[path.parent])}


def test_check_finds_nothing_in_any(cli: Cli) -> None:
    result = cli("profiles", "check", *map(str, SHIPPED))
    assert result.code == 0
    assert result.out.splitlines() == [f"{path}: ok" for path in SHIPPED]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_each_says_where_its_files_come_from_and_why_it_drafts_so(path: Path) -> None:
    text, profile = path.read_text(encoding="utf-8"), load_profile(path)
    head = text[: text.index("description")]
    assert "hf download " in head
    assert re.search(r"\d GB", head)
    assert (
        "Why no drafting: " if profile.spec.types == ("none",) else "Why this drafting: "
    ) in head
    for ref in (profile.target.model, *_draft_files(profile)):
        assert ref is not None
        found = parse_ref(ref)
        where = found.name if found.kind == "hf" else Path(found.name).name
        assert where in head, "the source is in the comment"
    assert all(len(line) <= 100 for line in text.splitlines())


def test_each_extends_the_base_of_its_class() -> None:
    used = {toml.loads(path.read_text(encoding="utf-8")).get("extends") for path in REAL}
    assert used - {"qwen3.6-35b-a3b-8gb"} == {path.stem for path in BASES}


def test_a_base_can_be_extended_from_anywhere(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "base-16gb"\n[target]\nmodel = "m.gguf"\n', encoding="utf-8")
    profile = load_profile(mine)
    assert (profile.target.n_ctx, profile.target.type_k) == (16384, "q8_0")
    assert profile.spec.types == ("ngram-mod",)


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
    if _draft_files(load_profile(path)):
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
