"""Every pair of the tiny family, both ways, and why each of the others is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse, read_model
from gguf_spec.pairing import ROLE_TYPES, Pair, check_pair, offers
from gguf_spec.siblings import HEAD_TYPES
from tests.drafters.heads import rewrite
from tests.gguf_writer import Gguf, model

MODELS = Path(__file__).parent / "models"
FAMILY = ("target", "mtp", "trunk", "draft", "othervocab-draft", "eagle3", "dflash", "dspark",
          "head")  # fmt: skip
#: target -> what drafts for it, by type. All other pairs of the family are refused. The heads were
#: made for tiny-target; tiny-mtp has its width, layers and tokenizer, and no header tells more.
USABLE = {
    "target": {"target": "draft-simple", "mtp": "draft-simple", "trunk": "draft-simple",
               "draft": "draft-simple", "eagle3": "draft-eagle3", "dflash": "draft-dflash",
               "dspark": "draft-dspark"},
    "mtp": {"target": "draft-simple", "mtp": "draft-simple", "trunk": "draft-simple",
            "draft": "draft-simple", "eagle3": "draft-eagle3", "dflash": "draft-dflash",
            "dspark": "draft-dspark", "head": "draft-mtp"},
    "draft": {"target": "draft-simple", "mtp": "draft-simple", "trunk": "draft-simple",
              "draft": "draft-simple"},
    "othervocab-draft": {"othervocab-draft": "draft-simple"},
}  # fmt: skip
USABLE["trunk"] = USABLE["mtp"]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelInfo]:
    """Headers by name; ``trunk`` and ``head`` are the two parts of tiny-mtp."""
    folder, source = tmp_path_factory.mktemp("family"), MODELS / "tiny-mtp.gguf"
    keys = {"qwen35.nextn_predict_layers": None, "qwen35.block_count": 4}
    trunk = tuple(f"blk.{i}." for i in range(4))
    rewrite(source, folder / "trunk.gguf", lambda n: not n.startswith("blk.4."), changed=keys)
    rewrite(source, folder / "head.gguf", lambda n: not n.startswith(trunk))
    paths = {name: MODELS / f"tiny-{name}.gguf" for name in FAMILY}
    paths |= {name: folder / f"{name}.gguf" for name in ("trunk", "head")}
    return {name: read_model(path) for name, path in paths.items()}


@pytest.mark.parametrize("target", FAMILY)
@pytest.mark.parametrize("draft", FAMILY)
def test_pairs_of_the_tiny_family(family: dict[str, ModelInfo], target: str, draft: str) -> None:
    pair = check_pair(family[target], family[draft])
    wanted = USABLE.get(target, {}).get(draft)
    assert pair.usable == (wanted is not None), pair.reason
    if wanted is not None:
        assert pair.type == wanted
        assert pair.hint == ""
        return
    assert pair.hint, "a refusal says what would work"
    assert "\n" not in pair.reason + pair.hint
    if family[target].role != "target":
        assert "no target" in pair.reason
        assert "first" in pair.hint
    else:
        assert pair.type == ROLE_TYPES[family[draft].role]


@pytest.mark.parametrize(
    ("target", "draft", "reason", "hint"),
    [
        ("draft", "eagle3", "layer 3 is wanted, the target has 2 layers",
         "made for states of 192 values, layers 1, 2, 3, tokenizer c03360b33b5c913e"),
        ("draft", "dflash", "layer 3 is wanted, the target has 2 layers",
         "take a draft-dflash file made for tiny-draft"),
        ("target", "head", "last hidden state of qwen3 models",
         "draft-eagle3, draft-dflash, draft-dspark can draft for qwen3 models"),
        ("target", "othervocab-draft", "target 1024 tokens, draft 896",
         "--set spec.translate=true"),
        ("mtp", "othervocab-draft", "token 263 differs", "draft-mtp and n-grams need no file"),
        ("othervocab-draft", "dspark", "layer 3 is wanted", "n-grams need no file"),
    ],
)  # fmt: skip
def test_refusals_name_both_values_and_the_way_out(
    family: dict[str, ModelInfo], target: str, draft: str, reason: str, hint: str
) -> None:
    pair = check_pair(family[target], family[draft])
    assert reason in pair.reason
    assert hint in pair.hint


def info(gguf: Gguf) -> ModelInfo:
    return parse(MemorySource(gguf.build(), "made-up.gguf"))


@pytest.mark.parametrize(
    ("arch", "inputs", "mtp"),
    [
        ("llama", "file", "no"),
        ("qwen3", "file", "no"),
        ("qwen35", "file", "file"),
        ("glm4moe", "no", "file"),
        ("gemma3", "no", "no"),
        ("gpt-oss", "file", "no"),
    ],
)
def test_what_a_target_can_have_is_told_by_its_architecture(
    arch: str, inputs: str, mtp: str
) -> None:
    told = {offer.type: offer for offer in offers(info(model(arch=arch)))}
    assert list(told) == ["draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash",
                          "draft-dspark"]  # fmt: skip
    assert {kind: told[kind].how for kind in HEAD_TYPES} == {
        "draft-mtp": mtp,
        "draft-eagle3": inputs,
        "draft-dflash": inputs,
        "draft-dspark": inputs,
    }
    assert all(offer.reason for offer in told.values())
    assert arch in told["draft-eagle3"].reason or inputs == "file"


def test_a_target_with_its_own_head_offers_it_and_a_drafter_offers_nothing(
    family: dict[str, ModelInfo],
) -> None:
    told = {offer.type: offer.how for offer in offers(family["mtp"])}
    assert told["draft-mtp"] == "alone"
    assert {offer.how for offer in offers(family["trunk"]) if offer.type == "draft-mtp"} == {"file"}
    assert offers(family["head"]) == offers(family["eagle3"]) == ()


@pytest.mark.parametrize(
    ("gguf", "role", "hint"),
    [
        (model(arch="clip"), "mmproj", "reads images"),
        (model().key("general.type", "str", "adapter"), "adapter", "target.lora"),
        (Gguf().key("general.type", "str", "imatrix").tensor("x", [4]), "imatrix", "quantizing"),
        (model(arch="controlvector"), "controlvector", "not available"),
    ],
)
def test_files_that_are_no_drafters(gguf: Gguf, role: str, hint: str) -> None:
    pair = check_pair(info(model()), info(gguf))
    assert pair == Pair(False, None, f"{info(gguf).name} is no drafter: its role is {role}")
    assert hint in pair.hint
