"""The probe as the program sees it: a question, and an answer or a ProbeError."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from gguf_spec.backend import ContextParams
from gguf_spec.errors import ProbeError
from gguf_spec.probe.files import write_headers
from gguf_spec.probe.request import (
    ProbeDraft,
    ProbeModel,
    ProbeResult,
    account_from,
    context_record,
)

TIMEOUT = 30.0  # seconds
_LEAST_MEMORY = 1 << 30
_MOST_WORDS = 1 << 16  # bytes of the child's stderr that are looked at

# The child has this program's own search path, not one with the current folder in front.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gguf_spec.probe.child import main; main()"
)
# The last is ggml's assertion that it got the memory it asked for.
_NO_MEMORY = ("bad_alloc", "MemoryError", "GGML_ASSERT(ctx->mem_buffer != NULL)")
# What Windows returns for a failed assertion, an access violation and a fast fail.
_WINDOWS = {3: "abort", 0xC0000005: "crash", 0xC0000409: "abort", 0xC00000FD: "crash"}


def probe(
    target: ProbeModel,
    context: ContextParams,
    draft: ProbeDraft | None = None,
    *,
    timeout: float = TIMEOUT,
    memory_limit: int | None = None,
    python: str = sys.executable,
) -> ProbeResult:
    """Ask libllama what ``target`` with a ``context`` takes, and ``draft`` beside it.

    The child may take ``timeout`` seconds and ``memory_limit`` bytes (half of what is free, at
    least 1 GiB, unless given). Nothing is left behind: no process and no file.

    Raises:
        ProbeError: there is no answer; ``kind`` tells why.
    """
    begun = perf_counter()
    if not python:  # an embedded interpreter
        raise ProbeError("start", "the probe cannot be started: there is no Python executable")
    try:
        with tempfile.TemporaryDirectory(prefix="gguf-spec-probe-") as name:
            folder = Path(name)
            limit = _free_half() if memory_limit is None else memory_limit
            request = _request(folder, target, context, draft) | {"memory_limit": limit}
            answer = _ask(request, folder, timeout, python)
    except OSError as error:
        raise ProbeError("start", f"the probe could not be started: {error}") from error
    if "error" in answer:
        raise ProbeError(str(answer["error"]["kind"]), str(answer["error"]["message"]))
    try:
        return ProbeResult(
            target=account_from(answer["target"]),
            draft=account_from(answer["draft"]) if answer["draft"] is not None else None,
            llama_cpp=str(answer["llama_cpp"]),
            seconds=perf_counter() - begun,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProbeError("failed", f"the probe's answer cannot be read: {error!r}") from error


def _request(
    folder: Path, target: ProbeModel, context: ContextParams, draft: ProbeDraft | None
) -> dict[str, Any]:
    record: dict[str, Any] = {
        "model": _model(folder / "target", target),
        "context": context_record(context),
        "draft": None,
    }
    if draft is not None:
        own = None if draft.model is None else _model(folder / "draft", draft.model)
        record["draft"] = {
            "model": own,
            "context": context_record(draft.context),
            "on_target": draft.on_target,
        }
    return record


def _model(folder: Path, model: ProbeModel) -> dict[str, Any]:
    try:
        path = write_headers(folder, model.files)
    except ProbeError:
        if model.path is None:
            raise
        path = model.path.absolute()
    return {"path": str(path), "params": asdict(model.params)}


def _ask(request: dict[str, Any], folder: Path, timeout: float, python: str) -> dict[str, Any]:
    """Run the child; returns its answer."""
    command = [python, "-c", _START, json.dumps([path or os.getcwd() for path in sys.path])]
    new_group: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        new_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    # Without GGML_NO_BACKTRACE an abort starts a debugger.
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "PYTHONIOENCODING": "utf-8"}
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            cwd=folder,
            env=environment,
            **new_group,
        )
        try:
            out, _ = child.communicate(json.dumps(request).encode(), timeout)
        except subprocess.TimeoutExpired:
            message = f"libllama said nothing for {timeout:g} seconds"
            raise ProbeError("timeout", message) from None
        finally:  # Ctrl-C comes through here, too
            _end(child)
        answer = _last_answer(out)
        if answer is None:
            raise _failure(child.returncode, _last_words(words))
    return answer


def _last_answer(out: bytes) -> dict[str, Any] | None:
    """The last whole line that is one: the child may get better answers before it ends."""
    for line in reversed(out.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict):
            return answer
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever it has started, and wait for it."""
    if sys.platform == "win32":
        child.kill()
    elif child.returncode is None:  # else its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    child.wait()


def _failure(code: int, words: list[str]) -> ProbeError:
    """The error for a child that ended with ``code`` without an answer."""
    assertion = [line for line in words if "GGML_ASSERT" in line or "GGML_ABORT" in line]
    said = (assertion or words or ["it said nothing"])[-1]
    if any(word in line for line in words for word in _NO_MEMORY):
        return ProbeError("memory", f"the probe ran out of memory ({said})")
    if sys.platform == "win32":
        kind = _WINDOWS.get(code & 0xFFFFFFFF, "failed")
        return ProbeError(kind, f"the probe ended with code {code:#x} ({said})")
    if code >= 0:
        return ProbeError("failed", f"the probe ended with code {code} ({said})")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    if -code == signal.SIGABRT:
        return ProbeError("abort", f"libllama aborted ({said})")
    if -code == signal.SIGKILL:
        return ProbeError("killed", "the probe was killed, perhaps for want of memory")
    return ProbeError("crash", f"libllama crashed with {name} ({said})")


def _last_words(words: IO[bytes]) -> list[str]:
    """The last lines of the child's stderr."""
    end = words.seek(0, os.SEEK_END)
    words.seek(max(end - _MOST_WORDS, 0))
    lines = words.read().decode("utf-8", "replace").splitlines()
    return [line.strip()[:300] for line in lines if line.strip()]


def _free_half() -> int:
    import psutil

    return max(int(psutil.virtual_memory().available) // 2, _LEAST_MEMORY)
