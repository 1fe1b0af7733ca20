"""Conversations as JSON files, with the caches beside them on request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_spec import user_files
from gguf_spec.errors import InputError

FORMAT = "gguf-spec conversation"
VERSION = 1
_ROLES = ("user", "assistant")
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class SavedChat:
    """What a file holds. ``messages``: user and assistant in turn, each a role and a content; an
    assistant's may have ``reasoning_content``."""

    system: str
    messages: list[dict[str, str]]
    model: str = ""


def save_chat(path: Path, chat: SavedChat, more: dict[str, Any]) -> None:
    """Write ``chat`` and ``more`` facts that loading does not need. The file is there in whole, or
    as it was before.

    Raises:
        InputError: it cannot be written.
    """
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": chat.model,
        "system": chat.system,
        "messages": chat.messages,
        **more,
    }
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    write_whole(path, text.encode("utf-8", "replace"))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in one go. Raises InputError if it cannot be written."""
    try:
        user_files.write_whole(path, data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be written: {reason}") from None


def load_chat(path: Path) -> SavedChat:
    """Read what ``save_chat`` wrote.

    Raises:
        InputError: the file cannot be read, or is no conversation.
    """
    try:
        document = json.loads(user_files.read_whole(path, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason}") from None
    problem = _problem(document)
    if problem:
        raise InputError(f"{path} is no conversation: {problem}", hint="/save writes such files")
    messages = [
        {key: message[key] for key in ("role", "content", "reasoning_content") if key in message}
        for message in document["messages"]
    ]
    return SavedChat(document.get("system", ""), messages, str(document.get("model", "")))


def _problem(document: Any) -> str | None:
    """What is wrong with the content of a file; None if it can be used."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return f'it does not say "format": "{FORMAT}"'
    if document.get("version") != VERSION:
        return f"its version is {document.get('version')!r}, known is {VERSION}"
    if not isinstance(document.get("system", ""), str):
        return "the system message is no text"
    messages = document.get("messages")
    if not isinstance(messages, list):
        return "there is no list of messages"
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != _ROLES[i % 2]:
            return f"message {i + 1} is not the {_ROLES[i % 2]}'s"
        if not isinstance(message.get("content"), str):
            return f"message {i + 1} has no text"
        if not isinstance(message.get("reasoning_content", ""), str):
            return f"the reasoning of message {i + 1} is no text"
    return "the last message has no answer" if len(messages) % 2 else None
