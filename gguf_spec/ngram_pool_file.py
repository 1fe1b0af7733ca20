"""Texts for n-gram drafters that outlive the program: one file per profile and tokenizer.

The layout, in little-endian integers: 8 bytes of magic, then 32-bit version, size of the
vocabulary, number of texts, number of tokens and CRC-32 of the body; the fingerprint as 16 ASCII
characters; and as the body the length of each text in tokens, then the tokens, the latest text
last. The file holds what was said, so only its owner may read it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import sys
import tempfile
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gguf_spec.errors import InputError

MAX_TOKENS = 262_144
"""Most tokens in a file, a mebibyte of them."""

_MAGIC = b"GGSPPOOL"
_VERSION = 1
_HEADER = struct.Struct("<8s5I16s")
_HINT = "delete the file: it is made again from what comes"


def pool_path(folder: Path, profile_name: str, fingerprint: str) -> Path:
    """The file for the profile ``profile_name`` and a tokenizer of this fingerprint.

    The name is made safe for any file system; a digest keeps apart names that look alike then.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]+", "-", profile_name)[:40].strip("-") or "profile"
    name = f"{profile_name}\n{fingerprint}".encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(name).hexdigest()[:16]
    return folder / f"{safe}-{digest}.pool"


def save_pool(
    path: Path, texts: Sequence[Sequence[int]], *, fingerprint: str, n_vocab: int
) -> None:
    """Replace the file at ``path``; of the texts the last ``MAX_TOKENS`` tokens are kept.

    A reader sees the old file or the new one, never a part; of two writers the last one wins.

    Raises:
        InputError: the file cannot be written.
    """
    kept: list[array[int]] = []
    room = MAX_TOKENS
    for text in reversed(texts):
        if room == 0:
            break
        tokens = array("i", text[max(len(text) - room, 0) :])
        if tokens:
            kept.append(tokens)
            room -= len(tokens)
    kept.reverse()
    lengths = array("i", [len(tokens) for tokens in kept])
    body = b"".join(_little(numbers).tobytes() for numbers in (lengths, *kept))
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        n_vocab,
        len(kept),
        MAX_TOKENS - room,
        zlib.crc32(body),
        _ascii(fingerprint),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, header + body)
    except OSError as error:
        raise InputError(f"{path}: cannot write the n-gram pool: {error.strerror}") from error


def load_pool(path: Path, *, fingerprint: str, n_vocab: int) -> list[list[int]]:
    """The texts in the file at ``path``, the latest last; none if there is no such file.

    Raises:
        InputError: the file cannot be read, is empty or damaged, has another version, or was made
            with another tokenizer.
    """
    largest = _HEADER.size + 8 * MAX_TOKENS
    try:
        if not is_pool_file(path):
            raise InputError(f"{path} is not a regular file, and so no n-gram pool", hint=_HINT)
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except (FileNotFoundError, NotADirectoryError):  # saving says what is wrong with the folder
        return []
    except OSError as error:
        raise InputError(
            f"{path}: cannot read the n-gram pool: {error.strerror}",
            hint="check the path's rights, or do without the pool: --set spec.pool=session",
        ) from error
    if len(data) < _HEADER.size:
        raise _damaged(path, f"it has {len(data)} bytes, its header alone has {_HEADER.size}")
    magic, version, vocab, n_texts, n_tokens, crc, made_for = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise _damaged(path, f"it begins with {magic!r} instead of {_MAGIC!r}")
    if version != _VERSION:
        raise InputError(f"{path} has version {version}, this program reads {_VERSION}", hint=_HINT)
    if made_for != _ascii(fingerprint) or vocab != n_vocab:
        raise InputError(
            f"{path} was made with another tokenizer: fingerprint "
            f"{made_for.decode('ascii', 'replace').rstrip(chr(0))} with {vocab} tokens, "
            f"the model has {fingerprint} with {n_vocab}",
            hint=_HINT,
        )
    body = data[_HEADER.size :]
    if n_tokens > MAX_TOKENS or len(body) != 4 * (n_texts + n_tokens):
        raise _damaged(
            path,
            f"{n_texts} texts of {n_tokens} tokens (at most {MAX_TOKENS}) are announced, "
            f"{len(body)} bytes follow",
        )
    if zlib.crc32(body) != crc:
        raise _damaged(path, f"its checksum is {zlib.crc32(body):08x} instead of {crc:08x}")
    return _texts(path, body, n_texts, n_vocab)


def is_pool_file(path: Path) -> bool:
    """Whether a pool can be read there: to open a named pipe would wait for its other end.

    Raises:
        OSError: as ``os.stat``; FileNotFoundError where there is nothing.
    """
    return stat.S_ISREG(path.stat().st_mode)


def delete_pool(path: Path) -> bool:
    """Delete the file at ``path``; whether there was one.

    Raises:
        InputError: the file cannot be deleted.
    """
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise InputError(f"{path}: cannot delete the n-gram pool: {error.strerror}") from error
    return True


def _texts(path: Path, body: bytes, n_texts: int, n_vocab: int) -> list[list[int]]:
    numbers = _little(array("i", body)).tolist()
    lengths, tokens = numbers[:n_texts], numbers[n_texts:]
    if min(lengths, default=1) < 1 or sum(lengths) != len(tokens):
        raise _damaged(path, f"its texts have {sum(lengths)} tokens, {len(tokens)} follow")
    if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
        raise _damaged(
            path, f"token ids from {min(tokens)} to {max(tokens)}, the vocabulary has {n_vocab}"
        )
    texts: list[list[int]] = []
    at = 0
    for length in lengths:
        texts.append(tokens[at : at + length])
        at += length
    return texts


def _replace(path: Path, data: bytes) -> None:
    """Write a file beside ``path`` (readable by its owner only, as ``mkstemp`` makes them), then
    rename it."""
    handle, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _ascii(fingerprint: str) -> bytes:
    """Exactly 16 bytes; fingerprints are 16 hexadecimal digits."""
    raw = fingerprint.encode("ascii", "replace")
    return raw.ljust(16, b"\0") if len(raw) <= 16 else hashlib.sha256(raw).digest()[:16]


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not an n-gram pool, or damaged: {why}", hint=_HINT)
