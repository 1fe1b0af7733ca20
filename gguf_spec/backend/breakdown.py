"""How many bytes of a context lie in which buffer: libllama's own account.

``llama_get_memory_breakdown`` (llama-ext.h) returns a ``std::map`` by value. Its tree is walked in
memory, by the layout of the standard library that llama.cpp was built with: libstdc++ on Linux,
libc++ on macOS, Microsoft's on Windows. Every address and count is checked before it is followed,
and a tree that does not look as it should is not believed.

Where the walk is not possible, what llama.cpp logged while it loaded tells the same to 1/100 MiB.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gguf_spec.backend.ggml import buffer_type_facts
from gguf_spec.backend.log import LOG
from gguf_spec.errors import BackendError

if TYPE_CHECKING:
    from gguf_spec.backend.lib import Lib

MIB = 1 << 20
_MOST_BUFFERS = 64
_WORD = ctypes.sizeof(ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class BufferBytes:
    """What lies in buffers of one type, in bytes: weights, caches and states, and what a decode
    needs meanwhile. ``host``: it is the computer's memory, not a device's own."""

    buffer: str
    device: str
    host: bool
    model: int
    context: int
    compute: int


@dataclass(frozen=True, slots=True)
class MemoryAccount:
    """The buffers of a model with a context; ``exact``, or rounded to 1/100 MiB by the log."""

    buffers: tuple[BufferBytes, ...]
    exact: bool


#: The words of a map's object -> (buffer type, model, context, compute) of each entry.
Walker = Callable[[Sequence[int]], list[tuple[int, int, int, int]]]


def memory_breakdown(lib: Lib, context: int, *, untested: bool = False) -> list[BufferBytes]:
    """The account of the context at address ``context``.

    ``untested`` also allows walkers that have not been run against a real library yet, which could
    end the process.

    Raises:
        BackendError: this libllama has no such function, or its map is not what we know.
    """
    name, walker = layout()
    if not untested and name not in TESTED_LAYOUTS:
        raise BackendError(f"the memory layout of {name} has not been tested")
    words = lib.extra("llama_get_memory_breakdown")(context)
    entries = walker(list(words.words))
    found: dict[int, BufferBytes] = {}
    for buffer_type, model, context_bytes, compute in entries:
        buffer, device, host = buffer_type_facts(buffer_type)
        found[buffer_type] = BufferBytes(buffer, device, host, model, context_bytes, compute)
    return sorted(found.values(), key=lambda item: (item.host, item.device, item.buffer))


def layout() -> tuple[str, Walker]:
    """The standard library that llama.cpp is built with on this platform, and its walker."""
    if sys.platform == "win32":
        return "MSVC", walk_msvc
    if sys.platform == "darwin":
        return "libc++", walk_libcxx
    return "libstdc++", walk_libstdcxx


#: Layouts whose walker has been run against the libllama of that platform. libc++'s has met a map
#: of libc++'s (on x86-64 Linux) but no libllama yet, Microsoft's only one laid out by hand.
TESTED_LAYOUTS = ("libstdc++",)


def walk_libstdcxx(words: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Object: compare, then the header node (color, root, leftmost, rightmost), then the count.
    Node: color, parent, left, right, value."""
    return _walk(root=words[2], count=words[5], links=(2, 3), value=4)


def walk_libcxx(words: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Object: leftmost, root, count. Node: left, right, parent, is_black, value."""
    return _walk(root=words[1], count=words[2], links=(0, 1), value=4)


def walk_msvc(words: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Object: head node, count. Node: left, parent, right, color and is_nil, value; leaves point
    to the head, whose parent is the root."""
    head, count = words[0], words[1]
    _check(count, head)
    root = _word(head, 1)
    return _walk(root=root, count=count, links=(0, 2), value=4, nil=head)


def _walk(
    *, root: int, count: int, links: tuple[int, int], value: int, nil: int = 0
) -> list[tuple[int, int, int, int]]:
    """Visit the nodes below ``root``; ``links`` and ``value`` count words within a node."""
    _check(count, root)
    entries: list[tuple[int, int, int, int]] = []
    waiting, seen = [root], {nil}
    while waiting:
        node = waiting.pop()
        if node in seen:
            raise BackendError("libllama's map of buffers has a loop")
        seen.add(node)
        if len(seen) > count + 1:
            raise BackendError(f"libllama's map of buffers has more than its {count} entries")
        _check(count, node)
        key, *sizes = (_word(node, value + i) for i in range(4))
        _check(count, key)
        entries.append((key, sizes[0], sizes[1], sizes[2]))
        waiting += [child for link in links if (child := _word(node, link)) not in (0, nil)]
    if len(entries) != count:
        raise BackendError(f"libllama's map of buffers has {len(entries)} of {count} entries")
    return entries


def _check(count: int, address: int) -> None:
    """An address of a node is aligned and never in the first pages; a count of buffers is small."""
    if not 0 < count <= _MOST_BUFFERS or address < 1 << 16 or address % _WORD:
        raise BackendError("libllama's map of buffers does not look like one")


def _word(address: int, index: int) -> int:
    return ctypes.c_size_t.from_address(address + index * _WORD).value


# The lines of load_tensors, llama_kv_cache, llama_memory_recurrent and the graph reservation.
_SIZE = re.compile(
    r"(?P<buffer>\S+)\s+(?P<kind>model|KV|RS|compute|output)\s+buffer size\s*=\s*"
    r"(?P<mib>[0-9]+\.[0-9]+) MiB"
)
_KINDS = {"model": "model", "KV": "context", "RS": "context", "compute": "compute"}


def size_lines(mark: int) -> list[str]:
    """The lines about sizes of buffers in the log since ``mark``."""
    return [line for _, line in LOG.since(mark) if _SIZE.search(line)]


def logged_bytes(lines: Iterable[str]) -> tuple[list[BufferBytes], int]:
    """What llama.cpp's log says of buffers, and the bytes of the output buffer; rounded to
    1/100 MiB. The caches of a buffer add up, there may be several; compute buffers are made anew.

    Loaded without allocation, weights and KV caches are logged as 0.
    """
    found: dict[str, BufferBytes] = {}
    output = 0
    for line in lines:
        match = _SIZE.search(line)
        if match is None:
            continue
        size, name = round(float(match["mib"]) * MIB), match["buffer"]
        if match["kind"] == "output":
            output += size
            continue
        # Which device it is does not stand there: a host buffer's name begins with CPU, or ends
        # with _Host where it is pinned for a device; mapped files are named NAME_Mapped.
        device = re.sub(r"_(Host|Mapped|REPACK|Private|Shared)$", "", name)
        host = name.startswith("CPU") or name.endswith("_Host")
        item = found.get(name) or BufferBytes(name, device, host, 0, 0, 0)
        kind = _KINDS[match["kind"]]
        before = 0 if kind == "compute" else getattr(item, kind)
        changed: dict[str, Any] = {kind: before + size}
        found[name] = replace(item, **changed)
    return list(found.values()), output


def without_weights(buffers: Iterable[BufferBytes]) -> list[BufferBytes]:
    """The account of a context whose model has been counted with another one."""
    return [replace(item, model=0) for item in buffers]


def grow(base: BufferBytes, one: Mapping[str, BufferBytes], n: int) -> BufferBytes:
    """``base`` with ``n`` times what ``one``, the same buffer with a snapshot more, has more."""
    other = one.get(base.buffer, base)
    return replace(
        base,
        context=base.context + n * (other.context - base.context),
        compute=base.compute + n * max(other.compute - base.compute, 0),
    )
