"""Hidden states in libllama's memory, as arrays.

libllama aborts the process, or reads past its buffers, where a state is asked for that was not
switched on or not computed. So everything is checked here first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend.model import LlamaModel
from gguf_spec.errors import BackendError
from gguf_spec.hidden_states import NEXTN, state_problem

Rows = NDArray[np.float32]


class HiddenStates:
    """The states of one context.

    ``layers`` (ids as in ``hidden_states``) are kept for every row of a batch. ``own`` instead
    keeps the last state of rows with logits, which is how draft heads are read. Switching states
    on changes the graph and its buffers, so it happens once, before the first decode.

    Raises (constructor):
        BackendError: libllama does not hand these states out.
    """

    def __init__(
        self, model: LlamaModel, context: int, layers: Sequence[int], *, own: bool
    ) -> None:
        self._model = model
        self._context = context
        self._layers = frozenset(layers)
        self._own = own
        self._views: dict[tuple[int, int, int], Rows] = {}
        self._places: dict[tuple[int, ...], list[Callable[[], int]]] = {}
        self.computed = 0
        """Rows of the last batch."""
        if own and NEXTN in self._layers:
            raise BackendError(
                "a context keeps its last states of all rows, or of those with logits"
            )
        if model.arch not in _OWN_LAYERS:
            problem = state_problem(model.arch, model.n_layer, layers)
            if problem is not None:
                raise BackendError(problem)
        extra = model.lib.extra
        for layer in sorted(self._layers - {NEXTN}):
            extra("llama_set_embeddings_layer_inp")(context, layer, True)
        if own or NEXTN in self._layers:
            extra("llama_set_embeddings_nextn")(context, True, own)
        self._extra = extra
        self._own_at = extra("llama_get_embeddings_nextn_ith") if own else None

    def places(self, layers: Sequence[int], row: int, n: int) -> list[Callable[[], int]]:
        """What tells where the states of each of ``layers`` of the last batch lie, when it is
        called, which waits for the computation; for ``rows``.

        Raises:
            BackendError: they are not switched on, or the batch had no such rows.
        """
        key = tuple(layers)
        places = self._places.get(key)
        if places is None:
            for layer in layers:
                if layer not in self._layers:
                    raise BackendError(f"the states of layer {layer} are not switched on")
            places = self._places[key] = [self._place(layer) for layer in layers]
        if not 0 <= row <= row + n <= self.computed:
            raise BackendError(f"states of rows {row} to {row + n - 1}, computed: {self.computed}")
        return places

    def rows(
        self,
        layers: Sequence[int],
        addresses: Sequence[int],
        row: int,
        n: int,
        out: Rows | None = None,
    ) -> Rows:
        """States of ``n`` rows from ``row`` on, shape [n, widths of ``layers`` summed]: a copy, in
        ``out`` if that is given. ``addresses`` are those of the layers."""
        parts, total = [], 0
        for layer, address in zip(layers, addresses, strict=True):
            if not address:
                raise BackendError(f"libllama has no states of layer {layer}")
            width = self._model.n_embd_out if layer == NEXTN else self._model.n_embd
            parts.append(self._view(address + _FLOAT * row * width, n, width))
            total += width
        if out is None:
            out = np.empty((n, total), np.float32)
        elif out.shape != (n, total):
            raise BackendError(f"states of shape ({n}, {total}), room for {out.shape}")
        end = 0
        for part in parts:
            start, end = end, end + part.shape[1]
            out[:, start:end] = part
        return out

    def own(self, row: int) -> Rows:
        """The last state of batch row ``row``, which has logits: shape [n_embd_out], a view."""
        state: Rows = self._view(self.own_address(row), 1, self._model.n_embd_out)[0]
        return state

    def own_place(self) -> Callable[[int], int]:
        """What gives ``own_address`` of a row that is known to be there."""
        if self._own_at is None:
            raise BackendError("the context does not keep states of its own")
        return partial(self._own_at, self._context)

    def own_address(self, row: int) -> int:
        """Where that state lies until the next decode: n_embd_out floats."""
        if self._own_at is None:
            raise BackendError("the context does not keep states of its own")
        address = self._own_at(self._context, row) if 0 <= row < self.computed else None
        if not address:
            raise BackendError(f"there is no state of row {row}")
        return int(address)

    def encoder_place(self) -> Callable[[], int]:
        """What tells where the rows of an encoder lie, when it is called after ``llama_encode``,
        which waits for the computation; for ``rows_of_encoder``."""
        if not self._own:
            raise BackendError("the context does not keep states of its own")
        return self._place(NEXTN)

    def rows_of_encoder(self, address: int, n: int) -> Rows:
        """What the last ``llama_encode`` of ``n`` rows left: shape [n, n_embd_out], a view."""
        if not address:
            raise BackendError("libllama has no rows of the encoder")
        return self._view(address, n, self._model.n_embd_out)

    def _place(self, layer: int) -> Callable[[], int]:
        if layer == NEXTN:
            return partial(self._extra("llama_get_embeddings_nextn"), self._context)
        return partial(self._extra("llama_get_embeddings_layer_inp"), self._context, layer)

    def _view(self, address: int, n: int, width: int) -> Rows:
        """``n`` rows of ``width`` floats from ``address`` on. Views are kept: libllama's buffers
        stay where they are for many decodes, and making a view costs more than using it."""
        key = address, n, width
        view = self._views.get(key)
        if view is None:
            if len(self._views) > _MOST_VIEWS:
                self._views.clear()
            buffer: Any = (ctypes.c_float * (n * width)).from_address(address)
            view = self._views[key] = np.frombuffer(buffer, np.float32).reshape(n, width)
        return view


# DFlash drafts with a selector hand out a lattice where other models have their last state.
_OWN_LAYERS = frozenset(["dflash"])

_FLOAT = ctypes.sizeof(ctypes.c_float)
_MOST_VIEWS = 1024
