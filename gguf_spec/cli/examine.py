"""The record of ``gguf-spec doctor``."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf_spec import __version__
from gguf_spec.demo import DEMO_FILE, installed_demo
from gguf_spec.errors import BackendError
from gguf_spec.folders import home_cache_dir, home_config_dir

if TYPE_CHECKING:
    from gguf_spec.devices import FoundGpu, Machine

TESTED = ["CPU on Linux"]
NOT_TESTED = [
    "GPU builds of llama-cpp-python (CUDA, ROCm, Vulkan, SYCL, Metal)",
    "macOS",
    "Windows",
    "exact memory accounts with libc++ (macOS) and MSVC (Windows)",
    "NVML, and sysfs of amdgpu, i915 and xe",
]
_REBUILD = (
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python "
    "'llama-cpp-python>=0.3.36,<0.4'"
)
#: A program that comes with a GPU's driver, and how llama-cpp-python is built for that GPU.
_GPU_BUILDS = {"nvidia-smi": "-DGGML_CUDA=on", "rocminfo": "-DGGML_HIP=on"}
#: Of each maker: the backend to install, how to build llama-cpp-python with it, what hides GPUs.
_VENDORS = {
    "nvidia": ("CUDA", "-DGGML_CUDA=on", ("CUDA_VISIBLE_DEVICES",)),
    "amd": ("ROCm", "-DGGML_HIP=on", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")),
    "intel": ("SYCL", "-DGGML_SYCL=on", ("ONEAPI_DEVICE_SELECTOR",)),
}


def examine(*, debug: bool = False) -> dict[str, Any]:
    """Everything ``doctor`` knows. Sizes in bytes; ``usable``: models can be run."""
    from gguf_spec.backend import recent_log
    from gguf_spec.devices import survey
    from gguf_spec.profile import profile_folders
    from gguf_spec.setup import default_threads

    recent_log().echo = debug
    machine = survey()
    demo = _demo()
    record: dict[str, Any] = {
        "usable": True,
        "versions": _versions(),
        "platform": platform.platform(),
        "n_threads": default_threads(),
        "memory": asdict(machine.host),
        "backends": list(machine.backends),
        "devices": [asdict(device) for device in machine.devices],
        "unusable_gpus": [asdict(gpu) for gpu in machine.unusable],
        "notes": list(machine.notes),
        "memory_account": None,
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
        record |= _libllama()
    except BackendError as error:
        record["usable"] = False
        record["problems"].append(_problem(error.message, error.hint or "install it again"))
    else:
        record["problems"] += _gpu_problems(machine)
    if demo is None:
        record["problems"].append(
            _problem("the demo model is not installed", 'pip install "gguf-spec[demo]"')
        )
    return record


def _libllama() -> dict[str, Any]:
    from gguf_spec.backend import load_lib
    from gguf_spec.backend.breakdown import TESTED_LAYOUTS, layout

    lib = load_lib()
    info = None
    if lib.has("llama_print_system_info"):
        info = lib.api.llama_print_system_info().decode("utf-8", "replace").strip(" |\n")
    name, _ = layout()
    return {
        "system_info": info,
        "missing_features": dict(lib.missing),
        "memory_account": {
            "layout": name,
            "available": lib.has("llama_get_memory_breakdown"),
            "tested": name in TESTED_LAYOUTS,
        },
    }


def _versions() -> dict[str, str]:
    versions = {"gguf-spec": __version__, "python": platform.python_version()}
    for package in ("llama-cpp-python", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _gpu_problems(machine: Machine) -> list[dict[str, str]]:
    """GPUs that are here while this llama.cpp does not compute on them. Processor graphics and
    GPUs that somebody has hidden are left alone on purpose."""
    backends = machine.backends
    problems = [
        _unusable(gpu, backends)
        for gpu in machine.unusable
        if not gpu.integrated and not (_has_backend(gpu, backends) and _is_hidden(gpu))
    ]
    if problems or any(device.kind in ("gpu", "igpu") for device in machine.devices):
        return problems
    return [
        _problem(
            f"{program} is here, but this llama-cpp-python computes on the CPU only",
            f'CMAKE_ARGS="{flags}" {_REBUILD}',
        )
        for program, flags in _GPU_BUILDS.items()
        if shutil.which(program)
    ]


def _unusable(gpu: FoundGpu, backends: tuple[str, ...]) -> dict[str, str]:
    backend, flags, _ = _VENDORS[gpu.vendor]
    what = f"{gpu.name} ({gpu.bus}) is here, but"
    if not _has_backend(gpu, backends):
        return _problem(
            f"{what} this llama-cpp-python has no {backend} backend",
            f'CMAKE_ARGS="{flags}" {_REBUILD}',
        )
    if not gpu.driver:
        return _problem(f"{what} no driver has it", f"install the driver for {gpu.vendor} GPUs")
    return _problem(
        f"{what} {', '.join(backends)} cannot use it", "gguf-spec doctor --debug shows the reason"
    )


def _has_backend(gpu: FoundGpu, backends: tuple[str, ...]) -> bool:
    from gguf_spec.devices import BACKENDS

    return bool(set(backends) & set(BACKENDS[gpu.vendor]))


def _is_hidden(gpu: FoundGpu) -> bool:
    """Whether the environment says which GPUs of this maker may be used."""
    return any(name in os.environ for name in _VENDORS[gpu.vendor][2])


def _demo() -> Path | None:
    """Where the demo model lies; it is not fetched for this."""
    cached = home_cache_dir() / DEMO_FILE
    return installed_demo() or (cached if cached.is_file() else None)


def _problem(message: str, fix: str) -> dict[str, str]:
    return {"message": message, "fix": fix}
