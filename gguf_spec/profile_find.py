"""Where profiles are: the folders that are searched, and what a name can mean in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gguf_spec.folders import home_config_dir
from gguf_spec.user_files import is_readable


def user_folder() -> Path:
    """Name the folder of the user's own profiles; it need not exist."""
    return home_config_dir() / "profiles"


def shipped_folder() -> Path:
    """Name the folder of the profiles that came with the program: in a wheel, or in a checkout."""
    package = Path(__file__).resolve().parent
    shipped = package / "shipped_profiles"
    return shipped if shipped.is_dir() else package.parent / "profiles"


def profile_folders() -> tuple[Path, ...]:
    """List the folders that are searched for a name, first found wins."""
    return (Path("profiles"), user_folder(), shipped_folder())


def find_profile(name: str | Path, *, search: Sequence[Path] | None = None) -> Path | None:
    """Look a profile up as a path, then by name in the folders; None if there is none."""
    return next(candidates(str(name), search=search), None)


def candidates(
    name: str, *, search: Sequence[Path] | None = None, beside: Path | None = None
) -> Iterator[Path]:
    """Yield every file that a name or path can mean, the preferred one first.

    ``beside`` is the folder of a profile that extends ``name``: paths start there, and a plain name
    is looked up there before it is in the folders.
    """
    if not name or "\0" in name:
        return
    path = Path(os.path.expanduser(name))  # where ~ means nothing it stays as it is
    is_path = str(path) != path.name or name != path.name
    options = [(beside or Path()) / path]
    has_name = path.name not in ("", "..")  # no folder such as / or .
    if has_name and (is_path or beside is not None):
        options.append(options[0].with_name(f"{path.name}.toml"))
    if not is_path:
        file = path.name if path.suffix == ".toml" else f"{path.name}.toml"
        options += [folder / file for folder in (profile_folders() if search is None else search)]
    yield from (option for option in options if is_file(option))


def is_file(path: Path) -> bool:
    """Tell whether there is something to read; a pipe from ``<(…)`` will do as well.

    A device is no file: /dev/null would be a profile without a key. Nor is a pipe that lies on the
    disk: nobody may ever write into it.
    """
    return is_readable(path, pipes=True)


def exists(path: Path) -> bool:
    """Tell whether there is something of that name: if it is no profile, a folder or a device."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
