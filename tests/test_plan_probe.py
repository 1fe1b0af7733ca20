"""What becomes of a plan when libllama counts something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gguf_spec.backend import BufferBytes
from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.plan_probe import compared, corrected, cross_checked
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.types import Plan, Wish
from gguf_spec.probe import ContextBytes, ProbeResult
from tests.planning.worlds import GIB, MIB, machine, mtp, rungs

WISH = Wish(MemoryParams(0), n_ctx=4096)


def made(there: Machine) -> Plan:
    return plan(rungs("hybrid", "Q4_K"), there, WISH, [mtp("hybrid")])


def account(found: Plan, owner: str, **more: int) -> ContextBytes:
    """What libllama would say if it agreed, and ``more`` of something."""
    kinds = {"model": ("weights",), "context": ("kv_cache", "recurrent_state")}
    kinds["compute"] = ("compute",)
    items = found.target.items
    sums: dict[str, Any] = {
        part: sum(i.bytes for i in items if i.owner == owner and i.kind in names)
        for part, names in kinds.items()
    }
    for part, n_bytes in more.items():
        sums[part] += n_bytes
    if found.drafts:  # the head's weights are loaded with the target's
        sums["model"] += sum(i.bytes for i in found.drafts[0].items if i.kind == "weights")
    return ContextBytes((BufferBytes("CPU", "CPU", True, **sums),), 0, 4096, 2048, 512)


def again(_: Machine) -> Plan:
    raise AssertionError("nothing has to be planned anew")


def test_small_differences_change_nothing() -> None:
    found = made(machine())
    result = ProbeResult(account(found, "target", compute=60 * MIB))
    same = compared(found, found.drafts[0], result, again)
    assert same.target == found.target
    assert "agrees" in same.reasons[-1]


def test_libllamas_number_is_taken_where_it_is_far_off() -> None:
    found = made(machine())
    result = ProbeResult(account(found, "target", compute=200 * MIB))
    changed = compared(found, found.drafts[0], result, again)
    (item,) = [item for item in changed.target.items if item.kind == "compute"]
    before = sum(item.bytes for item in found.target.items if item.kind == "compute")
    assert (item.source, item.bytes) == ("probe", before + 200 * MIB)
    assert "target's compute on CPU" in changed.reasons[-1]
    others = [item for item in changed.target.items if item.kind != "compute"]
    assert others == [item for item in found.target.items if item.kind != "compute"]


def test_what_no_longer_fits_is_planned_anew_with_less() -> None:
    alone = made(machine())
    there = machine(ram=alone.machine.used(alone.items)["CPU"])
    tight = made(there)
    asked: list[Machine] = []

    def less(smaller: Machine) -> Plan:
        asked.append(smaller)
        return made(smaller)

    more = sum(item.bytes for item in tight.drafts[0].items) + 300 * MIB
    result = ProbeResult(account(tight, "target", context=more))
    changed = compared(tight, tight.drafts[0], result, less)
    assert there.host.budget - asked[0].host.budget == more
    assert not changed.fits
    assert changed.machine == there
    assert "planned with less" in changed.reasons[-1]


def test_a_draft_that_needs_more_is_refused_afterwards() -> None:
    alone = made(machine())
    tight = made(machine(ram=alone.machine.used(alone.items)["CPU"]))
    assert tight.drafts
    large = ContextBytes((BufferBytes("CPU", "CPU", True, 0, 0, GIB),), 0, 4096, 512, 512)
    result = ProbeResult(account(tight, "target"), large)
    changed = compared(tight, tight.drafts[0], result, again)
    assert changed.target == tight.target
    assert changed.drafts == ()
    (verdict,) = changed.verdicts
    assert not verdict.admitted
    assert verdict.missing_bytes > 0
    assert "libllama needs" in verdict.reason


def test_parts_that_libllama_does_not_name_are_left_alone() -> None:
    found = made(machine())
    notes: list[str] = []
    silent = replace(account(found, "target", context=GIB), missing=("model", "context"))
    assert corrected(found.target.items, silent, "target", notes) == found.target.items
    assert notes == []


def test_another_machine_is_not_asked_about() -> None:
    found = made(machine())
    assert cross_checked(found, "auto", here=False, again=again) is found
    assert cross_checked(found, "off", here=True, again=again) is found
