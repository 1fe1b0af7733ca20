"""Is speculation token-identical to plain decoding here? Measured, type by type.

Three questions are asked of a loaded session. Do batches compute what single decoding computes?
Does each spec type give the text of plain decoding, and where it does not, is that a near-tie?
And does a drafter that has lived through a text draft what a fresh one drafts: a drafter whose
cache went wrong changes no text, it only stops being right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gguf_spec.context import ModelContext
from gguf_spec.control.base import Choice
from gguf_spec.drafters.base import Drafter
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.engine import Request
from gguf_spec.equality import PlainStep, compare_widths, plain_greedy, rows_needed
from gguf_spec.errors import UsageError
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES
from gguf_spec.verify_prompts import FILLER, PROMPTS
from gguf_spec.widths import DEPTHS, WIDTHS, WidthLimits, WidthResult, measured_depths
from gguf_spec.witness import Asking, Witness, witness_of

Verdict = Literal["token-identical", "identical-up-to-near-ties", "broken"]
Progress = Callable[[str, int, int], None]

#: A drafter is compared with a fresh one this often in every text.
_CHECKS = 4
_LOOK_AHEAD = 4  # tokens of room for the draft of a fresh drafter; its first one is compared
#: Two ways to the same cache differ in their last digits, so a drafter may disagree with a fresh
#: one at its own near-ties. Those are a few in a hundred; a cache that is wrong by one token makes
#: them many.
_LEAST_AGREEMENT = 0.8
#: Of the tokens that a model or head drafts, some stand by chance alone: common words are common to
#: all models. A share below this means that it reads the text shifted, or is made for another one.
_LEAST_ACCEPTANCE = 0.05
_ENOUGH_DRAFTED = 64


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs from plain decoding: completion token ``index`` of prompt
    ``prompt``, where plain decoding takes ``expected``. ``gap`` is how much better the logit of
    ``expected`` is there, ``top2_gap`` how much better than the second best; ``noise`` is the
    largest difference measured between batches and single decoding at that place."""

    prompt: int
    index: int
    token: int
    expected: int
    gap: float
    top2_gap: float
    noise: float

    @property
    def near_tie(self) -> bool:
        """Whether the noise explains it: each of the two logits may be off by it."""
        return self.gap <= 2.0 * self.noise


@dataclass(slots=True)
class TypeResult:
    """How one spec type did, or several of them in a stack (``type`` joins them with +)."""

    type: str
    neural: bool = False
    prompts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    compared: int = 0
    agreed: int = 0

    @property
    def drafter_is_sound(self) -> bool:
        """Whether the drafter drafts what it should, as far as that can be told."""
        enough = self.neural and self.drafted >= _ENOUGH_DRAFTED
        if enough and self.accepted < _LEAST_ACCEPTANCE * self.drafted:
            return False
        return self.agreed >= _LEAST_AGREEMENT * self.compared

    @property
    def broken(self) -> bool:
        """Whether something is wrong that near-ties do not explain."""
        return not (self.drafter_is_sound and all(d.near_tie for d in self.divergences))

    def record(self) -> dict[str, Any]:
        """As JSON: ``first_divergence`` and ``top2_gap`` are of the worst divergence."""
        worst = max(self.divergences, key=lambda d: d.gap - 2.0 * d.noise, default=None)
        return {
            "type": self.type,
            "equal": not self.divergences,
            "first_divergence": worst and worst.index,
            "top2_gap": worst and worst.top2_gap,
            "gap": worst and worst.gap,
            "noise": worst and worst.noise,
            "divergences": len(self.divergences),
            "prompts": self.prompts,
            "tokens": self.tokens,
            "num_draft_tokens": self.drafted,
            "num_accepted_tokens": self.accepted,
            "draft_checks": self.compared,
            "draft_checks_agreed": self.agreed,
            "broken": self.broken,
        }


@dataclass(slots=True)
class Verification:
    """All results. ``max_width`` is the widest batch that the profile's drafts lead to. In exact
    mode drafts keep to ``limits``, and what wider batches compute does not matter."""

    max_width: int
    limits: WidthLimits | None = None
    widths: list[WidthResult] = field(default_factory=list)
    types: list[TypeResult] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst that was seen."""
        if any(result.broken for result in self.types):
            return "broken"
        used = [width for width in self.widths if width.width <= self._widest(width.depth)]
        equal = all(not result.divergences for result in self.types)
        if equal and all(width.identical for width in used):
            return "token-identical"
        return "identical-up-to-near-ties"

    def _widest(self, depth: int) -> int:
        """Rows of the widest batch after ``depth`` cached tokens."""
        most = self.max_width
        return most if self.limits is None else min(most, self.limits.at(depth))

    @property
    def max_logit_difference(self) -> float:
        """Between batches of any width and single decoding."""
        return max((width.max_logit_difference for width in self.widths), default=0.0)

    def record(self) -> dict[str, Any]:
        """The JSON document of ``gguf-spec verify``, less what the command adds."""
        return {
            "verdict": self.verdict,
            "max_logit_difference": self.max_logit_difference,
            "max_width": self.max_width,
            "widths": [width.record() for width in self.widths],
            "spec_types": [result.record() for result in self.types],
        }


def verify_session(
    session: Session,
    *,
    n_tokens: int = 96,
    n_prompts: int | None = None,
    depths: Sequence[int] = DEPTHS,
    progress: Progress | None = None,
) -> Verification:
    """Examine ``session``; its sequence is empty afterwards.

    Raises:
        UsageError: the context is too short for any of the prompts.
    """
    target, setup = session.context, session.setup
    prompts = [prompt for text in PROMPTS[:n_prompts] if (prompt := session.raw_prompt(text))]
    shortest = min(map(len, prompts))
    prompts = [prompt for prompt in prompts if len(prompt) < target.n_ctx]
    if not prompts:
        raise UsageError(
            f"a context of {target.n_ctx} tokens has no room for a text to compare: the shortest "
            f"of the built-in prompts has {shortest} tokens",
            hint=f"-c {shortest + n_tokens} would hold it and its answer",
        )
    report = progress or (lambda what, done, total: None)
    result = Verification(setup.max_width)
    if setup.profile.spec.exact:
        result.limits = session.limits
        result.max_width = min(setup.max_width, max(session.limits.limits, default=1))
    widths = sorted({*WIDTHS, setup.max_width})
    result.widths = measure_widths(session, depths, report, widths)
    plain = []
    for done, prompt in enumerate(prompts):
        report("plain decoding", done, len(prompts))
        plain.append(plain_greedy(target, prompt, n_tokens))
    trial = _Trial(session, prompts, plain, n_tokens, result.max_logit_difference)
    for asked in _combinations(session.spec_types):
        result.types.append(trial.examine(asked, report))
    return result


def measure_widths(
    session: Session,
    depths: Sequence[int] = DEPTHS,
    report: Progress | None = None,
    widths: Sequence[int] = WIDTHS,
) -> list[WidthResult]:
    """Compare batches with single decoding, at those of ``depths`` and ``widths`` that fit."""
    target = session.context
    widths, depths = comparable(target, widths, depths)
    if not depths:
        return []
    tokens = _filler(session, depths[-1] + rows_needed(widths))

    def tell(done: int, total: int) -> None:
        if report is not None:
            report("comparing widths", done, total)

    return list(compare_widths(target, tokens, widths, depths, progress=tell))


def comparable(
    target: ModelContext, widths: Sequence[int], depths: Sequence[int] = DEPTHS
) -> tuple[list[int], tuple[int, ...]]:
    """Those of ``widths``, and of ``depths``, that can be compared in ``target``: no depth at all
    where there is no room."""
    most = min(target.max_width, target.n_batch, target.n_ctx - 1)
    fitting = [width for width in widths if width <= most]
    while len(fitting) > 1 and rows_needed(fitting) >= target.n_ctx:
        fitting.pop()
    if not fitting:
        return [], ()
    return fitting, measured_depths(target.n_ctx, rows_needed(fitting), depths)


def _filler(session: Session, length: int) -> list[int]:
    """``length`` tokens of text, begun as a prompt is."""
    tokens = session.raw_prompt(FILLER)
    more = session.model.tokenize(FILLER)
    while len(tokens) < length:
        tokens += more
    return tokens[:length]


def _combinations(types: Sequence[str]) -> list[tuple[int, ...]]:
    """Which drafters to ask: each alone, and where there are several, all in order."""
    alone: list[tuple[int, ...]] = [(i,) for i in range(len(types))]
    return [*alone, tuple(range(len(types)))] if len(types) > 1 else alone


@dataclass(slots=True)
class _Trial:
    """Texts of plain decoding, and the session that has to give the same."""

    session: Session
    prompts: Sequence[list[int]]
    plain: Sequence[list[PlainStep]]
    n_tokens: int
    noise: float

    def examine(self, asked: Sequence[int], report: Progress) -> TypeResult:
        """Decode all prompts with the drafters of these numbers."""
        session = self.session
        name = "+".join(session.spec_types[i] for i in asked)
        neural = len(asked) == 1 and session.spec_types[asked[0]] not in NGRAM_TYPES
        result = TypeResult(name, neural)
        sequence = session.sequence
        before = sequence.stack.controller, sequence.stack.drafters
        setup = session.setup
        sequence.stack.controller = Asking(
            Choice(i, setup.ceilings[i], max(setup.floors[i], 1)) for i in asked
        )
        try:
            for number, prompt in enumerate(self.prompts):
                report(name, number, len(self.prompts))
                self._compare(result, number, prompt)
                if neural:
                    self._compare_drafter(result, asked[0], number)
        finally:
            sequence.stack.controller, sequence.stack.drafters = before
            self._forget()
        return result

    def _compare(self, result: TypeResult, number: int, prompt: list[int]) -> None:
        """One text with drafts against the same without."""
        expected = self.plain[number]
        self._forget()
        text = self._generate(prompt, self.n_tokens)
        total = self.session.sequence.progress.spec.total
        result.prompts += 1
        result.tokens += len(text)
        result.drafted += total.num_draft_tokens
        result.accepted += total.num_accepted_tokens
        for index, (token, step) in enumerate(zip(text, expected, strict=False)):
            if token != step.token:
                result.divergences.append(self._divergence(number, index, token, step))
                return

    def _divergence(self, number: int, index: int, token: int, step: PlainStep) -> Divergence:
        text = [*self.prompts[number], *(s.token for s in self.plain[number])]
        noise = max(self.noise, self._noise_at(text, len(self.prompts[number]) + index))
        return Divergence(number, index, token, step.token, step.gap(token), step.top2_gap, noise)

    def _noise_at(self, text: Sequence[int], position: int) -> float:
        """The difference between batches and single decoding up to ``position``."""
        self._forget()
        target = self.session.context
        most = min(target.max_width, position - 1)
        widths = [width for width in (2, 3, 4, 5, 8, 16) if width <= most]
        if not widths:
            return 0.0
        depth = max(position - rows_needed(widths), 1)
        fitting = list(text[: depth + rows_needed(widths)])
        if len(fitting) < depth + rows_needed(widths):
            return 0.0
        results = compare_widths(target, fitting, widths, [depth])
        return max(result.max_logit_difference for result in results)

    def _compare_drafter(self, result: TypeResult, index: int, number: int) -> None:
        """The drafts along a text, against those of a drafter that reads it as a prompt."""
        sequence = self.session.sequence
        prompt = self.prompts[number]
        drafters = sequence.drafters
        witness = witness_of(drafters[index])
        sequence.stack.drafters = (*drafters[:index], witness, *drafters[index + 1 :])
        try:
            self._forget()
            self._generate(prompt, self.n_tokens)
            text = sequence.history[:]
            lengths = sorted(n for n in witness.drafts if len(prompt) + 2 < n <= len(text))
            live = dict(witness.drafts)
            for length in lengths[:: max(len(lengths) // _CHECKS, 1)][:_CHECKS]:
                expected = self._first_draft(drafters[index], witness, text[:length])
                if expected is not None and live[length]:
                    result.compared += 1
                    result.agreed += int(expected == live[length][0])
        finally:
            sequence.stack.drafters = drafters

    def _first_draft(self, drafter: Drafter, witness: Witness, text: list[int]) -> int | None:
        """The first token that ``drafter`` should draft after ``text``; None if that is not known.

        A draft model is decoded plainly for that, by other code than its drafter's. A head is asked
        when it is fresh, with all but the last token of the text as a prompt.
        """
        self._forget()
        if isinstance(drafter, DraftModel):
            if len(text) > drafter.context.n_ctx:
                return None
            return plain_greedy(drafter.context, text, 1)[0].token
        witness.drafts.clear()
        self._generate(text[:-1], 2 + _LOOK_AHEAD)
        fresh = witness.drafts.get(len(text))
        # Where the target itself goes another way at a near-tie, there is nothing to compare.
        return fresh[0] if fresh and self.session.sequence.history[: len(text)] == text else None

    def _generate(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        session = self.session
        request = Request(prompt, Sampler(SamplingParams()), n_tokens)
        steps = session.engine.generate(session.sequence, request)
        return [token for step in steps for token in step.tokens]

    def _forget(self) -> None:
        """Empty all caches: the text of a single, other token begins."""
        session = self.session
        history = session.sequence.history
        first = history[0] if len(history) else 0
        other = next(t for t in range(session.model.n_vocab) if t != first)
        session.pool.clear()
        self._generate([other], 1)
        session.context.clear(session.sequence.seq)
        session.sequence.consistent = False
