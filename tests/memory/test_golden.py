"""The rules against libllama's own byte counts: stored ones, and a sample counted anew."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.header import read_model
from gguf_spec.memory import Hardware, MemoryItem, MemoryParams, Placement, target_items
from tests.memory import golden
from tests.memory.models import MODELS
from tests.memory.oracle import ask, repack_set, version
from tests.memory.sums import MIB, described, summed

GOLDEN = golden.load()
ROWS: dict[str, list[dict[str, Any]]] = {
    name: [row for row in GOLDEN["rows"] if row["model"] == name] for name in MODELS
}
# Counting these again takes libllama about half a second each.
SAMPLE = (
    "llama-tied-q4_k", "gemma3-4b", "qwen35-small", "deepseek2-lite", "lfm2-1.2b", "eagle3",
    "dspark", "gemma4-assistant",
)  # fmt: skip


def counted(items: list[MemoryItem]) -> dict[str, int]:
    context = summed(items, "kv_cache") + summed(items, "recurrent_state")
    return {
        "weights": summed(items, "weights"),
        "context": context,
        "compute": summed(items, "compute"),
    }


def ours(name: str, params: MemoryParams, repack: str) -> dict[str, int]:
    return counted(target_items(described(name), params, Placement(), Hardware((), repack)))


def compare(row: dict[str, Any], mine: dict[str, int]) -> None:
    """Weights and context to the byte, compute within a tenth or 32 MiB."""
    assert (mine["weights"], mine["context"]) == (row["weights"], row["context"]), row
    allowed = max(row["compute"] // 10, 32 * MIB)
    assert abs(mine["compute"] - row["compute"]) <= allowed, (row, mine)


@pytest.mark.parametrize("name", MODELS)
def test_rules_equal_the_counts(name: str) -> None:
    assert len(ROWS[name]) >= 3
    for row in ROWS[name]:
        compare(row, ours(name, MemoryParams(**row["params"]), GOLDEN["cpu_repack"]))


def test_the_counts_cover_what_they_should() -> None:
    archs = {described(name).arch for name in MODELS}
    assert archs >= {
        "llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma3", "gemma4", "gpt-oss",
        "deepseek2", "glm4moe", "lfm2", "mamba2", "nemotron_h", "phi3", "llama4", "falcon-h1",
        "eagle3", "dflash", "gemma4-assistant",
    }  # fmt: skip
    used = {(key, str(value)) for row in GOLDEN["rows"] for key, value in row["params"].items()}
    assert {key for key, _ in used} >= {
        "n_ctx", "n_ubatch", "n_batch", "n_seq_max", "kv_unified", "type_k", "type_v", "swa_full",
        "n_outputs_max", "n_rs_seq", "flash_attn", "load_mtp", "mtp_context",
    }  # fmt: skip
    assert len(GOLDEN["rows"]) > 600


def test_every_number_of_a_known_model_is_exact_but_compute_and_overhead() -> None:
    for name in MODELS:
        for item in target_items(
            described(name), MemoryParams(n_ctx=4096), Placement(), Hardware()
        ):
            wanted = {"compute": "formula", "overhead": "assumed"}.get(item.kind, "exact")
            assert item.source == wanted, item
            assert item.bytes >= 0
            assert item.why


linux_only = pytest.mark.skipif(
    sys.platform != "linux", reason="the oracle reads a map as libstdc++ lays it out"
)


@linux_only
@pytest.mark.parametrize("name", SAMPLE)
def test_libllama_still_counts_the_same(name: str, tmp_path: Path) -> None:
    stored = [row for row in ROWS[name] if not row["params"].get("load_mtp")]
    rows = stored[:1] + stored[len(stored) // 2 :: 7]
    wanted = tuple(MemoryParams(**row["params"]) for row in rows)
    answers = golden.count(name, wanted, tmp_path)
    for row, params, answer in zip(rows, wanted, answers, strict=True):
        compare(row | answer, ours(name, params, repack_set()))
        if version() == GOLDEN["llama_cpp_python"]:
            assert answer["context"] == row["context"]
            assert answer["compute"] == row["compute"]


@linux_only
@pytest.mark.parametrize("name", ["tiny-target", "tiny-draft", "tiny-mtp"])
def test_files_with_real_weights_are_counted_the_same(name: str) -> None:
    path = Path(__file__).parents[1] / "models" / f"{name}.gguf"
    wanted = (MemoryParams(2048), MemoryParams(1024, n_seq_max=2, n_outputs_max=2, type_k="q8_0"))
    answers = ask({"model": str(path), "params": [golden.llama_params(p) for p in wanted]})
    for params, answer in zip(wanted, answers, strict=True):
        row = {kind: sum(sizes.values()) for kind, sizes in answer.items()}
        hardware = Hardware((), repack_set())
        compare(row, counted(target_items(read_model(path), params, Placement(), hardware)))
