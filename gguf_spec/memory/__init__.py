"""Memory accounting: from a header to bytes on each device, before anything is loaded.

Pure functions over a parsed header. Each rule copies one of llama.cpp's and names its lines; the
line numbers are those of the llama.cpp vendored in llama-cpp-python 0.3.36.

    bill            target_items, draft_items, draft_deltas: the rules put together
    weights         tensors on devices
    cache           keys and values, recurrent states
    compute         compute buffers, outputs
    extras          adapters and projectors
    overhead        what no buffer accounts for
    limits          what would make libllama abort
    facts, layout   the numbers of a model; the devices of its layers
"""

from gguf_spec.memory.bill import (
    context_items,
    draft_context,
    draft_deltas,
    draft_items,
    layout_of,
    target_items,
    with_draft,
)
from gguf_spec.memory.cache import cache_problem
from gguf_spec.memory.extras import lora_items, mmproj_items
from gguf_spec.memory.facts import Facts, facts
from gguf_spec.memory.layout import Layout, cpu_repack
from gguf_spec.memory.limits import fitting_snapshots, most_snapshots, snapshots
from gguf_spec.memory.types import (
    CPU,
    LOWER_BOUND,
    Device,
    Hardware,
    Kind,
    MemoryItem,
    MemoryParams,
    Placement,
    Source,
    Totals,
    totals,
)

__all__ = [
    "CPU",
    "LOWER_BOUND",
    "Device",
    "Facts",
    "Hardware",
    "Kind",
    "Layout",
    "MemoryItem",
    "MemoryParams",
    "Placement",
    "Source",
    "Totals",
    "cache_problem",
    "context_items",
    "cpu_repack",
    "draft_context",
    "draft_deltas",
    "draft_items",
    "facts",
    "fitting_snapshots",
    "layout_of",
    "lora_items",
    "mmproj_items",
    "most_snapshots",
    "snapshots",
    "target_items",
    "totals",
    "with_draft",
]
