"""Loading a model and streaming an answer, as ``run`` and ``chat`` both do it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from gguf_spec.cli.keys import restore_terminal
from gguf_spec.cli.output import Output
from gguf_spec.cli.summary import counted, exact_line, setup_line
from gguf_spec.errors import UsageError

if TYPE_CHECKING:
    from gguf_spec.generation import Generation, GenerationParams
    from gguf_spec.profile import Profile
    from gguf_spec.session import Session
    from gguf_spec.setup import Setup


def prepare_setup(profile: Profile, out: Output, *, name: str = "") -> Setup:
    """Find and check the files of ``profile``, say what will be loaded. Errors as ``prepare``."""
    from gguf_spec.setup import prepare

    with out.wait("looking at the model") as wait:
        setup = prepare(profile, name=name, progress=wait.stage)
    for warning in setup.warnings:
        out.warning(warning)
    for remark in setup.remarks:
        out.remark(remark)
    out.note(setup_line(setup))
    return setup


def open_session(setup: Setup, out: Output, *, least_width: int = 1) -> Session:
    """Load the models. Errors as ``Session``."""
    with out.wait("loading") as wait:
        from gguf_spec.backend import recent_log
        from gguf_spec.session import Session

        recent_log().echo = out.debug
        session = Session(
            setup,
            progress=wait.fraction,
            report=lambda what, done, total: wait.update(done, total, what),
            least_width=least_width,
        )
    show_warnings(session, out)
    if setup.profile.spec.exact:
        out.note(exact_line(session))
    return session


def show_warnings(session: Session, out: Output) -> None:
    """Say what has come up; ``out`` says nothing twice."""
    for warning in session.warnings:
        out.warning(warning)


def predicted_tokens(
    session: Session, text: str, what: str, warn: Callable[[str], None]
) -> tuple[int, ...]:
    """The expected answer as tokens; if it is of no use a warning that says why, and none.

    ``what`` is the option or command that named it.
    """
    from gguf_spec.setup import NGRAM_TYPES

    if not text:
        warn(f"{what}: the file is empty, and ignored")
        return ()
    types = session.spec_types
    if not any(kind in NGRAM_TYPES for kind in types):
        warn(
            f"{what} is NOT used: n-grams draft from it, and the spec type is "
            f"{', '.join(types) or 'none'} (--spec-type {','.join((NGRAM_TYPES[0], *types))})"
        )
        return ()
    return tuple(session.model.tokenize(text))


def warn_about_template(session: Session, out: Output) -> None:
    """Say that the chat format is a guess, where it is one."""
    if session.template.is_fallback:
        out.warning(
            "this model has no chat template: the prompt is written as ChatML, which the model may "
            "not know (--raw sends it as it is)"
        )


def warn_about_thinking(session: Session, profile: Profile, out: Output) -> None:
    """Say what of the profile's wishes about reasoning this model cannot follow."""
    chat, arguments = profile.chat, session.template.arguments
    known = session.thinking.format is not None
    if chat.think == "off" and known and not arguments & {"enable_thinking", "thinking"}:
        out.warning(
            "--think off has no effect: this model's chat template has no switch for it "
            "(--think-budget 0 ends the reasoning where it begins)"
        )
    if chat.think == "on" and not known:
        out.warning("--think on has no effect: this model's chat template knows no reasoning")
    if chat.reasoning_effort != "auto" and "reasoning_effort" not in arguments:
        out.warning("--reasoning-effort has no effect: this model's chat template does not take it")
    if chat.think_budget >= 0 and not known:
        out.warning("--think-budget has no effect: this model's chat template knows no reasoning")


def stream(
    session: Session, prompt: Sequence[int], params: GenerationParams, out: Output
) -> Generation:
    """Generate, showing text as it is made. Ctrl-C ends the answer and keeps what there is.

    Raises:
        PromptError: the prompt is empty or longer than the context.
        SecondInterrupt: on a second Ctrl-C.
    """
    generation = session.generate(prompt, params)
    shown = 0
    with cancelled_by_interrupt(generation), contextlib.closing(iter(generation)) as deltas:  # type: ignore[type-var]
        with out.wait("reading the prompt", unit="tokens") as wait:
            wait.update(0, len(prompt))
            for delta in deltas:
                if delta.tokens:
                    break
                wait.update(delta.prefilled, delta.n_prompt)
        out.text(generation.text)
        shown = len(generation.text)
        for delta in deltas:
            out.text(delta.text)
            shown += len(delta.text)
    out.text(generation.text[shown:])  # what cancelling gave back
    told_events(generation, out)
    return generation


def told_events(generation: Generation, out: Output) -> None:
    """Show where drafters failed, to somebody who debugs."""
    for event in generation.events:
        if out.debug and event.trace:
            out.say(event.trace.rstrip())


def check_audit(session: Session, params: GenerationParams) -> None:
    """Refuse to audit what will not be the text of the seed. Raises UsageError."""
    if session.sequence.stack.sampling.rule_for(params.sampling) == "residual":
        raise UsageError(
            "--audit compares with the text of the seed, and residual verification keeps the "
            "distribution of texts instead",
            hint="--verify match",
        )


def audited_text(generation: Generation, out: Output) -> str:
    """Score the answer again in plain decoding, and tell what came of it."""
    with out.wait("scoring the answer again"):
        result = generation.audit()
    model = generation.session.model
    lines = [f"audit: {counted(result.checked, 'token')} checked, {result.verdict}"]
    for one in result.differing:
        token, expected = (model.special_text(t) for t in (one.token, one.expected))
        gap = "is forbidden there" if one.gap == math.inf else f"is behind by {one.gap:.4g}"
        lines.append(
            f"  token {one.index}: plain decoding has {expected!r} ({one.expected}); {token!r} "
            f"({one.token}) {gap}, widths of batches make {result.noise:.4g}"
        )
    return "\n".join(lines)


class SecondInterrupt(KeyboardInterrupt):
    """Ctrl-C once more, while an answer is being cancelled: the user wants to leave."""


@contextlib.contextmanager
def cancelled_by_interrupt(generation: Generation) -> Iterator[None]:
    """Within it, Ctrl-C cancels ``generation``; the second one is a SecondInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    pressed = 0

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise SecondInterrupt
        generation.cancel()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        with quit_when_stuck():
            yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def quit_when_stuck() -> Iterator[None]:
    """End the process on a second Ctrl-C that Python cannot answer within a second.

    Python runs its signal handlers between two calls of libllama, and a prompt chunk of a large
    model on a CPU is a long call. Its wake-up pipe is written at once, so a thread reads that; it
    sleeps otherwise, and costs the decoding thread nothing.
    """
    if not hasattr(os, "set_blocking"):
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    done = threading.Event()

    def watch() -> None:
        pressed = 0
        while number := os.read(reader, 1):
            pressed += number[0] == signal.SIGINT
            if pressed > 1 and not done.wait(1.0):
                restore_terminal()
                os._exit(130)
        os.close(reader)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
