"""Texts cut where other text precedes them, and tokens that are the same in two vocabularies."""

from __future__ import annotations

import pytest

from gguf_spec.vocabulary import Lexicon, control_images, equal_tokens
from tests.toy_text import BYTES, TEXT, ToyVocabulary, leading, spelled, whole


@pytest.mark.parametrize("adds_space", [False, True])
def test_a_text_is_spelled_wherever_it_is_cut(adds_space: bool) -> None:
    """At every cut: the tokens spell exactly what follows, and the ends are theirs."""
    data = TEXT.encode()
    for make in (leading, whole):
        vocabulary = make(adds_space=adds_space)
        lexicon = Lexicon(vocabulary)
        assert lexicon.adds_space is adds_space
        for at in range(1, len(TEXT)):
            before, after = TEXT[:at].encode(), TEXT[at:].encode()
            spelling = lexicon.spell(before, after)
            assert spelling is not None
            assert spelled(vocabulary, spelling.tokens) == after
            tokens = spelling.tokens[:5]
            ends = [len(spelled(vocabulary, tokens[: n + 1])) for n in range(len(tokens))]
            assert spelling.ends[:5] == ends
        start = lexicon.spell(b"", data)
        assert start is not None
        assert spelled(vocabulary, start.tokens) == b" " * adds_space + data
        assert start.ends[-1] == len(data)


def test_words_in_context_are_cut_as_in_the_whole_text() -> None:
    lexicon = Lexicon(ToyVocabulary([*BYTES, b"cat", b" cat", b"the"], adds_space=True))
    pieces = lexicon.pieces
    spelling = lexicon.spell(b"the", b" cat")
    assert spelling is not None
    assert [pieces[token] for token in spelling.tokens] == [b" cat"]
    # "the" + "rest" without the space that a text of its own begins with
    spelling = lexicon.spell(b"a", b"cat")
    assert spelling is not None
    assert [pieces[token] for token in spelling.tokens] == [b"cat"]
    # A token that crosses over is not taken.
    spelling = lexicon.spell(b"ca", b"t")
    assert spelling is not None
    assert [pieces[token] for token in spelling.tokens] == [b"t"]


def test_what_has_no_tokens_is_not_spelled() -> None:
    lexicon = Lexicon(ToyVocabulary([b"a", b"b", b"\n"]))
    assert lexicon.spell(b"", b"abc") is None
    assert lexicon.spell(b"a", b"c") is None
    assert lexicon.spell(b"", "é".encode()[:1]) is None
    assert lexicon.spell("é".encode()[:1], "é".encode()[1:]) is None


def test_a_character_may_be_cut_between_tokens() -> None:
    """The second half of a character after the first one."""
    data = "日".encode()
    lexicon = Lexicon(ToyVocabulary([data[:2], data[2:]]))
    spelling = lexicon.spell(data[:2], data[2:])
    assert spelling is not None
    assert (spelling.tokens, spelling.ends) == ([3], [1])


def test_compatible_tokens_begin_with_a_text_or_are_its_beginning() -> None:
    pieces = [b" ", b"  ", b"   x", b"    ", b"x", b"\n   ", b"  y"]
    lexicon = Lexicon(ToyVocabulary(pieces))
    found = {lexicon.pieces[token] for token in lexicon.compatible(b"   ")}
    assert found == {b" ", b"  ", b"   x", b"    "}
    assert lexicon.joins_lines
    assert not Lexicon(ToyVocabulary([b"\n", b" "])).joins_lines
    assert lexicon.extends(b"  ")
    assert lexicon.extends(b"   ")  # not a piece itself
    assert not lexicon.extends(b"x")
    assert not lexicon.extends(b"  y")


def test_equal_pieces_are_pairs_and_duplicates_in_their_order() -> None:
    ours = ToyVocabulary([b"a", b"\n", b"b", b"a", b"only"], ["<end>", "<s>"])
    theirs = ToyVocabulary([b"a", b"b", b"\n", b"a"], ["</s>", "<s>", "<end>"])
    pairs = equal_tokens(Lexicon(ours), Lexicon(theirs))
    assert pairs == {0: 2, 1: 1, 2: 3, 3: 5, 4: 4, 5: 6}


def test_control_tokens_have_images_by_text_and_by_role() -> None:
    def images(add_bos: bool, texts: list[str]) -> dict[int, int]:
        ours = ToyVocabulary([b"a"], ["<im_end>", "<im_start>", "<tool>"], add_bos=add_bos)
        return control_images(Lexicon(ours), Lexicon(ToyVocabulary([b"a"], texts)))

    assert images(True, ["<eos>", "<bos>"]) == {0: 0, 1: 1}
    # A BOS that nobody adds marks something else: it has a meaning by its text only.
    assert images(False, ["<eos>", "<bos>"]) == {0: 0}
    assert images(False, ["<eos>", "<im_start>", "<tool>"]) == {0: 0, 1: 1, 2: 2}
    assert images(False, ["<eos>", "<bos>", "<im_end>"]) == {0: 2}
