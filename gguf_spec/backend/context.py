"""A context: the cache of a model, and the logits that it computes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend.batch import Batch
from gguf_spec.backend.breakdown import MemoryAccount, logged_bytes, memory_breakdown, size_lines
from gguf_spec.backend.log import LOG, captured_stderr
from gguf_spec.backend.model import LlamaModel, load_error
from gguf_spec.backend.params import ContextParams, batch_rows, raw_context_params
from gguf_spec.backend.states import HiddenStates
from gguf_spec.context import NoSlotError, Run
from gguf_spec.errors import BackendError
from gguf_spec.hidden_states import ASSISTANT_ARCH, HEAD_ARCHS

_STATE_CALLS = ("get_size", "get_data", "set_data")
_MOST_VIEWS = 1024
_Context = TypeVar("_Context", bound="TokenContext")
_PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class TokenContext:
    """A context of ``model`` that decodes tokens: what ``LlamaContext`` is but for hidden states.
    Implements ``gguf_spec.context.ModelContext``.

    Raises (constructor):
        BackendError: libllama could not make the context.
        NoFitError: there was not enough memory.
    """

    def __init__(self, model: LlamaModel, params: ContextParams) -> None:
        self.model = model
        self.params = params
        self.n_vocab = model.n_vocab
        self.n_ctx = params.n_ctx
        self.n_seq_max = params.n_seq_max
        self.max_width = params.max_width
        self.n_ubatch = params.n_ubatch
        self.n_batch = batch_rows(params)
        self.busy_seconds = 0.0
        self.n_rollback = 0
        self._api = model.lib.api
        self._handle: int | None = self._make()
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        params, api, handle = self.params, self._api, self.handle
        self._memory = api.llama_get_memory(handle)
        # libllama may settle for less than it was asked for, and aborts on a batch of more.
        self.n_batch = min(self.n_batch, int(api.llama_n_batch(handle)))
        self.n_ubatch = min(self.n_ubatch, int(api.llama_n_ubatch(handle)), self.n_batch)
        self._batch = Batch(api, self.n_batch)
        # Rows that see each other have to be computed together.
        self._most_rows = self.n_batch if params.causal else self.n_ubatch
        self._states = HiddenStates(self.model, handle, params.layers, own=params.own_states)
        self._row_type = ctypes.c_float * self.n_vocab
        self._end_tokens: dict[int, bool] = {}
        self._last_width: dict[int, int] = {}
        self.saved_bytes = 0
        """How large the last state was that ``save`` gave."""
        self._n_swa = 0 if params.swa_full else self.model.n_swa
        self._synchronized = True
        self._head = 0
        self._decode = api.llama_decode
        self._encode = api.llama_encode
        self._newest = api.llama_memory_seq_pos_max
        self._remove = api.llama_memory_seq_rm
        # Addresses as plain integers: a ctypes pointer object costs more than the call itself.
        address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        self._logits_at = address(ctypes.cast(api.llama_get_logits_ith, ctypes.c_void_p).value or 0)
        self._views: dict[int | None, NDArray[np.float32]] = {}
        if not params.causal:
            api.llama_set_causal_attn(handle, False)
        if params.n_rs_seq:
            self.n_rollback = int(api.llama_n_rs_seq(handle))
        self.removes_tail = not self.n_rollback and self._probe_removal()

    @property
    def handle(self) -> int:
        """The pointer that libllama wants.

        Raises:
            BackendError: the context has been closed.
        """
        if self._handle is None:
            raise BackendError("the context has been closed")
        return self._handle

    @property
    def has_window(self) -> bool:
        """Whether the cache gives up cells behind a sliding window."""
        return self._n_swa > 0

    @property
    def can_save(self) -> bool:
        """Whether ``save`` and ``restore`` work with this libllama."""
        return all(self.model.lib.has(f"llama_state_seq_{name}_ext") for name in _STATE_CALLS)

    def decode(self, runs: Sequence[Run]) -> None:
        """Compute the rows of ``runs``; see ``ModelContext.decode``."""
        for run in runs:
            # More flagged rows than the context has room for would abort the process.
            if run.n_outputs > self.max_width:
                raise BackendError(f"{run.n_outputs} rows of logits, room for {self.max_width}")
        self._compute(runs, self._batch.fill(runs), self._batch.raw)

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of batch row ``row``; see ``ModelContext.logits``."""
        handle = self._handle or self.handle
        if self._synchronized:
            address = self._logits_at(handle, row)
        else:
            begun = perf_counter()
            address = self._logits_at(handle, row)  # waits for the computation
            self.busy_seconds += perf_counter() - begun
            self._synchronized = True
        view = self._views.get(address)
        return self._view(address, row) if view is None else view

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""
        end = self._end_tokens.get(token)
        if end is None:
            end = self._end_tokens[token] = self.model.is_end(token)
        return end

    def remove(self, seq: int, start: int) -> bool:
        """Drop the tail of ``seq``; see ``ModelContext.remove``.

        With sliding-window attention the cache may have given up cells that the token at ``start``
        would look at; then nothing is removed (llama-server's rule for reusing a prompt).
        """
        if self._n_swa and start > 0:
            first = self._api.llama_memory_seq_pos_min(self._memory, seq)
            if first > max(start - self._n_swa, 0):
                return False
        if self.n_rollback and start > 0:
            # A decode of n tokens leaves n states behind, its last ones; libllama does not know
            # that the snapshots behind them are older, and would go back to a wrong one.
            back = self._length(seq) - start
            if back >= self._last_width.get(seq, 0) and back > 0:
                return False
            self._last_width[seq] = 0 if back > 0 else self._last_width.get(seq, 0)
        begun = perf_counter()  # the longer the context, the more cells are looked at
        removed = self._remove(self._memory, seq, start, -1)
        self.busy_seconds += perf_counter() - begun
        return bool(removed)

    def save(self, seq: int) -> object:
        """A checkpoint of what cannot be cut back: recurrent state, sliding windows."""
        api = self._api
        if not self.can_save:
            raise BackendError("this libllama cannot save the state of a sequence")
        begun = perf_counter()
        size = api.llama_state_seq_get_size_ext(self.handle, seq, _PARTIAL_ONLY)
        data = (ctypes.c_uint8 * size)()
        written = api.llama_state_seq_get_data_ext(self.handle, data, size, seq, _PARTIAL_ONLY)
        self.busy_seconds += perf_counter() - begun
        if written != size:
            raise BackendError(f"saving a sequence wrote {written} of {size} bytes")
        self.saved_bytes = int(size)
        return self._length(seq), data

    def restore(self, seq: int, checkpoint: object) -> None:
        """Put ``seq`` back to ``checkpoint``."""
        assert isinstance(checkpoint, tuple)
        length, data = checkpoint
        begun = perf_counter()
        read = self._api.llama_state_seq_set_data_ext(
            self.handle, data, len(data), seq, _PARTIAL_ONLY
        )
        # The partial state leaves the attention cells alone; those can be cut back.
        removed = self._api.llama_memory_seq_rm(self._memory, seq, length, -1)
        self._last_width[seq] = 0
        self.busy_seconds += perf_counter() - begun
        if read != len(data) or not removed:
            raise BackendError(f"restoring a sequence read {read} of {len(data)} bytes")

    def set_loras(self, adapters: Sequence[tuple[int, float]]) -> None:
        """Apply LoRA adapters, as (from ``LlamaModel.load_lora``, scale), in place of earlier ones.

        Raises:
            BackendError: libllama refused.
        """
        n = len(adapters)
        pointers = (ctypes.c_void_p * max(n, 1))(*(handle for handle, _ in adapters))
        kind = ctypes.POINTER(self._api.llama_adapter_lora_p_ctypes)
        handles = ctypes.cast(pointers, kind)
        scales = (ctypes.c_float * max(n, 1))(*(scale for _, scale in adapters))
        if self._api.llama_set_adapters_lora(self.handle, handles, n, scales):
            raise BackendError(f"libllama refused {n} LoRA adapters")

    def memory_breakdown(self) -> MemoryAccount:
        """How many bytes of the model and this context lie in which buffers now. Reading hidden
        states makes the compute buffers grow with the first decode."""
        try:
            return MemoryAccount(tuple(memory_breakdown(self.model.lib, self.handle)), True)
        except BackendError:
            lines = [*self.model.logged_sizes, *size_lines(self._mark)]
            return MemoryAccount(tuple(logged_bytes(lines)[0]), False)

    def clear(self, seq: int) -> None:
        """Drop all tokens of ``seq``."""
        self._api.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def close(self) -> None:
        """Free the context. Further calls do nothing."""
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None

    def __enter__(self: _Context) -> _Context:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _compute(self, runs: Sequence[Run], n: int, raw: Any) -> None:
        """``llama_decode`` of the batch ``raw``, which holds ``runs``: ``n`` rows."""
        if n > self._most_rows:
            raise BackendError(f"{n} rows that see each other, at most {self._most_rows} can be")
        handle = self._handle or self.handle
        begun = perf_counter()
        result = self._decode(handle, raw)
        self.busy_seconds += perf_counter() - begun
        self._note(runs, n, result)

    def _note(self, runs: Sequence[Run], n: int, result: int) -> None:
        """Keep track of a decode of ``n`` rows that returned ``result``; raise if it failed."""
        self._synchronized = False
        self._states.computed = 0 if result else n
        if self.n_rollback:
            for run in runs:
                self._last_width[run.seq] = 0 if result else len(run.tokens)
        if result == 1:
            raise NoSlotError(f"the cache has no room for {n} tokens")
        if result:
            raise BackendError(
                f"llama_decode failed with code {result} on {n} tokens",
                hint="--debug shows what llama.cpp said",
            )

    def _synchronize(self) -> None:
        if not self._synchronized:
            begun = perf_counter()
            self._api.llama_synchronize(self.handle)
            self.busy_seconds += perf_counter() - begun
            self._synchronized = True

    def _view(self, address: int | None, row: int) -> NDArray[np.float32]:
        """A new view of a row of logits. libllama's buffer stays where it is for many decodes, and
        making a view costs more than all else here, so views are kept."""
        if not address:
            raise BackendError(f"there are no logits for row {row}")
        if len(self._views) > _MOST_VIEWS:
            self._views.clear()
        buffer: Any = self._row_type.from_address(address)
        view = self._views[address] = np.frombuffer(buffer, np.float32)
        return view

    def _length(self, seq: int) -> int:
        return int(self._newest(self._memory, seq)) + 1

    def _make(self) -> int:
        p = self.params
        raw = raw_context_params(self._api, p)
        if p.mtp:
            problem = self.model.mtp_problem()
            if problem is not None:
                raise BackendError(problem)
        if p.other is not None:
            if self.model.arch == ASSISTANT_ARCH:
                self._check_lender(p.other)
            raw.ctx_other = p.other.handle
        mark = self._mark = LOG.mark()
        with captured_stderr():
            handle = self._api.llama_init_from_model(self.model.handle, raw)
        if not handle:
            raise load_error(f"libllama could not make a context of {p.n_ctx} tokens", mark)
        return int(handle)

    def _check_lender(self, other: TokenContext) -> None:
        """Refuse a target whose cache an assistant cannot share: libllama empties the list of its
        cells when the assistant's context is made, and sizes it for that context's sequences.

        Raises:
            BackendError: as said.
        """
        if other.n_seq_max != self.n_seq_max:
            raise BackendError(
                f"an assistant for {self.n_seq_max} sequences, its target has {other.n_seq_max}"
            )
        if any(other._length(seq) for seq in range(other.n_seq_max)):
            raise BackendError("an assistant needs its target's cache to be empty at first")

    def _probe_removal(self) -> bool:
        """Whether the memory can drop a sequence's tail: decode two tokens, drop one.

        A recurrent state cannot, and says so by returning False without changing anything. The
        contexts of draft heads are plain attention, and do not decode tokens alone.
        """
        if self.params.mtp or self.model.arch in HEAD_ARCHS:
            return True
        token = self.model.bos if self.model.bos >= 0 else 0
        self.decode([Run(0, 0, [token, token], 0)])
        self._api.llama_synchronize(self.handle)
        removes = bool(self._api.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self._api.llama_memory_clear(self._memory, True)
        self.busy_seconds, self._states.computed = 0.0, 0
        return removes
