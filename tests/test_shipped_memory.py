"""The shipped profiles fit the machines that they are for, judged by stored headers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest

from gguf_spec import memory
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.memory import CPU, Hardware, MemoryItem, MemoryParams, Placement
from gguf_spec.pairing import ROLE_TYPES, check_pair, own_head
from gguf_spec.profile import DRAFT_TYPES, Draft, Profile, load_profile
from gguf_spec.profile_find import shipped_folder
from tests.headers.files import stored, whole
from tests.headers.models import CASES, FILES, Case

GIB = 1 << 30
RESERVE = GIB  # as [memory] reserve
#: What a file holds for each token of its vocabulary: the token, its kind, its merge.
VOCABULARY = 70


Model = Callable[[str], ModelInfo]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model by the name of its header, read once."""
    folder = tmp_path_factory.mktemp("models")
    return functools.cache(lambda name: read_model(whole(name, folder)))


def _profiles() -> set[str]:
    names = (path.stem for path in shipped_folder().glob("*.toml"))
    return {name for name in names if name != "demo" and not name.startswith("base-")}


def test_every_profile_of_a_real_model_has_a_machine_and_a_header() -> None:
    assert _profiles() == set(CASES)
    used = {name for case in CASES.values() for name in (case.target, case.draft) if name}
    assert used <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_stored_headers_are_what_is_described(name: str) -> None:
    described = FILES[name].described(name)
    assert stored(name).read_bytes() == described.header()
    assert len(described.header()) < 70_000
    public = FILES[name].n_bytes
    if public is not None:
        slack = 0.02 * public + VOCABULARY * described.n_vocab
        assert abs(described.n_bytes - public) <= slack


@pytest.mark.parametrize("name", CASES)
def test_each_fits_its_machine(name: str, model: Model) -> None:
    case, profile = CASES[name], load_profile(name)
    target = model(case.target)
    draft = None if case.draft is None else model(case.draft)
    items = _target_items(profile, target, case)
    for memory_name, (used, budget) in _sums(items, case).items():
        assert used <= budget, f"without a draft, {memory_name}"
    items += _draft_items(profile, target, draft, case)
    for memory_name, (used, budget) in _sums(items, case).items():
        assert used <= budget, memory_name


@pytest.mark.parametrize("name", CASES)
def test_each_uses_its_memory(name: str, model: Model) -> None:
    """A profile for a class is no good if one for half of it would do, heads for one small model
    and experts in RAM aside."""
    case, profile = CASES[name], load_profile(name)
    if name.startswith(("qwen3-4b-", "gemma-4-e4b", "smollm3")):
        return
    target = model(case.target)
    draft = None if case.draft is None else model(case.draft)
    items = [*_target_items(profile, target, case), *_draft_items(profile, target, draft, case)]
    used, budget = next(iter(_sums(items, case).values()))
    assert used > budget / 2


@pytest.mark.parametrize("name", CASES)
def test_each_draft_is_for_its_target(name: str, model: Model) -> None:
    case, profile = CASES[name], load_profile(name)
    target = model(case.target)
    kinds = [kind for kind in profile.spec.types if kind in DRAFT_TYPES]
    if case.draft is None:
        assert kinds == (["draft-mtp"] if own_head(target).usable and kinds else [])
        return
    draft = model(case.draft)
    assert kinds == [ROLE_TYPES[draft.role]]
    # Headers without a vocabulary say no more than its size, which has to be enough here.
    pair = check_pair(target, draft)
    assert pair.usable or pair.other_vocabulary, pair.reason
    assert target.vocab_size == draft.vocab_size


def test_a_machine_that_is_too_small_is_told(model: Model) -> None:
    profile = load_profile("qwen3.6-27b-mtp")
    target = model(CASES["qwen3.6-27b-mtp"].target)
    small = replace(CASES["qwen3.6-27b-mtp"], vram=16)
    used, budget = _sums(_target_items(profile, target, small), small)["GPU0"]
    assert used > budget


def _machine(case: Case) -> Hardware:
    if case.mac:
        return Hardware((memory.Device("GPU0", "Metal"),))
    return Hardware((memory.Device("GPU0", "CUDA"),) if case.vram else ())


def _params(profile: Profile) -> MemoryParams:
    target = profile.target
    assert isinstance(target.n_ctx, int)
    return MemoryParams(
        n_ctx=target.n_ctx,
        type_k=target.type_k,
        type_v=target.type_v,
        n_batch=target.n_batch,
        n_ubatch=target.n_ubatch,
        flash_attn=target.flash_attn,
    )


def _target_items(profile: Profile, target: ModelInfo, case: Case) -> list[MemoryItem]:
    placement = Placement(n_cpu_moe=profile.target.n_cpu_moe)
    return memory.target_items(target, _params(profile), placement, _machine(case))


def _draft_items(
    profile: Profile, target: ModelInfo, draft: ModelInfo | None, case: Case
) -> list[MemoryItem]:
    """What the profile's drafters cost, each at the longest drafts that it may make."""
    items: list[MemoryItem] = []
    hardware, params = _machine(case), _params(profile)
    placement = Placement(n_cpu_moe=profile.target.n_cpu_moe)
    for kind in profile.spec.types:
        if kind not in DRAFT_TYPES:
            continue
        settings: Draft = getattr(profile.spec, kind.replace("-", "_"))
        assert isinstance(settings.n_max, int)
        own = draft or target
        items += memory.draft_deltas(kind, settings.n_max, own, target, params, placement, hardware)
        n_ubatch = 512 if kind in ("draft-simple", "draft-mtp") else 128
        context = memory.draft_context(kind, params, n_max=settings.n_max, n_ubatch=n_ubatch)
        context = replace(context, type_k=settings.type_k, type_v=settings.type_v)
        where = placement if draft is None else Placement()
        items += memory.draft_items(kind, own, target, context, where, hardware)
    return items


def _sums(items: list[MemoryItem], case: Case) -> dict[str, tuple[int, int]]:
    """Bytes used and bytes there are, by memory; that of the GPU first."""
    sums = memory.totals(items).by_device
    ram = case.ram * GIB
    if case.mac:
        usable = ram * 3 // 4 if case.ram > 36 else ram * 2 // 3
        return {"GPU0": (sum(sums.values()), usable - RESERVE)}
    found = {"GPU0": (sums["GPU0"], case.vram * GIB - RESERVE)} if case.vram else {}
    return found | {CPU: (sums[CPU], ram - min(RESERVE, ram // 16))}
