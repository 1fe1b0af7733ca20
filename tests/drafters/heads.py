"""Tiny models with draft heads, and answers made with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.assistant import Assistant
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.hidden import HeadDrafter
from gguf_spec.drafters.mtp_chain import MtpChain
from gguf_spec.drafters.neural import head_params, make_neural
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.hidden_states import NEXTN
from gguf_spec.sampling import Sampler, SamplingParams
from tests.test_backend import PROMPTS

MODELS = Path(__file__).parents[1] / "models"
EXACT = {"flash_attn": "on", "type_k": "bf16", "type_v": "bf16"}
GREEDY = SamplingParams()


@dataclass
class Bench:
    """A target with a head: contexts, and counters over all answers."""

    target: LlamaContext
    head: LlamaContext
    kind: str
    layers: tuple[int, ...]
    n_max: int = 3
    drafted: int = 0
    accepted: int = 0
    sources: set[str] = field(default_factory=set)

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted

    def drafter(self, p_min: float = 0.0) -> Drafter:
        return make_neural(self.kind, self.head, self.layers, n_max=self.n_max, p_min=p_min)

    def prompt(self, text: str) -> list[int]:
        return self.target.model.tokenize(text, parse_special=True)

    def open(self, drafters: Sequence[Drafter], ceilings: Sequence[int]) -> SequenceState:
        self.engine = Engine(self.target)
        return self.engine.open(drafters, FixedPolicy(ceilings))

    def answer(
        self,
        sequence: SequenceState,
        prompt: list[int],
        params: SamplingParams = GREEDY,
        n: int = 256,
        *,
        stop_after: int | None = None,
    ) -> list[int]:
        """The tokens of one answer; caches and counters are checked after every round."""
        tokens: list[int] = []
        steps = self.engine.generate(sequence, Request(prompt, Sampler(params), n))
        for step in steps:
            tokens += step.tokens
            check(self.target, sequence)
            if stop_after is not None and len(tokens) >= stop_after:
                break
        steps.close()  # type: ignore[attr-defined]
        spec = sequence.progress.spec
        if stop_after is None:
            assert len(tokens) == 1 + spec.steps + spec.total.num_accepted_tokens
        self.drafted += spec.total.num_draft_tokens
        self.accepted += spec.total.num_accepted_tokens
        self.sources |= set(spec.by_type)
        return tokens

    def request(self, prompt: list[int], n: int, params: SamplingParams = GREEDY) -> Request:
        return Request(prompt, Sampler(params), n)

    def plain(self, prompt: list[int], params: SamplingParams = GREEDY, n: int = 256) -> list[int]:
        engine = Engine(self.target)
        sequence = engine.open([], FixedPolicy([]))
        steps = engine.generate(sequence, Request(prompt, Sampler(params), n))
        return [token for step in steps for token in step.tokens]


def check(target: LlamaContext, sequence: SequenceState) -> None:
    """The target's cache holds what the engine thinks, a head's cache nothing but final pairs."""
    assert target._length(sequence.seq) == sequence.n_cached
    for drafter in sequence.drafters:
        if isinstance(drafter, Assistant):
            rows = drafter._rows  # empty until the last chunk of a prompt
            assert rows.start == rows.end or rows.end == sequence.n_cached
        if not isinstance(drafter, HeadDrafter):
            continue
        context = drafter._context
        assert isinstance(context, LlamaContext)
        chain = isinstance(drafter, MtpChain)
        n_positions = drafter.n_positions if chain else drafter._n_pairs  # type: ignore[attr-defined]
        assert context._length(sequence.seq) == n_positions
        assert drafter._n_pairs + drafter.shift <= len(sequence.history)
        assert drafter._rows.end == sequence.n_cached
        assert drafter._text == sequence.history[:]


_plain_texts: dict[object, list[int]] = {}


def plain_once(made: Bench, prompt: list[int], params: SamplingParams, n: int) -> list[int]:
    """``made.plain``, decoded once for all drafters beside contexts of equal parameters."""
    context = made.target
    given = (context.params.max_width, context.params.type_k, context.params.n_rs_seq, params, n)
    key = (context.model.path, given, tuple(prompt))
    if key not in _plain_texts:
        _plain_texts[key] = made.plain(prompt, params, n)
    return _plain_texts[key]


@contextmanager
def bench(
    kind: str, n_max: int, target: str | Path = "", head_file: Path | None = None, **params: object
) -> Iterator[Bench]:
    """Contexts for a drafter of ``kind``, with room for drafts of ``n_max``."""
    name = target or ("tiny-mtp" if kind == "draft-mtp" else "tiny-target")
    shared = {"n_ctx": 1024, "max_width": n_max + 1, "n_rs_seq": n_max, **params}
    head = {key: shared[key] for key in (*EXACT, "n_ctx", "n_seq_max") if key in shared}
    file = name if isinstance(name, Path) else MODELS / f"{name}.gguf"
    with LlamaModel(file, ModelParams(load_mtp=True)) as model:
        inside = kind == "draft-mtp" and not head_file
        path = MODELS / (head_file or f"{kind.replace('draft', 'tiny')}.gguf")
        own = model if inside else LlamaModel(path, ModelParams(load_mtp=kind == "draft-mtp"))
        try:
            layers = (NEXTN,) if kind == "draft-mtp" else own.target_layers
            with LlamaContext(model, ContextParams(layers=layers, **shared)) as context:  # type: ignore[arg-type]
                head |= head_params(kind, own, context, n_max=n_max)
                with LlamaContext(own, ContextParams(**head)) as head_context:  # type: ignore[arg-type]
                    yield Bench(context, head_context, kind, layers, n_max)
        finally:
            if not inside:
                own.close()


def acceptance(
    kind: str,
    n_max: int,
    params: SamplingParams = GREEDY,
    target: str | Path = "",
    head_file: Path | None = None,
) -> float:
    """Accepted of drafted over the eight prompts, as llama.cpp was measured: f16 cache, one
    thread, up to 256 tokens."""
    with bench(kind, n_max, target, head_file) as made:
        for text in PROMPTS:
            sequence = made.open([made.drafter()], [n_max])
            made.answer(sequence, made.prompt(text), params)
        return made.rate


def check_equality(
    kind: str, params: SamplingParams, *, stacked: bool, n_rs_seq: int = 3, target: str = ""
) -> Bench:
    """Text with the drafter, alone or behind n-grams of up to 16 tokens, is the plain one."""
    with bench(kind, 16, target, n_rs_seq=n_rs_seq, **EXACT) as made:
        for text in PROMPTS[:: 2 - stacked]:  # n-grams have less to say in each text
            prompt = made.prompt(text)
            expected = plain_once(made, prompt, params, 160)
            drafters: list[Drafter] = [made.drafter()]
            ceilings = [3]
            if stacked:
                drafters.insert(0, NgramSimple(3, 16))
                ceilings.insert(0, 16)
            sequence = made.open(drafters, ceilings)
            assert made.answer(sequence, prompt, params, 160) == expected
        return made


def rewrite(
    source: Path,
    path: Path,
    keep: Callable[[str], bool],
    *,
    changed: Mapping[str, object] | None = None,
    added: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A copy of a GGUF file: tensors that ``keep`` names, values ``changed`` (None: left out),
    and tensors ``added``."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    changed = changed or {}
    for key, entry in reader.fields.items():
        value = changed.get(key, entry.contents())
        if key.startswith("GGUF.") or key == "general.architecture" or value is None:
            continue
        kind = entry.types[0]
        inner = entry.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, kind, inner)
    for tensor in reader.tensors:
        if keep(tensor.name):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, data in (added or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
