"""Damaged headers, thousands of them, through the parser and the memory rules.

    python -m tests.memory.mutants N

Prints, as JSON, how many of N headers were refused and how many were counted, and the most memory
that took. Anything but one of our errors ends it with a traceback.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
from dataclasses import replace
from pathlib import Path

from gguf_spec.errors import GgufSpecError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse
from gguf_spec.memory import (
    Device,
    Hardware,
    MemoryParams,
    Placement,
    cache_problem,
    draft_deltas,
    draft_items,
    facts,
    lora_items,
    mmproj_items,
    most_snapshots,
    target_items,
)
from gguf_spec.memory.bill import layout_of
from tests.gguf_writer import CODES
from tests.memory import drafts, hybrids, transformers

MODELS = [
    (model.header(), model)
    for model in (
        transformers.llama(3, 512, 8, 2, 1024, 4000),
        transformers.gemma4(6, 512, 4, 1024, shared_kv=2, per_layer=32),
        transformers.deepseek2(3, 512, 4, 8),
        transformers.gpt_oss(2, 576, 4, 2, 4),
        hybrids.qwen35(4, 512, 4, 2, 1024),
        hybrids.lfm2(3, 512, 8, 1024),
        hybrids.nemotron_h(4, 512, 4, 2, 1024),
        hybrids.mamba2(2, 512, 1024, 16),
        drafts.dflash(2, 512, 4, 2, 1024, window=256, markov=32, vocab=4000),
        drafts.eagle3(512, 4, 2, 1024, n_target=8, vocab=4000, own=512),
    )
]
EXTREMES = (0, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
GPUS = Hardware((Device("GPU0", "CUDA", 1 << 30), Device("GPU1", "Vulkan")), "avx512")


def mutant(seed: int) -> bytes:
    """A header with one to four damages: cut, flipped, overwritten with extremes, shuffled."""
    chance = random.Random(seed)
    data = bytearray(MODELS[seed // 2 % len(MODELS)][0])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) - 8) if len(data) > 8 else 0
        kind = chance.randrange(10)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            other = chance.randrange(len(data))
            n = chance.randint(1, 64)
            data[at : at + n] = data[other : other + n]
        elif kind < 6:  # metadata come first: most damages shall be understood
            at = chance.randrange(min(len(data), 1500))
            data[at] = chance.randrange(256)
        else:
            code = chance.choice("IQ")
            value = chance.choice(EXTREMES) % (1 << (8 * struct.calcsize(code)))
            at = chance.randrange(min(max(len(data) - 8, 1), 2000))
            if at + 8 <= len(data):
                struct.pack_into("<" + code, data, at, value)
    return bytes(data)


def odd_values(seed: int) -> bytes:
    """A header that is sound, but for one to four numbers that no model has."""
    chance = random.Random(seed)
    gguf = MODELS[seed // 2 % len(MODELS)][1].gguf
    entries = list(gguf.entries)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(entries))
        name = 8 + struct.unpack_from("<Q", entries[at])[0]
        (kind,) = struct.unpack_from("<i", entries[at], name)
        value = struct.pack("<I", chance.choice((*EXTREMES, 3, 7, 64, 100_000)) % (1 << 32))
        if kind == CODES["u32"][0]:
            signed = chance.random() < 0.2
            code = struct.pack("<i", CODES["i32" if signed else "u32"][0])
            entries[at] = entries[at][:name] + code + value
        elif kind == CODES["arr"][0] and len(entries[at]) > name + 20:
            start = chance.randrange(name + 16, len(entries[at]) - 3)
            entries[at] = entries[at][:start] + value + entries[at][start + 4 :]
    return replace(gguf, entries=entries).header()


def count(info: ModelInfo, chance: random.Random) -> None:
    """Everything that can be asked about ``info``."""
    params = MemoryParams(
        n_ctx=chance.choice((0, 1, 512, 1 << 20)),
        n_seq_max=chance.randint(1, 4),
        kv_unified=chance.random() < 0.5,
        type_k=chance.choice(("f16", "q8_0")),
        flash_attn=chance.choice(("auto", "off")),
        n_rs_seq=chance.randint(0, 3),
        load_mtp=chance.random() < 0.5,
        swa_full=chance.random() < 0.5,
    )
    placement = Placement(chance.randint(-1, 8), n_cpu_moe=chance.randint(0, 3))
    items = target_items(info, params, placement, GPUS)
    kind = chance.choice(("draft-mtp", "draft-dflash", "draft-eagle3", "draft-simple"))
    items += draft_items(kind, info, info, params, placement, GPUS)
    items += draft_deltas(kind, 3, info, info, params, placement, GPUS)
    items += mmproj_items(info) + lora_items(info, info, layout_of(info, placement, GPUS))
    assert all(item.bytes >= 0 for item in items)
    cache_problem(facts(info), params)
    most_snapshots(info)


def main(n: int) -> dict[str, int]:
    counted = refused = 0
    for seed in range(n):
        try:
            data = mutant(seed) if seed % 2 else odd_values(seed)
            info = parse(MemorySource(data))
            count(info, random.Random(seed))
            counted += 1
        except GgufSpecError:
            refused += 1
    return {"counted": counted, "refused": refused, "peak_kib": _peak_kib()}


def _peak_kib() -> int:
    """The most memory that this process has had. What getrusage tells, a child has from its parent
    on Linux: there the memory map says it."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines["VmHWM"].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
