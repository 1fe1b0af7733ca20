"""Which types draft, and from which files: what was asked for, and what lies beside the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from gguf_spec.block_format import block_format
from gguf_spec.errors import InputError, PairError, RefError, UsageError
from gguf_spec.header import NGRAM_TYPES, ModelInfo
from gguf_spec.pairing import AVAILABLE_DRAFT_TYPES, ROLE_TYPES, offers, own_head
from gguf_spec.profile import DRAFT_TYPES, Draft, Profile, draft_settings
from gguf_spec.profile_schema import DraftType
from gguf_spec.siblings import HEAD_TYPES, KEYWORDS, Search, Sibling, hinted_type, search

DraftFile = tuple[str, ModelInfo]  # what it was called, and its header
Reader = Callable[[str], ModelInfo]  # from a model reference to a header that has been checked

AVAILABLE_TYPES = (*NGRAM_TYPES, *(kind for kind in DRAFT_TYPES if kind in AVAILABLE_DRAFT_TYPES))
_TOLD = 3  # files of which an error names the reason


@dataclass(slots=True)
class DraftChoice:
    """``types`` in order of preference, ``files`` by type. ``siblings`` are the types whose file
    was not named but found; ``remarks`` say which."""

    types: tuple[str, ...] = ()
    files: dict[str, DraftFile] = field(default_factory=dict)
    siblings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def choose(profile: Profile, target: ModelInfo, read: Reader, warnings: list[str]) -> DraftChoice:
    """Choose what drafts. With ``auto``: n-grams, then the drafts that were named, else the
    target's own head, else the head that lies beside it.

    Raises:
        InputError: a type cannot be used with this target and these files.
        UsageError: a type needs a file, and none was named.
    """
    choice = DraftChoice(files=_named_files(profile, read))
    wanted = profile.spec.types
    if wanted == ("auto",):
        if not choice.files and own_head(target).usable:
            choice.types = ("ngram-simple", "draft-mtp")
            return choice
        if not choice.files:
            _take_best(choice, profile, target)
        choice.types = ("ngram-simple", *choice.files)
        return choice
    wanted = _told_types(wanted, choice.files)
    _warn_of_unused(profile, wanted, warnings)
    if wanted == ("none",):
        return choice
    named = dict(choice.files)
    for kind in wanted:
        _check_available(kind)
        if kind in DRAFT_TYPES and kind not in choice.files:
            _find_for(kind, target, named, choice)
    for kind, (ref, _) in named.items():
        if kind not in wanted:
            warnings.append(
                f"{ref} drafts for {kind}, but the spec type is {', '.join(wanted)}: it is NOT used"
            )
    choice.types = wanted
    return choice


def _named_files(profile: Profile, read: Reader) -> dict[str, DraftFile]:
    """The files that may draft, by spec type. What a draft without a type is for, its header says:
    those come first. Such are the ones of [spec.draft] and of [spec.draft-simple]."""
    spec, wanted = profile.spec, profile.spec.types
    files: dict[str, DraftFile] = {}
    if wanted != ("auto",) and not any(kind in DRAFT_TYPES for kind in wanted):
        return files
    told: str | None = None
    for ref in (spec.draft.model, spec.draft_simple.model):
        if ref is not None:
            info = _read_named(read, ref, "draft-simple")
            told = ROLE_TYPES.get(info.role, "draft-simple")
            files[told] = ref, info
    for kind in DRAFT_TYPES[1:]:
        own: Draft = getattr(spec, kind.replace("-", "_"))
        if kind == told and spec.draft_simple.model is not None:
            continue  # -d/--draft replaces the file of a profile, which may not be here
        if own.model is not None and (wanted == ("auto",) or kind in wanted):
            files[kind] = own.model, _read_named(read, own.model, kind)
    return files


def _read_named(read: Reader, ref: str, kind: str) -> ModelInfo:
    """The header of a draft. Where it is not here, the way on without a change of the profile."""
    try:
        return read(ref)
    except RefError as error:
        name = "" if kind == "draft-simple" else f"{kind}="
        hint = (
            f"{error.hint}; if the draft is elsewhere: -d {name}FILE; without it: "
            f"--spec-type {NGRAM_TYPES[0]}"
        )
        raise RefError(f"{kind}: {error.message}", hint=hint) from error


def _told_types(wanted: tuple[str, ...], files: dict[str, DraftFile]) -> tuple[str, ...]:
    """``wanted`` with the type of the file in place of draft-simple, which -d/--draft stands for
    unless it names a type."""
    if files and "draft-simple" in wanted and "draft-simple" not in files:
        told = next(iter(files))
        return tuple(told if kind == "draft-simple" else kind for kind in wanted if kind != told)
    return wanted


def _warn_of_unused(profile: Profile, wanted: tuple[str, ...], warnings: list[str]) -> None:
    has_draft = (profile.spec.draft.model or profile.spec.draft_simple.model) is not None
    if has_draft and not any(kind in wanted for kind in DRAFT_TYPES):
        warnings.append(
            f"a draft model is given, but the spec type is {', '.join(wanted)}: it is NOT used "
            "(--spec-type draft-simple, or auto, uses it)"
        )


def _check_available(kind: str) -> None:
    if kind not in AVAILABLE_TYPES:
        raise InputError(
            f"spec type {kind} is not available in this version",
            hint=f"available: none, auto, {', '.join(AVAILABLE_TYPES)}",
        )


def _take_best(choice: DraftChoice, profile: Profile, target: ModelInfo) -> None:
    """Take the head beside the target that llama.cpp would prefer, if there is one that fits. One
    whose name is another model's is left alone: numbers that agree do not make it this one's."""
    best: Sibling | None = None
    for sibling in search(target).look():
        if not (sibling.usable and sibling.belongs) or _settings_problem(profile, sibling):
            continue
        if best is None or _preference(sibling) < _preference(best):
            best = sibling
        if best.type == HEAD_TYPES[0]:
            break
    if best is not None:
        _take(choice, best)


def _preference(sibling: Sibling) -> int:
    return HEAD_TYPES.index(sibling.type or HEAD_TYPES[-1])


def _settings_problem(profile: Profile, sibling: Sibling) -> str | None:
    """Why the profile's settings rule this file out; for a file that was named it is an error."""
    if sibling.info is None or sibling.type not in ("draft-dflash", "draft-dspark"):
        return None
    form = block_format(sibling.info)
    settings = draft_settings(profile.spec, cast("DraftType", sibling.type))
    return form.settings_problem(settings.p_min, settings.type_k, settings.type_v)


def _take(choice: DraftChoice, sibling: Sibling) -> None:
    assert sibling.info is not None
    assert sibling.type is not None
    choice.files[sibling.type] = str(sibling.path), sibling.info
    choice.siblings += (sibling.type,)
    choice.remarks += (f"drafting with {sibling.where} ({sibling.type})",)


def _find_for(
    kind: str, target: ModelInfo, named: dict[str, DraftFile], choice: DraftChoice
) -> None:
    """Find a file for ``kind``, which was asked for without one. Raises where there is none, with
    what was found instead."""
    if kind == "draft-simple":
        raise _needs_file(kind)
    if kind == "draft-mtp" and own_head(target).usable:
        return
    found = search(target)
    others: list[Sibling] = []
    for sibling in found.look([kind]):
        if sibling.usable and sibling.type == kind:
            _take(choice, sibling)
            return
        others.append(sibling)
    for other, (ref, _) in named.items():
        raise PairError(
            f"{ref} drafts for {other}, not for {kind}", hint=f"--spec-type {other}, or auto"
        )
    offer = next(offer for offer in offers(target) if offer.type == kind)
    if kind == "draft-mtp":
        reason = f"spec type draft-mtp is not available: {own_head(target).reason}"
    elif offer.how == "no":
        reason = f"spec type {kind} is not available: {offer.reason}"
    elif others or found.problems:
        reason = f"spec type {kind} needs a draft head"
    else:
        raise _needs_file(kind)
    hint = _way_out(kind) if offer.how == "file" else _possible(target)
    raise PairError(_with_found(reason, kind, others, found), hint=hint)


def _with_found(message: str, kind: str, others: list[Sibling], found: Search) -> str:
    """``message`` with what lies beside the target and why it is of no use."""
    kin = [s for s in others if kind in (s.type, hinted_type(s.path.name))]
    told = [
        f"{s.path.name}: {f'it is for {s.type}' if s.usable else s.reason}" for s in kin[:_TOLD]
    ]
    if len(kin) > _TOLD:
        told.append(f"{len(kin) - _TOLD} more")
    if len(others) > len(kin):
        told.append(f"{len(others) - len(kin)} named for other types (inspect lists them)")
    told += found.problems
    return f"{message}; beside the model: {'; '.join(told)}" if told else message


def _possible(target: ModelInfo) -> str:
    kinds = [offer.type for offer in offers(target) if offer.how != "no"]
    return (
        f"{target.arch} models can have, with a file (-d/--draft REF): {', '.join(kinds)}; n-grams "
        "need none"
    )


def _needs_file(kind: str) -> UsageError:
    if kind == "draft-simple":
        hint = "name one with -d/--draft REF or in [spec.draft] model"
        return UsageError(f"spec type {kind} needs a draft model", hint=hint)
    return UsageError(f"spec type {kind} needs a draft model", hint=_way_out(kind))


def _way_out(kind: str) -> str:
    return (
        f"name a file with the head with -d/--draft REF or in [spec.{kind}] model, or put one "
        f"beside the model with {KEYWORDS[kind][0]} in its name; auto drafts with what there is"
    )
