from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse, read_header
from gguf_spec.pairing import AVAILABLE_DRAFT_TYPES, Pair, check_pair
from tests.gguf_writer import Gguf, model

MODELS = Path(__file__).parent / "models"
TOKENS = [f"t{i}" for i in range(300)]


def info_of(gguf: Gguf) -> ModelInfo:
    return parse(MemorySource(gguf.build(), "made-up.gguf"))


def pair(target: Gguf, draft: Gguf) -> Pair:
    return check_pair(info_of(target), info_of(draft))


def with_tokens(tokens: list[str], **options: Any) -> Gguf:
    return model(tokens=tokens, **options)


def test_the_tiny_draft_fits_the_tiny_target() -> None:
    result = check_pair(
        read_header(MODELS / "tiny-target.gguf"), read_header(MODELS / "tiny-draft.gguf")
    )
    assert (result.usable, result.type) == (True, "draft-simple")
    assert "1024" in result.reason


def test_the_draft_with_another_vocabulary_is_refused_by_its_first_token() -> None:
    target = read_header(MODELS / "tiny-target.gguf")
    draft = read_header(MODELS / "tiny-othervocab-draft.gguf")
    result = check_pair(target, draft)
    assert (result.usable, result.type) == (False, "draft-simple")
    assert "token 263 differs: target 'ĠĠĠĠĠĠĠĠ', draft 'ĊĠĠĠĠ'" in result.reason
    assert "target 1024 tokens, draft 896" in result.reason


@pytest.mark.parametrize(("more", "usable"), [(0, True), (128, True), (129, False)])
def test_sizes_may_differ_by_128(more: int, usable: bool) -> None:
    longer = [*TOKENS, *(f"pad{i}" for i in range(more))]
    for target, draft in ((TOKENS, longer), (longer, TOKENS)):
        result = pair(with_tokens(target), with_tokens(draft))
        assert result.usable is usable
        assert usable or "differ by 129 tokens, at most 128" in result.reason


@pytest.mark.parametrize(("token", "usable"), [(0, True), (4, True), (5, False), (299, False)])
def test_token_texts_count_from_5(token: int, usable: bool) -> None:
    changed = list(TOKENS)
    changed[token] = "other"
    result = pair(with_tokens(TOKENS), with_tokens(changed))
    assert result.usable is usable
    if not usable:
        assert result.reason.startswith(
            f"token {token} differs: target 't{token}', draft 'other'; target 300 tokens, draft 300"
        )


def test_texts_are_compared_as_c_strings() -> None:
    changed = list(TOKENS)
    changed[7] = "t7\0tail"
    assert pair(with_tokens(TOKENS), with_tokens(changed)).usable


def test_tokenizer_types_must_agree() -> None:
    result = pair(model(), model(tokenizer="llama"))
    assert not result.usable
    assert "target gpt2 (BPE), draft llama (SPM)" in result.reason
    # The type counts, not the name: gpt2 and whitespace are both BPE.
    assert pair(model(), model(tokenizer="whitespace")).usable
    assert not pair(model(tokenizer="none"), model(tokenizer="none")).usable


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_added_tokens_must_agree(name: str) -> None:
    add, token = f"tokenizer.ggml.add_{name}_token", f"tokenizer.ggml.{name}_token_id"

    def made(added: bool, number: int) -> Gguf:
        return model().key(add, "bool", added).key(token, "u32", number)

    assert pair(made(True, 3), made(True, 3)).usable
    assert pair(made(False, 3), made(False, 4)).usable  # ids only count when they are added
    result = pair(made(True, 3), made(True, 4))
    assert f"{name} differs: target adds token 3, draft adds token 4" in result.reason
    result = pair(made(True, 3), made(False, 3))
    assert f"{name} differs: target adds token 3, draft adds none" in result.reason
    # The default of a BPE vocabulary is token 11; so is the id of one that is out of range.
    assert pair(model().key(add, "bool", True), made(True, 11)).usable
    assert pair(made(True, 999), made(True, 11)).usable


def test_a_pre_tokenizer_may_switch_bos_on() -> None:
    assert "bos differs" in pair(model(pre="llama-bpe"), model(pre="qwen2")).reason
    assert "bos differs" in pair(model(pre="gemma4"), model(pre="qwen2")).reason


@pytest.mark.parametrize(
    ("arch", "kind"),
    [("eagle3", "draft-eagle3"), ("dflash", "draft-dflash"), ("gemma4-assistant", "draft-mtp")],
)
def test_drafters_of_other_types_are_named(arch: str, kind: str) -> None:
    result = pair(model(), model(arch=arch))
    assert kind not in AVAILABLE_DRAFT_TYPES
    assert (result.usable, result.type) == (False, kind)
    assert "not available in this version" in result.reason


def test_what_is_no_pair_at_all() -> None:
    assert pair(model(arch="eagle3"), model()) == Pair(
        False, None, "made up is no target: its role is draft-eagle3"
    )
    assert pair(model(), model(arch="clip")) == Pair(
        False, None, "made up is no drafter: its role is mmproj"
    )


def test_byte_orders_do_not_matter() -> None:
    assert pair(model("<"), model(">")).usable


def test_large_vocabularies_are_compared_fast() -> None:
    tokens = [f"token{i}" for i in range(262_144)]
    target = info_of(with_tokens(tokens))
    draft = info_of(with_tokens([*tokens[:-1], "last"]))
    start = time.perf_counter()
    result = check_pair(target, draft)
    assert time.perf_counter() - start < 2
    assert result.reason.startswith("token 262143 differs: target 'token262143', draft 'last'")
