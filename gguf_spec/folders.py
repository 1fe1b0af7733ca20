"""Where gguf-spec keeps what belongs to the user."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home_config_dir() -> Path:
    """Where profiles/ lies: ``$GGUF_SPEC_HOME``, by default the platform's user config folder."""
    home = os.environ.get("GGUF_SPEC_HOME")
    return absolute(home or platformdirs.user_config_dir("gguf-spec", appauthor=False))


def home_cache_dir() -> Path:
    """``$GGUF_SPEC_HOME/cache``, by default the platform's user cache folder."""
    home = os.environ.get("GGUF_SPEC_HOME")
    if home:
        return absolute(home) / "cache"
    return absolute(platformdirs.user_cache_dir("gguf-spec", appauthor=False))


def absolute(path: str) -> Path:
    return Path(
        os.path.abspath(os.path.expanduser(path))
    )  # where ~ means nothing it stays as it is
