"""The line below an answer that is being written, and the one below the prompt."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from gguf_spec.control import AdaptiveController

if TYPE_CHECKING:
    from gguf_spec.generation import Generation
    from gguf_spec.session import Session


class Status:
    """How the answer in progress goes."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._session = generation.session
        self._begun = perf_counter()
        self.prefilled = 0

    def lines(self, width: int) -> list[str]:
        """An empty line and the status, dim, in ``width`` cells."""
        return ["", f"\x1b[2m{fitted(self.parts(), width)}\x1b[0m"]

    def parts(self) -> list[str]:
        """The pieces of the status, the most important first."""
        generation, sequence = self._generation, self._session.sequence
        progress, n_tokens = sequence.progress, len(generation.tokens)
        context = f"context {len(sequence.history)}/{self._session.setup.n_ctx}"
        if not n_tokens:
            seconds = perf_counter() - self._begun
            done = f"{max(self.prefilled, progress.cached_tokens)}/{generation.n_prompt}"
            return [f"reading the prompt {done}", f"{seconds:.0f} s", context]
        seconds = progress.last_token - progress.first_token
        speed = f"{(n_tokens - 1) / seconds:.1f} tokens/s" if seconds > 0 else ""
        rate = progress.spec.total.acceptance_rate
        accepted = "" if rate is None else f"accepted {rate:.0%}"
        parts = [speed, f"{n_tokens} tokens", accepted, context, self._drafting(), "Ctrl-C stops"]
        return [part for part in parts if part]

    def _drafting(self) -> str:
        """What the controller does now, and why."""
        session = self._session
        if not session.spec_types:
            return ""
        if not session.drafting:
            return "drafting off"
        draft = session.sequence.stack.draft
        if draft.tokens and draft.source:
            return f"{draft.source} drafts {len(draft.tokens)}"
        return why_not(session)


def why_not(session: Session) -> str:
    """Why nothing is drafted at the moment, in a few words."""
    controller = session.controller
    paused = controller.paused if isinstance(controller, AdaptiveController) else None
    return paused or "no draft that pays"


def fitted(parts: list[str], width: int) -> str:
    """``parts`` with dots between them, as many as fit into ``width`` cells; a part that is too
    long is cut if much of it can be seen."""
    line = ""
    for part in parts:
        joined = f"{line} · {part}" if line else part
        if cell_len(joined) <= width:
            line = joined
        elif width - cell_len(line) > 24:
            line = set_cell_size(joined, width - 1).rstrip() + "…"
    return line


def toolbar(session: Session, *, think: str, used: int) -> str:
    """The set-up in a line: model, drafting, ``used`` tokens of the context."""
    setup = session.setup
    drafting = ", ".join(session.spec_types) or "no drafting"
    if session.spec_types and not session.drafting:
        drafting = "drafting off"
    parts = [
        f"{setup.target.arch} {setup.target.quant}",
        drafting,
        f"context {used}/{setup.n_ctx}",
        f"think {think}" if session.thinking.format else "",
        "/help",
    ]
    return " · ".join(part for part in parts if part)
