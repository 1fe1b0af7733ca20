"""``gguf-spec profiles new``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.cli.new_profile import Machine, profile_text, settled, wanted, write_profile
from gguf_spec.devices import Device
from gguf_spec.errors import InputError, ProfileError
from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.plan_machine import Limits, sized_machine
from gguf_spec.planning.offers import chosen
from gguf_spec.planning.types import Rung, Wish
from gguf_spec.profile import Profile, apply_values, load_profile
from gguf_spec.setup import Setup, default_threads, prepare
from tests.cli.conftest import DRAFT, MODELS, OTHER_VOCABULARY, TARGET, Cli
from tests.headers.files import whole

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
    assert profile.target.n_ctx == 4096
    assert profile.spec.types == load_profile(Machine.here().base).spec.types
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
    types = [*load_profile(Machine.here().base).spec.types, "draft-simple"]
    assert result.json["spec_types"] == types
    monkeypatch.chdir("/")
    record = cli("run", "mine", "-p", "hello", "-n", "5", "--json").json
    assert record["model"]["ref"] == TARGET
    assert record["model"]["n_ctx"] == 2048
    assert record["spec"]["types"] == types


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


def machine(*sizes: int) -> Machine:
    """A machine whose GPUs have so many GiB."""
    gpus = [
        Device(f"CUDA{i}", "A \x1b card\n", "CUDA", "gpu", size * GIB, size * GIB)
        for i, size in enumerate(sizes)
    ]
    return Machine(4, 32 * GIB, 16 * GIB, tuple(gpus), ("Old card",))


def planned(name: str, vram: int, folder: Path) -> tuple[Profile, Setup, str]:
    """A profile for the model ``name`` on a GPU with ``vram`` GiB, as ``new`` settles it."""
    profile = wanted(str(whole(name, folder)), None, machine(vram).base)
    setup = prepare(profile)
    wish = Wish(MemoryParams(0), n_ctx=profile.target.n_ctx)
    described = sized_machine(Limits((vram * GIB,), 64 * GIB))
    gpus = tuple(replace(gpu, bandwidth=900 * 10**9, share=0.75) for gpu in described.gpus)
    described = replace(described, gpus=gpus)
    setup = replace(setup, plan=plan([Rung(name, setup.target)], described, wish))
    return settled(profile, setup, chosen=False)


@pytest.mark.parametrize(
    ("name", "vram", "base", "types", "said"),
    [
        ("smollm3-3b-q4_k_m", 8, "base-8gb", ("ngram-mod",), "All layers: "),
        ("smollm3-3b-q4_k_m", 48, "base-48gb", ("ngram-mod",), "All layers: "),
        ("llama-3.1-8b-q8_0", 8, "base-8gb", ("ngram-mod",), "of 33 layers: "),
        ("gpt-oss-20b-mxfp4", 24, "base-24gb", ("none",), "No drafts: with 32 experts"),
    ],
)
def test_it_is_planned_for_the_machine(
    tmp_path: Path, name: str, vram: int, base: str, types: tuple[str, ...], said: str
) -> None:
    profile, setup, why = planned(name, vram, tmp_path)
    text = profile_text("mine", profile, setup, machine(vram), why)
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    loaded = load_profile(file)
    assert f'extends = "{base}"' in text
    assert loaded.spec.types == types
    assert loaded.target.type_k == load_profile(base).target.type_k
    assert said in text
    assert "CUDA0: A \\x1b card, " in text
    assert "Old card: this llama-cpp-python cannot use it" in text
    # A path is as long as it is.
    assert max(len(line) for line in text.splitlines() if " = " not in line) <= 100


def test_a_draft_without_memory_is_left_out(tmp_path: Path) -> None:
    name = "qwen3.6-27b-mtp-q4_k_m"
    profile = wanted(str(whole(name, tmp_path)), None, "base-16gb")
    setup = prepare(profile)
    target = Rung(name, setup.target)
    offers = chosen(target, [], ("ngram-mod", "draft-mtp"))
    made = plan([target], sized_machine(Limits((16 * GIB,), 64 * GIB)),
                Wish(MemoryParams(0), n_ctx=32768), offers, one=False)  # fmt: skip
    setup = replace(setup, plan=made)
    profile, setup, why = settled(profile, setup, chosen=True)
    text = profile_text("mine", profile, setup, machine(16), why)
    assert profile.spec.types == ("ngram-mod",)
    assert "draft-mtp is left out: it needs at least" in " ".join(text.split("\n# "))
    assert "N-grams draft from the text so far" in text


def test_each_draft_has_its_own_facts(cli: Cli, tmp_path: Path) -> None:
    heads = {kind: str(MODELS / f"tiny-{kind}.gguf") for kind in ("eagle3", "draft")}
    profile = apply_values(
        wanted(TARGET, None, "base-cpu"),
        {
            "spec.types": ["draft-eagle3", "draft-simple"],
            "spec.draft-eagle3.model": heads["eagle3"],
            "spec.draft-simple.model": heads["draft"],
        },
    )
    setup = prepare(profile)
    text = profile_text("mine", profile, setup, machine())
    eagle3, simple = text.split("[spec.draft-")[1:]
    assert eagle3.startswith("eagle3]\n# eagle3 ")
    assert simple.startswith("simple]\n# qwen3 ")


def test_the_head_in_the_model_s_own_file_drafts(cli: Cli) -> None:
    result = cli("profiles", "new", "mine", "-m", str(MODELS / "tiny-mtp.gguf"), "--json")
    assert result.code == 0
    assert result.json["spec_types"][-1] == "draft-mtp"
    assert "own MTP layer" in Path("home/profiles/mine.toml").read_text(encoding="utf-8")


def test_a_model_with_a_strange_name(cli: Cli) -> None:
    name = 'a "b" \\ c\n#d.gguf'
    Path(name).write_bytes(Path(TARGET).read_bytes())
    assert cli("profiles", "new", "mine", "--model", name).code == 0
    assert load_profile("mine").target.model == str(Path(name).absolute())
    with pytest.raises(ProfileError):
        load_profile("other")
