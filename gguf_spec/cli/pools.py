"""``gguf-spec profiles forget``: finding and deleting the texts that a profile keeps."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from gguf_spec.errors import InputError, ProfileError
from gguf_spec.folders import home_cache_dir
from gguf_spec.ngram_pool_file import delete_pool, is_pool_file, pool_path

# The beginning of a pool, as gguf_spec.ngram_pool_file describes it: magic, version, size of the
# vocabulary, texts, tokens, checksum, fingerprint.
_HEADER = struct.Struct("<8s5I16s")
_MAGIC = b"GGSPPOOL"


def forget(where: str) -> dict[str, Any]:
    """Delete what is kept for a profile or model reference, with whatever tokenizer.

    Neither the profile nor the model need be there any more, nor be of any use.

    Raises:
        ProfileError: there is no such profile, and nothing is kept for one.
        InputError: a file cannot be read or deleted.
    """
    from gguf_spec.cli.choice import profile_name
    from gguf_spec.profile import load_profile
    from gguf_spec.refs import is_ref

    name = profile_name(where)
    deleted = []
    for path, counts in _kept(name or (_model_name(where) if is_ref(where) else where)):
        if delete_pool(path):
            deleted.append({"path": str(path), **counts})
    if not deleted and not name and not is_ref(where):
        load_profile(where)  # says what is wrong, and which names there are
        raise ProfileError(f"there is no profile named {where!r}")
    return {"profile": name or where, "deleted": deleted}


def _model_name(where: str) -> str:
    """The name under which ``prepare`` keeps the texts of a model that is run without a profile."""
    from gguf_spec.errors import RefError
    from gguf_spec.profile_find import exists
    from gguf_spec.refs import resolve

    try:
        return str(resolve(where).resolve())
    except RefError:  # the model is gone: perhaps it was named by its path
        if exists(Path(where)):
            raise
        return str(Path(where).absolute())


def _kept(name: str) -> list[tuple[Path, dict[str, int | None]]]:
    """The pools of ``name`` with their sizes, if these can be told.

    A file's name is made from that of the profile and a fingerprint, and the fingerprint is in the
    file. A damaged file of the right name is of no use to anybody, and
    neither is what is no regular file.
    """
    folder = home_cache_dir() / "pools"
    similar = pool_path(folder, name, "").stem.rpartition("-")[0]
    kept: list[tuple[Path, dict[str, int | None]]] = []
    for path in sorted(folder.glob("*.pool")):
        try:
            head = b""
            if is_pool_file(path):
                with path.open("rb") as file:
                    head = file.read(_HEADER.size)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        if len(head) == _HEADER.size and head.startswith(_MAGIC):
            _, _, _, n_texts, n_tokens, _, raw = _HEADER.unpack(head)
            fingerprint = raw.decode("ascii", "replace").rstrip("\0")
            if pool_path(folder, name, fingerprint) == path:
                kept.append((path, {"texts": n_texts, "tokens": n_tokens}))
        elif re.fullmatch(rf"{re.escape(similar)}-[0-9a-f]{{16}}", path.stem):
            kept.append((path, {"texts": None, "tokens": None}))
    return kept
