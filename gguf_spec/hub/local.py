"""The GGUF files on this machine, wherever the programs that fetched them keep them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gguf_spec.demo import DEMO_FILE, installed_demo
from gguf_spec.errors import GgufSpecError, HubError, RefError
from gguf_spec.folders import home_cache_dir
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.remote import hub_folder
from gguf_spec.refs import (
    SIDECAR,
    SPLIT,
    Ref,
    hf_cache_dir,
    match_quant,
    model_digest,
    ollama_dirs,
)

MAX_DEPTH = 6  # of folders below a known one
MAX_FILES = 100_000  # that are looked at in one known folder


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with models, and the program whose it is."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that is here: its first part, what it can be called by, and whose folder it is in.

    ``info`` is None where the file cannot be used; ``problem`` says why.
    """

    path: Path
    ref: str
    place: str
    bytes: int
    info: ModelInfo | None = field(default=None, repr=False)
    problem: str | None = None


def places() -> list[Place]:
    """The known folders, whether they exist or not."""
    home = Path(os.path.expanduser("~"))
    studio = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    cached = os.environ.get("LLAMA_CACHE")
    xdg = os.environ.get("XDG_CACHE_HOME")
    llama = Path(cached) if cached else (Path(xdg) if xdg else home / ".cache") / "llama.cpp"
    return [
        Place("Hugging Face", hf_cache_dir()),
        *(Place("LM Studio", folder) for folder in studio),
        *(Place("Ollama", folder) for folder in ollama_dirs()),
        Place("llama.cpp", llama),
        Place("gguf-spec", home_cache_dir()),
    ]


def elsewhere(ref: Ref) -> Path | None:
    """The file of ``hf:owner/repo…`` in LM Studio's folder, which has repositories as they are.

    Only where no revision is asked for: it does not keep them.
    """
    if ref.kind != "hf" or ref.revision is not None:
        return None
    for place in places():
        folder = place.folder / ref.name
        if place.name != "LM Studio" or not folder.is_dir():
            continue
        if ref.file:
            return folder / ref.file if (folder / ref.file).is_file() else None
        names = sorted(
            path.relative_to(folder).as_posix() for path in _files(folder) if _is_first(path.name)
        )
        names = [name for name in names if not SIDECAR.match(name.rpartition("/")[2])]
        names = match_quant(names, ref.quant) if ref.quant else names
        if len(names) == 1:
            return folder / names[0]
    return None


def local_files(extra: tuple[Path, ...] = ()) -> Iterator[tuple[str, Path, str]]:
    """(place, first part, reference) of every model in the known folders and in ``extra``; a file
    that several links lead to once."""
    seen: set[str] = set()
    demo = installed_demo()
    if demo is not None:
        seen.add(os.path.realpath(demo))
        yield "demo", demo, "demo"
    for place in [*places(), *(Place("folder", folder) for folder in extra)]:
        found = _ollama(place.folder) if place.name == "Ollama" else _named(place)
        for path, ref in found:
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                yield place.name, path, ref


def local_models(extra: tuple[Path, ...] = ()) -> Iterator[LocalModel]:
    """Every model on this machine with its header. Headers are kept, so that the next time it takes
    no longer than looking at the files. No error is raised."""
    cache = HeaderCache(hub_folder())
    for place, path, ref in local_files(extra):
        try:
            info = kept_header(cache, path)
            yield LocalModel(path, ref, place, info.file_bytes, info)
        except (GgufSpecError, OSError) as error:
            told = error.message if isinstance(error, GgufSpecError) else str(error)
            yield LocalModel(path, ref, place, _size(path), None, told)


def kept_header(cache: HeaderCache, path: Path) -> ModelInfo:
    """The header of a local model; read anew if the file is another one than before.

    Raises HeaderError, OSError.
    """
    if SPLIT.fullmatch(path.name):
        return read_model(path)
    stat = path.stat()
    told = f"{os.path.realpath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}"
    key = "local\0" + hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
    info = cache.load(key, str(path))
    if info is None:
        info = read_model(path)
        try:
            cache.store(key, info)
        except HubError:  # it is only faster with it
            return info
    return info


def _named(place: Place) -> Iterator[tuple[Path, str]]:
    for path in sorted(_files(place.folder)):
        if not _is_first(path.name):
            continue
        inside = path.relative_to(place.folder).parts
        ref = str(path)
        if place.name == "Hugging Face" and len(inside) > 3 and inside[1] == "snapshots":
            repo = inside[0].removeprefix("models--").replace("--", "/", 1)
            ref = f"hf:{repo}/{'/'.join(inside[3:])}"
        elif path.name == DEMO_FILE and place.name == "gguf-spec" and len(inside) == 1:
            ref = "demo"
        yield path, ref


def _is_first(name: str) -> bool:
    part = SPLIT.fullmatch(name)
    if not name.lower().endswith(".gguf") or name.startswith("."):
        return False
    return part is None or name.endswith(f"-00001-of-{part['count']}.gguf")


def _files(folder: Path) -> Iterator[Path]:
    """The .gguf files below a folder that exist; links to folders are not followed."""
    count = 0
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        if depth >= MAX_DEPTH:
            folders.clear()
        folders[:] = [name for name in folders if name not in ("blobs", ".locks")]
        for name in names:
            count += 1
            if count > MAX_FILES:
                return
            path = Path(root, name)
            if name.lower().endswith(".gguf") and path.is_file():
                yield path


def _ollama(root: Path) -> Iterator[tuple[Path, str]]:
    """The models that Ollama's manifests name."""
    manifests = root / "manifests"
    for folder, _, names in os.walk(manifests):
        parts = Path(folder).relative_to(manifests).parts
        if len(parts) != 3:
            continue
        host, space, name = parts
        for tag in sorted(names):
            try:
                digest = model_digest(Path(folder, tag))
            except (RefError, OSError):
                continue
            blob = root / "blobs" / digest.replace(":", "-")
            shown = name if space == "library" else f"{space}/{name}"
            shown = shown if host == "registry.ollama.ai" else f"{host}/{space}/{name}"
            if blob.is_file():
                yield blob, f"ollama:{shown}:{tag}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
