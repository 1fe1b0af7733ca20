"""What the n-gram drafters have in common: where drafts come from, and what becomes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft
from gguf_spec.drafters.ngram_predicted import Follower
from gguf_spec.drafters.pool import LONGEST_MATCH, Pool
from gguf_spec.history import History
from gguf_spec.sampling import Sampler

MAX_INDEXED = 262_144
"""Most tokens of a history that are indexed, the latest ones: 28 MiB, or 90 MiB of counts."""
_LONGEST_PAUSE = 32
_FIRST_LENGTH = 16


class Trust:
    """How much of a source is worth drafting, from what became of its drafts.

    ``length`` tokens at most, up to ``longest``. A draft that was refuted after ``k`` tokens makes
    it ``max(2k, k + 4)``, one that was right throughout lets it grow to the same. llama.cpp takes
    ``k`` itself (``common_ngram_map_accept``), so that its drafts only ever shrink and one failure
    ends them for good. Here a draft of which less than a quarter was right makes the source skip
    its next 1, 2, 4 ... 32 chances, until half of a draft is right again.
    """

    __slots__ = ("_failures", "_longest", "_skip", "length")

    def __init__(self, longest: int, length: int | None = None) -> None:
        self._longest = longest
        self.length = longest if length is None else min(length, longest)
        self._failures = 0
        self._skip = 0

    def ready(self) -> bool:
        """Whether to draft now; a chance that is skipped counts."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def learn(self, offered: int, matched: int, refuted: bool) -> None:
        """Of ``offered`` tokens ``matched`` came true; then another token came if ``refuted``."""
        grown = min(self._longest, max(2 * matched, matched + 4))
        self.length = grown if refuted else max(self.length, grown)
        if refuted and 4 * matched < offered:
            self._skip = min(2**self._failures, _LONGEST_PAUSE)
            self._failures += 1
        elif 2 * matched >= offered:
            self._failures = 0


class Open(Trust):
    """In place of trust where a controller judges: every draft is offered whole, or it would judge
    the few that are let through, and learn late of a source that has become good again."""

    __slots__ = ()

    def __init__(self, longest: int, length: int | None = None) -> None:
        super().__init__(longest)

    def learn(self, offered: int, matched: int, refuted: bool) -> None:
        """Somebody else learns."""


class NgramIndex:
    """Where the n-grams of a history start, the latest and through it the earlier ones.

    The keys are hashes and every hit is compared with the text: exact, and the memory does not
    depend on ``n``. Should two n-grams share a hash, the earlier one is no longer found.
    """

    __slots__ = ("_base", "_latest", "_previous", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self.clear(0)

    def clear(self, base: int) -> None:
        """Forget everything; n-grams that start before position ``base`` stay unknown."""
        self._base = base
        self._latest: dict[int, int] = {}
        self._previous = array("i")

    def extend(self, history: History, end: int) -> None:
        """Index the n-grams that start before position ``end`` and are not indexed yet."""
        latest, previous, n = self._latest, self._previous, self.n
        begin = self._base + len(previous)
        if begin >= end:
            return
        tokens = history[begin : end + n - 1]
        for i in range(end - begin):
            key = hash(tuple(tokens[i : i + n]))
            previous.append(latest.get(key, -1))
            latest[key] = begin + i

    def find(self, history: History, key: list[int]) -> int:
        """Start of the latest indexed n-gram that is ``key``, or -1."""
        start = self._latest.get(hash(tuple(key)), -1)
        return start if start >= 0 and history[start : start + self.n] == key else -1

    def before(self, start: int) -> int:
        """Start of the same n-gram before the one at ``start``, or -1."""
        return self._previous[start - self._base]


class NgramDrafter(ABC):
    """Base of the n-gram drafters; they say what to look for, and what they learn.

    A draft comes from the first of these that has one: the predicted text of the pool while the
    completion follows it, the history by the rules of the type, the earlier texts of the pool.
    A look-up gives as many tokens as the type wants, and only then the draft is cut to ``limit``.

    What became of a draft is read from the history itself, not from ``n_accepted``: a draft may
    have been cut before an end token, dropped for want of room, or passed over for another
    drafter's. None of that is a token that turned out wrong.

    With ``trusting`` the drafter holds back what has often been wrong. A controller that judges
    drafts by what became of earlier ones has to see them all.
    """

    spec_type: str

    def __init__(
        self,
        longest: int,
        pool: Pool | None,
        *,
        max_indexed: int = MAX_INDEXED,
        trusting: bool = True,
    ) -> None:
        self._pool = pool
        self._trusting = trusting
        self._make_trust: type[Trust] = Trust if trusting else Open
        self._match = 0
        """Tokens before the draft that agree with the place that it is copied from."""
        self._longest = longest
        self._half = max(max_indexed // 2, 1)
        self._history = History()
        self._epoch = 0
        self._base = 0
        self._follower: Follower | None = None
        self._n_prompt = 0
        self._drafted: list[int] = []
        self._drafted_at = 0
        self._judge: Trust | None = None
        self._start_trust()

    # ------------------------------------------------- what a type defines

    @abstractmethod
    def _find(self, limit: int) -> list[int]:
        """A draft from the history; at least ``limit`` tokens of it, if there are as many. Notes
        its match: see ``_copied_from``."""

    @abstractmethod
    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        """A draft from the earlier texts of ``pool``, and its match."""

    def _learn(self, offered: int, matched: int, refuted: bool) -> None:  # noqa: B027 (optional)
        """What became of the last draft from ``_find``; see :meth:`Trust.learn`."""

    @abstractmethod
    def _reset(self, base: int) -> None:
        """Forget the history, of which only tokens from ``base`` on are to be indexed."""

    # ------------------------------------------------------------ protocol

    def begin(self, history: History) -> None:
        """A completion starts at the end of ``history``, which is read from now on."""
        if history is not self._history:
            self._history = history
            self._forget()
        self._n_prompt = len(history)
        self._start_trust()

    def observe(self, target: ModelContext, run: Run) -> None:  # noqa: B027 (as the protocol wants)
        """Nothing to learn from the target."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        self._catch_up()
        self._match = 0
        tokens = self._best(limit)[: max(limit, 0)]
        self._drafted, self._drafted_at = tokens, len(self._history)
        return Draft(list(tokens), self.spec_type, self._match)

    def accept(self, n_accepted: int) -> None:
        """Compare the last draft with what came."""
        drafted, self._drafted = self._drafted, []
        if not drafted or not self._trusting or self._epoch != self._history.epoch:
            return
        came = self._history[self._drafted_at :]
        common = min(len(drafted), len(came))
        matched = 0
        while matched < common and drafted[matched] == came[matched]:
            matched += 1
        judge = self._learn if self._judge is None else self._judge.learn
        judge(len(drafted), matched, matched < common)

    def close(self) -> None:
        """Forget the index."""
        self._forget()
        self._start_trust()

    # ---------------------------------------------------------------- rest

    def _best(self, limit: int) -> list[int]:
        self._judge = None
        pool = self._pool
        if pool is not None and (tokens := self._follow(pool)):
            self._judge = self._trust_predicted
            return tokens
        if (tokens := self._find(limit)) or pool is None:
            return tokens
        tokens, self._match = self._find_in_pool(pool)
        if not tokens or not self._trust_pool.ready():
            return []
        self._judge = self._trust_pool
        return tokens[: self._trust_pool.length]

    def _follow(self, pool: Pool) -> list[int]:
        if pool.predicted is None:
            return []
        if self._follower is None or self._follower.text is not pool.predicted:
            self._follower = Follower(pool.predicted, self._n_prompt)
        tokens = self._follower.next(self._history, self._trust_predicted.length)
        self._match = self._follower.match
        return tokens if tokens and self._trust_predicted.ready() else []

    def _copied_from(self, place: int) -> None:
        """The draft is what stands at position ``place`` of the history."""
        if not self._trusting:
            self._match = self._history.agreement(place, len(self._history), LONGEST_MATCH)

    def _catch_up(self) -> None:
        """Notice a history that shrank or outgrew the index. A long one is indexed from a multiple
        of half the bound: what is known depends on its length only, not on when that was asked."""
        length = len(self._history)
        if self._epoch != self._history.epoch:
            self._forget()
            self._n_prompt = min(self._n_prompt, length)
            self._follower = None
        base = max(length // self._half - 1, 0) * self._half
        if base > self._base:
            self._base = base
            self._reset(base)

    def _forget(self) -> None:
        self._epoch = self._history.epoch
        self._base = 0
        self._drafted = []
        self._reset(0)

    def _start_trust(self) -> None:
        self._drafted = []
        self._follower = None
        self._trust_predicted = self._make_trust(self._longest, _FIRST_LENGTH)
        self._trust_pool = self._make_trust(self._longest, _FIRST_LENGTH)
