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
from gguf_spec.errors import InputError, ProfileError, UsageError

if TYPE_CHECKING:
    from gguf_spec.backend import Device
    from gguf_spec.header import ModelInfo
    from gguf_spec.profile import Profile
    from gguf_spec.setup import Setup

_WIDTH = 100
# Weights on a GPU may take this share of its free memory; the rest is for caches and buffers.
_GPU_SHARE = 0.8


@dataclass(frozen=True)
class Machine:
    """What a profile depends on. Sizes in bytes."""

    n_threads: int
    ram: int
    ram_available: int
    gpus: tuple[Device, ...]

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        import psutil

        from gguf_spec.backend import list_devices
        from gguf_spec.setup import default_threads

        memory = psutil.virtual_memory()
        gpus = tuple(device for device in list_devices() if device.kind in ("gpu", "igpu"))
        return cls(default_threads(), memory.total, memory.available, gpus)


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


def wanted(model: str | None, draft: str | None) -> Profile:
    """The profile without what depends on the machine. Raises UsageError, RefError."""
    from gguf_spec.cli.choice import split_draft
    from gguf_spec.profile import Profile, apply_values

    values: dict[str, object] = {
        "target.model": _lasting(model or "demo"),
        "spec.types": ["ngram-simple"],
    }
    if draft is not None:
        kind, ref = split_draft(draft)
        values["spec.types"] = ["ngram-simple", kind]
        values[f"spec.{kind}.model"] = _lasting(ref)
    return apply_values(Profile(), values)


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
    except FileExistsError:
        raise exists_error(path) from None
    except UnicodeEncodeError as error:
        raise InputError(f"the name of a file is not UTF-8: {error.object!r:.100}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    load_profile(path)


def _write_whole(path: Path, data: bytes, *, force: bool) -> None:
    """Write all of ``data``, or leave the folder as it was: a disk may be full."""
    path = Path(os.path.realpath(path))
    new = path.with_name(f"{path.name}.new") if force else path
    new.open("wb" if force else "xb").close()
    try:
        new.write_bytes(data)
        os.replace(new, path)
    except BaseException:
        new.unlink()
        raise


def exists_error(path: Path) -> ProfileError:
    """The file is there, and may be somebody's work."""
    return ProfileError(f"{path} is there already", hint="choose another name, or --force")


def profile_text(name: str, profile: Profile, setup: Setup | None, machine: Machine) -> str:
    """The whole file. ``setup`` has the facts on the models, if they have been looked at."""
    types = profile.spec.types
    drafts = [kind for kind in types if kind.startswith("draft-")]
    title = os.path.basename(profile.target.model or "demo")
    blocks = [
        _head(name, machine),
        to_toml({"description": f"{title}, drafted by {' and '.join(types)}"}),
        _target(profile, setup, machine),
        _spec(name, types, drafts),
    ]
    for kind in drafts:
        settings = getattr(profile.spec, kind.replace("-", "_"))
        about = _facts(setup.drafts[0].info) if setup and setup.drafts else None
        blocks.append(
            _joined(f"[spec.{kind}]", _comment(about), to_toml({"model": settings.model}))
        )
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
    more = (
        "Every key is optional; what is absent keeps its default. `gguf-spec profiles show "
        f"{name}` lists them all, and any can be changed for one run: --set target.n_ctx=2048"
    )
    return "\n".join([*lines, "#", f"#   gguf-spec chat {name}", "#", _comment(more)])


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
    layers, why = _gpu_layers(setup, machine)
    return _joined(
        "[target]",
        _comment(about),
        to_toml({"model": model}),
        _comment(context),
        to_toml({"n_ctx": n_ctx}),
        _comment('As found above; "auto" looks each time.'),
        to_toml({"n_threads": machine.n_threads}),
        _comment(why),
        to_toml({"n_gpu_layers": layers}),
    )


def _gpu_layers(setup: Setup | None, machine: Machine) -> tuple[int | str, str]:
    """How many layers go to the GPUs, and why."""
    if not machine.gpus:
        return "auto", 'No GPU was found, so this changes nothing; "auto" uses one once there is.'
    free = int(sum(gpu.free for gpu in machine.gpus) * _GPU_SHARE)
    if setup is None:
        return "auto", '"auto" and "all" put every layer on the GPU, a number only the last ones.'
    weights = setup.target.file_bytes
    others = sum(draft.info.file_bytes for draft in setup.drafts)
    n_layer = setup.target.n_layer
    if weights + others <= free or not n_layer:
        return "auto", f"All layers: {bytes_text(weights + others)} fit into the GPU's free memory."
    # The output layer counts as one more, as in llama.cpp.
    layers = max(0, int((free - others) / weights * (n_layer + 1)))
    return layers, (
        f"{layers} of {n_layer + 1}, an estimate: {bytes_text(weights + others)} do not fit into "
        f"{bytes_text(free)}, four fifths of what is free on the GPU. Try more, and fewer if "
        "loading fails."
    )


def _spec(name: str, types: Sequence[str], drafts: Sequence[str]) -> str:
    why = (
        "N-grams draft from the text so far: no second model, no extra memory. They help where "
        "text repeats itself (editing, quoting, lists, code) and change nothing elsewhere."
    )
    if drafts:
        why += " They are asked first because they cost nothing; where they find nothing, the "
        why += "draft model drafts."
    else:
        why += ' A smaller model of the same family drafts everywhere: add "draft-simple" here, '
        why += "and a table [spec.draft-simple] with its model."
    pool = (
        'How long texts are remembered for n-grams: "request", "session", or "profile", which '
        f"keeps them in a file for the next time (`gguf-spec profiles forget {name}` deletes it)."
    )
    return _joined(
        "[spec]",
        _comment(why),
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
