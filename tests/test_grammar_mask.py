"""libllama's grammar sampler behind checks that keep it from ending the process."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import numpy as np
import pytest

from gguf_spec.backend import LlamaModel
from gguf_spec.backend.grammar import GrammarMask
from gguf_spec.errors import InputError, RunError


def legal(mask: GrammarMask, tokens: Iterable[int]) -> list[bool]:
    return [bool(x) for x in mask.legal(np.array(list(tokens)))]


def all_legal(mask: GrammarMask, model: LlamaModel) -> set[int]:
    return set(np.arange(model.n_vocab)[mask.legal(np.arange(model.n_vocab))].tolist())


def take(mask: GrammarMask, model: LlamaModel, text: str) -> None:
    for token in model.tokenize(text):
        mask.advance(token)


def token_of(model: LlamaModel, piece: bytes) -> int:
    return next(t for t in range(model.n_vocab) if model.piece(t) == piece)


def ends(model: LlamaModel) -> list[int]:
    return [token for token in range(model.n_vocab) if model.is_end(token)]


def test_an_end_is_legal_where_the_grammar_may_end(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= "ab" "c"?')
    assert legal(mask, ends(tiny_target)) == [False] * len(ends(tiny_target))
    take(mask, tiny_target, "ab")
    c = token_of(tiny_target, b"c")
    assert all_legal(mask, tiny_target) == {c, *ends(tiny_target)}
    mask.advance(c)
    assert all_legal(mask, tiny_target) == set(ends(tiny_target))
    mask.advance(ends(tiny_target)[0])


def test_an_illegal_token_is_an_error_and_changes_nothing(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= "ab"')
    before = all_legal(mask, tiny_target)
    for token in (token_of(tiny_target, b"c"), ends(tiny_target)[0], -1, tiny_target.n_vocab):
        with pytest.raises(RunError, match="grammar allows"):
            mask.advance(token)
    assert all_legal(mask, tiny_target) == before


def test_asking_about_all_and_about_one_is_the_same(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= [a-m]+ (" " [^x-z]* "é")?')
    take(mask, tiny_target, "ab")
    found = all_legal(mask, tiny_target)
    assert found
    assert found == {t for t in range(tiny_target.n_vocab) if legal(mask, [t])[0]}


def test_a_copy_is_of_its_own(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= "a" "b" "c"')
    mask.advance(token_of(tiny_target, b"a"))
    twin = mask.copy()
    twin.advance(token_of(tiny_target, b"b"))
    assert all_legal(mask, tiny_target) == {token_of(tiny_target, b"b")}
    del mask
    gc.collect()
    assert all_legal(twin, tiny_target) == {token_of(tiny_target, b"c")}


def test_control_tokens_are_no_text(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, "root ::= .*")
    control = [
        t
        for t in range(tiny_target.n_vocab)
        if tiny_target.is_control(t) and not tiny_target.is_end(t)
    ]
    assert control
    assert not any(legal(mask, control))


def test_a_character_may_be_made_of_several_tokens(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= "€" "!"')  # e2 82 ac
    for byte in b"\xe2\x82\xac!":
        token = token_of(tiny_target, bytes([byte]))
        assert all_legal(mask, tiny_target) == {token}
        mask.advance(token)


def test_a_character_with_more_bytes_than_it_needs_is_illegal(tiny_target: LlamaModel) -> None:
    """e0 80 80 would come out as 0, which libllama's apply takes for the end of a token, and its
    accept for a character that nothing allows."""
    mask = GrammarMask(tiny_target, "root ::= .*")
    for first, illegal, fine in ((0xE0, 0x9F, 0xA0), (0xF0, 0x8F, 0x90)):
        twin = mask.copy()
        twin.advance(token_of(tiny_target, bytes([first])))
        assert (
            legal(twin, [token_of(tiny_target, bytes([b])) for b in (0x80, illegal)]) == [False] * 2
        )
        twin.advance(token_of(tiny_target, bytes([fine])))
        assert legal(twin, [token_of(tiny_target, b"\x80")]) == [True]


def test_a_trigger_lets_everything_through_until_it_has_come(tiny_target: LlamaModel) -> None:
    mask = GrammarMask(tiny_target, 'root ::= "ab"', trigger="</think>")
    assert len(all_legal(mask, tiny_target)) == tiny_target.n_vocab
    take(mask, tiny_target, "some thoughts </thin")
    twin = mask.copy()
    for piece in (b"k", b">"):
        mask.advance(token_of(tiny_target, piece))
    assert all(tiny_target.piece(t) in (b"a", b"ab") for t in all_legal(mask, tiny_target))
    take(twin, tiny_target, " after all")
    assert len(all_legal(twin, tiny_target)) == tiny_target.n_vocab


def test_no_token_runs_on_beyond_the_trigger(tiny_target: LlamaModel) -> None:
    long = next(
        t
        for t in range(tiny_target.n_vocab)
        if len(tiny_target.piece(t)) >= 3 and tiny_target.piece(t).isalpha()
    )
    piece = tiny_target.piece(long).decode()
    mask = GrammarMask(tiny_target, 'root ::= "ab"', trigger=piece[:2])
    assert legal(mask, [long, token_of(tiny_target, piece[:1].encode())]) == [False, True]
    assert legal(GrammarMask(tiny_target, 'root ::= "a"', trigger=piece), [long]) == [True]


def test_a_control_token_may_be_the_trigger(tiny_target: LlamaModel) -> None:
    control = next(
        t for t in range(tiny_target.n_vocab) if tiny_target.is_control(t) and t != tiny_target.eos
    )
    trigger = tiny_target.special_text(control)
    mask = GrammarMask(tiny_target, 'root ::= "a"', trigger=trigger)
    mask.advance(control)
    assert all_legal(mask, tiny_target) == {token_of(tiny_target, b"a")}


def test_what_libllama_refuses_is_an_error_in_its_words(
    tiny_target: LlamaModel, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"^f\.gbnf: libllama refuses .*left recursion"):
        GrammarMask(tiny_target, 'root ::= root | "a"', name="f.gbnf")
    assert capfd.readouterr().err == ""


def test_a_grammar_is_checked_before_libllama_sees_it(tiny_target: LlamaModel) -> None:
    with pytest.raises(InputError, match="grammar:1:10: the rule missing"):
        GrammarMask(tiny_target, "root ::= missing")
