"""Where a model goes: the fewest experts, then the fewest layers, outside of the GPUs.

Whether a placement fits is asked of the whole bill, never of a shortcut. The searches bisect,
because a layer more on a GPU never takes less of it: what moves there is its weights and cache, and
what batches borrow from the CPU's layers (op_offload) shrinks by no more than that.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from gguf_spec.header import ModelInfo
from gguf_spec.memory import (
    CPU,
    Hardware,
    MemoryItem,
    MemoryParams,
    Placement,
    layout_of,
    lora_items,
    mmproj_items,
    target_items,
)
from gguf_spec.memory.facts import facts, remembered
from gguf_spec.memory.layout import used_devices
from gguf_spec.planning.machine import Gpu, Machine, summed
from gguf_spec.planning.types import ALL, Wish

_FEW_DEVICES = 3  # all sets of so many are tried
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(up|down|gate_up|gate)_(ch|)exps")


@dataclass(frozen=True, slots=True)
class Fit:
    """A placement with its bill, and the bytes missing by memory (empty: it fits)."""

    placement: Placement
    items: tuple[MemoryItem, ...]
    missing: dict[str, int]

    @property
    def fits(self) -> bool:
        return not self.missing

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True, slots=True)
class Search:
    """One model with one context on one machine; ``devices`` None: all of its GPUs."""

    info: ModelInfo
    params: MemoryParams
    machine: Machine
    wish: Wish
    devices: tuple[str, ...] | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are used."""
        every = self.machine.gpus
        return tuple(gpu for gpu in every if self.devices is None or gpu.name in self.devices)

    @property
    def n_all(self) -> int:
        """Layers as n_gpu_layers counts them: those of MTP heads and the output included."""
        return facts(self.info).n_layer_all + 1

    @property
    def wants_all(self) -> bool:
        """Whether every layer shall be on GPUs, or there are none."""
        wanted = self.wish.n_gpu_layers
        return not self.machine.gpus or wanted is None or not 0 <= wanted < self.n_all

    def whole(self) -> Fit:
        """Everything on the GPUs, or as many layers as the user says; experts may stay in host
        memory, as few layers' of them as possible."""
        fit = self._over_devices(Search._whole, none=self.wish.n_gpu_layers == 0)
        assert fit is not None
        return fit

    def partial(self) -> Fit | None:
        """As many layers on the GPUs as fit, the rest and all experts in host memory; None where
        there is nothing to choose."""
        if self.wish.n_gpu_layers is not None or not self.machine.gpus or self.machine.unified:
            return None
        return self._over_devices(Search._partial, none=True)

    def _over_devices(self, how: Callable[[Search], Fit], *, none: bool) -> Fit | None:
        """The first fit over sets of devices, else what misses the least. A device costs something
        before it has any layer, so fewer devices can hold more; ``none`` of them is the last."""
        best: Fit | None = None
        for names in self._device_sets(none):
            fit = how(replace(self, devices=names))
            if fit.fits:
                return fit
            if best is None or summed(fit.missing) < summed(best.missing):
                best = fit
        return best

    def _device_sets(self, none: bool) -> Iterator[tuple[str, ...] | None]:
        """All devices, then fewer of them: of a few all sets, of many without the smallest."""
        yield None
        gpus = self.machine.gpus
        if self.wish.tensor_split or self.machine.unified:
            return
        if len(gpus) <= _FEW_DEVICES:
            for size in range(len(gpus) - 1, 0, -1):
                sets = combinations(gpus, size)
                for some in sorted(sets, key=lambda one: -sum(gpu.budget for gpu in one)):
                    yield tuple(gpu.name for gpu in some)
        else:
            by_size = sorted(gpus, key=lambda gpu: -gpu.budget)
            for size in range(len(gpus) - 1, 0, -1):
                kept = by_size[:size]
                yield tuple(gpu.name for gpu in gpus if gpu in kept)
        if none and gpus:
            yield ()

    def _whole(self) -> Fit:
        n_gpu = self._n_gpu()
        if self.wish.n_cpu_moe is not None:
            return self.spread(n_gpu, self.wish.n_cpu_moe)
        fit = self.spread(n_gpu, 0)
        n_layer = facts(self.info).n_layer_all
        if fit.fits or not (self.has_movable_experts and n_gpu):
            return fit
        last = self.spread(n_gpu, n_layer)
        if self._over(last):
            return min(fit, last, key=lambda one: summed(one.missing))
        tried = {n_layer: last}
        _first(1, n_layer, lambda n: not self._over(self._note(tried, n, self.spread(n_gpu, n))))
        # Fewer experts in host memory are also the least of it.
        found = next(tried[n] for n in sorted(tried) if not self._over(tried[n]))
        return min(fit, found, key=lambda one: summed(one.missing))

    def _partial(self) -> Fit:
        n_cpu_moe = self.wish.n_cpu_moe
        if n_cpu_moe is None:
            n_cpu_moe = facts(self.info).n_layer_all if self.has_movable_experts else 0
        return self.most_layers(n_cpu_moe, self.n_all - 1 if self.gpus else 0)

    def most_layers(self, n_cpu_moe: int, most: int) -> Fit:
        """The most layers on the GPUs, up to ``most``, with the experts of ``n_cpu_moe`` layers in
        host memory."""
        tried: dict[int, Fit] = {}
        n = _first(
            0,
            most,
            lambda k: not self._over(self._note(tried, k, self.spread(most - k, n_cpu_moe))),
        )
        return tried.get(n) or self.spread(most - n, n_cpu_moe)

    def spread(self, n_gpu: int, n_cpu_moe: int) -> Fit:
        """``n_gpu`` layers over the devices: by the user's split, else by budgets, else so that
        each device is filled before the next."""
        gpus = self.gpus
        if len(gpus) < 2 or self.wish.tensor_split or not n_gpu:
            split = self.wish.tensor_split if gpus else ()
            return self.fit(self._placement(n_gpu, n_cpu_moe, split))
        n_gpu = min(n_gpu, self.n_all)
        even = self.fit(self._placement(n_gpu, n_cpu_moe, self._by_budget(n_gpu)))
        if not self._over(even):
            return even
        filled = self.fit(self._placement(n_gpu, n_cpu_moe, self._filled(n_gpu, n_cpu_moe)))
        return min(even, filled, key=self._over)

    def fit(self, placement: Placement) -> Fit:
        """The bill of one placement."""
        items = bill(self.info, self.params, placement, self.machine, self.wish)
        return Fit(placement, items, self.machine.missing(items))

    def _n_gpu(self) -> int:
        if not self.gpus:
            return 0
        wanted = self.wish.n_gpu_layers
        return self.n_all if self.wants_all or wanted is None else wanted

    @property
    def has_movable_experts(self) -> bool:
        """Whether there are experts, and the plan may say where they are."""
        if self.wish.override_tensor or not self.gpus or self.machine.unified:
            return False
        return any(_EXPERTS.match(tensor.name) for tensor in self.info.tensors)

    def _over(self, fit: Fit) -> int:
        """Bytes missing on GPUs."""
        return sum(n_bytes for name, n_bytes in fit.missing.items() if name != CPU)

    def _placement(self, n_gpu: int, n_cpu_moe: int, split: Sequence[float]) -> Placement:
        return Placement(
            n_gpu_layers=n_gpu,
            tensor_split=tuple(split),
            n_cpu_moe=n_cpu_moe,
            override_tensor=self.wish.override_tensor,
            devices=self.devices,
        )

    def _by_budget(self, n_gpu: int) -> tuple[float, ...]:
        """Layers for each device, in proportion to the budgets."""
        budgets = [max(gpu.budget, 0) for gpu in self.gpus]
        total, so_far, cuts = sum(budgets), 0, [0]
        if not total:
            budgets = [1] * len(budgets)
            total = len(budgets)
        for budget in budgets:
            so_far += budget
            cuts.append(round(n_gpu * so_far / total))
        return tuple(float(b - a) for a, b in pairwise(cuts))

    def _filled(self, n_gpu: int, n_cpu_moe: int) -> tuple[float, ...]:
        """Layers for each device, each as full as it gets before the next has any."""
        gpus = self.gpus
        counts = [0] * len(gpus)
        for i, gpu in enumerate(gpus[:-1]):
            left = n_gpu - sum(counts[:i])

            def fits(k: int, i: int = i, left: int = left, name: str = gpu.name) -> bool:
                tried = [*counts[:i], left - k, *counts[i + 1 : -1], k]
                placement = self._placement(n_gpu, n_cpu_moe, [float(c) for c in tried])
                return name not in self.fit(placement).missing

            counts[i] = left - _first(0, left, fits)
        counts[-1] = n_gpu - sum(counts[:-1])
        return tuple(float(count) for count in counts)

    @staticmethod
    def _note(into: dict[int, Fit], n: int, fit: Fit) -> Fit:
        into[n] = fit
        return fit


def bill(
    info: ModelInfo, params: MemoryParams, placement: Placement, machine: Machine, wish: Wish
) -> tuple[MemoryItem, ...]:
    """Everything that the target needs, its adapters and projector included."""
    hardware = machine.hardware
    items = _items(info, params, placement, hardware)
    if wish.loras:
        where = layout_of(info, placement, hardware)
        items += [item for lora in wish.loras for item in lora_items(lora, info, where)]
    if wish.mmproj is not None:
        used = used_devices(placement, hardware) if placement.n_gpu_layers else []
        items += mmproj_items(wish.mmproj, used[0] if used else None)
    return tuple(items)


_ITEMS: OrderedDict[int, tuple[ModelInfo, dict[tuple[object, ...], list[MemoryItem]]]]
_ITEMS = OrderedDict()
_MOST_PLACEMENTS = 256  # of a model that are remembered


def _items(
    info: ModelInfo, params: MemoryParams, placement: Placement, hardware: Hardware
) -> list[MemoryItem]:
    """``target_items``; remembered, because a ladder of many files is judged again for each header
    that comes in, and for the drafts."""
    known = remembered(_ITEMS, info, lambda _: {})
    key = (params, placement, hardware)
    found = known.get(key)
    if found is None:
        if len(known) == _MOST_PLACEMENTS:
            known.clear()
        found = known[key] = target_items(info, params, placement, hardware)
    return [*found]


def is_whole(placement: Placement, n_all: int) -> bool:
    """Whether every layer of a model with ``n_all`` layers is on GPUs."""
    return placement.n_gpu_layers == ALL or placement.n_gpu_layers >= n_all


def _first(least: int, most: int, holds: Callable[[int], bool]) -> int:
    """The smallest number from ``least`` on for which ``holds``, which holds from some number on;
    ``most`` is not asked about."""
    while least < most:
        middle = (least + most) // 2
        if holds(middle):
            most = middle
        else:
            least = middle + 1
    return least
