"""``gguf-spec chat``: a conversation in the terminal."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import typer

from gguf_spec.cli.options import (
    DebugOpt,
    GrammarOptions,
    ModelOptions,
    PredictOpt,
    QuietOpt,
    WhereArg,
    examples,
)
from gguf_spec.cli.output import Output, is_terminal

if TYPE_CHECKING:
    from gguf_spec.cli.conversation import Conversation
    from gguf_spec.cli.lines import LineReader
    from gguf_spec.cli.prompt_line import PromptLine
    from gguf_spec.cli.screen import Screen

EPILOG = examples(
    "gguf-spec chat",
    'gguf-spec chat model.gguf -d small.gguf --system "Answer in one sentence."',
    "printf 'Hello\\n/stats\\n' | gguf-spec chat model.gguf",
)


def chat(
    where: WhereArg = None,
    n_predict: PredictOpt = None,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    grammar: GrammarOptions = GrammarOptions(),  # noqa: B008 (frozen)
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Chat with a model. Lines that start with / are commands; /help lists them.

    Ctrl-C stops an answer and keeps what there is; Ctrl-D or /exit leaves. When stdin is not a
    terminal its lines are read one by one, blank ones aside, so that a chat can be scripted; the
    exit status is then 1 if a message got no answer, or a command failed.
    """
    from gguf_spec.cli.answer import prepare_setup, warn_about_template, warn_about_thinking
    from gguf_spec.cli.choice import make_profile, profile_name
    from gguf_spec.cli.constraint import Constraint
    from gguf_spec.cli.conversation import Conversation
    from gguf_spec.cli.first_run import offered
    from gguf_spec.cli.lines import LineReader
    from gguf_spec.cli.loaded import Loaded
    from gguf_spec.cli.turns import Turns

    out = Output.of(quiet=quiet, debug=debug)
    if where is None and options.model is None:
        where = offered(out)
    profile = make_profile(where, options)
    constraint = Constraint.of(grammar)
    setup = prepare_setup(profile, out, name=profile_name(where, options))
    with Loaded(setup, out) as loaded:
        warn_about_template(loaded.session, out)
        warn_about_thinking(loaded.session, profile, out)
        if constraint is not None:  # refused now rather than with the first answer
            constraint.mask(loaded.session, profile)
        max_tokens = None if n_predict is None or n_predict < 0 else n_predict
        interactive = LineReader().interactive
        turns = Turns(
            loaded,
            out,
            max_tokens,
            constraint=constraint,
            screen=_screen() if interactive else None,
            interactive=interactive,
        )
        conversation = Conversation(turns)
        reader = _reader(conversation)
        out.note("Type a message; /help lists the commands, /exit leaves.")
        with reader.keys():
            while not conversation.ended and (line := reader.read()) is not None:
                finish = conversation.take(line)
                if finish == "cancelled" and not reader.interactive:
                    raise typer.Exit(130)
    if reader.interrupted:
        raise typer.Exit(130)
    if conversation.failed and not reader.interactive:
        raise typer.Exit(1)


def _is_dumb() -> bool:
    return os.environ.get("TERM", "") in ("", "dumb", "unknown") and os.name != "nt"


def _screen() -> Screen | None:
    """Where answers are drawn; None where the output is no terminal, or is to be plain text."""
    if not is_terminal(sys.stdout) or os.environ.get("NO_COLOR") or _is_dumb():
        return None
    from gguf_spec.cli.screen import Screen

    return Screen(sys.stdout)


def _reader(conversation: Conversation) -> LineReader | PromptLine:
    """Who reads what is typed."""
    from gguf_spec.cli.lines import LineReader

    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)) or _is_dumb():
        return LineReader()
    from gguf_spec.cli.prompt_line import PromptLine

    return PromptLine(conversation)
