"""What a shell offers behind Tab: profiles and models, spec types."""

from __future__ import annotations

import os


def profiles_and_models(incomplete: str) -> list[str]:
    """Names of profiles, and files that can be given in their place."""
    from gguf_spec.profile import find_profiles

    names = [found.name for found in find_profiles() if found.name.startswith(incomplete)]
    return names + files(incomplete, (".gguf", ".toml"))


def models(incomplete: str) -> list[str]:
    """GGUF files, also behind ``TYPE=``."""
    kind, equals, start = incomplete.partition("=")
    if not equals:
        return files(incomplete, (".gguf",))
    return [f"{kind}={name}" for name in files(start, (".gguf",))]


def spec_types(incomplete: str) -> list[str]:
    """The last of a list of types with commas between them."""
    from gguf_spec.cli.options import SPEC_TYPES

    before, comma, start = incomplete.rpartition(",")
    words = SPEC_TYPES if before else ("auto", "none", *SPEC_TYPES)
    return [f"{before}{comma}{word}" for word in words if word.startswith(start)]


def files(start: str, ends: tuple[str, ...]) -> list[str]:
    """Files with one of ``ends``, and folders, whose path begins with ``start``."""
    folder, name = os.path.split(start)
    found = []
    try:
        for entry in os.scandir(os.path.expanduser(folder or ".")):
            if not entry.name.startswith(name) or (entry.name[0] == "." and not name):
                continue
            path = os.path.join(folder, entry.name)
            if entry.is_dir():
                found.append(path + "/")
            elif entry.name.lower().endswith(ends):
                found.append(path)
    except OSError:
        return []
    return sorted(found)
