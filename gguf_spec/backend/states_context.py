"""A context that also reads hidden states, and decodes on them as draft heads do."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend.context import TokenContext
from gguf_spec.context import Run
from gguf_spec.errors import BackendError

_FLOAT = ctypes.sizeof(ctypes.c_float)


class LlamaContext(TokenContext):
    """A context of a model, target or draft head. Implements ``gguf_spec.context.StatesContext``,
    and the contexts that the drafters in ``gguf_spec.drafters`` ask for."""

    @functools.cached_property
    def _state_width(self) -> int:
        return self.model.n_embd_states(mtp=self.params.mtp)

    @functools.cached_property
    def _feature_width(self) -> int:
        return self.model.n_embd_features

    def decode_states(
        self,
        run: Run,
        states: NDArray[np.float32],
        *,
        with_tokens: bool = True,
        head: int | None = None,
    ) -> None:
        """Decode ``run`` on a draft head, each token with its row of ``states``, shape [n, width].

        Without tokens the rows alone are decoded; the ids in ``run`` are not looked at. llama.cpp's
        graphs of EAGLE-3 and DFlash compute every row's logits and states, and copy as many as were
        asked for from the first on: so all rows have outputs, or none. ``head`` chooses among
        several MTP heads, whose graphs compute the rows that were asked for.

        Raises:
            NoSlotError, BackendError: as ``decode``; the shapes do not fit.
        """
        n, width = len(run.tokens), self._state_width
        if states.shape != (n, width):
            raise BackendError(f"states of shape {states.shape}, wanted ({n}, {width})")
        some = head is None and run.n_outputs not in (0, n)
        if some or run.n_outputs > self.max_width:
            raise BackendError(f"{run.n_outputs} rows of logits of {n}, room for {self.max_width}")
        if head is not None:
            self._choose_head(head)
        run.row = 0
        raw, alive = self._batch.with_states(run, states, with_tokens=with_tokens)
        self._compute([run], n, raw)
        del alive

    def draft_on(
        self,
        seq: int,
        position: int,
        limit: int,
        choose: Callable[[NDArray[np.float32]], int | None],
        stride: int = 1,
    ) -> None:
        """Draft up to ``limit`` tokens of ``seq``, from row 0 of the last decode on.

        ``choose`` gives a token for a row of logits, shape [n_vocab], or None to stop. Each one but
        the last is decoded beside the head's own state before it, the first at ``position``, every
        further one ``stride`` later. An end token is the last.

        A step is what ``own_state``, ``decode_states`` and ``logits`` do. It is a loop of its own
        because after a decode no code is left in the processor's caches: what a step costs depends
        on how much different code it runs through.

        Raises:
            NoSlotError, BackendError: as these.
        """
        row, states, views = self.logits(0), self._states, self._views
        handle, decode, logits_at = self.handle, self._decode, self._logits_at
        width, state, own_at = self.model.n_embd_out, states.own_address(0), states.own_place()
        if width != self._state_width:
            raise BackendError(f"own states of width {width}, wanted {self._state_width}")
        raw, place, tokens, positions = self._batch.steps(seq, width)
        states.computed = 1
        while True:
            token = choose(row)
            limit -= 1
            if token is None or limit <= 0 or self.is_end(token):
                return
            tokens[0], positions[0] = token, position
            ctypes.memmove(place, state or states.own_address(0), _FLOAT * width)
            begun = perf_counter()
            result = decode(handle, raw)
            address, state = (0, 0) if result else (logits_at(handle, 0), own_at(0))
            self.busy_seconds += perf_counter() - begun
            if result or self.n_rollback:
                self._note((Run(seq, position, (token,), 1),), 1, result)
                self._synchronized = True
            view = views.get(address)
            row = self._view(address, 0) if view is None else view
            position += stride

    def _choose_head(self, head: int) -> None:
        """Make ``head`` the MTP head of further decodes; libllama aborts on one that is not there.

        Raises:
            BackendError: there is no such head, or this libllama cannot choose.
        """
        if not (self.params.mtp and 0 <= head < self.model.n_layer_nextn):
            raise BackendError(f"{self.model.path.name} has no MTP head {head}")
        if head != self._head:
            self.model.lib.extra("llama_set_nextn_layer_offset")(self.handle, head)
            self._head = head

    def encode(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """What an EAGLE-3 draft makes of the target's states, shape [n, n_embd_features]: rows
        of its own width, shape [n, n_embd_out]; a view, valid until the next call.

        Raises:
            BackendError: the shape does not fit, or the computation failed.
        """
        n, width = len(states), self._feature_width
        if states.shape != (n, width) or not 0 < n <= self.n_ubatch:
            raise BackendError(
                f"states of shape {states.shape}, wanted (1 to {self.n_ubatch}, {width})"
            )
        # The encoder does not use positions, but libllama wants them to continue those cached.
        run = Run(0, self._length(0), [0] * n, n)
        raw, alive = self._batch.with_states(run, states, with_tokens=False)
        place = self._states.encoder_place()
        begun = perf_counter()
        result = self._encode(self.handle, raw)
        address = 0 if result else place()  # waits for the computation
        self.busy_seconds += perf_counter() - begun
        del alive
        if result:
            raise BackendError(f"llama_encode failed with code {result} on {n} rows")
        self._states.computed = n
        return self._states.rows_of_encoder(address, n)

    def states(
        self, layers: Sequence[int], row: int, n: int, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """The hidden states ``layers`` of ``n`` tokens from batch row ``row`` on, side by side;
        see ``StatesContext.states``."""
        if self._handle is None:
            raise BackendError("the context has been closed")
        places = self._states.places(layers, row, n)
        begun = perf_counter()
        addresses = [place() for place in places]  # the first one waits for the computation
        self.busy_seconds += perf_counter() - begun
        self._synchronized = True
        return self._states.rows(layers, addresses, row, n, out)

    def own_state(self, row: int) -> NDArray[np.float32]:
        """A draft head's own state at batch row ``row``, which has logits; shape [n_embd_out], a
        view, valid until the next decode."""
        self._synchronize()
        return self._states.own(row)
