"""``gguf-spec profiles new``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gguf_spec.backend import Device
from gguf_spec.cli.new_profile import Machine, profile_text, wanted, write_profile
from gguf_spec.errors import InputError, ProfileError
from gguf_spec.profile import load_profile
from gguf_spec.setup import DraftSetup, default_threads, prepare
from tests.cli.conftest import DRAFT, OTHER_VOCABULARY, TARGET, Cli

GIB = 2**30


def test_demo(cli: Cli, tmp_path: Path) -> None:
    result = cli("profiles", "new", "mine")
    file = tmp_path / "home/profiles/mine.toml"
    assert result.code == 0
    assert result.out == f"{file}\n"
    assert result.err == ""
    profile = load_profile("mine")
    assert profile.target.model == "demo"
    assert profile.target.n_threads == default_threads()
    assert profile.spec.types == ("ngram-simple",)
    assert not profile.sampling.model_fields_set
    text = file.read_text(encoding="utf-8")
    assert "RAM" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert cli("profiles", "check", "mine").code == 0


def test_with_models(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(TARGET).parent)
    target, draft = Path(TARGET).name, Path(DRAFT).name
    result = cli("profiles", "new", "mine", "--model", target, "--draft", draft, "--json")
    assert result.code == 0
    assert "both models are here, fit each other and can be loaded" in result.err
    assert result.json["model"] == TARGET
    assert result.json["spec_types"] == ["ngram-simple", "draft-simple"]
    monkeypatch.chdir("/")
    record = cli("run", "mine", "-p", "hello", "-n", "5", "--json").json
    assert record["model"]["ref"] == TARGET
    assert record["model"]["n_ctx"] == 2048
    assert record["spec"]["types"] == ["ngram-simple", "draft-simple"]


def test_a_path(cli: Cli) -> None:
    assert cli("profiles", "new", "here.toml", "--model", TARGET).code == 0
    assert cli("profiles", "new", "some/folder/there.toml").code == 0
    assert cli("run", "here.toml", "-p", "a", "-n", "1").code == 0
    assert load_profile("some/folder/there.toml").target.model == "demo"


def test_nothing_is_overwritten_unless_asked(cli: Cli) -> None:
    Path("mine.toml").write_text("mine", encoding="utf-8")
    result = cli("profiles", "new", "./mine.toml")
    assert result.code == 3
    assert (
        result.err == "error: mine.toml is there already\nhint: choose another name, or --force\n"
    )
    assert Path("mine.toml").read_text(encoding="utf-8") == "mine"
    assert cli("profiles", "new", "./mine.toml", "--force").code == 0
    assert cli("profiles", "check", "./mine.toml").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "gone.gguf"], "no such file: "),
        (["--model", "text.gguf"], "text.gguf"),
        (["--model", "hf:owner/nothing"], "owner/nothing"),
        (["--model", "foo:bar"], "foo:"),
        (["--model", TARGET, "--draft", OTHER_VOCABULARY], "cannot draft"),
        (["--model", TARGET, "--draft", f"mtp={DRAFT}"], "for draft-simple, not for draft-mtp"),
    ],
)
def test_models_that_cannot_be_used(cli: Cli, arguments: list[str], said: str) -> None:
    Path("text.gguf").write_text("text", encoding="utf-8")
    result = cli("profiles", "new", "mine", *arguments)
    assert result.code == 3
    assert said in result.err
    assert not Path("home/profiles/mine.toml").exists()


def test_files_that_cannot_be_written(cli: Cli) -> None:
    Path("file").touch()
    Path("folder.toml").mkdir()
    assert cli("profiles", "new", "file/mine.toml").code == 3
    assert cli("profiles", "new", "folder.toml", "--force").code == 3


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # POSIX
    mine = tmp_path / "mine.toml"
    mine.write_text("mine", encoding="utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    try:
        for path, force in ((tmp_path / "new.toml", False), (mine, True)):
            with pytest.raises(InputError, match="cannot be written: File too large"):
                write_profile(path, 'description = "new"', force=force)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.glob("*.toml*")] == ["mine.toml"]
    assert mine.read_text(encoding="utf-8") == "mine"


def test_names_that_mean_something_else_are_said(cli: Cli) -> None:
    assert "no longer the profile that came along" in cli("profiles", "new", "demo").err
    Path("profiles").mkdir()
    Path("profiles/mine.toml").touch()
    assert "is found before" in cli("profiles", "new", "mine").err


def machine(*free: int) -> Machine:
    gpus = (Device(f"CUDA{i}", "A \x1b card\n", "gpu", 24 * GIB, n) for i, n in enumerate(free))
    return Machine(4, 32 * GIB, 16 * GIB, tuple(gpus))


@pytest.mark.parametrize(
    ("free", "weights", "draft", "expected"),
    [
        ((), 90, 0, "auto"),
        ((20,), 10, 5, "auto"),
        ((10, 10), 10, 5, "auto"),
        ((20,), 15, 5, "some"),
        ((1,), 900, 0, 0),
        ((1,), 10, 5, 0),
    ],
)
def test_layers_on_gpus(
    tmp_path: Path, free: tuple[int, ...], weights: int, draft: int, expected: object
) -> None:
    profile = wanted(TARGET, DRAFT if draft else None)
    setup = prepare(profile)
    target = dataclasses.replace(setup.target, file_bytes=weights * GIB)
    drafts: tuple[DraftSetup, ...] = tuple(
        dataclasses.replace(one, info=dataclasses.replace(one.info, file_bytes=draft * GIB))
        for one in setup.drafts
    )
    setup = dataclasses.replace(setup, target=target, drafts=drafts)
    text = profile_text("mine", profile, setup, machine(*(n * GIB for n in free)))
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    layers = load_profile(file).target.n_gpu_layers
    if expected == "some":
        assert isinstance(layers, int)
        assert 0 < layers <= (target.n_layer or 0)
    else:
        assert layers == expected
    assert ("CUDA0: A \\x1b card, 24.0 GiB" in text) == bool(free)


def test_a_model_with_a_strange_name(cli: Cli) -> None:
    name = 'a "b" \\ c\n#d.gguf'
    Path(name).write_bytes(Path(TARGET).read_bytes())
    assert cli("profiles", "new", "mine", "--model", name).code == 0
    assert load_profile("mine").target.model == str(Path(name).absolute())
    with pytest.raises(ProfileError):
        load_profile("other")
