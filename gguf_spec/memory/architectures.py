"""Which architecture keeps what: the tables behind ``facts``.

Read from src/llama-arch.cpp (1017-1140), src/llama-model.cpp (``create_memory``, 2350-2860) and the
``load_arch_hparams`` of src/models/*.cpp of the llama.cpp vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

#: Architectures whose caches follow the rules here to the byte. Those that llama.cpp has and this
#: list has not keep something more: compressed caches (deepseek4), pooled indexers (glm5-next,
#: hy_v4), an n-gram memory (qwen4exp), several indexers (dots3note), a router's cache
#: (graniteswitch), layers used several times (nanbeige), an encoder's (t5), or no text at all.
KNOWN = frozenset(
    [
        "llama",
        "llama4",
        "deci",
        "falcon",
        "grok",
        "gpt2",
        "gptneox",
        "mpt",
        "baichuan",
        "starcoder",
        "refact",
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "bloom",
        "stablelm",
        "qwen",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "qwen3",
        "qwen3moe",
        "qwen3next",
        "qwen3vl",
        "qwen3vlmoe",
        "qwen35",
        "qwen35moe",
        "phi2",
        "phi3",
        "phimoe",
        "plamo",
        "plamo2",
        "plamo3",
        "codeshell",
        "orion",
        "internlm2",
        "minicpm",
        "minicpm3",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4-assistant",
        "gemma-embedding",
        "starcoder2",
        "mamba",
        "mamba2",
        "maple",
        "jamba",
        "falcon-h1",
        "xverse",
        "command-r",
        "cohere2",
        "cohere2moe",
        "dbrx",
        "olmo",
        "olmo2",
        "olmoe",
        "muse-glimmer",
        "openelm",
        "arctic",
        "deepseek",
        "deepseek2",
        "deepseek2-ocr",
        "deepseek32",
        "chatglm",
        "glm4",
        "glm4moe",
        "glm-dsa",
        "bitnet",
        "jais",
        "jais2",
        "nemotron",
        "nemotron_h",
        "nemotron_h_moe",
        "exaone",
        "exaone4",
        "exaone-moe",
        "rwkv6",
        "rwkv6qwen2",
        "rwkv7",
        "arwkv7",
        "granite",
        "granitemoe",
        "granitehybrid",
        "granite_swa",
        "chameleon",
        "plm",
        "bailingmoe",
        "bailingmoe2",
        "bailingmoe3",
        "dots1",
        "arcee",
        "afmoe",
        "laguna",
        "ernie4_5",
        "ernie4_5-moe",
        "hunyuan-moe",
        "hunyuan-dense",
        "hunyuan_vl",
        "hy_v3",
        "smollm3",
        "gpt-oss",
        "lfm2",
        "lfm2moe",
        "dream",
        "smallthinker",
        "llada",
        "llada-moe",
        "seed_oss",
        "grovemoe",
        "apertus",
        "minimax-01",
        "minimax-m2",
        "minimax-m3",
        "cogvlm",
        "rnd1",
        "pangu-embedded",
        "mistral3",
        "eagle3",
        "dflash",
        "mistral4",
        "paddleocr",
        "mimo2",
        "step35",
        "spark2_5",
        "llama-embed",
        "maincoder",
        "kimi-linear",
        "kimi-k3",
        "talkie",
        "mellum",
    ]
)

#: llm_arch_is_recurrent (llama-arch.cpp:1060-1072).
RECURRENT = frozenset(["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"])

#: llm_arch_is_hybrid (llama-arch.cpp:1074-1098).
HYBRID = frozenset([
    "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h",
    "nemotron_h_moe", "qwen3next", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "qwen35",
    "qwen35moe", "qwen4exp", "deepseek4", "minimax-01",
])  # fmt: skip

#: llm_arch_supports_rs_rollback (llama-arch.cpp:1113-1130).
ROLLBACK = frozenset([
    "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h",
    "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3",
])  # fmt: skip

#: Models without any memory (create_memory, llama-model.cpp:2358-2374).
NO_CACHE = frozenset([
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert",
    "wavtokenizer-dec", "modern-bert", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1",
])  # fmt: skip

#: Models with an encoder reserve logits for whole batches (llama-context.cpp:250).
ENCODER = frozenset(["t5", "t5encoder", "eagle3", "dflash"])

#: Every how many layers hybrids of this kind attend, where the file does not say.
INTERVALS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4, "minimax-01": 8}

#: Layers with keys and values of their own, where a number in the code says so (gemma3n.cpp:7).
FIXED_KV_LAYERS = {"gemma3n": 20}

#: Sliding windows: (period of the pattern, whether the dense layer is the first of it). Of the
#: period -1 are those that need an array in the file. phi3 has none: phi3.cpp:15-23 ignores its.
WINDOW_PATTERNS = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "deepseek4": (0, False),
    "dflash": (-1, False),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma-embedding": (6, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gemma4": (-1, False),
    "gemma4-assistant": (-1, False),
    "gpt-oss": (2, False),
    "granite_swa": (-1, False),
    "laguna": (4, True),
    "lfm2": (-1, False),
    "llama4": (4, False),
    "maple": (-1, False),
    "mellum": (4, False),
    "mimo2": (-1, False),
    "modern-bert": (3, True),
    "muse-glimmer": (4, False),
    "olmo2": (4, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
    "spark2_5": (-1, False),
    "step35": (-1, False),
}

#: Windows that the code has for files without the key.
DEFAULT_WINDOWS = {"gemma2": 4096, "exaone4": 4096, "exaone-moe": 128}

#: The output of a tied model is created before its embeddings, so the loader does not find the
#: copy and makes a second one, on the same device, too (gemma4.cpp, gemma3n.cpp).
OUTPUT_FIRST = frozenset(["gemma4", "gemma3n"])

#: Embeddings serve as the output where they are: no copy is made for it (bitnet.cpp), or there is
#: no output at all (encoders for embeddings).
NO_OUTPUT_COPY = frozenset([
    "bitnet", "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert",
    "eurobert", "modern-bert", "gemma-embedding", "eagle3",
])  # fmt: skip

#: MTP layers that are never loaded, whatever is asked for (TENSOR_SKIP without a condition).
MTP_NEVER = frozenset(["bailingmoe2", "exaone-moe", "exaone4", "glm4", "dots3note"])
