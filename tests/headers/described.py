"""Models that profiles name and ``tests.memory`` does not describe."""

from __future__ import annotations

from typing import Any

from tests.memory import transformers
from tests.memory.described import Described, attention, basic, dense, experts, shared


def qwen2(n: int, e: int, heads: int, kv: int, ff: int, vocab: int = 152064) -> Described:
    """Qwen2.5, and what was distilled into it."""
    d = Described("qwen2", vocab, **basic(n, e, 131072, heads, kv, ff))
    d.ends(e)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        for name, width in (("q", heads * 128), ("k", kv * 128), ("v", kv * 128)):
            d.tensor(f"blk.{il}.attn_{name}.bias", width)
        d.layer(il, ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def smollm3() -> Described:
    """SmolLM3-3B: tied embeddings."""
    n, e, heads, kv, ff = 36, 2048, 16, 4, 11008
    d = Described("smollm3", 128256, **basic(n, e, 65536, heads, kv, ff))
    d.ends(e, output=False)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def gemma4_large(
    n: int, e: int, heads: int, kv: tuple[int, int], ff: int, *, ctx: int = 262144, n_exp: int = 0,
) -> Described:  # fmt: skip
    """Gemma 4 12B, 31B and 26B-A4B; ``kv`` are heads of windowed and of full layers, whose keys
    are their values, too. The experts of 26B-A4B stand beside a dense part."""
    windowed = [il % 6 != 5 for il in range(n)]
    more: dict[str, Any] = {
        "attention__key_length": 512, "attention__value_length": 512,
        "attention__key_length_swa": 256, "attention__value_length_swa": 256,
        "attention__sliding_window": 1024, "attention__sliding_window_pattern": windowed,
        "attention__shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "rope__dimension_count": 512, "rope__dimension_count_swa": 256,
    }  # fmt: skip
    if n_exp:
        more |= {"expert_count": n_exp, "expert_used_count": 8, "expert_feed_forward_length": 704}
    keys = basic(n, e, ctx, heads, 1, ff, **more)
    keys |= {"attention__head_count_kv": [kv[0] if swa else kv[1] for swa in windowed]}
    d = Described("gemma4", 262144, **keys)
    d.ends(e, output=False)
    d.tensor("rope_freqs.weight", 256)
    for il in range(n):
        k, n_kv = (256, kv[0]) if windowed[il] else (512, kv[1])
        d.layer(il, attn_norm=[e], attn_q=[e, heads * k], attn_output=[heads * k, e])
        d.layer(il, attn_q_norm=[k], post_attention_norm=[e], ffn_norm=[e])
        d.layer(il, attn_k=[e, n_kv * k], attn_k_norm=[k])
        if windowed[il]:
            d.layer(il, attn_v=[e, n_kv * k])
        dense(d, il, e, ff)
        d.layer(il, post_ffw_norm=[e])
        if n_exp:
            d.tensor(f"blk.{il}.ffn_gate_inp.weight", e, n_exp, quant="F32")
            d.tensor(f"blk.{il}.ffn_gate_inp.scale", e)
            d.layer(il, pre_ffw_norm_2=[e], post_ffw_norm_1=[e], post_ffw_norm_2=[e])
            d.layer(il, ffn_gate_up_exps=[e, 2 * 704, n_exp], ffn_down_exps=[704, e, n_exp])
    return d


def gemma4_assistant(
    target: int, heads: int, kv: tuple[int, int], *, e: int = 1024, ff: int = 8192,
    window: int = 1024,
) -> Described:  # fmt: skip
    """The assistant of a Gemma 4 model ``target`` wide: three windowed layers and a full one."""
    windowed = [True, True, True, False]
    more: dict[str, Any] = {
        "attention__key_length": 512, "attention__value_length": 512,
        "attention__key_length_swa": 256, "attention__value_length_swa": 256,
        "attention__sliding_window": window, "attention__sliding_window_pattern": windowed,
        "embedding_length_out": target, "nextn_predict_layers": 4, "attention__shared_kv_layers": 4,
        "rope__dimension_count": 512, "rope__dimension_count_swa": 256,
    }  # fmt: skip
    keys = basic(4, e, 131072, heads, 1, ff, **more)
    keys |= {"attention__head_count_kv": [kv[0] if swa else kv[1] for swa in windowed]}
    d = Described("gemma4-assistant", 262144, **keys)
    d.tensor("token_embd.weight", e, 262144)
    d.tensor("output_norm.weight", e)
    d.tensor("nextn.pre_projection.weight", 2 * target, e)
    d.tensor("nextn.post_projection.weight", e, target)
    d.tensor("rope_freqs.weight", 256)
    for il, swa in enumerate(windowed):
        k = 256 if swa else 512
        d.layer(il, attn_norm=[e], attn_q=[e, heads * k], attn_output=[heads * k, e])
        d.layer(il, attn_q_norm=[k], post_attention_norm=[e], layer_output_scale=[1], ffn_norm=[e])
        dense(d, il, e, ff)
        d.layer(il, post_ffw_norm=[e])
    return d


def glm47_flash() -> Described:
    """GLM-4.7-Flash: latent attention, 64 experts of which 4 compute."""
    n, e, heads, n_exp, ff_exp = 47, 2048, 20, 64, 1536
    more: dict[str, Any] = {
        "attention__key_length": 576, "attention__value_length": 512,
        "attention__key_length_mla": 256, "attention__value_length_mla": 256,
        "attention__q_lora_rank": 768, "attention__kv_lora_rank": 512, "rope__dimension_count": 64,
        "expert_count": n_exp, "expert_used_count": 4, "expert_feed_forward_length": ff_exp,
        "expert_shared_count": 1, "expert_weights_scale": 1.8, "leading_dense_block_count": 1,
    }  # fmt: skip
    d = Described("deepseek2", 154880, **basic(n, e, 202752, heads, 1, 10240, **more))
    d.ends(e)
    for il in range(n):
        d.layer(il, attn_norm=[e], attn_kv_a_norm=[512], attn_kv_a_mqa=[e, 576])
        d.layer(il, attn_q_a_norm=[768], attn_q_a=[e, 768], attn_q_b=[768, heads * 256])
        d.layer(il, attn_k_b=[192, 512, heads], attn_v_b=[512, 256, heads])
        d.layer(il, attn_output=[heads * 256, e], ffn_norm=[e])
        if il < 1:
            dense(d, il, e, 10240)
        else:
            experts(d, il, e, ff_exp, n_exp)
            d.tensor(f"blk.{il}.exp_probs_b.bias", n_exp)
            shared(d, il, e, ff_exp)
    return d


def mistral3() -> Described:
    """Devstral Small 2: 24B, dense, heads narrower than the model."""
    n, e, heads, kv, ff = 40, 5120, 32, 8, 32768
    lengths = {"attention__key_length": 128, "attention__value_length": 128}
    d = Described("mistral3", 131072, **basic(n, e, 393216, heads, kv, ff, **lengths))
    d.ends(e)
    for il in range(n):
        attention(d, il, e, heads, kv, 128, 128)
        d.layer(il, ffn_norm=[e])
        dense(d, il, e, ff)
    return d


def phi4() -> Described:
    """Phi-4 14B: queries, keys and values in one matrix, gate and up in another."""
    n, e, heads, kv, ff = 40, 5120, 40, 10, 17920
    d = Described("phi3", 100352, **basic(n, e, 16384, heads, kv, ff, rope__dimension_count=128))
    d.ends(e)
    for il in range(n):
        d.layer(il, attn_norm=[e], attn_qkv=[e, (heads + 2 * kv) * 128])
        d.layer(il, attn_output=[heads * 128, e], ffn_norm=[e])
        d.layer(il, ffn_up=[e, 2 * ff], ffn_down=[ff, e])
    return d


def glm45_air() -> Described:
    """GLM-4.5-Air as it is published: its MTP layer with embeddings and output of its own."""
    d = transformers.glm4moe()
    for name in ("embed_tokens", "shared_head_head"):
        d.tensor(f"blk.46.nextn.{name}.weight", 4096, 151552)
    return d
