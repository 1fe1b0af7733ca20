"""Sampling as a pure function: which token stands at a position, given logits and what precedes.

A token is drawn by the Gumbel-max rule: add Gumbel noise to the log-probabilities of the candidates
and take the largest. The noise is counter-based, keyed by (seed, position, token id), so there is
no random state to save or to roll back. Plain and speculative decoding therefore draw the same
token from the same logits, and a drafter that is handed the same noise agrees with the target far
more often than an independent draw would.

The order and the meaning of the steps are llama.cpp's (``common_sampler_init`` and the order in
``common_params_sampling``): logit bias, penalties, DRY, top-k, top-p, min-p, XTC, temperature. With
mirostat: logit bias, temperature, mirostat. A mask stands before the first filter, always.

| module | what it does |
|---|---|
| ``params`` | the settings |
| ``noise`` | Gumbel noise from (seed, position, token), in streams for several purposes |
| ``distribution`` | candidates with their probabilities |
| ``maxima`` | the largest of 262,144 logits in a fraction of a pass |
| ``adjust`` | bias, penalties and DRY: logits of some tokens change |
| ``mask`` | what a grammar forbids, and the state that follows the text |
| ``filters`` | top-k, top-p, min-p, XTC, dynamic temperature: some tokens remain |
| ``mirostat`` | filters with a feedback loop, and so state |
| ``sampler`` | all of it in order, and the draw |
| ``logprobs`` | what the model itself thought of a token |
"""

from gguf_spec.sampling.adjust import DRY_BREAKERS
from gguf_spec.sampling.distribution import Distribution, Drawn
from gguf_spec.sampling.filters import candidates, probability
from gguf_spec.sampling.logprobs import TokenLogprob, token_logprob
from gguf_spec.sampling.mask import Mask
from gguf_spec.sampling.maxima import Row
from gguf_spec.sampling.params import SamplingParams
from gguf_spec.sampling.sampler import DraftWay, Sampler

__all__ = [
    "DRY_BREAKERS",
    "Distribution",
    "DraftWay",
    "Drawn",
    "Mask",
    "Row",
    "Sampler",
    "SamplingParams",
    "TokenLogprob",
    "candidates",
    "probability",
    "token_logprob",
]
