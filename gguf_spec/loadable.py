"""Can libllama load this file? Asked before it is tried, because libllama may answer by aborting.

A failed ``GGML_ASSERT`` or a division by zero ends the whole process, so what would trigger one is
refused here, and so are the common ways of failing that libllama reports only in its log. Rules are
those of llama.cpp as vendored in llama-cpp-python 0.3.36: ``load_hparams`` in llama-model.cpp,
``llama_vocab::impl::load`` in llama-vocab.cpp and the constructor of llama-model-loader.cpp.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

from gguf_spec.errors import HeaderError
from gguf_spec.loadable_archs import NO_GENERATORS, arch_problem
from gguf_spec.loadable_layers import layers_problem, per_layer

if TYPE_CHECKING:
    from gguf_spec.header import ModelInfo

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
VOCAB_TYPES = {
    "llama": "SPM",
    "bert": "WPM",
    "gpt2": "BPE",
    "hybriddna": "BPE",
    "whitespace": "BPE",
    "gemma4": "BPE",
    "t5": "UGM",
    "rwkv": "RWKV",
    "plamo2": "PLAMO2",
    "no_vocab": "NONE",
    "none": "NONE",
    "test": "TEST",
}

#: Keys with the only value type libllama takes for them.
KEY_TYPES = {
    "general.architecture": "str",
    "general.name": "str",
    "general.file_type": "u32",
    "tokenizer.ggml.model": "str",
    "tokenizer.ggml.pre": "str",
    "tokenizer.ggml.tokens": "[str]",
    "tokenizer.ggml.merges": "[str]",
    "tokenizer.ggml.token_type": "[i32]",
    "tokenizer.ggml.token_type_count": "u32",
    "tokenizer.ggml.bos_token_id": "u32",
    "tokenizer.ggml.eos_token_id": "u32",
    "tokenizer.ggml.eot_token_id": "u32",
    "tokenizer.ggml.unknown_token_id": "u32",
    "tokenizer.ggml.padding_token_id": "u32",
    "tokenizer.ggml.mask_token_id": "u32",
    "tokenizer.ggml.add_bos_token": "bool",
    "tokenizer.ggml.add_eos_token": "bool",
    "tokenizer.chat_template": "str",
}
#: The same for keys that start with the architecture; ``*`` lets one value per layer stand there.
ARCH_KEY_TYPES = {
    "block_count": "u32",
    "context_length": "u32",
    "embedding_length": "u32",
    "nextn_predict_layers": "u32",
    "vocab_size": "u32",
    "expert_count": "u32",
    "expert_group_count": "u32",
    "expert_group_used_count": "u32",
    "expert_used_count": "u32*",
    "feed_forward_length": "u32*",
    "attention.head_count": "u32*",
    "attention.head_count_kv": "u32*",
    "attention.key_length": "u32",
    "attention.value_length": "u32",
    "attention.layer_norm_rms_epsilon": "f32",
    "attention.causal": "bool",
    "rope.dimension_count": "u32",
    "rope.freq_base": "f32",
    "rope.scaling.type": "str",
    "rope.scaling.factor": "f32",
    "full_attention_interval": "u32",
}

DELTA_NETS = frozenset(["qwen35", "qwen35moe", "qwen3next"])
#: Role -> what the file is, and what to do with it.
WEIGHTLESS_ROLES = {
    "adapter": (
        "a LoRA adapter, not a model",
        "name the model it adapts, and the adapter with --set target.lora=FILE",
    ),
    "mmproj": (
        "a vision or audio projector, not a language model",
        "name the language model that it belongs to",
    ),
    "imatrix": (
        "an importance matrix, not a model",
        "it is an input of llama-quantize; name the quantized model",
    ),
    "controlvector": ("a control vector, not a model", "name a model"),
}
#: Architectures of drafters that forks write and llama.cpp does not know -> what it calls them.
FORK_ARCHS = {"gemma4_assistant": "gemma4-assistant", "gemma4-dflash-draft": "dflash"}

#: Types of tensors that no weight has: libllama multiplies with none of them.
NO_WEIGHTS = frozenset(["I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"])
#: Tensors that are indices instead of weights, and the only type that libllama takes for them.
INDICES = {"d2t": "I64", "ffn_gate_tid2eid.weight": "I32"}
# What is added, multiplied element by element or scanned, whatever its shape: these operations take
# F32 beside F32 activations and abort on all else (binary_op in ggml-cpu, and its like).
_ELEMENTWISE = re.compile(
    r".*norm(_[0-9a-z]+)?\.weight|.*\.bias|ssm_(a|d|conv1d(_[qkv])?)(\.weight)?|attn_sinks\.weight|"
    r"shortconv\.conv\.weight|time_mix_(first|lerp_\w+)\.weight"
)
# Vectors that are multiplied as matrices of one row, which takes any type of weights.
_ONE_ROW = re.compile(r"ffn_gate_inp|conf_proj|cls")


def check_loadable(info: ModelInfo, *, as_target: bool = False) -> None:
    """Raise HeaderError when libllama cannot load ``info``; with ``as_target`` also for drafters.

    Passing is no promise: tensor names and shapes of the architecture are left to libllama, which
    reports those without harm.
    """
    _check_file(info)
    _check_role(info, as_target)
    _check_types(info)
    _check_layers(info)
    _check_experts(info)
    _check_attention(info)
    _check_tokenizer(info)
    _check_tensors(info)


def check_adapter(info: ModelInfo, target: ModelInfo) -> None:
    """Raise HeaderError when the LoRA adapter ``info`` is not one for ``target``.

    The rules are those of ``llama_adapter_lora_init_impl``.
    """
    _check_file(info)
    if info.role != "adapter":
        raise _fail(info, f"this is not a LoRA adapter ({info.role})")
    kind = info.metadata.get("adapter.type")
    if kind != "lora":
        raise _fail(info, f"adapter.type is {kind!r} instead of 'lora'")
    if info.arch != target.arch:
        raise _fail(info, f"it adapts {info.arch} models, the target is {target.arch}")
    known = {tensor.name for tensor in target.tensors}
    bases = {t.name.removesuffix(".lora_a").removesuffix(".lora_b") for t in info.tensors}
    foreign = sorted(bases - known)
    if foreign:
        raise _fail(
            info,
            f"it adapts {len(foreign)} of {len(bases)} tensors that the target does not have, "
            f"as {foreign[0]}",
            "it was made for another model of this architecture",
        )
    for tensor in info.tensors:
        if tensor.type in NO_WEIGHTS:
            raise _fail(info, f"{tensor.name} is of type {tensor.type}, which no weights have")


def _fail(info: ModelInfo, what: str, hint: str | None = None) -> HeaderError:
    return HeaderError(f"{info.path}: {what}", hint=hint)


def _check_file(info: ModelInfo) -> None:
    if info.size_check.startswith("truncated") or "truncated:" in info.size_check:
        raise _fail(info, info.size_check, "the download is incomplete: get the file again")
    if info.byte_order != sys.byteorder:
        raise _fail(
            info,
            f"the file is {info.byte_order}-endian, this machine is {sys.byteorder}-endian",
            "convert it with gguf_convert_endian.py of llama.cpp",
        )
    if info.split_count > 1 and info.split_no != 0:
        raise _fail(
            info,
            f"this is part {info.split_no + 1} of {info.split_count}",
            "a split model is loaded by its first part",
        )


def _check_role(info: ModelInfo, as_target: bool) -> None:
    if info.role in WEIGHTLESS_ROLES:
        what, hint = WEIGHTLESS_ROLES[info.role]
        raise _fail(info, f"this is {what}", hint)
    if info.arch is None:
        raise _fail(info, "the file does not say general.architecture")
    if not info.tensors:
        raise _fail(info, "the file has no tensors: a vocabulary, not a model", "name a model")
    if info.arch in FORK_ARCHS:
        raise _fail(
            info,
            f"this drafter's architecture is {info.arch}, which only a fork of llama.cpp knows",
            f"take a file of architecture {FORK_ARCHS[info.arch]}, as llama.cpp converts it",
        )
    if info.role == "target" and info.arch in NO_GENERATORS:
        raise _fail(
            info,
            f"{info.arch} is {NO_GENERATORS[info.arch]}, which does not write text token by token",
            "name a model that does",
        )
    # Opened like a target, a file with the MTP block alone ends the process with SIGSEGV.
    if as_target and info.role != "target":
        raise _fail(
            info,
            f"this is a drafter ({info.role}): it cannot generate text by itself",
            "name the model that it was made for, and this file with -d/--draft",
        )
    if as_target and info.metadata.get(f"{info.arch}.attention.causal") is False:
        raise _fail(info, "attention.causal is false: an encoder, which cannot generate text")


def _check_types(info: ModelInfo) -> None:
    wanted = dict(KEY_TYPES)
    wanted |= {f"{info.arch}.{key}": kind for key, kind in ARCH_KEY_TYPES.items()}
    for key, kind in wanted.items():
        have = info.types.get(key)
        if have is None or have == kind:
            continue
        if kind == "u32*" and have in ("u32", "[u32]", "[i32]"):
            continue
        raise _fail(info, f"{key} is of type {have}, libllama wants {kind.rstrip('*')}")


def _check_tensors(info: ModelInfo) -> None:
    """Types on which the first decode would abort; a file is not converted when it is loaded."""
    for tensor in info.tensors:
        name = re.sub(r"^(blk|enc\.blk|dec\.blk)\.[0-9]+\.", "", tensor.name)
        wanted = INDICES.get(name)
        if wanted is None and tensor.type in NO_WEIGHTS:
            raise _fail(info, f"{tensor.name} is of type {tensor.type}, which no weights have")
        vector = all(size == 1 for size in tensor.shape[1:]) and not _ONE_ROW.match(name)
        if wanted is None and (vector or _ELEMENTWISE.fullmatch(name)):
            wanted = "F32"
        if wanted is not None and tensor.type != wanted:
            raise _fail(
                info,
                f"{tensor.name} is of type {tensor.type}, libllama computes with {wanted} only",
                "convert the model again with convert_hf_to_gguf.py of llama.cpp",
            )


def _check_layers(info: ModelInfo) -> None:
    """GGML_ASSERTs of load_hparams on n_layer_all and n_layer_nextn, and required keys."""
    for key in ("block_count", "context_length", "embedding_length"):
        value = info.arch_uint(key)
        if value is None:
            raise _fail(info, f"{info.arch}.{key} is missing")
        if value == 0 or value > 2**31 - 1:
            raise _fail(info, f"{info.arch}.{key} is {value}")
    blocks = info.arch_uint("block_count", 0) or 0
    if blocks > MAX_LAYERS:
        raise _fail(info, f"{blocks} layers, libllama takes at most {MAX_LAYERS}")
    if info.n_layer_nextn > blocks:
        raise _fail(info, f"{info.n_layer_nextn} MTP layers of {blocks} layers")
    for name in ("expert_used_count", "feed_forward_length"):
        _check_per_layer(info, name, blocks)
    for name in ("attention.head_count", "attention.head_count_kv"):
        _check_per_layer(info, name, blocks)


def _check_per_layer(info: ModelInfo, name: str, blocks: int) -> None:
    ref = info.arrays.get(f"{info.arch}.{name}")
    if ref is not None and ref.count != blocks:
        raise _fail(info, f"{info.arch}.{name} has {ref.count} values for {blocks} layers")


def _check_experts(info: ModelInfo) -> None:
    """GGML_ASSERTs of load_hparams on the experts."""
    if info.arch in ("hunyuan_vl", "hunyuan-dense"):  # llama.cpp resets the counts of these two
        return
    experts = info.arch_uint("expert_count", 0) or 0
    used = max(per_layer(info, "expert_used_count"), default=0)
    groups = info.arch_uint("expert_group_count", 0) or 0
    group_used = info.arch_uint("expert_group_used_count", 0) or 0
    bad = experts > MAX_EXPERTS or used > experts
    if experts > 0:
        bad = bad or used <= 0 or groups >= experts
        if groups > 1:
            bad = bad or experts % groups != 0 or not 0 < group_used < groups
    else:
        bad = bad or groups != 0
    if bad:
        raise _fail(
            info,
            f"impossible experts: {used} of {experts} used, {group_used} of {groups} groups",
        )


def _check_attention(info: ModelInfo) -> None:
    """Asserts and divisions in load_hparams, in the graphs and in the caches."""
    scaling = info.metadata.get(f"{info.arch}.rope.scaling.type", "linear")
    if scaling not in ROPE_SCALINGS:
        raise _fail(info, f"rope.scaling.type is {scaling!r}, libllama knows {ROPE_SCALINGS}")
    if info.arch_uint("full_attention_interval", 1) == 0:
        raise _fail(info, f"{info.arch}.full_attention_interval is 0")  # i % 0: SIGFPE
    heads, heads_kv = (
        per_layer(info, "attention.head_count"),
        per_layer(info, "attention.head_count_kv"),
    )
    for layer, n_head in enumerate(heads):
        n_kv = heads_kv[min(layer, len(heads_kv) - 1)] if heads_kv else n_head
        if n_head < 0 or n_kv < 0 or (n_kv and n_head % n_kv):
            raise _fail(info, f"layer {layer} has {n_head} heads and {n_kv} key/value heads")
    rotary = info.arch_uint("rope.dimension_count")
    head = info.arch_uint("attention.key_length", (info.n_embd or 0) // max(1, info.n_head or 1))
    if info.n_head and rotary is not None and head is not None and rotary > head:
        raise _fail(info, f"{rotary} rope dimensions in heads of {head}")  # asserted by ggml_rope
    problem = arch_problem(info) or layers_problem(info)
    if problem is not None:
        raise _fail(info, problem)
    if info.arch in DELTA_NETS:
        _check_delta_net(info)
    if f"{info.arch}.rope.dimension_sections" in info.metadata:
        _check_sections(info)
    for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base"):
        number = info.metadata.get(f"{info.arch}.{key}")
        if isinstance(number, float) and not (math.isfinite(number) and number >= 0):
            raise _fail(info, f"{info.arch}.{key} is {number}")


def _check_sections(info: ModelInfo) -> None:
    """M-RoPE: without rotary dimensions the first decode of libllama never ends [run on qwen35]."""
    rotary = info.arch_uint("rope.dimension_count", 2) or 0
    sections = per_layer(info, "rope.dimension_sections")
    bad = len(sections) > 4 or min(sections, default=0) < 0
    if bad or rotary < 2 or rotary % 2 or not 0 < 2 * sum(sections) <= rotary:
        raise _fail(info, f"{rotary} rope dimensions in the sections {sections}")


def _check_delta_net(info: ModelInfo) -> None:
    """The graph reshapes inner_size to time_step_rank heads of state_size each."""
    names = ("inner_size", "time_step_rank", "state_size", "group_count", "conv_kernel")
    inner, ranks, state, groups, kernel = (info.arch_uint(f"ssm.{name}", 0) or 0 for name in names)
    if min(inner, ranks, state, groups) < 1 or kernel < 2:
        raise _fail(info, f"one of {info.arch}.ssm.{names} is missing or too small")
    if inner != ranks * state or ranks % groups:
        raise _fail(
            info, f"ssm: {ranks} heads of {state} in {groups} groups do not make {inner} values"
        )


def _check_tokenizer(info: ModelInfo) -> None:
    """What llama_vocab::impl::load throws on, or asserts: token texts have to differ."""
    model = info.tokenizer.model
    if model is None:
        raise _fail(info, "the file has no tokenizer (tokenizer.ggml.model)")
    if model not in VOCAB_TYPES:
        raise _fail(info, f"unknown tokenizer {model!r}")
    if VOCAB_TYPES[model] == "NONE":
        return
    tokens = info.arrays.get("tokenizer.ggml.tokens")
    if tokens is None or tokens.count == 0:
        raise _fail(info, "the tokenizer has no tokens (tokenizer.ggml.tokens)")
    needs_merges = VOCAB_TYPES[model] == "BPE" and info.tokenizer.pre != "kimi-k2"
    if needs_merges and "tokenizer.ggml.merges" not in info.arrays:
        raise _fail(info, "the tokenizer has no merges (tokenizer.ggml.merges)")
    for key in ("tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        ref = info.arrays.get(key)
        if ref is not None and ref.count < tokens.count:
            raise _fail(info, f"{key} has {ref.count} values for {tokens.count} tokens")
    if info.types.get("tokenizer.ggml.scores", "[f32]") not in ("[f32]", "[i32]"):
        raise _fail(info, f"tokenizer.ggml.scores is {info.types['tokenizer.ggml.scores']}")
    texts = token_texts(info)
    if len(set(texts)) == len(texts):
        return
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        if seen.setdefault(text, token) != token:
            raise _fail(info, f"tokens {seen[text]} and {token} have the same text {text!r}")


def token_texts(info: ModelInfo) -> list[bytes]:
    """The token texts as libllama sees them: C strings, an empty one replaced by its number."""
    texts = info.read_bytes("tokenizer.ggml.tokens")
    if all(texts) and b"\0" not in b"".join(texts):
        return texts
    for token, text in enumerate(texts):
        if b"\0" in text:
            text = text.split(b"\0", 1)[0]
            texts[token] = text
        if not text:
            texts[token] = b"[EMPTY_%d]" % token
    return texts
