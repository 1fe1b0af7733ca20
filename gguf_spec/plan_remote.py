"""What a plan needs from hosts: the quantizations of a repository, and drafts for them.

Of 25 quantizations a plan reads few headers. The rest is sketched from a sibling's, to a tenth of a
percent; then the plan is made with that, and what it would choose is read, until nothing that
matters is a sketch: the tensor tables of those near a limit, all of the header that it takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gguf_spec import __version__
from gguf_spec.demo import Progress
from gguf_spec.errors import HeaderError, HubError, RefError
from gguf_spec.header import ModelInfo
from gguf_spec.hub.candidates import Candidate, find_candidates
from gguf_spec.hub.header_cache import write_whole
from gguf_spec.hub.ladder import UNUSABLE, Ladder, LadderFile, list_ladder
from gguf_spec.hub.lookup import header_of
from gguf_spec.hub.remote import hub_folder
from gguf_spec.hub.web import Web, offline_by
from gguf_spec.ladder import Found, find_drafts, find_target
from gguf_spec.loadable import check_loadable
from gguf_spec.plan import plan
from gguf_spec.planning.machine import Machine, summed
from gguf_spec.planning.offers import METHODS, file_offers
from gguf_spec.planning.types import DraftOffer, Rung, Wish
from gguf_spec.refs import Ref, as_hub, parse_ref

CLOSE = 100  # the share of a file's size by which a sketch may be wrong: one in so many
_AWAY = ("offline", "connect", "extra")  # kinds of errors without which there might be an answer


@dataclass(slots=True)
class Hosts:
    """The hosts that one plan asks. ``warnings`` are for the user to read."""

    offline: bool = False
    progress: Progress | None = None
    warnings: list[str] = field(default_factory=list)
    web: Web = field(init=False)
    _ladder: Ladder | None = None
    _taken: str | None = None

    def __post_init__(self) -> None:
        away = self.offline or offline_by(os.environ)
        self.web = Web(offline=away, tell=self.warnings.append)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *exc: object) -> None:
        self.web.close()

    def header(self, text: str) -> ModelInfo:
        """The header that a reference leads to. Errors as ``header_of``."""
        return header_of(self.web, text, progress=self.progress)

    def find_target(self, text: str, machine: Machine, wish: Wish) -> Found:
        """The quantizations that a reference leads to, here or on a host; the headers of those
        that matter for ``wish`` on ``machine`` are read.

        Raises:
            HubError, RefError, HeaderError: they cannot be had.
        """
        ref = parse_ref(text)
        ref = as_hub(ref) or ref
        if ref.kind == "url":
            info = self.header(text)
            check_loadable(info, as_target=True)
            return Found((Rung(text, info),))
        if ref.kind != "hf" or self._is_here(ref):
            return find_target(text, progress=self.progress)
        try:
            ladder = list_ladder(self.web, ref)
        except HubError as error:
            return self._what_is_here(text, error)
        self._ladder = ladder
        if ladder.note:
            self.warnings.append(ladder.note)
        ladder.room = sum(gpu.budget for gpu in machine.gpus) or machine.host.budget

        def settled() -> list[ModelInfo]:
            return ladder.settle(lambda known: self._that_matter(known, ladder, machine, wish))

        infos, sure = settled(), False
        while not sure and (taken := self._taken_of(ladder)) is not None:
            sure = ladder.is_whole(taken)
            try:  # what is planned with is what its own file says, all of it
                _check_once(Rung(taken.ref, ladder.header(taken)))
            except HeaderError as error:
                ladder.leave_out(taken, error)
                sure = False
            infos = infos if sure else settled()
        return self._found(ladder, infos)

    def _taken_of(self, ladder: Ladder) -> LadderFile | None:
        """The rung that the last plan took."""
        return next((file for file in ladder.files if file.ref == self._taken), None)

    def _that_matter(
        self, infos: Sequence[ModelInfo], ladder: Ladder, machine: Machine, wish: Wish
    ) -> list[int]:
        """The rungs whose headers decide: the one that the plan takes, and those that miss by no
        more than a sketch may be wrong."""
        rungs = [Rung(file.ref, info) for file, info in zip(ladder.files, infos, strict=True)]
        made = plan(rungs, machine, wish)
        places = {id(rung): number for number, rung in enumerate(rungs)}
        matter = []
        for judged in made.ladder:
            missing = summed(judged.missing)
            close = 0 < missing * CLOSE <= judged.rung.info.file_bytes
            if judged.chosen or close:
                matter.append(places[id(judged.rung)])
        if made.target is not None:
            self._taken = made.target.rung.ref
            matter.append(places[id(made.target.rung)])
        return matter

    def _found(self, ladder: Ladder, infos: Sequence[ModelInfo]) -> Found:
        rungs = [
            Rung(file.ref, info, ladder.is_exact(file))
            for file, info in zip(ladder.files, infos, strict=True)
        ]
        exact = [rung for rung in rungs if rung.exact]
        taken = next((rung for rung in exact if rung.ref == self._taken), None)
        told = ("only ", UNUSABLE)  # how the reasons begin that nobody would have expected
        holes = {path: why for path, why in ladder.left_out.items() if why.startswith(told)}
        left = tuple(f"{path} is left out: {why}" for path, why in holes.items())
        # what is about the model and not about its size is asked of the first rung
        first = taken or (exact[0] if exact else rungs[0])
        return Found((first, *(rung for rung in rungs if rung is not first)), (), left)

    def _is_here(self, ref: Ref) -> bool:
        """Whether the file that a reference names is in a cache, where ``run`` would take it."""
        if not (ref.quant or ref.file):
            return False
        try:
            find_target(ref.text)
        except RefError:
            return False
        return True

    def _what_is_here(self, text: str, error: HubError) -> Found:
        if error.kind not in _AWAY:
            raise error
        try:
            found = find_target(text, progress=self.progress)
        except RefError:
            raise error from None
        self.warnings.append(f"only what is here of {text}: {error.message}")
        return found

    def find_drafts(self, text: str) -> list[Rung]:
        """The quantizations of a draft that a reference leads to, one of them read.

        Errors as ``find_target``.
        """
        ref = parse_ref(text)
        ref = as_hub(ref) or ref
        if ref.kind == "url":
            return [Rung(text, self.header(text))]
        if ref.kind != "hf" or self._is_here(ref):
            return find_drafts(text, progress=self.progress)
        try:
            ladder = list_ladder(self.web, ref, drafts=True)
        except HubError as error:
            return list(self._what_is_here(text, error).rungs)
        infos = ladder.settle(lambda known: ())
        rungs = [Rung(file.ref, info) for file, info in zip(ladder.files, infos, strict=True)]
        for rung, file in zip(rungs, ladder.files, strict=True):
            if ladder.is_exact(file):
                check_loadable(rung.info)
        return rungs

    def with_candidates(
        self,
        target: Rung,
        files: Sequence[DraftOffer],
        types: Sequence[str],
        *,
        ceiling: int | None = None,
    ) -> list[DraftOffer]:
        """``files`` and whatever else is known to draft for ``target``, the best first."""
        kinds = [kind for kind in METHODS if kind in types or tuple(types) == ("auto",)]
        repository = self._ladder.repository if self._ladder is not None else None
        found = find_candidates(self.web, target.info, repository=repository, kinds=kinds)
        self.warnings += found.problems
        there = {os.path.realpath(rung.ref) for offer in files for rung in offer.rungs}
        offers = list(files)
        for one in found.candidates:
            if os.path.realpath(one.info.path) not in there:
                offers += _offers(target.info, one, ceiling)
        return offers


def _check_once(rung: Rung) -> None:
    """``check_loadable``, which looks at every token. A reference with its revision in it stays
    what it is, so it is remembered where that went well. Raises HeaderError."""
    name = hashlib.sha256(f"{__version__}\0{rung.ref}".encode()).hexdigest()[:32]
    checked = hub_folder() / "checked" / name
    if not checked.exists():
        check_loadable(rung.info, as_target=True)
        with contextlib.suppress(OSError):
            write_whole(checked, b"")


def in_order(offers: Sequence[DraftOffer], files: Sequence[DraftOffer]) -> list[DraftOffer]:
    """``offers`` by method; within one the target's own head, then those with ``files`` in the
    order of these."""
    place = {id(offer): number for number, offer in enumerate(files)}
    return sorted(offers, key=lambda o: (METHODS.index(o.method), place.get(id(o), -1)))


def _offers(target: ModelInfo, one: Candidate, ceiling: int | None) -> list[DraftOffer]:
    """The offer of a candidate. One that is known to be slower is told, and not made."""
    rungs = [Rung(ref, info) for ref, info in one.rungs]
    problem = None if one.usable else one.reason
    if one.pays == "no":
        problem = f"known to be slower: {one.note} ({one.said})"
    offers = file_offers(target, rungs, one.origin, ceiling=ceiling)
    return [replace(offer, problem=offer.problem or problem) for offer in offers]
