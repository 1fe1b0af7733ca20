from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, check_loadable, parse, read_header
from tests.conftest import MODELS
from tests.gguf_writer import BF16, F16, F32, F64, I8, I16, I32, I64, Q8_0, Q8_K, Gguf, model


def info_of(gguf: Gguf) -> ModelInfo:
    return parse(MemorySource(gguf.build()))


def unloadable(gguf: Gguf, as_target: bool = False) -> str:
    with pytest.raises(HeaderError) as caught:
        check_loadable(info_of(gguf), as_target=as_target)
    return caught.value.message


def without(name: str) -> Gguf:
    gguf = model()
    gguf.entries = [entry for entry in gguf.entries if f"{name}".encode() not in entry[:60]]
    return gguf


UNLOADABLE: dict[str, tuple[Callable[[], Gguf], str]] = {
    "no architecture": (lambda: without("general.architecture"), "general.architecture"),
    "no tokenizer": (lambda: without("tokenizer.ggml.model"), "no tokenizer"),
    "no tokens": (lambda: without("tokenizer.ggml.tokens"), "no tokens"),
    "no merges": (lambda: without("tokenizer.ggml.merges"), "no merges"),
    "no block_count": (lambda: without("llama.block_count"), "block_count is missing"),
    "no layers": (lambda: model(block_count=0), "block_count is 0"),
    "513 layers": (lambda: model(block_count=513), "513 layers"),
    "no heads": (lambda: model(head_count=0), "head_count is missing or 0"),
    "tokenizer": (lambda: model(tokenizer="made-up"), "unknown tokenizer 'made-up'"),
    "same token": (lambda: model(tokens=["a", "b", "a"]), "tokens 0 and 2 have the same text"),
    "cut at NUL": (lambda: model(tokens=["a", "b", "b\0c"]), "tokens 1 and 2"),
    "eps": (
        lambda: model().key("llama.attention.layer_norm_rms_epsilon", "u32", 1),
        "is of type u32, libllama wants f32",
    ),
    "rope": (lambda: model().key("llama.rope.dimension_count", "u32", 8), "rope dimensions 8"),
    "scaling": (lambda: model().key("llama.rope.scaling.type", "str", "odd"), "'odd'"),
    "experts": (lambda: model().key("llama.expert_used_count", "u32", 2), "2 of 0 used"),
    "nextn": (lambda: model().key("llama.nextn_predict_layers", "u32", 3), "3 MTP layers of 2"),
    "interval": (lambda: model().key("llama.full_attention_interval", "u32", 0), "interval is 0"),
    "kv heads": (
        lambda: model().array("llama.attention.head_count_kv", "u32", [1, 2, 3]),
        "3 values for 2 layers",
    ),
    "odd kv heads": (
        lambda: model().key("llama.attention.head_count_kv", "u32", 3),
        "4 heads and 3 key/value heads",
    ),
    "rope beyond the head": (
        lambda: model(arch="gemma3").key("gemma3.rope.dimension_count", "u32", 18),
        "18 rope dimensions in heads of 16",
    ),
    "rope sections": (
        lambda: (
            model(arch="qwen2vl")
            .key("qwen2vl.rope.dimension_count", "u32", 16)
            .array("qwen2vl.rope.dimension_sections", "i32", [4, 4, 4, 0])
        ),
        "16 rope dimensions in the sections [4, 4, 4, 0]",
    ),
    "delta net": (lambda: model(arch="qwen35"), "is missing or too small"),
    "encoder": (
        lambda: model().key("llama.attention.causal", "u32", 0),
        "is of type u32, libllama wants bool",
    ),
    "adapter": (lambda: model().key("general.type", "str", "adapter"), "LoRA adapter"),
    "mmproj": (lambda: model(arch="clip"), "projector"),
    "part": (
        lambda: model().key("split.no", "u16", 1).key("split.count", "u16", 2),
        "part 2 of 2",
    ),
}


@pytest.mark.parametrize("case", UNLOADABLE)
def test_what_libllama_would_refuse_or_abort_on(case: str) -> None:
    make, message = UNLOADABLE[case]
    assert message in unloadable(make())


def converted(name: str, kind: int, shape: tuple[int, ...] = (64,)) -> Gguf:
    """The made-up model with one more tensor."""
    return model().tensor(name, shape, kind)


VECTORS = [
    "output_norm.weight", "blk.0.ffn_norm.weight", "blk.1.attn_q_norm.weight", "blk.0.ssm_a",
    "blk.0.ssm_dt.bias", "blk.0.attn_q.bias", "blk.0.attn_norm_2.weight", "rope_freqs.weight",
    "blk.0.nextn.enorm.weight", "blk.0.exp_probs_b.bias", "blk.0.layer_output_scale.weight",
]  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_f32(name: str) -> None:
    check_loadable(info_of(converted(name, F32)))
    for kind in (F16, BF16, I8, I16, I32, I64, F64, Q8_0):
        message = unloadable(converted(name, kind))
        assert name in message
        if kind in (F16, BF16, Q8_0):
            assert "libllama computes with F32 only" in message


@pytest.mark.parametrize(
    "name", ["blk.0.ssm_conv1d.weight", "blk.0.attn_q_norm.weight", "blk.0.ffn_up_exps.bias",
             "blk.0.ssm_a", "blk.0.shortconv.conv.weight"]
)  # fmt: skip
def test_what_is_computed_element_by_element_is_f32_in_any_shape(name: str) -> None:
    check_loadable(info_of(converted(name, F32, (64, 4))))
    for kind in (F16, BF16, Q8_0):
        assert name in unloadable(converted(name, kind, (64, 4)))


def test_matrices_have_types_that_can_be_multiplied() -> None:
    name = "blk.0.ffn_up.weight"
    for kind in (F32, F16, BF16, Q8_0):
        check_loadable(info_of(converted(name, kind, (64, 64))))
        check_loadable(info_of(converted("blk.0.ffn_gate_inp_shexp.weight", kind, (64,))))
    for kind in (I8, I16, I32, I64, F64):
        assert "which no weights have" in unloadable(converted(name, kind, (64, 64)))
    assert "Q8_K" in unloadable(converted(name, Q8_K, (256, 64)))


def test_indices_are_whole_numbers() -> None:
    check_loadable(info_of(converted("d2t", I64)))
    check_loadable(info_of(converted("blk.0.ffn_gate_tid2eid.weight", I32, (2, 300))))
    for kind in (F32, I32):
        assert "I64" in unloadable(converted("d2t", kind))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.gguf")), ids=lambda path: path.stem)
def test_the_models_of_these_tests_are_loadable(path: Path) -> None:
    check_loadable(read_header(path))


def test_the_made_up_model_itself_is_loadable() -> None:
    check_loadable(info_of(model()), as_target=True)
