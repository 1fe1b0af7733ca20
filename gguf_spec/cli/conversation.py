"""A conversation: messages, answers, and the commands between them."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from gguf_spec.cli import chat_commands
from gguf_spec.cli.answer import SecondInterrupt, predicted_tokens
from gguf_spec.cli.attach import attached
from gguf_spec.cli.chat_stats import stats_lines
from gguf_spec.cli.output import visible
from gguf_spec.cli.prompts import read_text
from gguf_spec.cli.turns import Turns
from gguf_spec.errors import GgufSpecError, PromptError, UsageError
from gguf_spec.profile import Sampling, apply_overrides

_SHORT_KEYS = {"temp": "temperature"}
_RELOADED = ("target", "memory", "spec", "engine")

Command = Callable[[str], str | None]


class Conversation:
    """Takes lines, prints answers to stdout and everything else to stderr."""

    def __init__(self, turns: Turns) -> None:
        self.ended = False
        self.failed = False
        """Whether any message has got no answer, or a command was not done, because of an error."""
        self.turns = turns
        self._out = turns.out
        self.commands: dict[str, tuple[Command, str, str]] = {
            "/help": (self._help, "", "list the commands"),
            "/stats": (self._stats, "", "how the answers so far went"),
            "/clear": (self._clear, "", "forget the conversation"),
            "/undo": (self._undo, "", "forget the last message and its answer"),
            "/retry": (self._retry, "", "answer the last message again"),
            "/system": (self._set_system, "[TEXT]", "set or show the system message"),
            "/think": (
                self._on_turns(chat_commands.think), "[on|off|auto|N|show|expand|fold]",
                "reasoning: whether, how many tokens, show it"),
            "/set": (self._set, "KEY VALUE", "change a setting: /set temp 0.7"),
            "/spec": (
                self._on_turns(chat_commands.spec), "[TYPE|off|auto]",
                "what drafts; another type loads the model again"),
            "/profile": (
                self._on_turns(chat_commands.use_profile), "[NAME]",
                "go on with another profile: loads its model"),
            "/save": (self._on_turns(chat_commands.save), "[--state] FILE",
                      "write the conversation; --state: and the cache"),
            "/load": (self._on_turns(chat_commands.load), "FILE",
                      "go on with a saved conversation"),
            "/color": (self._on_turns(chat_commands.color), "[on|off]",
                       "colour the tokens that drafts have brought"),
            "/predict": (self._predict, "[FILE]", "expect that text as the next answer, or none"),
            "/exit": (self._exit, "", "leave"),
        }  # fmt: skip

    def take(self, line: str) -> str | None:
        """Do what ``line`` says. Returns the finish reason if it was answered.

        An error ends this turn, not the conversation, as Ctrl-C does.

        Raises:
            SecondInterrupt: Ctrl-C once more, while an answer is being cancelled.
            GgufSpecError, KeyboardInterrupt: no model is loaded any more.
        """
        try:
            if line.startswith("/"):
                return self._command(line)
            text, names = attached(line)
            if names:
                self._out.note(f"(attached: {', '.join(names)})")
            return self.turns.answer(text)
        except SecondInterrupt:
            raise
        except KeyboardInterrupt:
            if self.turns.loaded.lost or not self.turns.interactive:
                raise
            self._out.say("(interrupted)")
        except GgufSpecError as error:
            if self.turns.loaded.lost:
                raise
            self.failed = True
            self._out.say(f"error: {error.message}")
            if isinstance(error, PromptError):
                self._out.say("hint: /clear starts over, /undo forgets the last message")
            elif error.hint:
                self._out.say(f"hint: {error.hint}")
        return None

    def _command(self, line: str) -> str | None:
        name, _, rest = line.partition(" ")
        if name in self.commands:
            return self.commands[name][0](rest.strip())
        self.failed = True
        near = difflib.get_close_matches(name, self.commands, n=1, cutoff=0.0)[0]
        self._out.say(f"unknown command {name}; did you mean {near}? (/help lists all)")
        return None

    def _on_turns(self, command: Callable[[Turns, str], None]) -> Command:
        return lambda rest: command(self.turns, rest)

    # ------------------------------------------------------------------------ commands

    def _help(self, rest: str) -> None:
        names = {name: f"{name} {usage}" for name, (_, usage, _) in self.commands.items()}
        width = max(len(text) for text in names.values() if len(text) < 32)
        for name, (_, _, about) in self.commands.items():
            if len(names[name]) > width:
                self._out.say(names[name])
                self._out.say(f"{'':<{width}}  {about}")
            else:
                self._out.say(f"{names[name]:<{width}}  {about}")
        self._out.say("A line that ends with \\ goes on in the next one, as does Alt-Enter.")
        self._out.say("@path attaches a file. Ctrl-C stops an answer, and keeps what there is.")

    def _stats(self, rest: str) -> None:
        lines = stats_lines(self.turns) if self.turns.reports else ["no answers yet"]
        for line in lines:
            self._out.say(line)

    def _clear(self, rest: str) -> None:
        self.turns.messages.clear()
        self._out.say("(the conversation is forgotten)")

    def _undo(self, rest: str) -> None:
        if not self.turns.messages:
            self._out.say("there is nothing to undo")
            return
        del self.turns.messages[-2:]
        self._out.say("(the last message and its answer are forgotten)")

    def _retry(self, rest: str) -> str | None:
        turns = self.turns
        if not turns.messages:
            self._out.say("there is nothing to retry")
            return None
        sampling = turns.session.params(turns.profile).sampling
        if sampling.temperature <= 0 or turns.profile.sampling.seed >= 0:
            self._out.say(
                "(the answer will be the same: temperature 0 or a fixed seed; "
                "/set temperature 0.8, /set seed -1)"
            )
        before = turns.messages.copy()
        del turns.messages[-2:]
        try:
            return turns.answer(before[-2]["content"])
        except BaseException:  # as late as behind the new answer
            turns.messages[:] = before
            raise

    def _set_system(self, rest: str) -> None:
        if not rest:
            self._out.say(visible(self.turns.system) or "there is no system message")
            return
        self.turns.system = rest
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
        changed = apply_overrides(self.turns.profile, {dotted: value}, "/set")
        if dotted.partition(".")[0] in _RELOADED:
            self._out.say(f"(loading the model again, with --set {dotted}={value})")
            chat_commands.reload(self.turns, changed)
            return
        self.turns.profile = changed
        if dotted == "chat.system":
            self.turns.system = changed.chat.system
        shown = getattr(changed.sampling, name) if is_sampling else value
        self._out.say(f"({name} is {shown})")

    def _predict(self, rest: str) -> None:
        turns = self.turns
        if not rest:
            was, turns.predicted = turns.predicted, ()
            self._out.say("(no text is expected any more)" if was else "no text is expected")
            return
        text = read_text(rest, "/predict")

        def warn(text: str) -> None:  # every time that it is typed
            self._out.say(f"warning: {text}")

        turns.predicted = predicted_tokens(turns.session, text, "/predict", warn)
        if turns.predicted:
            self._out.say(f"(expecting the {len(turns.predicted)} tokens of {rest} next)")

    def _exit(self, rest: str) -> None:
        self.ended = True
