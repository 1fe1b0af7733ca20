"""Tiny Gemma 4 and Step 3.5 models with drafters, written from a seed.

No trained file of these kinds is small, so there are two sorts of made-up ones. In ``exact``
models the next token is a function of the last one, and the drafter computes that function from
all it has been handed, so that everything is accepted unless something is handed to it wrongly: a
token id is two digits; one digit of the next token is told by the token, the other one by the
state, and a wrong token wins as long as the attention finds nothing. ``random`` models have noise
everywhere, and a drafter that guesses; what it guesses depends on every row of its cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.drafters.heads import MODELS

Weights = NDArray[np.float32]
Tensors = dict[str, Weights]

N_VOCAB = 1024
N_DIGIT = 32
WIDTH = 96
"""Of the targets: two digits, one of N_DIGIT each, and what is left over."""
LOW, HIGH, SPARE = 0, N_DIGIT, 2 * N_DIGIT
HEAD, N_FF, WINDOW = 32, 32, 64
NOISE = 0x5EED
#: Logits of the exact models: so much for each digit that is right.
PER_DIGIT = 5.0


def _next_low(a: NDArray[np.int64]) -> NDArray[np.int64]:
    """The low digit of the next token, of low digits below 16: those are the ones in texts."""
    return (5 * a + 3) % 16


def _next_high(b: NDArray[np.int64]) -> NDArray[np.int64]:
    """The high digit of the next token; it never comes to 0, where the special tokens are."""
    return 1 + (11 * (b - 1) + 4) % 31


def follow(token: int) -> int:
    """The token after ``token`` in the texts of exact models."""
    digits = np.array([token % N_DIGIT]), np.array([token // N_DIGIT])
    return int(_next_low(digits[0])[0] + N_DIGIT * _next_high(digits[1])[0])


def prompt(n: int, start: int = 5 + N_DIGIT * 7) -> list[int]:
    """``n`` tokens of a text of the exact models."""
    tokens = [start]
    while len(tokens) < n:
        tokens.append(follow(tokens[-1]))
    return tokens


def digits(width: int = WIDTH) -> Weights:
    """Embeddings, shape [N_VOCAB, width]: the two digits of a token."""
    ids = np.arange(N_VOCAB)
    table = np.zeros((N_VOCAB, width), np.float32)
    table[ids, LOW + ids % N_DIGIT] = table[ids, HIGH + ids // N_DIGIT] = 1.0
    return table


def output(gain: float, width: int = WIDTH, roll: int = 0) -> Weights:
    """An output matrix: ``gain`` for each digit that the row shows, ``roll`` dimensions on."""
    return np.roll(digits(width) * np.float32(gain), roll, axis=1)


def step_low(decoy: float = 0.0) -> Weights:
    """Matrix from low digits to those of the next token, and to wrong ones that weigh ``decoy``."""
    matrix = np.zeros((N_DIGIT, N_DIGIT), np.float32)
    of = np.arange(16)
    matrix[_next_low(of), of] = 1.0
    matrix[16 + _next_low(of), of] = decoy
    return matrix


def step_high(times: int = 1) -> Weights:
    """Matrix from high digits to those ``times`` tokens on."""
    matrix = np.zeros((N_DIGIT, N_DIGIT), np.float32)
    of = np.arange(1, N_DIGIT)
    to = of
    for _ in range(times):
        to = _next_high(to)
    matrix[to, of] = 1.0
    return matrix


class Noise:
    """Seeded weights: the same for the same order of calls."""

    def __init__(self, seed: int = NOISE) -> None:
        self._rng = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> Weights:
        """Shape [rows, columns], which does not change the size of what it is applied to."""
        noise = self._rng.standard_normal((rows, columns), np.float32)
        return np.asarray(noise * np.float32(scale / np.sqrt(columns)), np.float32)

    def norm(self, n: int) -> Weights:
        return np.asarray(1 + self._rng.standard_normal(n, np.float32) * 0.1, np.float32)


def write(
    path: Path, arch: str, keys: dict[str, Any], tensors: Mapping[str, Weights | None]
) -> Path:
    """A model file with the tokenizer of the tiny models. Keys and tensors that are None are left
    out."""
    writer = gguf.GGUFWriter(path, arch)
    source = gguf.GGUFReader(MODELS / "tiny-target.gguf")
    for name, read in source.fields.items():
        if name.startswith("tokenizer."):
            kind = read.types[0]
            inner = read.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, read.contents(), kind, inner)
    for key, value in keys.items():
        if value is None:
            continue
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_uint32(f"{arch}.{key}", value)
    for name, data in tensors.items():
        if data is not None:
            writer.add_tensor(name, np.ascontiguousarray(data, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def block(i: int, width: int, noise: Noise | None, n_head: int = 2) -> Tensors:
    """The tensors that the layers of both families have. Without ``noise`` they leave what goes
    through them as it is."""
    made: Tensors = {}

    def add(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        zeros = np.zeros((rows, columns), np.float32)
        made[f"blk.{i}.{name}.weight"] = noise.matrix(rows, columns, scale) if noise else zeros

    add("attn_q", n_head * HEAD, width)
    add("attn_k", HEAD, width)
    add("attn_v", HEAD, width)
    add("attn_output", width, n_head * HEAD)
    add("ffn_gate", N_FF, width)
    add("ffn_up", N_FF, width)
    add("ffn_down", width, N_FF)
    for name, n in (("attn_norm", width), ("ffn_norm", width)):
        made[f"blk.{i}.{name}.weight"] = noise.norm(n) if noise else np.ones(n, np.float32)
    for name in ("attn_q_norm", "attn_k_norm"):
        made[f"blk.{i}.{name}.weight"] = noise.norm(HEAD) if noise else np.ones(HEAD, np.float32)
    return made


def sizes(n_layer: int, width: int, swa: list[bool], n_nextn: int = 0) -> dict[str, Any]:
    """Metadata that both families have."""
    return {
        "block_count": n_layer + n_nextn,
        "nextn_predict_layers": n_nextn or None,
        "context_length": 2048,
        "embedding_length": width,
        "feed_forward_length": N_FF,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": swa,
        "rope.freq_base": 10000.0,
        "rope.freq_base_swa": 10000.0,
        "rope.dimension_count": HEAD,
    }


def constant_values(made: Tensors, i: int, width: int) -> None:
    """Make the values of layer ``i`` the same for all tokens: one of its low digits is set."""
    made[f"blk.{i}.attn_v.weight"][:, LOW : LOW + N_DIGIT] = 1.0


# --- Gemma 4 and its assistant -------------------------------------------------------------------

N_GEMMA, ASSISTANT_WIDTH = 4, 128
SWA_4 = [True, False, True, False]


def gemma4(path: Path, *, exact: bool, **changed: Any) -> Path:
    """A target of four layers, every other one with a sliding window."""
    noise = None if exact else Noise()
    made: Tensors = {}
    for i in range(N_GEMMA):
        made |= block(i, WIDTH, noise)
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights = noise.norm(WIDTH) * 0.5 if noise else np.zeros(WIDTH, np.float32)
            made[f"blk.{i}.{name}.weight"] = weights
        made[f"blk.{i}.layer_output_scale.weight"] = np.ones(1, np.float32)
        if exact:
            constant_values(made, i, WIDTH)
    made["rope_freqs.weight"] = np.ones(HEAD // 2, np.float32)
    made["output_norm.weight"] = np.ones(WIDTH, np.float32)
    if noise:
        made["token_embd.weight"] = noise.matrix(N_VOCAB, WIDTH)
        made["output.weight"] = noise.matrix(N_VOCAB, WIDTH, 4.0)
    else:
        step = np.zeros((WIDTH, WIDTH), np.float32)
        step[LOW:HIGH, LOW:HIGH], step[HIGH:SPARE, HIGH:SPARE] = step_low(), step_high()
        made["token_embd.weight"] = digits()
        made["output.weight"] = output(PER_DIGIT / np.sqrt(WIDTH / 2)) @ step
    keys = sizes(N_GEMMA, WIDTH, SWA_4) | {
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "embedding_length_per_layer_input": 0,
        "attention.shared_kv_layers": 0,
        "rope.dimension_count_swa": HEAD,
    }
    tensors = changed.pop("tensors", {})
    return write(path, "gemma4", keys | changed, made | tensors)


def gemma4_assistant(path: Path, *, exact: bool, n_layer: int = 2, **changed: Any) -> Path:
    """An assistant with a layer on each of the target's caches."""
    noise = None if exact else Noise(NOISE + 1)
    width = ASSISTANT_WIDTH
    made: Tensors = {}
    for i in range(n_layer):
        made |= {
            name: data
            for name, data in block(i, width, noise).items()
            if not any(part in name for part in ("attn_k", "attn_v"))
        }
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights = noise.norm(width) if noise else np.zeros(width, np.float32)
            made[f"blk.{i}.{name}.weight"] = weights
        made[f"blk.{i}.layer_output_scale.weight"] = np.ones(1, np.float32)
        if exact:  # what it finds shows in a dimension of its own
            made[f"blk.{i}.attn_output.weight"][SPARE + i] = 1.0
            made[f"blk.{i}.post_attention_norm.weight"][SPARE + i] = 1 / np.sqrt(width)
    made["rope_freqs.weight"] = np.ones(HEAD // 2, np.float32)
    made["output_norm.weight"] = np.ones(width, np.float32)
    if noise:
        made["token_embd.weight"] = noise.matrix(N_VOCAB, width, 4.0)
        made["nextn.pre_projection.weight"] = noise.matrix(width, 2 * WIDTH)
        made["nextn.post_projection.weight"] = noise.matrix(WIDTH, width)
    else:
        made |= _exact_assistant(width)
    keys = sizes(0, width, SWA_4[:n_layer], n_layer) | {
        "embedding_length_out": WIDTH,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "attention.shared_kv_layers": n_layer,
        "rope.dimension_count_swa": HEAD,
    }
    tensors = changed.pop("tensors", {})
    return write(path, "gemma4-assistant", keys | changed, made | tensors)


def _exact_assistant(width: int) -> Tensors:
    """The low digit from the token, the high one from the state, two tokens on. A wrong low digit
    has 3 votes, of which each layer's attention takes 1.75."""
    pre = np.zeros((width, 2 * WIDTH), np.float32)
    # Embeddings come times the root of the width, states from a norm: two of WIDTH values.
    pre[LOW:HIGH, LOW:HIGH] = step_low(3.0) / np.sqrt(WIDTH)
    pre[HIGH:SPARE, WIDTH + HIGH : WIDTH + SPARE] = step_high(2) / np.sqrt(WIDTH / 2)
    size = np.sqrt((1.0 + 9.0 + 1.0 + 1.0 + 1.0) / width)  # of what the last norm gets
    table = output(PER_DIGIT * size, width)
    table[np.arange(N_VOCAB) % N_DIGIT >= 16, SPARE : SPARE + 2] = -1.75 * PER_DIGIT * size
    post = np.zeros((WIDTH, width), np.float32)
    # The next state is that of the token that was just read: one token before the drafted one.
    post[HIGH:SPARE, HIGH:SPARE] = step_high().T * size * np.sqrt(WIDTH / 2)
    return {
        "token_embd.weight": table,
        "nextn.pre_projection.weight": pre,
        "nextn.post_projection.weight": post,
    }


# --- Step 3.5 and its chain of heads -------------------------------------------------------------

N_STEP = 2


def step35(path: Path, n_heads: int, *, exact: bool, **changed: Any) -> Path:
    """A target of two layers with ``n_heads`` heads behind them."""
    noise = None if exact else Noise(NOISE + 2)
    made: Tensors = {}
    for i in range(N_STEP + n_heads):
        made |= block(i, WIDTH, noise)
    made["output_norm.weight"] = np.ones(WIDTH, np.float32)
    if noise:
        made["token_embd.weight"] = noise.matrix(N_VOCAB, WIDTH, 4.0)
        made["output.weight"] = noise.matrix(N_VOCAB, WIDTH, 4.0)
    else:
        step = np.zeros((WIDTH, WIDTH), np.float32)
        step[LOW:HIGH, LOW:HIGH], step[HIGH:SPARE, HIGH:SPARE] = step_low(), step_high()
        made["token_embd.weight"] = digits()
        made["output.weight"] = output(PER_DIGIT / np.sqrt(WIDTH / 2)) @ step
    for k in range(n_heads):
        made |= _random_head(k, noise) if noise else _exact_head(k)
    swa = [i % 2 == 0 for i in range(N_STEP + n_heads)]
    keys = sizes(N_STEP, WIDTH, swa, n_heads) | {
        "expert_feed_forward_length": N_FF,
        "rope.dimension_count": 2 * HEAD // 2,
    }
    tensors = changed.pop("tensors", {})
    return write(path, "step35", keys | changed, made | tensors)


def _random_head(k: int, noise: Noise) -> Tensors:
    at = f"blk.{N_STEP + k}.nextn."
    return {
        f"{at}eh_proj.weight": noise.matrix(WIDTH, 2 * WIDTH),
        f"{at}enorm.weight": noise.norm(WIDTH),
        f"{at}hnorm.weight": noise.norm(WIDTH),
        f"{at}shared_head_norm.weight": noise.norm(WIDTH),
    }


def _exact_head(k: int) -> Tensors:
    """Head k: the low digit from the token, the high one from the state, which for the first head
    is the target's, of the token before, and for others that of the head before, which has
    predicted the token. Each head keeps its digits ``k + 1`` dimensions on, so that no two can be
    exchanged.
    """
    i = N_STEP + k
    roll, before = k + 1, k  # how far the state has been rolled by the one before
    at = f"blk.{i}.nextn."
    project = np.zeros((WIDTH, 2 * WIDTH), np.float32)
    low = np.zeros((WIDTH, WIDTH), np.float32)
    low[LOW:HIGH, LOW:HIGH] = step_low(3.0)
    high = np.zeros((WIDTH, WIDTH), np.float32)
    high[HIGH:SPARE, HIGH:SPARE] = step_high(2 if k == 0 else 1)
    # Norms make the two digits of a token, or of the target's state, as large as this each; the
    # state of a head has the votes for the wrong digit and the attention's dimension besides.
    token = np.sqrt(WIDTH / 2)
    state = token if k == 0 else np.sqrt(WIDTH / (1.0 + 9.0 + 1.0 + 1.0))
    project[:, :WIDTH] = np.roll(low / token, roll, axis=0)
    project[:, WIDTH:] = np.roll(np.roll(high / state, roll, axis=0), before, axis=1)
    size = np.sqrt((1.0 + 9.0 + 1.0 + 1.0) / WIDTH)
    made: Tensors = {
        f"{at}eh_proj.weight": project,
        f"{at}enorm.weight": np.ones(WIDTH, np.float32),
        f"{at}hnorm.weight": np.ones(WIDTH, np.float32),
        f"{at}shared_head_norm.weight": np.ones(WIDTH, np.float32),
    }
    table = output(PER_DIGIT * size, WIDTH)
    table[np.arange(N_VOCAB) % N_DIGIT >= 16, SPARE] = -3.5 * PER_DIGIT * size
    made[f"{at}shared_head_head.weight"] = np.roll(table, roll, axis=1)
    # Values are the sum of the votes for low digits, 1 + 3, after a norm over three votes squared.
    values = np.zeros((HEAD, WIDTH), np.float32)
    values[:, roll + LOW : roll + HIGH] = 1.0
    found = 4.0 * np.sqrt(WIDTH / (1.0 + 9.0 + 1.0))
    mixed = np.zeros((WIDTH, 2 * HEAD), np.float32)
    mixed[SPARE + roll] = 1.0 / (2 * HEAD * found)
    made[f"blk.{i}.attn_v.weight"] = values
    made[f"blk.{i}.attn_output.weight"] = mixed
    return made


def random_chain(path: Path, arch: str, n_heads: int) -> Path:
    """A random model of one of the other architectures with chains: hy_v3 or mimo2."""
    noise = Noise(NOISE + 3)
    made: Tensors = {"output_norm.weight": np.ones(WIDTH, np.float32)}
    for name in ("token_embd", "output"):
        made[f"{name}.weight"] = noise.matrix(N_VOCAB, WIDTH, 4.0)
    for i in range(N_STEP + n_heads):
        layer = block(i, WIDTH, noise)
        if arch == "mimo2":  # one matrix for queries, keys and values, and no norms of them
            parts = [layer.pop(f"blk.{i}.attn_{name}.weight") for name in "qkv"]
            layer[f"blk.{i}.attn_qkv.weight"] = np.concatenate(parts)
            layer = {name: data for name, data in layer.items() if "k_norm" not in name}
            layer = {name: data for name, data in layer.items() if "q_norm" not in name}
        made |= layer
    for k in range(n_heads):
        made |= _random_head(k, noise)
    swa = [i % 2 == 0 for i in range(N_STEP + n_heads)]
    keys = sizes(N_STEP, WIDTH, swa, n_heads) | {"expert_feed_forward_length": N_FF}
    return write(path, arch, keys, made)
