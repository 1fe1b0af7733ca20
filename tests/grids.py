"""Parts of grids that are too large to be run whole each time.

A fault shows at a draft length, in a mode, or in a pair of these, for many seeds: not at one seed
in one mode at one length. So each seed goes through a third of the lengths, a different one in each
mode. Every length in every mode is met by a third of the seeds, and every seed meets every length
where there are three modes. ``GGUF_SPEC_FULL_GRIDS=1`` runs the whole product.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_FULL = bool(os.environ.get("GGUF_SPEC_FULL_GRIDS"))
PARTS = 3


def lengths_of(lengths: Sequence[int], seed: int, mode: int) -> Sequence[int]:
    """The draft lengths for ``seed`` in the mode with number ``mode``."""
    return lengths if _FULL else lengths[(seed + mode) % PARTS :: PARTS]
