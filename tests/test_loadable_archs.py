"""What single architectures assert: refused here, and libllama aborts on it where it is tried."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gguf_spec.backend import ContextParams, ModelParams
from gguf_spec.bare_header import HeaderFile
from gguf_spec.errors import HeaderError, ProbeError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import check_loadable, parse
from gguf_spec.loadable_archs import EQUAL_HEADS, FULL_ROTARY, NO_GENERATORS, RULES
from gguf_spec.probe import ProbeModel, probe
from tests.gguf_writer import F32, Gguf, model
from tests.memory.described import Described, attention, basic, dense
from tests.memory.hybrids import mamba2, rwkv7
from tests.memory.transformers import deepseek2, gemma2, glm4moe, glm_dsa

Value = int | float | bool | list[int]


def with_keys(gguf: Gguf, arch: str, keys: dict[str, Value]) -> Gguf:
    """``gguf`` with ``<arch>.<name>`` set, in place of what it had."""
    for name, value in keys.items():
        full = f"{arch}.{name}".encode()
        gguf.entries = [e for e in gguf.entries if e[8 : 8 + len(full)] != full or
                        struct.unpack_from("<Q", e)[0] != len(full)]  # fmt: skip
        if isinstance(value, list):
            gguf.array(full.decode(), "i32", value)
        else:
            kinds = {bool: "bool", float: "f32", int: "u32"}
            gguf.key(full, kinds[type(value)], value)
    return gguf


@dataclass(frozen=True)
class Sparse:
    """A header with zeros behind it, as of a file of its full size."""

    data: bytes
    size: int
    name: str = "sparse"

    def read(self, offset: int, n: int) -> bytes:
        return self.data[offset : offset + n].ljust(n, b"\0")


def plain(arch: str, rotary: int) -> Described:
    """One layer of plain attention with heads of 64, of which ``rotary`` values are rotated."""
    lengths = {"attention__key_length": 64, "attention__value_length": 64}
    keys = basic(1, 256, 512, 4, 2, 512, rope__dimension_count=rotary, logit_scale=1.0, **lengths)
    d = Described(arch, 1000, quant="F32", **keys)
    d.ends(256)
    attention(d, 0, 256, 4, 2, 64, 64)
    d.layer(0, ffn_norm=[256])
    dense(d, 0, 256, 512)
    return d


ABORTS: dict[str, tuple[Callable[[], Described], dict[str, Value], str]] = {
    "xverse": (lambda: plain("xverse", 32), {}, "rope dimensions 32"),
    "minicpm": (lambda: plain("minicpm", 32), {}, "rope dimensions 32"),
    "latent": (lambda: deepseek2(3, 512, 4, 8), {"attention.key_length": 577}, "512 + 64"),
    "rotary": (lambda: deepseek2(3, 512, 4, 8), {"rope.dimension_count": 192}, "leave nothing"),
    "gate": (lambda: glm4moe(3, 512, 4, 2), {"expert_gating_func": 9}, "libllama knows 1 to 4"),
    "no experts": (lambda: glm4moe(3, 512, 4, 2), {"expert_count": 0, "expert_used_count": 0},
                   "expert_count is missing or 0"),
    "windows": (lambda: gemma2(2, 512, 4, 2, 1024), {"attention.sliding_window_pattern": 1},
                "leaves no layer of 2 with a window"),
    "shift": (lambda: rwkv7(2, 512, 1024), {"token_shift_count": 1}, "it must be 2"),
    "state": (lambda: mamba2(1, 512, 1024, 16, groups=3), {}, "16 heads and 3 groups"),
    "indexer": (lambda: glm_dsa(2, 512, 4, 8), {"attention.indexer.types": [0, 1]},
                "has no indexer before it"),
}  # fmt: skip


@pytest.mark.parametrize("case", ABORTS)
def test_what_libllama_aborts_on_is_refused(case: str) -> None:
    make, keys, said = ABORTS[case]
    sound, described = make(), make()
    gguf = with_keys(described.gguf, described.arch, keys)
    header = gguf.header() + b"\0" * (-len(gguf.header()) % 32)
    size = len(header) + described.n_bytes
    with pytest.raises(HeaderError) as caught:
        check_loadable(parse(Sparse(header, size)))
    assert said in caught.value.message
    if keys:
        check_loadable(parse(Sparse(sound.header(), len(sound.header()) + sound.n_bytes)))
    asked = ProbeModel((HeaderFile(header, size),), ModelParams(use_mmap=False))
    with pytest.raises(ProbeError) as failed:
        probe(asked, ContextParams(256, n_ubatch=64))
    assert failed.value.kind in ("abort", "crash"), failed.value


HEADS = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
SSM = {"ssm.inner_size": 128, "ssm.time_step_rank": 8, "ssm.group_count": 2, "ssm.conv_kernel": 4}
HRM = {"hrm.layers_per_stack": 1, "hrm.h_cycles": 1, "hrm.l_cycles": 1}
#: For each rule what a header needs to pass it, and a value on which it does not.
SOUND: dict[str, tuple[dict[str, Value], tuple[dict[str, Value], ...]]] = {
    "arwkv7": ({"token_shift_count": 1, "wkv.head_size": 16},
               ({"token_shift_count": 2}, {"wkv.head_size": 24})),
    "bailingmoe2": ({"expert_count": 4, "expert_used_count": 1, "expert_gating_func": 2},
                    ({"expert_gating_func": 0}, {"expert_count": 0, "expert_used_count": 0})),
    "bailingmoe3": ({"kda.gate_lower_bound": -5.0},
                    ({"kda.gate_lower_bound": 0.0}, {"kda.safe_gate": False})),
    "cohere2moe": ({}, ({"block_count": 1}, {"attention.sliding_window_pattern": 1})),
    "deepseek2": ({"rope.dimension_count": 4, "attention.temperature_scale": 0.1,
                   "attention.temperature_length": 8},
                  ({"attention.temperature_length": 0}, {"rope.dimension_count": 16})),
    "deepseek2-ocr": ({}, ({"rope.freq_base": 5000.0}, {"attention.key_length": 32})),
    "deepseek4": ({"hyper_connection.count": 4, "attention.output_group_count": 2,
                   "attention.indexer.key_length": 16},
                  ({"hyper_connection.count": 2}, {"attention.output_group_count": 0},
                   {"attention.output_group_count": 3}, {"attention.indexer.key_length": 8},
                   {"attention.compress_ratios": [0] * 513})),
    "ernie4_5-moe": ({"interleave_moe_layer_step": 1}, ({"interleave_moe_layer_step": 0},)),
    "exaone4": ({}, ({"block_count": 64, "attention.sliding_window_pattern": 1},)),
    "falcon-h1": (SSM, ({"ssm.time_step_rank": 0}, {"ssm.time_step_rank": 7},
                        {"ssm.group_count": 3}, {"ssm.conv_kernel": 1})),
    "glm5-next": ({"attention.indexer.kpool": 2, "attention.indexer.top_k": 8,
                   "hyper_connection.count": 4, "rope.dimension_count": 0},
                  ({"attention.indexer.kpool": 1}, {"attention.indexer.top_k": 7},
                   {"rope.dimension_count": 16}, {"attention.indexer.types": [0, 1]})),
    "granite_swa": ({"attention.sliding_window_pattern": [0, 1]},
                    ({"attention.sliding_window_pattern": [0, 0]},)),
    "granitehybrid": (SSM | {"attention.head_count_kv": [0, 2]},
                      ({"ssm.inner_size": 64}, {"ssm.group_count": 0})),
    "grovemoe": ({"expert_count": 4, "expert_used_count": 1, "experts_per_group": 2},
                 ({"experts_per_group": 0}, {"expert_count": 0, "expert_used_count": 0})),
    "hrm_text": (HRM, ({"hrm.l_cycles": 2}, {"hrm.h_cycles": 0})),
    "jamba": (SSM, ({"ssm.inner_size": 64}, {"ssm.conv_kernel": 0})),
    "lfm2": ({"shortconv.l_cache": 3}, ({"shortconv.l_cache": 1}, {"attention.key_length": 32})),
    "lfm2moe": ({"shortconv.l_cache": 3, "leading_dense_block_count": 2},
                ({"leading_dense_block_count": 1},)),
    "llama4": ({}, ({"attention.sliding_window_pattern": 1},)),
    "mamba": (SSM, ({"ssm.inner_size": 0},)),
    "minimax-m3": ({"attention.indexer.block_size": 64, "attention.indexer.head_count": 4},
                   ({"attention.indexer.block_size": 0}, {"attention.indexer.head_count": 2})),
    "nanbeige": ({"num_loops": 2}, ({"num_loops": 0}, {"num_loops": 257})),
    "plamo2": (SSM | {"ssm.group_count": 0, "attention.head_count_kv": [0, 4]},
               ({"ssm.group_count": 1},)),
    "qwen4exp": (SSM, ({"ssm.group_count": 0}, {"ssm.group_count": 3})),
    "rwkv6qwen2": ({"token_shift_count": 1, "wkv.head_size": 16}, ({"token_shift_count": 2},)),
    "smallthinker": ({"expert_count": 4, "expert_used_count": 1, "expert_gating_func": 1},
                     ({"expert_gating_func": 0},)),
}  # fmt: skip


@pytest.mark.parametrize("arch", SOUND)
def test_rules_pass_what_is_sound_and_nothing_else(arch: str) -> None:
    sound, faults = SOUND[arch]
    sound = HEADS | sound
    check_loadable(parse(MemorySource(with_keys(model(arch=arch), arch, sound).build())))
    for fault in faults:
        gguf = with_keys(model(arch=arch), arch, sound | fault)
        with pytest.raises(HeaderError):
            check_loadable(parse(MemorySource(gguf.build())))


@pytest.mark.parametrize("arch", sorted(FULL_ROTARY | EQUAL_HEADS))
def test_heads_of_every_architecture(arch: str) -> None:
    """Also of those that have rules of their own: heads are told first."""
    for name in ("attention.value_length", "rope.dimension_count"):
        gguf = with_keys(model(arch=arch), arch, HEADS | {name: 8})
        try:
            check_loadable(parse(MemorySource(gguf.build())))
            said = ""
        except HeaderError as error:
            said = error.message
        wrong = name == "attention.value_length" or arch in FULL_ROTARY
        assert ("must be equal" in said) == wrong, said


def test_heads_of_layers_with_a_window_may_be_the_first() -> None:
    swa = {"attention.key_length_swa": 8, "attention.value_length_swa": 8,
           "rope.dimension_count_swa": 8}  # fmt: skip
    partial = HEADS | {"rope.dimension_count": 8}
    check_loadable(
        parse(MemorySource(with_keys(model(arch="mellum"), "mellum", partial | swa).build()))
    )


@pytest.mark.parametrize("arch", NO_GENERATORS)
def test_models_that_write_no_text_are_refused(arch: str) -> None:
    with pytest.raises(HeaderError, match="does not write text"):
        check_loadable(parse(MemorySource(model(arch=arch).build())))


def test_gates_of_laguna_are_as_wide_as_heads_or_their_values() -> None:
    for rows in (4, 64, 5):
        gguf = with_keys(model(arch="laguna"), "laguna", dict(HEADS))
        info = parse(MemorySource(gguf.tensor("blk.0.attn_gate.weight", (64, rows), F32).build()))
        if rows == 5:
            with pytest.raises(HeaderError, match="5 rows for 4 heads of 16"):
                check_loadable(info)
        else:
            check_loadable(info)


def test_rwkv6_has_its_five_weights_in_one_tensor_or_in_five() -> None:
    keys: dict[str, Value] = {"wkv.head_size": 16}
    gguf = with_keys(model(arch="rwkv6"), "rwkv6", keys)
    gguf.tensor("blk.0.time_mix_lerp_fused.weight", (64, 1, 1, 5), F32)
    with pytest.raises(HeaderError, match=r"blk\.1\.time_mix_lerp_fused\.weight is not there"):
        check_loadable(parse(MemorySource(gguf.build())))
    gguf.tensor("blk.1.time_mix_lerp_w.weight", (64, 1, 1), F32)
    check_loadable(parse(MemorySource(gguf.build())))


def test_every_rule_is_of_an_architecture_that_is_tried() -> None:
    tried = set(SOUND) | {make().arch for make, _, _ in ABORTS.values()} | {"laguna", "rwkv6"}
    rest = {rule for arch, rules in RULES.items() if arch not in tried for rule in rules}
    assert rest <= {rule for arch in tried for rule in RULES.get(arch, ())} | set(RULES["dflash"])
