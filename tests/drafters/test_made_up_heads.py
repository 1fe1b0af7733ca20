"""Assistants and chains of heads on made-up models: the text stays, and nothing is handed wrongly.

See ``seeded``: in exact models everything is accepted, in random ones nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import pytest

from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.assistant import Assistant
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.drafters.mtp_chain import MtpChain
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request
from gguf_spec.sampling import Sampler, SamplingParams
from tests.drafters.heads import EXACT, GREEDY, Bench, bench
from tests.drafters.seeded import gemma4, gemma4_assistant, prompt, step35

#: Flat enough that the texts of exact models turn off their path now and then.
WARM = SamplingParams(temperature=0.8, seed=1, top_k=0, top_p=1.0, min_p=0.0)
FAMILIES = ("assistant", "chain")
#: What llama-server drafts at temperature 0 in its first rounds on the random models after
#: ``prompt(20)``, three tokens a round (-t 1 -tb 1 -fa on, the candidates that -v shows).
NATIVE = {
    "assistant": [359, 692, 764, 436, 915, 153, 933, 609, 1021, 309, 552, 90],
    "chain": [781, 1000, 331, 781, 1000, 1009, 393, 297, 876, 901, 1000, 1009],
}
families = pytest.mark.parametrize("family", FAMILIES)


@dataclass
class Family:
    """The files of one family, exact and random: (target, head in a file of its own)."""

    exact: tuple[Path, Path | None]
    random: tuple[Path, Path | None]

    @contextmanager
    def bench(self, n_max: int = 3, *, exact: bool = True, **params: object) -> Iterator[Bench]:
        target, head = self.exact if exact else self.random
        with bench("draft-mtp", n_max, target, head, **params) as made:
            yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    folder = tmp_path_factory.mktemp("made up")
    made: dict[str, dict[str, tuple[Path, Path | None]]] = {family: {} for family in FAMILIES}
    for exact in (True, False):
        name = "exact" if exact else "random"
        made["assistant"][name] = (
            gemma4(folder / f"gemma4-{name}.gguf", exact=exact),
            gemma4_assistant(folder / f"assistant-{name}.gguf", exact=exact),
        )
        made["chain"][name] = step35(folder / f"step35-{name}.gguf", 3, exact=exact), None
    return {family: Family(**by_name) for family, by_name in made.items()}


class Noted:
    """A drafter that writes down what it drafted."""

    spec_type = "draft-mtp"

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.drafts: list[Sequence[int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        draft = self.inner.draft(limit, sampler)
        self.drafts.append(draft.tokens)
        return draft


@families
def test_drafts_are_those_of_llama_cpp(files: dict[str, Family], family: str) -> None:
    with files[family].bench(exact=False, flash_attn="on") as made:
        noted = Noted(made.drafter())
        made.answer(made.open([noted], [3]), prompt(20), n=12)  # type: ignore[list-item]
    assert [token for draft in noted.drafts[:4] for token in draft] == NATIVE[family]


@families
@pytest.mark.parametrize("n_max", [1, 2, 3])
def test_what_can_be_told_is_accepted(files: dict[str, Family], family: str, n_max: int) -> None:
    with files[family].bench(n_max) as made:
        text = made.answer(made.open([made.drafter()], [n_max]), prompt(20), n=200)
        assert text == prompt(220)[20:]
        assert made.drafted > 90
        assert made.rate == 1.0


@families
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "random"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "behind n-grams"])
def test_the_text_is_that_of_plain_decoding(
    files: dict[str, Family], family: str, exact: bool, params: SamplingParams, stacked: bool
) -> None:
    """Prompts of 90 tokens, which is more than a sliding window."""
    with files[family].bench(16, exact=exact, **EXACT) as made:
        for start in (40, 300):
            beginning = prompt(90, start)
            expected = made.plain(beginning, params, 120)
            drafters, ceilings = [made.drafter()], [3]
            if stacked:
                drafters.insert(0, NgramSimple(2, 16))
                ceilings.insert(0, 16)
            sequence = made.open(drafters, ceilings)
            assert made.answer(sequence, beginning, params, 120) == expected
        assert "draft-mtp" in made.sources
        if params is WARM and exact:
            assert 0.3 < made.rate < 1.0  # some of it was rolled back
        elif params is GREEDY:
            assert made.rate == (1.0 if exact else pytest.approx(0, abs=0.02))


@families
def test_prompts_longer_than_a_batch(files: dict[str, Family], family: str) -> None:
    """In chunks of 16 tokens the drafts are those of a prompt that was decoded at once."""
    drafts = []
    for sizes in ({}, {"n_batch": 32, "n_ubatch": 16}):
        with files[family].bench(exact=False, **EXACT, **sizes) as made:
            assert made.target.n_ubatch == sizes.get("n_ubatch", 512)
            noted = Noted(made.drafter())
            made.answer(made.open([noted], [3]), prompt(100), n=10)  # type: ignore[list-item]
            drafts.append(noted.drafts)
        with files[family].bench(**sizes) as made:
            made.answer(made.open([made.drafter()], [3]), prompt(100), n=60)
            assert (made.rate, made.drafted > 30) == (1.0, True)
    assert drafts[0] == drafts[1]


@families
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "random"])
def test_the_cache_of_an_earlier_answer(files: dict[str, Family], family: str, exact: bool) -> None:
    """One text is continued, the next one turns off in the middle of an answer."""
    with files[family].bench(exact=exact, **EXACT) as made:
        sequence = made.open([made.drafter()], [3])
        first = prompt(30)
        text = [*first, *made.answer(sequence, first, n=40)]
        for beginning, least in ((text + prompt(9, 77), 60), (text[:45] + prompt(20, 99), 40)):
            made.drafted = made.accepted = 0
            answer = made.answer(sequence, beginning, n=40)
            assert sequence.progress.cached_tokens >= least
            assert answer == made.plain(beginning, n=40)
            # A plain run has taken the cache of the target; the text of it is the same.
            assert made.drafted > 20
            assert made.rate == (1.0 if exact else pytest.approx(0, abs=0.05))
            made.target.clear(0)
            sequence = made.open([made.drafter()], [3])
            text = [*beginning, *made.answer(sequence, beginning, n=40)]


@families
@pytest.mark.parametrize("n_ctx", [64, 256])
def test_the_end_of_the_context(files: dict[str, Family], family: str, n_ctx: int) -> None:
    with files[family].bench(n_ctx=n_ctx) as made:
        expected = made.plain(prompt(20), n=1000)
        assert 20 + len(expected) == n_ctx + 1
        assert made.answer(made.open([made.drafter()], [3]), prompt(20), n=1000) == expected
        assert made.rate > 0.9


@families
def test_a_draft_ends_before_what_is_unlikely(files: dict[str, Family], family: str) -> None:
    with files[family].bench() as made:
        for p_min, some in ((0.5, True), (0.999999, False)):
            made.drafted = 0
            made.answer(made.open([made.drafter(p_min)], [3]), prompt(20), n=30)
            assert bool(made.drafted) == some


@families
def test_two_sequences_at_a_time(files: dict[str, Family], family: str) -> None:
    with files[family].bench(n_seq_max=2) as made:
        kind = Assistant if family == "assistant" else partial(MtpChain, n_heads=3)
        engine = Engine(made.target)
        sequences = [engine.open([kind(made.head, seq=seq)], FixedPolicy([3])) for seq in (0, 1)]
        starts = (229, 600)
        for sequence, start in zip(sequences, starts, strict=True):
            sequence.start(Request(prompt(20, start), Sampler(GREEDY), 100))
        while any(sequence.active for sequence in sequences):
            engine.step()
        for sequence, start in zip(sequences, starts, strict=True):
            assert sequence.history[:] == prompt(120, start)
            spec = sequence.progress.spec.total
            assert spec.num_accepted_tokens == spec.num_draft_tokens > 60


@families
def test_memory_stays_flat(files: dict[str, Family], family: str) -> None:
    process = psutil.Process()
    with files[family].bench() as made:
        sequence = made.open([made.drafter()], [3])
        made.answer(sequence, prompt(20), WARM, 400)
        before, rounds = process.memory_info().rss, 0
        for seed in range(5):
            made.answer(sequence, prompt(20), dataclasses.replace(WARM, seed=seed), 400)
            rounds += sequence.progress.spec.steps
        assert rounds > 500
        assert process.memory_info().rss - before < 2 << 20
