"""Counts of which tokens followed an n-gram, counted here or read from a file of llama.cpp's."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from pathlib import Path

from gguf_spec.errors import InputError
from gguf_spec.user_files import read_whole

LONGEST = 4
"""Tokens of the longest n-gram (LLAMA_NGRAM_MAX in common/ngram-cache.h)."""

MAX_FILE_BYTES = 256 * 2**20

CountTable = Mapping[bytes, Mapping[int, int]]
"""N-gram (bytes of 1 to 4 native 32-bit tokens) to token to how often it followed."""


class Counts:
    """Counts that grow.

    Most n-grams of a text occur once. Their entry is the token itself and not a dictionary, which
    saves 200 bytes for each.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[bytes, int | dict[int, int]] = {}

    def add(self, key: bytes, token: int) -> None:
        """``token`` has followed ``key`` once more."""
        seen = self._next.setdefault(key, -1)
        if isinstance(seen, dict):
            seen[token] = seen.get(token, 0) + 1
        elif seen < 0:
            self._next[key] = token
        else:
            self._next[key] = {seen: 2} if seen == token else {seen: 1, token: 1}

    def get(self, key: bytes) -> Mapping[int, int]:
        """How often which token followed ``key``."""
        seen = self._next.get(key)
        if seen is None:
            return {}
        return seen if isinstance(seen, dict) else {seen: 1}


def read_counts(path: Path, n_vocab: int | None = None) -> CountTable:
    """Read a look-up cache as llama.cpp writes it (``common_ngram_cache_save``).

    Records of little-endian int32: four tokens of an n-gram, padded with -1; the number of tokens
    that followed it; each of them with its count.

    Raises:
        InputError: the file cannot be read, is too large or damaged, or has ids beyond ``n_vocab``.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InputError(
                f"{path}: {size} bytes are more than the {MAX_FILE_BYTES} that a look-up cache "
                "may have",
                hint="make it from less text",
            )
        data = read_whole(path, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot read the look-up cache: {error.strerror}") from error
    if not data or len(data) % 4:
        raise _damaged(path, len(data), f"{len(data)} bytes are no whole number of records")
    words = array("i", data)
    if sys.byteorder == "big":
        words.byteswap()
    table: dict[bytes, dict[int, int]] = {}
    at = 0
    while at < len(words):
        at = _read_record(path, words, at, n_vocab, table)
    return table


def _read_record(
    path: Path,
    words: array[int],
    at: int,
    n_vocab: int | None,
    table: dict[bytes, dict[int, int]],
) -> int:
    """Enter the record at word ``at`` into ``table``; the word after it."""
    if at + LONGEST + 1 > len(words):
        raise _damaged(path, at * 4, f"the record has {len(words) - at} of its first 5 numbers")
    key = words[at : at + LONGEST]
    while key and key[-1] == -1:
        key.pop()
    n_tokens, begin = words[at + LONGEST], at + LONGEST + 1
    end = begin + 2 * n_tokens
    if not 0 < n_tokens <= (len(words) - begin) // 2:
        raise _damaged(
            path, at * 4, f"{n_tokens} tokens are announced, {(len(words) - begin) // 2} can follow"
        )
    tokens, counts = words[begin:end:2], words[begin + 1 : end : 2]
    if not key or min(key) < 0 or min(tokens) < 0:
        raise _damaged(path, at * 4, f"a token id is negative: {list(words[at:begin])}")
    if min(counts) <= 0:
        raise _damaged(path, at * 4, f"a count is {min(counts)}")
    largest = max(max(key), max(tokens))
    if n_vocab is not None and largest >= n_vocab:
        raise InputError(
            f"{path}: token id {largest} is outside the vocabulary of {n_vocab}",
            hint="the look-up cache was made for another model; make one for this",
        )
    # Of records that repeat, llama.cpp keeps the first.
    if key.tobytes() not in table:
        followers = table[key.tobytes()] = {}
        for token, count in zip(tokens, counts, strict=True):
            followers.setdefault(token, count)
    return end


def _damaged(path: Path, offset: int, why: str) -> InputError:
    return InputError(
        f"{path} is not a look-up cache, or damaged at byte {offset}: {why}",
        hint="make it again with llama.cpp's llama-lookup-create",
    )
