"""The n-gram types by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_counts import read_counts
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.pool import Pool
from gguf_spec.errors import InputError

if TYPE_CHECKING:
    from gguf_spec.profile import Spec


def make_ngram(
    kind: str, spec: Spec, pool: Pool | None = None, *, n_vocab: int | None = None
) -> Drafter:
    """The drafter for spec type ``kind`` with the parameters of its table in ``spec``.

    Raises:
        InputError: ``kind`` is no n-gram type, or a look-up cache file cannot be used.
    """
    if kind == "ngram-cache":
        table = spec.ngram_cache
        static, dynamic = (
            None if name is None else read_counts(Path(name), n_vocab)
            for name in (table.lookup_cache_static, table.lookup_cache_dynamic)
        )
        return NgramCache(table.n_draft, pool, static=static, dynamic=dynamic)
    makers: dict[str, Callable[[], Drafter]] = {
        "ngram-simple": lambda: NgramSimple(
            spec.ngram_simple.size_n, spec.ngram_simple.size_m, pool
        ),
        "ngram-map-k": lambda: NgramMapK(
            spec.ngram_map_k.size_n, spec.ngram_map_k.size_m, spec.ngram_map_k.min_hits, pool
        ),
        "ngram-map-k4v": lambda: NgramMapK4V(
            spec.ngram_map_k4v.size_n, spec.ngram_map_k4v.size_m, spec.ngram_map_k4v.min_hits, pool
        ),
        "ngram-mod": lambda: NgramMod(
            spec.ngram_mod.n_match, spec.ngram_mod.n_min, spec.ngram_mod.n_max, pool
        ),
    }
    if kind not in makers:
        raise _unknown(kind)
    return makers[kind]()


def ngram_ceiling(kind: str, spec: Spec) -> int:
    """The longest draft of spec type ``kind``, in tokens.

    Raises:
        InputError: ``kind`` is no n-gram type.
    """
    ceilings = {
        "ngram-simple": spec.ngram_simple.size_m,
        "ngram-map-k": spec.ngram_map_k.size_m,
        "ngram-map-k4v": spec.ngram_map_k4v.size_m,
        "ngram-mod": spec.ngram_mod.n_max,
        "ngram-cache": spec.ngram_cache.n_draft,
    }
    if kind not in ceilings:
        raise _unknown(kind)
    return ceilings[kind]


def _unknown(kind: str) -> InputError:
    return InputError(
        f"{kind} is no n-gram type",
        hint="n-gram types: ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache",
    )
