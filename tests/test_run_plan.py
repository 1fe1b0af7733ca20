"""The plan behind run and chat: what is passed on, what is refused, what is compared afterwards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gguf_spec import run_plan
from gguf_spec.backend import BufferBytes, MemoryAccount
from gguf_spec.errors import NoFitError
from gguf_spec.loading import target_params
from gguf_spec.planning.machine import Machine
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import Setup, prepare
from tests.memory.hybrids import qwen35
from tests.planning.worlds import GIB, MIB, machine

MODELS = Path(__file__).parent / "models"
TARGET = str(MODELS / "tiny-target.gguf")
DRAFT = str(MODELS / "tiny-draft.gguf")


def profile(**values: Any) -> Profile:
    dotted = {name.replace("__", "."): value for name, value in values.items()}
    return apply_values(Profile(), {"target.model": TARGET, "target.n_threads": 1, **dotted})


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Prepare a profile as if on another machine."""

    def prepared(there: Machine, **values: Any) -> Setup:
        monkeypatch.setattr(run_plan, "this_machine", lambda *_, **__: there)
        return prepare(profile(**values))

    return prepared


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 15 GB without its weights."""
    return qwen35().write(tmp_path_factory.mktemp("large") / "q35.gguf")


def test_without_a_gpu_nothing_is_passed_on() -> None:
    setup = prepare(profile())
    assert setup.placed == setup.profile.target
    assert setup.plan.target.placement.n_gpu_layers == 0


def test_a_placement_is_passed_on_as_numbers(on: Any, large: Path) -> None:
    setup = on(machine(12 * GIB), target__model=str(large), target__n_ctx=4096)
    planned = setup.plan.target.placement
    assert 0 < planned.n_gpu_layers < 66
    assert target_params(setup.placed).n_gpu_layers == planned.n_gpu_layers
    two = on(machine(12 * GIB, 12 * GIB), target__model=str(large), target__n_ctx=4096)
    params = target_params(two.placed)
    assert params.n_gpu_layers == 66
    assert sum(params.tensor_split) == 66
    none = on(machine(100 * MIB), target__model=str(large), target__n_ctx=4096)
    assert target_params(none.placed).devices == ("none",)


def test_the_users_own_placement_is_kept_or_refused(on: Any, large: Path) -> None:
    some = on(machine(12 * GIB), target__model=str(large), target__n_gpu_layers=10)
    assert target_params(some.placed).n_gpu_layers == 10
    with pytest.raises(NoFitError, match="of CUDA0 are missing") as caught:
        on(machine(12 * GIB), target__model=str(large), target__n_gpu_layers="all")
    assert "-g auto would fit" in (caught.value.hint or "")


def test_a_context_that_nobody_asked_for_is_as_long_as_fits(on: Any) -> None:
    roomy = on(machine(), target__n_ctx=None)
    assert roomy.n_ctx == 2048
    used = roomy.plan.machine.used(roomy.plan.target.items)["CPU"]
    cache = sum(i.bytes for i in roomy.plan.target.items if i.kind == "kv_cache")
    tight = machine(ram=used - cache // 2)
    shorter = on(tight, target__n_ctx=None, spec__types=["none"])
    assert 512 < shorter.n_ctx < 2048
    assert shorter.warnings == (f"the context is {shorter.n_ctx} tokens long: no more fits",)
    with pytest.raises(NoFitError) as caught:
        on(tight, target__n_ctx=2048, spec__types=["none"])
    assert re.search(r"-c \d+ would fit", caught.value.hint or "")
    assert caught.value.exit_code == 4


def test_a_refused_draft_changes_nothing_of_the_target(on: Any) -> None:
    plain = on(machine(), spec__types=["none"])
    used = plain.plan.machine.used(plain.plan.items)["CPU"]
    setup = on(machine(ram=used), spec__types=["draft-simple"], **{"spec__draft.model": DRAFT})
    assert setup.spec_types == setup.ceilings == setup.floors == setup.drafts == ()
    assert setup.plan.target == plain.plan.target
    assert re.search(r"draft-simple .* is NOT used: it needs at least", setup.warnings[0])
    with Session(setup) as session:
        answer = session.generate(session.raw_prompt("def f"), session.params(max_tokens=4))
        assert len([token for delta in answer for token in delta.tokens]) == 4


def test_a_draft_is_loaded_as_it_was_admitted(on: Any) -> None:
    values = {"spec__types": ["draft-simple"], "spec__draft.model": DRAFT, "spec__draft.n_max": 8}
    whole = on(machine(), **values)
    used = whole.plan.machine.used(whole.plan.items)["CPU"]
    least = used - sum(item.bytes for item in whole.plan.drafts[0].items)
    smaller = on(machine(ram=(used + least) // 2), **values)
    (draft,) = smaller.drafts
    (bundle,) = smaller.plan.drafts
    assert bundle.changes
    assert "fits only with" in smaller.warnings[0]
    assert smaller.ceilings == (bundle.n_max,)
    assert draft.settings.n_ubatch == bundle.params.n_ubatch < 512
    with Session(smaller) as session:
        (context,) = list(session.draft_contexts.values())
        assert context.n_ubatch == bundle.params.n_ubatch
        assert session.warnings == []


def test_more_memory_than_planned_is_told() -> None:
    setup = prepare(profile(spec__types=["none"]))
    with Session(setup) as session:
        account = session.context.memory_breakdown()
        assert session.warnings == []
    assert run_plan.allocation_warnings(setup.plan, [account]) == []
    more = BufferBytes("CPU", "CPU", True, 0, 100 * MIB, 0)
    (said,) = run_plan.allocation_warnings(
        setup.plan, [MemoryAccount((*account.buffers, more), True)]
    )
    assert "host memory" in said
    assert "were planned" in said


@pytest.mark.parametrize("kind", ["tiny-target", "tiny-mtp"])
def test_what_is_planned_is_what_libllama_takes(kind: str) -> None:
    """Without mmap: mapped weights are counted as the span they have in the file."""
    values = {"target__model": str(MODELS / f"{kind}.gguf"), "target__use_mmap": False}
    setup = prepare(profile(spec__types=["none"], **values))
    with Session(setup) as session:
        account = session.context.memory_breakdown()
    taken = sum(b.model + b.context + b.compute for b in account.buffers)
    kinds = ("weights", "kv_cache", "recurrent_state", "compute")
    planned = sum(item.bytes for item in setup.plan.target.items if item.kind in kinds)
    assert abs(planned - taken) <= max(0.01 * taken, MIB // 2)


def test_an_override_for_a_device_that_is_not_here_is_libllamas_to_refuse(on: Any) -> None:
    setup = on(machine(8 * GIB), target__override_tensor=[r"blk\.0\.=CUDA_Host", "x=CUDA0"])
    assert setup.plan.wish.override_tensor == ((r"blk\.0\.", "CPU"), ("x", "CUDA0"))


def test_profiles_limit_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watched(limits: Any, **more: Any) -> Machine:
        seen.append((limits, more))
        return machine(8 * GIB)

    monkeypatch.setattr(run_plan, "this_machine", watched)
    prepare(profile(memory__vram="6GiB", memory__reserve="2GiB", target__devices=["none"]))
    prepare(profile(target__use_mmap=False))
    assert (seen[0][0].vram, seen[0][0].reserve) == ((6 * GIB,), 2 * GIB)
    assert seen[0][1] == {"devices": [], "mapped": True}
    assert (seen[1][0].vram, seen[1][0].reserve) == (None, None)
    assert seen[1][1] == {"devices": None, "mapped": False}
