"""A context: the cache of a model, and the logits that it computes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend.log import LOG, captured_stderr
from gguf_spec.backend.model import LlamaModel, load_error
from gguf_spec.context import NoSlotError, Run
from gguf_spec.errors import BackendError

# ggml's type numbers for what a KV cache may be stored in (ggml.h, enum ggml_type).
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_STATE_CALLS = ("get_size", "get_data", "set_data")
_PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How large a context is and how it computes.

    ``n_ctx`` is per sequence. ``max_width`` is the most rows with logits that one sequence may have
    in one decode, draft included: it sizes the logits buffers. ``rope`` holds llama.cpp's
    ``rope_…`` and ``yarn_…`` fields that differ from the model's own.
    """

    n_ctx: int
    n_seq_max: int = 1
    n_batch: int = 2048
    n_ubatch: int = 512
    max_width: int = 1
    n_threads: int = 1
    n_threads_batch: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = False
    rope: tuple[tuple[str, float], ...] = ()


class LlamaContext:
    """A context of ``model``. Implements ``gguf_spec.context.ModelContext``.

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
        self.n_batch = max(params.n_batch, params.n_ubatch + params.n_seq_max * params.max_width)
        self.busy_seconds = 0.0
        self._api = model.lib.api
        self._handle: int | None = self._make()
        self._memory = self._api.llama_get_memory(self._handle)
        self._batch = _Batch(self._api, self.n_batch)
        self._row_type = ctypes.c_float * self.n_vocab
        self._end_tokens: dict[int, bool] = {}
        self._n_swa = 0 if params.swa_full else model.n_swa
        self._synchronized = True
        self._decode, self._logits_ith = self._api.llama_decode, self._api.llama_get_logits_ith
        self.removes_tail = self._probe_removal()

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
    def can_save(self) -> bool:
        """Whether ``save`` and ``restore`` work with this libllama."""
        return all(self.model.lib.has(f"llama_state_seq_{name}_ext") for name in _STATE_CALLS)

    def decode(self, runs: Sequence[Run]) -> None:
        """Compute the rows of ``runs``; see ``ModelContext.decode``."""
        batch = self._batch
        n = 0
        for run in runs:
            # More flagged rows than the context has room for would abort the process.
            if run.n_outputs > self.max_width:
                raise BackendError(f"{run.n_outputs} rows of logits, room for {self.max_width}")
            run.row = n
            n = batch.add(n, run)
        batch.raw.n_tokens = n
        begun = perf_counter()
        result = self._decode(self.handle, batch.raw)
        self.busy_seconds += perf_counter() - begun
        self._synchronized = False
        if result == 1:
            raise NoSlotError(f"the cache has no room for {n} tokens")
        if result:
            raise BackendError(
                f"llama_decode failed with code {result} on {n} tokens",
                hint="--debug shows what llama.cpp said",
            )

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of batch row ``row``; see ``ModelContext.logits``."""
        if not self._synchronized:
            begun = perf_counter()
            self._api.llama_synchronize(self.handle)
            self.busy_seconds += perf_counter() - begun
            self._synchronized = True
        pointer = self._logits_ith(self.handle, row)
        if not pointer:
            raise BackendError(f"there are no logits for row {row}")
        address = ctypes.addressof(pointer.contents)
        buffer: Any = self._row_type.from_address(address)
        return np.frombuffer(buffer, np.float32)

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
        return bool(self._api.llama_memory_seq_rm(self._memory, seq, start, -1))

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

    def clear(self, seq: int) -> None:
        """Drop all tokens of ``seq``."""
        self._api.llama_memory_seq_rm(self._memory, seq, -1, -1)

    def close(self) -> None:
        """Free the context. Further calls do nothing."""
        if self._handle is not None:
            self._api.llama_free(self._handle)
            self._handle = None

    def __enter__(self) -> LlamaContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _length(self, seq: int) -> int:
        return int(self._api.llama_memory_seq_pos_max(self._memory, seq)) + 1

    def _make(self) -> int:
        p = self.params
        raw = self._api.llama_context_default_params()
        raw.n_ctx = p.n_ctx * p.n_seq_max
        raw.n_seq_max = p.n_seq_max
        raw.n_batch, raw.n_ubatch = self.n_batch, p.n_ubatch
        raw.n_outputs_max = p.n_seq_max * p.max_width
        raw.n_outputs_max_per_seq = p.max_width
        raw.n_threads, raw.n_threads_batch = p.n_threads, p.n_threads_batch
        raw.type_k, raw.type_v = KV_TYPES[p.type_k], KV_TYPES[p.type_v]
        raw.flash_attn_type = _FLASH_ATTN[p.flash_attn]
        raw.swa_full = p.swa_full
        raw.no_perf = True
        for name, value in p.rope:
            setattr(raw, name, value)
        mark = len(LOG.lines)
        with captured_stderr():
            handle = self._api.llama_init_from_model(self.model.handle, raw)
        if not handle:
            raise load_error(f"libllama could not make a context of {p.n_ctx} tokens", mark)
        return int(handle)

    def _probe_removal(self) -> bool:
        """Whether the memory can drop a sequence's tail: decode two tokens, drop one.

        A recurrent state cannot, and says so by returning False without changing anything.
        """
        token = self.model.bos if self.model.bos >= 0 else 0
        self.decode([Run(0, 0, [token, token], 0)])
        self._api.llama_synchronize(self.handle)
        removes = bool(self._api.llama_memory_seq_rm(self._memory, 0, 1, -1))
        self._api.llama_memory_clear(self._memory, True)
        self.busy_seconds = 0.0
        return removes


class _Batch:
    """A ``llama_batch`` over numpy arrays made once: filling it costs half a microsecond."""

    def __init__(self, api: object, size: int) -> None:
        self._tokens = np.zeros(size, np.int32)
        self._positions = np.zeros(size, np.int32)
        self._outputs = np.zeros(size, np.int8)
        self._seqs = np.zeros(size, np.int32)
        self._n_seqs = np.ones(size, np.int32)
        self._seq_pointers = self._seqs.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self._counting = np.arange(size, dtype=np.int32)
        raw = api.llama_batch()  # type: ignore[attr-defined]
        raw.token = self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        raw.pos = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        raw.n_seq_id = self._n_seqs.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        raw.seq_id = self._seq_pointers.ctypes.data_as(
            ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        )
        raw.logits = self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.raw = raw

    def add(self, at: int, run: Run) -> int:
        """Write ``run`` from row ``at`` on; the row after it.

        libllama aborts the process on a batch that is too wide, hence the check.
        """
        end = at + len(run.tokens)
        if end > len(self._tokens):
            raise BackendError(f"a batch of {end} rows, the context takes {len(self._tokens)}")
        tokens = self._tokens[at:end]
        tokens[:] = run.tokens
        self._positions[at:end] = self._counting[: end - at] + run.start
        self._seqs[at:end] = run.seq
        self._outputs[at:end] = 0
        if run.n_outputs:
            self._outputs[end - run.n_outputs : end] = 1
        return end
