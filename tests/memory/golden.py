"""Rows of libllama's own byte counts, to compare the rules with.

    python -m tests.memory.golden            writes golden.json anew
    python -m tests.memory.golden MODEL …    counts these models only, and keeps the other rows

A row is (model of ``described``, parameters) -> bytes of weights, context and compute buffers on
the CPU. The file says which llama-cpp-python counted, and on which kind of CPU: where weights are
repacked, some are held twice.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gguf_spec.memory import MemoryParams
from tests.memory.models import MODELS
from tests.memory.oracle import ask, repack_set, version

PATH = Path(__file__).with_name("golden.json")

#: Models that compute on another one's context.
TARGETS = {
    "eagle3": "qwen35-27b",
    "eagle3-own-vocabulary": "qwen35-27b",
    "dflash": "qwen35-27b",
    "dflash-windowed": "qwen35-27b",
    "dspark": "qwen35-27b",
    "gemma4-assistant": "gemma4-12b",
}
_TARGET = MemoryParams(n_ctx=32768)

#: Parameters that every model is counted with.
CASES = (
    MemoryParams(n_ctx=4096),
    MemoryParams(n_ctx=32768),
    MemoryParams(n_ctx=131072, n_ubatch=1024),
    MemoryParams(n_ctx=4096, n_ubatch=128),
    MemoryParams(n_ctx=32768, n_ubatch=64),
    MemoryParams(n_ctx=32768, n_ubatch=16),
    MemoryParams(n_ctx=8192, n_batch=256),
    MemoryParams(n_ctx=8192, n_seq_max=4, n_outputs_max=4),
    MemoryParams(n_ctx=32768, n_seq_max=4, n_outputs_max=16, kv_unified=True),
    MemoryParams(n_ctx=5000, n_seq_max=3, n_outputs_max=3),
    MemoryParams(n_ctx=16384, type_k="q8_0", type_v="q8_0", flash_attn="on"),
    MemoryParams(n_ctx=65536, type_k="q4_0", type_v="q4_0"),
    MemoryParams(n_ctx=4096, flash_attn="off"),
    MemoryParams(n_ctx=16384, flash_attn="off", n_seq_max=2, n_outputs_max=2),
    MemoryParams(n_ctx=4096, n_outputs_max=16),
    MemoryParams(n_ctx=4096, n_outputs_max=0),
    MemoryParams(n_ctx=1000),
)
_WINDOWED = (
    MemoryParams(n_ctx=4096, swa_full=True),
    MemoryParams(n_ctx=32768, swa_full=True, n_seq_max=2, n_outputs_max=2),
)
_RECURRENT = (
    MemoryParams(n_ctx=4096, n_rs_seq=3, n_outputs_max=4),
    MemoryParams(n_ctx=8192, n_rs_seq=15, n_outputs_max=32, n_seq_max=2),
)
_OTHER_TYPES = (MemoryParams(n_ctx=8192, type_k="bf16", type_v="q5_1"),)
_MTP = (
    MemoryParams(n_ctx=4096, load_mtp=True),
    MemoryParams(n_ctx=4096, load_mtp=True, mtp_context=True),
    MemoryParams(n_ctx=32768, load_mtp=True, mtp_context=True, n_ubatch=64),
    MemoryParams(n_ctx=8192, load_mtp=True, mtp_context=True, n_seq_max=2, n_outputs_max=2),
)


_STATEFUL = (
    "qwen35", "qwen3next", "rwkv7", "lfm2", "mamba2", "nemotron", "falcon", "llama-8b",
)  # fmt: skip
_WITH_MTP = (
    "qwen35-27b", "qwen35moe-35b", "deepseek2-v3", "glm4moe-air", "glm-dsa", "nemotron_h_moe-30b",
)  # fmt: skip


def cases(name: str) -> tuple[MemoryParams, ...]:
    """The parameters that the model ``name`` is counted with."""
    found: tuple[MemoryParams, ...] = CASES
    if name == "qwen35-mtp-only":
        return _MTP[1:]
    if name.startswith(("gemma", "gpt", "llama4", "dflash-w")):
        found += _WINDOWED
    if name.startswith(
        ("qwen35", "qwen3next", "rwkv7", "lfm2", "mamba2", "nemotron", "falcon", "llama-8b")
    ):
        found += _RECURRENT
    if not name.startswith(("deepseek", "glm-dsa")):
        found += _OTHER_TYPES
    if name in (
        "qwen35-27b",
        "qwen35moe-35b",
        "deepseek2-v3",
        "glm4moe-air",
        "glm-dsa",
        "nemotron_h_moe-30b",
    ):
        found += _MTP
    return found


def llama_params(params: MemoryParams) -> dict[str, Any]:
    """``params`` as fields of llama_context_params."""
    from gguf_spec.backend.params import FLASH_ATTN, KV_TYPES

    return {
        "n_ctx": params.n_ctx,
        "n_seq_max": params.n_seq_max,
        "kv_unified": params.kv_unified,
        "type_k": KV_TYPES[params.type_k],
        "type_v": KV_TYPES[params.type_v],
        "swa_full": params.swa_full,
        "n_batch": params.n_batch,
        "n_ubatch": params.n_ubatch,
        "n_outputs_max": params.n_outputs_max,
        "n_rs_seq": params.n_rs_seq,
        "flash_attn_type": FLASH_ATTN[params.flash_attn],
        "ctx_type": int(params.mtp_context),
    }


def changed(params: MemoryParams) -> dict[str, Any]:
    """What ``params`` sets; the rest is as ``MemoryParams`` has it."""
    default = MemoryParams(n_ctx=0)
    return {
        name: getattr(params, name)
        for name in MemoryParams.__slots__
        if getattr(params, name) != getattr(default, name)
    }


def count(name: str, wanted: tuple[MemoryParams, ...], folder: Path) -> list[dict[str, Any]]:
    """libllama's counts of the model ``name``: {"weights", "context", "compute"} or {"error"}."""
    path = MODELS[name]().write(folder / f"{name}.gguf")
    job: dict[str, Any] = {"model": str(path)}
    if name in TARGETS:
        target = MODELS[TARGETS[name]]().write(folder / "target.gguf")
        job |= {"target": str(target), "target_params": llama_params(_TARGET)}
    answers: list[dict[str, Any]] = []
    if name == "gemma4-assistant":  # its cache is its target's, so both must be alike
        for params in wanted:
            alike = llama_params(params)
            answers += ask(job | {"target_params": alike, "params": [alike]})
        wanted = ()
    for load_mtp in (False, True):
        some = [params for params in wanted if params.load_mtp == load_mtp]
        if some:
            job |= {"load_mtp": load_mtp, "params": [llama_params(params) for params in some]}
            answers += ask(job)
    return [
        answer if "error" in answer else {kind: sum(answer[kind].values()) for kind in answer}
        for answer in answers
    ]


def rows(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        for params, answer in zip(cases(name), count(name, cases(name), folder), strict=True):
            if "error" in answer:
                print(f"{name} {changed(params)}: {answer['error']}", file=sys.stderr)
                continue
            found.append({"model": name, "params": changed(params), **answer})
    return found


def load() -> dict[str, Any]:
    return json.loads(PATH.read_text())  # type: ignore[no-any-return]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        names = sys.argv[1:] or list(MODELS)
        kept = [row for row in load()["rows"] if row["model"] not in names] if sys.argv[1:] else []
        entries = kept + rows(Path(temporary), names)
    head = json.dumps({"llama_cpp_python": version(), "cpu_repack": repack_set()})[:-1]
    body = ",\n".join(json.dumps(row) for row in entries)
    PATH.write_text(f'{head}, "rows": [\n{body}\n]}}\n')
