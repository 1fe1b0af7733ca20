"""The pool of texts: what is kept and found, predicted text, and the file that outlives it all."""

from __future__ import annotations

import random
import stat
import struct
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.ngram_predicted import Follower, PredictedText
from gguf_spec.drafters.pool import Pool
from gguf_spec.errors import InputError
from gguf_spec.history import History
from gguf_spec.ngram_pool_file import MAX_TOKENS, delete_pool, load_pool, pool_path, save_pool
from gguf_spec.sampling import Sampler, SamplingParams
from tests.drafters import ngram_reference as reference

SAMPLER = Sampler(SamplingParams())
FINGERPRINT = "0123456789abcdef"
OTHER = "fedcba9876543210"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_keeps_the_latest_and_finds_what_a_scan_finds(seed: int, bound: int) -> None:
    r = random.Random(seed)
    pool, kept = Pool(bound), list[list[int]]()
    for _ in range(r.randrange(6)):
        text = r.choice(kept) if kept and r.random() < 0.3 else reference.random_text(r, 4)
        pool.add(text)
        text = text[-bound:]
        kept = [other for other in kept if other != text] + ([text] if text else [])
        while sum(map(len, kept)) > bound:
            del kept[0]
        assert pool.texts == kept
        assert pool.n_tokens == sum(map(len, kept))
        for n in (1, 2, 5):
            key = r.choice(kept)[:n] if kept and r.random() < 0.7 else r.choices([0, 1, 7], k=n)
            expected: list[int] = []
            for other in kept:
                for i in reference.starts(other, key, len(other) - len(key)):
                    expected = other[i + len(key) :][:4]
            assert pool.longest(key, len(key), 4, 1)[0] == expected
            assert pool.followers(key, 9) == reference.followers(kept, key, 9)
    pool.clear()
    assert (pool.texts, pool.n_tokens, pool.longest([1], 1, 3, 1)) == ([], 0, ([], 0))


def test_drafts_from_earlier_texts_when_the_history_has_nothing() -> None:
    pool = Pool()
    pool.add([1, 2, 3, 4, 5, 6])
    drafter = NgramSimple(3, 8, pool)
    drafter.begin(History([1, 2, 3]))  # far too short for a look-up of its own
    assert drafter.draft(8, SAMPLER).tokens == [4, 5, 6]
    pool.add([1, 2, 3, 9])
    assert drafter.draft(8, SAMPLER).tokens == [9]  # the latest text
    chain = NgramMod(3, 2, 8, pool)
    chain.begin(History([1, 2, 3]))
    assert chain.draft(8, SAMPLER).tokens == []  # n_min holds for the pool too


def test_useless_earlier_texts_are_asked_less_and_less() -> None:
    pool = Pool()
    pool.add([1, 2, 3, 4, 5, 6])
    history = History([1, 2])
    drafter = NgramSimple(2, 1000, pool)  # so that the history itself never gives a draft
    drafter.begin(history)
    asked = 0
    for i in range(200):
        asked += bool(drafter.draft(8, SAMPLER).tokens)
        history.extend([100 + i])
        drafter.accept(0)
        history.extend([1, 2])
        drafter.accept(1)
    assert asked <= 12


# ------------------------------------------------------------------- predicted


def follow(text: list[int], completion: list[int], length: int = 4) -> list[int]:
    """What is drafted when the completion came token by token."""
    history = History([1, 2, 3])
    follower = Follower(PredictedText(text), 3)
    for token in completion:
        follower.next(history, length)
        history.extend([token])
    return follower.next(history, length)


def test_follows_a_predicted_text() -> None:
    text = [*range(10, 60)]
    assert follow(text, []) == [10, 11, 12, 13]
    assert follow(text, [10, 11]) == [12, 13, 14, 15]
    assert follow(text, [30]) == [31, 32, 33, 34]  # stands there once
    assert follow([5, 6, 5, 7], [6]) == [5, 7]
    assert follow([5, 6, 5, 7], [9]) == []
    assert follow([5, 6, 7, 5, 8], [5, 7]) == []
    assert follow([1, 5, 6, 7, 5, 8], [5]) == []  # stands there twice
    assert follow(text, [10, 11, 99]) == []
    assert follow(text, [10, 11, 99, 13]) == []
    assert follow(text, [10, 11, 99, 13, 14]) == [15, 16, 17, 18]  # two tokens near by
    assert follow(text, [10, 11, 99, 50, 51]) == []  # too far for two
    assert follow(text, [10, 11, 99, 50, 51, 52]) == [53, 54, 55, 56]
    assert follow(text, text) == []
    assert follow([], [1]) == []


def test_finds_the_longest_match_then_the_nearest() -> None:
    text = [1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 8, 2, 3, 4, 70]
    assert follow(text, [99, 9, 2, 3, 4], 1) == [60]
    assert follow(text, [1, 99, 2, 3, 4], 1) == [50]
    # Left after 8: the nearest "2 3 4" is the third.
    assert follow(text, [*text[:11], 99, 2, 3, 4], 1) == [70]


@pytest.mark.parametrize("n_edits", [0, 3, 12])
def test_an_edited_file_is_followed_through_its_edits(n_edits: int) -> None:
    r = random.Random(n_edits)
    old = r.choices(range(100), k=600)
    new = list(old)
    for _ in range(n_edits):
        i = r.randrange(len(new))
        new[i : i + r.randrange(3)] = r.choices(range(100), k=r.randrange(3))
    pool = Pool()
    pool.predict(old)
    drafter = NgramSimple(pool=pool)
    history, at = History([1, 2, 3]), 0
    n_drafted = n_accepted = 0
    drafter.begin(history)
    while at < len(new):
        draft = list(drafter.draft(47, SAMPLER).tokens)
        accepted = 0
        while accepted < len(draft) and new[at + accepted : at + accepted + 1] == [draft[accepted]]:
            accepted += 1
        emitted = new[at : at + accepted + 1]
        at += len(emitted)
        n_drafted += len(draft)
        n_accepted += accepted
        history.extend(emitted)
        drafter.accept(accepted)
    if not n_edits:
        assert n_accepted == n_drafted
    assert n_accepted >= (0.95 if n_edits < 4 else 0.75) * len(new)
    assert n_accepted / n_drafted >= (0.75 if n_edits < 4 else 0.5)


def test_a_wrong_prediction_dies_down() -> None:
    """Every token is found in the text and what follows there is always wrong."""
    pool = Pool()
    text = [number for i in range(40) for number in (i, i + 100, i + 200, 999)]
    pool.predict(text)
    history = History([1])
    drafter = NgramSimple(1000, 48, pool)  # so that the history itself never gives a draft
    drafter.begin(history)
    n_drafted = []
    for i in range(200):
        n_drafted.append(len(drafter.draft(48, SAMPLER).tokens))
        history.extend([7])
        drafter.accept(0)
        for token in (i % 40, i % 40 + 100, i % 40 + 200):
            history.extend([token])
            drafter.accept(0)
    assert sum(n_drafted) <= 16 + 4 * 11
    assert sum(map(bool, n_drafted[100:])) <= 4


def test_a_prediction_can_be_replaced_and_withdrawn() -> None:
    pool = Pool()
    drafter = NgramSimple(pool=pool)
    history = History([1, 2])
    drafter.begin(history)
    assert drafter.draft(3, SAMPLER).tokens == []
    pool.predict([5, 6, 7])
    assert drafter.draft(3, SAMPLER).tokens == [5, 6, 7]
    history.extend([5])
    drafter.accept(0)
    assert drafter.draft(3, SAMPLER).tokens == [6, 7]
    pool.predict([5, 8])
    assert drafter.draft(3, SAMPLER).tokens == [8]
    drafter.begin(history)  # the completion begins here now
    assert drafter.draft(3, SAMPLER).tokens == [5, 8]
    pool.predict([])
    assert drafter.draft(3, SAMPLER).tokens == []
    assert pool.predicted is None


# ----------------------------------------------------------------- persistence


def path_in(folder: Path) -> Path:
    return pool_path(folder, "profile", FINGERPRINT)


@given(st.lists(st.lists(st.integers(0, 499), min_size=1), max_size=8))
def test_what_is_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]]
) -> None:
    path = path_in(tmp_path_factory.getbasetemp())
    save_pool(path, texts, fingerprint=FINGERPRINT, n_vocab=500)
    assert load_pool(path, fingerprint=FINGERPRINT, n_vocab=500) == texts


def test_a_pool_goes_through_a_file(tmp_path: Path) -> None:
    pool = Pool()
    for text in ([1, 2, 3, 4], [5, 6], [1, 2, 3, 4]):
        pool.add(text)
    path = path_in(tmp_path / "new folder")
    assert load_pool(path, fingerprint=FINGERPRINT, n_vocab=10) == []
    save_pool(path, pool.texts, fingerprint=FINGERPRINT, n_vocab=10)
    again = Pool()
    for text in load_pool(path, fingerprint=FINGERPRINT, n_vocab=10):
        again.add(text)
    assert again.texts == pool.texts == [[5, 6], [1, 2, 3, 4]]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert delete_pool(path) is True
    assert delete_pool(path) is False
    assert list(path.parent.iterdir()) == []


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    texts = [[1] * 10, [2] * 6, [3] * (MAX_TOKENS - 4)]
    save_pool(path, texts, fingerprint=FINGERPRINT, n_vocab=10)
    assert load_pool(path, fingerprint=FINGERPRINT, n_vocab=10) == [[2] * 4, texts[2]]
    assert path.stat().st_size < 4 * MAX_TOKENS + 100


def test_names_do_not_leave_the_folder(tmp_path: Path) -> None:
    names = ["a/b", "a b", "../../etc/passwd", "", "é" * 300, "a\0b"]
    paths = {pool_path(tmp_path, name, print_) for name in names for print_ in (FINGERPRINT, OTHER)}
    assert len(paths) == 2 * len(names)
    assert {path.parent for path in paths} == {tmp_path}
    assert all(len(path.name) < 70 and path.name.isascii() for path in paths)


def test_another_vocabulary_is_refused_with_both(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save_pool(path, [[1, 2]], fingerprint=FINGERPRINT, n_vocab=10)
    with pytest.raises(InputError, match=rf"{FINGERPRINT} with 10 .* {OTHER} with 10") as error:
        load_pool(path, fingerprint=OTHER, n_vocab=10)
    assert error.value.exit_code == 3
    assert error.value.hint
    with pytest.raises(InputError, match=r"with 10 tokens.*with 11"):
        load_pool(path, fingerprint=FINGERPRINT, n_vocab=11)


def damage(data: bytes) -> dict[str, tuple[bytes, str]]:
    body_at = 8 + 5 * 4 + 16
    huge = struct.pack("<I", 2**32 - 1)
    return {
        "empty": (b"", "0 bytes"),
        "no header": (data[:20], "20 bytes"),
        "another file": (b"GGUF" + data[4:], "begins with"),
        "version": (data[:8] + struct.pack("<I", 7) + data[12:], "version 7, this program reads 1"),
        "cut": (data[:-4], "announced"),
        "longer": (data + b"\0\0\0\0", "announced"),
        "texts": (data[:16] + huge + data[20:], "4294967295 texts"),
        "tokens": (data[:20] + huge + data[24:], "4294967295 tokens"),
        "flipped": (data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
        "length": (data[:body_at] + b"\7" + data[body_at + 1 :], "checksum"),
    }


@pytest.mark.parametrize("name", damage(bytes(60)))
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save_pool(path, [[1, 2], [3]], fingerprint=FINGERPRINT, n_vocab=10)
    data, words = damage(path.read_bytes())[name]
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as error:
        load_pool(path, fingerprint=FINGERPRINT, n_vocab=10)
    assert str(path) in error.value.message
    assert error.value.hint


def test_impossible_tokens_are_refused_whatever_the_checksum(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    save_pool(path, [[1, 12]], fingerprint=FINGERPRINT, n_vocab=10)
    with pytest.raises(InputError, match="from 1 to 12, the vocabulary has 10"):
        load_pool(path, fingerprint=FINGERPRINT, n_vocab=10)


@pytest.mark.skipif(sys.platform == "win32", reason="directories and permissions differ")
def test_trouble_with_the_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    with pytest.raises(InputError, match="cannot write"):
        save_pool(file / "x.pool", [[1]], fingerprint=FINGERPRINT, n_vocab=10)
    with pytest.raises(InputError, match="not a regular file"):
        load_pool(tmp_path, fingerprint=FINGERPRINT, n_vocab=10)
    with pytest.raises(InputError, match="cannot delete"):
        delete_pool(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced there")
def test_readers_see_whole_files_while_others_write(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    texts = [[[i] * 500] * 4 for i in range(3)]
    save_pool(path, texts[0], fingerprint=FINGERPRINT, n_vocab=10)

    def write(mine: list[list[int]]) -> None:
        for _ in range(20):
            save_pool(path, mine, fingerprint=FINGERPRINT, n_vocab=10)

    writers = [threading.Thread(target=write, args=(mine,)) for mine in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert load_pool(path, fingerprint=FINGERPRINT, n_vocab=10) in texts
    assert [other.name for other in tmp_path.iterdir()] == [path.name]
