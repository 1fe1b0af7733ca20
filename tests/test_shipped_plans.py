"""The planner, asked about every shipped profile on the machine that it is for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.gpu_table import find_gpu
from gguf_spec.header import read_model
from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.plan_machine import Limits, named_machine, sized_machine
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.offers import chosen, file_offers
from gguf_spec.planning.types import Plan, Rung, Wish
from gguf_spec.profile import DRAFT_TYPES, Draft, load_profile
from tests.cli.conftest import Cli, cli
from tests.headers.files import whole
from tests.headers.models import CASES, FILES, Case

__all__ = ["cli"]  # a fixture
GIB = 1 << 30
Whole = Callable[[str], Path]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A sparse file of a model's full size, by the name of its header."""
    folder = tmp_path_factory.mktemp("models")
    return functools.cache(lambda name: whole(name, folder))


@pytest.mark.parametrize("name", CASES)
def test_each_is_planned_as_it_says(name: str, file: Whole) -> None:
    profile, made = load_profile(name), _planned(name, file)
    assert made.fits
    assert made.target.tier == "A"
    assert made.target.n_ctx == profile.target.n_ctx
    assert made.target.placement.n_cpu_moe == profile.target.n_cpu_moe
    admitted = {bundle.offer.method: bundle for bundle in made.drafts}
    assert list(admitted) == [kind for kind in profile.spec.types if kind != "none"]
    for kind in set(profile.spec.types) & set(DRAFT_TYPES):
        settings: Draft = getattr(profile.spec, kind.replace("-", "_"))
        assert admitted[kind].n_max == settings.n_max
        assert admitted[kind].changes == (), "it fits as it is, on the GPU"


@pytest.mark.parametrize(
    "name", [name for name in CASES if not name.startswith(("qwen3-4b-", "gemma-4-e4b", "smollm3"))]
)
def test_each_uses_its_class(name: str, file: Whole) -> None:
    """What would fit half the memory is for another class. Left out: models that are the smallest
    of their kind."""
    made = _planned(name, file)
    used, budget = made.machine.used(made.items), made.machine.budgets()
    first = next(iter(used))
    assert 2 * used[first] > budget[first]


@pytest.mark.parametrize("name", ["qwen3.6-27b-mtp", "gemma-4-31b-24gb", "llama-3.3-70b-48gb"])
def test_the_next_smaller_class_would_not_do(name: str, file: Whole) -> None:
    smaller = {24: 16, 48: 32}[CASES[name].vram]
    made = _planned(name, file, vram=smaller)
    assert made.target.tier != "A"


@pytest.mark.parametrize("name", CASES)
def test_each_target_is_planned_without_any_setting(name: str, file: Whole, cli: Cli) -> None:
    """``plan FILE --vram CLASS`` with the defaults, as a user would look before a download."""
    case = CASES[name]
    vram = case.vram or (_usable(case) if case.mac else 0)
    result = cli("plan", str(file(case.target)), "--vram", f"{vram}GiB" if vram else "0",
                 "--ram", f"{case.ram}GiB", "--probe", "off", "--json")  # fmt: skip
    assert result.code == 0
    assert result.json["fits"]
    assert result.json["target"]["quant"].startswith(FILES[case.target].quant[:3])


def test_llama_1b_does_not_fit_beside_llama_8b_on_8_gb(file: Whole) -> None:
    """What llama-3.1-8b-8gb says about its drafting."""
    profile = load_profile("llama-3.1-8b-8gb")
    target = Rung("target", read_model(file("llama-3.1-8b-q4_k_m")))
    draft = Rung("draft", read_model(file("llama-3.2-1b-q8_0")))
    offers = file_offers(target.info, [draft], "asked")
    assert profile.target.n_ctx == 8192
    wish = Wish(MemoryParams(0, type_k="q8_0", type_v="q8_0"), n_ctx=8192)
    made = plan([target], _machine(CASES["llama-3.1-8b-8gb"]), wish, offers)
    assert made.drafts[0].changes == ("its weights on the CPU",)


def _planned(name: str, file: Whole, *, vram: int | None = None) -> Plan:
    case, profile = CASES[name], load_profile(name)
    if vram is not None:
        case = replace(case, vram=vram)
    target = Rung("target", read_model(file(case.target)))
    settings = profile.target
    params = MemoryParams(
        0,
        type_k=settings.type_k,
        type_v=settings.type_v,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        flash_attn=settings.flash_attn,
    )
    wish = Wish(params, n_ctx=settings.n_ctx, n_cpu_moe=settings.n_cpu_moe)
    neural = [kind for kind in profile.spec.types if kind in DRAFT_TYPES]
    n_max = getattr(profile.spec, neural[0].replace("-", "_")).n_max if neural else None
    files = []
    if case.draft is not None:
        rung = Rung("draft", read_model(file(case.draft)))
        files = file_offers(target.info, [rung], "asked", ceiling=n_max)
    offers = chosen(target, files, profile.spec.types, ceiling=n_max)
    return plan([target], _machine(case), wish, offers, one=False)


def _machine(case: Case) -> Machine:
    ram = case.ram * GIB
    if case.mac:
        return named_machine([find_gpu(f"M4 {case.ram}GB")], Limits(ram=ram))
    return sized_machine(Limits((case.vram * GIB,) if case.vram else None, ram))


def _usable(case: Case) -> int:
    """GiB that the GPU of a Mac may use."""
    return case.ram * 3 // 4 if case.ram > 36 else case.ram * 2 // 3
