"""What the loaders and graphs of single architectures assert of a header's numbers.

A failed ``GGML_ASSERT`` ends the process, and so does a division by zero. docs/asserts.md has the
table of assertions and how to read it anew out of another version of llama.cpp: from ``case
LLM_ARCH_*`` in llama-model.cpp to a class in src/models, from its ``using graph`` to the graph that
it shares, and there all ``GGML_ASSERT`` and ``GGML_ABORT``. Part of ``loadable``, which see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gguf_spec.loadable_layers import per_layer

if TYPE_CHECKING:
    from gguf_spec.header import ModelInfo

#: ``GGML_ASSERT(n_embd_head == n_rot)``: the rotary dimension is the whole head, keys and values.
FULL_ROTARY = frozenset([
    "apertus", "arcee", "arctic", "baichuan", "chameleon", "codeshell", "cogvlm", "cohere2moe",
    "dbrx", "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe",
    "exaone4", "falcon", "granite", "granite_swa", "granitemoe", "graniteswitch", "grok",
    "grovemoe", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais2",
    "llama", "llama4", "maincoder", "mellum", "minicpm", "mistral3", "olmo", "olmo2", "olmoe",
    "orion", "paddleocr", "pangu-embedded", "plamo", "pockettts", "qwen2", "qwen2moe", "qwen2vl",
    "qwen3", "qwen3moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "seed_oss", "smallthinker",
    "smollm3", "starcoder2", "talkie", "xverse",
])  # fmt: skip
#: ``GGML_ASSERT(n_embd_head == hparams.n_embd_head_k())`` alone, where n_embd_head is the values'.
EQUAL_HEADS = frozenset([
    "afmoe", "bailingmoe2", "bitnet", "bloom", "chatglm", "cohere2", "command-r", "deepseek4",
    "dflash", "eagle3", "glm4", "glm4moe", "gpt2", "gptneox", "granitehybrid", "jais", "laguna",
    "lfm2", "lfm2moe", "maple", "minimax-01", "minimax-m2", "minimax-m3", "mpt", "muse-glimmer",
    "nanbeige", "nemotron", "nemotron_h", "nemotron_h_moe", "openelm", "phi2", "phi3", "phimoe",
    "qwen", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "refact", "spark2_5", "stablelm",
    "starcoder",
])  # fmt: skip
#: Architectures whose models libllama gives no cache, or that want llama_encode first, which
#: ``llm_graph_input_attn_cross`` asserts: what they are.
NO_GENERATORS = (
    dict.fromkeys(
        ["bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert",
         "eurobert", "modern-bert", "gemma-embedding", "llama-embed", "t5encoder"],
        "an encoder",
    )
    | dict.fromkeys(["dream", "llada", "llada-moe", "rnd1"], "a diffusion model")
    | {"t5": "an encoder with a decoder", "wavtokenizer-dec": "a decoder of speech"}
)  # fmt: skip

# Whose layers route by expert_gating_func, and abort on a function that is none; with 0, or no key,
# the second ones take one of their own.
_GATED = frozenset([
    "bailingmoe2", "bailingmoe3", "deepseek32", "deepseek4", "dots1", "dots3note", "exaone-moe",
    "hy_v4", "kimi-k3", "kimi-linear", "lfm2moe", "minimax-m2", "minimax-m3", "smallthinker",
])  # fmt: skip
_GATED_OR_DEFAULT = frozenset([
    "afmoe", "cohere2moe", "deepseek2", "deepseek2-ocr", "glm-dsa", "glm4moe", "glm5-next", "hy_v3",
    "laguna", "mistral4", "step35",
])  # fmt: skip
_SOME_STATES = frozenset(["granitehybrid", "nemotron_h", "nemotron_h_moe", "plamo2"])
_EXPERTS_ONLY = frozenset(["bailingmoe2", "glm4moe", "grovemoe", "smallthinker"])
# load_swa_pattern: the period that is taken without a key, and whether the first layer of a period
# is the one without a window. Of the first architectures every model has windows.
_WINDOW_PERIODS = {
    "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "gemma2": 2, "gemma3n": 5, "gpt-oss": 2,
    "muse-glimmer": 4,
    "afmoe": 4, "exaone4": 4, "gemma3": 6, "laguna": 4, "llama4": 4, "mellum": 4, "olmo2": 4,
    "plamo3": 8, "smallthinker": 4,
}  # fmt: skip
_ALWAYS_WINDOWS = frozenset(list(_WINDOW_PERIODS)[:7])
_DENSE_FIRST = frozenset(["cohere2moe", "laguna", "smallthinker"])
_WINDOW_ARRAYS = frozenset(["granite_swa", "maple", "spark2_5"])

Rule = Callable[["ModelInfo"], "str | None"]


def arch_problem(info: ModelInfo) -> str | None:
    """Why libllama would abort on the numbers of ``info``; None if it would not."""
    rules = (_heads, _gates, _windows, *RULES.get(info.arch or "", ()))
    problems = (rule(info) for rule in rules)
    return next((problem for problem in problems if problem is not None), None)


def _number(info: ModelInfo, name: str, default: int = 0) -> int:
    return info.arch_uint(name, default) or 0


def _head_sizes(info: ModelInfo) -> tuple[int, int, int]:
    """Sizes of keys and values and the rotary dimension, as load_hparams makes them; zeros without
    heads in the first layer."""
    heads = per_layer(info, "attention.head_count")
    if not heads or heads[0] <= 0:
        return 0, 0, 0
    usual = (info.n_embd or 0) // heads[0]
    key = _number(info, "attention.key_length", usual)
    value = _number(info, "attention.value_length", usual)
    return key, value, _number(info, "rope.dimension_count", key)


def _heads(info: ModelInfo) -> str | None:
    """The first layer's heads are asserted. Where layers with a window have others, it may be one
    of those, so that either will do."""
    rotary = info.arch in FULL_ROTARY
    if not rotary and info.arch not in EQUAL_HEADS:
        return None
    sizes = _head_sizes(info)
    if rotary and not sizes[0]:
        heads = per_layer(info, "attention.head_count")
        if not heads or heads[0] <= 0:
            return f"{info.arch}.attention.head_count is missing or 0"
    windowed = (
        _number(info, "attention.key_length_swa", sizes[0]),
        _number(info, "attention.value_length_swa", sizes[1]),
        _number(info, "rope.dimension_count_swa", sizes[2]),
    )
    n = 3 if rotary else 2
    if any(len(set(one[:n])) == 1 and (one[0] or not rotary) for one in (sizes, windowed)):
        return None
    key, value, rope = sizes
    if rotary:
        return f"head size {key}, value size {value}, rope dimensions {rope} must be equal"
    return f"head size {key} and value size {value} must be equal"


def _gates(info: ModelInfo) -> str | None:
    """build_moe_ffn: a function that chooses experts is one of four."""
    if not _number(info, "expert_count"):
        if info.arch in _EXPERTS_ONLY:
            return f"{info.arch}.expert_count is missing or 0"
        return None
    gate = _number(info, "expert_gating_func")
    least = 1 if info.arch in _GATED else 0
    if info.arch in _GATED | _GATED_OR_DEFAULT and not least <= gate <= 4:
        return f"{info.arch}.expert_gating_func is {gate}, libllama knows 1 to 4"
    return None


def _windows(info: ModelInfo) -> str | None:
    """llama_model::create_memory makes two caches, and asserts that some layer uses the second."""
    arch, layers = info.arch or "", info.n_layer or 0
    name = "attention.sliding_window_pattern"
    if arch not in _WINDOW_ARRAYS and (arch not in _WINDOW_PERIODS or not _has_windows(info)):
        return None
    flags = info.metadata.get(f"{arch}.{name}")
    if isinstance(flags, tuple) or arch in _WINDOW_ARRAYS:
        used = isinstance(flags, tuple) and any(flags[: layers + info.n_layer_nextn])
    else:
        period = _number(info, name, _WINDOW_PERIODS[arch])
        used = period == 0 or (period > 1 and layers > int(arch in _DENSE_FIRST))
    return None if used else f"{arch}.{name} leaves no layer of {layers} with a window"


def _has_windows(info: ModelInfo) -> bool:
    window = info.arch_uint("attention.sliding_window")
    if info.arch in _ALWAYS_WINDOWS:
        return True
    if info.arch == "exaone4":
        return info.n_layer == 64
    if info.arch == "llama4":
        return window != 0
    return bool(window)


def _latent_heads(info: ModelInfo) -> str | None:
    """deepseek2.cpp, hy-v4.cpp: ``n_embd_head_qk_nope >= 1``."""
    key, _, rotary = _head_sizes(info)
    mla = _number(info, "attention.key_length_mla")
    key = mla if mla and _number(info, "attention.value_length_mla") else key
    return f"{rotary} rope dimensions leave nothing of heads of {key}" if rotary >= key else None


def _latent_cache(info: ModelInfo) -> str | None:
    """deepseek2.cpp and its like: one key for all heads, made of the latent and what is rotated."""
    if not _number(info, "attention.key_length_mla"):
        return None
    key, _, rotary = _head_sizes(info)
    rank = _number(info, "attention.kv_lora_rank")
    kept = per_layer(info, "attention.head_count_kv") or per_layer(info, "attention.head_count")
    if key != rank + rotary or set(kept) != {1}:
        return f"keys of {key} values in {max(kept, default=0)} heads, made of {rank} + {rotary}"
    return None


def _temperature(info: ModelInfo) -> str | None:
    """llm_graph_input_attn_temp: ``n_attn_temp_floor_scale != 0``."""
    scale = info.metadata.get(f"{info.arch}.attention.temperature_scale", 0.0)
    if scale and not _number(info, "attention.temperature_length"):
        return f"{info.arch}.attention.temperature_length is missing or 0"
    return None


def _ocr_heads(info: ModelInfo) -> str | None:
    """deepseek2.cpp, is_ocr: heads as wide as they come, and one base of frequencies."""
    key, value, _ = _head_sizes(info)
    if _number(info, "attention.key_length_mla") and _number(info, "attention.value_length_mla"):
        key = _number(info, "attention.key_length_mla")
        value = _number(info, "attention.value_length_mla")
    size = (info.n_embd or 0) // max(1, per_layer(info, "attention.head_count")[0])
    base = info.metadata.get(f"{info.arch}.rope.freq_base", 10000.0)
    if not size == key == value:
        return f"head size {key}, value size {value}, where both must be {size}"
    if not (isinstance(base, float) and abs(base - 10000.0) < 1e-4):
        return f"{info.arch}.rope.freq_base is {base}, it must be 10000"
    return None


def _indexer(info: ModelInfo) -> str | None:
    """deepseek32.cpp, dots3note.cpp, glm-dsa.cpp, deepseek4.cpp: [rope | nope] of the indexer."""
    size, rotary = _number(info, "attention.indexer.key_length"), _head_sizes(info)[2]
    rotary = min(rotary, _number(info, "rope.dimension_count_swa", rotary))
    return f"{rotary} rope dimensions in indexer heads of {size}" if rotary > size else None


def _first_indexer(info: ModelInfo) -> str | None:
    """glm-dsa.cpp, glm5-next.cpp: a layer without an indexer takes the choice of one before it."""
    kinds = per_layer(info, "attention.indexer.types")
    heads = per_layer(info, "attention.head_count_kv") or per_layer(info, "attention.head_count")
    attending = [il for il in range(len(kinds)) if heads and heads[min(il, len(heads) - 1)]]
    if attending and not kinds[attending[0]]:
        return f"{info.arch}.attention.indexer.types: layer {attending[0]} has no indexer before it"
    return None


def _hyper_connections(info: ModelInfo) -> str | None:
    """deepseek4.cpp, glm5-next.cpp: ``hc == 4``."""
    count = _number(info, "hyper_connection.count")
    return None if count == 4 else f"{info.arch}.hyper_connection.count is {count}, it must be 4"


def _output_groups(info: ModelInfo) -> str | None:
    """deepseek4.cpp and dflash.cpp: ``n_head % n_groups``, with some groups and a window."""
    if info.arch == "dflash" and not _number(info, "hyper_connection.count"):
        return None
    groups, heads = _number(info, "attention.output_group_count"), info.n_head or 0
    if groups < 1 or heads % groups:
        return f"{heads} heads in {groups} output groups"
    if info.arch == "dflash" and not _number(info, "attention.sliding_window"):
        return f"{info.arch}.attention.sliding_window is missing or 0"
    return None


def _compress_ratios(info: ModelInfo) -> str | None:
    """deepseek4.cpp: ``n_compress_ratios <= LLAMA_MAX_LAYERS``."""
    ref = info.arrays.get(f"{info.arch}.attention.compress_ratios")
    return f"{ref.count} compress_ratios" if ref is not None and ref.count > 512 else None


def _pooled_indexer(info: ModelInfo) -> str | None:
    """glm5-next.cpp: ``indexer_kpool > 1``, a divisor of top_k; attention without rotation."""
    pool, top = (_number(info, f"attention.indexer.{name}") for name in ("kpool", "top_k"))
    if pool < 2 or top % pool:
        return f"an indexer that takes {top} of pools of {pool}"
    rotary = _head_sizes(info)[2]
    return f"{rotary} rope dimensions, where none may be" if rotary else None


def _sparse_blocks(info: ModelInfo) -> str | None:
    """minimax-m3.cpp: blocks of some size, and one indexer head for each head of keys."""
    size = _number(info, "attention.indexer.block_size")
    indexers = _number(info, "attention.indexer.head_count")
    if not 0 < size < 2**31:
        return f"{info.arch}.attention.indexer.block_size is {size}"
    return None if indexers == info.n_head_kv else f"{indexers} indexer heads, {info.n_head_kv} kv"


def _expert_groups(info: ModelInfo) -> str | None:
    """grovemoe.cpp: ``n_group_experts > 0``."""
    return None if _number(info, "experts_per_group") else "grovemoe.experts_per_group is 0"


def _routed_experts(info: ModelInfo) -> str | None:
    """lfm2moe.cpp: experts in the layers behind the dense ones."""
    dense = _number(info, "leading_dense_block_count")
    if dense < (info.n_layer or 0) and not _number(info, "expert_count"):
        return f"{info.arch}.expert_count is missing or 0, and only {dense} layers are dense"
    return None


def _expert_interval(info: ModelInfo) -> str | None:
    """ernie4-5-moe.cpp: ``n_moe_layer_step > 0``."""
    return None if _number(info, "interleave_moe_layer_step") else "interleave_moe_layer_step is 0"


def _loops(info: ModelInfo) -> str | None:
    """nanbeige.cpp: all rounds through the layers together are at most LLAMA_MAX_LAYERS."""
    loops, layers = _number(info, "num_loops", 1), info.n_layer or 0
    return None if loops >= 1 and loops * layers <= 512 else f"{loops} loops over {layers} layers"


def _stacks(info: ModelInfo) -> str | None:
    """hrm-text.cpp: the layers are those of all cycles."""
    names = ("layers_per_stack", "h_cycles", "l_cycles")
    stack, high, low = (_number(info, f"hrm.{name}") for name in names)
    if min(stack, high, low) < 1 or stack * high * (low + 1) != info.n_layer:
        return f"{stack} layers in {high} x ({low} + 1) cycles are not {info.n_layer} layers"
    return None


def _delta_attention(info: ModelInfo) -> str | None:
    """bailingmoe3.cpp: ``kda_safe_gate`` and ``kda_gate_lower_bound < 0``."""
    bound = info.metadata.get(f"{info.arch}.kda.gate_lower_bound")
    if info.metadata.get(f"{info.arch}.kda.safe_gate", True) is not True:
        return f"{info.arch}.kda.safe_gate is false"
    if not (isinstance(bound, float) and bound < 0):
        return f"{info.arch}.kda.gate_lower_bound is {bound}"
    return None


def _short_convolution(info: ModelInfo) -> str | None:
    """lfm2.cpp: ``n_shortconv_l_cache > 1``."""
    length = _number(info, "shortconv.l_cache")
    return None if length > 1 else f"{info.arch}.shortconv.l_cache is {length}"


def _double_width(info: ModelInfo) -> str | None:
    """granite-hybrid.cpp, jamba.cpp: ``2 * n_embd == d_inner``."""
    inner, width = _number(info, "ssm.inner_size"), info.n_embd or 0
    return None if inner == 2 * width else f"ssm.inner_size {inner} is not twice {width}"


def _state_heads(info: ModelInfo) -> str | None:
    """mamba-base.cpp, plamo2.cpp, qwen4exp.cpp: heads and groups divide the inner size."""
    kept = per_layer(info, "attention.head_count_kv") or per_layer(info, "attention.head_count")
    if info.arch in _SOME_STATES and kept and all(kept):  # no layer has a state
        return None
    names = ("inner_size", "time_step_rank", "group_count", "conv_kernel")
    inner, heads, groups, kernel = (_number(info, f"ssm.{name}") for name in names)
    divided = groups and inner % groups == 0
    if info.arch == "plamo2":
        divided = groups == 0
    elif info.arch == "qwen4exp":
        divided = groups and heads % groups == 0
    if inner < 1 or heads < 1 or inner % heads or not divided or kernel < 2:
        return f"ssm: {inner} values in {heads} heads and {groups} groups, kernel {kernel}"
    return None


def _inner_size(info: ModelInfo) -> str | None:
    """mamba-base.cpp divides by the inner size, and a state is kept of kernel - 1 values."""
    inner, kernel = _number(info, "ssm.inner_size"), _number(info, "ssm.conv_kernel")
    return None if inner and kernel > 1 else f"ssm: {inner} values, kernel {kernel}"


def _token_shift(info: ModelInfo) -> str | None:
    """rwkv6.cpp, rwkv7.cpp: ``token_shift_count == 2``; rwkv6qwen2.cpp, arwkv7.cpp: one of them."""
    wanted = 2 if info.arch in ("rwkv6", "rwkv7") else 1
    count, size = _number(info, "token_shift_count", 2), _number(info, "wkv.head_size")
    if count != wanted:
        return f"{info.arch}.token_shift_count is {count}, it must be {wanted}"
    if size < 1 or (info.n_embd or 0) % size:
        return f"{info.n_embd} values in heads of {size}"
    return None


def _lerp(info: ModelInfo) -> str | None:
    """rwkv6.cpp: the five weights of time mixing, in one tensor or in five."""
    names = {tensor.name for tensor in info.tensors}
    for il in range(info.n_layer or 0):
        there = (f"blk.{il}.time_mix_lerp_{kind}.weight" in names for kind in ("fused", "w"))
        if not any(there):
            return f"blk.{il}.time_mix_lerp_fused.weight is not there"
    return None


def _gate_width(info: ModelInfo) -> str | None:
    """laguna.cpp: a gate for each head, or for each of its values."""
    heads, key = per_layer(info, "attention.head_count"), _head_sizes(info)[0]
    for tensor in info.tensors:
        layer, _, name = tensor.name.removeprefix("blk.").partition(".")
        if name == "attn_gate.weight" and layer.isdecimal() and len(tensor.shape) > 1 and heads:
            n_head = heads[min(int(layer), len(heads) - 1)]
            if tensor.shape[1] not in (n_head, n_head * key):
                return f"{tensor.name} has {tensor.shape[1]} rows for {n_head} heads of {key}"
    return None


RULES: dict[str, tuple[Rule, ...]] = {
    "arwkv7": (_token_shift,),
    "bailingmoe3": (_delta_attention,),
    "deepseek2": (_latent_heads, _latent_cache, _temperature),
    "deepseek2-ocr": (_ocr_heads,),
    "deepseek32": (_latent_cache, _indexer),
    "deepseek4": (_hyper_connections, _output_groups, _indexer, _compress_ratios),
    "dflash": (_output_groups,),
    "dots3note": (_indexer,),
    "ernie4_5-moe": (_expert_interval,),
    "falcon-h1": (_state_heads,),
    "glm-dsa": (_latent_cache, _indexer, _first_indexer),
    "glm5-next": (_pooled_indexer, _hyper_connections, _first_indexer),
    "granitehybrid": (_double_width, _state_heads),
    "grovemoe": (_expert_groups,),
    "hrm_text": (_stacks,),
    "hy_v4": (_latent_heads, _latent_cache),
    "jamba": (_double_width, _inner_size),
    "laguna": (_gate_width,),
    "lfm2": (_short_convolution,),
    "lfm2moe": (_short_convolution, _routed_experts),
    "mamba": (_inner_size,),
    "mamba2": (_state_heads,),
    "minimax-m3": (_sparse_blocks,),
    "mistral4": (_latent_heads, _latent_cache, _temperature),
    "nanbeige": (_loops,),
    "nemotron_h": (_state_heads,),
    "nemotron_h_moe": (_state_heads,),
    "plamo2": (_state_heads,),
    "qwen4exp": (_state_heads,),
    "rwkv6": (_token_shift, _lerp),
    "rwkv6qwen2": (_token_shift,),
    "rwkv7": (_token_shift,),
}
