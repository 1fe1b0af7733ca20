"""A limit on reasoning holds for every token, and is the same with drafts and without."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from gguf_spec.control import FixedPolicy
from gguf_spec.engine import Engine, Request
from gguf_spec.errors import RunError
from gguf_spec.reasoning import ReasoningFormat
from gguf_spec.sampling import Mask, Sampler, SamplingParams
from gguf_spec.thinking import BudgetMask, Thinking
from tests.test_engine import Hostile, Oracle, plain, prompt_for, run_all
from tests.toy import ToyContext
from tests.toy_mask import ToyMask
from tests.toy_text import ToyVocabulary

THINK = ReasoningFormat("tags", "<think>", "</think>")
# Of the toy's 24 tokens: the first tag, the last one in two pieces, parts of a character.
PIECES = {5: b"<think>", 6: b"</thi", 7: b"nk>", 8: b"\xc3", 9: b"\xa9"}
ENDING = [6, 7]


def piece(token: int) -> bytes:
    return PIECES.get(token, bytes([97 + token]))


def mask(budget: int, *, prompt: str = "<think>", inner: Mask | None = None) -> BudgetMask:
    return BudgetMask(THINK.splitter(prompt), budget, ENDING, piece, inner)


def forced(one: BudgetMask) -> list[int]:
    return np.flatnonzero(one.legal(np.arange(24))).tolist()


def test_the_end_mark_is_forced_and_then_nothing_is() -> None:
    one = mask(2)
    for token in (1, 2):
        assert len(forced(one)) == 24
        one.advance(token)
    for token in ENDING:
        assert forced(one) == [token]
        one.advance(token)
    assert len(forced(one)) == 24


def test_an_illegal_token_changes_nothing() -> None:
    one = mask(0)
    with pytest.raises(RunError, match="token 3 may not come"):
        one.advance(3)
    assert forced(one) == [6]


def test_a_character_is_completed_first() -> None:
    one = mask(1)
    one.advance(8)
    assert len(forced(one)) == 24
    one.advance(9)
    assert forced(one) == [6]


def test_a_text_that_ends_its_reasoning_by_itself_is_left_alone() -> None:
    one = mask(4)
    for token in (1, *ENDING, 1, 2, 3, 4, 5, 1, 2):
        assert len(forced(one)) == 24
        one.advance(token)


def test_only_reasoning_counts() -> None:
    one = mask(0, prompt="")
    assert len(forced(one)) == 24
    copy = one.copy()
    one.advance(5)
    assert forced(one) == [6]
    copy.advance(1)
    copy.advance(5)  # in an answer
    assert len(forced(copy)) == 24


def test_copies_are_apart() -> None:
    one = mask(1)
    copy = one.copy()
    copy.advance(1)
    copy.advance(6)
    assert (forced(copy), len(forced(one))) == ([7], 24)


def test_a_grammar_goes_on_behind_it() -> None:
    inner = ToyMask()
    one = mask(0, inner=inner)
    inner.legal = lambda ids: np.ones(len(ids), dtype=bool)  # type: ignore[method-assign]
    for token in ENDING:
        one.advance(token)
    assert inner.taken == ENDING
    del inner.legal
    assert forced(one) == np.flatnonzero(inner.legal(np.arange(24))).tolist()


def limited(seed: int, budget: int, temperature: float) -> Request:
    params = SamplingParams(temperature=temperature, seed=seed)
    return Request(prompt_for(seed), Sampler(params, mask=mask(budget)), 40)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("removes_tail", [True, False])
def test_drafts_change_nothing(temperature: float, removes_tail: bool) -> None:
    for seed in range(8):
        for budget in (0, 1, 7):
            wanted = limited(seed, budget, temperature)
            text = plain(wanted)
            if len(text) > budget + 2:
                assert 7 in text[: budget + 3]
            engine = Engine(ToyContext(seed, removes_tail=removes_tail))
            drafters = [Hostile(seed, 24), Oracle([*wanted.prompt, *text], frozenset({3}), 24)]
            sequence = engine.open(drafters, FixedPolicy([5, 15]))
            assert run_all(engine, [(sequence, wanted)]) == [text]
            assert sequence.progress.spec.total.num_accepted_tokens or len(text) < 9


# ------------------------------------------------------------------- tokens of a model


class Marked(ToyVocabulary):
    """One that knows its control tokens where they are written out."""

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        found: list[int] = []
        pattern = "|".join(map(re.escape, self.controls))
        for part in re.split(f"({pattern})", text) if parse_special else [text]:
            known = parse_special and part in self.controls
            found += [self.controls.index(part)] if known else super().tokenize(part)
        return found


CONTROLS = ("<end>", "<bos>", "<|start|>", "[THINK]", "[/THINK]")
MODEL = Marked([bytes([b]) for b in range(256)] + [b"<think>"], CONTROLS)


def tokens(text: str) -> list[int]:
    return MODEL.tokenize(text, parse_special=True)


def test_marks_that_are_control_tokens_are_written_out() -> None:
    thinking = Thinking("[THINK]{{ x }}[/THINK]", MODEL)
    shown = b"".join(map(thinking.piece, tokens("[THINK]a[/THINK]b<end>")))
    assert shown == b"[THINK]a[/THINK]b"
    assert Thinking("no reasoning", MODEL).piece == MODEL.piece


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<|start|>x<|start|>assistant<think>\n", True),
        ("<|start|>what is <think><|start|>assistant\n", False),
        ("<|start|>x<|start|>assistant<think>\n\n</think>\n\n", False),
    ],
)
def test_what_the_template_wrote_tells_where_a_text_begins(prompt: str, inside: bool) -> None:
    splitter = Thinking("<think></think>", MODEL).splitter(tokens(prompt))
    assert splitter is not None
    assert splitter.inside == inside


def test_no_limit_is_no_mask() -> None:
    prompt: Sequence[int] = tokens("<think>")
    inner = ToyMask()
    assert Thinking("<think></think>", MODEL).limited(prompt, -1, inner) is inner
    assert Thinking("plain", MODEL).limited(prompt, 5, None) is None
    limit = Thinking("<think></think>", MODEL).limited(prompt, 0, None)
    assert limit is not None
    (first,) = np.flatnonzero(limit.legal(np.arange(MODEL.n_vocab)))
    assert MODEL.piece(int(first)) == b"<"
