"""A llama-server for many short runs: its prompts stay cached, its drafters begin with nothing.

llama-server has one spec type for its whole life (fields of a request for it are switched off in
the sources of llama.cpp), so there is a process for each type. ngram-simple keeps nothing from one
request to the next. The other n-gram types do, and nothing but a new process makes them forget; the
prompt is then put back from a file, as llama-server's slots can. Models with a sliding window
cannot have it back: there it is read again. Decoding is timed without the prompt in any case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from gguf_spec.bench.peer import NAME, LlamaServer, common_limits, turn_of
from gguf_spec.bench.runner import BenchRun, Conversation, Prompt, Turn, common_prefix
from gguf_spec.bench.setups import BenchSetup
from gguf_spec.session import Session

FORGETFUL = ("ngram-simple",)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class WarmPeer:
    """One llama-server, as a peer of ``setup`` under the name of its spec type.

    ``folder`` takes the prompts' caches. Close it, or use it as a context manager.
    """

    def __init__(self, program: str, session: Session, setup: BenchSetup, folder: Path) -> None:
        self.kind = setup.types[0] if setup.types else ""
        self.name = f"{NAME} {self.kind or 'plain'}"
        self.peer_of = setup.name
        self.refused: dict[str, str] = {}
        """Workloads that it decodes to another text from early on."""
        self._given = program, session, setup
        self._folder = folder
        self._fresh = bool(set(setup.types) - set(FORGETFUL))
        self._limits: dict[str, list[int]] = {}
        self._cuts: dict[str, int] = {}
        self._saved: set[str] = set()
        self._server: LlamaServer | None = None
        self._facts: dict[str, Any] = {}
        self.start()

    @property
    def server(self) -> LlamaServer:
        """The process that runs now; started if there is none."""
        return self._server or self.start()

    def start(self) -> LlamaServer:
        """A new process in place of the present one: nothing is cached or learned."""
        self.close()
        program, session, setup = self._given
        options = ["--slot-save-path", str(self._folder)]
        self._server = LlamaServer(program, session, setup, options=options)
        self._facts = {**self._server.record(), "name": self.name, "fresh": self._fresh}
        return self._server

    def run(self, number: int, conversation: Conversation) -> BenchRun | None:
        """Decode all turns once; None if its text is another one from early on."""
        self.settle(conversation)
        limits = self._limits.get(conversation.name)
        if limits is None:
            return None
        result = self._decode(conversation, limits)
        result.round = number
        return result

    def settle(self, conversation: Conversation) -> None:
        """Find out, once for a workload, how much of its text is the same as ours."""
        name = conversation.name
        if name in self._limits or name in self.refused:
            return
        if conversation.prompts[0].params.sampling.temperature > 0.0:
            self.refused[name] = "its random numbers are others"
            return
        wanted = [prompt.params.max_tokens or -1 for prompt in conversation.prompts]
        found = self._decode(conversation, wanted)
        limits = common_limits(found.turns, conversation)
        if limits is None:
            both = zip(found.turns, conversation.prompts, strict=True)
            same = [common_prefix(turn.tokens, prompt.reference) for turn, prompt in both]
            self.refused[name] = f"the texts have {same} tokens of the turns in common"
            return
        self._limits[name] = limits
        cuts = [n for n, most in zip(limits, wanted, strict=True) if n != most]
        if cuts:
            self._cuts[name] = min(cuts)

    def complete(
        self, tokens: Sequence[int], n_predict: int, penalty: float = 1.0
    ) -> tuple[Turn, dict[str, int]]:
        """One greedy completion after what is cached of ``tokens``, and its counts of drafts.
        Raises RunError."""
        body = {
            "prompt": list(tokens),
            "n_predict": n_predict,
            "temperature": 0.0,
            "repeat_penalty": penalty,
            "cache_prompt": True,
            "return_tokens": True,
            "stream": False,
        }
        answer = self.server.ask("/completion", body)
        turn, timings = turn_of(answer, len(tokens)), answer["timings"]
        counts = {
            "num_draft_tokens": int(timings.get("draft_n", 0)),
            "num_accepted_tokens": int(timings.get("draft_n_accepted", 0)),
        }
        return turn, counts

    def cut(self, name: str) -> int | None:
        """Where its text of a workload goes another way than ours, in tokens of a turn; None if
        it does not, or if it is compared with nothing."""
        return self._cuts.get(name)

    def forget(self, name: str) -> None:
        """The workload will be another one, with shorter answers."""
        self._limits.pop(name, None)
        self._cuts.pop(name, None)

    def record(self) -> dict[str, Any]:
        """What it was, as JSON."""
        return {**self._facts, "refused": self.refused}

    def peak_bytes(self) -> int | None:
        """The most memory that the present process has had resident."""
        return self._server.peak_bytes() if self._server else None

    def close(self) -> None:
        """End the process, if there is one."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def __enter__(self) -> WarmPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _decode(self, conversation: Conversation, limits: Sequence[int]) -> BenchRun:
        """All turns, with the first prompt cached and the drafters new."""
        if self._fresh:
            self.start()
        first = conversation.prompts[0]
        self._put_back(conversation.name, first)
        result = BenchRun(0, conversation.name, self.name)
        total = {"num_draft_tokens": 0, "num_accepted_tokens": 0}
        for prompt, limit in zip(conversation.prompts, limits, strict=True):
            turn, counts = self.complete(
                prompt.tokens, limit, prompt.params.sampling.repeat_penalty
            )
            result.turns.append(turn)
            total = {name: total[name] + counts[name] for name in total}
        if self.kind:
            result.by_type[self.kind] = total
        if self._fresh:
            self.close()  # an idle process keeps its memory
        return result

    def _put_back(self, name: str, prompt: Prompt) -> None:
        """Have the prompt cached: from the file, or read now. The single token that this takes is
        a first decode for a new process, too, and no drafter is asked for one."""
        file = f"{self.kind or 'plain'}-{_file_name(name)}.slot"
        if name in self._saved:
            self.server.ask("/slots/0?action=restore", {"filename": file})
        self.complete(prompt.tokens, 1)
        if name not in self._saved and self._fresh:
            self.server.ask("/slots/0?action=save", {"filename": file})
            self._saved.add(name)


def _file_name(name: str) -> str:
    """``name`` where llama-server takes it as a file's name, else one of its own."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
