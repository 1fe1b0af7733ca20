"""Look-up cache files of llama.cpp's: read as they are, refused with numbers when they are bad."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_counts import Counts, read_counts
from gguf_spec.drafters.ngram_registry import make_ngram
from gguf_spec.errors import InputError
from gguf_spec.history import History
from gguf_spec.profile_schema import Spec
from gguf_spec.sampling import Sampler, SamplingParams

SAMPLER = Sampler(SamplingParams())


def record(key: list[int], followers: dict[int, int], n: int | None = None) -> bytes:
    """As common_ngram_cache_save writes it."""
    padded = (key + [-1] * 4)[:4]
    pairs = [number for pair in followers.items() for number in pair]
    return struct.pack(f"<{5 + len(pairs)}i", *padded, len(followers) if n is None else n, *pairs)


def key(*tokens: int) -> bytes:
    return array("i", tokens).tobytes()


def test_reads_what_llama_cpp_writes(tmp_path: Path) -> None:
    path = tmp_path / "lookup.bin"
    path.write_bytes(record([5], {6: 2, 7: 1}) + record([1, 2, 3, 4], {9: 3}) + record([5], {8: 8}))
    assert read_counts(path, 10) == {key(5): {6: 2, 7: 1}, key(1, 2, 3, 4): {9: 3}}


BAD = {
    "empty": (b"", "0 bytes"),
    "odd": (record([5], {6: 2})[:-1], "27 bytes"),
    "no key": (record([], {6: 2}), "negative"),
    "hole in the key": (record([5, -1, 5], {6: 2}), "negative"),
    "negative follower": (record([5], {-6: 2}), "negative"),
    "count of zero": (record([5], {6: 0}), "a count is 0"),
    "no followers": (record([5], {}), "0 tokens"),
    "negative number": (record([5], {6: 2}, n=-1), "-1 tokens are announced"),
    "too many announced": (record([5], {6: 2}, n=2**31 - 1), "2147483647 tokens are announced, 1"),
    "ends in a follower": (record([5], {6: 2, 7: 1})[:-4], "2 tokens are announced, 1"),
    "ends in a key": (record([5], {6: 2}) + b"\1\0\0\0" * 3, "at byte 28: the record has 3"),
    "another vocabulary": (record([5], {100: 2}), "token id 100 is outside the vocabulary of 100"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses_bad_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "lookup.bin"
    data, words = BAD[name]
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as error:
        read_counts(path, 100)
    assert str(path) in error.value.message
    assert error.value.hint
    assert error.value.exit_code == 3


def test_refuses_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_counts(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot read"):
        read_counts(tmp_path)
    monkeypatch.setattr("gguf_spec.drafters.ngram_counts.MAX_FILE_BYTES", 20)
    path = tmp_path / "lookup.bin"
    path.write_bytes(record([5], {6: 2}))
    with pytest.raises(InputError, match="28 bytes are more than the 20"):
        read_counts(path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(data)
    try:
        table = read_counts(path)
    except InputError:
        return
    assert table
    assert all(count > 0 for counts in table.values() for count in counts.values())


def test_files_of_the_profile_are_used(tmp_path: Path) -> None:
    dynamic, static = tmp_path / "dynamic.bin", tmp_path / "static.bin"
    dynamic.write_bytes(record([1], {2: 3, 3: 1}) + record([1, 2], {5: 3}))
    static.write_bytes(record([2, 5], {6: 1, 7: 1}) + record([9, 1], {3: 1}))
    spec = Spec.model_validate(
        {
            "ngram-cache": {
                "lookup_cache_dynamic": str(dynamic),
                "lookup_cache_static": str(static),
            }
        }
    )
    drafter = make_ngram("ngram-cache", spec, n_vocab=10)
    drafter.begin(History([8, 1]))
    # 2 has three of four (75 %) after 1; 5 after 1 2; then static alone: 6 has one of two.
    assert list(drafter.draft(3, SAMPLER).tokens) == [2, 5, 6]
    # Static counts weigh: 3 was seen once after 1, but a corpus has it after 9 1. Its share is
    # then too small for a draft.
    drafter.begin(History([9, 1]))
    assert list(drafter.draft(3, SAMPLER).tokens) == []
    with pytest.raises(InputError, match="vocabulary of 7"):
        make_ngram("ngram-cache", spec, n_vocab=7)


def test_counts_grow_from_one_to_many() -> None:
    counts = Counts()
    assert counts.get(key(1)) == {}
    counts.add(key(1), 0)
    assert counts.get(key(1)) == {0: 1}
    counts.add(key(1), 0)
    counts.add(key(1), 4)
    counts.add(key(2), 4)
    counts.add(key(2), 5)
    counts.add(key(2), 5)
    assert counts.get(key(1)) == {0: 2, 4: 1}
    assert counts.get(key(2)) == {4: 1, 5: 2}


def test_a_cache_of_two_drafters_is_not_shared() -> None:
    first, second = NgramCache(), NgramCache()
    first.begin(History([1, 2, 3] * 5))
    assert first.draft(3, SAMPLER).tokens
    second.begin(History([1, 2]))
    assert not second.draft(3, SAMPLER).tokens
