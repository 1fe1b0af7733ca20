"""Model references: from what the user typed to a file on this machine.

``parse_ref`` is pure and knows the forms; ``resolve`` looks on disk. Nothing here reads weights or
checks a header. The one thing that is ever fetched is the demo model, once, through pip.

Paths are returned as they were found, symbolic links unresolved: the parts of a split file and the
quantization of a cached one are known by name only, and the Hugging Face cache links to blobs that
are named by their hash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from gguf_spec.demo import DEMO_FILE, Progress, has_magic, resolve_demo
from gguf_spec.errors import AmbiguousRefError, RefError
from gguf_spec.folders import url_folder

Kind = Literal["path", "hf", "url", "ollama", "demo"]

FORMS = (
    "a model is named by path/to/file.gguf, hf:owner/repo[:QUANT][@revision], "
    "hf:owner/repo/path/in/repo.gguf, https://host/file.gguf, ollama:name[:tag] or demo"
)

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_HF = re.compile(
    rf"(?P<repo>{_PART}/{_PART})"
    # a file may hold an @ of its own, as long as it ends in .gguf
    rf"(?:/(?P<file>[^:\\]+\.gguf|[^:\\@]+)|:(?P<quant>{_PART}))?"
    rf"(?:@(?P<revision>{_PART}(?:/{_PART})*))?",
    re.IGNORECASE,
)
_OLLAMA = re.compile(
    rf"(?:(?:(?P<host>{_PART}(?::\d+)?)/)?(?P<space>{_PART})/)?(?P<name>{_PART})(?::(?P<tag>{_PART}))?"
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)  # C:\ is a drive: two letters up
# llama.cpp, llama_split_path: "%s-%05d-of-%05d.gguf"
SPLIT = re.compile(r"(?P<prefix>.+)-\d{5}-of-(?P<count>(?!00000)\d{5})\.gguf")
# files that lie beside a model and are not one: projector, importance matrix, drafters
SIDECAR = re.compile(r"(mtp|eagle3|dflash|dspark)-|.*(mmproj|imatrix)", re.IGNORECASE)


@dataclass(frozen=True)
class Ref:
    """A parsed reference. ``name`` is the path, the URL, ``owner/repo``, or host/space/name."""

    kind: Kind
    text: str
    name: str
    file: str | None = None
    quant: str | None = None
    revision: str | None = None
    tag: str | None = None


def parse_ref(text: str) -> Ref:
    """Read a reference; pure, so a path need not exist.

    Raises RefError for an unknown scheme or a form that is not one of FORMS.
    """
    if not text.strip() or "\0" in text:
        raise RefError("an empty model reference" if not text.strip() else "a NUL in a model name")
    if text == "demo":
        return Ref("demo", text, DEMO_FILE)
    scheme = _SCHEME.fullmatch(text)
    if scheme is None:
        return Ref("path", text, text)
    kind, rest = scheme[1].lower(), scheme[2]
    if kind == "hf":
        return _parse_hf(text, rest)
    if kind == "ollama":
        found = _OLLAMA.fullmatch(rest)
        if found is None:
            raise RefError(f"not an Ollama model name: {text}", hint=FORMS)
        # names as Ollama completes them: registry, "library", "latest"
        host, space = found["host"] or "registry.ollama.ai", found["space"] or "library"
        tag = found["tag"] or "latest"
        return Ref("ollama", text, f"{host}/{space}/{found['name']}", tag=tag)
    if kind in ("https", "http"):
        return _parse_url(text)
    raise RefError(
        f"unknown kind of model reference '{scheme[1]}:' in {text}",
        hint=f"{FORMS}; a file with a colon in its name: ./{text}",
    )


def _parse_hf(text: str, rest: str) -> Ref:
    found = _HF.fullmatch(rest)
    if found is None or not {"", ".", ".."}.isdisjoint((found["file"] or "x").split("/")):
        raise RefError(f"not a Hugging Face reference: {text}", hint=FORMS)
    return Ref("hf", text, found["repo"], found["file"], found["quant"], found["revision"])


def _parse_url(text: str) -> Ref:
    try:
        url = urlsplit(text)
    except ValueError as error:
        raise RefError(f"not a URL: {text} ({error})", hint=FORMS) from error
    if not url.netloc or not url.path.lower().endswith(".gguf"):
        raise RefError(f"not the URL of a .gguf file: {text}", hint=FORMS)
    return Ref("url", text, text)


def is_ref(text: str) -> bool:
    """Could this be a model reference rather than a profile's name? Never raises.

    ``demo`` is both a reference and a likely name; the caller decides. A file without the suffix
    counts if it starts with the GGUF magic, a folder if it is written as a path.
    """
    scheme = _SCHEME.fullmatch(text)
    if text == "demo" or text.lower().endswith(".gguf"):
        return True
    if scheme is not None and scheme[1].lower() in ("hf", "ollama", "https", "http"):
        return True
    try:
        path = Path(text).expanduser()
        if path.is_file():
            return has_magic(path)
        if path.is_dir() and any(sep in text for sep in ("/", os.sep)):
            return True
        return _existing(path) is not None
    except (OSError, RuntimeError, ValueError):
        return False
    except RefError:  # a split set with a hole in it
        return True


def resolve(text: str, *, progress: Progress | None = None) -> Path:
    """The local file that a reference names; of a split file, its first part.

    Raises RefError when there is none, with the way to get it in the hint.
    """
    ref = parse_ref(text)
    if ref.kind == "demo":
        return resolve_demo(progress or (lambda stage, done, total: None))
    find = {
        "path": _resolve_path,
        "hf": _resolve_hf,
        "url": _resolve_url,
        "ollama": _resolve_ollama,
    }
    try:
        return find[ref.kind](ref)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ without a home folder
        raise RefError(f"cannot look up {text}: {error}", hint="check the path's rights") from error


def resolve_all(text: str, *, progress: Progress | None = None) -> list[tuple[str, Path]]:
    """Every file that a reference may mean, with a reference to it: those of a folder, or those of
    a cached repository if no quantization is named; else the one that ``resolve`` finds.

    Of a split set the first part stands for all. Raises RefError as ``resolve``.
    """
    ref = parse_ref(text)
    folder, prefix = None, ""
    if ref.kind == "path":
        path = Path(ref.name).expanduser()
        folder = path if path.is_dir() and _existing(path) is None else None
        prefix = os.path.join(ref.name, "")
    elif ref.kind == "hf" and not (ref.quant or ref.file):
        cached = hf_cache_dir() / f"models--{ref.name.replace('/', '--')}"
        with_models = (one for one in _snapshots(cached, ref.revision) if _models_in(one))
        folder, prefix = next(with_models, None), f"hf:{ref.name}/"
    if folder is None:
        return [(text, resolve(text, progress=progress))]
    try:
        found = [(prefix + name, _existing(folder / name)) for name in _models_in(folder)]
    except (OSError, RuntimeError) as error:
        raise RefError(f"cannot look up {text}: {error}", hint="check the path's rights") from error
    models = [(name, path) for name, path in found if path is not None]
    if not models:
        raise RefError(f"{text} is a folder without a .gguf file", hint=FORMS)
    return models


# -- files and split sets ---------------------------------------------------------------------


def _resolve_path(ref: Ref) -> Path:
    path = Path(ref.name).expanduser()
    found = _existing(path)
    if found is not None:
        return found
    models = [n for n in _names(path) if n.lower().endswith(".gguf")]
    if path.is_dir():
        hint = f"name a file in it: {some(models, 5)}" if models else "there is no .gguf file in it"
        raise RefError(f"{ref.text} is a folder, not a model", hint=hint)
    if path.is_symlink() and not path.exists():
        raise RefError(f"{ref.text} links to {os.readlink(path)}, which does not exist", hint=FORMS)
    if path.exists():
        raise RefError(f"{ref.text} is not a regular file", hint=FORMS)
    raise RefError(f"no such file: {ref.text}", hint=_missing_hint(ref.text, path))


def _missing_hint(text: str, path: Path) -> str:
    if not path.parent.is_dir():
        if text.count("/") == 1 and not text.lower().endswith(".gguf") and _HF.fullmatch(text):
            return f"a repository is named hf:{text}"
        return f"the folder {path.parent} does not exist; {FORMS}"
    beside = [n for n in _names(path.parent) if n.lower().endswith(".gguf")]
    return f"that folder has {some(beside, 5)}" if beside else FORMS


def _existing(path: Path) -> Path | None:
    """The file itself, or the first part of the split set it names; None if there is neither.

    Raises RefError for a set with missing parts, or a prefix that two sets share.
    """
    part = SPLIT.fullmatch(path.name)
    if part is None and path.is_file():
        return path
    prefix = part["prefix"] if part else re.sub(r"\.gguf$", "", path.name, flags=re.IGNORECASE)
    sets = (SPLIT.fullmatch(name) for name in _names(path.parent))
    counts = sorted({found["count"] for found in sets if found and found["prefix"] == prefix})
    if part is not None:
        counts = [count for count in counts if count == part["count"]]
    if len(counts) > 1:
        firsts = (f"{prefix}-00001-of-{count}.gguf" for count in counts)
        raise RefError(
            f"{path} names {len(counts)} split files", hint=f"name one: {', '.join(firsts)}"
        )
    if not counts:
        return None
    parts = [
        path.parent / f"{prefix}-{i:05d}-of-{counts[0]}.gguf" for i in range(1, int(counts[0]) + 1)
    ]
    missing = [file.name for file in parts if not file.is_file()]
    if missing:
        raise RefError(
            f"{len(missing)} of the {len(parts)} parts of {path.parent / prefix} are missing: "
            + ", ".join(missing),
            hint="download them into the same folder",
        )
    return parts[0]


def _names(folder: Path) -> list[str]:
    """Sorted names in a folder; none where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def some(names: Iterable[str], limit: int = 8) -> str:
    """A list for a message, cut after ``limit``."""
    every = list(names)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more


# -- Hugging Face cache ------------------------------------------------------------------------


def hf_cache_dir() -> Path:
    """Same order as huggingface_hub.constants: HF_HUB_CACHE, its old name, HF_HOME, XDG."""
    env = os.environ.get
    if hub := env("HF_HUB_CACHE") or env("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expanduser(hub))
    home = env("HF_HOME") or os.path.join(env("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.path.expanduser(home)) / "hub"


def _snapshots(repo: Path, revision: str | None) -> list[Path]:
    """Snapshot folders to search: the revision's; by default main's first, then newest first.

    Older ones count because a download of another file moves refs/main to a new, emptier snapshot.
    """
    folder = repo / "snapshots"
    pointer = repo / "refs" / (revision or "main")
    commit = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else revision
    every = [folder / name for name in _names(folder)]
    if revision is not None:
        # seven letters: the shortest commit that git abbreviates to
        end = None if commit and len(commit) < 7 else len(commit or "")
        return [one for one in every if one.name[:end] == commit]
    return sorted(every, key=lambda one: (one.name != commit, -one.stat().st_mtime))


def _resolve_hf(ref: Ref) -> Path:
    repo = hf_cache_dir() / f"models--{ref.name.replace('/', '--')}"
    cached: dict[str, None] = {}
    for snapshot in _snapshots(repo, ref.revision):
        models = _models_in(snapshot)
        name = ref.file or _pick(ref, [m for m in models if not SIDECAR.match(Path(m).name)])
        found = _existing(snapshot / name) if name else None
        if found is not None:
            return found
        cached.update(dict.fromkeys(models))
    if ref.file:
        what = f' "{ref.file}"' if " " in ref.file else f" {ref.file}"
    else:
        what = f' --include "*{ref.quant}*.gguf"' if ref.quant else ' --include "*QUANT*.gguf"'
    revision = f" --revision {ref.revision}" if ref.revision else ""
    there = f"; of this repository it has {some(cached)}" if cached else ""
    raise RefError(
        f"{ref.text} is not in the Hugging Face cache {hf_cache_dir()}{there}",
        hint=f"download it with: gguf-spec pull {ref.text}, or hf download {ref.name}{what}"
        f"{revision}; a copy that is elsewhere is named by its path, as in -m/--model FILE",
    )


def _models_in(snapshot: Path) -> list[str]:
    """The snapshot's .gguf files, relative; a split set appears once, as its common prefix."""
    names = set()
    for file in snapshot.rglob("*.gguf"):
        if file.is_file():  # a link whose blob is gone is no file
            part = SPLIT.fullmatch(file.name)
            shown = file.with_name(f"{part['prefix']}.gguf") if part else file
            names.add(shown.relative_to(snapshot).as_posix())
    return sorted(names)


def _pick(ref: Ref, models: list[str]) -> str | None:
    """The one model with the wanted quantization; None if there is none.

    Raises RefError on several.
    """
    models = match_quant(models, ref.quant) if ref.quant else models
    if len(models) > 1:
        at = f"@{ref.revision}" if ref.revision else ""
        raise AmbiguousRefError(
            f"{ref.text} names {len(models)} cached models: {some(models)}",
            hint=f"name one of them, as in hf:{ref.name}/{models[0]}{at}",
        )
    return models[0] if models else None


def match_quant(models: list[str], quant: str) -> list[str]:
    """Those of the names that have the quantization ``quant``.

    ``Q4_K_M`` finds ``UD-Q4_K_M`` only where the plain one is missing.
    """
    wanted = rf"{re.escape(quant)}(?![A-Za-z0-9_])"  # Q4_K is not Q4_K_M
    plain = re.compile(rf"(?<![A-Za-z0-9])(?<!UD-){wanted}", re.IGNORECASE)
    loose = re.compile(rf"(?<![A-Za-z0-9]){wanted}", re.IGNORECASE)
    return [m for m in models if plain.search(m)] or [m for m in models if loose.search(m)]


def as_hub(ref: Ref) -> Ref | None:
    """``hf:…`` for an address on the Hub, ``/owner/repo/resolve/REVISION/path``; else None."""
    if ref.kind != "url":
        return None
    url = urlsplit(ref.name)
    try:
        endpoint = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    except ValueError:  # whoever asks the Hub will say so
        endpoint = urlsplit("https://huggingface.co")
    path = url.path.removeprefix(endpoint.path.rstrip("/"))
    hub = re.fullmatch(rf"/({_PART}/{_PART})/(?:resolve|blob)/([^/]+)/(.+)", path)
    if hub and url.netloc.lower() in (endpoint.netloc.lower(), "huggingface.co", "hf.co"):
        text = f"hf:{hub[1]}/{unquote(hub[3])}@{unquote(hub[2])}"
        return _parse_hf(text, text[3:])
    return None


def _resolve_url(ref: Ref) -> Path:
    hub = as_hub(ref)
    if hub is not None:
        return _resolve_hf(hub)
    name = unquote(urlsplit(ref.name).path).rpartition("/")[2]
    found = _existing(url_folder(ref.name) / name)
    if found is not None:
        return found
    raise RefError(
        f"{ref.text} is not on this machine",
        hint=f"download it with: gguf-spec pull {ref.text}",
    )


# -- Ollama ------------------------------------------------------------------------------------


def ollama_dirs() -> list[Path]:
    if models := os.environ.get("OLLAMA_MODELS"):
        return [Path(os.path.expanduser(models))]
    # the second is the home of the user under which Ollama's Linux service runs
    return [Path(os.path.expanduser("~/.ollama/models")), Path("/usr/share/ollama/.ollama/models")]


def _resolve_ollama(ref: Ref) -> Path:
    name = ref.text.partition(":")[2]
    pull = f"get it with: ollama pull {name}"
    tags: list[str] = []
    for root in ollama_dirs():
        folder = root / "manifests" / ref.name
        manifest = folder / str(ref.tag)
        if not manifest.is_file():
            tags += _names(folder)
            continue
        blob = root / "blobs" / model_digest(manifest).replace(":", "-")
        if not blob.is_file():
            raise RefError(f"{ref.text}: its model file {blob} is missing", hint=pull)
        return blob
    there = f"; pulled tags of it: {some(tags)}" if tags else ""
    where = " or ".join(str(root) for root in ollama_dirs())
    raise RefError(f"{ref.text} is not among Ollama's models in {where}{there}", hint=pull)


def model_digest(manifest: Path) -> str:
    """The digest of the layer that is the GGUF file. Raises RefError if there is none."""
    hint = "only models that Ollama keeps as one GGUF file can be used; try pulling it again"
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        media = "application/vnd.ollama.image.model"
        digests = [str(layer["digest"]) for layer in layers if layer["mediaType"] == media]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RefError(f"{manifest} is not an Ollama manifest", hint=hint) from error
    if not digests or not re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]):
        raise RefError(f"{manifest} names no GGUF file", hint=hint)
    return digests[0]
