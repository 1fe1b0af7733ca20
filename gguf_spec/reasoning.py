"""Reasoning and answer in one stream of text, told apart as it comes.

Models that reason before they answer write both into one text, with marks between them. Which
marks, their chat template says. Three grammars cover the models that we know:

- tags: ``<think> reasoning </think> answer``. The template may write the first tag itself, so that
  the text begins inside (Qwen3.5, DeepSeek R1). Only what a text begins with is reasoning: an
  answer may well speak of ``<think>``.
- channels of gpt-oss (harmony): ``<|channel|>analysis<|message|> reasoning <|end|><|start|>``
  ``assistant<|channel|>final<|message|> answer``.
- channels of Gemma 4: ``<|channel>thought\\n reasoning <channel|> answer``, again and again.

Nothing is lost: the parts that come out, marks included, are the text that went in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["reasoning", "answer", "mark"]
Grammar = Literal["tags", "harmony", "channel"]

# Pairs of tags, longer names first: "think" stands in other names, too.
_TAGS = (
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ("[THINK]", "[/THINK]"),  # Ministral, Magistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B, A
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<thinking>", "</thinking>"),  # Apriel 1.5
    ("<think>", "</think>"),  # Qwen3, DeepSeek, GLM, SmolLM3, Nemotron, MiniMax-M2 and many more
)
# A header of a harmony message that gets longer than this is no header.
_LONGEST_HEADER = 200


class Part(NamedTuple):
    """A piece of a text, and what it is."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning. ``start`` and ``end`` are marks as written;
    ``end`` is also what has to be written to make a model begin its answer."""

    grammar: Grammar
    start: str
    end: str

    @classmethod
    def of(cls, template: str | None) -> ReasoningFormat | None:
        """The format that a chat template speaks of; None if it speaks of none."""
        if not template:
            return None
        if "<|channel|>" in template and "<|message|>" in template:
            final = "<|end|><|start|>assistant<|channel|>final<|message|>"
            return cls("harmony", "<|channel|>analysis<|message|>", final)
        if "<|channel>" in template and "<channel|>" in template:
            return cls("channel", "<|channel>thought\n", "<channel|>")
        for start, end in _TAGS:
            if end in template:
                return cls("tags", start, end)
        return None

    @property
    def answer_mark(self) -> str:
        """What stands right before the answer, however the model has come to it."""
        return "<|channel|>final<|message|>" if self.grammar == "harmony" else self.end

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be control tokens, and have to be written out to be seen."""
        if self.grammar == "harmony":
            return ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")
        if self.grammar == "channel":
            return ("<|channel>", "<channel|>")
        return (self.start, self.end)

    def splitter(self, prompt: str = "") -> Splitter:
        """A splitter for what follows ``prompt``, which may have begun the reasoning."""
        if self.grammar == "harmony":
            return Splitter(self, "header" if prompt.rstrip().endswith("assistant") else "answer")
        start, end = self.start.strip(), self.end
        opened = prompt.rfind(start) > prompt.rfind(end)
        return Splitter(self, "reasoning" if opened else "begin")


State = Literal["begin", "reasoning", "answer", "header"]


class Splitter:
    """Takes a text in pieces, gives back parts. What may become a mark is held back until it is
    known. Copies are cheap."""

    __slots__ = ("_format", "_held", "_state")

    def __init__(self, marked: ReasoningFormat, state: State) -> None:
        self._format = marked
        self._state: State = state
        self._held = ""

    @property
    def inside(self) -> bool:
        """Whether the text stands in its reasoning."""
        return self._state == "reasoning"

    def copy(self) -> Splitter:
        """One of its own in the same state."""
        return copy.copy(self)

    def feed(self, text: str) -> list[Part]:
        """The parts that ``text`` completes."""
        self._held += text
        return _merged(list(self._parts(final=False)))

    def flush(self) -> list[Part]:
        """What was held back, at the end of the text."""
        parts = _merged(list(self._parts(final=True)))
        held, self._held = self._held, ""
        # A text that ends in a header has no message: whatever it is, it is shown.
        kind: Kind = "reasoning" if self._state == "reasoning" else "answer"
        return [*parts, Part(kind, held)] if held else parts

    def _parts(self, *, final: bool) -> Iterator[Part]:
        while self._held:
            before = self._held, self._state
            yield from self._one(final)
            if (self._held, self._state) == before:
                return

    def _one(self, final: bool) -> Iterator[Part]:
        """One move of the machine: a part or two, and perhaps another state."""
        grammar = self._format.grammar
        if self._state == "begin":
            yield from self._begin(final)
        elif self._state == "header":
            yield from self._header()
        elif self._state == "reasoning":
            end = "<|end|>" if grammar == "harmony" else self._format.end
            yield from self._until(
                (end,), "reasoning", "header" if grammar == "harmony" else "answer", final
            )
        elif grammar == "harmony":
            yield from self._until(("<|end|>", "<|channel|>"), "answer", "header", final)
        elif grammar == "channel":
            yield from self._until((self._format.start,), "answer", "reasoning", final)
        else:
            yield self._take("answer", len(self._held))

    def _begin(self, final: bool) -> Iterator[Part]:
        """The start of a text: reasoning if the first thing in it is the mark."""
        text = self._held.lstrip()
        start = self._format.start
        if text.startswith(start):
            self._state = "reasoning"
            yield self._take("mark", len(self._held) - len(text) + len(start))
        elif final or not start.startswith(text):
            self._state = "answer"

    def _header(self) -> Iterator[Part]:
        """``<|start|>assistant<|channel|>final<|message|>``, from wherever the text begins."""
        if not _may_be_header(self._held):
            self._state = "answer"
            return
        at = self._held.find("<|message|>", 0, _LONGEST_HEADER)
        if at >= 0:
            header = self._held[:at]
            self._state = "reasoning" if "analysis" in header else "answer"
            yield self._take("mark", at + len("<|message|>"))
        elif len(self._held) >= _LONGEST_HEADER:
            self._state = "answer"

    def _until(self, marks: Sequence[str], kind: Kind, state: State, final: bool) -> Iterator[Part]:
        """Text up to the first of ``marks``, which leads to ``state``."""
        found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            if at:
                yield self._take(kind, at)
            self._state = state
            # A harmony header is read as a whole.
            if mark != "<|channel|>":
                yield self._take("mark", len(mark))
            return
        keep = 0 if final else max(_overlap(self._held, mark) for mark in marks)
        if len(self._held) > keep:
            yield self._take(kind, len(self._held) - keep)

    def _take(self, kind: Kind, length: int) -> Part:
        text, self._held = self._held[:length], self._held[length:]
        return Part(kind, text)


def split(text: str, splitter: Splitter | None) -> tuple[str, str]:
    """(reasoning, answer) of a whole text, without marks and the space around them."""
    if splitter is None:
        return "", text
    parts = _merged([*splitter.feed(text), *splitter.flush()])
    reasoning = "\n\n".join(part.text.strip() for part in parts if part.kind == "reasoning")
    answer = "".join(part.text for part in parts if part.kind == "answer")
    marked = any(part.kind == "mark" for part in parts) or bool(reasoning)
    return reasoning.strip(), answer.strip() if marked else answer


def _may_be_header(text: str) -> bool:
    """Whether ``text`` can become the header of a harmony message."""
    first = text.lstrip()
    starts = ("<|start|>", "<|channel|>", "<|message|>", "assistant")
    return any(first.startswith(s) or s.startswith(first) for s in starts)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """``parts`` with neighbours of a kind joined, and nothing empty."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].kind == part.kind:
            merged[-1] = Part(part.kind, merged[-1].text + part.text)
        elif part.text:
            merged.append(part)
    return merged


def _overlap(text: str, mark: str) -> int:
    """Length of the longest proper prefix of ``mark`` that ``text`` ends with."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
