"""A draft model of another vocabulary: never another text, and accepted when it is right."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.context import ModelContext, Run
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.translated import CHECKPOINT_EVERY, TranslatedDraft
from gguf_spec.engine import Engine, Request
from gguf_spec.errors import RunError
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.stats import DraftCounts
from gguf_spec.translation import MapTranslation, TextTranslation, make_translation
from gguf_spec.vocabulary import Lexicon
from tests.test_engine import plain, request, run_all
from tests.toy import ToyContext
from tests.toy_text import BYTES, TEXT, ScriptContext, ToyVocabulary, leading, spelled, whole

GREEDY = Sampler(SamplingParams())
SUN, FACE = "日".encode(), "😀".encode()
#: 23 and 19 tokens with the control token in front: ToyContext's vocabularies.
SMALL = [b"a", b"b", b" ", b"\n", b"aa", b"ab", b" a", b" b", b"  ", b"   ", b"\n ", b"ba", b"bb",
         SUN[:1], SUN[1:], SUN, FACE[:2], FACE[2:], b"\xff", b"aab", b" ab", b"\n\n"]  # fmt: skip
OTHER = [b"a", b"b", b" ", b"\n", b"aaa", b" aa", b"    ", b"\n   ", b"bab", SUN, FACE, SUN + SUN,
         b"\xe6", b"\x97", b"\xa5", b"\xf0", b"b b", b"\n b"]  # fmt: skip


def complete(
    target: ScriptContext, drafter: TranslatedDraft, prompt: Sequence[int], limit: int
) -> tuple[list[int], DraftCounts]:
    engine = Engine(target)
    sequence = engine.open([drafter], FixedPolicy([limit]))
    tokens = [
        token
        for step in engine.generate(sequence, Request(prompt, GREEDY))
        for token in step.tokens
    ]
    return tokens, sequence.progress.spec.total


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_a_drafter_that_knows_the_text_is_accepted(limit: int, removes: bool) -> None:
    """The same text under two tokenizers, words and characters and spaces cut elsewhere."""
    drafted = accepted = emitted = 0
    for ours, theirs in ((leading, whole), (whole, leading)):
        for spaces in ((False, False), (True, False), (False, True)):
            target_vocabulary = ours(adds_space=spaces[0])
            vocabulary = theirs(adds_space=spaces[1], add_bos=True)
            target = ScriptContext(target_vocabulary, TEXT * 2)
            context = ScriptContext(vocabulary, TEXT * 2, removes_tail=removes)
            translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
            drafter = TranslatedDraft(context, translation)
            tokens, counts = complete(target, drafter, target.tokens[:7], limit)
            assert tokens == [*target.tokens[7:], 0]
            drafted += counts.num_draft_tokens
            accepted += counts.num_accepted_tokens
            emitted += len(tokens)
    # What is drafted is sure. Nor is there a want of drafts: full ones, but for the last of a text,
    # would leave one token in limit + 1 to the target.
    assert accepted == drafted
    assert accepted >= 0.95 * emitted * limit / (limit + 1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
@pytest.mark.parametrize("way", ["text", "map"])
def test_no_draft_changes_the_text(way: str, removes: bool, temperature: float) -> None:
    """Toy models that write anything: parts of characters, bytes that are none, spaces, ends."""
    accepted = 0
    for seed in range(10):
        target_vocabulary = ToyVocabulary(SMALL, ["<end>"], adds_space=seed % 3 == 0)
        n = target_vocabulary.n_vocab
        target_vocabulary.add_bos = bool(seed & 1)
        wanted = request(seed, temperature=temperature)
        if way == "text":
            vocabulary = ToyVocabulary(OTHER, ["</s>", "<b>"], add_bos=bool(seed & 2))
            context = ToyContext(seed + 1, n_vocab=vocabulary.n_vocab, removes_tail=removes)
        else:
            vocabulary = ToyVocabulary(SMALL, ["<end>"])
            context = ToyContext(seed, blur=0.25, removes_tail=removes)
        translation = make_translation(target_vocabulary, vocabulary)
        assert isinstance(translation, TextTranslation if way == "text" else MapTranslation)
        drafter = TranslatedDraft(context, translation, p_min=0.05 * (seed % 2))
        engine = Engine(ToyContext(seed, n_vocab=n))
        sequence = engine.open([drafter], FixedPolicy([1 + seed % 6]))
        expected = plain(wanted, n_vocab=n)
        for _ in range(2):  # the second time with the cache of the first one
            assert run_all(engine, [(sequence, wanted)]) == [expected]
            accepted += sequence.progress.spec.total.num_accepted_tokens
        shorter = request(seed, temperature=temperature, prompt=list(wanted.prompt[:9]))
        assert run_all(engine, [(sequence, shorter)]) == [plain(shorter, n_vocab=n)]
        cached = drafter._cache.tokens
        assert context.cache[0] == cached
        assert cached[: drafter._agreed] == translation.tokens[: drafter._agreed]
    # The map's drafter is a good one, the other one guesses.
    assert accepted > (60 if way == "map" else 2)


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
def test_rounds_do_bounded_work_on_a_long_text(removes: bool) -> None:
    """At 8,000 tokens: what a round decodes and tokenizes depends on the draft alone, with drafts
    that stand and drafts that do not."""
    target_vocabulary, vocabulary = leading(), whole(add_bos=True)
    r = random.Random(5)
    script = "".join(r.choice([TEXT, " the cat and the theory\n", "東京には"]) for _ in range(120))
    target = ScriptContext(target_vocabulary, script, n_ctx=20_000)
    context = ScriptContext(vocabulary, script, n_ctx=20_000, removes_tail=removes)
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    drafter = TranslatedDraft(context, translation)
    tokens = target.tokens
    assert len(tokens) > 8_000
    history = History(tokens[:8_000])
    drafter.begin(history)
    drafter.draft(4, GREEDY)
    n_drafted = n_accepted = 0
    for i in range(60):
        context.decodes.clear()
        target_vocabulary.tokenized.clear()
        vocabulary.tokenized.clear()
        at = len(history)
        draft = list(drafter.draft(4, GREEDY).tokens)
        n = sum(len(run.tokens) for runs in context.decodes for run in runs)
        # What may be cut again, what was added, and the draft itself.
        assert n <= 8 + 3 + 20 + 10 + (0 if removes else CHECKPOINT_EVERY)
        assert max([*target_vocabulary.tokenized, *vocabulary.tokenized, 0]) < 400
        stands = draft[: i % 5]
        history.extend([*stands, tokens[at + len(stands)]])
        drafter.accept(len(stands))
        n_drafted += len(draft)
        n_accepted += draft == tokens[at : at + len(draft)] and len(draft)
    assert n_accepted == n_drafted > 150


def test_a_checkpoint_does_not_grow_old() -> None:
    """Drafts that all stand leave the cache ahead; then one does not."""
    target_vocabulary, vocabulary = leading(), whole()
    script = TEXT * 4
    target = ScriptContext(target_vocabulary, script)
    context = ScriptContext(vocabulary, script, removes_tail=False)
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    drafter = TranslatedDraft(context, translation)
    history = History(target.tokens[:20])
    drafter.begin(history)
    while len(history) < len(target.tokens) - 20:
        draft = list(drafter.draft(6, GREEDY).tokens)
        history.extend([*draft, target.tokens[len(history) + len(draft)]])
        assert len(translation.tokens) - drafter._cache.saved <= CHECKPOINT_EVERY + 8 + 3


def test_the_drafters_context_may_be_smaller() -> None:
    """It drafts while its own tokens of the text fit, and not a token past them."""
    target_vocabulary, vocabulary = leading(), whole()
    target = ScriptContext(target_vocabulary, TEXT)
    for n_ctx in (1, 2, 30, 57):
        context = ScriptContext(vocabulary, TEXT, n_ctx=n_ctx)
        translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
        tokens, counts = complete(
            target, TranslatedDraft(context, translation), target.tokens[:3], 5
        )
        assert tokens == [*target.tokens[3:], 0]
        assert (counts.num_accepted_tokens > 0) is (n_ctx > 2)


def test_an_end_makes_what_comes_before_it_sure() -> None:
    """The last piece of a draft is left out if more may follow it, and not before an end."""
    script = "x the"
    target_vocabulary, vocabulary = leading(), whole()
    drafter = TranslatedDraft(
        ScriptContext(vocabulary, script),
        TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary)),
    )
    history = History(target_vocabulary.tokenize("x"))
    drafter.begin(history)
    tokens = drafter.draft(5, GREEDY).tokens
    assert spelled(target_vocabulary, tokens) == b" the"


@pytest.mark.parametrize(("p_min", "drafts"), [(0.0, True), (0.05, True), (0.07, False)])
def test_an_unlikely_choice_ends_the_draft(p_min: float, drafts: bool) -> None:
    class Unsure(ScriptContext):
        """The right token has a logit of 3, all others of 0."""

        def logits(self, row: int) -> NDArray[np.float32]:
            return super().logits(row) / np.float32(20.0)

    target_vocabulary, vocabulary = leading(), whole()
    assert 0.05 < np.exp(3) / (np.exp(3) + vocabulary.n_vocab - 1) < 0.07
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    drafter = TranslatedDraft(Unsure(vocabulary, TEXT), translation, p_min=p_min)
    drafter.begin(History(target_vocabulary.tokenize(TEXT[:9])))
    assert bool(drafter.draft(5, GREEDY).tokens) is drafts


def test_a_failed_decode_leaves_an_empty_cache() -> None:
    class Failing(ScriptContext):
        failing = False

        def decode(self, runs: Sequence[Run]) -> None:
            super().decode(runs)
            if self.failing:
                raise RunError("out of order")

    target_vocabulary, vocabulary = leading(), whole()
    context = Failing(vocabulary, TEXT)
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    drafter = TranslatedDraft(context, translation)
    history = History(target_vocabulary.tokenize(TEXT[:30]))
    drafter.begin(history)
    context.failing = True
    with pytest.raises(RunError):
        drafter.draft(4, GREEDY)
    assert context.cache == []
    context.failing = False
    assert spelled(target_vocabulary, drafter.draft(4, GREEDY).tokens)
    assert context.cache[: len(translation.tokens)] == translation.tokens
    drafter.close()
    assert context.cache == []


def test_nothing_is_drafted_before_there_is_anything_to_read() -> None:
    """No BOS, and half a character."""
    target_vocabulary, vocabulary = ToyVocabulary(BYTES), whole()
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    context = ScriptContext(vocabulary, "日")
    drafter = TranslatedDraft(context, translation)
    history = History(target_vocabulary.tokenize("日")[:1])
    drafter.begin(history)
    assert list(drafter.draft(4, GREEDY).tokens) == []
    assert context.decodes == []


def test_the_text_of_a_held_character_is_drafted() -> None:
    """The target has written the first byte of a character that the drafter has whole."""
    target_vocabulary = ToyVocabulary(BYTES)
    vocabulary = ToyVocabulary(["日".encode(), "本".encode(), b"x", b"y"])
    target = ScriptContext(target_vocabulary, "x日本y")

    class Likes(ScriptContext):
        """Would rather say y."""

        def logits(self, row: int) -> NDArray[np.float32]:
            logits = super().logits(row)
            if len(self.cache) == 1:
                logits[self.lexicon.vocabulary.tokenize("y")[0]] = 99.0
            return logits

    context: ModelContext = Likes(vocabulary, "x日本y")
    translation = TextTranslation(Lexicon(target_vocabulary), Lexicon(vocabulary))
    drafter = TranslatedDraft(context, translation)
    history = History(target.tokens[:2])
    drafter.begin(history)
    assert list(drafter.draft(5, GREEDY).tokens) == target.tokens[2:7]
