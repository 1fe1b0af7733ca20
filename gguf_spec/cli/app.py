"""Assembles the commands, and turns errors into text: the only place that does.

Nothing heavy is imported here. A command imports what it needs when it runs, so that ``--help``
answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from gguf_spec import __version__
from gguf_spec.cli import (
    bench,
    chat,
    doctor,
    inspect,
    models,
    plan,
    profiles,
    pull,
    run,
    tune,
    verify,
)
from gguf_spec.cli.groups import check_values, flat
from gguf_spec.cli.options import DebugOpt, examples
from gguf_spec.cli.output import State, print_json, printable, shortened
from gguf_spec.errors import GgufSpecError, ProfileError

NAME = "gguf-spec"
# typer has click inside or beside it, depending on its version; its own exports lead there.
_ClickUsageError: Any = typer.BadParameter.__mro__[1]

_COMPLETION = "_GGUF_SPEC_COMPLETE"
_interrupted = False
_told = False  # why the program ends, or all that it was asked for
_START = """\
Start with one of these; no model is needed beforehand:

  gguf-spec chat                       a chat, with a model of yours or the demo model
  gguf-spec run -p "Why is the sky blue?"
  gguf-spec doctor                     what this machine can do

A model is a GGUF file, or hf:owner/repo:QUANT, or ollama:name:

  gguf-spec chat path/to/model.gguf
"""

app = typer.Typer(
    name=NAME,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        'gguf-spec run -p "Why is the sky blue?"      the demo model',
        "gguf-spec chat model.gguf -d small.gguf      chat, drafting with a smaller model",
        "gguf-spec plan model.gguf                    what fits, and with which draft",
        "gguf-spec inspect model.gguf                 what is in a file",
        "gguf-spec doctor                             what works on this machine",
    ),
)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    debug: DebugOpt = False,
) -> None:
    """Run quantized GGUF models with speculative decoding."""
    if ctx.invoked_subcommand is None:
        print(_START)
        print(ctx.get_help())


app.command(epilog=run.EPILOG, short_help="Generate one answer.")(flat(run.run))
app.command(epilog=chat.EPILOG, short_help="Chat in the terminal.")(flat(chat.chat))
app.command(epilog=plan.EPILOG, short_help="Show what fits into memory, and where.")(
    flat(plan.plan)
)
app.command(epilog=inspect.EPILOG, short_help="Show what is in a GGUF file.")(inspect.inspect)
app.command(epilog=pull.EPILOG, short_help="Download a model.")(pull.pull)
app.command(epilog=models.EPILOG, short_help="List the models on this machine.")(models.models)
app.command(epilog=verify.EPILOG, short_help="Measure whether drafting changes the text here.")(
    flat(verify.verify)
)
app.command(epilog=bench.EPILOG, short_help="Measure drafting beside plain decoding.")(
    flat(bench.bench)
)
app.command(epilog=tune.EPILOG, short_help="Find the best drafting for this machine and prompts.")(
    flat(tune.tune)
)
app.add_typer(profiles.app, name="profiles", short_help="List, show, check and write profiles.")
app.command(epilog=doctor.EPILOG, short_help="Show what works on this machine.")(doctor.doctor)
check_values(app)


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGINT, _on_interrupt)
    sys.unraisablehook = _on_unraisable
    # A parent may have closed them; what is written then goes nowhere, as for other programs.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if _COMPLETION in os.environ:  # a shell asks what may follow; its script calls us so
        app(prog_name=NAME)
    global _told
    try:
        code = run_cli(sys.argv[1:])
        _told = True
        # Nothing is left to be cancelled, and Python would die of the signal while it ends.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:  # while an error was being handled, or too late for one
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = 130
        if not _told:
            _fail("KeyboardInterrupt", "interrupted", None, code, "--json" in sys.argv)
    # An interrupt inside of exec(), which makes dataclasses, leaves a mark: `python -m` would then
    # die of the signal instead of exiting. The next exec() wipes it off (run_eval_code_obj in
    # CPython's pythonrun.c).
    exec("")
    sys.exit(code)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


def _on_unraisable(unraisable: Any) -> None:
    """An interrupt in a callback of libllama gets no further: the process ends there instead."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    code = _fail("KeyboardInterrupt", "interrupted", None, 130, "--json" in sys.argv)
    sys.stdout.flush()
    os._exit(code)


def run_cli(arguments: Sequence[str]) -> int:
    """Run one command line in this process and return its exit code."""
    state = State()
    as_json = "--json" in arguments
    try:
        command = typer.main.get_command(app)
        with command.make_context(NAME, list(arguments), obj=state) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except BrokenPipeError:
        # Whoever read has enough (`| head -1`).
        _forget_stdout()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _fail("KeyboardInterrupt", "interrupted", None, 130, as_json)
    except _ClickUsageError as error:
        message = error.format_message()
        path = error.ctx.command_path if error.ctx else NAME
        return _fail("UsageError", _lower(message), f"see {path} --help", 2, as_json)
    except GgufSpecError as error:
        if state.debug:
            traceback.print_exc()
        more = {"problems": list(error.problems)} if isinstance(error, ProfileError) else {}
        kind = type(error).__name__
        return _fail(kind, error.message, error.hint, error.exit_code, as_json, **more)
    except Exception as error:
        if _interrupted:  # a library may have made another exception of it, as an import does
            return _fail("KeyboardInterrupt", "interrupted", None, 130, as_json)
        if state.debug:
            traceback.print_exc()
        return _unexpected(error, as_json)


def _unexpected(error: Exception, as_json: bool) -> int:
    """Fail with an error that nobody raised on purpose."""
    kind = type(error).__name__
    if isinstance(error, MemoryError):
        hint = "choose a smaller -c/--ctx-size or a smaller model"
        return _fail("NoFitError", "there is not enough memory", hint, 4, as_json)
    if isinstance(error, OSError):
        _forget_stdout()  # it may be what cannot be written to
        name = f"{error.filename}: " if error.filename else ""
        return _fail(kind, f"{name}{error.strerror or error}", "--debug shows more", 1, as_json)
    return _fail(kind, f"unexpected {kind}: {error}", "--debug shows more", 1, as_json)


def _fail(
    kind: str, message: str, hint: str | None, code: int, as_json: bool, **more: object
) -> int:
    """Say what went wrong, on stderr and for ``--json`` on stdout too; gives back ``code``."""
    global _told
    _told = True
    try:
        if as_json:
            print_json({"error": {"type": kind, "message": message, "hint": hint, **more}})
        print(f"error: {shortened(printable(message))}", file=sys.stderr)
        if hint:
            print(f"hint: {shortened(printable(hint))}", file=sys.stderr, flush=True)
    except OSError:
        _forget_stdout()
    return code


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _forget_stdout() -> None:
    """Let what is still in stdout's buffer go nowhere: Python flushes it once more at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError, AttributeError):
        pass
