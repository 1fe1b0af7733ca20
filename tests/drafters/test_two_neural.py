"""Two neural drafters side by side: each keeps its context true while the other drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.block_format import block_format
from gguf_spec.control import Choice, FixedPolicy, Round
from gguf_spec.drafters.base import Draft, Drafter
from gguf_spec.drafters.hidden import HeadDrafter
from gguf_spec.drafters.neural import head_params, make_neural
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.header import read_model
from gguf_spec.hidden_states import NEXTN
from gguf_spec.history import History
from gguf_spec.profile import load_profile
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from tests.drafters.heads import EXACT, GREEDY, MODELS, check
from tests.test_backend import PROMPTS

WARM = SamplingParams(temperature=0.8, seed=1)
N_MAX = 3
FILES = {
    "draft-simple": "tiny-draft", "draft-eagle3": "tiny-eagle3", "draft-dflash": "tiny-dflash",
    "draft-dspark": "tiny-dspark", "draft-mtp": "tiny-mtp",
}  # fmt: skip
#: Pairs, and the target that they go with. The other heads were not trained for tiny-mtp.
PAIRS = [
    (("draft-eagle3", "draft-dflash"), "tiny-target"),
    (("draft-dflash", "draft-dspark"), "tiny-target"),
    (("draft-dspark", "draft-eagle3"), "tiny-target"),
    (("draft-simple", "draft-eagle3"), "tiny-target"),
    (("draft-dflash", "draft-simple"), "tiny-target"),
    (("draft-mtp", "draft-eagle3"), "tiny-mtp"),
    (("draft-dflash", "draft-mtp"), "tiny-mtp"),
]
pairs = pytest.mark.parametrize(
    ("kinds", "model"), PAIRS, ids=["+".join(kinds) for kinds, _ in PAIRS]
)


@dataclass
class Side:
    """A target with the contexts of several drafters, each on the layers that it reads."""

    target: LlamaContext
    contexts: dict[str, LlamaContext]
    layers: dict[str, tuple[int, ...]]

    def drafter(self, kind: str) -> Drafter:
        form = None
        if kind in ("draft-dflash", "draft-dspark"):
            form = block_format(read_model(MODELS / f"{FILES[kind]}.gguf"))
        return make_neural(kind, self.contexts[kind], self.layers[kind], form, p_min=0.0)

    def answer(
        self, drafters: Sequence[Drafter], policy: Any, text: str, params: SamplingParams, n: int
    ) -> tuple[list[int], SequenceState]:
        engine = Engine(self.target)
        sequence = engine.open(drafters, policy)
        prompt = self.target.model.tokenize(text, parse_special=True)
        tokens: list[int] = []
        for step in engine.generate(sequence, Request(prompt, Sampler(params), n)):
            tokens += step.tokens
            if all(isinstance(drafter, HeadDrafter) for drafter in drafters):
                check(self.target, sequence)
        return tokens, sequence


@contextmanager
def side_by_side(kinds: Sequence[str], model: str, width: int = N_MAX) -> Iterator[Side]:
    """Contexts for drafters of ``kinds``; the target has the states of all layers together."""
    shared: dict[str, Any] = {"n_ctx": 1024, **EXACT}
    with ExitStack() as stack:
        target_model = stack.enter_context(
            LlamaModel(MODELS / f"{model}.gguf", ModelParams(load_mtp=True))
        )
        models, layers = {}, {}
        for kind in kinds:
            inside = kind == "draft-mtp"
            path = MODELS / f"{FILES[kind]}.gguf"
            models[kind] = target_model if inside else stack.enter_context(LlamaModel(path))
            own = () if kind == "draft-simple" else models[kind].target_layers
            layers[kind] = (NEXTN,) if inside else own
        united = tuple(sorted({layer for own in layers.values() for layer in own}))
        params = ContextParams(layers=united, max_width=width + 1, n_rs_seq=N_MAX, **shared)
        target = stack.enter_context(LlamaContext(target_model, params))
        contexts = {}
        for kind in kinds:
            form = None
            if kind in ("draft-dflash", "draft-dspark"):
                form = block_format(read_model(MODELS / f"{FILES[kind]}.gguf"))
            own_params = head_params(kind, models[kind], target, form, n_max=N_MAX)
            contexts[kind] = stack.enter_context(
                LlamaContext(models[kind], ContextParams(**{**shared, **own_params}))
            )
        yield Side(target, contexts, layers)


class Alternating(FixedPolicy):
    """Each drafter for two rounds, then the next one."""

    def __init__(self, ceilings: Sequence[int]) -> None:
        super().__init__(ceilings)
        self.rounds = 0

    def choose(self, limit: int) -> Sequence[Choice]:
        choices = super().choose(limit)
        return [choices[self.rounds // 2 % len(choices)]]

    def record(self, result: Round) -> None:
        self.rounds += 1


class Listed:
    """Passes everything on to ``inner``, and lists its drafts by where they start. A ``silent`` one
    keeps them to itself: then all is decoded plainly, and there is a draft for every place."""

    def __init__(self, inner: Drafter, *, silent: bool = False) -> None:
        self.spec_type = inner.spec_type
        self.needs = getattr(inner, "needs", ())
        self.begin, self.observe = self._begin, inner.observe
        self.accept, self.close = inner.accept, inner.close
        self.drafts: dict[int, list[int]] = {}
        self._inner, self._silent = inner, silent

    def _begin(self, history: History) -> None:
        self._history = history
        self._inner.begin(history)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        draft = self._inner.draft(limit, sampler)
        self.drafts[len(self._history)] = list(draft.tokens)
        return Draft((), self.spec_type) if self._silent else draft


@pairs
def test_each_drafts_what_it_would_draft_alone(kinds: tuple[str, str], model: str) -> None:
    """Two rounds each in turn, so that each catches up with tokens that the other had accepted. A
    state that is missing, or one of a rejected token, would give other drafts."""
    same, total = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    with side_by_side(kinds, model) as made:
        for text in PROMPTS[:2]:
            alone = {}
            for kind in kinds:
                alone[kind] = Listed(made.drafter(kind), silent=True)
                made.answer([alone[kind]], FixedPolicy([N_MAX]), text, GREEDY, 110)
            together = [Listed(made.drafter(kind)) for kind in kinds]
            made.answer(together, Alternating([N_MAX] * 2), text, GREEDY, 110)
            for kind, drafter in zip(kinds, together, strict=True):
                for place, tokens in drafter.drafts.items():
                    expected = alone[kind].drafts[place]
                    same[kind] += tokens == expected[: len(tokens)]
                    total[kind] += len(tokens) > 0
    for kind in kinds:
        assert total[kind] > 20
        # Batches of other widths compute the states with other digits: a near-tie may fall apart.
        assert same[kind] >= 0.95 * total[kind]


@pairs
def test_the_first_is_accepted_as_alone(kinds: tuple[str, str], model: str) -> None:
    with side_by_side(kinds, model) as made:
        counts = []
        for both in (False, True):
            drafters = [made.drafter(kind) for kind in kinds[: 1 + both]]
            policy = FixedPolicy([N_MAX] * len(drafters))
            _, sequence = made.answer(drafters, policy, PROMPTS[0], GREEDY, 110)
            counts.append(sequence.progress.spec.by_type[kinds[0]])
        assert counts[0] == counts[1]
        trained = model == "tiny-target" or kinds[0] == "draft-mtp"
        assert counts[0].num_accepted_tokens > (20 if trained else -1)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pairs
def test_the_text_is_that_of_plain_decoding(
    kinds: tuple[str, str], model: str, params: SamplingParams
) -> None:
    """In order, in turn, and behind n-grams that draft more than either."""
    with side_by_side(kinds, model, width=16) as made:
        for text in PROMPTS[2:4]:
            expected, _ = made.answer([], FixedPolicy([]), text, params, 90)
            for policy in (FixedPolicy, Alternating):
                drafters = [made.drafter(kind) for kind in kinds]
                found, sequence = made.answer(drafters, policy([N_MAX] * 2), text, params, 90)
                assert found == expected
            assert set(sequence.progress.spec.by_type) == set(kinds)
            drafters = [NgramSimple(3, 16), *(made.drafter(kind) for kind in kinds)]
            stacked = Alternating([16, N_MAX, N_MAX])
            found, sequence = made.answer(drafters, stacked, text, params, 90)
            assert found == expected
            assert set(sequence.progress.spec.by_type) >= set(kinds)


def test_a_profile_with_two_neural_drafters(tmp_path: Path) -> None:
    """Tables of their own, contexts of their own, and a row of statistics for each."""
    file = tmp_path / "both.toml"
    eagle3, dflash = (f"{MODELS}/tiny-{kind}.gguf" for kind in ("eagle3", "dflash"))
    file.write_text(
        f'''
        [target]
        model = "{MODELS}/tiny-target.gguf"
        n_ctx = 512
        n_threads = 1
        type_k = "bf16"
        type_v = "bf16"
        flash_attn = "on"
        [spec]
        types = ["draft-dflash", "draft-eagle3"]
        control = false
        [spec.draft-eagle3]
        model = "{eagle3}"
        n_max = 2
        [spec.draft-dflash]
        model = "{dflash}"
        n_max = 5
        n_ctx = 64
        [sampling]
        temperature = 0
        '''
    )
    setup = prepare(load_profile(str(file)))
    assert setup.spec_types == ("draft-dflash", "draft-eagle3")
    assert setup.ceilings == (5, 2)
    assert setup.layers == (1, 2, 3)
    with Session(setup) as session:
        generation = session.generate(
            session.raw_prompt(PROMPTS[0]), session.params(max_tokens=150)
        )
        for _ in generation:
            pass
        spec = generation.report()["spec"]
        assert session.warnings == []
    # DFlash has room for the start of the text alone, and leaves the rest to the other.
    assert list(spec["by_type"]) == ["draft-dflash", "draft-eagle3"]
    assert all(counts["num_accepted_tokens"] > 10 for counts in spec["by_type"].values())
    assert spec["events"] == []
