"""ggml's devices and buffer types, which lie in libraries beside libllama."""

from __future__ import annotations

import ctypes
import functools
import pathlib
from dataclasses import dataclass
from typing import Any

from gguf_spec.backend.lib import load_lib
from gguf_spec.errors import BackendError, InputError

# enum ggml_backend_dev_type in ggml-backend.h
_DEVICE_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}


class _Override(ctypes.Structure):
    """llama.h, struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp computes on. Sizes in bytes; ``kind`` is cpu, gpu,
    igpu (shares the host's memory), accel or meta."""

    name: str
    description: str
    kind: str
    total: int
    free: int


def list_devices() -> list[Device]:
    """The devices of this build; empty where ggml does not tell."""
    try:
        ggml = _ggml()
    except BackendError:
        return []
    devices = []
    for device in ggml.devices():
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        ggml.dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        kind = _DEVICE_KINDS.get(ggml.dev_type(device), "unknown")
        name, description = ggml.dev_name(device), ggml.dev_description(device)
        devices.append(Device(name.decode(), description.decode(), kind, total.value, free.value))
    return devices


def device_array(names: tuple[str, ...]) -> ctypes.Array[ctypes.c_void_p]:
    """``llama_model_params.devices``: the devices of these names and a null. ``none`` alone is no
    device at all, as in llama.cpp's ``--device none``.

    Raises:
        InputError: there is no such device to offload to.
    """
    if names == ("none",):
        return (ctypes.c_void_p * 1)(None)
    ggml = _ggml()
    known = {
        ggml.dev_name(device).decode(): device
        for device in ggml.devices()
        if _DEVICE_KINDS.get(ggml.dev_type(device)) != "cpu"
    }
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            f"there is no device {', '.join(unknown)} to offload to",
            hint=f"devices here: {', '.join(known) or 'none (this build computes on the CPU)'}",
        )
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def overrides_array(overrides: tuple[tuple[str, str], ...]) -> ctypes.Array[_Override]:
    """``llama_model_params.tensor_buft_overrides`` from (regular expression, buffer type) pairs.

    Raises:
        InputError: there is no such buffer type.
    """
    ggml = _ggml()
    known: dict[str, int] = {}
    for device in ggml.devices():
        buffer_type = ggml.dev_buffer_type(device)
        if buffer_type:
            known[ggml.buft_name(buffer_type).decode()] = buffer_type
    for pattern, name in overrides:
        if name not in known:
            raise InputError(
                f"override_tensor {pattern}={name}: there is no buffer type {name}",
                hint=f"buffer types here: {', '.join(known)}",
            )
    array = (_Override * (len(overrides) + 1))()
    for entry, (pattern, name) in zip(array, overrides, strict=False):
        entry.pattern, entry.buft = pattern.encode(), known[name]
    return array


class _Ggml:
    """The functions of ggml that are used here."""

    def __init__(self, registry: ctypes.CDLL, base: ctypes.CDLL) -> None:
        size, pointer, text = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
        size_p = ctypes.POINTER(ctypes.c_size_t)

        def function(library: ctypes.CDLL, name: str, restype: Any, *argtypes: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = restype, list(argtypes)
            return found

        self._count = function(registry, "ggml_backend_dev_count", size)
        self._get = function(registry, "ggml_backend_dev_get", pointer, size)
        self.dev_name = function(base, "ggml_backend_dev_name", text, pointer)
        self.dev_description = function(base, "ggml_backend_dev_description", text, pointer)
        self.dev_type = function(base, "ggml_backend_dev_type", ctypes.c_int, pointer)
        self.dev_memory = function(base, "ggml_backend_dev_memory", None, pointer, size_p, size_p)
        self.dev_buffer_type = function(base, "ggml_backend_dev_buffer_type", pointer, pointer)
        self.buft_name = function(base, "ggml_backend_buft_name", text, pointer)

    def devices(self) -> list[int]:
        """Pointers to all devices."""
        return [int(self._get(i)) for i in range(self._count())]


@functools.cache
def _ggml() -> _Ggml:
    """Raises BackendError where the libraries or functions are not what we know."""
    lib = load_lib()
    try:
        # llama-cpp-python's own loader knows the platform's file names.
        from llama_cpp._ctypes_extensions import load_shared_library

        folder = pathlib.Path(str(lib.api.__file__)).parent / "lib"
        return _Ggml(load_shared_library("ggml", folder), load_shared_library("ggml-base", folder))
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise BackendError(f"ggml's devices cannot be listed: {error}") from error
