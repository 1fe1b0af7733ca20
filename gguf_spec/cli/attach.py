"""``@path`` in a message: the file's text goes along with it."""

from __future__ import annotations

import re
from pathlib import Path

from gguf_spec.cli.prompts import read_text

# At the start of a word: addresses such as me@example.org are none. Quotes for names with spaces.
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_AFTER = ".,;:!?)"


def attached(message: str) -> tuple[str, list[str]]:
    """``message`` with the texts of the files that it names behind it, and their names.

    A word with @ that is no file stays a word.

    Raises:
        InputError: a file cannot be read or is not UTF-8.
    """
    names: list[str] = []
    for quoted, plain in _MENTION.findall(message):
        found = [name for name in (quoted or plain, plain.rstrip(_AFTER)) if _is_file(name)]
        if found and found[0] not in names:
            names.append(found[0])
    texts = [_fenced(name, read_text(name, "@")) for name in names]
    return "\n\n".join([message, *texts]), names


def _fenced(name: str, text: str) -> str:
    """A block of code that no line of ``text`` can end."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * max(longest + 1, 3)
    return f"{name}:\n{fence}\n{text}\n{fence}"


def _is_file(name: str) -> bool:
    try:
        return bool(name) and Path(name).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False
