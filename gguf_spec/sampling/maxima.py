"""The largest of very many logits, found without comparing or sorting all of them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gguf_spec.sampling.noise import Ids

Row: TypeAlias = NDArray[np.float32]

# Number of columns. With 262,144 logits the pass for the maxima costs 32 µs, a scan for one number
# as a limit 70 µs, and np.partition 2 ms.
_COLUMNS = 1024
# So many more than are wanted are sorted as they are; of more, the smallest are set aside first.
_SORTED = 256
# Shorter rows are looked at as a whole.
_SMALL = 4 * _COLUMNS


class Maxima:
    """A row of logits with the maxima of its columns, if it is laid out in lines of 1024.

    The k-th largest maximum is a lower limit of the k-th largest logit, because k different columns
    hold a logit that reaches it. So the k largest lie in the few columns whose maximum reaches it.

    ``peak`` is the largest logit; NaN if any logit is.
    """

    __slots__ = ("_columns", "_table", "peak", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        n_vocab = len(row)
        if n_vocab < _SMALL:
            self._columns: Row | None = None
            self.peak = float(row.max())
            return
        n_table = n_vocab - n_vocab % _COLUMNS
        self._table = row[:n_table].reshape(-1, _COLUMNS)
        columns = np.maximum.reduce(self._table, axis=0)
        # The last line is not a full one.
        rest = row[n_table:]
        np.maximum(columns[: len(rest)], rest, out=columns[: len(rest)])
        self._columns = columns
        self.peak = float(columns.max())

    def reaching(self, floor: float) -> Ids:
        """Ids of the logits that reach ``floor`` (rounded to float32), ascending."""
        limit = np.float32(floor)
        if self._columns is None:
            return _where(self.row >= limit)
        columns = _where(self._columns >= limit)
        n_columns = len(columns)
        if 4 * n_columns > _COLUMNS:
            return _where(self.row >= limit)
        if not n_columns:
            return columns
        found = _where((self._table.take(columns, axis=1) >= limit).ravel())
        lines, columns_found = np.divmod(found, n_columns)
        ids: Ids = lines * _COLUMNS + columns[columns_found]
        n_table = self._table.size
        rest = _where(self.row[n_table:] >= limit)
        return np.concatenate((ids, rest + n_table)) if len(rest) else ids

    def largest(self, k: int) -> Ids:
        """Ids of the ``k`` largest logits in falling order, of equal ones the lowest ids first."""
        row = self.row
        ids: Ids
        if k >= len(row):
            return np.argsort(-row, kind="stable")
        columns = self._columns
        # Too many maxima would be below the limit for it to be near the k-th largest logit.
        if columns is not None and 2 * k <= _COLUMNS:
            ids = self.reaching(float(_kth(columns, k)))
            values = row[ids]
            if len(ids) > _SORTED + k:
                ids = ids[_reaching_kth(values, k)]
                values = row[ids]
        else:
            ids = _reaching_kth(row, k)
            values = row[ids]
        return ids[(-values).argsort(kind="stable")[:k]]


def _reaching_kth(values: Row, k: int) -> Ids:
    """Indices of those that reach the ``k``-th largest, ascending."""
    return _where(values >= _kth(values, k))


def _kth(values: Row, k: int) -> np.float32:
    """The ``k``-th largest."""
    at = len(values) - k
    parted = values.copy()
    parted.partition(at)  # np.partition does the same in twice the time, if there are few
    limit: np.float32 = parted[at]
    return limit


def _where(mask: NDArray[np.bool_]) -> Ids:
    found: Ids = mask.nonzero()[0]
    return found
