"""libllama's account of buffers, read from its map or from its log."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams, breakdown
from gguf_spec.backend.breakdown import BufferBytes, grow, logged_bytes
from gguf_spec.errors import BackendError

Entry = tuple[int, int, int, int]
ENTRIES: list[Entry] = [(0x10000 * (i + 1), i, 10 * i, 100 * i) for i in range(7)]


class Memory:
    """Nodes of a tree, as a standard library lays them out."""

    def __init__(self, n: int) -> None:
        self.nodes = [(ctypes.c_size_t * 8)() for _ in range(n)]

    def at(self, index: int | None, nil: int = 0) -> int:
        return nil if index is None else ctypes.addressof(self.nodes[index])


def children(index: int, n: int) -> tuple[int | None, int | None]:
    """A complete tree, its nodes numbered from the top."""
    left, right = 2 * index + 1, 2 * index + 2
    return (left if left < n else None), (right if right < n else None)


def libstdcxx(entries: list[Entry]) -> tuple[list[int], Memory]:
    memory = Memory(len(entries))
    for i, entry in enumerate(entries):
        left, right = (memory.at(child) for child in children(i, len(entries)))
        parent = memory.at((i - 1) // 2) if i else 0
        memory.nodes[i][:] = [1, parent, left, right, *entry]
    return [0, 0, memory.at(0), 0, 0, len(entries)], memory


def libcxx(entries: list[Entry]) -> tuple[list[int], Memory]:
    memory = Memory(len(entries))
    for i, entry in enumerate(entries):
        left, right = (memory.at(child) for child in children(i, len(entries)))
        memory.nodes[i][:] = [left, right, 0, 1, *entry]
    return [0, memory.at(0), len(entries), 0, 0, 0], memory


def msvc(entries: list[Entry]) -> tuple[list[int], Memory]:
    memory = Memory(len(entries) + 1)
    head = memory.at(len(entries))
    for i, entry in enumerate(entries):
        left, right = (memory.at(child, head) for child in children(i, len(entries)))
        memory.nodes[i][:] = [left, head, right, 1, *entry]
    memory.nodes[-1][:] = [head, memory.at(0), head, 0x101, 0, 0, 0, 0]
    return [head, len(entries), 0, 0, 0, 0], memory


LAYOUTS = [
    (breakdown.walk_libstdcxx, libstdcxx),
    (breakdown.walk_libcxx, libcxx),
    (breakdown.walk_msvc, msvc),
]


@pytest.mark.parametrize(("walk", "lay_out"), LAYOUTS)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_walkers_find_every_entry(walk: Any, lay_out: Any, n: int) -> None:
    words, memory = lay_out(ENTRIES[:n])
    assert sorted(walk(words)) == ENTRIES[:n]
    del memory


@pytest.mark.parametrize(("walk", "lay_out"), LAYOUTS)
@pytest.mark.parametrize(("other", "_"), LAYOUTS)
def test_a_walker_does_not_follow_another_layout(
    walk: Any, lay_out: Any, other: Any, _: object
) -> None:
    words, memory = lay_out(ENTRIES)
    if other is not walk:
        with pytest.raises(BackendError):
            other(words)
    del memory


@pytest.mark.parametrize(("walk", "lay_out"), LAYOUTS)
def test_a_wrong_count_is_noticed(walk: Any, lay_out: Any) -> None:
    words, memory = lay_out(ENTRIES)
    place = words.index(len(ENTRIES))
    for count in (0, 6, 8, 65):
        with pytest.raises(BackendError):
            walk([*words[:place], count, *words[place + 1 :]])
    del memory


def test_a_loop_is_noticed() -> None:
    words, memory = libstdcxx(ENTRIES)
    memory.nodes[6][2] = memory.at(0)
    with pytest.raises(BackendError, match="loop"):
        breakdown.walk_libstdcxx(words)


def test_map_and_log_agree(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = ContextParams(1024, layers=(1, 2, 3))
    model = LlamaModel(tiny / "tiny-target.gguf", ModelParams(use_mmap=False))
    with model, LlamaContext(model, params) as context:
        exact = context.memory_breakdown()
        assert exact.exact
        monkeypatch.setitem(model.lib.missing, "llama_get_memory_breakdown", "an older libllama")
        monkeypatch.delitem(model.lib._extra, "llama_get_memory_breakdown")
        rounded = context.memory_breakdown()
    assert not rounded.exact
    (one,), (other,) = exact.buffers, rounded.buffers
    assert one.buffer == other.buffer == "CPU"
    for kind in ("model", "context", "compute"):
        assert abs(getattr(one, kind) - getattr(other, kind)) <= breakdown.MIB // 100
        assert getattr(one, kind) > breakdown.MIB // 100


def test_an_untested_walker_is_not_used_on_a_live_context(
    tiny_target: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown.sys, "platform", "darwin")
    with LlamaContext(tiny_target, ContextParams(64)) as context:
        assert not context.memory_breakdown().exact


def test_log_lines() -> None:
    lines = [
        "load_tensors:        CUDA0 model buffer size =  1024.00 MiB",
        "load_tensors:   CPU_Mapped model buffer size =   256.50 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =   100.00 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =    28.00 MiB",
        "llama_memory_recurrent:      CUDA0 RS buffer size =   149.62 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   300.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   310.00 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =     4.00 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.58 MiB",
        "something else entirely",
    ]
    mib = breakdown.MIB
    buffers, output = logged_bytes(lines)
    assert buffers == [
        BufferBytes("CUDA0", "CUDA0", False, 1024 * mib, round(277.62 * mib), 310 * mib),
        BufferBytes("CPU_Mapped", "CPU", True, round(256.5 * mib), 0, 0),
        BufferBytes("CUDA_Host", "CUDA", True, 0, 0, 4 * mib),
    ]
    assert output == round(0.58 * mib)


def test_growth_by_snapshots() -> None:
    base = BufferBytes("CPU", "CPU", True, 5, 100, 40)
    one = {"CPU": replace(base, context=130, compute=41)}
    sizes = [grow(base, one, n) for n in range(4)]
    assert [item.context for item in sizes] == [100, 130, 160, 190]
    assert all(b.compute - a.compute == 1 for a, b in pairwise(sizes))
    assert grow(base, {}, 9) == base
