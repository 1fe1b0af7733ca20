"""What is asked of the engine, and what a round of it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gguf_spec.sampling import Sampler, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate: at most ``max_tokens`` tokens after ``prompt`` (None: until the context
    is full), drawn as ``sampler`` says; ``ignore_end`` goes on after an end token. ``logprobs``
    asks for log-probabilities, of each token and of so many of the likeliest.

    The engine draws with a ``fresh`` copy of the sampler, so a request may be made again.
    """

    prompt: Sequence[int]
    sampler: Sampler
    max_tokens: int | None = None
    ignore_end: bool = False
    logprobs: int | None = None


class Step(NamedTuple):
    """What a round gave one sequence.

    ``tokens`` are new and final. During prefill they are empty and ``prefilled`` counts the prompt
    tokens done so far. ``finish_reason`` is set on the last step. ``logprobs``: one for each of
    ``tokens`` if the request asks for them.
    """

    seq: int
    tokens: tuple[int, ...] = ()
    n_drafted: int = 0
    n_accepted: int = 0
    source: str | None = None
    prefilled: int = 0
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
