"""Every described model, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.memory.described import Described
from tests.memory.drafts import assistant, dflash, eagle3
from tests.memory.hybrids import (
    falcon_h1,
    lfm2,
    mamba2,
    nemotron_h,
    nemotron_h_moe,
    qwen3next,
    qwen35,
    qwen35moe,
    rwkv7,
)
from tests.memory.transformers import (
    deepseek2,
    gemma2,
    gemma3,
    gemma4,
    glm4moe,
    glm_dsa,
    gpt_oss,
    llama,
    llama4,
    phi3,
    qwen3,
    qwen3moe,
)

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
    "gemma2-2b": gemma2,
    "glm-dsa": glm_dsa,
    "glm-dsa-long": lambda: glm_dsa(ctx=1 << 20),
    "nemotron_h_moe-30b": nemotron_h_moe,
    "qwen3next-80b": qwen3next,
    "rwkv7-3b": rwkv7,
    "eagle3": eagle3,
    "eagle3-own-vocabulary": lambda: eagle3(own=32000),
    "dflash": dflash,
    "dflash-windowed": lambda: dflash(window=2048),
    "dspark": lambda: dflash(markov=256),
    "gemma4-assistant": assistant,
}
