"""GGUF headers of realistic size, described layer by layer, without weights.

Each function gives the header that a converter writes for a model of that architecture: the keys
libllama asks for, and its tensors by name, shape and type (src/models/*.cpp). A header takes some
ten kilobytes; as a sparse file of the full size libllama accepts it for a model of many gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf_spec.gguf_types import TENSOR_TYPES
from tests.gguf_writer import BYTES, Gguf

NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
SIZES = {kind.name: (kind.block, kind.n_bytes) for kind in TENSOR_TYPES.values()}
BYTES.update({NUMBERS[name]: size for name, size in SIZES.items()})


class Described:
    """A header under construction; ``quant`` is the type of matrices that name none."""

    def __init__(self, arch: str, n_vocab: int, *, quant: str = "Q4_K", **keys: Any) -> None:
        self.arch = arch
        self.quant = quant
        self.n_vocab = n_vocab
        self.gguf = Gguf()
        self.n_bytes = 0
        self.gguf.key("general.architecture", "str", arch).key("general.name", "str", arch)
        self.gguf.key("tokenizer.ggml.model", "str", "no_vocab")
        self.keys(vocab_size=n_vocab, **keys)

    def keys(self, **values: Any) -> None:
        """Add ``<arch>.<name>``; two underscores in a name are a dot."""
        for name, value in values.items():
            self._key(f"{self.arch}.{name.replace('__', '.')}", value)

    def _key(self, key: str, value: Any) -> None:
        if isinstance(value, str):
            self.gguf.key(key, "str", value)
        elif isinstance(value, bool):
            self.gguf.key(key, "bool", value)
        elif isinstance(value, float):
            self.gguf.key(key, "f32", value)
        elif isinstance(value, int):
            self.gguf.key(key, "u32", value)
        else:
            kind = "bool" if isinstance(value[0], bool) else "i32"
            self.gguf.array(key, kind, value)

    def tensor(self, name: str, *shape: int, quant: str | None = None) -> None:
        """Add a tensor: vectors are F32, matrices of the quantization; F32 where rows do not fit."""
        kind = quant or (self.quant if len(shape) > 1 else "F32")
        block, size = SIZES[kind]
        if shape[0] % block:
            kind, block, size = ("Q8_0", 32, 34) if shape[0] % 32 == 0 else ("F32", 1, 4)
        n_bytes = size
        for dim in shape:
            n_bytes *= dim
        n_bytes //= block
        self.gguf.tensor(name, shape, NUMBERS[kind], offset=self.n_bytes)
        self.n_bytes += -(-n_bytes // 32) * 32

    def layer(self, il: int, **shapes: Sequence[int]) -> None:
        """Add ``blk.<il>.<name>.weight`` for each name."""
        for name, shape in shapes.items():
            self.tensor(f"blk.{il}.{name}.weight", *shape)

    def ends(self, n_embd: int, *, output: bool = True, embd: str | None = None) -> None:
        """Embeddings, the last norm, and an output of their own unless they are tied."""
        self.tensor("token_embd.weight", n_embd, self.n_vocab, quant=embd)
        self.tensor("output_norm.weight", n_embd)
        if output:
            self.tensor("output.weight", n_embd, self.n_vocab, quant="Q6_K")

    def header(self) -> bytes:
        raw = self.gguf.header()
        return raw + b"\0" * (-len(raw) % 32)

    def write(self, path: Path) -> Path:
        """A sparse file of the full size."""
        with path.open("wb") as file:
            file.write(self.header())
            file.truncate(len(self.header()) + self.n_bytes)
        return path


def attention(d: Described, il: int, e: int, heads: int, kv: int, k: int, v: int, **more: Any) -> None:
    """The matrices of plain attention; ``q_scale`` 2 is a query with a gate."""
    q = heads * k * more.get("q_scale", 1)
    d.layer(il, attn_norm=[e], attn_q=[e, q], attn_k=[e, kv * k])
    if more.get("values", True):
        d.layer(il, attn_v=[e, kv * v])
    d.layer(il, attn_output=[heads * v, e])


def dense(d: Described, il: int, e: int, ff: int) -> None:
    d.layer(il, ffn_gate=[e, ff], ffn_up=[e, ff], ffn_down=[ff, e])


def experts(d: Described, il: int, e: int, ff: int, n: int) -> None:
    d.tensor(f"blk.{il}.ffn_gate_inp.weight", e, n, quant="F32")
    d.layer(il, ffn_gate_exps=[e, ff, n], ffn_up_exps=[e, ff, n], ffn_down_exps=[ff, e, n])


def shared(d: Described, il: int, e: int, ff: int) -> None:
    d.layer(il, ffn_gate_shexp=[e, ff], ffn_up_shexp=[e, ff], ffn_down_shexp=[ff, e])


def basic(n_layer: int, e: int, ctx: int, heads: int, kv: int, ff: int, **more: Any) -> dict[str, Any]:
    return {
        "block_count": n_layer,
        "embedding_length": e,
        "context_length": ctx,
        "attention__head_count": heads,
        "attention__head_count_kv": kv,
        "feed_forward_length": ff,
        "attention__layer_norm_rms_epsilon": 1e-6,
        **more,
    }


def llama(
    n: int = 32, e: int = 4096, heads: int = 32, kv: int = 8, ff: int = 14336,
    vocab: int = 128256, *, output: bool = True, quant: str = "Q4_K", embd: str | None = None,
) -> Described:  # fmt: skip
    d = Described("llama", vocab, quant=quant, **basic(n, e, 131072, heads, kv, ff))
    d.ends(e, output=output, embd=embd)
    d.tensor("rope_freqs.weight", e // heads // 2)
    for il in range(n):
        attention(d, il, e, heads, kv, e // heads, e // heads)
        d.layer(il, ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def qwen3(n: int = 36, e: int = 4096, heads: int = 32, kv: int = 8, ff: int = 12288, *,
          output: bool = True) -> Described:  # fmt: skip
    lengths = {"attention__key_length": 128, "attention__value_length": 128}
    d = Described("qwen3", 151936, **basic(n, e, 40960, heads, kv, ff, **lengths))
    d.ends(e, output=output)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, attn_q_norm=[128], attn_k_norm=[128], ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def qwen3moe(n: int = 48, e: int = 2048, heads: int = 32, kv: int = 4) -> Described:
    more = {
        "attention__key_length": 128, "attention__value_length": 128, "expert_count": 128,
        "expert_used_count": 8, "expert_feed_forward_length": 768,
    }  # fmt: skip
    d = Described("qwen3moe", 151936, **basic(n, e, 262144, heads, kv, 6144, **more))
    d.ends(e)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, attn_q_norm=[128], attn_k_norm=[128], ffn_norm=[e])
        experts(d, il, e, 768, 128)
    return d


def _gated_delta(d: Described, il: int, e: int, state: int, groups: int, heads: int) -> None:
    key, value = state * groups, state * heads
    d.layer(il, attn_qkv=[e, 2 * key + value], attn_gate=[e, value])
    d.tensor(f"blk.{il}.ssm_conv1d.weight", 4, 2 * key + value, quant="F32")
    d.tensor(f"blk.{il}.ssm_dt.bias", heads)
    d.tensor(f"blk.{il}.ssm_a", heads)
    d.layer(il, ssm_beta=[e, heads], ssm_alpha=[e, heads], ssm_norm=[state], ssm_out=[value, e])


def _nextn(d: Described, il: int, e: int) -> None:
    d.tensor(f"blk.{il}.nextn.eh_proj.weight", 2 * e, e)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        d.tensor(f"blk.{il}.nextn.{name}.weight", e)


def _gated_attention(d: Described, il: int, e: int, heads: int, kv: int, k: int) -> None:
    attention(d, il, e, heads, kv, k, k, q_scale=2)
    d.layer(il, attn_q_norm=[k], attn_k_norm=[k])


def qwen35(
    n: int = 64, e: int = 5120, heads: int = 24, kv: int = 4, ff: int = 17408, *, mtp: int = 1,
    trunk: bool = True, output: bool = True, mtp_quant: str = "Q4_K",
) -> Described:  # fmt: skip
    """Qwen3.6-27B: 48 layers with a state of 786,432 + 30,720 floats, 16 that attend, an MTP head."""
    more: dict[str, Any] = {
        "attention__key_length": 256, "attention__value_length": 256, "ssm__conv_kernel": 4,
        "ssm__inner_size": 6144, "ssm__state_size": 128, "ssm__time_step_rank": 48,
        "ssm__group_count": 16, "rope__dimension_sections": [11, 11, 10, 0],
        "rope__dimension_count": 64, "full_attention_interval": 4,
    }  # fmt: skip
    d = Described("qwen35", 248320, **basic(n + mtp, e, 262144, heads, kv, ff, **more))
    if mtp:
        d.keys(nextn_predict_layers=mtp)
    d.ends(e, output=output)
    for il in range(n if trunk else 0):
        if (il + 1) % 4:
            d.layer(il, attn_norm=[e])
            _gated_delta(d, il, e, 128, 16, 48)
        else:
            _gated_attention(d, il, e, heads, kv, 256)
        d.layer(il, post_attention_norm=[e])
        dense(d, il, e, ff)
    d.quant = mtp_quant
    for il in range(n, n + mtp):
        _gated_attention(d, il, e, heads, kv, 256)
        d.layer(il, post_attention_norm=[e])
        dense(d, il, e, ff)
        _nextn(d, il, e)
    return d


def qwen35moe(n: int = 40, e: int = 2048, heads: int = 16, kv: int = 2, *, mtp: int = 1) -> Described:
    more: dict[str, Any] = {
        "attention__key_length": 256, "attention__value_length": 256, "ssm__conv_kernel": 4,
        "ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__time_step_rank": 32,
        "ssm__group_count": 16, "rope__dimension_sections": [11, 11, 10, 0],
        "rope__dimension_count": 64, "expert_count": 256, "expert_used_count": 8,
        "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512,
    }  # fmt: skip
    d = Described("qwen35moe", 248320, **basic(n + mtp, e, 262144, heads, kv, 0, **more))
    d.keys(nextn_predict_layers=mtp)
    d.ends(e)
    for il in range(n + mtp):
        if (il + 1) % 4 and il < n:
            d.layer(il, attn_norm=[e])
            _gated_delta(d, il, e, 128, 16, 32)
        else:
            _gated_attention(d, il, e, heads, kv, 256)
        d.layer(il, post_attention_norm=[e])
        experts(d, il, e, 512, 256)
        d.tensor(f"blk.{il}.ffn_gate_inp_shexp.weight", e)
        shared(d, il, e, 512)
        if il >= n:
            _nextn(d, il, e)
    return d


def gemma3(n: int = 34, e: int = 2560, heads: int = 8, kv: int = 4, ff: int = 10240, *,
           embd: str | None = "Q6_K") -> Described:  # fmt: skip
    more = {
        "attention__key_length": 256, "attention__value_length": 256,
        "attention__sliding_window": 1024,
    }  # fmt: skip
    d = Described("gemma3", 262144, **basic(n, e, 131072, heads, kv, ff, **more))
    d.ends(e, output=False, embd=embd)
    for il in range(n):
        attention(d, il, e, heads, kv, 256, 256)
        d.layer(il, attn_q_norm=[256], attn_k_norm=[256], post_attention_norm=[e], ffn_norm=[e])
        dense(d, il, e, ff)
        d.layer(il, post_ffw_norm=[e])
    return d


def gemma4(n: int = 48, e: int = 3840, heads: int = 16, ff: int = 15360, *, shared_kv: int = 0,
           per_layer: int = 0) -> Described:  # fmt: skip
    """12B without, or E4B with per-layer embeddings and shared caches; full layers have K = V."""
    windowed = [il % 6 != 5 for il in range(n)]
    kv = [8 if swa else 2 for swa in windowed] if not per_layer else [2] * n
    more: dict[str, Any] = {
        "attention__key_length": 512, "attention__value_length": 512,
        "attention__key_length_swa": 256, "attention__value_length_swa": 256,
        "attention__sliding_window": 1024, "attention__sliding_window_pattern": windowed,
        "attention__shared_kv_layers": shared_kv, "embedding_length_per_layer_input": per_layer,
        "rope__dimension_count": 512, "rope__dimension_count_swa": 256,
    }  # fmt: skip
    keys = basic(n, e, 131072, heads, 1, ff, **more) | {"attention__head_count_kv": kv}
    d = Described("gemma4", 262144, **keys)
    d.ends(e, output=False, embd="Q6_K")
    if per_layer:
        d.tensor("per_layer_token_embd.weight", per_layer * n, 262144, quant="Q6_K")
        d.tensor("per_layer_model_proj.weight", e, per_layer * n)
        d.tensor("per_layer_proj_norm.weight", per_layer)
    d.tensor("rope_freqs.weight", 256)
    for il in range(n):
        k = 256 if windowed[il] else 512
        d.layer(il, attn_norm=[e], attn_q=[e, heads * k], attn_output=[heads * k, e])
        d.layer(il, attn_q_norm=[k], post_attention_norm=[e], ffn_norm=[e])
        if il < n - shared_kv:
            d.layer(il, attn_k=[e, kv[il] * k], attn_k_norm=[k])
            if windowed[il]:
                d.layer(il, attn_v=[e, kv[il] * k])
        dense(d, il, e, ff)
        d.layer(il, post_ffw_norm=[e])
        if per_layer:
            d.layer(il, inp_gate=[e, per_layer], proj=[per_layer, e], post_norm=[e])
    return d


def gpt_oss(n: int = 24, e: int = 2880, heads: int = 64, kv: int = 8, n_exp: int = 32) -> Described:
    more = {
        "attention__key_length": 64, "attention__value_length": 64, "rope__dimension_count": 64,
        "attention__sliding_window": 128, "expert_count": n_exp, "expert_used_count": 4,
        "expert_feed_forward_length": 2880,
    }  # fmt: skip
    d = Described("gpt-oss", 201088, quant="Q8_0", **basic(n, e, 131072, heads, kv, 2880, **more))
    d.tensor("token_embd.weight", e, 201088)
    d.tensor("output_norm.weight", e)
    d.tensor("output.weight", e, 201088)
    for il in range(n):
        attention(d, il, e, heads, kv, 64, 64)
        d.layer(il, post_attention_norm=[e])
        d.tensor(f"blk.{il}.attn_sinks.weight", heads)
        d.tensor(f"blk.{il}.ffn_gate_inp.weight", e, n_exp, quant="F32")
        for name in ("gate", "up", "down"):
            d.tensor(f"blk.{il}.ffn_{name}_exps.weight", e, e, n_exp, quant="MXFP4")
            d.tensor(f"blk.{il}.ffn_{name}_exps.bias", e, n_exp, quant="F32")
        for name, width in (("q", heads * 64), ("k", kv * 64), ("v", kv * 64), ("output", e)):
            d.tensor(f"blk.{il}.attn_{name}.bias", width)
        d.tensor(f"blk.{il}.ffn_gate_inp.bias", n_exp)
    return d


def deepseek2(n: int = 61, e: int = 7168, heads: int = 128, n_exp: int = 256, *, mtp: int = 1,
              lite: bool = False, vocab: int = 129280) -> Described:  # fmt: skip
    """DeepSeek V3, or with ``lite`` the 16B model without a low-rank query."""
    ff_exp = 1408 if lite else 2048
    more: dict[str, Any] = {
        "attention__key_length": 576, "attention__value_length": 512,
        "attention__key_length_mla": 192, "attention__value_length_mla": 128,
        "attention__kv_lora_rank": 512, "rope__dimension_count": 64, "expert_count": n_exp,
        "expert_used_count": 8, "expert_feed_forward_length": ff_exp, "expert_shared_count": 1,
        "expert_weights_scale": 2.5, "leading_dense_block_count": 1 if lite else 3,
    }  # fmt: skip
    if not lite:
        more["attention__q_lora_rank"] = 1536
    d = Described("deepseek2", vocab, **basic(n + mtp, e, 163840, heads, 1, 18432, **more))
    if mtp:
        d.keys(nextn_predict_layers=mtp)
    d.ends(e)
    for il in range(n + mtp):
        d.layer(il, attn_norm=[e], attn_kv_a_norm=[512], attn_kv_a_mqa=[e, 576])
        if lite:
            d.layer(il, attn_q=[e, heads * 192])
        else:
            d.layer(il, attn_q_a_norm=[1536], attn_q_a=[e, 1536], attn_q_b=[1536, heads * 192])
        d.layer(il, attn_k_b=[128, 512, heads], attn_v_b=[512, 128, heads])
        d.layer(il, attn_output=[heads * 128, e], ffn_norm=[e])
        if il < (1 if lite else 3):
            dense(d, il, e, 18432)
        else:
            experts(d, il, e, ff_exp, n_exp)
            d.tensor(f"blk.{il}.exp_probs_b.bias", n_exp)
            shared(d, il, e, ff_exp)
        if il >= n:
            _nextn(d, il, e)
    return d


def glm4moe(n: int = 46, e: int = 4096, heads: int = 96, kv: int = 8, *, mtp: int = 1) -> Described:
    """GLM-4.5-Air."""
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "expert_count": 128,
        "expert_used_count": 8, "expert_feed_forward_length": 1408, "expert_shared_count": 1,
        "leading_dense_block_count": 1, "rope__dimension_count": 64,
    }  # fmt: skip
    d = Described("glm4moe", 151552, **basic(n + mtp, e, 131072, heads, kv, 10944, **more))
    d.keys(nextn_predict_layers=mtp)
    d.ends(e)
    for il in range(n + mtp):
        attention(d, il, e, heads, kv, 128, 128)
        for name, width in (("q", heads * 128), ("k", kv * 128), ("v", kv * 128)):
            d.tensor(f"blk.{il}.attn_{name}.bias", width)
        d.layer(il, post_attention_norm=[e])
        if il < 1:
            dense(d, il, e, 10944)
        else:
            experts(d, il, e, 1408, 128)
            d.tensor(f"blk.{il}.exp_probs_b.bias", 128)
            shared(d, il, e, 1408)
        if il >= n:
            _nextn(d, il, e)
    return d


def lfm2(n: int = 16, e: int = 2048, heads: int = 32, ff: int = 8192) -> Described:
    """LFM2-1.2B: six layers attend, the others are short convolutions."""
    kv = [8 if il in (2, 5, 8, 10, 12, 14) else 0 for il in range(n)]
    keys = basic(n, e, 128000, heads, 1, ff, shortconv__l_cache=3)
    d = Described("lfm2", 65536, **keys | {"attention__head_count_kv": kv})
    d.tensor("token_embd.weight", e, 65536, quant="Q6_K")
    d.tensor("token_embd_norm.weight", e)
    for il in range(n):
        d.layer(il, ffn_norm=[e])
        dense(d, il, e, ff)
        if kv[il]:
            attention(d, il, e, heads, 8, 64, 64)
            d.layer(il, attn_q_norm=[64], attn_k_norm=[64])
        else:
            d.layer(il, attn_norm=[e])
            d.tensor(f"blk.{il}.shortconv.conv.weight", 3, e, quant="F32")
            d.tensor(f"blk.{il}.shortconv.in_proj.weight", e, 3 * e)
            d.tensor(f"blk.{il}.shortconv.out_proj.weight", e, e)
    return d


def _mamba2(d: Described, il: int, e: int, inner: int, state: int, groups: int, heads: int) -> None:
    conv = inner + 2 * groups * state
    d.layer(il, ssm_in=[e, inner + conv + heads])
    d.tensor(f"blk.{il}.ssm_conv1d.weight", 4, conv, quant="F32")
    d.tensor(f"blk.{il}.ssm_conv1d.bias", conv)
    d.tensor(f"blk.{il}.ssm_dt.bias", heads)
    d.tensor(f"blk.{il}.ssm_a", 1, heads, quant="F32")
    d.tensor(f"blk.{il}.ssm_d", 1, heads, quant="F32")
    d.tensor(f"blk.{il}.ssm_norm.weight", inner // groups, groups, quant="F32")
    d.layer(il, ssm_out=[inner, e])


def mamba2(n: int = 64, e: int = 2560, inner: int = 5120, state: int = 128) -> Described:
    """Mamba2-2.7B."""
    keys = {
        "block_count": n, "embedding_length": e, "context_length": 1048576,
        "feed_forward_length": 0, "attention__head_count": 0, "ssm__conv_kernel": 4,
        "ssm__inner_size": inner, "ssm__state_size": state, "ssm__time_step_rank": inner // 64,
        "ssm__group_count": 1, "attention__layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    d = Described("mamba2", 50288, **keys)
    d.ends(e, output=False, embd="Q6_K")
    for il in range(n):
        d.layer(il, attn_norm=[e])
        _mamba2(d, il, e, inner, state, 1, inner // 64)
    return d


def nemotron_h(n: int = 56, e: int = 4480, heads: int = 40, kv: int = 8, ff: int = 15680) -> Described:
    """Nemotron Nano 9B v2: 27 states, 4 layers that attend, 25 that only compute."""
    pattern = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
    pattern = (pattern + "M-" * n)[:n]
    kvs = [kv if kind == "*" else 0 for kind in pattern]
    ffs = [ff if kind == "-" else 0 for kind in pattern]
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "ssm__conv_kernel": 4,
        "ssm__inner_size": 10240, "ssm__state_size": 128, "ssm__time_step_rank": 128,
        "ssm__group_count": 8, "rope__dimension_count": 128, "attention__layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    keys = basic(n, e, 1048576, heads, 1, 1, **more)
    keys |= {"attention__head_count_kv": kvs, "feed_forward_length": ffs}
    d = Described("nemotron_h", 131072, quant="Q8_0", **keys)
    d.ends(e)
    for il, kind in enumerate(pattern):
        if kind == "*":
            attention(d, il, e, heads, kv, 128, 128)
            continue
        d.layer(il, attn_norm=[e])
        if kind == "M":
            _mamba2(d, il, e, 10240, 128, 8, 128)
        else:
            d.layer(il, ffn_up=[e, ff], ffn_down=[ff, e])
    return d


def phi3(n: int = 32, e: int = 3072, heads: int = 32, ff: int = 8192) -> Described:
    """Phi-3.5-mini, whose window llama.cpp ignores."""
    more = {"rope__dimension_count": 96, "attention__sliding_window": 262144,
            "rope__scaling__original_context_length": 4096}  # fmt: skip
    d = Described("phi3", 32064, **basic(n, e, 131072, heads, heads, ff, **more))
    d.ends(e)
    d.tensor("rope_factors_long.weight", 48)
    d.tensor("rope_factors_short.weight", 48)
    for il in range(n):
        d.layer(il, attn_norm=[e], attn_qkv=[e, 3 * e], attn_output=[e, e], ffn_norm=[e])
        d.layer(il, ffn_up=[e, 2 * ff], ffn_down=[ff, e])
    return d


def llama4(n: int = 48, e: int = 5120, heads: int = 40, kv: int = 8, n_exp: int = 16) -> Described:
    """Llama 4 Scout: chunks of 8192 that no key names."""
    more = {
        "rope__dimension_count": 128, "expert_count": n_exp, "expert_used_count": 1,
        "expert_feed_forward_length": 8192, "interleave_moe_layer_step": 1,
        "attention__key_length": 128, "attention__value_length": 128,
    }  # fmt: skip
    d = Described("llama4", 202048, **basic(n, e, 1048576, heads, kv, 16384, **more))
    d.ends(e)
    d.tensor("rope_freqs.weight", 64)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, ffn_norm=[e])
        experts(d, il, e, 8192, n_exp)
        shared(d, il, e, 8192)
    return d


def falcon_h1(n: int = 36, e: int = 3072, heads: int = 12, kv: int = 2, ff: int = 12288) -> Described:
    """A hybrid whose layers all have both, keys and a state."""
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "ssm__conv_kernel": 4,
        "ssm__inner_size": 3072, "ssm__state_size": 256, "ssm__time_step_rank": 24,
        "ssm__group_count": 1, "rope__dimension_count": 128,
    }  # fmt: skip
    d = Described("falcon-h1", 130048, **basic(n, e, 131072, heads, kv, ff, **more))
    d.ends(e, output=False)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        conv = 3072 + 2 * 256
        d.layer(il, ssm_in=[e, 2 * 3072 + 2 * 256 + 24], ssm_out=[3072, e], ssm_norm=[3072, 1])
        d.tensor(f"blk.{il}.ssm_conv1d.weight", 4, conv, quant="F32")
        d.tensor(f"blk.{il}.ssm_conv1d.bias", conv)
        d.tensor(f"blk.{il}.ssm_dt.bias", 24)
        d.tensor(f"blk.{il}.ssm_a", 1, 24, quant="F32")
        d.tensor(f"blk.{il}.ssm_d", 1, 24, quant="F32")
        d.tensor(f"blk.{il}.ffn_norm", e)
        dense(d, il, e, ff)
    return d


def eagle3(e: int = 5120, heads: int = 40, kv: int = 8, ff: int = 17408, *, n_target: int = 64,
           vocab: int = 248320, own: int = 0) -> Described:  # fmt: skip
    """An EAGLE-3 head; ``own`` is the size of a vocabulary of its own."""
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128,
        "target_layers": [2, n_target // 2, n_target - 3], "target_hidden_size": e,
        "rope__dimension_count": 128,
    }  # fmt: skip
    d = Described("eagle3", vocab, **basic(1, e, 262144, heads, kv, ff, **more))
    d.tensor("fc.weight", 3 * e, e)
    d.tensor("output_norm.weight", e)
    if own:
        d.tensor("output.weight", e, own, quant="Q6_K")
        d.tensor("d2t", own, quant="I64")
    d.layer(0, attn_norm=[e], attn_norm_2=[e], attn_q=[2 * e, heads * 128], attn_k=[2 * e, kv * 128])
    d.layer(0, attn_v=[2 * e, kv * 128], attn_output=[heads * 128, e], ffn_norm=[e])
    dense(d, 0, e, ff)
    return d


def dflash(n: int = 5, e: int = 5120, heads: int = 32, kv: int = 8, ff: int = 17408, *,
           window: int = 0, markov: int = 0, vocab: int = 248320) -> Described:  # fmt: skip
    """A DFlash draft, or with ``markov`` (its rank) a DSpark one."""
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "rope__dimension_count": 128,
        "target_layers": [1, 16, 31, 46, 61], "block_size": 16,
    }  # fmt: skip
    if window:
        more["attention__sliding_window"] = window
        more["attention__sliding_window_pattern"] = [True] * (n - 1) + [False]
    d = Described("dflash", vocab, **basic(n, e, 262144, heads, kv, ff, **more))
    d.tensor("fc.weight", 5 * e, e)
    d.tensor("enc.output_norm.weight", e)
    d.tensor("output_norm.weight", e)
    if markov:
        d.tensor("markov_w1.weight", markov, vocab)
        d.tensor("markov_w2.weight", markov, vocab)
        d.tensor("conf_proj.weight", e + markov, 1, quant="F32")
        d.tensor("conf_proj.bias", 1)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, attn_q_norm=[128], attn_k_norm=[128], ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def assistant(n: int = 4, e: int = 1024, heads: int = 16, ff: int = 4096, *,
              target: int = 3840) -> Described:  # fmt: skip
    """A Gemma 4 assistant: it attends to its target's cache."""
    windowed = [il < n - 1 for il in range(n)]
    more: dict[str, Any] = {
        "attention__key_length": 512, "attention__value_length": 512,
        "attention__key_length_swa": 256, "attention__value_length_swa": 256,
        "attention__sliding_window": 1024, "attention__sliding_window_pattern": windowed,
        "embedding_length_out": target, "nextn_predict_layers": n, "attention__shared_kv_layers": n,
        "rope__dimension_count": 512, "rope__dimension_count_swa": 256,
    }  # fmt: skip
    keys = basic(n, e, 131072, heads, 8, ff, **more)
    keys |= {"attention__head_count_kv": [8 if swa else 2 for swa in windowed]}
    d = Described("gemma4-assistant", 262144, **keys)
    d.tensor("token_embd.weight", e, 262144, quant="Q6_K")
    d.tensor("output_norm.weight", e)
    d.tensor("nextn.pre_projection.weight", 2 * target, e)
    d.tensor("nextn.post_projection.weight", e, target)
    d.tensor("rope_freqs.weight", 256)
    for il in range(n):
        k = 256 if windowed[il] else 512
        d.layer(il, attn_norm=[e], attn_q=[e, heads * k], attn_output=[heads * k, e])
        d.layer(il, attn_q_norm=[k], post_attention_norm=[e], layer_output_scale=[1], ffn_norm=[e])
        dense(d, il, e, ff)
        d.layer(il, post_ffw_norm=[e])
    return d


#: Every described model by the name that the golden rows know it by.
MODELS: dict[str, Callable[[], Described]] = {
    "llama-8b": llama,
    "llama-1b-tied": lambda: llama(16, 2048, 32, 8, 8192, output=False, embd="Q6_K"),
    "llama-tied-q4_k": lambda: llama(16, 2048, 32, 8, 8192, output=False),
    "qwen3-8b": qwen3,
    "qwen3-0.6b": lambda: qwen3(28, 1024, 16, 8, 3072, output=False),
    "qwen3moe-30b": qwen3moe,
    "qwen35-27b": qwen35,
    "qwen35-27b-without-mtp": lambda: qwen35(mtp=0),
    "qwen35-mtp-only": lambda: qwen35(trunk=False),
    "qwen35-small": lambda: qwen35(24, 1024, 8, 2, 3584, output=False),
    "qwen35moe-35b": qwen35moe,
    "gemma3-4b": gemma3,
    "gemma3-tied-q4_0": lambda: gemma3(embd="Q4_0"),
    "gemma4-12b": gemma4,
    "gemma4-e4b": lambda: gemma4(42, 2560, 8, 10240, shared_kv=18, per_layer=256),
    "gpt-oss-20b": gpt_oss,
    "gpt-oss-120b": lambda: gpt_oss(36, n_exp=128),
    "deepseek2-v3": deepseek2,
    "deepseek2-lite": lambda: deepseek2(27, 2048, 16, 64, mtp=0, lite=True, vocab=102400),
    "glm4moe-air": glm4moe,
    "lfm2-1.2b": lfm2,
    "mamba2-2.7b": mamba2,
    "nemotron_h-9b": nemotron_h,
    "phi3-mini": phi3,
    "llama4-scout": llama4,
    "falcon-h1-3b": falcon_h1,
    "eagle3": eagle3,
    "eagle3-own-vocabulary": lambda: eagle3(own=32000),
    "dflash": dflash,
    "dflash-windowed": lambda: dflash(window=2048),
    "dspark": lambda: dflash(markov=256),
    "gemma4-assistant": assistant,
}
