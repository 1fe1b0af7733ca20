"""ggml's devices and buffer types, which lie in libraries beside libllama."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pathlib
import sys
from dataclasses import dataclass
from typing import Any

from gguf_spec.backend.lib import load_lib
from gguf_spec.backend.log import captured_stderr
from gguf_spec.errors import BackendError, InputError

# enum ggml_backend_dev_type in ggml-backend.h
_DEVICE_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}


class _Override(ctypes.Structure):
    """llama.h, struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp computes on. Sizes in bytes; ``kind`` is cpu, gpu,
    igpu (shares the host's memory), accel or meta. ``backend`` is the part of ggml that drives it
    (CPU, CUDA, Metal …), ``bus`` its PCI address if it has one and tells it."""

    name: str
    description: str
    kind: str
    total: int
    free: int
    backend: str = ""
    bus: str = ""


class _Props(ctypes.Structure):
    """ggml-backend.h, struct ggml_backend_dev_props. The capabilities at its end are not read, but
    need their room."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_uint8 * 64),
    )


def list_devices() -> list[Device]:
    """The devices of this build; empty where ggml does not tell."""
    try:
        ggml = _ggml()
    except BackendError:
        return []
    devices = []
    for device in ggml.devices():
        props = _Props()
        ggml.dev_props(device, ctypes.byref(props))
        registry = ggml.dev_registry(device)
        devices.append(
            Device(
                name=_text(props.name),
                description=_text(props.description),
                kind=_DEVICE_KINDS.get(props.type, "unknown"),
                total=props.memory_total,
                free=props.memory_free,
                backend=_text(ggml.registry_name(registry)) if registry else "",
                bus=_text(props.device_id).lower(),
            )
        )
    return devices


def list_backends() -> list[str]:
    """The parts of ggml in this build (CPU, CUDA, Metal …), with or without a device."""
    try:
        return _ggml().backends()
    except BackendError:
        return []


def buffer_type_facts(buffer_type: int) -> tuple[str, str, bool]:
    """Name of a buffer type, name of its device, and whether that is the computer's memory.

    Weights rearranged for the CPU say that they are not in host memory, for only their own code can
    read them; their device tells.
    """
    ggml = _ggml()
    name = _text(ggml.buft_name(buffer_type))
    device = ggml.buft_device(buffer_type)
    if not device:
        return name, "CPU", True
    is_cpu = _DEVICE_KINDS.get(ggml.dev_type(device)) in ("cpu", "accel")
    return name, _text(ggml.dev_name(device)), bool(ggml.buft_is_host(buffer_type)) or is_cpu


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


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

        def function(library: ctypes.CDLL, name: str, restype: Any, *argtypes: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = restype, list(argtypes)
            return found

        self._count = function(registry, "ggml_backend_dev_count", size)
        self._get = function(registry, "ggml_backend_dev_get", pointer, size)
        self.dev_name = function(base, "ggml_backend_dev_name", text, pointer)
        self.dev_type = function(base, "ggml_backend_dev_type", ctypes.c_int, pointer)
        props = ctypes.POINTER(_Props)
        self.dev_props = function(base, "ggml_backend_dev_get_props", None, pointer, props)
        self.dev_registry = function(base, "ggml_backend_dev_backend_reg", pointer, pointer)
        self.dev_buffer_type = function(base, "ggml_backend_dev_buffer_type", pointer, pointer)
        self.buft_name = function(base, "ggml_backend_buft_name", text, pointer)
        self.buft_device = function(base, "ggml_backend_buft_get_device", pointer, pointer)
        self.buft_is_host = function(base, "ggml_backend_buft_is_host", ctypes.c_bool, pointer)
        self.registry_name = function(base, "ggml_backend_reg_name", text, pointer)
        self._n_registries = function(registry, "ggml_backend_reg_count", size)
        self._registry = function(registry, "ggml_backend_reg_get", pointer, size)

    def devices(self) -> list[int]:
        """Pointers to all devices."""
        return [int(self._get(i)) for i in range(self._count())]

    def backends(self) -> list[str]:
        """Names of the registered backends."""
        return [_text(self.registry_name(self._registry(i))) for i in range(self._n_registries())]


@functools.cache
def _ggml() -> _Ggml:
    """Raises BackendError where the libraries or functions are not what we know."""
    try:
        # ggml's own messages about the devices that it finds go past a log that is not set up yet
        with captured_stderr():
            ggml = _Ggml(_library("ggml"), _library("ggml-base"))
            ggml.devices()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise BackendError(f"ggml's devices cannot be listed: {error}") from error
    return ggml


def system_info() -> str:
    """What this build of ggml can do on this computer: ``llama_print_system_info``; "" where
    libllama does not tell."""
    try:
        with captured_stderr():
            tell = _library("llama").llama_print_system_info
    except (BackendError, ImportError, OSError, RuntimeError, AttributeError):
        return ""
    tell.restype, tell.argtypes = ctypes.c_char_p, []
    return _text(tell())


def _library(name: str) -> ctypes.CDLL:
    """One of the libraries that llama-cpp-python comes with. Where their names are plain it is
    loaded without importing that package, which takes longer than all that a plan does.

    Raises:
        BackendError, ImportError, OSError, RuntimeError: it does not load.
    """
    spec = importlib.util.find_spec("llama_cpp")
    own = spec.submodule_search_locations if spec is not None else None
    if not own:
        raise BackendError("llama-cpp-python is not installed")
    elsewhere = os.environ.get("LLAMA_CPP_LIB_PATH")  # as llama-cpp-python reads it
    folder = pathlib.Path(own[0], "lib") if elsewhere is None else pathlib.Path(elsewhere)
    endings = {"linux": (".so",), "darwin": (".so", ".dylib")}.get(sys.platform, ())
    for path in (folder / f"lib{name}{ending}" for ending in endings):
        if path.exists():
            return ctypes.CDLL(str(path))
    load_lib()
    from llama_cpp._ctypes_extensions import load_shared_library

    library: ctypes.CDLL = load_shared_library(name, folder)
    return library
