"""The turns of a chat: messages, how they become a prompt, and the answers to them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gguf_spec.cli.answer import (
    cancelled_by_interrupt,
    show_warnings,
    stream,
    told_events,
)
from gguf_spec.cli.keys import quiet_keys
from gguf_spec.cli.loaded import Loaded
from gguf_spec.cli.output import Output
from gguf_spec.cli.saved import saved_seconds
from gguf_spec.cli.summary import answer_line
from gguf_spec.prompt import template_arguments
from gguf_spec.prompt_size import check_size
from gguf_spec.reasoning import split

if TYPE_CHECKING:
    from gguf_spec.cli.constraint import Constraint
    from gguf_spec.cli.screen import Screen
    from gguf_spec.generation import Generation, GenerationParams
    from gguf_spec.session import Session


# Tokens that may take a while to read, also on a fast machine.
_LONG_PROMPT = 256


class Turns:
    """What has been said, with what answers it. ``screen``: where answers are drawn; None: their
    text is printed as it comes."""

    def __init__(
        self,
        loaded: Loaded,
        out: Output,
        max_tokens: int | None,
        *,
        constraint: Constraint | None = None,
        screen: Screen | None = None,
        interactive: bool = False,
    ) -> None:
        self.loaded = loaded
        self.out = out
        self.max_tokens = max_tokens
        self.constraint = constraint
        self.screen = screen
        self.interactive = interactive
        self.messages: list[dict[str, str]] = []
        """User and assistant in turn; the system message is apart."""
        self.profile = loaded.session.setup.profile
        self.system = self.profile.chat.system
        self.predicted: tuple[int, ...] = ()
        self.reports: list[dict[str, Any]] = []
        self.saved_seconds: list[float | None] = []
        """For each report: the time that plain decoding would have taken more, if it is known."""

    @property
    def session(self) -> Session:
        """The session that is loaded now."""
        return self.loaded.session

    @property
    def used(self) -> int:
        """Tokens of the context that the last answer has left full."""
        if not self.messages:
            return 0
        # The last token of an answer that was cut by the context was never put into it.
        return min(len(self.session.sequence.history), self.session.context.n_ctx)

    def answer(self, text: str) -> str:
        """Answer ``text``, and remember both. Returns the finish reason.

        Raises:
            PromptError: the conversation is longer than the context; nothing is remembered.
            InputError: the chat template refuses it.
        """
        session, chat = self.session, self.profile.chat
        check_size(session.setup.target, session.context.n_ctx, text)
        user = {"role": "user", "content": text}
        prompt = self._prompt(user)
        mask = None if self.constraint is None else self.constraint.mask(session, self.profile)
        params = session.params(
            self.profile,
            max_tokens=self.max_tokens,
            predicted=self.predicted,
            mask=session.thinking.limited(prompt, chat.think_budget, mask),
        )
        generation = self._shown(prompt, params)
        reasoning, content = split(generation.text, session.thinking.splitter(prompt))
        assistant = {"role": "assistant", "content": content}
        if reasoning:
            assistant["reasoning_content"] = reasoning
        self.messages += [user, assistant]
        report = generation.report()
        self.reports.append(report)
        self.saved_seconds.append(saved_seconds(report, session.curve))
        self.predicted = ()
        show_warnings(session, self.out)
        self.out.note(answer_line(report))
        self._say_why_it_ended(report)
        if self.screen is not None:
            self.out.note("")
        return str(report["finish_reason"])

    def _prompt(self, user: dict[str, str]) -> list[int]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        # The profile may have changed since the session was opened.
        arguments = {**self.profile.chat.template, **template_arguments(self.profile)}
        return self.session.chat_prompt([*system, *self.messages, user], **arguments)

    def _shown(self, prompt: Sequence[int], params: GenerationParams) -> Generation:
        """Generate, on the screen if there is one."""
        if self.screen is not None:
            return on_screen(self.session, prompt, params, self.screen, self.out)
        with quiet_keys() if self.interactive else contextlib.nullcontext():
            generation = stream(self.session, prompt, params, self.out)
        if generation.text and not generation.text.endswith("\n"):
            self.out.text("\n")
        return generation

    def _say_why_it_ended(self, report: dict[str, Any]) -> None:
        if report["finish_reason"] != "length":
            return
        if self.max_tokens is not None and report["completion_tokens"] >= self.max_tokens:
            self.out.say(f"(cut at {self.max_tokens} tokens, as -n/--predict says)")
        else:
            n_ctx = report["model"]["n_ctx"]
            self.out.say(
                f"(cut: the context of {n_ctx} tokens is full; /undo or /clear makes room)"
            )


def on_screen(
    session: Session, prompt: Sequence[int], params: GenerationParams, screen: Screen, out: Output
) -> Generation:
    """As ``stream``, drawn on ``screen``."""
    from gguf_spec.cli.status import Status
    from gguf_spec.reasoning import Part

    generation = session.generate(prompt, params)
    splitter = session.thinking.splitter(prompt)
    status = Status(generation)

    def feed(text: str, accepted: bool = False) -> None:
        if text:
            parts = [Part("answer", text)] if splitter is None else splitter.feed(text)
            screen.feed(parts, accepted=accepted)

    shown = 0
    foot = status.lines if out.mode == "human" else lambda width: []
    screen.start(foot, at_once=len(prompt) > session.sequence.n_cached + _LONG_PROMPT)
    try:
        with (
            cancelled_by_interrupt(generation),
            quiet_keys(),
            contextlib.closing(iter(generation)) as deltas,  # type: ignore[type-var]
        ):
            for delta in deltas:
                if delta.tokens:
                    n = delta.n_accepted_chars
                    feed(delta.text[:n], accepted=True)
                    feed(delta.text[n:])
                    screen.count(len(delta.tokens))
                    shown += len(delta.text)
                else:
                    status.prefilled = delta.prefilled
                screen.tick()
    finally:
        feed(generation.text[shown:])
        if splitter is not None:
            screen.feed(splitter.flush())
        screen.finish()
    told_events(generation, out)
    return generation
