"""Described models with recurrent layers."""

from __future__ import annotations

from typing import Any

from tests.memory.described import Described, attention, basic, dense, experts, nextn, shared


def _gated_delta(d: Described, il: int, e: int, state: int, groups: int, heads: int) -> None:
    key, value = state * groups, state * heads
    d.layer(il, attn_qkv=[e, 2 * key + value], attn_gate=[e, value])
    d.tensor(f"blk.{il}.ssm_conv1d.weight", 4, 2 * key + value, quant="F32")
    d.tensor(f"blk.{il}.ssm_dt.bias", heads)
    d.tensor(f"blk.{il}.ssm_a", heads)
    d.layer(il, ssm_beta=[e, heads], ssm_alpha=[e, heads], ssm_norm=[state], ssm_out=[value, e])


def _gated_attention(d: Described, il: int, e: int, heads: int, kv: int, k: int) -> None:
    attention(d, il, e, heads, kv, k, k, q_scale=2)
    d.layer(il, attn_q_norm=[k], attn_k_norm=[k])


def qwen35(
    n: int = 64, e: int = 5120, heads: int = 24, kv: int = 4, ff: int = 17408, *, mtp: int = 1,
    trunk: bool = True, output: bool = True, mtp_quant: str = "Q4_K",
) -> Described:  # fmt: skip
    """Qwen3.6-27B: 48 layers with states of 786,432 + 30,720 floats, 16 that attend, MTP."""
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
        nextn(d, il, e)
    return d


def qwen35moe(

    n: int = 40, e: int = 2048, heads: int = 16, kv: int = 2, *, mtp: int = 1

) -> Described:  # fmt: skip
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
            nextn(d, il, e)
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


def mamba2(
    n: int = 64, e: int = 2560, inner: int = 5120, state: int = 128, *, groups: int = 1
) -> Described:
    """Mamba2-2.7B."""
    keys: dict[str, Any] = {
        "block_count": n, "embedding_length": e, "context_length": 1048576,
        "feed_forward_length": 0, "attention__head_count": 0, "ssm__conv_kernel": 4,
        "ssm__inner_size": inner, "ssm__state_size": state, "ssm__time_step_rank": inner // 64,
        "ssm__group_count": groups, "attention__layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    d = Described("mamba2", 50288, **keys)
    d.ends(e, output=False, embd="Q6_K")
    for il in range(n):
        d.layer(il, attn_norm=[e])
        _mamba2(d, il, e, inner, state, groups, inner // 64)
    return d


def nemotron_h(

    n: int = 56, e: int = 4480, heads: int = 40, kv: int = 8, ff: int = 15680

) -> Described:  # fmt: skip
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


def falcon_h1(

    n: int = 36, e: int = 3072, heads: int = 12, kv: int = 2, ff: int = 12288

) -> Described:  # fmt: skip
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


def nemotron_h_moe(n: int = 52, e: int = 2688, heads: int = 32, kv: int = 2) -> Described:
    """Nemotron 3 Nano 30B with an MTP head, whose layer attends and has experts."""
    pattern = ("MEMEM*EMEMEM*" * n)[:n]
    kvs = [kv if kind == "*" else 0 for kind in pattern] + [kv]
    ffs = [1856 if kind == "E" else 0 for kind in pattern] + [0]
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "ssm__conv_kernel": 4,
        "ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__time_step_rank": 64,
        "ssm__group_count": 8, "rope__dimension_count": 128, "attention__layer_norm_epsilon": 1e-5,
        "expert_count": 128, "expert_used_count": 6, "expert_feed_forward_length": 1856,
        "expert_shared_feed_forward_length": 3712, "expert_shared_count": 1,
        "nextn_predict_layers": 1,
    }  # fmt: skip
    keys = basic(n + 1, e, 1048576, heads, 1, 1, **more)
    keys |= {"attention__head_count_kv": kvs, "feed_forward_length": ffs}
    d = Described("nemotron_h_moe", 131072, **keys)
    d.ends(e)
    for il, kind in enumerate(pattern + "+"):
        if kind in "*+":
            attention(d, il, e, heads, kv, 128, 128)
        else:
            d.layer(il, attn_norm=[e])
        if kind == "M":
            _mamba2(d, il, e, 4096, 128, 8, 64)
        if kind in "E+":
            d.tensor(f"blk.{il}.ffn_gate_inp.weight", e, 128, quant="F32")
            d.tensor(f"blk.{il}.exp_probs_b.bias", 128)
            d.layer(il, ffn_up_exps=[e, 1856, 128], ffn_down_exps=[1856, e, 128])
            d.layer(il, ffn_up_shexp=[e, 3712], ffn_down_shexp=[3712, e])
        if kind == "+":
            d.layer(il, post_attention_norm=[e])
            nextn(d, il, e)
    return d


def qwen3next(n: int = 48, e: int = 2048, heads: int = 16, kv: int = 2) -> Described:
    """Qwen3-Next 80B: the states of Qwen 3.5, but they cannot be rolled back."""
    more: dict[str, Any] = {
        "attention__key_length": 256, "attention__value_length": 256, "ssm__conv_kernel": 4,
        "ssm__inner_size": 4096, "ssm__state_size": 128, "ssm__time_step_rank": 32,
        "ssm__group_count": 16, "rope__dimension_count": 64, "expert_count": 512,
        "expert_used_count": 10, "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512,
    }  # fmt: skip
    d = Described("qwen3next", 151936, **basic(n, e, 262144, heads, kv, 5120, **more))
    d.ends(e)
    for il in range(n):
        if (il + 1) % 4:
            d.layer(il, attn_norm=[e], attn_qkv=[e, 8192], attn_gate=[e, 4096])
            d.tensor(f"blk.{il}.ssm_conv1d.weight", 4, 8192, quant="F32")
            d.tensor(f"blk.{il}.ssm_dt.bias", 32)
            d.tensor(f"blk.{il}.ssm_a", 32)
            d.layer(il, ssm_ba=[e, 64], ssm_norm=[128], ssm_out=[4096, e])
        else:
            _gated_attention(d, il, e, heads, kv, 256)
        d.layer(il, post_attention_norm=[e])
        experts(d, il, e, 512, 512)
        d.tensor(f"blk.{il}.ffn_gate_inp_shexp.weight", e)
        shared(d, il, e, 512)
    return d


def rwkv7(n: int = 32, e: int = 2560, ff: int = 10240) -> Described:
    """RWKV-7 2.9B."""
    keys: dict[str, Any] = {
        "block_count": n, "embedding_length": e, "context_length": 1048576,
        "feed_forward_length": ff, "attention__head_count": 0, "wkv__head_size": 64,
        "attention__decay_lora_rank": 96, "attention__iclr_lora_rank": 96,
        "attention__value_residual_mix_lora_rank": 64, "attention__gate_lora_rank": 320,
        "attention__layer_norm_epsilon": 1e-5,
    }  # fmt: skip
    d = Described("rwkv7", 65536, **keys)
    d.ends(e)
    d.tensor("output_norm.bias", e)
    d.tensor("token_embd_norm.weight", e)
    d.tensor("token_embd_norm.bias", e)
    for il in range(n):
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            d.tensor(f"blk.{il}.{name}.weight", e)
            d.tensor(f"blk.{il}.{name}.bias", e)
        for name, rank in (("w", 96), ("a", 96), ("v", 64 if il else 96)):
            d.tensor(f"blk.{il}.time_mix_{name}0.weight", e)
            d.tensor(f"blk.{il}.time_mix_{name}1.weight", e, rank, quant="F16")
            d.tensor(f"blk.{il}.time_mix_{name}2.weight", rank, e, quant="F16")
        d.tensor(f"blk.{il}.time_mix_g1.weight", e, 320, quant="F16")
        d.tensor(f"blk.{il}.time_mix_g2.weight", 320, e, quant="F16")
        d.tensor(f"blk.{il}.time_mix_lerp_fused.weight", e, 1, 1, 6, quant="F32")
        d.tensor(f"blk.{il}.channel_mix_lerp_k.weight", e, 1, 1, quant="F32")
        for name in ("k_k", "k_a", "r_k"):
            d.tensor(f"blk.{il}.time_mix_{name}.weight", e)
        for name in ("key", "value", "receptance", "output"):
            d.tensor(f"blk.{il}.time_mix_{name}.weight", e, e)
        d.layer(il, channel_mix_key=[e, ff], channel_mix_value=[ff, e])
    return d
