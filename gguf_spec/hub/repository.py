"""What a repository of a Hub holds: one revision, pinned, and its files with sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from gguf_spec.errors import HubError, RefError
from gguf_spec.hub.header_cache import keep, unwritable, write_whole
from gguf_spec.hub.web import Web
from gguf_spec.refs import hf_cache_dir

MAX_PAGES = 200  # of a listing; a page has up to 1000 files
_COMMIT = re.compile(r"[0-9a-f]{40}")
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file in a repository. ``oid`` names its content: the sha256 of what Git LFS or Xet keep,
    else the id of a git blob (40 digits)."""

    path: str
    size: int
    oid: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The files of one revision. ``commit`` is what ``revision`` led to; ``note``: why the list may
    be old, None if it is not."""

    endpoint: str
    name: str
    revision: str
    commit: str
    files: tuple[RepoFile, ...] = field(repr=False)
    note: str | None = None

    def url(self, path: str) -> str:
        """The address of a file, in this revision."""
        return f"{self.endpoint}/{self.name}/resolve/{self.commit}/{quote(path)}"

    def find(self, path: str) -> RepoFile | None:
        return next((file for file in self.files if file.path == path), None)


def open_repository(web: Web, name: str, revision: str | None, folder: Path) -> Repository:
    """The files of ``owner/repo``: two requests, and none for a commit that was listed before.

    Lists are kept in ``folder``. Offline, or where nobody answers, the last one is used, with a
    note. Raises HubError.
    """
    wanted = revision or "main"
    kept = _load(folder, web.endpoint, name, wanted)
    if kept is not None and (_COMMIT.fullmatch(wanted) or web.offline):
        return kept
    try:
        commit = _commit(web, name, wanted)
        same = _load(folder, web.endpoint, name, commit)
        files = same.files if same is not None else _list(web, name, commit)
    except HubError as error:
        if error.kind == "offline":
            raise HubError(
                f"hf:{name} was not listed here before, and gguf-spec is offline",
                kind="offline",
                hint="list it once without --offline and HF_HUB_OFFLINE, or name a local file",
            ) from error
        if error.kind != "connect" or kept is None:
            raise _told(error, name, revision) from error
        return kept
    found = Repository(web.endpoint, name, wanted, commit, files)
    keep(web, lambda: _store(folder, found, new=same is None))
    return found


def _told(error: HubError, name: str, revision: str | None) -> HubError:
    """The error with the reference in it, which the user knows; an address they do not."""
    at = f"@{revision}" if revision else ""
    return HubError(f"hf:{name}{at}: {error.message}", kind=error.kind, hint=error.hint)


def _commit(web: Web, name: str, revision: str) -> str:
    if _COMMIT.fullmatch(revision):
        return revision
    url = f"{web.endpoint}/api/models/{name}/revision/{quote(revision, safe='')}"
    document, _ = web.json(url)
    commit = document.get("sha") if isinstance(document, dict) else None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise HubError(f"{web.endpoint} does not say which commit {revision} of {name} is")
    return commit


def _list(web: Web, name: str, commit: str) -> tuple[RepoFile, ...]:
    url = f"{web.endpoint}/api/models/{name}/tree/{commit}?recursive=true&expand=false"
    host = urlsplit(web.endpoint).netloc
    files: list[RepoFile] = []
    for _ in range(MAX_PAGES):
        document, headers = web.json(url)
        if not isinstance(document, list):
            raise HubError(f"{host}: the list of the files of {name} is no list")
        files += [file for entry in document if (file := _file(entry)) is not None]
        following = _next(headers.get("link", ""))
        if following is None:
            return tuple(sorted(files, key=lambda file: file.path))
        url = urljoin(url, following)
        if urlsplit(url).netloc != host:
            raise HubError(f"{host}: the list goes on at another host, {urlsplit(url).netloc}")
    raise HubError(f"{host}: the list of the files of {name} has more than {MAX_PAGES} pages")


def _file(entry: Any) -> RepoFile | None:
    """A line of the listing; None for folders, and for what a path must not be."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    lfs = entry.get("lfs")
    of = lfs if isinstance(lfs, dict) else entry
    path, size, oid = entry.get("path"), of.get("size"), of.get("oid")
    oid = oid.removeprefix("sha256:") if isinstance(oid, str) else ""
    if not isinstance(path, str) or type(size) is not int or size < 0 or not _OID.fullmatch(oid):
        return None
    # it becomes a path in the cache
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\\" in path or "\0" in path:
        return None
    return RepoFile(path, size, oid)


def _next(link: str) -> str | None:
    match = re.search(r'<([^>]*)>\s*;[^,]*\brel="?next"?', link)
    return match[1] if match else None


def _path(folder: Path, endpoint: str, name: str, commit: str) -> Path:
    key = hashlib.sha256(f"{endpoint}\0{name}\0{commit}".encode()).hexdigest()[:32]
    return folder / "listings" / f"{key}.json"


def _load(folder: Path, endpoint: str, name: str, revision: str) -> Repository | None:
    try:
        record = json.loads(_path(folder, endpoint, name, revision).read_text(encoding="utf-8"))
        commit = record["commit"]
        if commit != revision:  # a pointer from a branch to what it was
            then = time.strftime("%Y-%m-%d %H:%M", time.localtime(record["time"]))
            target = _load(folder, endpoint, name, commit)
            if target is None:
                return None
            note = f"the list of hf:{name} is of {then}; it may have changed since"
            return Repository(endpoint, name, revision, commit, target.files, note)
        if record["hash"] != _hash(record["files"]):
            return None
        files = tuple(RepoFile(path, size, oid) for path, size, oid in record["files"])
        return Repository(endpoint, name, revision, commit, files)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _hash(rows: Any) -> str:
    """What a list that was kept has to have: one that is wrong would stay so for good."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _store(folder: Path, found: Repository, *, new: bool) -> None:
    rows = [[file.path, file.size, file.oid] for file in found.files]
    documents: list[tuple[str, dict[str, Any]]] = []
    if new:
        documents.append(
            (found.commit, {"commit": found.commit, "files": rows, "hash": _hash(rows)})
        )
    if found.revision != found.commit:
        documents.append((found.revision, {"commit": found.commit, "time": time.time()}))
    try:
        for revision, document in documents:
            path = _path(folder, found.endpoint, found.name, revision)
            write_whole(path, json.dumps(document).encode())
    except OSError as error:
        raise unwritable(folder, error) from error


def local_copy(repository: Repository, file: RepoFile) -> Path | None:
    """The file in the Hugging Face cache, if it is there with its right size."""
    folder = hf_cache_dir() / f"models--{repository.name.replace('/', '--')}"
    path = folder / "snapshots" / repository.commit / file.path
    try:
        return path if path.stat().st_size == file.size else None
    except OSError:
        return None


def no_such_file(found: Repository, path: str) -> RefError:
    """The error for a file that the repository does not have."""
    models = [file.path for file in found.files if file.path.lower().endswith(".gguf")]
    there = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
    return RefError(
        f"hf:{found.name}@{found.commit[:12]} has no file {path}",
        hint=f"it has {there}" if models else "there is no .gguf file in it",
    )
