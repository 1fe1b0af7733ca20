"""Text comes out complete, in order, and stops where it should."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.text import Detokenizer, StopStrings


@given(st.text(max_size=40), st.lists(st.integers(1, 5), max_size=60))
def test_any_cut_of_the_bytes_gives_the_same_text(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "ignore")
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    pieces.append(data)
    detokenizer = Detokenizer(lambda i: pieces[i])
    shown = [detokenizer.feed(i) for i in range(len(pieces))]
    assert "".join(shown) + detokenizer.flush() == text.encode("utf-8", "ignore").decode()
    assert "\ufffd" not in "".join(shown) or "\ufffd" in text


def test_a_character_waits_until_it_is_complete() -> None:
    pieces = ["🙂".encode()[:2], "🙂".encode()[2:], b"a", "日".encode()[:1]]
    detokenizer = Detokenizer(lambda i: pieces[i])
    assert [detokenizer.feed(i) for i in range(4)] == ["", "🙂", "a", ""]
    assert detokenizer.flush() == "\ufffd"


def reference(text: str, stops: list[str]) -> str:
    """The text before the stop string that appears first."""
    ends = [text.index(stop) for stop in stops if stop and stop in text]
    return text[: min(ends)] if ends else text


small = st.text(alphabet="ab", max_size=12)


@given(small, st.lists(st.text(alphabet="ab", min_size=2, max_size=4), max_size=3))
def test_stop_strings_over_single_characters(text: str, stops: list[str]) -> None:
    watcher = StopStrings(stops)
    shown = ""
    for i, character in enumerate(text):
        shown += watcher.feed(character)
        first = next((j for j in range(i + 2) if any(s in text[:j] for s in stops)), None)
        assert (watcher.hit is not None) == (first is not None)
        if watcher.hit is not None:
            # It ends with the character that completes a stop string, no later.
            assert first == i + 1
            assert shown == reference(text[: i + 1], stops)
            return
    assert shown + watcher.flush() == text


def test_held_text_comes_out_when_it_becomes_no_stop() -> None:
    watcher = StopStrings(["<end>", "STOP"])
    assert watcher.feed("abc<e") == "abc"
    assert watcher.feed("x") == "<ex"
    assert watcher.feed("ST") == ""
    assert watcher.feed("OP and more") == ""
    assert watcher.hit == "STOP"
    assert watcher.feed("never shown") == ""
    assert watcher.flush() == ""


def test_an_empty_stop_string_stops_nothing() -> None:
    watcher = StopStrings([""])
    assert watcher.feed("text") == "text"
    assert watcher.hit is None
