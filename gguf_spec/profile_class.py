"""Which settings and which drafting suit a machine and a model: what ``profiles new`` goes by.

The classes are those of the shipped ``base-*`` profiles. The rules for drafting are those that the
shipped profiles follow: the head in the model's own file where it has one; n-grams first, because
they cost nothing; nothing for a mixture of experts that is fast anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from gguf_spec.header import ModelInfo
from gguf_spec.pairing import own_head

GIB = 1 << 30
#: Sizes of GPU memory in GiB that there is a base profile for.
CLASSES = (8, 12, 16, 24, 32, 48)
#: Drivers report a little less than is sold: a card with 24 GB has 23.5 GiB and more.
_REPORTED = 0.95
#: From so many tokens per second on a mixture of experts is left alone: checking several tokens
#: reads the experts of each of them, and what could be gained is small.
FAST_ENOUGH = 100
#: Why n-grams draft where nothing else does.
NGRAMS = (
    "N-grams draft from the text so far: no second model, no extra memory. They help where text "
    "repeats itself (editing, quoting, lists, code) and change nothing elsewhere."
)


def base_for(gpu_bytes: int, *, apple: bool = False) -> str:
    """The base profile for so much GPU memory, in bytes and all GPUs together; 0: there is none.

    >>> base_for(25_300_000_000)
    'base-24gb'
    """
    if apple:
        return "base-mac"
    if gpu_bytes <= 0:
        return "base-cpu"
    fitting = [size for size in CLASSES if size * GIB * _REPORTED <= gpu_bytes]
    return f"base-{max(fitting, default=CLASSES[0])}gb"


def drafting_for(
    target: ModelInfo, types: Sequence[str], tokens_per_second: float | None
) -> tuple[tuple[str, ...], str]:
    """Spec types for ``target`` on its own, and the reason. ``types`` are the base profile's;
    ``tokens_per_second`` is what plain decoding is expected to do, None if nobody knows."""
    n_expert = target.arch_uint("expert_count") or 0
    if n_expert > 1 and tokens_per_second is not None and tokens_per_second > FAST_ENOUGH:
        return ("none",), (
            f"No drafts: with {n_expert} experts, of which a token needs few, about "
            f"{tokens_per_second:.0f} tokens per second are expected here without them. "
            f"--spec-type {','.join((*types, *_own(target)))} tries what they bring."
        )
    if _own(target):
        return (*types, "draft-mtp"), (
            "The model's own MTP layer drafts: it was trained together with the model and is in "
            "the same file. N-grams are asked first because they cost nothing."
        )
    return tuple(types), NGRAMS


def _own(target: ModelInfo) -> tuple[str, ...]:
    return ("draft-mtp",) if own_head(target).usable else ()
