"""Described models whose layers all attend."""

from __future__ import annotations

from typing import Any

from tests.memory.described import Described, attention, basic, dense, experts, nextn, shared


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
           per_layer: int = 0, window: int = 1024) -> Described:  # fmt: skip
    """12B without, or E4B with per-layer embeddings and shared caches; full layers have K = V."""
    windowed = [il % 6 != 5 for il in range(n)]
    kv = [8 if swa else 2 for swa in windowed] if not per_layer else [2] * n
    more: dict[str, Any] = {
        "attention__key_length": 512, "attention__value_length": 512,
        "attention__key_length_swa": 256, "attention__value_length_swa": 256,
        "attention__sliding_window": window, "attention__sliding_window_pattern": windowed,
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
            nextn(d, il, e)
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
            nextn(d, il, e)
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


def gemma2(n: int = 26, e: int = 2304, heads: int = 8, kv: int = 4, ff: int = 9216) -> Described:
    """Every other layer has a window of 4096, which no key says."""
    more = {"attention__key_length": 256, "attention__value_length": 256}
    d = Described("gemma2", 256000, **basic(n, e, 8192, heads, kv, ff, **more))
    d.ends(e, output=False, embd="Q6_K")
    for il in range(n):
        attention(d, il, e, heads, kv, 256, 256)
        d.layer(il, post_attention_norm=[e], ffn_norm=[e], post_ffw_norm=[e])
        dense(d, il, e, ff)
    return d


def glm_dsa(
    n: int = 10, e: int = 6144, heads: int = 64, n_exp: int = 256, *, mtp: int = 1,
    ctx: int = 202752,
) -> Described:  # fmt: skip
    """GLM-5 with fewer layers: keys of MLA, and those of an indexer."""
    more: dict[str, Any] = {
        "attention__key_length": 576, "attention__value_length": 512,
        "attention__key_length_mla": 256, "attention__value_length_mla": 256,
        "attention__q_lora_rank": 2048, "attention__kv_lora_rank": 512,
        "rope__dimension_count": 64, "expert_count": n_exp, "expert_used_count": 8,
        "expert_feed_forward_length": 2048, "expert_shared_count": 1,
        "leading_dense_block_count": 3, "attention__indexer__head_count": 32,
        "attention__indexer__key_length": 128, "attention__indexer__top_k": 2048,
        "nextn_predict_layers": mtp,
    }  # fmt: skip
    d = Described("glm-dsa", 154880, **basic(n + mtp, e, ctx, heads, 1, 12288, **more))
    d.ends(e)
    for il in range(n + mtp):
        d.layer(il, attn_norm=[e], attn_q_a_norm=[2048], attn_kv_a_norm=[512], ffn_norm=[e])
        d.layer(il, attn_q_a=[e, 2048], attn_q_b=[2048, heads * 256], attn_kv_a_mqa=[e, 576])
        d.layer(il, attn_k_b=[192, 512, heads], attn_v_b=[512, 256, heads])
        d.layer(il, attn_output=[heads * 256, e])
        for name, shape in (
            ("k_norm.weight", (128,)), ("k_norm.bias", (128,)), ("proj.weight", (e, 32)),
            ("attn_k.weight", (e, 128)), ("attn_q_b.weight", (2048, 32 * 128)),
        ):  # fmt: skip
            d.tensor(f"blk.{il}.indexer.{name}", *shape)
        if il < 3:
            dense(d, il, e, 12288)
        else:
            experts(d, il, e, 2048, n_exp)
            shared(d, il, e, 2048)
        if il >= n:
            nextn(d, il, e)
    return d
