"""Drafts across the vocabularies of real models: the same text, and tokens that are accepted.

Exact settings make batches of any width compute alike: a bf16 cache, flash attention, and weights
that are not rearranged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.translated import TranslatedDraft
from gguf_spec.engine import Engine, Request
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.stats import DraftCounts
from gguf_spec.translation import TextTranslation, make_translation
from gguf_spec.vocabulary import Lexicon
from tests.toy_text import TEXT, ScriptContext

PROSE = "Once upon a time, in a small village by the sea, there lived an old fisherman who"
CODE = 'def fibonacci(n):\n    """Return the n-th number."""\n    if n < 2:\n        return n\n'


def complete(
    context: LlamaContext, drafters: list[Drafter], prompt: list[int], sampler: Sampler, n: int
) -> tuple[list[int], DraftCounts]:
    engine = Engine(context)
    sequence = engine.open(drafters, FixedPolicy([4] * len(drafters)))
    wanted = Request(prompt, sampler, n, ignore_end=True)
    tokens = [token for step in engine.generate(sequence, wanted) for token in step.tokens]
    return tokens, sequence.progress.spec.total


def check(target: LlamaModel, draft: LlamaModel, n: int) -> float:
    """Texts are equal, greedy and not; the greedy share of accepted tokens, prose and code."""
    exact = {"n_ctx": 256, "type_k": "bf16", "type_v": "bf16", "flash_attn": "on"}
    drafted = accepted = 0
    with (
        LlamaContext(target, ContextParams(max_width=5, **exact)) as context,  # type: ignore[arg-type]
        LlamaContext(draft, ContextParams(**exact)) as draft_context,  # type: ignore[arg-type]
    ):
        translation = make_translation(target, draft)
        assert isinstance(translation, TextTranslation)
        drafter = TranslatedDraft(draft_context, translation)
        for text, temperature in ((PROSE, 0.0), (CODE, 0.0), (PROSE, 0.8)):
            prompt = target.tokenize(text, add_special=True)
            sampler = Sampler(SamplingParams(temperature=temperature, seed=3))
            expected, _ = complete(context, [], prompt, sampler, n)
            tokens, counts = complete(context, [drafter], prompt, sampler, n)
            assert tokens == expected
            if temperature == 0.0:
                drafted += counts.num_draft_tokens
                accepted += counts.num_accepted_tokens
    return accepted / drafted


@pytest.mark.parametrize("reverse", [False, True], ids=["other-drafts", "other-is-target"])
def test_tiny_models_of_different_vocabularies(tiny: Path, reverse: bool) -> None:
    names = ["tiny-target.gguf", "tiny-othervocab-draft.gguf"]
    with (
        LlamaModel(tiny / names[reverse]) as target,
        LlamaModel(tiny / names[not reverse]) as draft,
    ):
        assert check(target, draft, 64) > 0.03


@pytest.mark.model
@pytest.mark.timeout(900)
def test_smollm2_with_drafts_of_gemma3(smollm2: LlamaModel, gemma3: LlamaModel) -> None:
    assert check(smollm2, gemma3, 24) > 0.15


@pytest.mark.model
@pytest.mark.timeout(900)
def test_gemma3_with_drafts_of_smollm2(smollm2: LlamaModel, gemma3: LlamaModel) -> None:
    with LlamaModel(gemma3.path, ModelParams(repack=False)) as target:
        assert check(target, smollm2, 16) > 0.2


@pytest.mark.model
@pytest.mark.parametrize("reverse", [False, True], ids=["gemma3-drafts", "smollm2-drafts"])
def test_real_tokenizers_cut_a_known_text_alike(
    smollm2: LlamaModel, gemma3: LlamaModel, reverse: bool
) -> None:
    """Scripts of Asia, emoji of several characters, code, runs of spaces: a drafter that knows the
    text is all but always right, and its tokens are those of the text as a whole."""
    ours, theirs = (gemma3, smollm2) if reverse else (smollm2, gemma3)
    target = ScriptContext(ours, TEXT)
    context = ScriptContext(theirs, TEXT)
    translation = TextTranslation(Lexicon(ours), Lexicon(theirs))
    engine = Engine(target)
    sequence = engine.open([TranslatedDraft(context, translation)], FixedPolicy([5]))
    n = len(target.tokens) - 4
    wanted = Request(target.tokens[:3], Sampler(SamplingParams()), n)
    tokens = [token for step in engine.generate(sequence, wanted) for token in step.tokens]
    assert tokens == target.tokens[3:-1]
    counts = sequence.progress.spec.total
    assert counts.num_accepted_tokens >= 0.95 * counts.num_draft_tokens
    assert counts.num_accepted_tokens >= 0.7 * n
    translation.read(target.tokens)
    start = [theirs.bos] if theirs.add_bos else []
    assert translation.tokens == [*start, *theirs.tokenize(TEXT)]
