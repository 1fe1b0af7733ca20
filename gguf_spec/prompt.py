"""From messages to prompt tokens: the model's chat template, with content that stays content.

A chat template writes control tokens (``<|im_start|>`` …) as text, and tokenizing must recognise
them there. The same characters inside a message are something that somebody wrote: they must not
become control tokens, or whoever writes a message could end it and speak in another role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gguf_spec.errors import InputError

if TYPE_CHECKING:
    from gguf_spec.profile import Profile

Message = Mapping[str, str]

# A Unicode noncharacter: it never stands for a character, so taking it out of content is no loss.
_MARK = "\ufdd0"
# What somebody, or a model, wrote in a message; a model's reasoning has a name of its own.
_CONTENTS = frozenset(("content", "reasoning_content"))


class Vocabulary(Protocol):
    """What tokenizing needs to know of a model."""

    @property
    def add_bos(self) -> bool: ...
    @property
    def bos(self) -> int: ...
    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]: ...
    def is_control(self, token: int) -> bool: ...
    def special_text(self, token: int) -> str: ...


class Template(Protocol):
    """Renders messages to text, control tokens written out, ready for the answer to follow."""

    def render(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> str: ...


def chat_tokens(
    messages: Sequence[Message],
    template: Template,
    vocabulary: Vocabulary,
    arguments: Mapping[str, Any] | None = None,
) -> list[int]:
    """Prompt tokens of ``messages``.

    Raises:
        InputError: the template refuses the messages.
    """
    marked, control = _mark(messages, vocabulary)
    text = template.render(marked, arguments or {})
    bos = vocabulary.special_text(vocabulary.bos)
    # llama.cpp adds BOS when it tokenizes, and drops one that the template wrote.
    add_bos = vocabulary.add_bos and bool(bos) and not text.startswith(bos)
    tokens = [vocabulary.bos] if add_bos else []
    for piece, is_content in _pieces(text, marked, control):
        tokens += vocabulary.tokenize(piece, parse_special=not is_content)
    return tokens


def template_arguments(profile: Profile) -> dict[str, Any]:
    """What the profile's wishes about reasoning mean to a chat template. Qwen, GLM and most others
    look at ``enable_thinking``, DeepSeek V3.1 and Kimi K3 at ``thinking``; Seed-OSS tells the model
    its ``thinking_budget``."""
    chat = profile.chat
    arguments: dict[str, Any] = {}
    if chat.think != "auto":
        arguments["enable_thinking"] = arguments["thinking"] = chat.think == "on"
    if chat.reasoning_effort != "auto":
        arguments["reasoning_effort"] = chat.reasoning_effort
    if chat.think_budget >= 0:
        arguments["thinking_budget"] = chat.think_budget
    return arguments


def raw_tokens(text: str, vocabulary: Vocabulary) -> list[int]:
    """Prompt tokens of ``text`` as it is: control tokens recognised, BOS if the vocabulary says so
    and the text does not begin with it."""
    bos = vocabulary.special_text(vocabulary.bos)
    doubled = bool(bos) and text.startswith(bos)
    return vocabulary.tokenize(text, add_special=not doubled, parse_special=True)


def _mark(
    messages: Sequence[Message], vocabulary: Vocabulary
) -> tuple[list[dict[str, str]], list[str]]:
    """Messages in which every control token written in content carries a mark after its first
    character, and the texts of those control tokens."""
    texts: set[str] = set()
    marked = []
    for message in messages:
        contents = {}
        for name in _CONTENTS & message.keys():
            content = message[name].replace(_MARK, "")
            found = {
                vocabulary.special_text(token)
                for token in vocabulary.tokenize(content, parse_special=True)
                if vocabulary.is_control(token)
            }
            found = {text for text in found if text and text in content}
            texts |= found
            for text in sorted(found, key=len, reverse=True):
                content = content.replace(text, text[0] + _MARK + text[1:])
            contents[name] = content
        marked.append({**message, **contents})
    return marked, sorted(texts, key=len, reverse=True)


def _pieces(text: str, marked: Sequence[Message], control: Sequence[str]) -> list[tuple[str, bool]]:
    """``text`` cut into (piece, is it content): whole marked contents where the template kept them
    as they are, else the marked control tokens alone."""
    if not control:
        return [(text, False)]
    contents = [
        message[name].strip()
        for message in marked
        for name in _CONTENTS & message.keys()
        if _MARK in message[name]
    ]
    spans = contents + [t[0] + _MARK + t[1:] for t in control]
    pattern = re.compile("|".join(re.escape(s) for s in sorted(spans, key=len, reverse=True)))
    pieces, end = [], 0
    for match in pattern.finditer(text):
        pieces += [(text[end : match.start()], False), (match.group(), True)]
        end = match.end()
    pieces.append((text[end:], False))
    return [(piece.replace(_MARK, ""), content) for piece, content in pieces if piece]


def template_error(error: Exception) -> InputError:
    """The error for a template that failed on some messages."""
    return InputError(
        f"the chat template refuses these messages: {error}",
        hint="--raw sends the prompt without a template",
    )
