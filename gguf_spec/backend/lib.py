"""Loading libllama, and finding out whether it is one that we know.

Everything is looked up once, by name. What we cannot do without raises a BackendError; what only
some features need is left out and named in ``Lib.missing``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gguf_spec.backend import symbols
from gguf_spec.backend.log import LOG, captured_stderr
from gguf_spec.errors import BackendError

SUPPORTED = "llama-cpp-python >=0.3.36,<0.4"

# Value: the feature that is off without the symbol.
OPTIONAL = {
    "llama_model_n_swa": "prefix reuse with sliding-window attention",
    "llama_state_seq_get_size_ext": "checkpoints of recurrent state",
    "llama_state_seq_get_data_ext": "checkpoints of recurrent state",
    "llama_state_seq_set_data_ext": "checkpoints of recurrent state",
    "llama_print_system_info": "listing of CPU features",
}
REQUIRED = (
    "llama_backend_init",
    "llama_model_default_params",
    "llama_context_default_params",
    "llama_model_load_from_file",
    "llama_model_free",
    "llama_init_from_model",
    "llama_free",
    "llama_get_memory",
    "llama_n_batch",
    "llama_n_ubatch",
    "llama_memory_clear",
    "llama_memory_seq_rm",
    "llama_memory_seq_pos_min",
    "llama_memory_seq_pos_max",
    "llama_decode",
    "llama_synchronize",
    "llama_get_logits_ith",
    "llama_set_n_threads",
    "llama_model_get_vocab",
    "llama_vocab_n_tokens",
    "llama_vocab_is_eog",
    "llama_vocab_is_control",
    "llama_tokenize",
    "llama_token_to_piece",
    "llama_log_set",
)


@dataclass
class Lib:
    """libllama's functions (``api.llama_…``), its version, and the features it lacks."""

    api: ModuleType
    version: str
    missing: dict[str, str] = field(default_factory=dict)
    _keep: list[Any] = field(default_factory=list)
    _extra: dict[str, Any] = field(default_factory=dict)

    def has(self, symbol: str) -> bool:
        """Whether the optional ``symbol`` is there."""
        return symbol not in self.missing

    def extra(self, name: str) -> Any:
        """The function ``name`` of llama-ext.h, looked up when it is first wanted.

        Raises:
            BackendError: this libllama does not have it.
        """
        function = self._extra.get(name)
        if function is None and self.has(name):
            function = self._extra[name] = symbols.find(self.api, name)
        if function is None:
            raise BackendError(
                f"llama-cpp-python {self.version} does not export {name}: "
                f"{symbols.SYMBOLS[name].feature} is not available",
                hint=f"install a supported version: pip install '{SUPPORTED.replace(' ', '')}'",
            )
        return function


@functools.cache
def load_lib() -> Lib:
    """Import llama-cpp-python, check it, and take over its log.

    Raises:
        BackendError: it is not installed, does not load, or is not a version that we know.
    """
    try:
        with captured_stderr():
            import llama_cpp
            from llama_cpp import llama_cpp as api
    except Exception as error:
        # A broken shared library raises whatever the loader raises: OSError, RuntimeError, …
        raise BackendError(
            f"llama-cpp-python does not load: {error}",
            hint=f"install it again: pip install --force-reinstall '{SUPPORTED.replace(' ', '')}'",
        ) from error
    lib = Lib(api, str(getattr(llama_cpp, "__version__", "unknown")))
    self_test(lib)
    lib.missing.update(symbols.absent(api))
    callback = api.llama_log_callback(lambda level, text, _: LOG.write(level, text))
    lib._keep.append(callback)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    # libllama may speak while the process ends, when there is no Python left to call.
    silent = api.llama_log_callback()  # a null function
    atexit.register(api.llama_log_set, silent, ctypes.c_void_p(0))
    with captured_stderr():
        api.llama_backend_init()
    return lib


def self_test(lib: Lib) -> None:
    """Compare symbols and structures with what this program was written for.

    A libllama with another structure layout would read our parameters from the wrong places. Its
    defaults, read through our layout, tell: they are distinct and stand at both ends.

    Raises:
        BackendError: something that we cannot do without is missing or different.
    """
    api = lib.api
    absent = [name for name in REQUIRED if not hasattr(api, name)]
    if absent:
        raise _unknown(lib, f"it lacks {', '.join(absent)}")
    lib.missing.update({s: f for s, f in OPTIONAL.items() if not hasattr(api, s)})
    model, context = api.llama_model_default_params(), api.llama_context_default_params()
    for name, values, expected in (
        (
            "llama_model_params",
            (model.n_gpu_layers, model.split_mode, model.use_extra_bufts, model.no_alloc),
            (-1, 1, True, False),
        ),
        (
            "llama_context_params",
            (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max),
            (512, 2048, 512, 1),
        ),
        (
            "llama_context_params",
            (context.flash_attn_type, context.type_k, context.type_v, context.yarn_ext_factor),
            (-1, 1, 1, -1.0),
        ),
        (
            "llama_context_params",
            (context.embeddings, context.offload_kqv, context.op_offload, context.n_samplers),
            (False, True, True, 0),
        ),
    ):
        if values != expected:
            raise _unknown(lib, f"the layout of {name} differs ({values} instead of {expected})")


def _unknown(lib: Lib, what: str) -> BackendError:
    return BackendError(
        f"llama-cpp-python {lib.version} is not a version that gguf-spec knows: {what}",
        hint=f"install a supported one: pip install '{SUPPORTED.replace(' ', '')}'",
    )
