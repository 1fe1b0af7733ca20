"""libllama through its C interface. Nothing outside this package imports ``llama_cpp``.

What is named here is imported when it is asked for: a plan wants ggml's devices alone, and a
context brings numpy and llama-cpp-python with it, which take longer than the plan.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf_spec.backend.breakdown import BufferBytes, MemoryAccount
    from gguf_spec.backend.ggml import Device, list_backends, list_devices, system_info
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
    "system_info",
]
_MODULES = {
    "breakdown": ("BufferBytes", "MemoryAccount"),
    "ggml": ("Device", "list_backends", "list_devices", "system_info"),
    "lib": ("Lib", "load_lib"),
    "log": ("recent_log",),
    "model": ("LlamaModel", "ModelParams"),
    "params": ("ContextParams",),
    "states_context": ("LlamaContext",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
