"""Ask libllama whether a plan's numbers are right, before anything is loaded.

The rules in ``memory/`` decide, because they are quick and know machines that are elsewhere. What
they came to is then compared with what libllama counts for the same files on this machine, and
where the two are far apart libllama is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gguf_spec.backend import BufferBytes, ContextParams, ModelParams
from gguf_spec.bare_header import bare_headers
from gguf_spec.block_format import block_format
from gguf_spec.errors import UsageError
from gguf_spec.header import ModelInfo, read_header
from gguf_spec.memory import CPU, Kind, MemoryItem, MemoryParams, Placement, draft_items
from gguf_spec.memory.bill import BLOCKS
from gguf_spec.planning.drafts import mib
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.target import shortage
from gguf_spec.planning.types import Bundle, Plan, TargetPlan
from gguf_spec.probe import ContextBytes, ProbeDraft, ProbeError, ProbeModel, ProbeResult, probe

#: From this difference on libllama's number is taken: bytes, and a part of its number.
LEAST_DIFFERENCE = 64 << 20
LEAST_PART = 0.02

#: Our kinds by the parts of libllama's account.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "model": ("weights",),
    "context": ("kv_cache", "recurrent_state"),
    "compute": ("compute",),
}


def cross_checked(plan: Plan, mode: str, *, here: bool, again: Callable[[Machine], Plan]) -> Plan:
    """``plan`` with libllama's numbers where ours are wrong. ``mode``: auto, off or require;
    ``here``: the plan is for this machine. ``again`` plans anew, for a machine with less memory.

    Raises:
        UsageError, ProbeError: it is required, and not possible.
    """
    if mode == "off" or not plan.fits:
        return plan
    if not here:
        if mode == "require":
            raise UsageError(
                "--probe require: libllama can only be asked about this machine",
                hint="leave out --vram, --gpu and --ram",
            )
        return plan
    draft = next((bundle for bundle in plan.drafts if bundle.offer.is_neural), None)
    try:
        result = ask(plan.target, draft)
    except ProbeError as error:
        if mode == "require":
            raise
        return _with_reason(plan, f"not compared with libllama: {error.message}")
    return compared(plan, draft, result, again)


def ask(target: TargetPlan, draft: Bundle | None) -> ProbeResult:
    """What libllama says that the target takes alone, and the draft beside it.

    Raises:
        ProbeError: it does not say.
    """
    info, inside = target.rung.info, draft is not None and draft.offer.inside
    model = _model(info, target.placement, load_mtp=inside)
    beside = None
    if draft is not None and draft.rung is not None and draft.params is not None:
        own = None
        if not inside and draft.placement is not None:
            is_mtp = draft.offer.method == "draft-mtp"
            own = _model(draft.rung.info, draft.placement, load_mtp=is_mtp)
        context = _draft_context(draft, draft.params)
        beside = ProbeDraft(own, context, on_target=draft.offer.method != "draft-simple")
    return probe(model, _context(target.params), beside)


def compared(
    plan: Plan, draft: Bundle | None, result: ProbeResult, again: Callable[[Machine], Plan]
) -> Plan:
    """``plan`` with what ``result`` says; made anew if it then no longer fits."""
    machine, notes = plan.machine, list[str]()
    mtp = draft.items if draft is not None and draft.offer.inside else ()
    items = corrected(plan.target.items, result.target, "target", notes, also=mtp)
    over = machine.missing(items)
    if over:
        less = _with_less(machine, plan.target.items, items)
        made = again(less)
        words = f"libllama needs {shortage(over)} more than the rules say: planned with less"
        return _with_reason(replace(made, machine=machine), words)
    plan = replace(plan, target=replace(plan.target, items=items))
    if draft is not None and result.draft is not None:
        own = _own_items(plan, draft)
        rest = [item for item in draft.items if item not in own]
        fixed = corrected(own, result.draft, "draft", notes)
        plan = _with_draft_items(plan, draft, (*fixed, *rest))
    if not notes:
        return _with_reason(plan, f"libllama's own count agrees ({result.seconds:.1f} s)")
    return replace(plan, reasons=(*plan.reasons, *notes))


def corrected(
    items: Sequence[MemoryItem],
    account: ContextBytes,
    owner: str,
    notes: list[str],
    *,
    also: Iterable[MemoryItem] = (),
) -> tuple[MemoryItem, ...]:
    """``items`` with libllama's numbers where they differ by much; ``notes`` are told which.

    ``also`` are weights that belong to somebody else, and that libllama counts here.
    """
    found = list(items)
    for part, kinds in _KINDS.items():
        if part in account.missing:
            continue
        counted = _by_device(account.buffers, part)
        for device in sorted({*counted, *(i.device for i in items if i.kind in kinds)}):
            mine = [i for i in found if i.owner == owner and i.device == device and i.kind in kinds]
            theirs = counted.get(device, 0) - sum(
                i.bytes for i in also if part == "model" and i.kind in kinds and i.device == device
            )
            ours = sum(item.bytes for item in mine)
            if abs(theirs - ours) <= max(LEAST_DIFFERENCE, LEAST_PART * theirs):
                continue
            notes.append(
                f"{owner}'s {' and '.join(kinds).replace('_', ' ')} on {device}: libllama counts "
                f"{mib(theirs)}, the rules {mib(ours)}"
            )
            why = f"libllama's own count; the rules say {ours} bytes"
            found = [item for item in found if item not in mine]
            found.append(MemoryItem(device, owner, kinds[0], max(theirs, 0), "probe", why))
    return tuple(found)


def _by_device(buffers: Iterable[BufferBytes], part: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for buffer in buffers:
        device = CPU if buffer.host or buffer.device.startswith(CPU) else buffer.device
        sums[device] = sums.get(device, 0) + int(getattr(buffer, part))
    return sums


def _with_less(
    machine: Machine, ours: Iterable[MemoryItem], theirs: Iterable[MemoryItem]
) -> Machine:
    """The machine with as much less as libllama needs more."""
    before, after = machine.used(ours), machine.used(theirs)
    more = {name: max(after[name] - before[name], 0) for name in after}
    gpus = tuple(replace(gpu, budget=gpu.budget - more[gpu.name]) for gpu in machine.gpus)
    host = machine.host
    if CPU in more:
        host = replace(host, budget=host.budget - more[CPU], available=host.available - more[CPU])
    return replace(machine, gpus=gpus, host=host)


def _own_items(plan: Plan, draft: Bundle) -> list[MemoryItem]:
    """Those items of a draft that are its own, and no growth of the target's buffers."""
    assert draft.rung is not None
    assert draft.params is not None
    assert draft.placement is not None
    own = draft_items(
        draft.offer.method, draft.rung.info, plan.target.rung.info, draft.params, draft.placement,
        plan.machine.hardware,
    )  # fmt: skip
    if draft.offer.inside:  # whose weights are the target's
        own = [item for item in own if item.kind != "weights"]
    return own


def _with_draft_items(plan: Plan, draft: Bundle, items: tuple[MemoryItem, ...]) -> Plan:
    """``plan`` with other numbers for ``draft``, which is refused if it no longer fits."""
    changed = replace(draft, items=items)
    drafts = tuple(changed if bundle is draft else bundle for bundle in plan.drafts)
    made = replace(plan, drafts=drafts)
    missing = made.missing
    if missing:
        made = replace(plan, drafts=tuple(b for b in plan.drafts if b is not draft))
    verdicts = tuple(
        verdict
        if verdict.bundle is not draft
        else replace(verdict, bundle=changed)
        if not missing
        else replace(
            verdict, bundle=None, least=changed, missing=missing,
            reason=f"libllama needs {mib(changed.bytes)} for it: {shortage(missing)} are missing",
        )
        for verdict in plan.verdicts
    )  # fmt: skip
    return replace(made, verdicts=verdicts)


def _with_reason(plan: Plan, reason: str) -> Plan:
    return replace(plan, reasons=(*plan.reasons, reason))


def _model(info: ModelInfo, placement: Placement, *, load_mtp: bool) -> ProbeModel:
    parts = [info] if len(info.files) == 1 else [read_header(file) for file in info.files]
    overrides = [*placement.override_tensor, *expert_overrides(placement.n_cpu_moe)]
    params = ModelParams(
        n_gpu_layers=placement.n_gpu_layers,
        tensor_split=placement.tensor_split,
        devices=("none",) if placement.devices == () else placement.devices or (),
        overrides=tuple(overrides),
        load_mtp=load_mtp,
    )
    return ProbeModel(bare_headers(parts), params, Path(info.files[0]))


def expert_overrides(n_cpu_moe: int) -> list[tuple[str, str]]:
    """The tensor overrides that llama.cpp makes of --n-cpu-moe."""
    return [(rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps", CPU) for i in range(n_cpu_moe)]


def _context(params: MemoryParams) -> ContextParams:
    n_seq = params.n_seq_max
    return ContextParams(
        n_ctx=-(-params.n_ctx // n_seq),
        n_seq_max=n_seq,
        n_batch=params.n_batch,
        n_ubatch=min(params.n_ubatch, params.n_batch),
        max_width=max(params.n_outputs_max // n_seq, 1),
        type_k=params.type_k,
        type_v=params.type_v,
        flash_attn=params.flash_attn,
        swa_full=params.swa_full,
        kv_unified=params.kv_unified,
        n_rs_seq=params.n_rs_seq,
    )


def _draft_context(draft: Bundle, params: MemoryParams) -> ContextParams:
    """The draft's context as a session makes it (``head_params``), but for the target's."""
    context = replace(_context(params), n_batch=params.n_ubatch)
    method = draft.offer.method
    if method == "draft-mtp":
        return replace(context, mtp=True, own_states=True)
    if method == "draft-eagle3":
        return replace(context, own_states=True)
    if method in BLOCKS and draft.rung is not None:
        form = block_format(draft.rung.info)
        return replace(
            context,
            causal=form.causal,
            own_states=form.reads_states(0.0),
            max_width=form.first_row + min(draft.n_max, form.n_max),
            swa_full=True,
        )
    return context
