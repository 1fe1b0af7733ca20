"""The rules of the n-gram drafters as plain scans over lists: slow, stateless where they can be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Tokens = Sequence[int]
Table = Mapping[tuple[int, ...], Mapping[int, int]]

LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


def random_text(r: random.Random, pieces: int = 8) -> list[int]:
    """Few kinds of tokens, and long repeats of what stood before."""
    kinds = r.choice([[7], [0, 1], [0, 1, 256], [3, 4, 5, 6, 2**31 - 1]])
    text: list[int] = []
    for _ in range(r.randrange(pieces + 1)):
        if text and r.random() < 0.6:
            start = r.randrange(len(text))
            text += text[start : start + r.randrange(1, 25)]
        else:
            text += r.choices(kinds, k=r.randrange(1, 12))
    return text


def starts(text: Tokens, key: Tokens, end: int) -> list[int]:
    """Where ``key`` stands in ``text``, starting before ``end``."""
    return [i for i in range(max(end, 0)) if list(text[i : i + len(key)]) == list(key)]


@dataclass
class Trust:
    """See gguf_spec.drafters.ngram_base.Trust."""

    longest: int
    length: int
    skip: int = 0
    failures: int = 0

    def ready(self) -> bool:
        self.skip -= 1
        return self.skip < 0

    def learn(self, offered: int, matched: int, refuted: bool) -> None:
        self.skip = max(self.skip, 0)
        proposed = min(self.longest, max(2 * matched, matched + 4))
        if refuted or proposed > self.length:
            self.length = proposed
        if refuted and matched / offered < 0.25:
            self.failures += 1
            self.skip = min([1, 2, 4, 8, 16, 32][min(self.failures, 6) - 1], 32)
        elif matched / offered >= 0.5:
            self.failures = 0


@dataclass
class Follower:
    """See gguf_spec.drafters.ngram_predicted.Follower."""

    text: list[int]
    position: int = 0
    lost: bool = False
    seen: int = 0

    def next(self, completion: list[int], length: int) -> list[int]:
        new = completion[self.seen :]
        while not self.lost and new:
            if self.position < len(self.text) and self.text[self.position] == new[0]:
                self.position += 1
                new = new[1:]
            else:
                self.lost = True
        if self.lost and completion[self.seen :]:
            self.find_again(completion)
        self.seen = len(completion)
        return [] if self.lost else self.text[self.position :][:length]

    def find_again(self, completion: list[int]) -> None:
        n = len(completion)
        places = range(len(self.text) + 1)
        agree = {p: self.agreement(completion, p) for p in places}
        if n >= 3:
            found = [p for p in places if agree[p] >= 3]
        else:
            found = [p for p in places if agree[p] == n]
            found = found if len(found) == 1 else []
        if not found and n >= 2:
            found = [p for p in places if agree[p] >= 2 and abs(p - self.position) <= 32]
            agree = dict.fromkeys(places, 2)
        if found:
            self.position = max(found, key=lambda p: (agree[p], -abs(p - self.position), p))
            self.lost = False

    def agreement(self, completion: list[int], place: int) -> int:
        n = 0
        while (
            n < min(len(completion), place, 32) and self.text[place - 1 - n] == completion[-1 - n]
        ):
            n += 1
        return n


@dataclass
class Reference:
    """A drafter of any type; ``sizes`` are its parameters in the order of its constructor."""

    kind: str
    sizes: tuple[int, ...]
    texts: list[list[int]] | None = None  # of the pool, the latest last
    predicted: list[int] = field(default_factory=list)
    static: Table = field(default_factory=dict)
    dynamic: Table = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.longest = {"ngram-cache": self.sizes[0], "ngram-mod": self.sizes[-1]}.get(
            self.kind, self.sizes[1] if len(self.sizes) > 1 else 0
        )
        self.forget()
        self.begin([])

    def forget(self) -> None:
        """The history is another one."""
        self.trust: dict[tuple[object, ...], Trust] = {}
        self.low = 0
        self.emptied_at = 0

    def begin(self, text: Tokens) -> None:
        self.n_prompt = len(text)
        self.drafted: list[int] = []
        self.drafted_at = 0
        self.judge: Trust | None = None
        self.follower = Follower(self.predicted)
        self.trust_predicted = Trust(self.longest, min(self.longest, 16))
        self.trust_pool = Trust(self.longest, min(self.longest, 16))
        if self.emptied_at:
            self.low = self.emptied_at = 0

    def draft(self, text: list[int], limit: int) -> list[int]:
        self.judge = None
        self.drafted_at = len(text)
        self.drafted = self.best(text)[:limit]
        return self.drafted

    def best(self, text: list[int]) -> list[int]:
        if self.predicted:
            found = self.follower.next(text[self.n_prompt :], self.trust_predicted.length)
            if found and self.trust_predicted.ready():
                self.judge = self.trust_predicted
                return found
        found = getattr(self, self.kind.replace("-", "_"))(text)
        if found or self.texts is None:
            return list(found)
        found = self.from_pool(text)
        if not found or not self.trust_pool.ready():
            return []
        self.judge = self.trust_pool
        return found[: self.trust_pool.length]

    def accept(self, text: list[int]) -> None:
        came = text[self.drafted_at :]
        drafted, self.drafted = self.drafted, []
        if not drafted:
            return
        matched = 0
        while matched < min(len(drafted), len(came)) and drafted[matched] == came[matched]:
            matched += 1
        refuted = matched < len(drafted) and matched < len(came)
        if self.judge is not None:
            self.judge.learn(len(drafted), matched, refuted)
        elif self.kind == "ngram-mod":
            self.low = self.low + 1 if refuted and matched / len(drafted) < 0.25 else 0
            if self.low == 5:
                self.low, self.emptied_at = 0, len(text)

    # ---------------------------------------------------------------- types

    def ngram_simple(self, text: list[int]) -> list[int]:
        n, m = self.sizes
        decoded = text[:-1]
        found = [i for i in starts(decoded, text[-n:], len(decoded) - n) if i > 0]
        if len(decoded) <= n + m + 1 or not found:
            return []
        draft = decoded[found[-1] + n :][:m]
        return draft if len(draft) >= n else []

    def ngram_map_k(self, text: list[int]) -> list[int]:
        n, m, min_hits = self.sizes
        found = self.occurrences(text)
        if len(found) < max(min_hits, 1):
            return []
        return self.trusted((*text[-n:],), text[found[-1] + n :][:m])

    def ngram_map_k4v(self, text: list[int]) -> list[int]:
        n, m, min_hits = self.sizes
        found = self.occurrences(text)
        if len(found) < max(min_hits, 1):
            return []
        values: Counter[tuple[int, ...]] = Counter()
        for i in found:
            value = tuple(text[i + n :][:m])
            if value in values or len(values) < 4:
                values[value] += 1
        value, count = values.most_common(1)[0]
        if count < 2 * (values.total() - count):
            return []
        return self.trusted((*text[-n:], None, *value), list(value))

    def occurrences(self, text: list[int]) -> list[int]:
        n, m, _ = self.sizes
        if len(text) <= 2 * n + m:
            return []
        return starts(text, text[-n:], len(text) - n - m - 1)

    def trusted(self, key: tuple[object, ...], draft: list[int]) -> list[int]:
        trust = self.trust.setdefault(key, Trust(self.longest, self.longest))
        if not trust.ready():
            return []
        self.judge = trust
        return draft[: trust.length]

    def ngram_mod(self, text: list[int]) -> list[int]:
        n, n_min, n_max = self.sizes
        chain = list(text)
        while len(chain) - len(text) < n_max and len(text) >= n:
            known = [i for i in starts(text, chain[-n:], len(text) - n) if i >= self.emptied_at]
            if not known:
                break
            chain.append(text[known[-1] + n])
        draft = chain[len(text) :]
        return draft if len(draft) >= min(n_min, n_max) else []

    def ngram_cache(self, text: list[int]) -> list[int]:
        chain = list(text)
        while len(text) >= 2 and len(chain) - len(text) < self.sizes[0]:
            token = self.most_likely(text, chain)
            if token is None:
                break
            chain.append(token)
        return chain[len(text) :]

    def most_likely(self, text: list[int], chain: list[int]) -> int | None:
        static = self.static.get(tuple(chain[-2:]), {})
        sizes = [n for n in (4, 3, 2, 1) if n <= len(chain)]
        tried: list[tuple[Mapping[int, int], Mapping[int, int], tuple[int, int]]] = []
        for n in sizes:
            tried.append((followers([text], chain[-n:]), static, LAX[n]))
        for n in sizes:
            tried.append((self.dynamic.get(tuple(chain[-n:]), {}), static, STRICT[n]))
        for n in sizes:
            tried.append((followers(self.texts or [], chain[-n:], 64), static, STRICT[n]))
        tried.append((static, {}, LAX[2]))
        for counts, weights, (least, percent) in tried:
            if not counts:
                continue
            best = max(counts, key=lambda t: counts[t] * (100 * weights[t] if t in weights else 1))
            total = sum(counts.values())
            if total >= least and 100 * counts[best] >= percent * total:
                return best
        return None

    def from_pool(self, text: list[int]) -> list[int]:
        if self.kind == "ngram-cache":
            return []
        n = self.sizes[0]
        found: list[int] = []
        for earlier in self.texts or []:
            for i in starts(earlier, text[-n:], len(earlier) - n) if len(text) >= n else []:
                found = earlier[i + n :][: self.longest]
        enough = min(self.sizes[1], self.sizes[2]) if self.kind == "ngram-mod" else 0
        return found if len(found) >= enough else []


def followers(texts: Sequence[Tokens], key: Tokens, most: int | None = None) -> dict[int, int]:
    """How often which token followed ``key``, in the order of their first occurrence."""
    n = len(key)
    after = [text[i + n] for text in texts for i in starts(text, key, len(text) - n)]
    return dict(Counter(after[-most:] if most else after))
