"""From what was asked on a command line to a plan: files found, headers read, machine looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gguf_spec.demo import Progress
from gguf_spec.errors import InputError, UsageError
from gguf_spec.header import ModelInfo
from gguf_spec.ladder import Found
from gguf_spec.memory import MemoryParams, cache_problem, facts
from gguf_spec.plan import plan
from gguf_spec.plan_remote import Hosts, in_order
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.offers import chosen, file_offers
from gguf_spec.planning.types import DraftOffer, Plan, Wish


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """``draft`` is a reference, "auto" or "none"; ``spec_types`` as in a profile; ``mmproj`` a
    reference. ``n_max`` is a ceiling for drafts of every type. ``offline``: no host is asked."""

    target: str
    draft: str = "auto"
    spec_types: tuple[str, ...] = ("auto",)
    n_max: int | None = None
    mmproj: str | None = None
    wish: Wish = field(default_factory=lambda: Wish(MemoryParams(0)))
    offline: bool = False


def make_plan(
    request: PlanRequest, machine: Machine, *, progress: Progress | None = None
) -> tuple[Plan, tuple[str, ...]]:
    """The plan for ``request`` on ``machine``, and warnings about files.

    Raises:
        InputError: a file is missing, damaged or of the wrong kind.
        UsageError: wishes that contradict each other.
    """
    with Hosts(request.offline, progress) as hosts:
        mmproj = None if request.mmproj is None else _projector(request.mmproj, hosts)
        wish = replace(request.wish, mmproj=mmproj)
        found = hosts.find_target(request.target, machine, wish)
        _check(wish, found)
        offers = _offers(request, found, hosts)
        one = request.spec_types == ("auto",)
        made = plan(found.rungs, machine, wish, offers, one=one)
        return made, (*found.warnings, *hosts.warnings)


def _offers(request: PlanRequest, found: Found, hosts: Hosts) -> list[DraftOffer]:
    target = found.rungs[0]
    types: Sequence[str] = request.spec_types
    if types == ("none",):
        return []
    if request.draft == "none":
        return [o for o in chosen(target, [], types, ceiling=request.n_max) if _is_ngram(o, types)]
    if request.draft == "auto":
        files = file_offers(target.info, found.drafts, "sibling", ceiling=request.n_max)
        files = hosts.with_candidates(target, files, types, ceiling=request.n_max)
        if tuple(types) == ("auto",):
            # What only lies beside the target, and cannot draft for it, was nobody's idea.
            files = [o for o in files if o.problem is None or o.origin == "registry"]
            return in_order(chosen(target, files, types, ceiling=request.n_max), files)
        return chosen(target, files, types, ceiling=request.n_max)
    drafts = hosts.find_drafts(request.draft)
    files = file_offers(target.info, drafts, "asked", ceiling=request.n_max)
    return chosen(target, files, types, ceiling=request.n_max, alone=True)


def _is_ngram(offer: DraftOffer, types: Sequence[str]) -> bool:
    return tuple(types) != ("auto",) and not offer.is_neural


def _projector(text: str, hosts: Hosts) -> ModelInfo:
    info = hosts.header(text)
    if info.role != "mmproj":
        raise InputError(
            f"{text} is no projector: its role is {info.role}",
            hint="projectors are files such as mmproj-F16.gguf",
        )
    return info


def _check(wish: Wish, found: Found) -> None:
    """Refuse what libllama would refuse once it has loaded everything."""
    info = found.rungs[0].info
    if wish.n_cpu_moe and not any("_exps" in tensor.name for tensor in info.tensors):
        raise UsageError(f"--n-cpu-moe {wish.n_cpu_moe}: {info.name} has no experts")
    problem = cache_problem(facts(info), wish.params)
    if problem is not None:
        raise UsageError(problem, hint="change --type-k or --type-v")
