"""The ranges of numbers, and other values that libllama could not use."""

from __future__ import annotations

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.profile import Profile, apply_overrides
from gguf_spec.profile_values import RESERVED
from tests.profile_files import in_tmp, load, problems, write

__all__ = ["in_tmp"]  # a fixture

BEYOND_32_BITS = [
    "target.main_gpu", "target.yarn_orig_ctx", "target.n_gpu_layers", "target.n_cpu_moe",
    "target.n_ctx", "target.n_batch", "target.n_ubatch", "target.n_threads",
    "target.n_threads_batch", "sampling.top_k", "sampling.penalty_last_n",
    "sampling.dry_penalty_last_n", "sampling.dry_allowed_length", "spec.n_max", "spec.n_min",
    "spec.draft.n_gpu_layers", "spec.draft.n_ctx", "spec.draft.n_ubatch",
]  # fmt: skip
TOO_EXTREME = [
    "sampling.repeat_penalty = 1e-300", "sampling.repeat_penalty = 1e9",
    "sampling.presence_penalty = -1e300", "sampling.frequency_penalty = 1e300",
    "sampling.mirostat_eta = 1e300", "sampling.mirostat_tau = 1e300", "sampling.dry_base = 1e300",
    "sampling.dry_multiplier = 1e300", "sampling.logit_bias = {1 = 1e31}",
    "sampling.logit_bias = {1 = -1e300}", "target.rope_freq_base = 1e-40",
    "target.rope_freq_base = 1e38", "target.rope_freq_scale = 1e38",
    "target.rope_freq_scale = 1e-40", "target.yarn_ext_factor = 1e300",
    "target.yarn_attn_factor = 1e300", "target.yarn_beta_fast = -1e300",
    "target.yarn_beta_slow = 1e300", "target.tensor_split = [1e39, 1]",
    "target.tensor_split = [1e-40]",
]  # fmt: skip
BAD_PATTERNS = ["[", "(", "*", "a**", "a++", "(?i)a", "(?P<n>a)", "(?<=a)b", "a{", "{2}a", "a\\"]
GOOD_PATTERNS = [
    r"blk\.(1|2)\.ffn_.*_exps", r"blk\.\d+\.ffn_(?:up|down)", "[[:alpha:]]+", r"a{2}b{1,}c{1,3}",
    r"^output\.weight$", r"a\{b\+\+", "[{(?+]+x", "a+?b*?", "(?=a)a(?!b)",
]  # fmt: skip


@pytest.mark.parametrize("key", BEYOND_32_BITS)
def test_whole_numbers_end_where_those_of_libllama_do(key: str) -> None:
    for value in (2**31, 2**32, 2**32 + 1):
        (problem,) = problems(f"{key} = {value}\n")
        assert "must be at most" in problem
    with pytest.raises(UsageError, match="must be at most"):
        apply_overrides(Profile(), {key: str(2**31)})


@pytest.mark.parametrize("line", TOO_EXTREME)
def test_numbers_that_would_end_in_no_logits(line: str) -> None:
    (problem,) = problems(f"{line}\n")
    assert problem.startswith("p.toml:1: ")


def test_numbers_of_use_are_in_range() -> None:
    profile = load(
        "[target]\nrope_freq_base = 0\nrope_freq_scale = 0.03125\nyarn_ext_factor = -1\n"
        "main_gpu = 2147483647\n"
        "[sampling]\nrepeat_penalty = 1.3\npresence_penalty = -2\n"
        "logit_bias = {1 = -inf, 2 = 1e9}\n"
        "penalty_last_n = -1\ndry_penalty_last_n = -1\n"
    )
    assert profile.target.rope_freq_base == 0
    assert profile.sampling.penalty_last_n == profile.sampling.dry_penalty_last_n == -1


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
def test_patterns_that_are_none(pattern: str) -> None:
    (problem,) = problems(f"target.override_tensor = ['{pattern}=CPU']\n")
    assert "regular expression" in problem
    with pytest.raises(UsageError, match="regular expression"):
        apply_overrides(Profile(), {"target.override_tensor": f"['{pattern}=CPU']"})


@pytest.mark.parametrize("pattern", GOOD_PATTERNS)
def test_patterns_that_libllama_takes(pattern: str) -> None:
    profile = load(f"target.override_tensor = ['{pattern}=CPU']\n")
    assert profile.target.override_tensor == (f"{pattern}=CPU",)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_template_arguments_that_every_template_is_given(name: str) -> None:
    (problem,) = problems(f"[chat.template]\nenable_thinking = true\n{name} = []\n")
    assert name in problem
    assert "enable_thinking" not in problem
    with pytest.raises(UsageError, match=name):
        apply_overrides(Profile(), {"chat.template": f"{{{name} = []}}"})


@pytest.mark.parametrize("table", ["draft", "draft-simple", "draft-mtp", "draft-eagle3"])
def test_a_drafts_quantized_values_need_flash_attention_too(table: str) -> None:
    write("base.toml", f"[spec.{table}]\ntype_v = 'q8_0'\n")
    assert load("extends = 'base'\n").target.flash_attn == "auto"
    (problem,) = problems("extends = 'base'\n[target]\nflash_attn = 'off'\n")
    assert problem.startswith(f"base.toml:2: [spec.{table}] type_v")
    assert "target.flash_attn" in problem
