"""A llama-server of its own process that gets the same prompts, with the same model and settings.

For a fair pair: token ids are sent, so nobody adds a second BOS; nothing of an earlier run is in
its cache, and what a conversation has decoded so far is, as with us; one slot, the same threads,
context, cache types and flash attention; no probabilities. Its times are those that it measures
itself (``timings``: from the first token to the last), without HTTP.

Only greedy workloads are compared, because its random numbers are others.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from gguf_spec.bench import program as programs
from gguf_spec.bench.runner import BenchRun, Conversation, Prompt, Turn, common_prefix
from gguf_spec.bench.setups import BenchSetup
from gguf_spec.errors import InputError, RunError, UsageError
from gguf_spec.profile import Spec, draft_settings
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES

NAME = "llama-server"
_START_SECONDS = 300.0
_VERSION_SECONDS = 30.0
_ANSWER_SECONDS = 3600.0
_END_SECONDS = 1.0  # in which a process that has closed its connections ends
_TAIL = 4000  # bytes of the log that an error is looked for in
_LARGEST_LOG = 1 << 26  # bytes while it starts; a few kilobytes are usual
_LARGEST_ANSWER = 1 << 26
_LARGEST_VERSION = 1 << 16
_LEAST_SHARE = 0.5


class LlamaServer:
    """A running llama-server; close it, or use it as a context manager.

    ``peer_of`` is the set-up that it is compared with; ``options`` are further ones of its command
    line.

    Raises (constructor):
        UsageError: there is no such program.
        RunError: it did not start.
        InputError: it serves another model.
    """

    def __init__(
        self,
        program: str,
        session: Session,
        setup: BenchSetup,
        *,
        start_seconds: float = _START_SECONDS,
        options: Sequence[str] = (),
    ) -> None:
        self.name = f"{NAME} {setup.name}"
        self.peer_of = setup.name
        self._session = session
        self._limits: dict[str, list[int] | None] = {}
        path = find_program(program)
        self.version = _version(path)
        self.arguments = _arguments(session, setup)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [path, "-m", str(session.setup.path), *self.arguments, *options]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        try:
            self._process = programs.start(command, self._log)
        except OSError as error:
            self._log.close()
            raise RunError(f"{path} cannot be started: {error.strerror}") from error
        try:
            self._wait(start_seconds)
            self.build = self._check_model()
        except BaseException:
            self.close()
            raise

    def run(self, number: int, conversation: Conversation) -> BenchRun | None:
        """Decode all turns once; None if its text is another one from early on."""
        if conversation.prompts[0].params.sampling.temperature > 0.0:
            return None
        if conversation.name not in self._limits:
            whole = [prompt.params.max_tokens or -1 for prompt in conversation.prompts]
            found = self._decode(conversation, whole)
            self._limits[conversation.name] = common_limits(found, conversation)
        limits = self._limits[conversation.name]
        if limits is None:
            return None
        turns = self._decode(conversation, limits)
        return BenchRun(number, conversation.name, self.name, turns)

    def record(self) -> dict[str, Any]:
        """What it was, as JSON."""
        session = self._session.setup
        paths = {str(session.path), *(str(d.info.files[0]) for d in session.drafts)}
        shown = [Path(a).name if a in paths else a for a in self.arguments]
        return {
            "name": self.name,
            "peer_of": self.peer_of,
            "version": self.version,
            "build": self.build,
            "arguments": shown,
        }

    def peak_bytes(self) -> int | None:
        """The most memory that it has had resident."""
        return programs.peak(self._process)

    def close(self) -> None:
        """End the process, and what it may have started."""
        programs.end(self._process)
        self._log.close()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _decode(self, conversation: Conversation, limits: Sequence[int]) -> list[Turn]:
        return [
            self._answer(prompt, n_predict, first=index == 0)
            for index, (prompt, n_predict) in enumerate(
                zip(conversation.prompts, limits, strict=True)
            )
        ]

    def _answer(self, prompt: Prompt, n_predict: int, *, first: bool) -> Turn:
        """One completion. Raises RunError if the server gives none."""
        body = {
            "prompt": list(prompt.tokens),
            "n_predict": n_predict,
            "temperature": 0.0,
            "repeat_penalty": prompt.params.sampling.repeat_penalty,
            "cache_prompt": not first,
            "return_tokens": True,
            "n_probs": 0,
            "stream": False,
        }
        return turn_of(self.ask("/completion", body), len(prompt.tokens))

    def _wait(self, seconds: float) -> None:
        """Until it has loaded the model."""
        end = time.monotonic() + seconds
        while True:
            code = self._process.poll()
            if code is not None:
                raise RunError(
                    f"{NAME} ended with code {code} while it started{self._last_words()}",
                    hint="the same command by hand shows all of its log",
                )
            if self._log.seek(0, os.SEEK_END) > _LARGEST_LOG:
                raise RunError(f"{NAME} writes without end{self._last_words()}: is it {NAME}?")
            try:
                self.ask("/health", timeout=min(max(end - time.monotonic(), 0.1), 5.0))
                return
            except _NotAServerError:
                raise
            except RunError as error:
                if time.monotonic() > end:
                    raise RunError(
                        f"{NAME} was not ready after {seconds:.0f} s{self._last_words()}",
                        hint=error.message,
                    ) from None
                time.sleep(0.1)

    def _check_model(self) -> str:
        """What build it is. Raises InputError if it serves another model than ours."""
        props = self.ask("/props")
        ours = self._session.setup.path
        theirs = props.get("model_path")
        if theirs is not None and not _same_file(str(theirs), ours):
            raise InputError(f"the peer serves {theirs}, not {ours}")
        meta = self._meta()
        n_vocab = meta.get("n_vocab", props.get("n_vocab"))
        if n_vocab is not None and n_vocab != self._session.model.n_vocab:
            raise InputError(
                f"the peer serves another model: a vocabulary of {n_vocab} tokens, ours has "
                f"{self._session.model.n_vocab}"
            )
        size, file_bytes = meta.get("size"), self._session.setup.target.file_bytes
        if isinstance(size, int) and not 0.5 * file_bytes <= size <= file_bytes:
            raise InputError(
                f"the peer serves another model: {size} bytes of weights, our file has {file_bytes}"
            )
        return str(props.get("build_info", ""))

    def _meta(self) -> dict[str, Any]:
        """What it says of its model; nothing if it is an older one, which has no such address."""
        try:
            meta = self.ask("/v1/models")["data"][0]["meta"]
        except (RunError, LookupError, TypeError):
            return {}
        return meta if isinstance(meta, dict) else {}

    def ask(
        self, path: str, body: dict[str, Any] | None = None, *, timeout: float = _ANSWER_SECONDS
    ) -> dict[str, Any]:
        """GET or POST JSON. Raises RunError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                document = json.loads(_whole(answer))
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace")
            raise RunError(f"{NAME}{path}: {error.code} {said}") from error
        except (ValueError, RecursionError) as error:
            raise _NotAServerError(f"{NAME}{path}: no JSON: is it llama-server?") from error
        except (OSError, http.client.HTTPException) as error:
            code = self._exit_code(0.0 if body is None else _END_SECONDS)
            ended = "" if code is None else f"; it ended with code {code}{self._last_words()}"
            raise RunError(f"{NAME}{path}: {error}{ended}") from error
        if not isinstance(document, dict):
            raise _NotAServerError(f"{NAME}{path}: no JSON object: is it llama-server?")
        return document

    def _exit_code(self, seconds: float) -> int | None:
        """With what code it has ended; None if it has not, ``seconds`` from now."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _last_words(self) -> str:
        """The last line of its log that speaks of an error, or the last one."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(size - _TAIL, 0))
        text = self._log.read().decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = [line for line in lines if "error" in line.lower()] or lines
        return f": {said[-1]}" if said else ""


def turn_of(answer: Mapping[str, Any], n_prompt: int) -> Turn:
    """What a server has answered to a prompt of ``n_prompt`` tokens. It tells when the first token
    was there and when the last: the others have the time of the last.

    Raises:
        RunError: that is no answer of llama-server.
    """
    try:
        timings = answer["timings"]
        prefill = _seconds(timings["prompt_ms"])
        end = prefill + _seconds(timings["predicted_ms"])
        tokens = tuple(int(token) for token in answer["tokens"])
        cached = n_prompt - int(timings.get("prompt_n", 0))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{NAME}: an answer without {error}: is it llama-server?") from error
    times = (prefill, *([end] * (len(tokens) - 1))) if tokens else ()
    return Turn(tokens, times, n_prompt, cached)


def common_limits(turns: Sequence[Turn], conversation: Conversation) -> list[int] | None:
    """How many tokens of each turn to ask for, so that the texts agree: a server tells its time
    for whole answers only. None if a turn has less than half in common with ours."""
    limits = []
    for turn, prompt in zip(turns, conversation.prompts, strict=True):
        same = common_prefix(turn.tokens, prompt.reference)
        if same == len(prompt.reference):
            limits.append(prompt.params.max_tokens or -1)
        elif same >= _LEAST_SHARE * len(prompt.reference):
            limits.append(same)
        else:
            return None
    return limits


class _NotAServerError(RunError):
    """It answers, and as another program would."""


def _whole(answer: IO[bytes]) -> bytes:
    """All of an answer. Raises ValueError for one without end."""
    data = answer.read(_LARGEST_ANSWER + 1)
    if len(data) > _LARGEST_ANSWER:
        raise ValueError(f"more than {_LARGEST_ANSWER} bytes")
    return data


def _seconds(milliseconds: Any) -> float:
    """Raises ValueError, TypeError for what is no time."""
    seconds = float(milliseconds) / 1e3
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"times ({milliseconds!r} ms)")
    return seconds


def find_program(program: str) -> str:
    """The path of ``program``, a path or a name on PATH. Raises UsageError if it is not there."""
    path = os.path.expanduser(program)
    found = shutil.which(os.path.abspath(path) if os.path.isfile(path) else path)
    if found is None and os.path.isfile(path):
        raise UsageError(
            f"--peer: {program} is not executable", hint=f"chmod +x {program}, if it is a program"
        )
    if found is None:
        raise UsageError(
            f"--peer: there is no program {program}",
            hint=f"--peer {NAME}=PATH names one; for a fair pair build it from the sources inside "
            "the sdist of the installed llama-cpp-python",
        )
    return found


def spec_arguments(session: Session, setup: BenchSetup) -> list[str]:
    """llama-server's options for the drafting of ``setup``."""
    if not setup.types:
        return []
    spec = setup.spec or session.setup.profile.spec
    arguments = ["--spec-type", ",".join(setup.types)]
    for kind in setup.types:
        if kind in NGRAM_TYPES:
            arguments += _ngram_arguments(kind, spec)
            continue
        draft = next(d for d in session.setup.drafts if d.spec_type == kind)
        settings = draft_settings(spec, draft.spec_type)  # type: ignore[arg-type]
        index = session.setup.spec_types.index(kind)
        n_max = setup.ceilings.get(kind, session.setup.ceilings[index])
        arguments += ["--spec-draft-n-max", str(n_max), "--spec-draft-n-min", str(settings.n_min)]
        arguments += ["--spec-draft-p-min", f"{settings.p_min:g}"]
        if not draft.inside:
            arguments += ["-md", str(draft.info.files[0])]
    return arguments


def _ngram_arguments(kind: str, spec: Spec) -> list[str]:
    if kind == "ngram-cache":
        return []
    if kind == "ngram-mod":
        mod = spec.ngram_mod
        values = {"n-match": mod.n_match, "n-min": mod.n_min, "n-max": mod.n_max}
    else:
        table = getattr(spec, kind.replace("-", "_"))
        values = {"size-n": table.size_n, "size-m": table.size_m}
        if hasattr(table, "min_hits"):
            values["min-hits"] = table.min_hits
    return [
        part for name, value in values.items() for part in (f"--spec-{kind}-{name}", str(value))
    ]


def _arguments(session: Session, setup: BenchSetup) -> list[str]:
    """The options that make it decode as our context does."""
    params, target = session.context.params, session.setup.placed
    arguments: Sequence[object] = (
        *("-c", params.n_ctx, "-b", params.n_batch, "-ub", params.n_ubatch),
        *("-t", params.n_threads, "-tb", params.n_threads_batch),
        *("-fa", params.flash_attn, "-ctk", params.type_k, "-ctv", params.type_v),
        *("-np", 1, "-cram", 0, "--no-cache-prompt", "-ctxcp", 0, "--offline", "--no-webui"),
        *(("-ngl", target.n_gpu_layers) if target.n_gpu_layers != "auto" else ()),
        *(("-ncmoe", target.n_cpu_moe) if target.n_cpu_moe else ()),
        *spec_arguments(session, setup),
    )
    return [str(argument) for argument in arguments]


def _version(path: str) -> str:
    try:
        said = programs.said([path, "--version"], _LARGEST_VERSION, _VERSION_SECONDS)
    except OSError:
        return "unknown"
    text = said.decode("utf-8", "replace")
    return next((x.strip() for x in text.splitlines() if x.startswith("version")), "unknown")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _same_file(name: str, path: Path) -> bool:
    try:
        return os.path.samefile(name, path)
    except OSError:
        return False
