"""One answer: steps of the engine become text, and at the end a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gguf_spec.audit import Audit, audit
from gguf_spec.control import AdaptiveController, Hints
from gguf_spec.engine import Request
from gguf_spec.sampling import Mask, Sampler, SamplingParams, TokenLogprob
from gguf_spec.stats import DraftCounts, DraftEvent
from gguf_spec.text import Detokenizer, StopStrings

if TYPE_CHECKING:
    from gguf_spec.session import Session

# Tokens from before a new text that are kept with it: n-grams across the seam stay known.
_SEAM = 32


class Delta(NamedTuple):
    """What a step added: text that is new, and the ids behind it.

    During prefill ``text`` is empty and ``prefilled`` of ``n_prompt`` tokens are done. The last
    ``n_accepted`` of a step's drafted tokens are at the front of ``tokens``.
    """

    text: str
    tokens: tuple[int, ...]
    n_accepted: int
    prefilled: int
    n_prompt: int
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How one answer is made. ``max_tokens`` None: until an end token or a full context.

    ``predicted`` is the expected answer as tokens: n-gram drafters follow it where it holds.
    ``mask`` is what a grammar allows (``Session.grammar``). ``logprobs``: log-probabilities of the
    tokens, and of so many of the likeliest, are reported.
    """

    sampling: SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    predicted: tuple[int, ...] = ()
    mask: Mask | None = None
    logprobs: int | None = None


class Generation:
    """One answer in the making. Iterate for ``Delta``s; afterwards ``text``, ``tokens`` and
    ``report`` hold all of it. Stop iterating, or call ``cancel``, at any time."""

    def __init__(self, session: Session, prompt: Sequence[int], params: GenerationParams) -> None:
        self.params = params
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.n_prompt = len(prompt)
        self.session = session
        self._sequence = session.sequence
        self._cancelled = False
        self._types = [kind for kind in session.spec_types if kind in session.sequence.spec_types]
        self._detokenizer = Detokenizer(session.model.piece)
        self._stops = StopStrings(params.stop) if params.stop else None
        self._prompt = prompt
        self._audit: Audit | None = None
        self._sampler = Sampler(params.sampling, breaks=session.breaks_repetition, mask=params.mask)
        request = Request(
            prompt,
            self._sampler,
            params.max_tokens,
            ignore_end=params.ignore_end,
            logprobs=params.logprobs,
        )
        session.pool.predict(params.predicted)
        if isinstance(session.controller, AdaptiveController):
            session.controller.begin(Hints(session.has_experts, params.sampling.temperature))
        self._steps = session.engine.generate(session.sequence, request)

    def cancel(self) -> None:
        """End the answer after the step in progress. May be called from a signal handler."""
        self._cancelled = True

    def __iter__(self) -> Iterator[Delta]:
        steps = self._steps
        try:
            for step in steps:
                delta = self._take(step.tokens, step.n_accepted, step.prefilled, step.finish_reason)
                self.logprobs += step.logprobs[: len(delta.tokens)]
                yield delta
                if delta.finish_reason is not None:
                    return
                if self._cancelled:
                    break
        finally:
            steps.close()  # type: ignore[attr-defined]
            if self.finish_reason is None:
                self.finish_reason = "cancelled"
                self.text += self._rest()
            # With some of what was there before, so that the n-grams across the seam are known.
            new = max(self._sequence.progress.cached_tokens - _SEAM, 0)
            self.session.remember(self._sequence.history[new:])
            said = self.session.warnings
            said += [event.message for event in self.events if event.message not in said]

    @property
    def events(self) -> list[DraftEvent]:
        """What happened to the drafters."""
        return self._sequence.progress.spec.events

    def audit(self) -> Audit:
        """Score the answer again in plain decoding, when it has ended. The report has it then.

        The sequence's cache is used for it, and is empty afterwards.
        """
        sequence = self._sequence
        sequence.consistent = False
        sampler = self._sampler.fresh()
        target = self.session.context
        self._audit = audit(target, sequence.seq, self._prompt, self.tokens, sampler)
        return self._audit

    def report(self) -> dict[str, Any]:
        """The JSON document of ``gguf-spec run --json``."""
        session, sequence = self.session, self._sequence
        setup, sampling = session.setup, self.params.sampling
        optional: dict[str, Any] = {}
        if self.params.logprobs is not None:
            optional["logprobs"] = self._logprobs_report()
        if self._audit is not None:
            optional["audit"] = self._audit.report()
        return {
            "text": self.text,
            "tokens": self.tokens,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.n_prompt,
            "cached_tokens": sequence.progress.cached_tokens,
            "completion_tokens": len(self.tokens),
            "seed": sampling.seed,
            "sampling": sampling.described(),
            "model": {
                "ref": setup.ref,
                "arch": setup.target.arch,
                "quant": setup.target.quant,
                "n_ctx": setup.n_ctx,
            },
            "spec": self._spec_report(),
            "timings": self._timings(),
            **optional,
        }

    def _take(
        self,
        new: Sequence[int],
        n_accepted: int,
        prefilled: int,
        finish_reason: str | None,
    ) -> Delta:
        """Turn tokens into text, up to the one that completes a stop string."""
        stops = self._stops
        text = ""
        for taken, token in enumerate(new, 1):
            text += self._detokenizer.feed(token) if stops is None else self._watched(token)
            if stops is not None and stops.hit is not None:
                finish_reason = "stop"
                new = new[:taken]
                n_accepted = min(n_accepted, taken)
                break
        self.tokens += new
        if finish_reason is not None:
            if stops is not None and stops.hit is not None:
                self._sequence.truncate(len(self.tokens))
            else:
                text += self._rest()
        self.text += text
        self.finish_reason = finish_reason
        return Delta(text, tuple(new), n_accepted, prefilled, self.n_prompt, finish_reason)

    def _watched(self, token: int) -> str:
        """The text that ``token`` lets through to the reader."""
        assert self._stops is not None
        return self._stops.feed(self._detokenizer.feed(token))

    def _rest(self) -> str:
        """What was held back at the end of the answer."""
        text = self._detokenizer.flush()
        return text if self._stops is None else self._stops.feed(text) + self._stops.flush()

    def _logprobs_report(self) -> list[dict[str, Any]]:
        def described(token: int, logprob: float) -> dict[str, Any]:
            # JSON has no infinity, and this is as good as none.
            text = self.session.model.special_text(token)
            return {"id": token, "token": text, "logprob": max(logprob, -9999.0)}

        return [
            {**described(one.token, one.logprob), "top": [described(*pair) for pair in one.top]}
            for one in self.logprobs
        ]

    def _spec_report(self) -> dict[str, Any]:
        spec = self._sequence.progress.spec
        total, sampling = spec.total, self._sequence.stack.sampling
        return {
            "types": self._types,
            "verify": sampling.rule,
            "exactness": sampling.exactness,
            "verified": self.session.verified,
            "steps": spec.steps,
            **_counts(total),
            "acceptance_rate": total.acceptance_rate,
            "mean_acceptance_length": total.mean_acceptance_length,
            "accepted_per_position": total.accepted_per_position,
            "by_type": {kind: _counts(counts) for kind, counts in spec.by_type.items()},
            "drafts": self.session.drafts_report(),
            "events": [
                {
                    "kind": event.kind,
                    "type": event.spec_type,
                    "completion_tokens": event.n_tokens,
                    "message": event.message,
                }
                for event in spec.events
            ],
            "control": self._control_report(),
        }

    def _control_report(self) -> dict[str, Any]:
        controller = self.session.controller
        if not isinstance(controller, AdaptiveController):
            return {"enabled": False, "cost": {}, "paused": None}
        return {
            "enabled": True,
            "cost": controller.cost(),
            "paused": controller.paused,
            "wasted_seconds": max(controller.wasted_seconds, 0.0),
        }

    def _timings(self) -> dict[str, float | None]:
        timings = self._sequence.timings()
        timings.load_seconds = self.session.load_seconds
        timings.warmup_seconds = self.session.warmup_seconds
        fields = asdict(timings)
        n_prefilled = self.n_prompt - self._sequence.progress.cached_tokens
        return {
            **fields,
            "prefill_tokens_per_second": _rate(n_prefilled, timings.prefill_seconds),
            "decode_tokens_per_second": _rate(len(self.tokens) - 1, timings.decode_seconds),
        }


def _counts(counts: DraftCounts) -> dict[str, int]:
    return {
        "num_drafts": counts.num_drafts,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_tokens": counts.num_accepted_tokens,
    }


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None
