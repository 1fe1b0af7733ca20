"""``gguf-spec run``: one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_spec.cli import values
from gguf_spec.cli.options import (
    DebugOpt,
    GrammarOptions,
    JsonOpt,
    ModelOptions,
    PredictOpt,
    QuietOpt,
    WhereArg,
    examples,
)
from gguf_spec.cli.output import Output, is_terminal, print_json
from gguf_spec.errors import UsageError

if TYPE_CHECKING:
    from gguf_spec.profile import Profile
    from gguf_spec.session import Session

EPILOG = examples(
    'gguf-spec run -p "Why is the sky blue?"',
    'gguf-spec run model.gguf -p "Tell a joke" --temp 0.8 --seed 7',
    "gguf-spec run hf:owner/repo:Q4_K_M -d hf:owner/small:Q8_0 -f prompt.txt",
    'cat notes.txt | gguf-spec run -p "Summarize:" -n -1 > summary.txt',
    'gguf-spec run model.gguf -p "Rename x to y: ..." --predict-file code.py   expect the old text',
    'gguf-spec run model.gguf -p "Invent a person." --json-schema person.json',
    'gguf-spec run model.gguf --raw -p "Once upon a time" --json',
)
N_PREDICT = 256

PromptOpt = Annotated[
    str | None,
    typer.Option(
        "-p", "--prompt", metavar="TEXT", help="The prompt; piped text follows after a blank line."
    ),
]
FileOpt = Annotated[
    str | None,
    typer.Option(
        "-f", "--file", metavar="PATH", help="Read the prompt from a file; -: from stdin."
    ),
]
PredictFileOpt = Annotated[
    str | None,
    typer.Option(
        "--predict-file",
        metavar="PATH",
        help="The answer that is expected, such as the file to be edited: n-grams draft from it.",
    ),
]
RawOpt = Annotated[
    bool,
    typer.Option(
        "--raw", help="Send the prompt as it is, special tokens parsed, without a chat template."
    ),
]
LogprobsOpt = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        callback=values.whole(0, 20),
        help="With --json: the log-probability of each token, and the N likeliest in its place.",
    ),
]
AuditOpt = Annotated[
    bool,
    typer.Option(
        "--audit", help="Score the answer again in plain decoding, and report tokens that differ."
    ),
]


def run(
    ctx: typer.Context,
    where: WhereArg = None,
    prompt: PromptOpt = None,
    file: FileOpt = None,
    raw: RawOpt = False,
    n_predict: PredictOpt = N_PREDICT,
    predict_file: PredictFileOpt = None,
    options: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    grammar: GrammarOptions = GrammarOptions(),  # noqa: B008 (frozen)
    logprobs: LogprobsOpt = None,
    audit: AuditOpt = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Generate one answer and print it as it is made.

    The prompt comes from -p, from -f or from stdin. It is put into the model's chat template,
    unless --raw is given. Ctrl-C ends the answer and keeps what there is.
    """
    from gguf_spec.cli.answer import (
        audited_text,
        check_audit,
        open_session,
        predicted_tokens,
        prepare_setup,
        stream,
    )
    from gguf_spec.cli.choice import make_profile, profile_name
    from gguf_spec.cli.constraint import Constraint
    from gguf_spec.cli.prompts import PromptSource, read_text

    if raw and options.system is not None:
        raise UsageError("--raw sends no system message", hint="leave --system or --raw out")
    if logprobs is not None and not as_json:
        raise UsageError("--logprobs are part of the JSON document", hint="add --json")
    out = Output.of(as_json=as_json, quiet=quiet, debug=debug)
    source = PromptSource.of(prompt, file)
    profile = make_profile(where, options)
    text = source.read(raw=raw)
    expected = None if predict_file is None else read_text(predict_file, "--predict-file", raw=raw)
    constraint = Constraint.of(grammar)
    setup = prepare_setup(profile, out, name=profile_name(where, options))
    with open_session(setup, out) as session:
        tokens = _tokens(session, profile, text, raw, out)
        params = session.params(
            max_tokens=None if n_predict is None or n_predict < 0 else n_predict,
            predicted=()
            if expected is None
            else predicted_tokens(session, expected, "--predict-file", out.warning),
            mask=session.thinking.limited(
                tokens,
                profile.chat.think_budget,
                None if constraint is None else constraint.mask(session, profile, raw=raw),
            ),
            logprobs=logprobs,
        )
        if audit:
            check_audit(session, params)
        generation = stream(session, tokens, params, out)
        audited = audited_text(generation, out) if audit else None
        report = generation.report()
    _tell(session, report, audited, out)


def _tell(session: Session, report: dict[str, Any], audited: str | None, out: Output) -> None:
    """What follows the text of an answer, and the exit code."""
    from gguf_spec.cli.answer import show_warnings
    from gguf_spec.cli.summary import answer_line

    if out.mode == "json":
        print_json(report)
    elif report["text"] and not report["text"].endswith("\n"):
        out.text("\n")
    show_warnings(session, out)
    if is_terminal(sys.stdout):
        out.note("")
    out.note(answer_line(report))
    if audited is not None:
        out.say(audited)
    if report["finish_reason"] == "cancelled":
        raise typer.Exit(130)
    if audited is not None and report["audit"]["verdict"] == "broken":
        raise typer.Exit(1)


def _tokens(session: Session, profile: Profile, text: str, raw: bool, out: Output) -> list[int]:
    from gguf_spec.cli.answer import warn_about_template, warn_about_thinking
    from gguf_spec.prompt import template_arguments
    from gguf_spec.prompt_size import check_size

    check_size(session.setup.target, session.context.n_ctx, text)
    if raw:
        return session.raw_prompt(text)
    warn_about_template(session, out)
    warn_about_thinking(session, profile, out)
    messages = [{"role": "user", "content": text}]
    if profile.chat.system:
        messages.insert(0, {"role": "system", "content": profile.chat.system})
    return session.chat_prompt(messages, **template_arguments(profile))
