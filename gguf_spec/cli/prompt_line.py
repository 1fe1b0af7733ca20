"""The line on which a message is typed: editing, history, several lines, completion."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    PathCompleter,
    get_common_complete_suffix,
)
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from gguf_spec.cli.conversation import Conversation
from gguf_spec.cli.keys import quiet_keys
from gguf_spec.cli.lines import PROMPT
from gguf_spec.cli.options import SPEC_TYPES
from gguf_spec.cli.status import toolbar
from gguf_spec.folders import home_config_dir
from gguf_spec.profile import Sampling, find_profiles

_STYLE = Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack"})
_OF_FILES = ("/save", "/load", "/predict")
_MENU_ROWS = 6
_LEAVES = "(Ctrl-C again or /exit leaves)"


class PromptLine:
    """Reads messages on a terminal, as ``LineReader`` does elsewhere. Enter sends; Alt-Enter, or a
    ``\\`` at the end, goes on in a new line; pasted lines stay together."""

    interactive = True

    def __init__(self, conversation: Conversation) -> None:
        self.interrupted = False
        """Whether the user left with Ctrl-C."""
        self._conversation = conversation
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=_continuation,
            key_bindings=_bindings(),
            history=_history(),
            completer=ChatCompleter(conversation),
            complete_while_typing=False,
            # A menu that goes when it is done with; readline's lists stay between the messages.
            complete_style=CompleteStyle.MULTI_COLUMN,
            bottom_toolbar=self._toolbar,
            style=_STYLE,
            enable_open_in_editor=True,
            enable_suspend=hasattr(os, "tcgetpgrp"),
            tempfile_suffix=".md",
            reserve_space_for_menu=_MENU_ROWS,  # while it is open
        )

    def read(self) -> str | None:
        """The next message that is not blank; None at the end, or after Ctrl-C twice."""
        warned = False
        while True:
            try:
                text = self._session.prompt()
            except EOFError:
                return None
            except KeyboardInterrupt:
                if warned:
                    self.interrupted = True
                    return None
                warned = True
                print(_LEAVES, file=sys.stderr, flush=True)
                continue
            if text.strip():
                return text.strip("\n")
            warned = False

    @staticmethod
    def keys() -> contextlib.AbstractContextManager[None]:
        """The keyboard between prompts: prompt_toolkit takes it from there and gives it back."""
        return quiet_keys()

    def _toolbar(self) -> str:
        turns = self._conversation.turns
        return toolbar(turns.session, think=turns.profile.chat.think, used=turns.used)


class ChatCompleter(Completer):
    """Commands, what they take, and files behind ``@``."""

    def __init__(self, conversation: Conversation) -> None:
        self._commands = conversation.commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        """What may stand at the cursor."""
        text = document.text_before_cursor
        mention = re.search(r"(?<!\S)@(\S*)$", text)
        if mention:
            return self._files(mention[1], event)
        if not text.startswith("/"):
            return ()
        name, space, rest = text.partition(" ")
        if not space:
            names = (f"{key} " if usage else key for key, (_, usage, _) in self._commands.items())
            return _starting(name, names)
        if name in _OF_FILES:
            return self._files(rest.removeprefix("--state").lstrip(), event)
        return _starting(rest.rpartition(",")[2] if name == "/spec" else rest, _words(name))

    def _files(self, start: str, event: CompleteEvent) -> Iterator[Completion]:
        yield from self._paths.get_completions(Document(start), event)


def _starting(start: str, words: Iterable[str]) -> Iterator[Completion]:
    return (Completion(word, -len(start)) for word in words if word.startswith(start))


def _words(command: str) -> list[str]:
    """What may follow a command."""
    if command == "/spec":
        return ["off", "on", "auto", *SPEC_TYPES]
    if command == "/think":
        return ["on", "off", "auto", "show", "expand", "fold"]
    if command == "/color":
        return ["on", "off"]
    if command == "/set":
        return [f"{name} " for name in sorted(Sampling.model_fields)]
    if command == "/profile":
        return [found.name for found in find_profiles()]
    return []


def _continuation(width: int, line: int, wraps: int) -> str:
    """What stands before lines after the first; one that is merely broken gets no sign."""
    return "  " if wraps else ". "


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion:
            buffer.complete_state = None  # it stands on the line; the next Enter sends
        elif buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("tab")
    def _(event: KeyPressEvent) -> None:
        _complete(event.current_buffer)

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-c")
    @bindings.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings


def _complete(buffer: Buffer) -> None:
    """Insert what all completions have in common, at once: keys may be waiting. The menu shows the
    rest, and walks through it."""
    if buffer.complete_state is not None:
        buffer.complete_next()
        return
    asked = CompleteEvent(completion_requested=True)
    found = list(buffer.completer.get_completions(buffer.document, asked))
    if len(found) == 1:
        buffer.apply_completion(found[0])
        return
    common = get_common_complete_suffix(buffer.document, found)
    if common:
        buffer.insert_text(common)
    if found:
        buffer.start_completion()


def _history() -> History:
    """Earlier messages of this user; of this chat alone where no file can be kept."""
    path = home_config_dir() / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return _History(path)


class _History(FileHistory):
    """A message is not lost because its history cannot be written."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Append ``string`` to the file."""
        with contextlib.suppress(OSError, UnicodeError):
            super().store_string(string)
