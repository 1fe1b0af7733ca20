"""The loop: propose, decode, verify, roll back, for one sequence or for several at once.

A round of one sequence::

    history  t0 t1 t2 ... last          decoded by the target: all but last
    propose        [last d0 d1 d2]      one run of rows, logits for each
    decode          r0   r1 r2 r3
    verify    choice(r0) == d0? choice(r1) == d1? ... the first disagreement ends it
    roll back       drop the rows of rejected tokens
    history  ... last d0 d1 next        next is recovered or bonus; it is the new last

An empty draft is plain decoding: the same round with one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

from gguf_spec.checkpoints import Checkpoints
from gguf_spec.context import ModelContext, NoSlotError, Run, check_prompt
from gguf_spec.control.base import Controller
from gguf_spec.draft_sampling import DraftSampling
from gguf_spec.drafters.base import Absent, Draft, Drafter
from gguf_spec.drafters.stack import NO_DRAFT, Stack
from gguf_spec.errors import RunError
from gguf_spec.history import History
from gguf_spec.request import FinishReason, Request, Step
from gguf_spec.sampling import Drawn, Sampler, SamplingParams, TokenLogprob, token_logprob
from gguf_spec.stats import Progress, Timings
from gguf_spec.verify import judge, untested

__all__ = ["Engine", "FinishReason", "Request", "SequenceState", "Step"]


class SequenceState:
    """One stream of tokens with its drafters. Made by ``Engine.open``."""

    def __init__(
        self,
        seq: int,
        target: ModelContext,
        drafters: Sequence[Drafter],
        controller: Controller,
        draft_sampling: DraftSampling,
    ) -> None:
        self.seq = seq
        self.history = History()
        self.n_cached = 0
        """Leading tokens of the history that are in the target's cache."""
        self.progress = Progress()
        self.finish_reason: FinishReason | None = "stop"
        self.stack = Stack(drafters, controller, draft_sampling)
        self._target = target
        self._request = Request((), Sampler(SamplingParams()))
        self._sampler = self._request.sampler
        self._n_prompt = 0
        self._untested: Sequence[Drawn] = ()
        self.consistent = True
        """Whether the caches are known to hold what ``n_cached`` says."""
        self.width_limit: Callable[[int], int] | None = None
        """The most rows of a batch, by the tokens that are in the cache before it; None: as many
        as the target takes."""
        self.keeps_whole_chunks = False
        """Whether only those parts of the cache are used again that a new prompt would fill in the
        same way: whole chunks of n_ubatch tokens, decoded as such."""
        self._n_chunked = 0
        self.checkpoints = Checkpoints(target, seq)
        """To go back to in the next generation, if that is enabled."""

    @property
    def drafters(self) -> tuple[Drafter, ...]:
        """In the order of their numbers; an ``Absent`` one stands for one that failed."""
        return self.stack.drafters

    @property
    def spec_types(self) -> tuple[str, ...]:
        """Of the drafters that have not failed."""
        return tuple(d.spec_type for d in self.drafters if not isinstance(d, Absent))

    @property
    def active(self) -> bool:
        """Whether a generation is in progress."""
        return self.finish_reason is None

    @property
    def n_completion(self) -> int:
        """Tokens emitted so far by this generation."""
        return len(self.history) - self._n_prompt

    def start(self, request: Request) -> None:
        """Begin a generation; what the cache shares with the prompt is kept.

        Raises:
            PromptError: the prompt is empty, longer than the context, or holds an illegal id.
        """
        target, prompt = self._target, request.prompt
        check_prompt(prompt, target)
        self.progress = Progress(started=perf_counter())
        self.stack.start(self.progress.spec)
        # The last prompt token is decoded in any case: its logits give the first token.
        keep = min(self.history.common_prefix(prompt), self.n_cached, len(prompt) - 1)
        if not self.consistent:
            keep = self._cleared()
        if self.keeps_whole_chunks:
            keep = min(keep, self._n_chunked) // target.n_ubatch * target.n_ubatch
        keep = self.stack.reusable(prompt, keep)
        if self.keeps_whole_chunks:
            keep -= keep % target.n_ubatch
        if self.consistent and keep < self.n_cached and not target.remove(self.seq, keep):
            keep = self.checkpoints.go_back(keep)
            whole = not self.keeps_whole_chunks or keep % target.n_ubatch == 0
            if not keep or not whole or self.stack.reusable(prompt, keep) < keep:
                keep = self._cleared()
        self.checkpoints.forget_behind(keep)
        self.checkpoints.keep(keep)
        self.consistent = True
        self.n_cached = self.progress.cached_tokens = keep
        self._n_chunked = min(self._n_chunked, keep)
        self.history.truncate(keep)
        self.history.extend(prompt[keep:])
        self._request = request
        self._sampler = request.sampler.fresh()
        self.stack.sampling.start(self._sampler)
        self._untested = ()
        self._n_prompt = len(prompt)
        self.finish_reason = None
        self.stack.begin(self.history)

    def finish(self, reason: FinishReason) -> None:
        """End the generation in progress, if there is one."""
        if self.finish_reason is None:
            self.finish_reason = reason

    def truncate(self, n_completion: int) -> None:
        """Forget completion tokens after the first ``n_completion``; ends the generation."""
        self.finish("stop")
        self.history.truncate(self._n_prompt + n_completion)
        keep = min(self.n_cached, len(self.history))
        if keep < self.n_cached and not self._target.remove(self.seq, keep):
            keep = self.checkpoints.go_back(keep) or self._cleared()
        self.checkpoints.forget_behind(keep)
        self.n_cached = keep

    def adopt(self, tokens: Sequence[int]) -> None:
        """Take over a cache that was filled with ``tokens`` from outside; ends the generation."""
        self.finish("stop")
        self.history.truncate(0)
        self.history.extend(tokens)
        self.checkpoints.forget_behind(0)
        self.n_cached, self._n_prompt, self._n_chunked = len(tokens), len(tokens), 0
        self.consistent = True

    def propose(self) -> Run:
        """The rows to decode next: a prompt chunk, or the last token with a draft after it."""
        if self.n_cached < self._n_prompt:
            end, last = self.n_cached + self._target.n_ubatch, self._n_prompt - 1
            if self.n_cached == last:
                self.checkpoints.keep(last)
            # The last token alone: whoever asks for the same prompt again needs its logits only.
            # Also where nothing is kept, so that `run` says what `chat` does.
            apart = self.checkpoints.needed and self.n_cached < last and not self.keeps_whole_chunks
            end = min(end, self._n_prompt - apart)
            return Run(self.seq, self.n_cached, self.history[self.n_cached : end], int(end > last))
        start = len(self.history) - 1
        tokens = [self.history[start], *self._propose_draft().tokens]
        return Run(self.seq, start, tokens, len(tokens))

    def drop_draft(self) -> Run:
        """The rows of the last ``propose`` without the draft."""
        stack = self.stack
        stack.hold(Draft((), stack.draft.source, drawn=stack.draft.drawn))
        start = len(self.history) - 1
        return Run(self.seq, start, self.history[start:], 1)

    def commit(self, run: Run, busy: float) -> Step:
        """Take the decoded ``run``: verify the draft, and let the history grow. Before it the
        target had been ``busy`` so many seconds.

        Rejected rows are still in the cache afterwards; ``n_cached`` says how many to keep.
        """
        target, stack, history = self._target, self.stack, self.history
        stack.observe(target, run)
        if run.start == self._n_chunked and len(run.tokens) == target.n_ubatch:
            self._n_chunked += len(run.tokens) * (self.n_cached < self._n_prompt)
        if not run.n_outputs:
            self.n_cached += len(run.tokens)
            self._take_draft_seconds()
            return Step(self.seq, prefilled=self.n_cached)
        position = len(history)
        first = position == self._n_prompt
        draft, drawn = ((), ()) if first else (stack.draft.tokens, stack.draft.drawn)
        n_drafted = len(draft)
        row = run.row + len(run.tokens) - 1 - n_drafted
        n_accepted, last = judge(draft, self._sampler, history, target.logits, row, drawn)
        self._untested = untested(drawn[n_accepted:], last)
        tokens = (*draft[:n_accepted], last) if n_accepted else (last,)
        logprobs = self._logprobs(tokens, row)
        self.n_cached = position + n_accepted
        history.extend(tokens)
        stack.accept(n_accepted)
        self._note_time(first)
        source = None
        if not first:
            source = stack.draft.source if n_drafted else None
            self.progress.spec.observe_step(source, n_drafted, n_accepted)
            # A GPU still computes when decode returns; by now its logits have been waited for.
            seconds = target.busy_seconds - busy
            stack.record(n_drafted, n_accepted, seconds, tokens, run.start)
        self._take_draft_seconds()
        self._check_finished(last, position + n_accepted + 1)
        done = self.finish_reason
        return Step(self.seq, tokens, n_drafted, n_accepted, source, self._n_prompt, done, logprobs)

    def timings(self) -> Timings:
        """Seconds of the generation so far."""
        p = self.progress
        decode = p.last_token - p.first_token
        return Timings(
            prefill_seconds=max(p.first_token - p.started, 0.0),
            decode_seconds=decode,
            overhead_seconds=max(decode - (p.busy_at_last - p.busy_at_first), 0.0),
            draft_seconds=p.draft_seconds,
        )

    def _cleared(self) -> int:
        """Empty the cache; gives back the number of tokens that are left in it."""
        self._target.clear(self.seq)
        self.checkpoints.forget_behind(0)
        return 0

    def _propose_draft(self) -> Draft:
        """The first draft that a chosen drafter offers, cut to what may be verified."""
        stack, source = self.stack, self.stack.draft.source
        stack.no_draft()
        if not stack.drafters:
            return NO_DRAFT
        limit = min(self._target.n_ctx - len(self.history), self._target.max_width - 1)
        if self._request.max_tokens is not None:
            # A step emits one token more than it accepts.
            limit = min(limit, self._request.max_tokens - self.n_completion - 1)
        if self.width_limit is not None:
            limit = min(limit, self.width_limit(len(self.history) - 1) - 1)
        if self._untested:
            legal = self._legal([token for token, _ in self._untested[: max(limit, 0)]])
            return stack.hold(Draft(legal, source, drawn=self._untested))
        if limit <= 0:
            return NO_DRAFT
        return stack.propose(limit, self._legal)

    def _take_draft_seconds(self) -> None:
        self.progress.draft_seconds += self.stack.seconds
        self.stack.seconds = 0.0

    def _legal(self, tokens: Sequence[int]) -> Sequence[int]:
        """Cut before the first id that the target does not know, that a grammar forbids, or that
        would end the text: an end is left to the target, and nothing is ever decoded after one.
        """
        n_vocab, is_end = self._target.n_vocab, self._target.is_end
        for i, token in enumerate(tokens):
            if not 0 <= token < n_vocab or (is_end(token) and not self._request.ignore_end):
                tokens = tokens[:i]
                break
        sampler, history = self._sampler, self.history
        if not sampler.masked or not tokens:
            return tokens
        return tokens[: sampler.legal_prefix(tokens, len(history), history[-sampler.lookback :])]

    def _logprobs(self, tokens: Sequence[int], row: int) -> tuple[TokenLogprob, ...]:
        """What the target thought of ``tokens``, whose logits stand in batch rows from ``row``."""
        n_top = self._request.logprobs
        if n_top is None:
            return ()
        logits = self._target.logits
        return tuple(token_logprob(logits(row + i), t, n_top) for i, t in enumerate(tokens))

    def _check_finished(self, last: int, length: int) -> None:
        """``last`` is the newest of ``length`` tokens."""
        request = self._request
        if self._target.is_end(last) and not request.ignore_end:
            self.finish_reason = "stop"
        elif length > self._target.n_ctx or (
            request.max_tokens is not None and length - self._n_prompt >= request.max_tokens
        ):
            self.finish_reason = "length"

    def _note_time(self, first: bool) -> None:
        p = self.progress
        p.last_token, p.busy_at_last = perf_counter(), self._target.busy_seconds
        if first:
            p.first_token, p.busy_at_first = p.last_token, p.busy_at_last


class Engine:
    """Owns the target context and its sequences."""

    def __init__(self, target: ModelContext) -> None:
        self.target = target
        self.sequences: list[SequenceState] = []

    def open(
        self,
        drafters: Sequence[Drafter],
        controller: Controller,
        sampling: DraftSampling | None = None,
    ) -> SequenceState:
        """A new sequence; unless told otherwise, drafts are coupled and matched.

        Raises:
            RunError: the context has no sequence left.
        """
        seq = len(self.sequences)
        if seq >= self.target.n_seq_max:
            raise RunError(f"the context holds {self.target.n_seq_max} sequences, all are in use")
        self.target.clear(seq)
        sampling = sampling or DraftSampling()
        sequence = SequenceState(seq, self.target, drafters, controller, sampling)
        self.sequences.append(sequence)
        return sequence

    def step(self) -> list[Step]:
        """One round for every active sequence that fits into a batch."""
        members, runs = self._gather()
        if not runs:
            return []
        for sequence in members:
            sequence.consistent = False
        begun = perf_counter()
        checkpoints = self._checkpoints(runs)
        saving = perf_counter() - begun
        busy = self.target.busy_seconds
        try:
            self.target.decode(runs)
        except NoSlotError:
            retried = self._decode_without_drafts(members)
            if retried is None:
                return self._out_of_room(members)
            runs = retried
        steps = [s.commit(run, busy) for s, run in zip(members, runs, strict=True)]
        begun = perf_counter()
        self._roll_back(members, runs, checkpoints)
        rolling = perf_counter() - begun
        for sequence in members:
            sequence.consistent = True
            if sequence.seq in checkpoints:
                sequence.stack.rollback_seconds = saving + rolling
        return steps

    def generate(self, sequence: SequenceState, request: Request) -> Iterator[Step]:
        """Generate on one sequence. The caches are true at every ``yield``: stop at any time."""
        sequence.start(request)
        try:
            while sequence.active:
                for step in self.step():
                    if step.seq == sequence.seq:
                        yield step
        finally:
            sequence.finish("cancelled")

    def _gather(self) -> tuple[list[SequenceState], list[Run]]:
        """Active sequences and their rows, as many as a batch holds; the others wait a round."""
        members: list[SequenceState] = []
        runs: list[Run] = []
        room = self.target.n_batch
        waiting = [s for s in self.sequences if s.active]
        if len(waiting) > 1:
            waiting.sort(key=lambda s: s.progress.last_token)
        for sequence in waiting:
            if room < max(self.target.n_ubatch, self.target.max_width) and runs:
                break
            run = sequence.propose()
            room -= len(run.tokens)
            members.append(sequence)
            runs.append(run)
        return members, runs

    def _checkpoints(self, runs: Iterable[Run]) -> dict[int, object]:
        target = self.target
        if target.removes_tail:
            return {}
        short = target.n_rollback + 1
        return {run.seq: target.save(run.seq) for run in runs if run.n_outputs > short}

    def _decode_without_drafts(self, members: Sequence[SequenceState]) -> list[Run] | None:
        runs = [s.drop_draft() if s.n_completion else s.propose() for s in members]
        try:
            self.target.decode(runs)
        except NoSlotError:
            return None
        return runs

    @staticmethod
    def _out_of_room(members: Sequence[SequenceState]) -> list[Step]:
        """The cache is full although the context is not: end as at the context's end."""
        for sequence in members:
            sequence.consistent = True
            sequence.finish("length")
        return [Step(s.seq, finish_reason="length") for s in members]

    def _roll_back(
        self,
        members: Sequence[SequenceState],
        runs: Sequence[Run],
        checkpoints: dict[int, object],
    ) -> None:
        """Drop the rows of rejected tokens. Tokens chosen in this round are final: where a
        checkpoint had to be restored, the accepted ones are decoded again but not judged again,
        because a batch of another width may judge differently."""
        replays: list[Run] = []
        for sequence, run in zip(members, runs, strict=True):
            keep = sequence.n_cached
            if keep == run.start + len(run.tokens) or self.target.remove(sequence.seq, keep):
                continue
            if sequence.seq not in checkpoints:
                raise RunError(
                    f"the cache of sequence {sequence.seq} cannot be cut back to {keep} tokens"
                )
            self.target.restore(sequence.seq, checkpoints[sequence.seq])
            kept = run.tokens[: keep - run.start]
            replays.append(Run(sequence.seq, run.start, kept, 0))
        if replays:
            self.target.decode(replays)
