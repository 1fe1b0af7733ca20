"""Where gguf-spec keeps what belongs to the user."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

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


def url_folder(url: str) -> Path:
    """Where the file at a plain address is kept: in one folder with the other parts of its set."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", urlsplit(url).netloc)
    path, _, query = url.partition("?")
    digest = hashlib.sha256(f"{path.rpartition('/')[0]}?{query}".encode()).hexdigest()[:16]
    return home_cache_dir() / "downloads" / f"{host}-{digest}"


def absolute(path: str) -> Path:
    return Path(
        os.path.abspath(os.path.expanduser(path))
    )  # where ~ means nothing it stays as it is
