"""``gguf-spec profiles new``: a commented profile for this machine."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gguf_spec.cli.output import printable
from gguf_spec.cli.summary import bytes_text, counted
from gguf_spec.cli.toml import to_toml
from gguf_spec.errors import InputError, NoFitError, ProfileError, UsageError
from gguf_spec.user_files import check_replaceable, write_whole

if TYPE_CHECKING:
    from gguf_spec.cli.output import Output
    from gguf_spec.devices import Device
    from gguf_spec.header import ModelInfo
    from gguf_spec.profile import Profile
    from gguf_spec.setup import Setup

_WIDTH = 100


@dataclass(frozen=True)
class Machine:
    """What a profile depends on. ``gpus`` are those that this build can use, ``others`` the names
    of those that it cannot. Sizes in bytes."""

    n_threads: int
    ram: int
    ram_available: int
    gpus: tuple[Device, ...]
    others: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        from gguf_spec.devices import survey
        from gguf_spec.setup import default_threads

        found = survey()
        gpus = [device for device in found.devices if device.kind == "gpu"]
        gpus = gpus or [device for device in found.devices if device.kind == "igpu"]
        others = tuple(gpu.name for gpu in found.unusable)
        host = found.host
        return cls(default_threads(), host.total, host.available, tuple(gpus), others)

    @property
    def base(self) -> str:
        """The shipped profile with settings for this class of memory."""
        from gguf_spec.profile_class import base_for

        apple = any(gpu.backend in ("MTL", "Metal") for gpu in self.gpus)
        total = sum(gpu.total for gpu in self.gpus)  # 0 where drivers do not tell
        return base_for(max(total, 1) if self.gpus else 0, apple=apple)


def new_path(name: str) -> Path:
    """The file for a profile of this name. Raises UsageError for what is no name."""
    from gguf_spec.profile import user_folder
    from gguf_spec.refs import is_ref

    if name.endswith(".toml") and Path(name).name != ".toml" and name.isprintable():
        path = os.path.expanduser(name)
        if path.startswith("~"):
            raise UsageError(
                f"{name!r}: there is no home folder {Path(name).parts[0]}",
                hint=f"a folder that is called so is written ./{name}",
            )
        return Path(path)
    if not re.fullmatch(r"\w[\w .+-]*", name) or (name != "demo" and is_ref(name)):
        raise UsageError(
            f"{name!r} is no name for a profile",
            hint="letters, digits, - and _, as in `mine`; or a path that ends in .toml",
        )
    return user_folder() / f"{name}.toml"


def wanted(model: str | None, draft: str | None, base: str) -> Profile:
    """The profile before anything is known of the models, with the settings of ``base``. Raises
    UsageError, RefError."""
    from gguf_spec.cli.choice import split_draft
    from gguf_spec.profile import apply_values, load_profile
    from gguf_spec.profile_find import shipped_folder

    profile = load_profile(base, search=[shipped_folder()])
    ref = _lasting(model or "demo")
    values: dict[str, object] = {"target.model": ref}
    trained = 4096 if ref == "demo" else _trained(ref)
    if isinstance(profile.target.n_ctx, int) and trained and trained < profile.target.n_ctx:
        values["target.n_ctx"] = trained
    if draft is not None:
        kind, ref = split_draft(draft)
        values["spec.types"] = [*profile.spec.types, kind]
        values[f"spec.{kind}.model"] = _lasting(ref)
    return apply_values(profile, values)


def _trained(ref: str) -> int | None:
    """The context that the model was trained for. Errors as ``read_model``."""
    from gguf_spec.header import read_model
    from gguf_spec.refs import resolve

    return read_model(resolve(ref)).n_ctx_train


def look_at(profile: Profile, out: Output) -> Setup:
    """The models of ``profile``, planned; where the base's context is too long, a shorter one.
    Errors as ``prepare``."""
    from gguf_spec.cli.answer import prepare_setup
    from gguf_spec.profile import apply_values

    try:
        return prepare_setup(profile, out)
    except NoFitError:
        return prepare_setup(apply_values(profile, {"target.n_ctx": "auto"}), out)


def settled(profile: Profile, setup: Setup, *, chosen: bool) -> tuple[Profile, Setup, str]:
    """``profile`` with the drafting that suits the models of ``setup``, planned, and the reason.

    A draft that the user has ``chosen`` stays. Whatever there is no memory for is left out.
    """
    from gguf_spec.profile import apply_values
    from gguf_spec.profile_class import drafting_for
    from gguf_spec.setup import prepare

    types, why = setup.spec_types, ""
    if not chosen:
        speed = setup.plan.speed
        types, why = drafting_for(
            setup.target, profile.spec.types, speed.tokens_per_second if speed else None
        )
        if set(types) - {*setup.spec_types, "none"}:
            changed = {"spec.types": list(types), "target.n_ctx": setup.n_ctx}
            setup = prepare(apply_values(profile, changed))
            if setup.spec_types != types:
                types, why = setup.spec_types, ""
    if types != profile.spec.types:
        profile = apply_values(profile, {"spec.types": list(types) or ["none"]})
    return profile, setup, why


def _lasting(ref: str) -> str:
    """A reference that means the same from any folder."""
    from gguf_spec.cli.choice import is_utf8
    from gguf_spec.refs import parse_ref

    if not is_utf8(ref):
        raise InputError(f"{ref}: the name is not UTF-8, which a profile cannot hold")
    is_path = parse_ref(ref).kind == "path"
    return os.path.abspath(os.path.expanduser(ref)) if is_path else ref


def write_profile(path: Path, text: str, *, force: bool) -> None:
    """Write and load back. Raises ProfileError if the file is there, InputError if it cannot be."""
    from gguf_spec.profile import load_profile

    try:
        data = text.encode("utf-8")
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        _write_whole(path, data, force=force)
    except FileExistsError as error:
        if not os.path.lexists(path):  # what is there has the name of the folder
            raise InputError(f"{path}: cannot be written: {error.strerror}") from None
        raise exists_error(path) from None
    except UnicodeEncodeError as error:
        raise InputError(f"the name of a file is not UTF-8: {error.object!r:.100}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    load_profile(path)


def check_path(path: Path, *, force: bool) -> None:
    """See whether a profile can be written there, before anything is done that takes long.

    Raises:
        ProfileError: there is one.
        InputError: it cannot be written.
    """
    if os.path.lexists(path) and not force:
        raise exists_error(path)
    target = Path(os.path.realpath(path))
    probe = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write all of ``data``, or leave the folder as it was: a disk may be full."""
    path = Path(os.path.realpath(path))
    if not force:
        path.open("xb").close()
    try:
        write_whole(path, data)
    except BaseException:
        if not force:
            path.unlink()
        raise


def exists_error(path: Path) -> ProfileError:
    """The file is there, and may be somebody's work."""
    return ProfileError(f"{path} is there already", hint="choose another name, or --force")


def profile_text(
    name: str, profile: Profile, setup: Setup | None, machine: Machine, why: str = ""
) -> str:
    """The whole file. ``setup`` has the facts on the models, if they have been looked at; ``why``
    is the reason for the drafting."""
    types = profile.spec.types
    drafts = [kind for kind in types if kind.startswith("draft-")]
    title = os.path.basename(profile.target.model or "demo")
    how = "without drafts" if types == ("none",) else f"drafted by {' and '.join(types)}"
    blocks = [
        _head(name, machine),
        _joined(
            to_toml({"description": f"{title}, {how}"}),
            _comment("Settings for this class of memory; what is set here comes before them."),
            to_toml({"extends": machine.base}),
        ),
        _target(profile, setup, machine),
        _spec(name, types, drafts, setup, why),
    ]
    for kind in drafts:
        model = getattr(profile.spec, kind.replace("-", "_")).model
        if model is not None:
            about = _draft_facts(kind, setup) if setup else None
            blocks.append(_joined(f"[spec.{kind}]", _comment(about), to_toml({"model": model})))
    blocks.append(_sampling(setup))
    return "\n\n".join(blocks) + "\n"


def _head(name: str, machine: Machine) -> str:
    lines = [
        "# Written by `gguf-spec profiles new` for this machine:",
        f"#   CPU  {counted(machine.n_threads, 'thread')}, one for each core that may be used",
        f"#   RAM  {bytes_text(machine.ram)}, {bytes_text(machine.ram_available)} were free",
    ]
    lines += [
        _comment(
            f"  GPU  {gpu.name}: {gpu.description.strip()}, {bytes_text(gpu.total)}, "
            f"{bytes_text(gpu.free)} were free"
        )
        for gpu in machine.gpus
    ] or ["#   GPU  none that this llama-cpp-python can use; `gguf-spec doctor` says more"]
    lines += [_comment(f"  GPU  {other}: this llama-cpp-python cannot use it") for other in
              machine.others]  # fmt: skip
    ready = _ready_made(machine)
    if ready:
        lines += [
            "#",
            _comment(f"Profiles that came along for such a machine: {', '.join(ready)}."),
        ]
    more = (
        "Every key is optional; what is absent keeps its default. `gguf-spec profiles show "
        f"{name}` lists them all, and any can be changed for one run: --set target.n_ctx=2048"
    )
    return "\n".join([*lines, "#", f"#   gguf-spec chat {name}", "#", _comment(more)])


def _ready_made(machine: Machine) -> list[str]:
    """Shipped profiles that extend the machine's base."""
    from gguf_spec.profile_find import shipped_folder
    from gguf_spec.profile_text import parse_toml

    names = []
    for path in sorted(shipped_folder().glob("*.toml")):
        if parse_toml(path.read_text(encoding="utf-8")).get("extends") == machine.base:
            names.append(path.stem)
    return names


def _target(profile: Profile, setup: Setup | None, machine: Machine) -> str:
    model = profile.target.model or "demo"
    if setup is None:
        context = "Tokens that a conversation may have. More of them need more memory."
        n_ctx = 4096 if model == "demo" else 8192
        about = "A small model for a first try, 98 MB; fetched once if it is not installed."
    else:
        trained = setup.target.n_ctx_train
        n_ctx = setup.n_ctx
        about = _facts(setup.target)
        context = "Tokens that a conversation may have. More of them need more memory" + (
            f"; the model was trained for {trained}." if trained else "."
        )
    return _joined(
        "[target]",
        _comment(about),
        to_toml({"model": model}),
        _comment(context),
        to_toml({"n_ctx": n_ctx}),
        _comment('As found above; "auto" looks each time.'),
        to_toml({"n_threads": machine.n_threads}),
        _comment(_gpu_layers(setup, machine)),
        to_toml({"n_gpu_layers": "auto"}),
    )


def _gpu_layers(setup: Setup | None, machine: Machine) -> str:
    """What "auto" comes to here."""
    if not machine.gpus:
        return 'No GPU was found, so this changes nothing; "auto" uses one once there is.'
    if setup is None or not setup.plan.machine.gpus:
        return '"auto" puts on the GPU what fits, "all" every layer, a number only the last ones.'
    made = setup.plan
    placement, n_all = made.target.placement, (setup.target.n_layer or 0) + 1
    n_gpu = min(placement.n_gpu_layers, n_all) if placement.n_gpu_layers >= 0 else n_all
    used, budgets = made.machine.used(made.items), made.machine.budgets()
    where = ", ".join(
        f"{bytes_text(used[gpu.name])} of {bytes_text(budgets[gpu.name])} on {gpu.name}"
        for gpu in made.machine.gpus
    )
    words = "All layers" if n_gpu == n_all else f"{n_gpu} of {n_all} layers"
    if placement.n_cpu_moe:
        words += f", with the experts of {placement.n_cpu_moe} in host memory"
    return f'{words}: {where}, as planned when this was written; "auto" plans each time.'


def _spec(
    name: str, types: Sequence[str], drafts: Sequence[str], setup: Setup | None, why: str
) -> str:
    from gguf_spec.profile_class import NGRAMS

    if drafts and not why:
        why = (
            "N-grams draft from the text so far and are asked first because they cost nothing; "
            "where they find nothing, the draft model drafts."
        )
    elif not drafts and types != ("none",):
        why = why or NGRAMS
        why += ' A smaller model of the same family drafts everywhere: add "draft-simple" here, '
        why += "and a table [spec.draft-simple] with its model."
    refused = [
        f"{verdict.offer.method} is left out: it {verdict.reason}."
        for verdict in (setup.plan.verdicts if setup is not None else ())
        if verdict.bundle is None and verdict.offer.is_neural
    ]
    pool = (
        'How long texts are remembered for n-grams: "request", "session", or "profile", which '
        f"keeps them in a file for the next time (`gguf-spec profiles forget {name}` deletes it)."
    )
    return _joined(
        "[spec]",
        _comment(why),
        *(_comment(reason) for reason in refused),
        to_toml({"types": list(types)}),
        _comment(pool),
        to_toml({"pool": "session"}),
    )


def _sampling(setup: Setup | None) -> str:
    own = setup.target.sampling if setup else {}
    listed = ", ".join(f"{key} {value:g}" for key, value in own.items() if _is_number(value))
    left = "Left to the model: what is not set here is taken from its file"
    left += f" ({listed})." if listed else ", as far as that says anything."
    return _joined(
        "[sampling]",
        _comment(left + " To get the same text each time:"),
        "# temperature = 0.0",
    )


def _facts(info: ModelInfo) -> str:
    return f"{info.arch} {info.quant}, {bytes_text(info.file_bytes)}."


def _draft_facts(kind: str, setup: Setup) -> str | None:
    """What the drafter of type ``kind`` is, and what it was planned to cost."""
    draft = next((draft for draft in setup.drafts if draft.spec_type == kind), None)
    if draft is None:
        return None
    bundles = [bundle for bundle in setup.plan.drafts if bundle.offer.method == kind]
    cost = f" {bytes_text(bundles[0].bytes)} in all, as planned." if bundles else ""
    return _facts(draft.info) + cost


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _comment(text: str | None) -> str:
    """Lines of a comment. What a file or a driver says may hold what TOML does not take."""
    lines = textwrap.wrap(
        printable(text or ""), _WIDTH - 2, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(f"# {line}" for line in lines)


def _joined(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
