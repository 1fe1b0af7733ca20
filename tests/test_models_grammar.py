"""Grammars on real models: the text with drafts is the text without, for every kind of constraint.

With a bf16 cache and flash attention there are no near-ties to allow for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel
from gguf_spec.backend.grammar import GrammarMask
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request
from gguf_spec.grammars import schema_to_gbnf
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.setup import default_threads
from gguf_spec.stats import DraftCounts
from tests.drafters.heads import bench

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 20},
                    "age": {"type": "integer"},
                },
                "required": ["name", "age"],
            },
            "minItems": 2,
            "maxItems": 4,
        },
    },
    "required": ["name", "age", "friends"],
}
LIST = 'root ::= item{3,6}\nitem ::= "- " [A-Z] [a-z ]{2,20} "\\n"'
SETTINGS = {
    "greedy": SamplingParams(),
    "repeat penalty": SamplingParams(repeat_penalty=1.3),
    "drawn": SamplingParams(temperature=0.9, seed=5),
    "drawn without filters": SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.0, seed=5),
}
EXACT = {"type_k": "bf16", "type_v": "bf16", "flash_attn": "on"}


def answer(
    context: LlamaContext,
    drafters: Sequence[Drafter],
    prompt: list[int],
    sampler: Sampler,
    n: int = 60,
) -> tuple[list[int], list[float], DraftCounts]:
    """Tokens, their log-probabilities, and how many drafts were right."""
    engine = Engine(context)
    sequence = engine.open(drafters, FixedPolicy([6] * len(drafters)))
    tokens: list[int] = []
    logprobs: list[float] = []
    for step in engine.generate(sequence, Request(prompt, sampler, n, logprobs=0)):
        tokens += step.tokens
        logprobs += [one.logprob for one in step.logprobs]
    return tokens, logprobs, sequence.progress.spec.total


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["repeat penalty", "drawn"])
def test_smollm2_under_a_schema(name: str, smollm2: LlamaModel) -> None:
    threads = default_threads()
    shared = {"n_ctx": 512, "n_threads": threads, "n_threads_batch": threads, **EXACT}
    prompt = smollm2.tokenize('{"name": "Ann", "age": 31} ')
    with (
        LlamaContext(smollm2, ContextParams(max_width=7, **shared)) as context,  # type: ignore[arg-type]
        LlamaContext(smollm2, ContextParams(**shared)) as draft_context,  # type: ignore[arg-type]
    ):
        mask = GrammarMask(smollm2, schema_to_gbnf(json.dumps(PERSON)))
        sampler = Sampler(SETTINGS[name], mask=mask)
        expected, logprobs, _ = answer(context, [], prompt, sampler, 16)
        is_drawn = name == "drawn"
        drafter: Drafter = NgramSimple(1, 6) if is_drawn else DraftModel(draft_context)
        tokens, others, counts = answer(context, [drafter], prompt, sampler, 16)
        assert tokens == expected
        assert others == logprobs
        # The draft model is the target itself, and draws under the same grammar.
        assert is_drawn or counts.num_accepted_tokens >= 0.9 * counts.num_draft_tokens > 0


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("n_rs_seq", [0, 3], ids=["checkpoints", "snapshots"])
def test_mtp_on_a_hybrid_target(name: str, n_rs_seq: int) -> None:
    with bench("draft-mtp", 3, n_rs_seq=n_rs_seq) as made:
        model = made.target.model
        prompt = made.prompt("Invent a person.")
        for text in (schema_to_gbnf(json.dumps(PERSON)), LIST):
            sampler = Sampler(SETTINGS[name], mask=GrammarMask(model, text))
            expected, logprobs, _ = answer(made.target, [], prompt, sampler)
            for before in ([], [NgramSimple(1, 3)]):
                drafters = [*before, made.drafter()]
                tokens, others, counts = answer(made.target, drafters, prompt, sampler)
                assert tokens == expected
                assert others == pytest.approx(logprobs, abs=1e-5)
                assert counts.num_draft_tokens > 0
