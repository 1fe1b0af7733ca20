"""Profiles: find, load, merge, override.

The only effect is reading TOML files. A profile is merged from its files as plain tables and then
validated once, so pydantic's ``model_fields_set`` tells what somebody wrote and what is a default;
:func:`sampling_settings` relies on it. Every problem in every file of the chain is
reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gguf_spec.errors import ProfileError, UsageError
from gguf_spec.profile_cross import cross_problems
from gguf_spec.profile_find import candidates, exists, find_profile, profile_folders, user_folder
from gguf_spec.profile_schema import (
    Draft,
    Profile,
    Sampling,
    Spec,
    Target,
    draft_settings,
)
from gguf_spec.profile_text import (
    KeyPath,
    Problem,
    find_problems,
    key_lines,
    parse_toml,
    read_profile_file,
    show_path,
)
from gguf_spec.profile_values import (
    DRAFT_TYPES,
    SPEC_TYPES,
    nearest_name,
    parse_lora,
    parse_size,
    parse_spec_types,
)

__all__ = [
    "DRAFT_TYPES", "SPEC_TYPES", "Draft", "FoundProfile", "Profile", "Sampling", "Spec", "Target",
    "apply_overrides", "apply_values", "draft_settings", "find_profile", "find_profiles",
    "json_schema", "load_profile", "parse_lora", "parse_size", "parse_spec_types",
    "profile_folders", "sampling_settings", "user_folder", "with_paths",
]  # fmt: skip

# ---------------------------------------------------------------------------- finding


@dataclass(frozen=True)
class FoundProfile:
    """One line of ``profiles list``."""

    name: str
    path: Path
    description: str = ""
    model: str | None = None
    spec_types: tuple[str, ...] = ()
    shadowed_by: Path | None = None
    error: str | None = None


def find_profiles(*, search: Sequence[Path] | None = None) -> list[FoundProfile]:
    """List all profiles in the folders; one that cannot be loaded is listed with its error."""
    found: list[FoundProfile] = []
    first: dict[str, Path] = {}
    seen: set[Path] = set()
    for folder in profile_folders() if search is None else search:
        for path in sorted(folder.glob("*.toml")):
            real = path.resolve()
            if real in seen or not path.is_file():
                continue
            seen.add(real)
            found.append(_describe(path, first.get(path.stem), search))
            first.setdefault(path.stem, path)
    return found


def _describe(path: Path, shadow: Path | None, search: Sequence[Path] | None) -> FoundProfile:
    try:
        profile = load_profile(path, search=search)
    except ProfileError as error:
        return FoundProfile(path.stem, path, shadowed_by=shadow, error=error.message)
    return FoundProfile(
        path.stem, path, profile.description, profile.target.model, profile.spec.types, shadow
    )


# ---------------------------------------------------------------------------- loading


@dataclass
class _Layer:
    """One file of the chain that ``extends`` makes; the user's own file is the first."""

    path: Path
    raw: dict[str, Any]
    text: str
    problems: list[Problem] = field(default_factory=list)

    def messages(self) -> list[str]:
        lines = key_lines(self.text) if self.problems else {}
        shown = show_path(self.path)
        ordered = sorted(self.problems, key=lambda item: lines.get(item.path, 0))
        return [problem.in_file(shown, lines) for problem in ordered]


def load_profile(path_or_name: str | Path, *, search: Sequence[Path] | None = None) -> Profile:
    """Load a profile and all that it extends. Raises ProfileError with every problem found.

    ``search`` replaces the folders for names (``./profiles``, the user's, the shipped ones).
    """
    name = str(path_or_name)
    path = find_profile(path_or_name, search=search)
    if path is None:
        if Path(name).suffix == ".toml" or len(Path(name).parts) > 1 or exists(Path(name)):
            read_profile_file(Path(name))  # says exactly why it cannot be read
        raise ProfileError(f"there is no profile named {name[:100]!r}", hint=_known(name, search))
    layers, broken = _read_chain(path, search)
    messages = [message for layer in layers for message in layer.messages()] + broken
    if messages:
        raise _all_of(messages, show_path(path))
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged.pop("extends", None)  # each file names its own base only
        merged = _merge(merged, with_paths(layer.raw, layer.path.absolute().parent))
    profile = Profile.model_validate(merged)
    if messages := _cross_messages(profile, layers):
        raise _all_of(messages, show_path(path))
    return profile


def _known(name: str, search: Sequence[Path] | None) -> str:
    """Make the hint for a name that is not found."""
    folders = profile_folders() if search is None else search
    names = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    if not names:
        return "looked in " + ", ".join(show_path(folder) for folder in folders)
    return f"did you mean `{nearest_name(name, names)}`? there are: {', '.join(names)}"


def _read_chain(path: Path, search: Sequence[Path] | None) -> tuple[list[_Layer], list[str]]:
    """Read a file and what it extends, base last; problems stay with their file."""
    layers: list[_Layer] = []
    seen: list[Path] = []
    while True:
        try:
            text, raw = read_profile_file(path)
        except ProfileError as error:
            return layers, [error.message]
        layer = _Layer(path, raw, text, find_problems(raw))
        layers.append(layer)
        seen.append(path.resolve())
        base = raw.get("extends")
        if not isinstance(base, str) or not base:
            return layers, []
        options = list(candidates(base, search=search, beside=path.parent))
        # A user's "demo" may extend the shipped "demo": the file itself is not what is meant.
        others = [option for option in options if option.resolve() != seen[-1]]
        if not options:
            text = f"`extends`: there is no profile named {base[:100]!r}; {_known(base, search)}"
            layer.problems.append(Problem(("extends",), text))
            return layers, []
        path = (others or options)[0]
        if path.resolve() in seen:
            chain = " -> ".join([*(show_path(item.path) for item in layers), show_path(path)])
            layer.problems.append(
                Problem(("extends",), f"`extends` goes round in a circle: {chain}")
            )
            return layers, []


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge, everything else replaces. Depth is limited by ``parse_toml``."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return result


def _cross_messages(profile: Profile, layers: Sequence[_Layer]) -> list[str]:
    """Say what does not go together, at the place where the key was written last."""
    messages = []
    for path, text in cross_problems(profile):
        problem = Problem(path, f"[{'.'.join(path[:-1])}] {text}")
        layer = next((item for item in layers if _get(item.raw, path) is not None), layers[0])
        messages.append(problem.in_file(show_path(layer.path), key_lines(layer.text)))
    return messages


def _get(raw: Mapping[str, Any], path: KeyPath) -> object:
    value: object = raw
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _all_of(messages: Sequence[str], shown: str) -> ProfileError:
    """One message that holds all problems: whoever prints it loses none."""
    if len(messages) == 1:
        return ProfileError(messages[0], problems=tuple(messages))
    listing = "\n".join(f"  {message}" for message in messages)
    return ProfileError(f"{shown}: {len(messages)} problems\n{listing}", problems=tuple(messages))


# ----------------------------------------------------------------------------- paths

_REF_PREFIXES = ("hf:", "https:", "http:", "ollama:")


def with_paths(raw: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the tables with ``~`` expanded and relative paths starting at ``folder``."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    if isinstance(target := result.get("target"), dict):
        _place(target, "model", folder)
        lora = target.get("lora")
        if isinstance(lora, str | list | tuple):
            items = [lora] if isinstance(lora, str) else lora
            target["lora"] = [_absolute(item, folder, lora=True) for item in items]
    if isinstance(spec := result.get("spec"), dict):
        for name in ("draft", *DRAFT_TYPES, "ngram-cache"):
            if isinstance(table := spec.get(name), dict):
                spec[name] = table = dict(table)
                for key in ("model", "lookup_cache_static", "lookup_cache_dynamic"):
                    _place(table, key, folder)
    return result


def _place(table: dict[str, Any], key: str, folder: Path | None) -> None:
    if key in table:
        table[key] = _absolute(table[key], folder)


def _absolute(ref: object, folder: Path | None, *, lora: bool = False) -> object:
    if not isinstance(ref, str) or ref == "demo" or ref.startswith(_REF_PREFIXES):
        return ref
    if ref.startswith("~"):
        ref = os.path.expanduser(ref)
    path = parse_lora(ref)[0] if lora else ref
    scale = ref[len(path) :]
    return ref if folder is None else str(folder / path) + scale


# --------------------------------------------------------------------------- overrides


def apply_overrides(
    profile: Profile, overrides: Mapping[str, str], source: str = "command line"
) -> Profile:
    """Apply ``--set KEY=VALUE`` pairs: dotted keys, values as TOML or else as plain text.

    Relative paths in them start at the working folder. Raises UsageError with every problem.
    """
    changes = [(key, _readings(value)) for key, value in overrides.items()]
    return _override(profile, changes, source)


def apply_values(
    profile: Profile, values: Mapping[str, object], source: str = "command line"
) -> Profile:
    """Apply values that have a type already, under the same dotted keys."""
    return _override(profile, [(key, [value]) for key, value in values.items()], source)


def _override(
    profile: Profile, changes: Sequence[tuple[str, list[object]]], source: str
) -> Profile:
    raw = profile.model_dump(exclude_unset=True, by_alias=True)
    messages: list[str] = []
    for key, readings in changes:
        try:
            path = _key_path(key)
        except ValueError as error:
            messages.append(f"{source}: {key[:60]!r} is not a key: {error}")
            continue
        problems: list[Problem] = []
        for reading in readings:
            alone = with_paths(_nested(path, reading), None)
            if not (found := find_problems(alone)):
                raw, problems = _merge(raw, alone), []
                break
            problems = problems or found
        messages += [f"{source}: {problem.text}" for problem in problems]
    if not messages:
        changed = Profile.model_validate(raw)
        before = list(cross_problems(profile))
        problems = [Problem(*item) for item in cross_problems(changed) if item not in before]
        messages = [f"{source}: {'.'.join(item.path)}: {item.text}" for item in problems]
    if messages:
        raise UsageError("\n".join(messages))
    return changed


def _readings(value: str) -> list[object]:
    """What a text on the command line can mean, the likeliest first; a date is only a text."""
    try:
        parsed = parse_toml(f"value = {value}")
    except ValueError:
        return [value]
    reading = parsed["value"]
    if len(parsed) > 1 or isinstance(reading, date | time):
        return [value]
    return [reading, value]


def _key_path(key: str) -> KeyPath:
    """Split a dotted key by the rules of TOML, so that parts may be quoted."""
    path: list[str] = []
    try:
        value: Any = parse_toml(f"{key} = 0")
    except ValueError:
        raise ValueError("write it with dots, as target.n_ctx") from None
    while isinstance(value, dict):
        if len(value) != 1:
            raise ValueError("write one key, as target.n_ctx")
        part, value = next(iter(value.items()))
        path.append(part)
    if path == ["extends"]:
        raise ValueError("it works in a profile only")
    return tuple(path)


def _nested(path: KeyPath, value: object) -> dict[str, Any]:
    result: dict[str, Any] = {path[-1]: value}
    for part in reversed(path[:-1]):
        result = {part: result}
    return result


# ---------------------------------------------------------------------------- sampling

#: general.sampling.* of a GGUF file (llama.cpp src/llama-arch.cpp) -> key in [sampling].
GGUF_SAMPLING: dict[str, str] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "penalty_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


def sampling_settings(
    profile: Profile, gguf_defaults: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Resolve every key of [sampling]: written in the profile, else the model's own, else ours.

    ``gguf_defaults`` has the GGUF keys, with or without "general.sampling."; unknown ones, and
    values that a profile could not hold either, are passed over.
    """
    settings = profile.sampling.model_dump()
    for name, value in (gguf_defaults or {}).items():
        key = GGUF_SAMPLING.get(name.removeprefix("general.sampling."))
        if key is None or key in profile.sampling.model_fields_set:
            continue
        # The file holds 32-bit floats; llama.cpp reads them through text with six decimals.
        number = round(value, 6) if isinstance(value, float) else value
        try:
            checked = Sampling.model_validate({key: number})
        except ValidationError:
            continue
        settings[key] = getattr(checked, key)
    return settings


def json_schema() -> dict[str, Any]:
    """Describe a profile as JSON Schema, for editors."""
    schema = Profile.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "gguf-spec profile"
    tables = schema["$defs"]
    for table in (schema, *tables.values()):
        for key in table["properties"].values():
            if "$ref" in key:  # pydantic leaves out what only repeats the table's own text
                key.setdefault("description", tables[key["$ref"].split("/")[-1]]["description"])
    return schema
