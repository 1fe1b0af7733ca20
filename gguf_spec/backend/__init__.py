"""libllama through its C interface. Nothing outside this package imports ``llama_cpp``."""

from gguf_spec.backend.breakdown import BufferBytes, MemoryAccount
from gguf_spec.backend.ggml import Device, list_backends, list_devices
from gguf_spec.backend.lib import Lib, load_lib
from gguf_spec.backend.log import recent_log
from gguf_spec.backend.model import LlamaModel, ModelParams
from gguf_spec.backend.params import ContextParams
from gguf_spec.backend.states_context import LlamaContext

__all__ = [
    "BufferBytes",
    "ContextParams",
    "Device",
    "LlamaContext",
    "LlamaModel",
    "Lib",
    "MemoryAccount",
    "ModelParams",
    "list_backends",
    "list_devices",
    "load_lib",
    "recent_log",
]
