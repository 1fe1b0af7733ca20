"""Files that cannot be used as target or draft: exit 3, both values, and what would work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import DRAFT, MODELS, OTHER_VOCABULARY, TARGET, Cli, Result
from tests.drafters.heads import rewrite
from tests.gguf_writer import Gguf, model

MTP, EAGLE3 = str(MODELS / "tiny-mtp.gguf"), str(MODELS / "tiny-eagle3.gguf")
DFLASH, DSPARK = str(MODELS / "tiny-dflash.gguf"), str(MODELS / "tiny-dspark.gguf")
Make = Callable[[Path], Path]


def written(gguf: Gguf) -> Make:
    def make(path: Path) -> Path:
        path.write_bytes(gguf.build())
        return path

    return make


def mtp_only(path: Path) -> Path:
    trunk = tuple(f"blk.{i}." for i in range(4))
    return rewrite(Path(MTP), path, lambda name: not name.startswith(trunk))


def lacks_a_layer(path: Path) -> Path:
    return rewrite(Path(EAGLE3), path, lambda name: True,
                   changed={"eagle3.target_layers": [1, 2, 9]})  # fmt: skip


def other_width(path: Path) -> Path:
    return rewrite(Path(EAGLE3), path, lambda name: True,
                   changed={"eagle3.target_hidden_size": 256})  # fmt: skip


LORA = Gguf().key("general.architecture", "str", "qwen3").key("general.type", "str", "adapter")
MMPROJ = Gguf().key("general.architecture", "str", "clip").tensor("v.blk.0.weight", [64])
IMATRIX = Gguf().key("general.type", "str", "imatrix").tensor("blk.0.x.in_sum2", [64])
VOCAB = Gguf().key("general.architecture", "str", "qwen3").array("tokenizer.ggml.tokens", "str", [])
#: file -> (what the error calls it, what its hint says)
NO_MODELS: dict[str, tuple[Make, str, str]] = {
    "mmproj": (written(MMPROJ), "projector", "language model"),
    "adapter": (written(LORA.tensor("x.lora_a", [4])), "LoRA adapter", "target.lora"),
    "imatrix": (written(IMATRIX), "importance matrix", "llama-quantize"),
    "controlvector": (written(model(arch="controlvector")), "control vector", "a model"),
    "vocabulary": (written(VOCAB), "no tensors", "a model"),
    "assistant-of-a-fork": (
        written(model(arch="gemma4_assistant")), "gemma4_assistant", "gemma4-assistant"),
    "dflash-of-a-fork": (
        written(model(arch="gemma4-dflash-draft")), "gemma4-dflash-draft", "dflash"),
}  # fmt: skip
HEADS: dict[str, Make] = {
    "draft-mtp": mtp_only,
    "draft-eagle3": lambda path: Path(shutil.copy(EAGLE3, path)),
    "draft-dflash": lambda path: Path(shutil.copy(DFLASH, path)),
    "draft-dspark": lambda path: Path(shutil.copy(DSPARK, path)),
    "assistant": written(model(arch="gemma4-assistant")),
}


def refused(result: Result, *words: str) -> None:
    """Exit 3 with ``words`` on two lines, and nothing on stdout."""
    assert result.code == 3, result.err
    assert result.out == ""
    error, hint = result.err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    for word in words:
        assert word in f"{error}\n{hint}"


@pytest.mark.parametrize("kind", NO_MODELS)
def test_files_that_are_no_models(kind: str, cli: Cli, tmp_path: Path) -> None:
    make, what, instead = NO_MODELS[kind]
    file = str(make(tmp_path / f"{kind}.gguf"))
    refused(cli("run", file, "-p", "a"), f"{kind}.gguf", what, instead)
    refused(cli("run", TARGET, "-d", file, "-p", "a"), f"{kind}.gguf", what, instead)
    assert cli("inspect", file).code == 0


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_is_no_target(kind: str, cli: Cli, tmp_path: Path) -> None:
    """libllama ends the process with SIGSEGV on a file that holds the MTP block alone."""
    file = str(HEADS[kind](tmp_path / "head.gguf"))
    refused(cli("run", file, "-p", "a"), kind, "cannot generate text", "-d/--draft")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((DRAFT, "-d", EAGLE3), ("layer 3", "2 layers", "draft-eagle3 file made for")),
        ((DRAFT, "-d", DFLASH), ("layer 3", "2 layers", "draft-dflash file made for")),
        ((DRAFT, "-d", DSPARK), ("layer 3", "2 layers", "draft-dspark file made for")),
        ((TARGET, "-d", OTHER_VOCABULARY), ("1024", "896", "--set spec.translate=true")),
        ((TARGET, "--spec-type", "draft-mtp"), ("no MTP head", "draft-eagle3")),
        ((TARGET, "--spec-type", "draft-mtp", "-d", EAGLE3), ("for draft-eagle3", "draft-mtp")),
        ((TARGET, "--spec-type", "draft-mtp", "-d", MTP), ("for draft-simple", "draft-mtp")),
        ((TARGET, "-d", f"mtp={EAGLE3}"), ("for draft-eagle3, not for draft-mtp",
                                           f"-d draft-eagle3={EAGLE3}")),
        ((TARGET, "-d", f"dspark={DFLASH}"), ("for draft-dflash, not for draft-dspark",)),
        ((TARGET, "-d", DFLASH, "--set", "spec.draft.type_k=q8_0"), ("type_k q8_0", "f16")),
        ((TARGET, "-d", DSPARK, "--set", "spec.draft.type_v=q4_0"), ("type_v q4_0", "f16")),
    ],
    ids=lambda value: "-".join(Path(part).stem for part in value if part[0] != "-"),
)  # fmt: skip
def test_drafts_that_do_not_fit(
    arguments: tuple[str, ...], words: tuple[str, ...], cli: Cli
) -> None:
    refused(cli("run", *arguments, "-p", "a", "-t", "1"), *words)


@pytest.mark.parametrize(
    ("make", "target", "words"),
    [
        (lacks_a_layer, TARGET, ("layer 9", "4 layers", "made for states of 192 values")),
        (other_width, TARGET, ("target 192", "made for 256", "draft-eagle3 file made for")),
        (mtp_only, TARGET, ("qwen3 models", "draft-eagle3", "draft-simple")),
    ],
)
def test_heads_of_other_targets(
    make: Make, target: str, words: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    file = str(make(tmp_path / "head.gguf"))
    refused(cli("run", target, "-d", file, "-p", "a"), *words)
    told = cli("inspect", target, file)
    assert told.code == 0
    assert "can it draft? no: " in told.out
    assert "\nhint: " in told.out


def test_a_sibling_is_said_on_stderr_and_listed_by_inspect(cli: Cli, tmp_path: Path) -> None:
    target = shutil.copy(TARGET, tmp_path / "tiny.gguf")
    shutil.copy(EAGLE3, tmp_path / "eagle3-tiny.gguf")
    (tmp_path / "dflash-tiny.gguf").write_bytes(b"nothing")
    run = ("run", str(target), "-p", "def f", "-n", "8", "-t", "1", "--temp", "0")
    said = "drafting with eagle3-tiny.gguf beside the model (draft-eagle3)\n"
    loud, quiet = cli(*run), cli(*run, "--quiet")
    assert (loud.err, quiet.err) == (said, "")
    assert loud.out == quiet.out != ""
    document = cli(*run, "--json")
    assert document.err == said
    assert document.json["spec"]["drafts"][0]["ref"].endswith("eagle3-tiny.gguf")
    refused(cli(*run, "--spec-type", "draft-dflash"), "dflash-tiny.gguf: is not a GGUF file",
            "dflash- in its name")  # fmt: skip
    record = cli("inspect", str(target), "--json").json
    assert [(Path(one["path"]).name, one["type"], one["usable"]) for one in record["sidecars"]] == [
        ("dflash-tiny.gguf", None, False),
        ("eagle3-tiny.gguf", "draft-eagle3", True),
    ]
    assert record["draft_types"]["draft-eagle3"][0] == "file"
    assert record["made_for"] is None
    text = cli("inspect", str(target)).out
    assert "eagle3-tiny.gguf  yes, as draft-eagle3" in text
    assert "dflash-tiny.gguf  no: is not a GGUF file" in text
    head = cli("inspect", EAGLE3, "--json").json
    assert head["made_for"] == {
        "type": "draft-eagle3",
        "target": "states of 192 values, layers 1, 2, 3, tokenizer c03360b33b5c913e",
    }
