"""The libllama backend on tiny models: caches, rollback, refusals instead of aborts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.backend import (
    ContextParams,
    LlamaContext,
    LlamaModel,
    ModelParams,
    list_devices,
    load_lib,
    recent_log,
)
from gguf_spec.backend.lib import OPTIONAL, REQUIRED, Lib, self_test
from gguf_spec.backend.log import LogBuffer, captured_stderr
from gguf_spec.context import Run
from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.errors import BackendError, InputError
from gguf_spec.sampling import Sampler, SamplingParams

# The prompts on which native llama.cpp's acceptance with these models was measured (greedy, one
# thread, n_ctx 1024, up to 256 tokens): draft-simple .422 at n_max 3, .243 at n_max 7.
PROMPTS = (
    "import os\n\ndef read_file(path):\n",
    'class Queue:\n    """Create a queue object with a given maximum size.\n',
    "    def __init__(self, name, value=None):\n        self.name = name\n",
    "import re\n\n_pattern = re.compile(",
    "<|im_start|>user\nWrite a function close: Close the file.<|im_end|>\n<|im_start|>assistant\n",
    "# This module implements\n",
    "try:\n    import threading\nexcept ImportError:\n",
    "def parse(self, text):\n",
)


def make_context(model: LlamaModel, **changes: object) -> LlamaContext:
    params = {"n_ctx": 1024, "max_width": 17, **changes}
    return LlamaContext(model, ContextParams(**params))  # type: ignore[arg-type]


def generate(
    sequence: SequenceState, engine: Engine, prompt: list[int], sampler: Sampler, n: int
) -> list[int]:
    tokens: list[int] = []
    for step in engine.generate(sequence, Request(prompt, sampler, n)):
        tokens += step.tokens
        context = engine.target
        assert isinstance(context, LlamaContext)
        assert context._length(sequence.seq) == sequence.n_cached
    spec = sequence.progress.spec
    assert len(tokens) == 1 + spec.steps + spec.total.num_accepted_tokens
    return tokens


def greedy() -> Sampler:
    return Sampler(SamplingParams())


def test_logits_after_a_rollback_are_those_of_a_cache_that_never_held_more(
    tiny_target: LlamaModel,
) -> None:
    tokens = tiny_target.tokenize(PROMPTS[0])
    with make_context(tiny_target) as context:
        context.decode([Run(0, 0, tokens, 1)])
        context.decode([Run(0, len(tokens), [7], 1)])
        expected = context.logits(0).copy()
        assert context.remove(0, len(tokens))
        context.decode([Run(0, len(tokens), [9, 10, 11], 3)])
        assert context.remove(0, len(tokens))
        context.decode([Run(0, len(tokens), [7], 1)])
        np.testing.assert_array_equal(context.logits(0), expected)


def test_a_hybrid_model_rolls_back_by_checkpoint(tiny: Path) -> None:
    with LlamaModel(tiny / "tiny-mtp.gguf") as model, make_context(model) as context:
        assert not context.removes_tail
        tokens = model.tokenize(PROMPTS[0])
        context.decode([Run(0, 0, tokens, 1)])
        saved = context.save(0)
        context.decode([Run(0, len(tokens), [7], 1)])
        expected = context.logits(0).copy()
        context.restore(0, saved)
        context.decode([Run(0, len(tokens), [9, 10, 11], 3)])
        assert not context.remove(0, len(tokens))
        context.restore(0, saved)
        assert context._length(0) == len(tokens)
        context.decode([Run(0, len(tokens), [7], 1)])
        np.testing.assert_allclose(context.logits(0), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny-target.gguf", "tiny-mtp.gguf"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_does_not_change_the_text(tiny: Path, name: str, temperature: float) -> None:
    """Attention and hybrid targets; exact settings: flash attention, bf16 cache."""
    exact = {"flash_attn": "on", "type_k": "bf16", "type_v": "bf16", "n_ctx": 512}
    with (
        LlamaModel(tiny / name) as model,
        LlamaModel(tiny / "tiny-draft.gguf") as draft,
        make_context(model, **exact) as context,
        make_context(draft, n_ctx=512, max_width=1) as draft_context,
    ):
        for prompt in PROMPTS:
            tokens = model.tokenize(prompt, parse_special=True)
            sampler = Sampler(SamplingParams(temperature=temperature, seed=1))
            texts = []
            for kinds in ((), ("ngram",), ("draft",), ("ngram", "draft")):
                drafters: list[Drafter] = [
                    NgramSimple(4, 16) if kind == "ngram" else DraftModel(draft_context)
                    for kind in kinds
                ]
                engine = Engine(context)
                ceilings = [16 if kind == "ngram" else 5 for kind in kinds]
                sequence = engine.open(drafters, FixedPolicy(ceilings))
                texts.append(generate(sequence, engine, tokens, sampler, 150))
            assert texts[1:] == texts[:1] * 3, prompt


@pytest.mark.parametrize(("n_max", "native"), [(3, 0.422), (7, 0.243)])
def test_a_draft_model_is_accepted_as_often_as_in_llama_cpp(
    tiny: Path, tiny_target: LlamaModel, n_max: int, native: float
) -> None:
    drafted = accepted = 0
    with (
        LlamaModel(tiny / "tiny-draft.gguf") as draft,
        make_context(draft, max_width=1) as draft_context,
        make_context(tiny_target) as context,
    ):
        engine = Engine(context)
        sequence = engine.open([DraftModel(draft_context)], FixedPolicy([n_max]))
        for prompt in PROMPTS:
            generate(
                sequence, engine, tiny_target.tokenize(prompt, parse_special=True), greedy(), 256
            )
            drafted += sequence.progress.spec.total.num_draft_tokens
            accepted += sequence.progress.spec.total.num_accepted_tokens
    assert accepted / drafted == pytest.approx(native, abs=0.02)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_drafting_for_itself_is_accepted(
    tiny_target: LlamaModel, temperature: float
) -> None:
    drafted = accepted = 0
    with make_context(tiny_target) as context, make_context(tiny_target) as draft_context:
        engine = Engine(context)
        sequence = engine.open([DraftModel(draft_context)], FixedPolicy([5]))
        for prompt in PROMPTS:
            sampler = Sampler(SamplingParams(temperature=temperature, seed=3))
            generate(sequence, engine, tiny_target.tokenize(prompt), sampler, 200)
            drafted += sequence.progress.spec.total.num_draft_tokens
            accepted += sequence.progress.spec.total.num_accepted_tokens
    assert drafted > 500
    assert accepted / drafted >= 0.98


@pytest.mark.parametrize(("temperature", "least"), [(0.8, 1.05), (1.0, 1.15)])
def test_shared_noise_is_accepted_more_often_than_a_greedy_draft(
    tiny: Path, tiny_target: LlamaModel, temperature: float, least: float
) -> None:
    """A greedy draft is llama.cpp's way."""

    class GreedyDraft(DraftModel):
        def draft(self, limit, sampler):  # type: ignore[no-untyped-def]
            return super().draft(limit, greedy())

    rates = []
    with (
        LlamaModel(tiny / "tiny-draft.gguf") as draft,
        make_context(draft, max_width=1) as draft_context,
        make_context(tiny_target) as context,
    ):
        for kind in (DraftModel, GreedyDraft):
            drafted = accepted = 0
            engine = Engine(context)
            sequence = engine.open([kind(draft_context)], FixedPolicy([3]))
            for seed, prompt in enumerate(PROMPTS * 2):
                filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} if temperature == 1.0 else {}
                params = SamplingParams(temperature=temperature, seed=seed, **filters)
                tokens = tiny_target.tokenize(prompt, parse_special=True)
                generate(sequence, engine, tokens, Sampler(params), 128)
                drafted += sequence.progress.spec.total.num_draft_tokens
                accepted += sequence.progress.spec.total.num_accepted_tokens
            rates.append(accepted / drafted)
    assert rates[0] > least * rates[1]


def test_three_sequences_share_a_context(tiny: Path, tiny_target: LlamaModel) -> None:
    exact = {"flash_attn": "on", "type_k": "bf16", "type_v": "bf16", "n_ctx": 512}
    prompts = [tiny_target.tokenize(p, parse_special=True) for p in PROMPTS[:3]]
    samplers = [Sampler(SamplingParams(temperature=0.7 * (i % 2), seed=i)) for i in range(3)]
    alone = []
    with make_context(tiny_target, **exact) as context:
        for prompt, sampler in zip(prompts, samplers, strict=True):
            engine = Engine(context)
            sequence = engine.open([], FixedPolicy([]))
            alone.append(generate(sequence, engine, prompt, sampler, 100))
    with (
        LlamaModel(tiny / "tiny-draft.gguf") as draft,
        make_context(draft, max_width=1, n_seq_max=3) as draft_context,
        make_context(tiny_target, n_seq_max=3, **exact) as context,
    ):
        engine = Engine(context)
        sequences = [
            engine.open([DraftModel(draft_context, i)], FixedPolicy([3])) for i in range(3)
        ]
        together: list[list[int]] = [[], [], []]
        for sequence, prompt, sampler in zip(sequences, prompts, samplers, strict=True):
            sequence.start(Request(prompt, sampler, 100))
        while any(s.active for s in sequences):
            for step in engine.step():
                together[step.seq] += step.tokens
        assert all(s.progress.spec.total.num_accepted_tokens > 10 for s in sequences)
    assert together == alone


def test_the_end_of_the_context_is_met_exactly(tiny: Path, tiny_target: LlamaModel) -> None:
    prompt = tiny_target.tokenize(PROMPTS[1] * 4)[:56]
    texts = []
    with (
        make_context(tiny_target, n_ctx=64) as context,
        LlamaModel(tiny / "tiny-draft.gguf") as draft,
        make_context(draft, n_ctx=64, max_width=1) as draft_context,
    ):
        for drafters in ([], [NgramSimple(2, 16)], [DraftModel(draft_context)]):
            engine = Engine(context)
            sequence = engine.open(drafters, FixedPolicy([16] * len(drafters)))
            tokens: list[int] = []
            for step in engine.generate(sequence, Request(prompt, greedy())):
                tokens += step.tokens
            assert sequence.finish_reason == "length"
            assert len(tokens) == 64 - 56 + 1
            texts.append(tokens)
    assert texts[0] == texts[1] == texts[2]


def test_what_would_abort_libllama_is_refused(tiny_target: LlamaModel) -> None:
    with make_context(tiny_target, n_ctx=256, n_batch=32, n_ubatch=32, max_width=4) as context:
        with pytest.raises(BackendError, match="5 rows of logits, room for 4"):
            context.decode([Run(0, 0, [5] * 5, 5)])
        with pytest.raises(BackendError, match="batch of 200 rows"):
            context.decode([Run(0, 0, [5] * 200, 1)])
        with pytest.raises(BackendError, match="code -1"):
            context.decode([Run(0, 0, [5_000_000], 1)])
        context.decode([Run(0, 0, [5, 6], 1)])
        with pytest.raises(BackendError, match="no logits for row 0"):
            context.logits(0)
    with pytest.raises(BackendError, match="closed"):
        context.decode([Run(0, 0, [5], 1)])
    context.close()


def test_closing_is_final_and_repeatable(tiny: Path) -> None:
    model = LlamaModel(tiny / "tiny-draft.gguf")
    context = make_context(model)
    context.close()
    context.close()
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"):
        _ = model.handle
    with pytest.raises(BackendError, match="closed"):
        make_context(model)


def test_loading_reports_progress_and_can_be_interrupted(tiny: Path) -> None:
    seen: list[float] = []
    with LlamaModel(tiny / "tiny-target.gguf", progress=seen.append):
        pass
    assert seen == sorted(seen)
    assert seen[-1] == 1.0

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LlamaModel(tiny / "tiny-target.gguf", progress=interrupt)


def test_a_failed_load_says_what_libllama_said(tiny: Path, tmp_path: Path) -> None:
    data = (tiny / "tiny-target.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data.replace(b"qwen3", b"qwenX"))
    with pytest.raises(InputError, match="unknown model architecture"):
        LlamaModel(broken)


def test_tokens_pieces_and_ends(tiny_target: LlamaModel) -> None:
    text = "def f(x):\n    return '日本語 🙂'\n"
    tokens = tiny_target.tokenize(text)
    assert b"".join(tiny_target.piece(t) for t in tokens).decode() == text
    end = tiny_target.tokenize("<|im_end|>", parse_special=True)
    assert len(end) == 1
    assert tiny_target.is_end(end[0])
    assert tiny_target.is_control(end[0])
    assert tiny_target.piece(end[0]) == b""
    assert tiny_target.special_text(end[0]) == "<|im_end|>"
    assert len(tiny_target.tokenize("<|im_end|>")) > 1
    assert not tiny_target.is_end(tokens[0])


def test_a_lib_that_is_not_known_is_refused_or_reduced() -> None:
    real = load_lib().api
    names = [*REQUIRED, *OPTIONAL, "llama_model_params", "llama_context_params"]

    def tampered(without: str = "", **changes: object) -> Lib:
        table = {n: getattr(real, n) for n in names if hasattr(real, n) and n != without}
        return Lib(SimpleNamespace(**{**table, **changes}), "9.9")  # type: ignore[arg-type]

    complete = tampered()
    self_test(complete)
    assert complete.missing == {}
    for name in REQUIRED:
        with pytest.raises(BackendError, match=name):
            self_test(tampered(without=name))
    for name in OPTIONAL:
        reduced = tampered(without=name)
        self_test(reduced)
        assert not reduced.has(name)

    def shifted() -> object:
        params = real.llama_context_default_params()
        params.n_ubatch = 0
        return params

    with pytest.raises(BackendError, match="llama_context_params differs"):
        self_test(tampered(llama_context_default_params=shifted))


@pytest.mark.parametrize("n_ctx", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["tiny-target.gguf", "tiny-mtp.gguf"])
def test_tiny_contexts_and_batches_hold(tiny: Path, name: str, n_ctx: int) -> None:
    with (
        LlamaModel(tiny / name) as model,
        make_context(model, n_ctx=n_ctx, n_batch=2_000_000_000) as context,
    ):
        assert context.n_batch <= 512, "no buffers for more rows than there are cells"
        engine = Engine(context)
        sequence = engine.open([NgramSimple(1, 4)], FixedPolicy([4]))
        tokens: list[int] = []
        for step in engine.generate(sequence, Request([5], greedy())):
            tokens += step.tokens
        assert len(tokens) == n_ctx


def test_the_log_is_read_from_a_mark_on() -> None:
    log = LogBuffer()
    for i in range(5000):
        log.write(2, b"line %d\n" % i)
    mark = log.mark()
    assert log.since(mark) == []
    log.write(4, b"broken")
    assert log.since(mark) == [("error", "broken")]
    assert len(log.since(0)) == len(log.lines) < 5000


def test_log_lines_are_joined() -> None:
    log = LogBuffer()
    log.write(2, b"loading ")
    for _ in range(100):
        log.write(5, b".")
    log.write(5, b"\n")
    log.write(3, b"careful\nvery")
    log.write(4, b"broken")
    log.write(2, None)
    assert next(iter(log.lines)) == ("info", "loading " + "." * 100)
    assert log.errors() == ["careful", "very", "broken"]


def test_what_goes_past_the_callback_is_captured(capfd: pytest.CaptureFixture[str]) -> None:
    with captured_stderr():
        os.write(2, b"straight to the descriptor\n")
        print("a progress bar", file=sys.stderr)
    assert "straight to the descriptor" in recent_log().lines[-1][1]
    assert "straight" not in capfd.readouterr().err


def test_python_keeps_its_stderr_while_the_descriptor_is_captured() -> None:
    code = (
        "import os, sys\n"
        "from gguf_spec.backend.log import captured_stderr\n"
        "with captured_stderr():\n"
        "    os.write(2, b'hidden'); print('shown', file=sys.stderr)\n"
        "print('after', file=sys.stderr); os.write(2, b'visible')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "hidden" not in done.stderr
    assert [w in done.stderr for w in ("shown", "after", "visible")] == [True] * 3


def test_tensors_are_put_where_an_override_says(tiny: Path) -> None:
    path = tiny / "tiny-target.gguf"
    recent_log().lines.clear()
    with LlamaModel(path, ModelParams(overrides=((r"blk\.0\.ffn_.*", "CPU"),))) as model:
        lines = [line for _, line in recent_log().lines if "buffer type overridden" in line]
        assert lines
        assert all("blk.0.ffn_" in line for line in lines)
        assert model.n_vocab == 1024
    with pytest.raises(InputError, match="no buffer type TPU9"):
        LlamaModel(path, ModelParams(overrides=((".*", "TPU9"),)))


def test_a_device_that_is_not_there_is_refused(tiny: Path) -> None:
    path = tiny / "tiny-target.gguf"
    with pytest.raises(InputError, match="no device TPU9"):
        LlamaModel(path, ModelParams(devices=("TPU9",)))
    with LlamaModel(path, ModelParams(devices=("none",))) as model:
        assert model.n_vocab == 1024


def test_devices_are_listed() -> None:
    assert any(device.kind == "cpu" and device.total > 0 for device in list_devices())
