"""The record of ``gguf-spec doctor``."""

from __future__ import annotations

import platform
import shutil
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from gguf_spec import __version__
from gguf_spec.demo import DEMO_FILE, installed_demo
from gguf_spec.errors import BackendError
from gguf_spec.folders import home_cache_dir, home_config_dir

TESTED = ["CPU on Linux"]
NOT_TESTED = ["GPU builds of llama-cpp-python", "macOS", "Windows"]
_REBUILD = (
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python "
    "'llama-cpp-python>=0.3.36,<0.4'"
)
#: A program that comes with a GPU's driver, and how llama-cpp-python is built for that GPU.
_GPU_BUILDS = {"nvidia-smi": "-DGGML_CUDA=on", "rocminfo": "-DGGML_HIP=on"}


def examine(*, debug: bool = False) -> dict[str, Any]:
    """Everything ``doctor`` knows. Sizes in bytes; ``usable``: models can be run."""
    import psutil

    from gguf_spec.profile import profile_folders
    from gguf_spec.setup import default_threads

    memory = psutil.virtual_memory()
    demo = _demo()
    record: dict[str, Any] = {
        "usable": True,
        "versions": _versions(),
        "platform": platform.platform(),
        "n_threads": default_threads(),
        "memory": {"total": memory.total, "available": memory.available},
        "devices": [],
        "system_info": None,
        "missing_features": {},
        "paths": {
            "config": str(home_config_dir()),
            "cache": str(home_cache_dir()),
            "profiles": list(dict.fromkeys(str(f.absolute()) for f in profile_folders())),
        },
        "demo": {"present": demo is not None, "path": demo and str(demo)},
        "tested": TESTED,
        "not_tested": NOT_TESTED,
        "problems": [],
    }
    try:
        record |= _libllama(debug)
    except BackendError as error:
        record["usable"] = False
        record["problems"].append(_problem(error.message, error.hint or "install it again"))
    else:
        record["problems"] += _gpu_problems(record["devices"])
    if demo is None:
        record["problems"].append(
            _problem("the demo model is not installed", 'pip install "gguf-spec[demo]"')
        )
    return record


def _libllama(debug: bool) -> dict[str, Any]:
    from gguf_spec.backend import list_devices, load_lib, recent_log

    recent_log().echo = debug
    lib = load_lib()
    info = None
    if lib.has("llama_print_system_info"):
        info = lib.api.llama_print_system_info().decode("utf-8", "replace").strip(" |\n")
    return {
        "devices": [asdict(device) for device in list_devices()],
        "system_info": info,
        "missing_features": dict(lib.missing),
    }


def _versions() -> dict[str, str]:
    versions = {"gguf-spec": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _gpu_problems(devices: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A GPU whose driver is here, while llama.cpp was built without it."""
    if any(device["kind"] in ("gpu", "igpu") for device in devices):
        return []
    return [
        _problem(
            f"{program} is here, but this llama-cpp-python computes on the CPU only",
            f'CMAKE_ARGS="{flags}" {_REBUILD}',
        )
        for program, flags in _GPU_BUILDS.items()
        if shutil.which(program)
    ]


def _demo() -> Path | None:
    """Where the demo model lies; it is not fetched for this."""
    cached = home_cache_dir() / DEMO_FILE
    return installed_demo() or (cached if cached.is_file() else None)


def _problem(message: str, fix: str) -> dict[str, str]:
    return {"message": message, "fix": fix}
