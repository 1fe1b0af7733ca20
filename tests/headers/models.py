"""The files that the shipped profiles name, and for which machine each profile is.

Sizes are those that public pages give. Where none was found ``n_bytes`` is None: then the weights
are counted by the recipe that made the file, which is public, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.headers import described as own
from tests.headers.mix import Mix, mxfp4_moe, q4_k_m, quantized, uniform
from tests.memory import drafts, hybrids, transformers
from tests.memory.described import Described


@dataclass(frozen=True)
class File:
    """A file to describe. ``head`` as in ``mix.quantized``; ``n_bytes`` is its public size."""

    model: Callable[[], Described]
    quant: str
    mix: Mix
    n_layer: int
    n_bytes: int | None = None
    head: Mapping[str, str] | None = None

    def described(self, name: str) -> Described:
        return quantized(self.model(), self.quant, self.mix, self.n_layer, name=name,
                         head=self.head)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A profile's files, and the machine it is for: GiB of a GPU's memory (0: none) and of the
    host's; ``mac``: the two are one."""

    target: str
    draft: str | None = None
    vram: int = 0
    ram: int = 32
    mac: bool = False


#: How ggml-org makes the files of models that were trained for Q4_0: github.com/ggml-org/convert.
_QAT = uniform("Q4_0", token_embd="Q8_0")
_Q4_0, _Q8_0, _BF16 = uniform("Q4_0"), uniform("Q8_0"), uniform("BF16")
#: Some of unsloth's mixtures, as far as their sizes tell.
_UD_Q4_K_XL = uniform(
    "Q4_K", output="Q6_K", token_embd="Q8_0", attn="Q8_0", ssm="Q8_0", ffn_gate_shexp="Q8_0",
    ffn_up_shexp="Q8_0", ffn_down="Q5_K",
)  # fmt: skip
_UD_IQ3_XXS = uniform(
    "IQ3_XXS", output="Q6_K", token_embd="Q4_K", attn="IQ3_S", ssm="Q4_K", ffn_down="IQ3_S",
)  # fmt: skip
_UD_IQ2_XXS = uniform(
    "IQ2_XXS", output="Q5_K", token_embd="Q4_K", attn="IQ2_S", ssm="IQ3_S"
)  # fmt: skip
_UD_Q3_K_XL = uniform("Q3_K", output="Q6_K", token_embd="Q4_K", attn="Q4_K", ssm="Q4_K")
_UD_DENSE_Q4_K_XL = uniform(
    "Q4_K", output="Q6_K", token_embd="Q4_K", attn="Q6_K", ssm="Q5_K", ffn_down="Q5_K"
)  # fmt: skip
_UD_Q8_K_XL = uniform("Q8_0", output="BF16", token_embd="BF16")


def _llama_1b() -> Described:
    return transformers.llama(16, 2048, 32, 8, 8192, output=False)


def _qwen3_4b() -> Described:
    return transformers.qwen3(36, 2560, 32, 8, 9728, output=False)


def _gemma4_e4b() -> Described:
    return transformers.gemma4(42, 2560, 8, 10240, shared_kv=18, per_layer=256, window=512)


def _gemma4_12b() -> Described:
    return own.gemma4_large(48, 3840, 16, (8, 1), 15360, ctx=131072)


def _eagle3() -> Described:
    return drafts.eagle3(4096, 32, 8, 12288, n_target=36, vocab=151936, own=32000)


def _dflash(markov: int = 0) -> Described:
    """The heads of Qwen3-4B: by z-lab with blocks of 16, with ``markov`` by DeepSeek, of 8."""
    d = drafts.dflash(
        5, 2560, 32, 8, 9728, vocab=151936, layers=(1, 9, 17, 25, 33), markov=markov,
        block=8 if markov else 16,
    )  # fmt: skip
    d.gguf.key("tokenizer.ggml.mask_token_id", "u32", 151669)
    return d


FILES: dict[str, File] = {
    "smollm3-3b-q4_k_m": File(own.smollm3, "Q4_K_M", q4_k_m, 36, 1_920_000_000),
    "llama-3.1-8b-q4_k_m": File(transformers.llama, "Q4_K_M", q4_k_m, 32, 4_920_000_000),
    "llama-3.1-8b-q8_0": File(transformers.llama, "Q8_0", _Q8_0, 32, 8_540_000_000),
    "llama-3.2-1b-q8_0": File(_llama_1b, "Q8_0", _Q8_0, 16, 1_320_000_000),
    "llama-3.3-70b-q4_k_m": File(
        lambda: transformers.llama(80, 8192, 64, 8, 28672), "Q4_K_M", q4_k_m, 80, 42_520_000_000
    ),
    "qwen3-4b-q4_k_m": File(_qwen3_4b, "Q4_K_M", q4_k_m, 36, 2_497_281_120),
    "qwen3-4b-dflash-bf16": File(_dflash, "BF16", _BF16, 5),
    "qwen3-4b-dspark-bf16": File(lambda: _dflash(256), "BF16", _BF16, 5),
    "qwen3-8b-q8_0": File(transformers.qwen3, "Q8_0", _Q8_0, 36, 8_710_000_000),
    "qwen3-8b-eagle3-bf16": File(_eagle3, "BF16", _BF16, 1),
    "r1-0528-qwen3-8b-q4_k_m": File(transformers.qwen3, "Q4_K_M", q4_k_m, 36, 5_030_000_000),
    "qwen3-30b-a3b-q4_k_m": File(transformers.qwen3moe, "Q4_K_M", q4_k_m, 48, 18_556_686_752),
    "r1-distill-qwen-14b-q4_k_m": File(
        lambda: own.qwen2(48, 5120, 40, 8, 13824), "Q4_K_M", q4_k_m, 48, 8_988_112_040
    ),
    "r1-distill-qwen-32b-q4_k_m": File(
        lambda: own.qwen2(64, 5120, 40, 8, 27648), "Q4_K_M", q4_k_m, 64, 19_850_000_000
    ),
    "glm-4.7-flash-q4_k_m": File(own.glm47_flash, "Q4_K_M", q4_k_m, 47, 18_470_000_000),
    "glm-4.5-air-q4_k_m": File(own.glm45_air, "Q4_K_M", q4_k_m, 46, 73_000_000_000),
    "phi-4-q4_k_m": File(own.phi4, "Q4_K_M", q4_k_m, 40, 9_050_000_000),
    "devstral-small-2-q4_k_m": File(own.mistral3, "Q4_K_M", q4_k_m, 40, 14_330_000_000),
    "gpt-oss-20b-mxfp4": File(transformers.gpt_oss, "MXFP4_MOE", mxfp4_moe, 24, 12_109_566_560),
    "gpt-oss-120b-mxfp4": File(
        lambda: transformers.gpt_oss(36, n_exp=128), "MXFP4_MOE", mxfp4_moe, 36, 63_387_346_464
    ),
    "gemma-4-e4b-q4_0": File(_gemma4_e4b, "Q4_0", _QAT, 42),
    "gemma-4-e4b-assistant-q4_0": File(
        lambda: own.gemma4_assistant(2560, 8, (2, 2), e=256, ff=2048, window=512),
        "Q4_0", _Q4_0, 4,
    ),
    "gemma-4-12b-q4_0": File(_gemma4_12b, "Q4_0", _QAT, 48),
    "gemma-4-12b-assistant-q8_0": File(
        lambda: own.gemma4_assistant(3840, 16, (8, 1)), "Q8_0", _Q8_0, 4, 465_109_248
    ),
    "gemma-4-12b-assistant-q4_0": File(
        lambda: own.gemma4_assistant(3840, 16, (8, 1)), "Q4_0", _Q4_0, 4
    ),
    "gemma-4-26b-a4b-q4_0": File(
        lambda: own.gemma4_large(30, 2816, 16, (8, 2), 2112, n_exp=128), "Q4_0", _QAT, 30,
        14_400_000_000,
    ),
    "gemma-4-31b-q4_0": File(
        lambda: own.gemma4_large(60, 5376, 32, (16, 4), 21504), "Q4_0", _QAT, 60
    ),
    "gemma-4-31b-assistant-q4_0": File(
        lambda: own.gemma4_assistant(5376, 32, (16, 4)), "Q4_0", _Q4_0, 4
    ),
    "qwen3.6-27b-mtp-iq3_xxs": File(
        hybrids.qwen35, "IQ3_XXS", _UD_IQ3_XXS, 64, 12_450_000_000, {"": "Q8_0"}
    ),
    "qwen3.6-27b-mtp-q4_k_m": File(hybrids.qwen35, "Q4_K_M", q4_k_m, 64, 16_500_000_000),
    "qwen3.6-27b-mtp-q6_k": File(hybrids.qwen35, "Q6_K", uniform("Q6_K"), 64),
    "qwen3.6-27b-mtp-q8_0": File(hybrids.qwen35, "Q8_0", _Q8_0, 64, 29_000_000_000),
    "qwen3.8-27b-iq2_xxs": File(
        hybrids.qwen35, "IQ2_XXS", _UD_IQ2_XXS, 64, 9_010_048_064, {"": "Q8_0"}
    ),
    "qwen3.8-27b-q3_k_xl": File(hybrids.qwen35, "Q3_K_L", _UD_Q3_K_XL, 64, 13_420_000_000),
    "qwen3.8-27b-q4_k_m": File(hybrids.qwen35, "Q4_K_M", q4_k_m, 64, 17_110_000_000),
    "qwen3.8-27b-q4_k_xl": File(
        hybrids.qwen35, "Q4_K_M", _UD_DENSE_Q4_K_XL, 64, 17_920_000_000
    ),
    "qwen3.8-27b-q8_k_xl": File(hybrids.qwen35, "Q8_0", _UD_Q8_K_XL, 64, 31_500_000_000),
    "qwen3.6-35b-a3b-mtp-q4_k_xl": File(
        hybrids.qwen35moe, "Q4_K_M", _UD_Q4_K_XL, 40, 22_850_000_000, {"": "Q8_0"}
    ),
}  # fmt: skip

#: Every shipped profile of a real model, by name.
CASES: dict[str, Case] = {
    "smollm3-3b-cpu": Case("smollm3-3b-q4_k_m", ram=8),
    "qwen3-30b-a3b-cpu": Case("qwen3-30b-a3b-q4_k_m"),
    "gemma-4-e4b-8gb": Case("gemma-4-e4b-q4_0", "gemma-4-e4b-assistant-q4_0", vram=8, ram=16),
    "llama-3.1-8b-8gb": Case("llama-3.1-8b-q4_k_m", vram=8, ram=16),
    "deepseek-r1-8b-8gb": Case("r1-0528-qwen3-8b-q4_k_m", vram=8, ram=16),
    "qwen3-4b-dflash": Case("qwen3-4b-q4_k_m", "qwen3-4b-dflash-bf16", vram=8, ram=16),
    "qwen3-4b-dspark": Case("qwen3-4b-q4_k_m", "qwen3-4b-dspark-bf16", vram=8, ram=16),
    "qwen3.6-35b-a3b-8gb": Case("qwen3.6-35b-a3b-mtp-q4_k_xl", vram=8),
    "gemma-4-12b-assistant": Case("gemma-4-12b-q4_0", "gemma-4-12b-assistant-q4_0", vram=12),
    "llama-3.1-8b-draft": Case("llama-3.1-8b-q8_0", "llama-3.2-1b-q8_0", vram=12),
    "deepseek-r1-14b-12gb": Case("r1-distill-qwen-14b-q4_k_m", vram=12),
    "qwen3.6-35b-a3b-12gb": Case("qwen3.6-35b-a3b-mtp-q4_k_xl", vram=12),
    "gpt-oss-20b-16gb": Case("gpt-oss-20b-mxfp4", vram=16),
    "qwen3.6-27b-16gb": Case("qwen3.6-27b-mtp-iq3_xxs", vram=16),
    "gemma-4-26b-a4b-16gb": Case("gemma-4-26b-a4b-q4_0", vram=16),
    "qwen3-8b-eagle3": Case("qwen3-8b-q8_0", "qwen3-8b-eagle3-bf16", vram=16),
    "qwen3.6-27b-mtp": Case("qwen3.6-27b-mtp-q4_k_m", vram=24),
    "qwen3.6-35b-a3b-24gb": Case("qwen3.6-35b-a3b-mtp-q4_k_xl", vram=24),
    "gemma-4-31b-24gb": Case("gemma-4-31b-q4_0", "gemma-4-31b-assistant-q4_0", vram=24),
    "glm-4.7-flash-24gb": Case("glm-4.7-flash-q4_k_m", vram=24),
    "deepseek-r1-32b-24gb": Case("r1-distill-qwen-32b-q4_k_m", vram=24),
    "gpt-oss-120b-24gb": Case("gpt-oss-120b-mxfp4", vram=24, ram=64),
    "qwen3.6-27b-32gb": Case("qwen3.6-27b-mtp-q6_k", vram=32),
    "qwen3.6-27b-48gb": Case("qwen3.6-27b-mtp-q8_0", vram=48, ram=64),
    "llama-3.3-70b-48gb": Case("llama-3.3-70b-q4_k_m", "llama-3.2-1b-q8_0", vram=48, ram=64),
    "qwen3.8-27b-12gb": Case("qwen3.8-27b-iq2_xxs", vram=12),
    "qwen3.8-27b-16gb": Case("qwen3.8-27b-q3_k_xl", vram=16),
    "qwen3.8-27b-24gb": Case("qwen3.8-27b-q4_k_m", vram=24),
    "qwen3.8-27b-32gb": Case("qwen3.8-27b-q4_k_xl", vram=32),
    "qwen3.8-27b-48gb": Case("qwen3.8-27b-q8_k_xl", vram=48, ram=64),
    "qwen3-coder-30b-a3b-24gb": Case("qwen3-30b-a3b-q4_k_m", vram=24),
    "deepseek-r1-70b-48gb": Case("llama-3.3-70b-q4_k_m", vram=48, ram=64),
    "phi-4-12gb": Case("phi-4-q4_k_m", vram=12),
    "devstral-small-2-24gb": Case("devstral-small-2-q4_k_m", vram=24),
    "glm-4.5-air-24gb": Case("glm-4.5-air-q4_k_m", vram=24, ram=64),
    "glm-4.5-air-48gb": Case("glm-4.5-air-q4_k_m", vram=48, ram=64),
    "qwen3.6-27b-mac-32gb": Case("qwen3.6-27b-mtp-q4_k_m", mac=True),
    "gemma-4-12b-mac-16gb": Case(
        "gemma-4-12b-q4_0", "gemma-4-12b-assistant-q4_0", ram=16, mac=True
    ),
}
