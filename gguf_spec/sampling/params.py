"""What shapes the distribution that tokens are drawn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# What a report names whether it is the default or not.
_ALWAYS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings by llama.cpp's names and with its meanings; the values here switch steps off, but
    for the common filters.

    - ``temperature`` 0 takes the most likely token of those that the other steps leave.
    - ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch that filter off.
    - ``seed`` is any integer; its lowest 64 bits count.
    - ``repeat_penalty`` (1: off), ``frequency_penalty`` and ``presence_penalty`` (0: off) look at
      the last ``penalty_last_n`` tokens (0: off, -1: all), prompt included.
    - ``dry_multiplier`` 0 switches DRY off; it looks back ``dry_penalty_last_n`` tokens (0: off,
      -1: all).
    - ``xtc_probability`` 0, or ``xtc_threshold`` above 0.5, switches XTC off.
    - ``mirostat`` 1 or 2 replaces penalties, DRY, filters and XTC. ``mirostat_tau`` in bits.
    - ``dynatemp_range`` 0: the temperature is fixed.
    - ``logit_bias``: pairs of token id and what is added to its logit; -inf forbids the token.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], seed: int) -> SamplingParams:
        """From the keys of a profile's [sampling]; keys that are none of ours are passed over."""
        names = {field.name for field in fields(cls)} - {"seed", "logit_bias"}
        values = {name: value for name, value in settings.items() if name in names}
        bias = tuple(settings.get("logit_bias", {}).items())
        return cls(seed=seed, logit_bias=bias, **values)

    def described(self) -> dict[str, Any]:
        """The common settings, and the others where they are not the default, for JSON."""
        shown: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _ALWAYS or (value != field.default and field.name != "seed"):
                shown[field.name] = value
        if self.logit_bias:
            # JSON has neither integers as keys nor infinity.
            shown["logit_bias"] = {
                str(token): bias if math.isfinite(bias) else str(bias)
                for token, bias in self.logit_bias
            }
        return shown

    @property
    def penalizes(self) -> bool:
        """Whether the repeat, frequency or presence penalty is on."""
        return self.penalty_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def dries(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier != 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0

    @property
    def excludes(self) -> bool:
        """Whether XTC may exclude top choices."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5

    @property
    def filters(self) -> bool:
        """Whether one of top-k, top-p and min-p is on."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0
