"""Described draft heads."""

from __future__ import annotations

from typing import Any

from tests.memory.described import Described, attention, basic, dense


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
    d.layer(
        0, attn_norm=[e], attn_norm_2=[e], attn_q=[2 * e, heads * 128], attn_k=[2 * e, kv * 128]
    )
    d.layer(0, attn_v=[2 * e, kv * 128], attn_output=[heads * 128, e], ffn_norm=[e])
    dense(d, 0, e, ff)
    return d


def dflash(n: int = 5, e: int = 5120, heads: int = 32, kv: int = 8, ff: int = 17408, *,
           window: int = 0, markov: int = 0, vocab: int = 248320, block: int = 16,
           layers: tuple[int, ...] = (1, 16, 31, 46, 61)) -> Described:  # fmt: skip
    """A DFlash draft that reads the target's ``layers``; with ``markov`` (a rank) a DSpark one."""
    more: dict[str, Any] = {
        "attention__key_length": 128, "attention__value_length": 128, "rope__dimension_count": 128,
        "target_layers": list(layers), "block_size": block,
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
