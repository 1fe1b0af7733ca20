"""What a text has at least: never more than it has, and enough to refuse a large file."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

from gguf_spec.backend import LlamaModel, ModelParams
from gguf_spec.errors import PromptError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse, read_header
from gguf_spec.prompt_size import check_size, least_tokens
from tests.gguf_writer import model

TARGET = Path(__file__).parent / "models" / "tiny-target.gguf"
INFO = read_header(TARGET)


def info_of(tokens: list[str], tokenizer: str = "gpt2") -> ModelInfo:
    return parse(MemorySource(model(tokens=tokens, tokenizer=tokenizer).build()))


def test_there_are_never_fewer_tokens_than_told() -> None:
    r = random.Random(7)
    texts = ["", "a", "-" * 5000, " \n" * 5000, "def read(self):\n" * 400, "größer 語 " * 400]
    texts += ["".join(r.choices(string.printable + "äß語\ufdd0", k=3000)) for _ in range(20)]
    with LlamaModel(TARGET, ModelParams()) as loaded:
        pieces = [loaded.piece(token) for token in range(loaded.n_vocab)]
        texts += [piece.decode("utf-8", "replace") * 200 for piece in pieces[::7]]
        for text in texts:
            assert least_tokens(INFO, text) <= len(loaded.tokenize(text)), text[:40]


def test_what_is_counted() -> None:
    info = info_of(["a", "b", "aab", "\u0120ab"])
    assert least_tokens(info, "a" * 30) == 10
    assert least_tokens(info, "a" * 31) == 11
    assert least_tokens(info, " a\n" * 30) == 10  # white space may be dropped
    assert least_tokens(info, "zé" * 30) == 0  # no token, so llama.cpp leaves them out
    assert least_tokens(info_of(["a", "<0x63>"]), "c" * 12) == 2
    assert least_tokens(info_of(["a"], "bert"), "a" * 30) == 0  # a word may be one token


def test_a_text_is_refused_with_both_numbers() -> None:
    check_size(INFO, 64, "word " * 800)
    with pytest.raises(PromptError) as caught:
        check_size(INFO, 64, "word " * 200_000)
    least = least_tokens(INFO, "word " * 200_000)
    assert f"at least {least} tokens, the context holds 64" in caught.value.message
