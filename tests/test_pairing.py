from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.errors import PairError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse, read_header
from gguf_spec.hidden_states import CHAIN_ARCHS, MTP_ARCHS, NEXTN_ARCHS, STORED_ARCHS
from gguf_spec.pairing import (
    Pair,
    check_pair,
    needs_translation,
    own_head,
    translation_problem,
)
from tests.gguf_writer import Q8_0, Gguf, model

MODELS = Path(__file__).parent / "models"
TOKENS = [f"t{i}" for i in range(300)]
I64 = 27


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
    prints = [info.tokenizer.fingerprint for info in (target, draft)]
    assert f"(fingerprints: target {prints[0]}, draft {prints[1]})" in result.reason
    assert result.other_vocabulary


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


def test_drafters_of_types_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_spec.pairing.AVAILABLE_DRAFT_TYPES", frozenset({"draft-simple"}))
    for arch, kind in (
        ("eagle3", "draft-eagle3"),
        ("dflash", "draft-dflash"),
        ("gemma4-assistant", "draft-mtp"),
    ):
        result = pair(model(), model(arch=arch))
        assert (result.usable, result.type) == (False, kind)
        assert "not available in this version" in result.reason


def eagle3(
    layers: list[int] | None = None,
    hidden: int = 64,
    output: tuple[int, int] = (64, 300),
    **options: Any,
) -> Gguf:
    made = model(arch="eagle3", **{"block_count": 1, **options})
    made.array("eagle3.target_layers", "i32", [0, 1, 1] if layers is None else layers)
    made.key("eagle3.target_hidden_size", "u32", hidden)
    return made.tensor("output.weight", list(output), Q8_0) if output else made


def mtp(arch: str = "qwen35", n_heads: int = 1, **options: Any) -> Gguf:
    made = model(arch=arch, **options).key(f"{arch}.nextn_predict_layers", "u32", n_heads)
    made.tensor("blk.1.nextn.enorm.weight", [64]).tensor("blk.1.nextn.hnorm.weight", [64])
    return made.tensor("blk.1.nextn.eh_proj.weight", [128, 64], Q8_0)


def head_file(n_heads: int = 1, **options: Any) -> Gguf:
    """A file with an MTP block alone."""
    made = mtp(n_heads=n_heads, block_count=n_heads + 1, **options)
    made.tensors = [tensor.replace(b"blk.0.", b"blk.7.") for tensor in made.tensors]
    return made


def test_an_eagle3_head_fits_by_layers_and_widths() -> None:
    assert pair(model(), eagle3()) == Pair(
        True, "draft-eagle3", "the vocabularies agree (target 300 tokens, draft 300)"
    )
    for head, message in (
        (eagle3([0, 1]), "reads 2 layers of its target, EAGLE-3 reads 3"),
        (eagle3([0, 1, 3]), "layer 3 is wanted, the target has 2 layers"),
        (eagle3([0, -5, 1]), "layer -5 is wanted"),
        (eagle3([0, 1, 2]), "last hidden state of llama models"),
        (eagle3(hidden=65), "target 64, head made for 65"),
        (eagle3(block_count=2), "has 2 layers, EAGLE-3 has 1"),
        (eagle3(tokens=[*TOKENS[:-1], "other"]), "token 299 differs"),
        (eagle3().key("eagle3.attention.key_length", "u32", 8), "keys of 8 values and values of"),
        (eagle3().tensor("d2t", [200], I64), "reduced vocabulary of 200 tokens without an output"),
    ):
        result = pair(model(), head)
        assert (result.usable, result.type) == (False, "draft-eagle3")
        assert message in result.reason
    # Its own width may be another one if it lends nothing from the target.
    assert pair(model(), eagle3(embedding_length=32)).usable
    lends = pair(model(), eagle3(embedding_length=32, output=()))
    assert "has no output.weight" in lends.reason
    assert "target 64, head 32" in lends.reason


def test_a_target_whose_states_cannot_be_read_has_no_heads() -> None:
    assert "layer inputs of gemma3 models" in pair(model(arch="gemma3"), eagle3()).reason
    assert "last hidden state of llama models" in pair(model(), head_file()).reason
    # The layers of an MTP head do not count.
    assert "wanted, the target has 1 layers" in pair(mtp(), eagle3([0, 1, 2])).reason


def test_heads_do_not_care_who_adds_bos() -> None:
    target = model().key("tokenizer.ggml.add_bos_token", "bool", True)
    assert pair(target, eagle3()).usable
    assert not pair(target, model()).usable


def test_mtp_heads_fit_by_width_and_number() -> None:
    assert pair(model(arch="qwen35"), head_file()).usable
    for target, head, message in (
        (model(arch="qwen35", embedding_length=32), head_file(), "target 32, head 64"),
        (model(arch="qwen35"), head_file(2), "a chain of 2 MTP heads"),
        (model(arch="qwen35"), model(arch="gemma4-assistant"), "the cache of a gemma4 model"),
        (model(arch="qwen35", tokens=[*TOKENS[:9], "x", *TOKENS[10:]]), head_file(), "token 9 "),
    ):
        result = pair(target, head)
        assert (result.usable, result.type) == (False, "draft-mtp")
        assert message in result.reason


def test_a_targets_own_head() -> None:
    assert own_head(info_of(mtp())) == Pair(True, "draft-mtp", "made up has an MTP head of its own")
    assert own_head(info_of(model())) == Pair(False, None, "made up has no MTP head")
    assert "of glm4 models" in own_head(info_of(mtp("glm4"))).reason
    stripped = model(arch="qwen35").key("qwen35.nextn_predict_layers", "u32", 1)
    assert "stripped of its MTP head" in own_head(info_of(stripped)).reason


@pytest.mark.parametrize("arch", sorted(STORED_ARCHS))
def test_a_head_that_is_only_stored(arch: str) -> None:
    """Their tensors are loaded or skipped in src/models/, and no graph reads them."""
    info = info_of(mtp(arch))
    assert "draft-mtp" not in info.spec_types
    assert own_head(info).reason == (
        f"llama.cpp does not compute the MTP heads of {arch} models; the file only stores it"
    )


def test_architectures_of_heads_are_of_one_kind() -> None:
    assert CHAIN_ARCHS < MTP_ARCHS
    assert not STORED_ARCHS & MTP_ARCHS
    assert MTP_ARCHS < NEXTN_ARCHS


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


def test_heads_are_not_translated() -> None:
    """A head of another vocabulary is refused whether translating is allowed or not."""
    target, head = (
        read_header(MODELS / "tiny-target.gguf"),
        read_header(MODELS / "tiny-eagle3.gguf"),
    )
    assert "computes on the target's own tokens" in str(translation_problem(target, head))
    other = dataclasses.replace(head, tokenizer=dataclasses.replace(head.tokenizer, model="llama"))
    assert check_pair(target, other).other_vocabulary
    for allowed in (False, True):
        with pytest.raises(PairError, match="tokenizers differ") as caught:
            needs_translation("draft-eagle3", "head", target, other, allowed=allowed)
        assert ("only draft models can be translated" in caught.value.message) is allowed
        assert "translate" not in str(caught.value.hint)
    assert not needs_translation("draft-eagle3", "head", target, head, allowed=True)


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ("none", "made up has no vocabulary (none)"),
        ("no_vocab", "made up has no vocabulary (no_vocab)"),
        ("bert", "the bert tokenizer (WPM) of made up does not give back the text"),
        ("t5", "the t5 tokenizer (UGM) of made up does not give back the text"),
        ("llama", None),
        ("rwkv", None),
    ],
)
def test_vocabularies_that_cannot_be_translated(tokenizer: str, said: str | None) -> None:
    """Of the draft or of the target; with the way out only where there is one."""
    other, plain = info_of(model(tokenizer=tokenizer)), info_of(model())
    for target, draft in ((plain, other), (other, plain)):
        problem = translation_problem(target, draft)
        assert problem is None if said is None else str(problem).startswith(said)
        with pytest.raises(PairError) as caught:
            needs_translation("draft-simple", "small", target, draft, allowed=False)
        assert ("--set spec.translate=true" in str(caught.value.hint)) is (said is None)
        if said is None:
            assert needs_translation("draft-simple", "small", target, draft, allowed=True)
            continue
        with pytest.raises(PairError) as caught:
            needs_translation("draft-simple", "small", target, draft, allowed=True)
        assert caught.value.exit_code == 3
        assert f"spec.translate does not help: {said}" in caught.value.message
