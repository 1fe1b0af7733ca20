"""Histories in another vocabulary, grown in steps, cut back, and drafts on the way back."""

from __future__ import annotations

import random

import pytest

from gguf_spec.translation import MapTranslation, TextTranslation, make_translation
from gguf_spec.vocabulary import Lexicon
from tests.toy_text import BYTES, LEADING, TEXT, ToyVocabulary, leading, spelled, whole


def text_way(target: ToyVocabulary, drafter: ToyVocabulary) -> TextTranslation:
    return TextTranslation(Lexicon(target), Lexicon(drafter))


def read(translation: TextTranslation | MapTranslation, drafter: ToyVocabulary) -> bytes:
    """What the drafter has read, without its BOS and its leading space."""
    text = spelled(drafter, translation.tokens)
    return text.removeprefix(b" ") if Lexicon(drafter).adds_space else text


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("adds_space", [False, True])
def test_a_growing_history_is_spelled_and_changes_are_told(seed: int, adds_space: bool) -> None:
    """In steps of any size: the drafter's tokens spell the text but for what is held, the ones
    said to be unchanged are, and in the end they are those of the whole text."""
    r = random.Random(seed)
    makers = [leading, whole] if seed % 2 else [whole, leading]
    target = makers[0](adds_space=adds_space)
    drafter = makers[1](adds_space=bool(seed & 2), add_bos=True)
    translation = text_way(target, drafter)
    text = TEXT * 2
    history: list[int] = []
    tokens = target.tokenize(text)
    while tokens:
        n = r.choice([1, 1, 2, 3, 5, 9])
        history += tokens[:n]
        del tokens[:n]
        before = list(translation.tokens)
        unchanged = translation.read(history)
        assert translation.tokens[:unchanged] == before[:unchanged]
        assert unchanged >= len(before) - 8 - 3  # and back to the start of a character
        expected = spelled(target, history)
        expected = expected.removeprefix(b" ") if adds_space else expected
        assert read(translation, drafter) + translation.held == expected
        settled = translation.tokens[: translation.settled]
        assert len(translation.tokens) - len(settled) <= 8 + 3
    assert translation.held == b""
    assert translation.tokens == [drafter.bos, *drafter.tokenize(text)]


def test_characters_and_spaces_are_held_until_they_are_whole() -> None:
    target, drafter = ToyVocabulary(BYTES), whole()
    translation = text_way(target, drafter)
    history: list[int] = []
    held = []
    for byte in "x日 \t\n  y".encode():
        history += [target.tokenize("x")[0] + byte - ord("x")]
        translation.read(history)
        held.append(translation.held)
    sun = "日".encode()
    # Of spaces after a line's end the end is held too: a token of WHOLE joins them.
    ends = [b" \t", b"", b"\n ", b"\n  ", b""]
    assert held == [b"", sun[:1], sun[:2], b"", b" ", *ends]
    assert read(translation, drafter) == "x日 \t\n  y".encode()


def test_a_text_of_spaces_alone_is_read() -> None:
    """A drafter without BOS has nothing else."""
    target, drafter = leading(), whole()
    translation = text_way(target, drafter)
    translation.read(target.tokenize("   "))
    assert translation.held == b""
    assert spelled(drafter, translation.tokens) == b"   "
    translation = text_way(target, drafter)
    translation.read(target.tokenize("x" + " " * 40))
    assert translation.held == b""


def test_texts_that_are_no_text_are_read_all_the_same() -> None:
    """Bytes that are not UTF-8, and characters that the drafter has no token for."""
    target = ToyVocabulary(BYTES)
    first = target.tokenize("\0")[0]
    for drafter in (whole(), ToyVocabulary([b"a", b"b", b" "])):
        translation = text_way(target, drafter)
        r = random.Random(1)
        history: list[int] = []
        for _ in range(200):
            history += [first + r.randrange(256) for _ in range(r.choice([1, 2, 7]))]
            before = list(translation.tokens)
            unchanged = translation.read(history)
            assert translation.tokens[:unchanged] == before[:unchanged]
            assert translation.for_target([drafter.tokenize("a")[0]], final=True) in (
                [first + ord("a")],
                [],
            )
        history += target.tokenize(" aaaaaaaaaaaaaaab")
        translation.read(history)
        assert spelled(drafter, translation.tokens).endswith(b"aaaaaaaab")


def test_control_tokens_part_texts() -> None:
    target = ToyVocabulary([*BYTES, b" the"], ["<end>", "<s>", "<user>", "<tool>"], add_bos=True)
    drafter = ToyVocabulary(
        [*BYTES, b"the", b"aa"], ["</s>", "<b>", "<user>"], add_bos=True, adds_space=True
    )
    translation = text_way(target, drafter)
    a = target.tokenize("a")[0]
    history = [target.bos, a, 2, a, *target.tokenize(" the"), 3, a, 0, a]
    for n in range(1, len(history) + 1):
        translation.read(history[:n])
    shown = [drafter.special_text(t) if t < 3 else drafter.piece(t) for t in translation.tokens]
    written = [b"<", b"t", b"o", b"o", b"l", b">"]
    expected = ["<b>", b" ", b"a", "<user>", b" ", b"a", b" ", b"the", *written, b"a"]
    assert shown == [*expected, "</s>", b" ", b"a"]
    # Never made from text that looks like one.
    assert translation.for_target(drafter.tokenize("<user>x")[1:], final=True) == [
        *target.tokenize("<user>x")
    ]


@pytest.mark.parametrize("way", ["text", "ascii", "map"])
def test_cutting_back_equals_reading_anew(way: str) -> None:
    """Another text with any common beginning, control tokens included."""
    target = leading(add_bos=True)
    if way == "map":
        drafter = ToyVocabulary([*BYTES[::-1], *LEADING[::-1]], ["<end>", "<b>"], add_bos=True)
    else:
        drafter = whole(add_bos=True)
    r = random.Random(3)
    # In TEXT the marks and cuts make incomplete characters too, and so texts that nothing spells.
    text = "".join(c for c in TEXT if c.isascii()) * 2 if way == "ascii" else TEXT
    tokens = [target.bos, *target.tokenize(text)]
    for at in range(20, len(tokens), 30):
        tokens[at] = 0
    whole_text = list(tokens)
    translation = make_translation(target, drafter)
    translation.begin(tokens)
    for _ in range(60):
        common = r.randrange(len(tokens))
        other = tokens[:common] + whole_text[r.randrange(len(whole_text)) :][:200]
        before = list(translation.tokens)
        unchanged = translation.begin(other)
        assert translation.tokens[:unchanged] == before[:unchanged]
        shared = make_translation(target, drafter)
        shared.begin(tokens[:common])
        # But for what may be cut again, and a token across the cut.
        assert way == "text" or unchanged >= len(shared.tokens) - 8 - 3 - 1
        tokens = other
        fresh = make_translation(target, drafter)
        fresh.begin(other)
        assert translation.held == fresh.held
        assert spelled(drafter, translation.tokens) == spelled(drafter, fresh.tokens)
        if way == "map":
            assert translation.tokens == fresh.tokens


def test_drafts_are_cut_as_the_target_cuts_its_text() -> None:
    """The draft goes on in the middle of a word; the last piece may still merge."""
    target, drafter = leading(), whole()
    translation = text_way(target, drafter)
    translation.read(target.tokenize("of the the"))
    tokens = translation.for_target(drafter.tokenize("ory of"), final=False)
    pieces = [target.piece(token) for token in tokens]
    assert pieces == [b"ory", b" of"]
    translation = text_way(target, drafter)
    translation.read(target.tokenize("x"))
    for final, expected in ((True, [b" the"]), (False, [])):  # " theory" begins with it
        drafted = drafter.tokenize(" the")
        tokens = translation.for_target(drafted, final=final)
        assert [target.piece(token) for token in tokens] == expected


def test_held_text_comes_first_and_is_not_drafted() -> None:
    target, drafter = leading(), whole()
    translation = text_way(target, drafter)
    translation.read([*target.tokenize("x:"), *target.tokenize("\n"), *target.tokenize("   ")])
    assert translation.held == b"\n   "
    candidates = translation.candidates([])
    assert candidates is not None
    assert {drafter.piece(int(token)) for token in candidates} == {b"\n", b"\n    "}
    newline = drafter.tokenize("\n")
    after = translation.candidates(newline)
    assert after is not None
    assert {drafter.piece(int(token)) for token in after} == {b" ", b"  ", b"    "}
    drafted = drafter.tokenize("\n    return a")
    assert translation.candidates(drafted[:1]) is None
    tokens = translation.for_target(drafted, final=True)
    assert [target.piece(token) for token in tokens] == [b" return", b" a"]


def test_half_a_character_is_not_drafted() -> None:
    target, drafter = ToyVocabulary(BYTES), ToyVocabulary([*BYTES, b"zz"])
    translation = text_way(target, drafter)
    translation.read(target.tokenize("x"))
    drafted = drafter.tokenize("日")
    assert translation.for_target(drafted[:2], final=True) == []
    assert translation.for_target(drafted, final=True) == target.tokenize("日")


def test_nearly_equal_vocabularies_are_mapped() -> None:
    target = ToyVocabulary([*BYTES, *LEADING, b"ours"], ["<end>", "<s>", "<tool>"], add_bos=True)
    drafter = ToyVocabulary([*LEADING, *BYTES, b"theirs"], ["<eos>", "<bos>"], add_bos=True)
    translation = make_translation(target, drafter)
    assert isinstance(translation, MapTranslation)
    history = [target.bos, *target.tokenize("of the ours"), 2, *target.tokenize(" cat"), 0]
    translation.read(history[:3])
    assert translation.read(history) == len(translation.tokens[:3])
    shown = [drafter.special_text(t) if t < 2 else drafter.piece(t) for t in translation.tokens]
    bridge = [bytes([c]) for c in b"ours"]
    tool = [bytes([c]) for c in b"<tool>"]
    assert shown == ["<bos>", b"o", b"f", b" the", b" ", *bridge, *tool, b" cat", "<eos>"]
    theirs = drafter.tokenize("theirs")
    assert [translation.ends(t) for t in (*theirs, 0, 1)] == [True, True, True]
    drafted = drafter.tokenize(" the cat")
    assert not any(map(translation.ends, drafted))
    assert translation.for_target(drafted, final=False) == target.tokenize(" the cat")
    assert translation.candidates(drafted) is None


def test_one_space_in_front_is_the_tokenizers_own() -> None:
    """A target that puts a space in front of a text, and a drafter that does not; both ways."""
    for ours in (True, False):
        target, drafter = leading(adds_space=ours), whole(adds_space=not ours)
        translation = text_way(target, drafter)
        translation.read(target.tokenize("The cat"))
        assert read(translation, drafter) == b"The cat"
        tokens = translation.for_target(drafter.tokenize("x and")[-2:], final=True)
        assert spelled(target, tokens) == b" and"
