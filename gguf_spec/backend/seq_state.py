"""The whole state of a sequence as bytes: cells, recurrent state, all that libllama needs."""

from __future__ import annotations

import ctypes

from gguf_spec.backend.states_context import LlamaContext
from gguf_spec.errors import BackendError

_WHOLE = 0  # no LLAMA_STATE_SEQ_FLAGS


def dump_state(context: LlamaContext, seq: int) -> bytes:
    """The state of ``seq``.

    Raises:
        BackendError: this libllama does not hand it out.
    """
    api = context.model.lib.api
    _check(context)
    size = api.llama_state_seq_get_size_ext(context.handle, seq, _WHOLE)
    data = (ctypes.c_uint8 * size)()
    written = api.llama_state_seq_get_data_ext(context.handle, data, size, seq, _WHOLE)
    if written != size:
        raise BackendError(f"saving a sequence wrote {written} of {size} bytes")
    return bytes(data)


def put_state(context: LlamaContext, seq: int, data: bytes) -> bool:
    """Fill ``seq`` with what ``dump_state`` gave for a context of the same model and sizes; False
    if libllama does not take it: the sequence is empty then.

    libllama trusts what it reads: ``data`` has to be known to come from ``dump_state``.
    """
    api = context.model.lib.api
    _check(context)
    context.clear(seq)
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    read = api.llama_state_seq_set_data_ext(context.handle, buffer, len(data), seq, _WHOLE)
    if read != len(data):
        context.clear(seq)
        return False
    return True


def _check(context: LlamaContext) -> None:
    if not context.can_save:
        raise BackendError("this libllama cannot save the state of a sequence")
