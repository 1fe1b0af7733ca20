"""From the command line to a profile: command line options > ``--set`` > the profile's file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gguf_spec.cli.options import ModelOptions
from gguf_spec.cli.values import word_or_number
from gguf_spec.errors import InputError, UsageError

if TYPE_CHECKING:
    from gguf_spec.profile import Profile

#: The option behind a key, for messages about what the user typed.
_OPTIONS = {
    "target.model": "-m/--model",
    "target.n_ctx": "-c/--ctx-size",
    "target.n_threads": "-t/--threads",
    "target.n_threads_batch": "--threads-batch",
    "target.n_gpu_layers": "-g/--n-gpu-layers",
    "target.n_cpu_moe": "--n-cpu-moe",
    "target.devices": "--device",
    "target.tensor_split": "--tensor-split",
    "spec.types": "--spec-type",
    "spec.exact": "--exact",
    "spec.n_max": "--spec-draft-n-max",
    "spec.n_min": "--spec-draft-n-min",
    "spec.p_min": "--spec-draft-p-min",
    "spec.verify": "--verify",
    "sampling.temperature": "--temp",
    "sampling.top_k": "--top-k",
    "sampling.top_p": "--top-p",
    "sampling.min_p": "--min-p",
    "sampling.repeat_penalty": "--repeat-penalty",
    "sampling.seed": "--seed",
    "sampling.stop": "--stop",
    "chat.system": "--system",
    "chat.think": "--think",
    "chat.reasoning_effort": "--reasoning-effort",
    "chat.think_budget": "--think-budget",
}
_DEMO = "demo"


def make_profile(where: str | None, options: ModelOptions) -> Profile:
    """The profile that a command line asks for.

    Raises:
        ProfileError: there is no such profile, or it has problems.
        UsageError: values that do not go together.
        InputError: a model's name is not UTF-8.
    """
    from gguf_spec.profile import apply_overrides, apply_values

    _check_texts(where, options)
    profile = _start(where, options)
    _check_devices(options.device)
    settings = dict(item.split("=", 1) for item in options.settings or [])
    if settings:
        profile = apply_overrides(profile, {k.strip(): v for k, v in settings.items()}, "--set")
    explicit = options.spec_type is not None or "spec.types" in settings
    values = dict(_values(profile, options))
    values |= _drafts(profile, options, explicit)
    if not values:
        return profile
    try:
        return apply_values(profile, values)
    except UsageError as error:
        raise UsageError(_in_options(error.message), hint=error.hint) from None


def profile_name(where: str | None, options: ModelOptions | None = None) -> str:
    """What the profile of a command line is called; "" if there is none, but a model reference.

    Texts are kept under it (``spec.pool``), so it must not be shared by two files: only a profile
    that its bare name leads to from any working folder is called by that, others by their path.
    """
    from gguf_spec.profile import find_profile, user_folder
    from gguf_spec.profile_find import shipped_folder

    if where is None and options is not None and options.model is not None:
        return ""
    where = _DEMO if where is None else where
    path = find_profile(where) if _is_profile(where) else None
    if path is None:
        return ""
    path = path.resolve()
    folders = (user_folder(), shipped_folder())
    first = (folder / f"{path.stem}.toml" for folder in folders)
    known = next((file.resolve() for file in first if file.is_file()), None)
    return path.stem if path == known else str(path)


def _is_profile(where: str) -> bool:
    """Whether PROFILE|REF is meant to be a profile."""
    from gguf_spec.profile import find_profile
    from gguf_spec.refs import is_ref
    from gguf_spec.user_files import is_stdin

    if is_stdin(where):  # that is where the prompt comes from
        return False
    is_model = where != _DEMO and (is_ref(where) or _looks_like_path(where))
    return not is_model or (find_profile(where) is not None and not is_ref(where))


def _check_texts(where: str | None, options: ModelOptions) -> None:
    """Refuse what is not UTF-8, which Python hands over with surrogates in it.

    libllama opens files by UTF-8 names only, and neither JSON nor a profile can hold another one.
    """
    for ref in (where, options.model, *(options.draft or ())):
        if ref is not None and not is_utf8(ref):
            raise InputError(
                f"{ref}: the name is not UTF-8, and llama.cpp opens no such file",
                hint="rename the file, or make a link to it with another name",
            )
    texts = {"--system": options.system, "--device": options.device}
    for name, text in (
        *texts.items(),
        *(("--stop", stop) for stop in options.stop or ()),
        *(("--set", item) for item in options.settings or ()),
    ):
        if text is not None and not is_utf8(text):
            raise UsageError(f"{name}: {text!r} is not UTF-8 text")


def is_utf8(text: str) -> bool:
    """Whether ``text`` is one: an argument that is not UTF-8 has surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_devices(text: str | None) -> None:
    """Refuse devices that are not here: on the command line that is a wrong value."""
    if text is None or text.strip() == "none":
        return
    from gguf_spec.backend import list_devices

    known = [device.name for device in list_devices() if device.kind != "cpu"]
    unknown = [name for name in (part.strip() for part in text.split(",")) if name not in known]
    if unknown:
        raise UsageError(
            f"--device: there is no device {', '.join(unknown)} to offload to",
            hint=f"devices here: {', '.join(known) or 'none (this build computes on the CPU)'}",
        )


def _start(where: str | None, options: ModelOptions) -> Profile:
    """The profile before any option: a file's, or the defaults for a model reference."""
    from gguf_spec.profile import Profile, Target, load_profile

    if where is None:
        return Profile() if options.model is not None else load_profile(_DEMO)
    if _is_profile(where):
        return load_profile(where)
    if options.model is not None:
        raise UsageError(
            f"two target models: {where} and -m/--model {options.model}", hint="name one of them"
        )
    return Profile(target=Target(model=where))


def _looks_like_path(text: str) -> bool:
    """A folder or a scheme in it, and no profile file: a mistyped REF more likely."""
    return any(c in text for c in ("/", os.sep, ":")) and not text.endswith(".toml")


def _values(profile: Profile, options: ModelOptions) -> Iterator[tuple[str, object]]:
    """The keys that the options set."""
    from gguf_spec.profile import DRAFT_TYPES

    given: dict[str, object] = {
        "target.model": options.model,
        "target.n_ctx": _word(options.ctx_size),
        "target.n_threads": options.threads,
        "target.n_threads_batch": options.threads_batch,
        "target.n_gpu_layers": _word(options.gpu_layers),
        "target.n_cpu_moe": options.n_cpu_moe,
        "target.devices": options.device,
        "target.tensor_split": options.tensor_split,
        "spec.types": options.spec_type and options.spec_type.split(","),
        "spec.verify": options.verify,
        "spec.control": False if options.fixed else None,
        "spec.exact": True if options.exact else None,
        "sampling.temperature": options.temp,
        "sampling.top_k": options.top_k,
        "sampling.top_p": options.top_p,
        "sampling.min_p": options.min_p,
        "sampling.repeat_penalty": options.repeat_penalty,
        "sampling.seed": options.seed,
        "sampling.stop": options.stop or None,
        "chat.system": options.system,
        "chat.think": options.think,
        "chat.reasoning_effort": options.reasoning_effort,
        "chat.think_budget": options.think_budget,
    }
    yield from ((key, value) for key, value in given.items() if value is not None)
    for name, value in (
        ("n_max", options.spec_draft_n_max),
        ("n_min", options.spec_draft_n_min),
        ("p_min", options.spec_draft_p_min),
    ):
        if value is not None:
            yield f"spec.{name}", value
            # A draft's own table would win over [spec], and the command line wins over both.
            for table in ("draft", *DRAFT_TYPES):
                if name in getattr(profile.spec, table.replace("-", "_")).model_fields_set:
                    yield f"spec.{table}.{name}", value


def _drafts(profile: Profile, options: ModelOptions, explicit: bool) -> dict[str, object]:
    """The keys that ``-d`` sets; unless the types were chosen, the draft's type joins them."""
    drafts: dict[str, str] = {}
    for text in options.draft or []:
        kind, ref = split_draft(text)
        if kind in drafts:
            raise UsageError(
                f"-d/--draft: two drafts for {kind}: {drafts[kind]} and {ref}",
                hint="name one of them",
            )
        drafts[kind] = ref
    values: dict[str, object] = {f"spec.{kind}.model": ref for kind, ref in drafts.items()}
    values |= _untyped(profile, drafts)
    if drafts and not explicit:
        values["spec.types"] = _joined(profile.spec.types, tuple(drafts))
    return values


def _untyped(profile: Profile, drafts: dict[str, str]) -> dict[str, object]:
    """What ``drafts`` of the command line leave of the profile's files without a type.

    Only a file's header says what it is for (``draft_choice``), so one of them could turn out to
    be for the type of a ``-d TYPE=REF``. [spec.draft-simple] would win over that type's table,
    where -d puts its file, and [spec.draft] does not: the profile's file goes there.
    """
    spec = profile.spec
    common, simple = spec.draft.model, spec.draft_simple.model
    if "draft-simple" in drafts:
        return {} if common is None else {"spec.draft.model": None}
    if not drafts or simple is None:
        return {}
    return {"spec.draft.model": simple, "spec.draft-simple.model": None}


def _joined(types: tuple[str, ...], kinds: tuple[str, ...]) -> list[str]:
    """``types`` with a draft's types behind them; n-gram drafts cost nothing and come first."""
    if types == ("auto",):
        return ["auto"] if kinds == ("draft-simple",) else ["ngram-simple", *kinds]
    kept = [] if types == ("none",) else list(types)
    return [*kept, *(kind for kind in kinds if kind not in kept)]


def split_draft(text: str) -> tuple[str, str]:
    """``[TYPE=]REF`` as (type, reference). Raises UsageError for an unknown type."""
    from gguf_spec.profile import DRAFT_TYPES, parse_spec_types

    kind, equals, ref = text.partition("=")
    is_file = os.path.exists(text)  # a name may hold an equals sign
    if not equals or is_file or not re.fullmatch(r"[A-Za-z0-9_-]+", kind):
        if not text.strip():
            raise UsageError("-d/--draft: an empty model reference")
        return "draft-simple", text
    try:
        (name,) = parse_spec_types([kind])
    except UsageError as error:
        raise UsageError(f"-d/--draft {text}: {error.message}", hint=error.hint) from None
    if name not in DRAFT_TYPES:
        raise UsageError(
            f"-d/--draft {text}: {name} takes no draft model",
            hint=f"types that do: {', '.join(DRAFT_TYPES)}",
        )
    if not ref.strip():
        raise UsageError(f"-d/--draft {text}: there is no model after the equals sign")
    return name, ref


def _word(value: str | None) -> str | int | None:
    return None if value is None else word_or_number(value)


def _in_options(message: str) -> str:
    """A message about keys, told with the options that the user typed."""
    lines = []
    for line in message.splitlines():
        rest = line.removeprefix("command line: ")
        key = next((k for k in _OPTIONS if rest.startswith(f"{k}:")), None)
        lines.append(f"{_OPTIONS[key]}{rest[len(key) :]}" if key else rest)
    return "\n".join(lines)
