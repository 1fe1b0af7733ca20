"""The ladder: all quantizations of a model in one listing, and headers for the few that matter.

A listing says exactly how large every file is, and the headers of one repository differ by next to
nothing. So the size of a file less the header of any sibling is what its tensors take, to a tenth
of a percent: enough to see which files are near a limit. Of those the tensor tables are read, which
are the part of a header that siblings do not share; the whole header is read of one or two. What a
file is for, its header decides; names are hints, which spare the fetching.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gguf_spec.errors import HeaderError, RefError
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.remote import PARALLEL, RemoteFile, hub_folder, read_remote_model
from gguf_spec.hub.repository import (
    RepoFile,
    Repository,
    local_copy,
    no_such_file,
    open_repository,
)
from gguf_spec.hub.sibling import kept_header, read_sibling, scaled
from gguf_spec.hub.web import Web
from gguf_spec.refs import SIDECAR, SPLIT, Ref, match_quant, parse_ref, some
from gguf_spec.siblings import hinted_type, model_name

ROUNDS = 8  # of choosing and fetching
UNUSABLE = "it cannot be used: "  # how the reason begins for which a rung is left out
_WEIGHTS = 90  # percent of the room that weights have; the rest is for caches and buffers


@dataclass(frozen=True, slots=True)
class LadderFile:
    """One quantization of a model: ``quant`` as its name has it. ``ref`` names it for good, with
    the revision in it. ``parts`` are its files, of ``bytes`` bytes together."""

    quant: str
    ref: str
    path: str
    parts: tuple[RepoFile, ...]
    bytes: int
    revision: str


@dataclass(slots=True)
class Ladder:
    """The quantizations of one model in one revision of a repository, the largest first.

    ``left_out``: files that are no rung of it, with the reason. ``auxiliaries``: those of them that
    are named like drafters. ``drafts``: files that are no target stay in the ladder. ``room``: how
    many bytes the one that is looked for may take, which says where to begin.
    """

    web: Web
    repository: Repository
    files: list[LadderFile]
    left_out: dict[str, str] = field(default_factory=dict)
    auxiliaries: tuple[LadderFile, ...] = ()
    drafts: bool = False
    room: int | None = None
    _infos: dict[str, ModelInfo] = field(default_factory=dict)
    _sketches: dict[str, tuple[ModelInfo, ModelInfo]] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)  # of them those that were read to the end

    @property
    def revision(self) -> str:
        """The commit that everything here is of."""
        return self.repository.commit

    @property
    def note(self) -> str | None:
        """Why the list may be old; None if it is not."""
        return self.repository.note

    def header(self, file: LadderFile) -> ModelInfo:
        """The header of a rung: from the model's own file if it is here, from the cache, or from
        the network. Raises HubError, HeaderError."""
        if file.path not in self._whole:
            likely = self._infos.get(file.path) or self._known()
            self._infos[file.path] = remote_header(
                self.web,
                self.repository,
                file,
                likely=likely.header_bytes if likely is not None else None,
            )
            self._whole.add(file.path)
        return self._infos[file.path]

    def read_tables(self, files: Sequence[LadderFile]) -> None:
        """Have the headers of ``files`` with the vocabulary of a rung that is known: what counts
        bytes, for little of the network. Errors as ``header``."""
        base = self._known()
        # one alone is likely to be the one that is chosen, whose header is wanted whole in the end
        if base is None or (len(files) == 1 and len(self._whole) == 1):
            infos = [_tried(self.header, file) for file in files]
        else:

            def read(file: LadderFile) -> ModelInfo:
                return remote_header(self.web, self.repository, file, base=base)

            with ThreadPoolExecutor(PARALLEL) as pool:
                infos = list(pool.map(lambda file: _tried(read, file), files))
        for file, info in zip(files, infos, strict=True):
            if isinstance(info, HeaderError):
                self.leave_out(file, info)
                continue
            self._infos[file.path] = info
            self._keep_if_target(file, info)

    def leave_out(self, file: LadderFile, error: HeaderError) -> None:
        """Do without a rung that cannot be used. Raises ``error`` if it is the last one, or another
        one was left out for the same: that is the model, and the rest need not be read."""
        why = UNUSABLE + error.message.replace(f"hf:{self.repository.name}/{file.path}", "the file")
        if len(self.files) == 1 or why in self.left_out.values():
            raise error
        self._drop(file, why)

    def _known(self) -> ModelInfo | None:
        """A header that was read whole, of one file if there is such."""
        whole = [info for path, info in self._infos.items() if path in self._whole]
        return min(whole, key=lambda info: len(info.files), default=None)

    def is_exact(self, file: LadderFile) -> bool:
        """Whether the tensors of this file are known."""
        return file.path in self._infos

    def is_whole(self, file: LadderFile) -> bool:
        """Whether all of the header of this file has been read."""
        return file.path in self._whole

    def sketch(self, file: LadderFile) -> ModelInfo:
        """The header of a rung, or a sibling's with its tensors scaled to the size of this file.

        A header is fetched only if there is none yet. Raises HubError, HeaderError.
        """
        if file.path in self._infos:
            return self._infos[file.path]
        while not self._infos and self.files:
            self._first()
        if file.path in self._infos or not self._infos:
            return self.header(file)
        # From the next larger one that is known. So a file that turned out to be less than its
        # size promised is not overtaken by all the smaller ones, which would have to be read too.
        known = sorted(self._infos.values(), key=lambda info: info.file_bytes)
        base = next((info for info in known if info.file_bytes >= file.bytes), known[-1])
        drawn = self._sketches.get(file.path)
        if drawn is None or drawn[0] is not base:  # the same object again: much is kept by it
            drawn = self._sketches[file.path] = base, scaled(base, file.ref, file.quant, file.bytes)
        return drawn[1]

    def settle(self, wanted: Callable[[Sequence[ModelInfo]], Iterable[int]]) -> list[ModelInfo]:
        """Headers of all rungs, with tensor tables of their own where it matters.

        ``wanted`` is given the headers as far as they are known, the rest sketched, and names the
        rungs that have to be exact: the one it would choose, say. It is asked until all of them
        are. Files that turn out to be no target leave the ladder. Raises RefError if none is left.
        """
        self._recall()
        for _ in range(ROUNDS):
            infos = self._infos_of_all()
            missing = [i for i in wanted(infos) if not self.is_exact(self.files[i])]
            if not missing:
                return infos
            self.read_tables([self.files[i] for i in dict.fromkeys(missing)])
        return self._infos_of_all()

    def _recall(self) -> None:
        """Take what was read another time: then there is less to sketch, and nothing to ask."""
        cache = HeaderCache(hub_folder())
        for file in [file for file in self.files if file.path not in self._infos]:
            found = kept_header(self.web, cache, remote_files(self.repository, file))
            if found is not None:
                self._infos[file.path] = found[0]
                if found[1]:
                    self._whole.add(file.path)
                self._keep_if_target(file, found[0])

    def _infos_of_all(self) -> list[ModelInfo]:
        while True:
            before = len(self.files)
            if not self.files:
                left = ", ".join(f"{name} ({why})" for name, why in self.left_out.items())
                raise RefError(
                    f"hf:{self.repository.name} has no model to run: {left}", hint="name another"
                )
            infos = [self.sketch(file) for file in self.files]
            if len(self.files) == before:
                return infos

    def _first(self) -> None:
        """A header to sketch others by. Any would do; one that may be the one to choose, or is near
        the limit, and lies in one file, spares requests."""
        whole = [file for file in self.files if len(file.parts) == 1] or self.files
        file = whole[len(whole) // 2]
        if self.room is not None:
            limit = self.room * _WEIGHTS // 100
            file = next((file for file in whole if file.bytes <= limit), whole[-1])
        self.read_tables([file])

    def _keep_if_target(self, file: LadderFile, info: ModelInfo) -> None:
        if info.role != "target" and not self.drafts:
            self._drop(file, f"its role is {info.role}")

    def _drop(self, file: LadderFile, why: str) -> None:
        self.left_out[file.path] = why
        self.files = [other for other in self.files if other.path != file.path]
        self._infos.pop(file.path, None)
        self._whole.discard(file.path)


def _tried(read: Callable[[LadderFile], ModelInfo], file: LadderFile) -> ModelInfo | HeaderError:
    try:
        return read(file)
    except HeaderError as error:
        return error


def list_ladder(web: Web, ref: str | Ref, *, drafts: bool = False) -> Ladder:
    """The ladder of ``hf:owner/repo[:QUANT][/file][@revision]``: with a quantization or a file, the
    rungs that it names. One listing, no header. ``drafts``: in a repository that has nothing but
    files named like drafters those are meant.

    Raises:
        HubError: it cannot be had.
        RefError: nothing, or several models, go by that name.
    """
    ref = parse_ref(ref) if isinstance(ref, str) else ref
    repository = open_repository(web, ref.name, ref.revision, hub_folder())
    left_out: dict[str, str] = {}
    sets = _sets(repository, left_out)
    if not sets and not left_out:
        raise RefError(
            f"hf:{ref.name} has no .gguf file in it ({len(repository.files)} other files)",
            hint="a repository with the weights as GGUF often has the same name with -GGUF",
        )
    rungs = {path: _rung(repository, path, parts) for path, parts in sets.items()}
    aside = tuple(rung for path, rung in rungs.items() if is_auxiliary(path))
    if ref.file:
        chosen = [_named(repository, rungs, ref.file, left_out)]
    else:
        chosen = [rung for path, rung in rungs.items() if not is_auxiliary(path)]
        if drafts and not chosen:
            chosen = [rung for rung in aside if hinted_type(rung.path) is not None]
        left_out |= {rung.path: "named like no model" for rung in aside if rung not in chosen}
        chosen = _of_quant(ref, chosen) if ref.quant else _one_model(chosen, left_out)
    if not chosen:
        raise RefError(
            f"hf:{ref.name} has no model to run; it has {some(left_out)}",
            hint="a file that is named is taken as it is: hf:owner/repo/path/in/repo.gguf",
        )
    chosen.sort(key=lambda rung: (-rung.bytes, rung.path))
    return Ladder(web, repository, chosen, left_out, aside, drafts)


def single(ladder: Ladder, ref: Ref) -> LadderFile:
    """The one rung of a ladder. Raises RefError where there are several."""
    if len(ladder.files) == 1:
        return ladder.files[0]
    sizes = [f"{rung.quant or rung.path} ({rung.bytes / 2**30:.2f} GiB)" for rung in ladder.files]
    first = ladder.files[-1]
    wish = f":{first.quant}" if first.quant and not ref.quant else f"/{first.path}"
    raise RefError(
        f"{ref.text} names {len(ladder.files)} models: {some(sizes, 30)}",
        hint=f"name one of them, as in hf:{ref.name}{wish}",
    )


def remote_header(
    web: Web,
    repository: Repository,
    file: LadderFile,
    *,
    likely: int | None = None,
    base: ModelInfo | None = None,
) -> ModelInfo:
    """The header of one quantization with all its parts; ``likely`` is the size of a sibling's.
    ``base`` is a sibling's header, of which the vocabulary is taken, if it can be.

    Raises HubError, HeaderError.
    """
    here = [local_copy(repository, part) for part in file.parts]
    if all(path is not None for path in here) and here[0] is not None:
        return read_model(here[0])
    remote = remote_files(repository, file)
    cache = HeaderCache(hub_folder())
    if base is not None:
        return read_sibling(web, cache, remote, base)
    return read_remote_model(web, cache, remote, likely=likely)


def remote_files(repository: Repository, file: LadderFile) -> list[RemoteFile]:
    """The parts of a quantization, where they can be asked for."""
    return [
        RemoteFile(
            f"hf:{repository.name}/{part.path}", repository.url(part.path), part.size, part.oid
        )
        for part in file.parts
    ]


def _sets(repository: Repository, left_out: dict[str, str]) -> dict[str, tuple[RepoFile, ...]]:
    """The models by path, split sets under their first part's; incomplete ones are left out."""
    sets: dict[str, tuple[RepoFile, ...]] = {}
    split: dict[tuple[str, int], list[RepoFile]] = defaultdict(list)
    for file in repository.files:
        folder, _, name = file.path.rpartition("/")
        part = SPLIT.fullmatch(name)
        if part is not None:
            prefix = f"{folder}/{part['prefix']}" if folder else part["prefix"]
            split[prefix, int(part["count"])].append(file)
        elif name.lower().endswith(".gguf"):
            sets[file.path] = (file,)
    for (prefix, count), parts in split.items():
        parts.sort(key=lambda file: file.path)
        wanted = [f"{prefix}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
        if [part.path for part in parts] == wanted:
            sets[wanted[0]] = tuple(parts)
        else:
            left_out[wanted[0]] = f"only {len(parts)} of its {count} parts are there"
    return sets


def _rung(repository: Repository, path: str, parts: tuple[RepoFile, ...]) -> LadderFile:
    return LadderFile(
        quant=quant_of(path),
        ref=f"hf:{repository.name}/{path}@{repository.commit}",
        path=path,
        parts=parts,
        bytes=sum(part.size for part in parts),
        revision=repository.commit,
    )


def quant_of(path: str) -> str:
    """The quantization in a file's name, as ``UD-Q4_K_XL``; or in that of its folder; or ""."""
    folder, _, name = path.rpartition("/")
    return (model_name(name)[1] or model_name(f"x-{folder.rpartition('/')[2]}.gguf")[1]).upper()


def all_rungs(repository: Repository) -> list[LadderFile]:
    """Every model in a repository that is complete, whatever it is for."""
    sets = _sets(repository, {})
    return [_rung(repository, path, parts) for path, parts in sets.items()]


def is_auxiliary(path: str) -> bool:
    """Whether a file is named like a drafter, a projector or an importance matrix."""
    name = path.rpartition("/")[2]
    return SIDECAR.match(name) is not None or hinted_type(name) is not None


def _named(
    repository: Repository, rungs: dict[str, LadderFile], path: str, left_out: dict[str, str]
) -> LadderFile:
    """The rung of a path: its file, any of its parts, or the prefix of its set."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path, flags=re.IGNORECASE)
    for first, rung in rungs.items():
        if path == first or path in [part.path for part in rung.parts]:
            return rung
        if first.startswith(f"{stem}-") and SPLIT.fullmatch(first) and len(rung.parts) > 1:
            prefix = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", first)
            if prefix == stem:
                return rung
    problem = next((why for first, why in left_out.items() if first.startswith(stem)), None)
    if problem is not None:
        raise RefError(f"hf:{repository.name}/{path}: {problem}", hint="the upload is not complete")
    raise no_such_file(repository, path)


def _of_quant(ref: Ref, rungs: list[LadderFile]) -> list[LadderFile]:
    """The rungs of a quantization. Raises RefError with what there is instead."""
    found = match_quant([rung.path for rung in rungs], ref.quant or "")
    if not found:
        by_size = sorted(rungs, key=lambda rung: (-rung.bytes, rung.path))
        there = [rung.quant or rung.path for rung in by_size]
        raise RefError(
            f"hf:{ref.name} has no quantization {ref.quant}", hint=f"it has {some(there, 40)}"
        )
    return [rung for rung in rungs if rung.path in found]


def _one_model(rungs: list[LadderFile], left_out: dict[str, str]) -> list[LadderFile]:
    """The quantizations of one model. A repository with several models has to be asked for one of
    them; a few odd files beside a ladder are left out.

    Raises RefError for several models.
    """
    models: dict[str, list[LadderFile]] = defaultdict(list)
    for rung in rungs:
        models[model_name(rung.path.rpartition("/")[2])[0]].append(rung)
    if len(models) <= 1:
        return rungs
    ranked = sorted(models.values(), key=len, reverse=True)
    if len(ranked[0]) < 2 or len(ranked[1]) >= len(ranked[0]) / 2:
        raise RefError(
            f"the repository has {len(models)} models: {some(sorted(models))}",
            hint="name a file of it: hf:owner/repo/path/in/repo.gguf",
        )
    left_out |= {rung.path: "another model" for other in ranked[1:] for rung in other}
    return ranked[0]
