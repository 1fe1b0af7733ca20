"""A conversation: messages, answers, and the commands between them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from gguf_spec.cli.answer import predicted_tokens, show_warnings, stream, template_arguments
from gguf_spec.cli.output import Output
from gguf_spec.cli.prompts import read_text
from gguf_spec.cli.summary import answer_line, draft_line
from gguf_spec.errors import GgufSpecError, PromptError, UsageError
from gguf_spec.profile import Sampling, apply_overrides
from gguf_spec.sampling import Mask
from gguf_spec.session import Session
from gguf_spec.setup import NOT_YET

_SHORT_KEYS = {"temp": "temperature"}


class Conversation:
    """Takes lines, prints answers to stdout and everything else to stderr."""

    def __init__(self, session: Session, out: Output, max_tokens: int | None) -> None:
        self.ended = False
        self.messages: list[dict[str, str]] = []
        """User and assistant in turn; the system message is the profile's."""
        self.mask: Mask | None = None
        """What a grammar allows the answers to be."""
        self._session = session
        self._out = out
        self._max_tokens = max_tokens
        self._profile = session.setup.profile
        self._system = self._profile.chat.system
        self._predicted: tuple[int, ...] = ()
        self._reports: list[dict[str, Any]] = []
        self._commands: dict[str, tuple[Callable[[str], str | None], str, str]] = {
            "/help": (self._help, "", "list the commands"),
            "/stats": (self._stats, "", "how the answers so far went"),
            "/clear": (self._clear, "", "forget the conversation"),
            "/undo": (self._undo, "", "forget the last message and its answer"),
            "/retry": (self._retry, "", "answer the last message again"),
            "/system": (self._set_system, "[TEXT]", "set or show the system message"),
            "/set": (self._set, "KEY VALUE", "change how tokens are chosen: /set temp 0.7"),
            "/predict": (self._predict, "[FILE]", "expect that text as the next answer, or none"),
            "/exit": (self._exit, "", "leave"),
        }

    def take(self, line: str) -> str | None:
        """Do what ``line`` says. Returns the finish reason if it was answered.

        An error ends this turn, not the conversation.
        """
        try:
            if line.startswith("/"):
                return self._command(line)
            return self._answer(line)
        except GgufSpecError as error:
            self._out.say(f"error: {error.message}")
            if isinstance(error, PromptError):
                self._out.say("hint: /clear starts over, /undo forgets the last message")
            elif error.hint:
                self._out.say(f"hint: {error.hint}")
        return None

    def _command(self, line: str) -> str | None:
        name, _, rest = line.partition(" ")
        if name in self._commands:
            return self._commands[name][0](rest.strip())
        near = difflib.get_close_matches(name, self._commands, n=1, cutoff=0.0)[0]
        self._out.say(f"unknown command {name}; did you mean {near}? (/help lists all)")
        return None

    def _answer(self, text: str) -> str:
        user = {"role": "user", "content": text}
        system = [{"role": "system", "content": self._system}] if self._system else []
        session = self._session
        prompt = session.chat_prompt(
            [*system, *self.messages, user], **template_arguments(self._profile)
        )
        params = session.params(
            self._profile,
            max_tokens=self._max_tokens,
            predicted=self._predicted,
            mask=self.mask,
        )
        generation = stream(session, prompt, params, self._out)
        if generation.text and not generation.text.endswith("\n"):
            self._out.text("\n")
        self.messages += [user, {"role": "assistant", "content": generation.text}]
        report = generation.report()
        self._reports.append(report)
        self._predicted = ()
        show_warnings(session, self._out)
        self._out.note(answer_line(report))
        self._say_why_it_ended(report)
        return str(report["finish_reason"])

    def _say_why_it_ended(self, report: dict[str, Any]) -> None:
        if report["finish_reason"] != "length":
            return
        if self._max_tokens is not None and report["completion_tokens"] >= self._max_tokens:
            self._out.say(f"(cut at {self._max_tokens} tokens, as -n/--predict says)")
        else:
            n_ctx = report["model"]["n_ctx"]
            self._out.say(
                f"(cut: the context of {n_ctx} tokens is full; /undo or /clear makes room)"
            )

    # ------------------------------------------------------------------------ commands

    def _help(self, rest: str) -> None:
        width = max(len(f"{name} {usage}") for name, (_, usage, _) in self._commands.items())
        for name, (_, usage, about) in self._commands.items():
            self._out.say(f"{f'{name} {usage}':<{width}}  {about}")
        self._out.say("A line that ends with \\ goes on in the next one. Ctrl-C stops an answer.")

    def _stats(self, rest: str) -> None:
        reports = self._reports
        if not reports:
            self._out.say("no answers yet")
            return
        last = reports[-1]
        self._out.say(answer_line(last, title="last: "))
        seconds = sum(report["timings"]["decode_seconds"] for report in reports)
        tokens = sum(report["completion_tokens"] for report in reports)
        speed = f", {(tokens - len(reports)) / seconds:.1f} tokens/s" if seconds > 0 else ""
        self._out.say(f"all: {len(reports)} answers, {tokens} tokens{speed}")
        if last["spec"]["types"]:
            self._out.say(draft_line(_total(reports), title="drafts: "))
        used = last["prompt_tokens"] + last["completion_tokens"]
        self._out.say(f"context: {used} of {last['model']['n_ctx']} tokens after the last answer")

    def _clear(self, rest: str) -> None:
        self.messages.clear()
        self._out.say("(the conversation is forgotten)")

    def _undo(self, rest: str) -> None:
        if not self.messages:
            self._out.say("there is nothing to undo")
            return
        del self.messages[-2:]
        self._out.say("(the last message and its answer are forgotten)")

    def _retry(self, rest: str) -> str | None:
        if not self.messages:
            self._out.say("there is nothing to retry")
            return None
        sampling = self._session.params(self._profile).sampling
        if sampling.temperature <= 0 or self._profile.sampling.seed >= 0:
            self._out.say(
                "(the answer will be the same: temperature 0 or a fixed seed; "
                "/set temperature 0.8, /set seed -1)"
            )
        last = self.messages[-2:]
        del self.messages[-2:]
        try:
            return self._answer(last[0]["content"])
        except BaseException:
            self.messages += last
            raise

    def _set_system(self, rest: str) -> None:
        if not rest:
            self._out.say(self._system or "there is no system message")
            return
        self._system = rest
        self._out.say("(the system message is set)")

    def _set(self, rest: str) -> None:
        key, _, value = rest.replace("=", " ", 1).partition(" ")
        key, value = key.strip(), value.strip()
        if not key or not value:
            raise UsageError("/set needs KEY VALUE, as in /set temperature 0.7")
        name = key.removeprefix("sampling.")
        name = _SHORT_KEYS.get(name, name)
        is_sampling = "." not in name and (
            name in Sampling.model_fields or key.startswith("sampling.")
        )
        dotted = f"sampling.{name}" if is_sampling or "." not in key else key
        changed = apply_overrides(self._profile, {dotted: value}, "/set")
        if dotted.removeprefix("sampling.") in NOT_YET.get("sampling", "").split():
            self._out.say(f"{dotted} is not available in this version")
            return
        if not is_sampling:
            self._out.say(
                f"{dotted} cannot be changed in a running chat: start again with "
                f"--set {dotted}={value}"
            )
            return
        self._profile = changed
        self._out.say(f"({name} is {getattr(changed.sampling, name)})")

    def _predict(self, rest: str) -> None:
        if not rest:
            was, self._predicted = self._predicted, ()
            self._out.say("(no text is expected any more)" if was else "no text is expected")
            return
        text = read_text(rest, "/predict")

        def warn(text: str) -> None:  # every time that it is typed
            self._out.say(f"warning: {text}")

        self._predicted = predicted_tokens(self._session, text, "/predict", warn)
        if self._predicted:
            self._out.say(f"(expecting the {len(self._predicted)} tokens of {rest} next)")

    def _exit(self, rest: str) -> None:
        self.ended = True


def _total(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The drafting counters of all answers together."""
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    total: dict[str, Any] = {
        name: sum(report["spec"][name] for report in reports) for name in names
    }
    by_type: dict[str, dict[str, int]] = {}
    for report in reports:
        for kind, counts in report["spec"]["by_type"].items():
            sums = by_type.setdefault(kind, dict.fromkeys(names, 0))
            for name in names:
                sums[name] += counts[name]
    types = dict.fromkeys(kind for report in reports for kind in report["spec"]["types"])
    return {**total, "types": list(types), "by_type": by_type}
