"""The machine that a plan is for: memories with budgets, and whether something fits into them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gguf_spec.memory import CPU, Device, Hardware, MemoryItem


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that layers may go to. Sizes in bytes; ``budget`` is what may be used of it.

    ``bandwidth`` in bytes per second, and the ``share`` of it that plain decoding gets out of such
    a device; None and 0 where nobody knows. ``unified``: its memory is the computer's.
    """

    name: str
    backend: str = "CUDA"
    total: int = 0
    free: int = 0
    budget: int = 0
    bandwidth: int | None = None
    share: float = 0.0
    unified: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """The computer's own memory, in bytes.

    All that is used has to stay within ``budget``. Weights that are mapped from their file may
    push out what the system caches, everything else has to be ``available``.
    """

    total: int
    available: int
    budget: int
    bandwidth: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Memories and what is in them. ``cpu_repack`` as in ``memory.Hardware``. ``mapped``: weights
    in host memory are mapped from their file (``use_mmap``)."""

    host: Host
    gpus: tuple[Gpu, ...] = ()
    cpu_repack: str = ""
    mapped: bool = True

    @property
    def hardware(self) -> Hardware:
        """The machine as the memory rules want it."""
        devices = tuple(Device(gpu.name, gpu.backend, gpu.budget) for gpu in self.gpus)
        return Hardware(devices, self.cpu_repack)

    @property
    def unified(self) -> Gpu | None:
        """The device that shares the host's memory, if there is one."""
        return next((gpu for gpu in self.gpus if gpu.unified), None)

    def memory_of(self, device: str) -> str:
        """The memory that ``device`` of an item takes from: a device's name, or CPU."""
        shared = self.unified
        return shared.name if shared is not None and device == CPU else device

    def used(self, items: Iterable[MemoryItem]) -> dict[str, int]:
        """Bytes by memory, every memory of the machine named."""
        sums = dict.fromkeys([gpu.name for gpu in self.gpus], 0)
        if self.unified is None:
            sums[CPU] = 0
        for item in items:
            sums[self.memory_of(item.device)] += item.bytes
        return sums

    def budgets(self) -> dict[str, int]:
        """The budget of every memory."""
        budgets = {gpu.name: gpu.budget for gpu in self.gpus}
        if self.unified is None:
            budgets[CPU] = self.host.budget
        return budgets

    def missing(self, items: Iterable[MemoryItem]) -> dict[str, int]:
        """Bytes by memory that ``items`` need and the budget does not have; empty if all fits."""
        every = list(items)
        over = {
            name: n_bytes - budget
            for (name, n_bytes), budget in zip(
                self.used(every).items(), self.budgets().values(), strict=True
            )
        }
        if self.unified is None:
            over[CPU] = max(over[CPU], self._taken(every) - self.host.available)
        return {name: n_bytes for name, n_bytes in over.items() if n_bytes > 0}

    def _taken(self, items: Iterable[MemoryItem]) -> int:
        """Bytes of host memory that nothing but ending the program gives back."""
        return sum(
            item.bytes
            for item in items
            if item.device == CPU and not (self.mapped and item.kind == "weights")
        )

    def remaining(self, items: Iterable[MemoryItem]) -> dict[str, int]:
        """Bytes of every budget that ``items`` leave; below zero where they do not fit."""
        budgets = self.budgets()
        return {name: budgets[name] - n_bytes for name, n_bytes in self.used(items).items()}


def summed(amounts: Mapping[str, int]) -> int:
    """Bytes in all."""
    return sum(amounts.values())
