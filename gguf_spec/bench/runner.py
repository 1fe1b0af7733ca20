"""Runs: conversations decoded by each set-up in turn, in an order that drift does not favour.

A round decodes every workload with every set-up, plain decoding first; the next round goes the
other way round, so that what gets slower or faster over time adds to both sides alike. Before each
run the caches are emptied and what n-grams and controllers have learned is forgotten: nobody has
seen the text before. Where decoding alone is of interest, the prompt may stay. The prompts of later
turns hold the answers that plain decoding gave in the beginning, so that all set-ups decode the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from gguf_spec.audit import audit
from gguf_spec.bench.setups import PLAIN, BenchSetup, Recorder, arrange, plain_setup
from gguf_spec.bench.theory import Tally
from gguf_spec.engine import Request
from gguf_spec.errors import InputError
from gguf_spec.generation import GenerationParams
from gguf_spec.profile import apply_values
from gguf_spec.prompt import template_arguments
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.workloads import Workload

Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn as tokens, and how it is to be answered."""

    tokens: tuple[int, ...]
    params: GenerationParams
    reference: tuple[int, ...] = ()
    """What plain decoding answered when the conversation was made."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A workload for one model."""

    workload: Workload
    prompts: tuple[Prompt, ...]

    @property
    def name(self) -> str:
        """Of the workload."""
        return self.workload.name


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer: its tokens, and when each was there, in seconds after the prompt was handed over.
    ``cached`` prompt tokens were not decoded again."""

    tokens: tuple[int, ...]
    times: tuple[float, ...]
    n_prompt: int = 0
    cached: int = 0
    finish_reason: str | None = None


@dataclass(slots=True)
class BenchRun:
    """One workload decoded once. ``overhead_seconds`` is the part of decoding outside of the
    target's libllama context. ``positions[i]`` counts drafts whose token ``i`` stood, ``offered``
    those that had one."""

    round: int
    workload: str
    setup: str
    turns: list[Turn] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    overhead_seconds: float = 0.0
    positions: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    by_type: dict[str, dict[str, int]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    exactness: str = "seed-exact"

    @property
    def prefill_seconds(self) -> float:
        """Until the first token, all turns together."""
        return sum(turn.times[0] for turn in self.turns if turn.times)

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last, all turns together."""
        return sum(turn.times[-1] - turn.times[0] for turn in self.turns if turn.times)

    @property
    def n_tokens(self) -> int:
        """Of all answers."""
        return sum(len(turn.tokens) for turn in self.turns)


class Peer(Protocol):
    """Another program that decodes the same prompts."""

    name: str
    peer_of: str

    def run(self, number: int, conversation: Conversation) -> BenchRun | None:
        """Decode it; None: this program cannot decode it to the same text."""

    def record(self) -> dict[str, Any]:
        """What it is, as JSON."""

    def peak_bytes(self) -> int | None:
        """The most memory that it has had resident."""


class Runner:
    """Decodes ``workloads`` with ``setups``, and beside them with ``peers``.

    ``values`` are settings (keys of a profile) that decide over those of the workloads. With
    ``lenient``, workloads that cannot be decoded with this model are ``skipped``. With
    ``keep_prompts`` the target keeps what it has read of a prompt, which spares time where many
    set-ups decode the same; prefill is not measured then.

    Raises (constructor):
        InputError: a workload does not fit into the context, or the template refuses it.
    """

    def __init__(
        self,
        session: Session,
        workloads: Sequence[Workload],
        setups: Sequence[BenchSetup],
        *,
        peers: Sequence[Peer] = (),
        values: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        report: Report | None = None,
        lenient: bool = False,
        keep_prompts: bool = False,
    ) -> None:
        self.session = session
        self.setups = tuple(setups)
        self.peers = tuple(peers)
        self._owned = session.sequence.drafters
        self._values = values or {}
        self._most = max_tokens
        self._report = report or (lambda what, done, total: None)
        self._keep_prompts = keep_prompts
        self.differences: dict[tuple[str, str], dict[str, Any]] = {}
        """What was found where a text first differed, by workload and set-up."""
        self.conversations: list[Conversation] = []
        self.skipped: list[dict[str, str]] = []
        for done, workload in enumerate(workloads):
            self._report(f"first answers: {workload.name}", done, len(workloads))
            try:
                if keep_prompts:  # the answer that counts begins as all others will
                    self._conversation(workload)
                self.conversations.append(self._conversation(workload))
            except InputError as error:
                if not lenient:
                    raise
                self.skipped.append({"workload": workload.name, "reason": error.message})

    def warm_up(self) -> None:
        """A run of each set-up that is not counted: first runs find pages missing and graphs
        unbuilt."""
        first = min(self.conversations, key=lambda c: sum(len(p.tokens) for p in c.prompts))
        for setup in self.setups:
            self.run(0, first, setup)
        for peer in self.peers:
            peer.run(0, first)

    def rounds(self, n_rounds: int) -> Iterator[BenchRun]:
        """All runs, one after the other. What has been yielded is complete."""
        per_round = len(self.conversations) * (len(self.setups) + len(self.peers))
        done = 0
        for number in range(1, n_rounds + 1):
            for conversation in self.conversations:
                for side in self._order(number):
                    what = f"round {number} of {n_rounds}: {conversation.name}, {side.name}"
                    self._report(what, done, per_round * n_rounds)
                    done += 1
                    run: BenchRun | None
                    if isinstance(side, BenchSetup):
                        run = self.run(number, conversation, side)
                    else:
                        run = side.run(number, conversation)
                    if run is not None:
                        yield run

    def run(self, number: int, conversation: Conversation, setup: BenchSetup) -> BenchRun:
        """Decode a conversation once."""
        result = BenchRun(number, conversation.name, setup.name)
        with self._arranged(setup, conversation.prompts) as recorder:
            for index, prompt in enumerate(conversation.prompts):
                self._answer(result, index, prompt, recorder.rounds)
            self._examine(result, conversation.prompts)
        return result

    @contextmanager
    def _arranged(self, setup: BenchSetup, prompts: Sequence[Prompt]) -> Iterator[Recorder]:
        """The session as ``setup`` has it, and with nothing in its caches."""
        session, stack = self.session, self.session.sequence.stack
        self._forget()
        texts = [prompt.reference for prompt in prompts]
        arranged = arrange(session, setup, self._owned, texts)
        before = stack.drafters, stack.controller, session.controller
        stack.drafters, stack.controller = arranged.drafters, arranged.controller
        session.controller = arranged.controller.inner
        try:
            yield arranged.controller
        finally:
            stack.drafters, stack.controller, session.controller = before

    def _order(self, number: int) -> Sequence[BenchSetup | Peer]:
        """Set-ups with their peers right behind them; every second round the other way round."""
        sides: list[BenchSetup | Peer] = []
        for setup in self.setups:
            sides.append(setup)
            sides += [peer for peer in self.peers if peer.peer_of == setup.name]
        return sides if number % 2 else sides[::-1]

    def _answer(self, result: BenchRun, index: int, prompt: Prompt, rounds: list[Any]) -> None:
        """Decode one turn into ``result``."""
        session = self.session
        rounds.clear()
        tokens: list[int] = []
        times: list[float] = []
        begun = perf_counter()
        generation = session.generate(prompt.tokens, prompt.params)
        for delta in generation:
            if delta.tokens:
                times += [perf_counter() - begun] * len(delta.tokens)
                tokens += delta.tokens
        report = generation.report()
        cached = report["cached_tokens"]
        reason = generation.finish_reason
        result.turns.append(Turn(tuple(tokens), tuple(times), len(prompt.tokens), cached, reason))
        result.overhead_seconds += report["timings"]["overhead_seconds"]
        result.exactness = report["spec"]["exactness"]
        result.events += [event["message"] for event in report["spec"]["events"]]
        for kind, counts in report["spec"]["by_type"].items():
            kept = result.by_type.setdefault(kind, dict.fromkeys(counts, 0))
            for name, count in counts.items():
                kept[name] += count
        for one in rounds:
            result.tally.add(one.n_drafted, one.n_accepted, one.draft_seconds, one.decode_seconds)
            _count(result.offered, one.n_drafted)
            _count(result.positions, one.n_accepted)
        result.tally.decode_seconds += times[-1] - times[0]

    def _examine(self, result: BenchRun, prompts: Sequence[Prompt]) -> None:
        """Find out why a text differs from that of plain decoding, if one does, once for each pair
        of workload and set-up. The caches are empty afterwards."""
        key = (result.workload, result.setup)
        texts = [turn.tokens for turn in result.turns]
        differing = [i for i, p in enumerate(prompts) if p.reference and texts[i] != p.reference]
        if key in self.differences or not differing:
            return
        index = differing[0]
        prompt, tokens = prompts[index], texts[index]
        same = common_prefix(tokens, prompt.reference)
        found: dict[str, Any] = {"turn": index, "first_divergence": same}
        if result.exactness != "seed-exact":
            verdict = "another text of the same distribution"
        else:
            session, params = self.session, prompt.params
            session.sequence.consistent = False
            sampler = Sampler(params.sampling, breaks=session.breaks_repetition, mask=params.mask)
            audited = audit(
                session.context, session.sequence.seq, prompt.tokens, tokens, sampler
            ).report()
            verdict = audited["verdict"]
            if verdict == "token-identical":
                verdict = "the reference differs"  # plain decoding does not repeat itself
            gaps = [one["gap"] for one in audited["differing"] if one["gap"] is not None]
            found |= {"gap": max(gaps, default=None), "noise": audited["noise"]}
        self.differences[key] = found | {"verdict": verdict}

    def _conversation(self, workload: Workload) -> Conversation:
        """Tokens of all turns, with the answers of plain decoding between them: decoded as they
        will be, so with what is cached of the turns before."""
        messages: list[dict[str, str]] = []
        system = self._values.get("chat.system", workload.system)
        if system:
            messages.append({"role": "system", "content": system})
        prompts: list[Prompt] = []
        result = BenchRun(0, workload.name, PLAIN)
        with self._arranged(plain_setup(), ()) as recorder:
            for index, turn in enumerate(workload.turns):
                messages.append({"role": "user", "content": turn})
                prompt = self._prompt(workload, messages, last=index == len(workload.turns) - 1)
                self._answer(result, index, prompt, recorder.rounds)
                answer = result.turns[-1].tokens
                prompts.append(replace(prompt, reference=answer))
                pieces = b"".join(self.session.model.piece(token) for token in answer)
                messages.append({"role": "assistant", "content": pieces.decode("utf-8", "replace")})
        return Conversation(workload, tuple(prompts))

    def _prompt(
        self, workload: Workload, messages: Sequence[dict[str, str]], *, last: bool
    ) -> Prompt:
        session = self.session
        profile = session.setup.profile
        tokens = tuple(session.chat_prompt(messages, **template_arguments(profile)))
        mask = session.thinking.limited(tokens, profile.chat.think_budget, None)
        params = replace(self._params(workload, workload.predict if last else ""), mask=mask)
        self._check_room(workload, len(tokens), params.max_tokens or 0)
        return Prompt(tokens, params)

    def _params(self, workload: Workload, predict: str) -> GenerationParams:
        profile = self.session.setup.profile
        own = {"sampling.temperature": workload.temperature, "sampling.seed": workload.seed}
        chosen = {k: v for k, v in self._values.items() if k.startswith("sampling.")}
        tokens = workload.max_tokens if self._most is None else min(workload.max_tokens, self._most)
        return self.session.params(
            apply_values(profile, own | chosen),
            max_tokens=tokens,
            predicted=tuple(self.session.model.tokenize(predict)) if predict else (),
        )

    def _check_room(self, workload: Workload, n_prompt: int, n_tokens: int) -> None:
        n_ctx = self.session.setup.n_ctx
        if n_prompt + n_tokens > n_ctx:
            raise InputError(
                f"workload {workload.name} needs {n_prompt} + {n_tokens} tokens, the context has "
                f"{n_ctx}",
                hint=f"-c {n_prompt + n_tokens}, or --workload with shorter ones",
            )

    def _forget(self) -> None:
        """Empty the caches, the drafters' too, and the pool: a text of one other token begins."""
        session = self.session
        session.pool.clear()
        if self._keep_prompts and not session.draft_contexts:
            return  # n-gram drafters are made anew for every run
        history = session.sequence.history
        first = history[0] if len(history) else 0
        other = next(t for t in range(session.model.n_vocab) if t != first)
        request = Request([other], Sampler(SamplingParams()), 1, ignore_end=True)
        for _ in session.engine.generate(session.sequence, request):
            pass
        for drafter in session.sequence.drafters:
            rebuild = getattr(drafter, "rebuild", None)
            if rebuild is not None:
                rebuild()
        session.context.clear(session.sequence.seq)
        session.sequence.consistent = False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _count(counts: list[int], n: int) -> None:
    """One more at each of the first ``n`` positions."""
    counts += [0] * (n - len(counts))
    for i in range(n):
        counts[i] += 1
