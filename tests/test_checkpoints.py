"""Going back in a cache that cannot be cut back, between generations."""

from __future__ import annotations

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel
from gguf_spec.control import FixedPolicy
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.sampling import Sampler, SamplingParams
from tests.toy import ToyContext

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def opened(*, removes_tail: bool = False) -> tuple[Engine, SequenceState, ToyContext]:
    target = ToyContext(5, removes_tail=removes_tail, end_bias=-99)
    engine = Engine(target)
    sequence = engine.open([], FixedPolicy(()))
    sequence.checkpoints.enabled = True
    return engine, sequence, target


def answer(engine: Engine, sequence: SequenceState, prompt: list[int], n: int = 8) -> list[int]:
    request = Request(prompt, Sampler(SamplingParams(temperature=0.7, seed=2)), n)
    return [t for step in engine.generate(sequence, request) for t in step.tokens]


def fresh(prompt: list[int]) -> list[int]:
    engine, sequence, _ = opened(removes_tail=True)
    return answer(engine, sequence, prompt)


def test_an_answer_that_changed_is_read_again_and_no_more() -> None:
    engine, sequence, _ = opened()
    first = answer(engine, sequence, PROMPT)
    prompt = [*PROMPT, *first[4:], 7, 7]  # as without its reasoning
    assert answer(engine, sequence, prompt) == fresh(prompt)
    # The last token of a prompt is decoded alone, and again.
    assert sequence.progress.cached_tokens == len(PROMPT) - 1


def test_undo_goes_back_to_the_end_of_the_turn_before() -> None:
    engine, sequence, _ = opened()
    first = answer(engine, sequence, PROMPT)
    second = [*PROMPT, *first, 7, 7, 7]
    answer(engine, sequence, second)
    cached = sequence.progress.cached_tokens
    assert cached == len(PROMPT) + len(first) - 1
    other = [*PROMPT, *first, 6, 6]
    assert answer(engine, sequence, other) == fresh(other)
    assert sequence.progress.cached_tokens == cached
    assert answer(engine, sequence, other) == fresh(other)  # retry
    assert sequence.progress.cached_tokens == len(other) - 1


def test_the_first_prompt_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sequence, target = opened()
    text = answer(engine, sequence, PROMPT)
    rows: list[int] = []
    real = target.decode
    monkeypatch.setattr(
        target, "decode", lambda runs: (rows.extend(len(r.tokens) for r in runs), real(runs))[1]
    )
    assert answer(engine, sequence, PROMPT) == text
    assert rows == [1] * len(text)


def test_batches_are_the_same_whether_states_are_kept_or_not() -> None:
    """Others would be other arithmetic, so that ``run`` and ``chat`` might differ at a near-tie."""
    rows: dict[bool, list[int]] = {True: [], False: []}
    for enabled, seen in rows.items():
        engine, sequence, target = opened()
        sequence.checkpoints.enabled = enabled
        real = target.decode
        target.decode = (  # type: ignore[method-assign]
            lambda runs, seen=seen, real=real: (
                seen.extend(len(r.tokens) for r in runs),
                real(runs),
            )[1]
        )
        answer(engine, sequence, PROMPT)
    assert rows[True] == rows[False]
    assert rows[True][:3] == [16, len(PROMPT) - 17, 1]


def test_a_state_of_another_text_is_not_used() -> None:
    engine, sequence, _ = opened()
    answer(engine, sequence, PROMPT)
    other = [*PROMPT[:10], 1, 1, *PROMPT[12:]]
    assert answer(engine, sequence, other) == fresh(other)
    assert answer(engine, sequence, PROMPT) == fresh(PROMPT)
    assert sequence.progress.cached_tokens == 0


def test_few_states_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sequence, target = opened()
    saved: list[int] = []
    real = target.save
    monkeypatch.setattr(
        target, "save", lambda seq: saved.append(len(target.cache[seq])) or real(seq)
    )
    text = list(PROMPT)
    for _ in range(8):
        text += [*answer(engine, sequence, text), 7]
    assert len(sequence.checkpoints._kept) == 6
    assert saved == sorted(set(saved))


def test_nothing_is_saved_where_tails_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sequence, target = opened(removes_tail=True)
    monkeypatch.setattr(target, "save", None)
    answer(engine, sequence, PROMPT)
    answer(engine, sequence, PROMPT[:9])
    assert sequence.progress.cached_tokens == 8


def test_nothing_is_saved_outside_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sequence, target = opened()
    sequence.checkpoints.enabled = False
    monkeypatch.setattr(target, "save", None)
    answer(engine, sequence, PROMPT)
    assert answer(engine, sequence, PROMPT) == fresh(PROMPT)
    assert sequence.progress.cached_tokens == 0


@pytest.mark.parametrize(("size", "kept"), [(1 << 20, 6), (200 << 20, 5), (300 << 20, 0)])
def test_large_states_are_few_or_none(size: int, kept: int) -> None:
    engine, sequence, target = opened()
    target.saved_bytes = size  # type: ignore[attr-defined]
    text = list(PROMPT)
    for _ in range(5):
        text += [*answer(engine, sequence, text), 7]
    assert len(sequence.checkpoints._kept) == kept


@pytest.mark.model
def test_a_sliding_window_goes_back(gemma3: LlamaModel) -> None:
    """Cells behind the window are gone: without a state the whole text would be read again."""
    words = gemma3.tokenize("The river is long, and many people have told stories of it. " * 50)
    context = LlamaContext(gemma3, ContextParams(n_ctx=1024, n_ubatch=128, n_threads=1))
    with context:
        engine = Engine(context)
        sequence = engine.open([], FixedPolicy(()))
        sequence.checkpoints.enabled = True
        first = answer(engine, sequence, words[:250], 4)
        begin = [*words[:250], *first[:3]]
        answer(engine, sequence, [*begin, *words[20:620]], 2)
        assert not context.remove(sequence.seq, len(begin))
        answer(engine, sequence, [*begin, *words[5:9]], 4)
        assert sequence.progress.cached_tokens == len(begin)
