"""The target's cache in a file, so that a long conversation need not be read again.

A state fits one model, one build and one set of sizes, which the file names. libllama trusts the
bytes that it is given, so a file is signed with a key that lies among the user's settings: what was
made elsewhere, or was damaged, never reaches it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from array import array
from pathlib import Path
from typing import Any

from gguf_spec.backend.seq_state import dump_state, put_state
from gguf_spec.errors import InputError
from gguf_spec.folders import home_config_dir
from gguf_spec.session import Session
from gguf_spec.user_files import is_readable, write_whole

_MAGIC = b"gguf-spec state 1\n"
_DIGEST = hashlib.sha256().digest_size
_MOST_HEAD = 1 << 20


def save_state(session: Session, path: Path) -> int:
    """Write the cache of ``session`` to ``path``; gives back how many tokens it holds.

    Raises:
        InputError: it cannot be written.
        BackendError: this libllama does not hand it out.
    """
    sequence = session.sequence
    n = sequence.n_cached if sequence.consistent else 0
    if not n:
        raise InputError("there is nothing in the cache to save")
    head = json.dumps({**_facts(session), "n_tokens": n}).encode() + b"\n"
    tokens = array("i", sequence.history[:n]).tobytes()
    body = b"".join((_MAGIC, head, tokens, dump_state(session.context, sequence.seq)))
    try:
        write_whole(path, body, hmac.digest(_key(), body, "sha256"))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    return n


def load_state(session: Session, path: Path) -> int:
    """Fill the cache of ``session`` from ``path``; gives back how many tokens it holds.

    Raises:
        InputError: the file cannot be read, was changed, or is of another model or set-up; the
            cache is empty if libllama was asked, else as before.
    """
    try:
        if path.exists() and not is_readable(path):
            raise InputError(f"{path} is not a regular file")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not data.startswith(_MAGIC):
        raise InputError(f"{path} is no saved state")
    if not hmac.compare_digest(hmac.digest(_key(), body, "sha256"), digest):
        raise InputError(
            f"{path} is damaged, or was made with other settings in {home_config_dir()}",
            hint="the conversation itself loads without it",
        )
    end = body.index(b"\n", len(_MAGIC), len(_MAGIC) + _MOST_HEAD) + 1
    head: dict[str, Any] = json.loads(body[len(_MAGIC) : end])
    n = int(head.pop("n_tokens"))
    for name, value in _facts(session).items():
        if head.get(name) != value:
            raise InputError(f"{path} is of another set-up: {name} {head.get(name)}, here {value}")
    tokens = array("i")
    tokens.frombytes(body[end : end + n * tokens.itemsize])
    sequence = session.sequence
    if not put_state(session.context, sequence.seq, body[end + n * tokens.itemsize :]):
        sequence.adopt(())
        raise InputError(f"libllama does not take the state in {path}")
    sequence.adopt(tokens.tolist())
    return n


def _facts(session: Session) -> dict[str, Any]:
    """What has to be the same for a state to be of use."""
    params = session.context.params
    file = session.setup.path.stat()
    return {
        "model": session.setup.path.name,
        "model_bytes": file.st_size,
        "model_time": file.st_mtime_ns,
        "llama_cpp": session.model.lib.version,
        "n_ctx": session.context.n_ctx,
        "type_k": params.type_k,
        "type_v": params.type_v,
        "flash_attn": params.flash_attn,
        "swa_full": params.swa_full,
        "rope": list(map(list, params.rope)),
        "loras": [[str(lora.path), lora.scale] for lora in session.setup.loras],
        "n_rs_seq": params.n_rs_seq,
    }


def _key() -> bytes:
    """The user's key, made when it is first needed. Raises OSError."""
    path = home_config_dir() / "state.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(secrets.token_bytes(32))
        return path.read_bytes()
