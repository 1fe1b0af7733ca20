"""Settings, what they switch on, and numbers at their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gguf_spec.sampling import Sampler, SamplingParams

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def test_lookback_is_what_is_switched_on() -> None:
    assert Sampler(OFF).lookback == 0
    assert Sampler(replace(OFF, penalty_last_n=500, dry_penalty_last_n=500)).lookback == 0
    assert Sampler(replace(OFF, repeat_penalty=1.1)).lookback == 64
    assert Sampler(replace(OFF, presence_penalty=0.1, penalty_last_n=0)).lookback == 0
    assert Sampler(replace(OFF, dry_multiplier=0.1, dry_penalty_last_n=300)).lookback == 300
    assert Sampler(replace(OFF, dry_multiplier=0.1, mirostat=2)).lookback == 0


def test_settings_become_parameters_and_are_described() -> None:
    bias = {7: -math.inf, 9: 1.5}
    keys = {"temperature": 0.5, "top_k": -1, "logit_bias": bias, "stop": ("x",), "seed": -1}
    params = SamplingParams.from_settings(keys, seed=11)
    assert params == SamplingParams(
        temperature=0.5, top_k=-1, seed=11, logit_bias=((7, -math.inf), (9, 1.5))
    )
    assert params.described() == {
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.95,
        "min_p": 0.05,
        "logit_bias": {"7": "-inf", "9": 1.5},
    }
    assert replace(params, mirostat=2, logit_bias=()).described()["mirostat"] == 2


def test_numbers_that_float32_does_not_hold() -> None:
    logits = np.random.default_rng(3).normal(0.0, 2.0, 500).astype(np.float32)
    best = int(logits.argmax())
    text = [best] * 400
    for keys in (
        {"dry_multiplier": 1e30, "dry_penalty_last_n": 400},
        {"frequency_penalty": 1e300},
        {"presence_penalty": 3e38},
        {"repeat_penalty": 1e45, "frequency_penalty": 1.0},
        {"logit_bias": ((best, -1e300),)},
    ):
        params = replace(OFF, **keys)  # type: ignore[arg-type]
        assert Sampler(params).sample(logits, 3, text) != best
    assert Sampler(replace(OFF, logit_bias=((7, 1e300),))).sample(logits, 3) == 7
