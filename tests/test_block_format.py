"""DFlash and DSpark files: what their headers say, and which fit a target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.block_format import MOST_CHAINED, BlockFormat, block_format, block_problem
from gguf_spec.errors import PairError
from gguf_spec.header import ModelInfo, TensorInfo, read_header
from gguf_spec.pairing import check_pair
from gguf_spec.profile import Profile
from gguf_spec.setup import prepare
from tests.conftest import MODELS

TARGET = read_header(MODELS / "tiny-target.gguf")
DFLASH = read_header(MODELS / "tiny-dflash.gguf")
DSPARK = read_header(MODELS / "tiny-dspark.gguf")


def with_keys(info: ModelInfo, drop: str = "", **changes: Any) -> ModelInfo:
    """``info`` with other values in its header, and without one tensor."""
    metadata = {**info.metadata, **{f"dflash.{k}": v for k, v in changes.items()}}
    metadata = {k: v for k, v in metadata.items() if v is not None}
    tensors = tuple(tensor for tensor in info.tensors if tensor.name != drop)
    return replace(info, metadata=metadata, tensors=tensors)


def with_tensor(info: ModelInfo, name: str, shape: tuple[int, ...]) -> ModelInfo:
    tensor = replace(info.tensors[0], name=name, shape=shape)
    assert isinstance(tensor, TensorInfo)
    return replace(info, tensors=(*info.tensors, tensor))


def test_what_the_files_say() -> None:
    assert block_format(DFLASH) == BlockFormat(8, 3)
    assert block_format(DSPARK) == BlockFormat(8, 3, from_anchor=True, markov=True, confidence=True)
    assert block_format(DFLASH).n_max == 7
    assert block_format(DSPARK).n_max == 8
    assert block_format(DFLASH).spec_type == "draft-dflash"
    assert block_format(DSPARK).spec_type == "draft-dspark"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"block_size": None}, {"block_size": 16}),
        ({"attention.causal": True}, {"causal": True}),
        ({"attention.causal": "true"}, {"causal": True}),
        ({"attention.causal": False}, {"causal": False}),
        ({"attention.causal": 1}, {"causal": False}),  # llama.cpp compares with the word "true"
        ({"sample_from_anchor": False}, {"from_anchor": False}),
        ({"sample_from_anchor": None}, {"from_anchor": True}),
        ({"has_confidence_head": None}, {"confidence": True}),
        ({"has_confidence_head": False}, {"confidence": False}),
        ({"drop": "conf_proj.weight"}, {"confidence": False}),
        ({"drop": "markov_w1.weight"}, {"markov": False, "from_anchor": False}),
        ({"selector_top_k": 4}, {"selector": 0}),
    ],
)
def test_keys_and_their_defaults(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    form = block_format(with_keys(DSPARK, **changes))
    assert {name: getattr(form, name) for name in expected} == expected


def test_a_chain_is_no_longer_than_its_graph() -> None:
    assert BlockFormat(100, 3, markov=True, from_anchor=True).n_max == MOST_CHAINED
    assert BlockFormat(100, 3).n_max == 99


def test_when_states_are_read() -> None:
    assert not BlockFormat(8, 3).reads_states(0.5)
    assert not BlockFormat(8, 3, markov=True).reads_states(0.0)
    assert BlockFormat(8, 3, markov=True).reads_states(0.5)
    assert BlockFormat(8, 3, selector=4).reads_states(0.0)


@pytest.mark.parametrize("head", [DFLASH, DSPARK])
def test_the_heads_fit_their_target(head: ModelInfo) -> None:
    assert block_problem(TARGET, head) is None
    pair = check_pair(TARGET, head)
    assert (pair.usable, pair.type) == (True, block_format(head).spec_type)


@pytest.mark.parametrize(
    ("target", "head", "problem"),
    [
        (TARGET, replace(DFLASH, arrays={}), "names no layers"),
        (replace(TARGET, arch="gemma3"), DFLASH, "layer inputs of gemma3"),
        (replace(TARGET, n_layer=3), DFLASH, "output of the last layer of qwen3"),
        (replace(TARGET, n_embd=256), DFLASH, "target 256, head 192"),
        (TARGET, with_keys(DFLASH, **{"hyper_connection.count": 4}), "DeepSeek-V4"),
        (TARGET, with_keys(DSPARK, block_size=None), "how large its blocks are"),
        (TARGET, with_keys(DFLASH, block_size=1), "hold no draft"),
        (TARGET, with_keys(DFLASH, block_size=0), "hold no draft"),
        (TARGET, with_keys(DFLASH, **{"attention.value_length": 32}), "keys of 64 values"),
        (TARGET, with_keys(DFLASH, selector_top_k=4), "no selector"),
        (replace(TARGET, vocab_size=1030), DFLASH, "target 1030, head 1024"),
        (
            TARGET,
            with_tensor(with_keys(DSPARK, selector_top_k=4), "selector_hidden.weight", (192, 8)),
            "both a Markov head and a selector",
        ),
    ],
)
def test_heads_that_do_not_fit(target: ModelInfo, head: ModelInfo, problem: str) -> None:
    assert problem in (block_problem(target, head) or "")


def test_a_head_without_a_mask_token() -> None:
    key = "tokenizer.ggml.mask_token_id"
    for mask in (None, 5000):
        metadata = {**DFLASH.metadata, key: mask}
        head = replace(DFLASH, metadata={k: v for k, v in metadata.items() if v is not None})
        assert "no mask token" in (block_problem(TARGET, head) or "")


def test_a_head_with_embeddings_of_its_own_may_have_another_vocabulary() -> None:
    """As far as libllama is concerned: the tokens are compared elsewhere."""
    head = with_tensor(DFLASH, "token_embd.weight", (192, 1024))
    assert block_problem(replace(TARGET, vocab_size=1030), head) is None


@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "iq4_nl"])
def test_quantized_caches_are_refused(kind: str) -> None:
    for form in (block_format(DFLASH), block_format(DSPARK)):
        assert "type_k" in (form.settings_problem(0.0, type_k=kind) or "")
        assert "type_v" in (form.settings_problem(0.0, type_v=kind) or "")
        assert form.settings_problem(0.5, "bf16", "f32") is None
    assert BlockFormat(8, 3, markov=True).settings_problem(0.0) is None


def spec(**settings: Any) -> Profile:
    return Profile.model_validate(
        {
            "target": {"model": str(MODELS / "tiny-target.gguf")},
            "spec": {
                "types": ("draft-dspark",),
                "draft-dspark": {"model": str(MODELS / "tiny-dspark.gguf"), **settings},
            },
        }
    )


def test_setting_up_a_head() -> None:
    setup = prepare(spec(n_max=20, p_min=0.5))
    (draft,) = setup.drafts
    assert draft.form == block_format(DSPARK)
    assert draft.layers == (1, 2, 3)
    assert setup.ceilings == (8,)
    assert prepare(spec()).ceilings == (3,)
    with pytest.raises(PairError, match="type_v q8_0"):
        prepare(spec(type_v="q8_0"))


def test_setting_up_a_head_of_another_kind(tmp_path: Path) -> None:
    profile = spec(model=str(MODELS / "tiny-dflash.gguf"))
    with pytest.raises(PairError, match="draft-dflash"):
        prepare(profile)
