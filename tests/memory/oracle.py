"""What libllama itself counts, in a process of its own: it aborts on what it does not like.

    python -m tests.memory.oracle < job

A job is one JSON object; the answer is a JSON list with one entry for each set of parameters:
{"weights", "context", "compute"} as {buffer type: bytes}, or {"error": text}. Nothing is loaded and
nothing is allocated for weights or keys and values (``no_alloc``), so a sparse file will do.
It reads a map as libstdc++ lays it out: on Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

from gguf_spec.memory import cpu_repack

# llama_memory_breakdown is a std::map by value; libstdc++'s header of it has 48 bytes.
_MAP_WORDS = 6
_BREAKDOWN = "_Z26llama_get_memory_breakdownPK13llama_context"


def ask(job: dict[str, Any], timeout: float = 120.0) -> list[dict[str, Any]]:
    """Run ``job`` in a child process.

    ``job``: model (path), load_mtp, params (a list of dicts of llama_context_params), and for
    drafts that need one target, target_params.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.oracle"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    if done.returncode and len(job["params"]) > 1:  # find out whose fault it was
        return [ask({**job, "params": [params]}, timeout)[0] for params in job["params"]]
    if done.returncode:
        return [{"error": f"exit {done.returncode}: {done.stderr[-800:]}"}]
    answer: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def version() -> str:
    import llama_cpp

    return str(llama_cpp.__version__)


def repack_set() -> str:
    """Which set of types the CPU backend of this machine repacks."""
    import llama_cpp

    return cpu_repack(llama_cpp.llama_print_system_info().decode())


class _Map(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * _MAP_WORDS)]


def _words(address: int, n: int) -> list[int]:
    return list((ctypes.c_uint64 * n).from_address(address))


def _walk(node: int, found: list[tuple[int, int, int, int]]) -> None:
    """A node is [color, parent, left, right, key, model, context, compute]."""
    if node:
        _, _, left, right, *entry = _words(node, 8)
        _walk(left, found)
        found.append((entry[0], entry[1], entry[2], entry[3]))
        _walk(right, found)


def _breakdown(api: Any, base: Any, context: int) -> dict[str, dict[str, int]]:
    function = api._lib[_BREAKDOWN]
    function.restype, function.argtypes = _Map, [ctypes.c_void_p]
    raw = function(context)
    found: list[tuple[int, int, int, int]] = []
    _walk(raw.words[2], found)
    assert len(found) == raw.words[5], "the map is laid out in another way"
    name = base.ggml_backend_buft_name
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    answer: dict[str, dict[str, int]] = {"weights": {}, "context": {}, "compute": {}}
    for key, *sizes in found:
        for kind, size in zip(answer, sizes, strict=True):
            if size:
                answer[kind][name(key).decode()] = size
    return answer


def _model(api: Any, path: str, load_mtp: bool) -> int:
    params = api.llama_model_default_params()
    params.no_alloc, params.load_mode, params.load_mtp = True, 0, load_mtp
    params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"libllama does not load {path}")
    return int(model)


def _context(api: Any, model: int, wanted: dict[str, Any], other: int | None = None) -> int | None:
    params = api.llama_context_default_params()
    params.swa_full = False
    for name, value in wanted.items():
        setattr(params, name, value)
    if other:
        params.ctx_other = other
    context = api.llama_init_from_model(model, params)
    return int(context) if context else None


def _run(job: dict[str, Any]) -> list[dict[str, Any]]:
    import llama_cpp.llama_cpp as api

    log: list[str] = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
        lambda level, text, _: log.append(text.decode(errors="replace")) if level >= 3 else None
    )
    api.llama_log_set(ctypes.cast(callback, type(callback)), None)
    base = ctypes.CDLL(os.path.join(os.path.dirname(api.__file__), "lib", "libggml-base.so"))
    target = None
    if "target" in job:
        target = _context(api, _model(api, job["target"], False), job["target_params"])
    try:
        model = _model(api, job["model"], job.get("load_mtp", False))
    except SystemExit as error:
        raise SystemExit(f"{error}: {''.join(log)[-600:]}") from error
    answers: list[dict[str, Any]] = []
    for wanted in job["params"]:
        context = _context(api, model, wanted, target)
        if context is None:
            answers.append({"error": "".join(log)[-800:]})
            continue
        answers.append(_breakdown(api, base, context))
        api.llama_free(context)
    return answers


if __name__ == "__main__":
    print(json.dumps(_run(json.load(sys.stdin))))
