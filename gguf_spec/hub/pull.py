"""Downloads where others look for them: the Hugging Face cache in its own layout, or our folder.

The layout is that of huggingface_hub: ``models--OWNER--REPO/`` with ``blobs/HASH``, links to them
in ``snapshots/COMMIT/``, and the commit that a branch is at in ``refs/BRANCH``. The locks are its
locks, too. So a model that ``hf download`` has fetched is not fetched again, and the other way
round.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gguf_spec.demo import resolve_demo
from gguf_spec.errors import AmbiguousRefError, HubError, RefError
from gguf_spec.folders import url_folder
from gguf_spec.hub.download import Progress, check_space, fetch, partial_size
from gguf_spec.hub.header_cache import unwritable, write_whole
from gguf_spec.hub.ladder import LadderFile, list_ladder, single
from gguf_spec.hub.local import elsewhere
from gguf_spec.hub.remote import RemoteFile, address_parts
from gguf_spec.hub.repository import Repository
from gguf_spec.hub.web import INSTALL, Web
from gguf_spec.refs import Ref, as_hub, hf_cache_dir, parse_ref, resolve

__all__ = ["Progress", "Pulled", "locate", "obtain", "pull", "pull_file"]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now. ``path`` is its first part; ``ref`` names it with its revision;
    ``fresh`` counts the files that were not here before."""

    ref: str
    path: Path
    files: tuple[Path, ...]
    bytes: int
    revision: str | None
    fresh: int


def pull(web: Web, text: str, progress: Progress) -> Pulled:
    """Download what a reference names, or see that it is here and the same.

    Raises:
        HubError: it cannot be had, or stored.
        RefError: nothing, or several models, go by that name.
    """
    ref = parse_ref(text)
    ref = (as_hub(ref) or ref) if ref.kind == "url" else ref
    if ref.kind == "hf":
        ladder = list_ladder(web, ref)
        if ladder.note:
            web.tell(ladder.note)
        return pull_file(web, ladder.repository, single(ladder, ref), progress)
    if ref.kind == "url":
        return _pull_address(web, ref, progress)
    if ref.kind == "demo":
        path = resolve_demo(progress)
    else:  # a file, or a model of Ollama, that is here or not
        path = resolve(text)
    return Pulled(text, path, (path,), path.stat().st_size, None, 0)


def pull_file(web: Web, repository: Repository, rung: LadderFile, progress: Progress) -> Pulled:
    """Download one quantization into the Hugging Face cache. Raises HubError."""
    folder = hf_cache_dir() / f"models--{repository.name.replace('/', '--')}"
    locks = hf_cache_dir() / ".locks" / folder.name
    blobs = {part.path: folder / "blobs" / part.oid for part in rung.parts}
    snapshot = folder / "snapshots" / repository.commit
    missing = [
        (part.size, blobs[part.path])
        for part in rung.parts
        if not blobs[part.path].is_file() and not (snapshot / part.path).is_file()
    ]
    need = sum(size - min(size, partial_size(blob)) for size, blob in missing)
    check_space(folder, need, rung.ref)
    fresh = 0
    for number, part in enumerate(rung.parts, 1):
        remote = RemoteFile(
            f"hf:{repository.name}/{part.path}", repository.url(part.path), part.size, part.oid
        )
        link = snapshot / part.path
        if _is_copy(link, part.size):  # where links are not possible the file itself lies there
            continue
        what = part.path.rpartition("/")[2]
        what += f" ({number} of {len(rung.parts)})" if len(rung.parts) > 1 else ""
        lock = locks / f"{part.oid}.lock"
        fresh += fetch(web, remote, blobs[part.path], lock, progress, what).fresh
        _link(blobs[part.path], link)
    _point(folder, repository)
    files = tuple(snapshot / part.path for part in rung.parts)
    return Pulled(rung.ref, files[0], files, rung.bytes, repository.commit, fresh)


def obtain(web: Web, text: str, progress: Progress) -> Path:
    """The local file that a reference names; downloaded if it is not here. What is here is used as
    it is, without asking anybody.

    Raises:
        RefError: there is none.
        HubError: it cannot be had, or stored.
    """
    ref = parse_ref(text)
    if ref.kind not in ("hf", "url"):
        return resolve(text, progress=progress)
    try:
        return resolve(text)
    except AmbiguousRefError:
        raise
    except RefError as missing:
        found = elsewhere(as_hub(ref) or ref)
        if found is not None:
            return found
        if web.offline:
            raise
        try:
            return pull(web, text, progress).path
        except HubError as error:
            if error.kind != "extra":
                raise
            hint = f"{INSTALL} lets gguf-spec download it; or {missing.hint}"
            raise RefError(missing.message, hint=hint) from error


def locate(text: str, *, progress: Progress | None = None) -> Path:
    """``obtain`` with the user's Hub and token. Errors as there."""
    shown = progress or (lambda what, done, total: None)
    with Web(tell=lambda line: shown(line, 0, None)) as web:
        return obtain(web, text, shown)


def _is_copy(path: Path, size: int) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == size
    except OSError:
        return False


def _link(blob: Path, link: Path) -> None:
    """Let ``link`` lead to ``blob``, relatively; where links are not possible, move it there."""
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(blob, link.parent)
        if link.is_symlink() and os.readlink(link) == target:
            return
        new = link.with_name(f".{link.name}.{os.getpid()}")
        try:
            os.symlink(target, new)
        except (OSError, NotImplementedError):
            shutil.move(blob, link)
            return
        os.replace(new, link)
    except OSError as error:
        raise unwritable(link.parent, error) from error


def _point(folder: Path, repository: Repository) -> None:
    """Remember which commit a branch or tag is at, as huggingface_hub does."""
    if repository.revision == repository.commit:
        return
    path = folder / "refs" / repository.revision
    try:
        if not path.is_file() or path.read_text(encoding="utf-8").strip() != repository.commit:
            write_whole(path, repository.commit.encode())
    except OSError as error:
        raise unwritable(folder, error) from error


def _pull_address(web: Web, ref: Ref, progress: Progress) -> Pulled:
    """Download the file at a plain address, of a split set all parts, into our own cache."""
    folder = url_folder(ref.name)
    parts: Sequence[RemoteFile] = address_parts(ref.name)
    files, size, fresh = [], 0, 0
    for number, part in enumerate(parts, 1):
        name = unquote(urlsplit(part.url).path).rpartition("/")[2]
        what = name + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        goal = folder / name
        done = fetch(web, part, goal, folder / f".{name}.lock", progress, what)
        files.append(goal)
        size += done.size
        fresh += done.fresh
    return Pulled(ref.text, files[0], tuple(files), size, None, fresh)
