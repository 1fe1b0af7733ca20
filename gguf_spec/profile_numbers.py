"""The ranges of numbers in a profile.

libllama counts in 32 bits and computes in float32: what is outside of a range would wrap around, or
end in logits that are no numbers. The ranges are far wider than anything of use.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

MOST = 2**31 - 1
MAX_THREADS = 512  # GGML_MAX_N_THREADS in ggml.h: buffers for more would overflow


def words_or_int(*words: str, least: int, most: int = MOST) -> BeforeValidator:
    """Accept one of ``words`` or a whole number from ``least`` up (digits in a text are none)."""

    def check(value: object) -> object:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and value > most:  # type: ignore[operator]
            raise ValueError(f"must be at most {most}")
        if (isinstance(value, str) and value in words) or (is_number and value >= least):  # type: ignore[operator]
            return value
        choices = ", ".join(f'"{word}"' for word in words)
        raise ValueError(f"must be {choices} or a whole number from {least} up")

    return BeforeValidator(check)


def _zero_or(least: float) -> AfterValidator:
    """Refuse what lies between 0, which stands for the model's own value, and ``least``."""

    def check(value: float) -> float:
        if 0.0 < value < least:
            raise ValueError(f"must be 0 or at least {least:g}")
        return value

    return AfterValidator(check)


Count = Annotated[int, Field(ge=1, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]
NgramLength = Annotated[int, Field(ge=1, le=1024)]  # limits of llama.cpp's common/arg.cpp
Lookback = Annotated[int, Field(ge=-1, le=MOST)]
AutoCount = Annotated[Literal["auto"] | int, words_or_int("auto", least=1)]
AutoNatural = Annotated[Literal["auto"] | int, words_or_int("auto", least=0)]
Threads = Annotated[Literal["auto"] | int, words_or_int("auto", least=1, most=MAX_THREADS)]
GpuLayers = Annotated[Literal["auto", "all"] | int, words_or_int("auto", "all", least=-1)]
TopK = Annotated[int, Field(ge=-1, le=MOST)]

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
RepeatPenalty = Annotated[float, Field(ge=1e-3, le=1e3)]
Penalty = Annotated[float, Field(ge=-1e3, le=1e3)]
DryMultiplier = Annotated[float, Field(ge=0.0, le=1e6)]
DryBase = Annotated[float, Field(ge=1.0, le=1e3)]
Mirostat = Annotated[float, Field(ge=0.0, le=1e3)]
RopeBase = Annotated[float, Field(ge=0.0, le=1e12), _zero_or(1.0)]
RopeScale = Annotated[float, Field(ge=0.0, le=1e3), _zero_or(1e-6)]
YarnFactor = Annotated[float, Field(ge=-1e3, le=1e3)]
YarnBeta = Annotated[float, Field(ge=-1e6, le=1e6)]
