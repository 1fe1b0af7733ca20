"""Reasoning and answer told apart, whatever pieces the text comes in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.reasoning import Part, ReasoningFormat, Splitter, split

QWEN3 = "{{ '<|im_start|>assistant\n' }}{{ '<think>\n\n</think>\n\n' }}"
GPT_OSS = "<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>"
GEMMA4 = "<|turn>model\n<|channel>thought\n<channel|>"
SEED = "{%- set think_end_token = '</seed:think>' %}"
MISTRAL = "[THINK]{{ r }}[/THINK]"


def format_of(template: str) -> ReasoningFormat:
    found = ReasoningFormat.of(template)
    assert found is not None
    return found


def run(splitter: Splitter, pieces: Sequence[str]) -> list[Part]:
    parts = [part for piece in pieces for part in splitter.feed(piece)]
    return parts + splitter.flush()


def joined(parts: Sequence[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


CASES = {
    "the model opens": (QWEN3, "", "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
    "the template opened": (QWEN3, "assistant\n<think>\n", "hm</think>Yes.", "hm", "Yes."),
    "the template closed": (QWEN3, "assistant\n<think>\n\n</think>\n\n", "Yes.", "", "Yes."),
    "no reasoning": (QWEN3, "assistant\n", "Yes, a < b.", "", "Yes, a < b."),
    "a tag in the answer": (QWEN3, "", "Write <think>x</think>.", "", "Write <think>x</think>."),
    "a tag after reasoning": (
        QWEN3, "", "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
    "cut inside": (QWEN3, "", "<think>\nhm </thi", "hm </thi", ""),
    "cut in the first tag": (QWEN3, "", " <thi", "", " <thi"),
    "Seed-OSS": (SEED, "", "<seed:think>a</seed:think>b", "a", "b"),
    "Ministral": (MISTRAL, "", "[THINK]a[/THINK]b", "a", "b"),
    "gpt-oss": (
        GPT_OSS, "<|start|>assistant",
        "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>final<|message|>So.",
        "Why?", "So."),
    "gpt-oss, two analyses and a preamble": (
        GPT_OSS, "<|start|>assistant",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
        "<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
        "<|channel|>final<|message|>d", "a\n\nb", "cd"),
    "gpt-oss without marks": (GPT_OSS, "<|start|>assistant", "Just text.", "", "Just text."),
    "gpt-oss, a header that never ends": (
        GPT_OSS, "<|start|>assistant", "<|channel|>fin", "", "<|channel|>fin"),
    "gpt-oss, raw": (GPT_OSS, "Once", " upon<|end|><|start|>assistant", "", None),
    "Gemma 4": (GEMMA4, "<|turn>model\n", "<|channel>thought\na<channel|>b", "a", "b"),
    "Gemma 4, again": (
        GEMMA4, "", "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d",
        "a\n\nc", "bd"),
}  # fmt: skip


@pytest.mark.parametrize("case", [name for name in CASES if CASES[name][3] and CASES[name][4]])
def test_the_last_reasoning_ends_with_the_mark_of_the_answer(case: str) -> None:
    template, _, text, _, answer = CASES[case]
    mark = format_of(template).answer_mark
    before, _, after = text.partition(mark)
    assert before.strip()
    assert answer is not None
    assert after.strip()[:1] in answer


@pytest.mark.parametrize(
    ("template", "prompt", "text", "reasoning", "answer"), CASES.values(), ids=CASES
)
def test_formats(template: str, prompt: str, text: str, reasoning: str, answer: str | None) -> None:
    found = format_of(template)
    whole = split(text, found.splitter(prompt))
    assert whole[0] == reasoning
    if answer is not None:
        assert whole[1] == answer
    for size in (1, 2, 3, 7):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        parts = run(found.splitter(prompt), pieces)
        assert "".join(part.text for part in parts) == text
        assert [joined(parts, k).split() for k in ("reasoning", "answer")] == [
            joined(run(found.splitter(prompt), [text]), k).split() for k in ("reasoning", "answer")
        ]


MARKS = [
    *("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "assistant"),
    *("analysis", "final", "<|channel>thought\n", "<channel|>", "a", " ", "\n", "<", "|>", "é"),
]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([QWEN3, GPT_OSS, GEMMA4]),
    st.sampled_from(["", "assistant", "<think>\n"]),
    st.lists(st.sampled_from(MARKS), max_size=14),
    st.lists(st.integers(1, 9), max_size=20),
)
def test_nothing_is_lost_and_pieces_do_not_matter(
    template: str, prompt: str, marks: list[str], cuts: list[int]
) -> None:
    text, found, pieces, at = "".join(marks), format_of(template), [], 0
    for cut in cuts:
        pieces.append(text[at : at + cut])
        at += cut
    pieces.append(text[at:])
    parts = run(found.splitter(prompt), pieces)
    assert "".join(part.text for part in parts) == text
    whole = run(found.splitter(prompt), [text])
    for kind in ("reasoning", "answer", "mark"):
        assert joined(parts, kind) == joined(whole, kind)


def test_text_comes_out_as_soon_as_it_is_known() -> None:
    splitter = format_of(QWEN3).splitter()
    assert splitter.feed("<thi") == []
    assert splitter.feed("nk>a <") == [Part("mark", "<think>"), Part("reasoning", "a ")]
    assert splitter.inside
    copy = splitter.copy()
    assert splitter.feed("b") == [Part("reasoning", "<b")]
    assert copy.feed("/think>") == [Part("mark", "</think>")]
    assert (splitter.inside, copy.inside) == (True, False)


@pytest.mark.parametrize("template", [None, "", "{{ messages }}", "<|im_start|>{{ thinking }}"])
def test_models_that_do_not_reason(template: str | None) -> None:
    assert ReasoningFormat.of(template) is None
    assert split("<think>a</think>b", None) == ("", "<think>a</think>b")
