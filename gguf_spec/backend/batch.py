"""A batch: the arrays that libllama reads tokens, states and positions from."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gguf_spec.context import Run
from gguf_spec.errors import BackendError

_FLOATS = ctypes.POINTER(ctypes.c_float)
_INTS = ctypes.POINTER(ctypes.c_int32)
_FEW = 8


class _FewRows(NamedTuple):
    """Room for a few rows of states: a ``llama_batch`` over it, itself, and its address."""

    raw: Any
    rows: NDArray[np.float32]
    address: int


class Batch:
    """A ``llama_batch`` over numpy arrays made once: filling it costs half a microsecond."""

    def __init__(self, api: Any, size: int) -> None:
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(4 * size, np.int32)
        self._outputs = np.zeros(size, np.int8)
        self._seqs = np.zeros(size, np.int32)
        self._n_seqs = np.ones(size, np.int32)
        self._seq_pointers = self._seqs.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self._counting = np.arange(size, dtype=np.int32)
        raw = api.llama_batch()
        raw.token = self._tokens.ctypes.data_as(_INTS)
        raw.pos = self._positions.ctypes.data_as(_INTS)
        raw.n_seq_id = self._n_seqs.ctypes.data_as(_INTS)
        raw.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(_INTS))
        raw.logits = self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.raw = raw
        self._api = api
        self._few: dict[tuple[int, bool], _FewRows] = {}
        self._size = size
        self._shape: list[tuple[int, int, int]] = []
        self._token_items = (ctypes.c_int32 * size).from_address(self._tokens.ctypes.data)
        positions = ctypes.c_int32 * (4 * size)
        self._position_items = positions.from_address(self._positions.ctypes.data)

    def fill(self, runs: Sequence[Run]) -> int:
        """Make ``runs`` the batch, one after the other; the number of rows.

        Most batches have the shape of the one before: then sequences and output flags stand, and
        ids and positions are written one by one, which for a few rows costs a tenth of numpy.

        libllama aborts the process on a batch that is too wide, hence the check.
        """
        n, shape = 0, []
        for run in runs:
            run.row = n
            n += len(run.tokens)
            shape.append((run.seq, len(run.tokens), run.n_outputs))
        if n > self._size:
            raise BackendError(f"a batch of {n} rows, the context takes {self._size}")
        if shape != self._shape:
            self._reshape(runs, shape, n)
        tokens, positions = self._token_items, self._position_items
        for run in runs:
            row, start = run.row, run.start
            if len(run.tokens) <= _FEW:
                for i, token in enumerate(run.tokens):
                    tokens[row + i] = token
                    positions[row + i] = start + i
            else:
                end = row + len(run.tokens)
                self._tokens[row:end] = run.tokens
                self._positions[row:end] = self._counting[: end - row] + start
        return n

    def _reshape(self, runs: Sequence[Run], shape: list[tuple[int, int, int]], n: int) -> None:
        """Make ``shape`` that of the batch: (sequence, rows, outputs) of each run."""
        self._shape = []
        for run in runs:
            self._flag(run)
        self._shape = shape
        self.raw.n_tokens = n

    def _flag(self, run: Run) -> None:
        """Write which sequence the rows of ``run`` belong to, and which of them have outputs."""
        end = run.row + len(run.tokens)
        self._seqs[run.row : end] = run.seq
        self._outputs[run.row : end] = 0
        if run.n_outputs:
            self._outputs[end - run.n_outputs : end] = 1

    def with_states(
        self, run: Run, states: NDArray[np.float32], *, with_tokens: bool
    ) -> tuple[Any, object]:
        """A batch of ``run`` alone, each token beside its row of ``states``, or only the rows.

        Shape of ``states``: [tokens, width]. Returned are what libllama takes, and what has to live
        until it has been decoded.
        """
        n = self.fill([run])
        if not with_tokens:
            self._repeat_positions(n)
        if n > _FEW:
            rows = np.ascontiguousarray(states, np.float32)
            raw = self._beside(rows, with_tokens=with_tokens)
        else:
            # Asking numpy for an address costs more than copying a few rows to one that is known.
            few = self._few_rows(states.shape[1], with_tokens)
            raw, rows = few.raw, few.rows
            rows[:n] = states
        raw.n_tokens = n
        return raw, rows

    def steps(self, seq: int, width: int) -> tuple[Any, int, Any, Any]:
        """A batch of one token of ``seq`` with an output beside a state of ``width`` floats: what
        libllama takes, the address of the state, and the items for the token and its position.
        What is written there counts; it stays the batch until another one is filled."""
        shape = [(seq, 1, 1)]
        if self._shape != shape:
            self._reshape([Run(seq, 0, [0], 1)], shape, 1)
        few = self._few_rows(width, True)
        few.raw.n_tokens = 1
        return few.raw, few.address, self._token_items, self._position_items

    def _repeat_positions(self, n: int) -> None:
        """Without tokens, models with several position axes read one section of ``n`` positions
        after the other: for text p, p, p and 0. With one axis the first section alone is read."""
        if n <= _FEW:
            items = self._position_items
            for i in range(n):
                items[n + i] = items[2 * n + i] = items[i]
                items[3 * n + i] = 0
            return
        positions = self._positions
        positions[n : 2 * n] = positions[2 * n : 3 * n] = positions[:n]
        positions[3 * n : 4 * n] = 0

    def _few_rows(self, width: int, with_tokens: bool) -> _FewRows:
        few = self._few.get((width, with_tokens))
        if few is None:
            rows = np.empty((_FEW, width), np.float32)
            raw = self._beside(rows, with_tokens=with_tokens)
            few = self._few[width, with_tokens] = _FewRows(raw, rows, rows.ctypes.data)
        return few

    def _beside(self, rows: NDArray[np.float32], *, with_tokens: bool) -> Any:
        """A ``llama_batch`` over our arrays and ``rows``."""
        raw, ours = self._api.llama_batch(), self.raw
        raw.pos, raw.n_seq_id, raw.seq_id = ours.pos, ours.n_seq_id, ours.seq_id
        raw.logits = ours.logits
        if with_tokens:
            raw.token = ours.token
        raw.embd = rows.ctypes.data_as(_FLOATS)
        return raw
