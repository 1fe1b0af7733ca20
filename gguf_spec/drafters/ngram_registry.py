"""The n-gram types by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_counts import read_counts
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.pool import Pool
from gguf_spec.errors import InputError

AUTO_SIZES = (2, 47)

if TYPE_CHECKING:
    from gguf_spec.profile import Spec


def make_ngram(
    kind: str, spec: Spec, pool: Pool | None = None, *, n_vocab: int | None = None
) -> Drafter:
    """The drafter for spec type ``kind`` with the parameters of its table in ``spec``. Where a
    controller judges drafts, they do not judge themselves.

    Raises:
        InputError: ``kind`` is no n-gram type, or a look-up cache file cannot be used.
    """
    trusting = not spec.control
    if kind == "ngram-cache":
        table = spec.ngram_cache
        static, dynamic = (
            None if name is None else read_counts(Path(name), n_vocab)
            for name in (table.lookup_cache_static, table.lookup_cache_dynamic)
        )
        return NgramCache(table.n_draft, pool, static=static, dynamic=dynamic, trusting=trusting)
    makers: dict[str, Callable[[], Drafter]] = {
        "ngram-simple": lambda: NgramSimple(
            spec.ngram_simple.size_n, spec.ngram_simple.size_m, pool, trusting=trusting
        ),
        "ngram-map-k": lambda: NgramMapK(
            spec.ngram_map_k.size_n,
            spec.ngram_map_k.size_m,
            spec.ngram_map_k.min_hits,
            pool,
            trusting=trusting,
        ),
        "ngram-map-k4v": lambda: NgramMapK4V(
            spec.ngram_map_k4v.size_n,
            spec.ngram_map_k4v.size_m,
            spec.ngram_map_k4v.min_hits,
            pool,
            trusting=trusting,
        ),
        "ngram-mod": lambda: NgramMod(
            spec.ngram_mod.n_match,
            spec.ngram_mod.n_min,
            spec.ngram_mod.n_max,
            pool,
            trusting=trusting,
        ),
    }
    if kind not in makers:
        raise _unknown(kind)
    if kind == "ngram-simple" and _is_automatic(spec):
        return LongestMatch(*_automatic_sizes(spec), pool)
    return makers[kind]()


def ngram_ceiling(kind: str, spec: Spec) -> int:
    """The longest draft of spec type ``kind``, in tokens.

    Raises:
        InputError: ``kind`` is no n-gram type.
    """
    simple = _automatic_sizes(spec)[1] if _is_automatic(spec) else spec.ngram_simple.size_m
    ceilings = {
        "ngram-simple": simple,
        "ngram-map-k": spec.ngram_map_k.size_m,
        "ngram-map-k4v": spec.ngram_map_k4v.size_m,
        "ngram-mod": spec.ngram_mod.n_max,
        "ngram-cache": spec.ngram_cache.n_draft,
    }
    if kind not in ceilings:
        raise _unknown(kind)
    return ceilings[kind]


def _is_automatic(spec: Spec) -> bool:
    """Whether n-gram drafts are nobody's choice and somebody judges them."""
    return spec.types == ("auto",) and spec.control


def _automatic_sizes(spec: Spec) -> tuple[int, int]:
    """``size_n`` and ``size_m`` for ``auto``, where the profile does not set them.

    llama.cpp's 12 and 48 are for drafts that nobody judges. In recorded answers of small models,
    keys of 2 gave more than those of 1, 3 or 4 on costs of CPUs and more than 3 or 4 on a GPU's.
    With the token in front, 47 drafted ones are a batch of 48: on CPUs batches of 64 were seen to
    take other kernels, and their logits then differ in the last digits.
    """
    table = spec.ngram_simple
    return (
        table.size_n if "size_n" in table.model_fields_set else AUTO_SIZES[0],
        table.size_m if "size_m" in table.model_fields_set else AUTO_SIZES[1],
    )


def _unknown(kind: str) -> InputError:
    return InputError(
        f"{kind} is no n-gram type",
        hint="n-gram types: ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache",
    )
