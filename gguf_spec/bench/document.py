"""All that was measured, as one JSON document."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from gguf_spec import __version__
from gguf_spec.backend import list_devices
from gguf_spec.bench.compare import comparison, overall, practice
from gguf_spec.bench.runner import BenchRun, Runner
from gguf_spec.bench.setups import PLAIN
from gguf_spec.errors import GgufSpecError, InputError
from gguf_spec.session import Session

FORMAT = "gguf-spec bench"
VERSION = 1
_CHUNK = 1 << 22


@dataclass(slots=True)
class Measured:
    """The runs so far, and what surrounds them. ``peers`` tell what each peer was. ``complete`` is
    False if the rest was interrupted, or could not be done because of ``error``."""

    runner: Runner
    runs: list[BenchRun] = field(default_factory=list)
    peers: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    complete: bool = False
    error: GgufSpecError | None = None
    seconds: float = 0.0


def document(measured: Measured, model: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """The record of ``measured`` on ``model`` (see ``model_facts``), made by ``command``. All its
    texts are ``cleaned``."""
    runner = measured.runner
    comparisons, theory = _compared(measured)
    by_setup: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in comparisons:
        by_setup.setdefault((one["setup"], one["baseline"]), []).append(one)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(described(command)),
        "complete": measured.complete,
        "seconds": measured.seconds,
        "versions": versions(runner.session),
        "machine": machine(),
        "model": model,
        "settings": settings(runner.session),
        "setups": [setup.record() for setup in runner.setups],
        "peers": measured.peers,
        "workloads": [_workload(runner, i) for i in range(len(runner.conversations))],
        "skipped": runner.skipped,
        "overall": [overall(group) for group in by_setup.values()],
        "comparisons": comparisons,
        "theory": theory,
        "peak_memory": {
            "resident_bytes": measured.peak_bytes,
            "buffers": buffers(runner.session),
        },
        "runs": [_run(run) for run in measured.runs],
    }
    return {key: cleaned(value) for key, value in record.items()}


def cleaned(value: Any) -> Any:
    """``value``, of JSON, with texts of one line in which all can be shown and written: names of
    files may hold line breaks, what a terminal obeys, and bytes that are no UTF-8.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(value, str):
        if value.isprintable():
            return value
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _compared(measured: Measured) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every set-up with plain decoding and with its peers; and theory beside practice."""
    runner = measured.runner
    by_side: dict[tuple[str, str], list[BenchRun]] = {}
    for run in measured.runs:
        by_side.setdefault((run.workload, run.setup), []).append(run)
    against = [(setup.name, PLAIN) for setup in runner.setups if setup.name != PLAIN]
    against += [(peer.peer_of, peer.name) for peer in runner.peers]
    comparisons, theory = [], []
    for setup, base in against:
        for conversation in runner.conversations:
            name = conversation.name
            ours, theirs = by_side.get((name, setup)), by_side.get((name, base))
            if not ours or not theirs:
                continue
            found = runner.differences.get((name, setup)) if base == PLAIN else None
            comparisons.append(comparison(theirs, ours, found))
            if base == PLAIN and (beside := practice(theirs, ours)) is not None:
                theory.append({"setup": setup, "workload": name, **beside})
        if base == PLAIN:
            every = practice(
                [run for run in measured.runs if run.setup == base],
                [run for run in measured.runs if run.setup == setup],
            )
            if every is not None:
                theory.append({"setup": setup, "workload": None, **every})
    return comparisons, theory


def _workload(runner: Runner, index: int) -> dict[str, Any]:
    conversation = runner.conversations[index]
    workload, prompts = conversation.workload, conversation.prompts
    return {
        "name": workload.name,
        "description": workload.description,
        "sha256": workload.digest,
        "shipped": workload.shipped,
        "turns": len(prompts),
        "prompt_tokens": [len(prompt.tokens) for prompt in prompts],
        "completion_tokens": [len(prompt.reference) for prompt in prompts],
        "max_tokens": prompts[0].params.max_tokens,
        "seed": prompts[0].params.sampling.seed,
        "sampling": prompts[0].params.sampling.described(),
        "predicted_tokens": len(prompts[-1].params.predicted),
    }


def _run(run: BenchRun) -> dict[str, Any]:
    tally = run.tally
    return {
        "round": run.round,
        "workload": run.workload,
        "setup": run.setup,
        "prefill_seconds": run.prefill_seconds,
        "decode_seconds": run.decode_seconds,
        "overhead_seconds": run.overhead_seconds,
        "draft_seconds": tally.draft_seconds + tally.idle_draft_seconds,
        "tokens": run.n_tokens,
        "cached_tokens": sum(turn.cached for turn in run.turns),
        "finish_reasons": [turn.finish_reason for turn in run.turns],
        "steps": tally.steps,
        "num_drafts": tally.drafted,
        "num_draft_tokens": tally.n_drafted,
        "num_accepted_tokens": tally.n_accepted,
        "accepted_per_position": run.positions,
        "by_type": run.by_type,
        "events": run.events,
    }


def settings(session: Session) -> dict[str, Any]:
    """How the target's context was made."""
    params, spec = session.context.params, session.setup.profile.spec
    return {
        "n_ctx": params.n_ctx,
        "n_batch": params.n_batch,
        "n_ubatch": params.n_ubatch,
        "n_threads": params.n_threads,
        "n_threads_batch": params.n_threads_batch,
        "type_k": params.type_k,
        "type_v": params.type_v,
        "flash_attn": params.flash_attn,
        "verify": spec.verify,
        "exact": spec.exact,
    }


def model_facts(session: Session, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """What was measured: the target and its drafts, with hashes of their files.

    Raises:
        InputError: a file cannot be read.
    """
    setup = session.setup
    drafts = [draft for draft in setup.drafts if draft.spec_type in session.spec_types]
    outside = [draft for draft in drafts if not draft.inside]
    files = [*setup.target.files, *(f for draft in outside for f in draft.info.files)]
    size = sum(os.path.getsize(file) for file in files)
    done = 0

    def hashed(names: Sequence[str | Path]) -> list[dict[str, Any]]:
        nonlocal done
        found = []
        for name in names:
            digest = hashlib.sha256()
            before = done
            try:
                with open(name, "rb") as file:
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                        done += len(chunk)
                        progress(done, size)
            except OSError as error:
                raise InputError(f"{name}: {error.strerror}") from error
            item = {"file": Path(name).name, "bytes": done - before, "sha256": digest.hexdigest()}
            found.append(item)
        return found

    target = setup.target
    return {
        "ref": ref_name(setup.ref),
        "arch": target.arch,
        "quant": target.quant,
        "files": hashed(target.files),
        "drafts": [
            {"type": draft.spec_type, "ref": ref_name(draft.ref), "files": hashed(draft.info.files)}
            for draft in outside
        ],
    }


def buffers(session: Session) -> list[dict[str, Any]]:
    """What libllama holds for the target and for each draft context, in bytes by device."""
    owners = [("target", session.context), *session.draft_contexts.items()]
    found = []
    for owner, context in owners:
        for one in context.memory_breakdown().buffers:
            sizes = {"weights": one.model, "cache": one.context, "compute": one.compute}
            found.append({"owner": owner, "buffer": one.buffer, "device": one.device, **sizes})
    return found


def versions(session: Session) -> dict[str, str]:
    """Of everything that decides about speed."""
    found = {"gguf-spec": __version__, "python": platform.python_version()}
    found["libllama"] = session.model.lib.version
    for name in ("llama-cpp-python", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What it ran on, without anything that tells whose it is."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.partition(":") for line in file)
            cpu = next((v.strip() for k, _, v in lines if k.strip() == "model name"), cpu)
    return {
        "cpu": cpu,
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "devices": [
            {"name": device.name, "description": device.description, "bytes": device.total}
            for device in list_devices()
            if device.kind != "cpu"
        ],
    }


def ref_name(ref: str) -> str:
    """A reference without folders of this machine."""
    return Path(ref).name if os.path.exists(ref) else ref


def described(command: Sequence[str]) -> list[str]:
    """A command line without folders of this machine."""
    return [_described(argument) for argument in command]


def _described(argument: str) -> str:
    name, equals, value = argument.rpartition("=")
    if os.sep in value and (os.path.exists(value) or value.startswith(os.sep)):
        value = Path(value).name
    return f"{name}{equals}{value}"


def own_command() -> list[str]:
    """The command line of this process."""
    return ["gguf-spec", *sys.argv[1:]]
