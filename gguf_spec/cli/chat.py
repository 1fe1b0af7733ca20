"""``gguf-spec chat``: a conversation in the terminal."""

from __future__ import annotations

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
from gguf_spec.cli.output import Output

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
    terminal its lines are read one by one, blank ones aside, so that a chat can be scripted.
    """
    from gguf_spec.cli.answer import open_session, prepare_setup, warn_about_template
    from gguf_spec.cli.choice import make_profile, profile_name
    from gguf_spec.cli.constraint import Constraint
    from gguf_spec.cli.conversation import Conversation
    from gguf_spec.cli.lines import LineReader

    out = Output.of(quiet=quiet, debug=debug)
    profile = make_profile(where, options)
    constraint = Constraint.of(grammar)
    setup = prepare_setup(profile, out, name=profile_name(where, options))
    with open_session(setup, out) as session:
        warn_about_template(session, out)
        max_tokens = None if n_predict is None or n_predict < 0 else n_predict
        conversation = Conversation(session, out, max_tokens)
        if constraint is not None:
            conversation.mask = constraint.mask(session, profile)
        reader = LineReader()
        out.note("Type a message; /help lists the commands, /exit leaves.")
        while not conversation.ended and (line := reader.read()) is not None:
            finish = conversation.take(line)
            if finish == "cancelled" and not reader.interactive:
                raise typer.Exit(130)
    if reader.interrupted:
        raise typer.Exit(130)
