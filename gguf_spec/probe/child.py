"""The probe's child process: JSON in on stdin, one line of JSON out, libllama's noise on stderr.

It is expected to abort, crash or run out of memory now and then; nothing here tries to survive.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

from gguf_spec.backend import ContextParams, ModelParams, load_lib
from gguf_spec.backend.breakdown import (
    MIB,
    BufferBytes,
    grow,
    logged_bytes,
    memory_breakdown,
    size_lines,
    without_weights,
)
from gguf_spec.backend.lib import Lib
from gguf_spec.backend.log import LOG
from gguf_spec.backend.model import load_error, raw_model_params
from gguf_spec.backend.params import raw_context_params
from gguf_spec.errors import BackendError, GgufSpecError, NoFitError
from gguf_spec.hidden_states import NEXTN
from gguf_spec.probe.request import params_from

_NO_FILE_MAPPING = 0  # LLAMA_LOAD_MODE_NONE: the others assert that memory is allocated
_PR_SET_PDEATHSIG = 1
_MOST_ON_DEVICE = 1 << 30


def main() -> None:
    """Answer one request. Ends the process without freeing anything."""
    answer_to = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not be taken for the answer
    request = json.load(sys.stdin)
    _confine()
    stream = os.fdopen(answer_to, "w", encoding="utf-8")
    try:
        answer = _answer(request, lambda record: _write(stream, record))
    except GgufSpecError as error:
        kind = "memory" if isinstance(error, NoFitError) else "refused"
        answer = {"error": {"kind": kind, "message": error.message}}
    except MemoryError:
        answer = {"error": {"kind": "memory", "message": "out of memory"}}
    _write(stream, answer)
    os._exit(0)


def _write(stream: IO[str], answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _confine() -> None:
    """No core dumps, and not a moment without a parent."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_memory(n_bytes: int) -> None:
    """Let the process take ``n_bytes`` more than it has; Linux alone keeps to it.

    Not RLIMIT_AS: GPU drivers reserve more addresses than there is memory.
    """
    if sys.platform != "linux":
        return
    import resource

    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + n_bytes, now + n_bytes))


def _answer(
    request: Mapping[str, Any], write: Callable[[Mapping[str, Any]], None]
) -> dict[str, Any]:
    """The answer to ``request``. If ``write`` has been called with one before, this is better."""
    LOG.echo = True  # what an abort leaves behind
    lib = load_lib()
    _limit_memory(int(request["memory_limit"]))
    keep: list[Any] = []
    model = _load(lib, request["model"], keep)
    budget = int(request["memory_limit"]) // 2
    context, account = _measure(lib, model, request["context"], budget)
    answer: dict[str, Any] = {"llama_cpp": lib.version, "target": account, "draft": None}
    draft = request["draft"]
    if draft is not None:
        own = draft["model"]
        draft_model = model if own is None else _load(lib, own, keep)
        other = context if draft["on_target"] else None
        _, account = _measure(lib, draft_model, draft["context"], budget, other)
        if own is None:
            buffers = [BufferBytes(**item) for item in account["buffers"]]
            account["buffers"] = [asdict(item) for item in without_weights(buffers)]
        answer["draft"] = account
    layers = params_from(ContextParams, request["context"]).layers
    if layers and answer["target"]["source"] == "walker":
        write(answer)
        _reserve_for_states(lib, context, layers, answer["target"], lambda: write(answer))
    return answer


def _reserve_for_states(
    lib: Lib,
    context: int,
    layers: tuple[int, ...],
    account: dict[str, Any],
    done: Callable[[], None],
) -> None:
    """Have compute buffers laid out for the hidden states ``layers``, too, and end the process.

    libllama does that at the beginning of the next decode, which cannot go on from there without
    memory. It logs what it has laid out: then the account is taken, and that is the end.
    """
    for layer in sorted(set(layers) - {NEXTN}):
        lib.extra("llama_set_embeddings_layer_inp")(context, layer, True)
    if NEXTN in layers:
        lib.extra("llama_set_embeddings_nextn")(context, True, False)
    if set(layers) == {NEXTN}:  # for which nothing is laid out anew
        account["states"] = True
        return
    before = {item["buffer"]: item for item in account["buffers"]}

    def watch(level: int, text: bytes, _: object) -> None:
        if b"compute buffer size" not in text:
            return
        for item in memory_breakdown(lib, context, untested=True):
            # Snapshots, which were multiplied up, are not in this account.
            before[item.buffer]["compute"] += item.compute - base[item.buffer]
        account["states"] = True
        done()
        os._exit(0)

    base = {item.buffer: item.compute for item in memory_breakdown(lib, context, untested=True)}
    callback = lib.api.llama_log_callback(watch)
    lib.api.llama_log_set(callback, ctypes.c_void_p(0))
    token = (ctypes.c_int32 * 1)(0)
    lib.api.llama_decode(context, lib.api.llama_batch_get_one(token, 1))


def _load(lib: Lib, record: Mapping[str, Any], keep: list[Any]) -> int:
    """The address of a model without weights."""
    raw = raw_model_params(lib.api, params_from(ModelParams, record["params"]), keep)
    raw.no_alloc, raw.load_mode = True, _NO_FILE_MAPPING
    mark = LOG.mark()
    handle = lib.api.llama_model_load_from_file(str(record["path"]).encode(), raw)
    if not handle:
        raise load_error("libllama could not load the header", mark, is_file=True)
    return int(handle)


def _measure(
    lib: Lib, model: int, record: Mapping[str, Any], budget: int, other: int | None = None
) -> tuple[int, dict[str, Any]]:
    """A context on ``model``, and its account.

    Snapshots of a recurrent state are allocated for real. One tells how large they are; if all of
    them are within ``budget`` bytes, they are made, for compute buffers grow with them in steps
    that cannot be told otherwise. If not, their number is multiplied up.
    """
    params = params_from(ContextParams, record)
    wanted = int(raw_context_params(lib.api, params).n_rs_seq)
    context, account = _context(lib, model, params, 0 if wanted > 1 else wanted, other)
    if wanted > 1:
        second, more = _context(lib, model, params, 1, other)
        lib.api.llama_free(second)
        one = {item.buffer: item for item in more["buffers"]}
        grown = [grow(item, one, wanted) for item in account["buffers"]]
        whole = None
        if _is_affordable(account["buffers"], grown, budget):
            with contextlib.suppress(GgufSpecError):
                whole = _context(lib, model, params, wanted, other)
        if whole is not None:
            lib.api.llama_free(context)
            context, account = whole
        else:
            account |= {"buffers": grown, "extrapolated": True}
    account["buffers"] = [asdict(item) for item in account["buffers"]]
    return context, account


def _is_affordable(before: list[BufferBytes], after: list[BufferBytes], budget: int) -> bool:
    """Whether caches may grow so much; on a device, where others may be at work, by little."""
    host = device = 0
    for old, new in zip(before, after, strict=True):
        growth = new.context - old.context
        host, device = host + growth * old.host, device + growth * (not old.host)
    return host <= budget and device <= _MOST_ON_DEVICE


def _context(
    lib: Lib, model: int, params: ContextParams, n_rs_seq: int, other: int | None
) -> tuple[int, dict[str, Any]]:
    api = lib.api
    raw = raw_context_params(api, params)
    raw.n_rs_seq = n_rs_seq
    if other is not None:
        raw.ctx_other = other
    mark = LOG.mark()
    handle = api.llama_init_from_model(model, raw)
    if not handle:
        raise load_error(f"libllama could not make a context of {params.n_ctx} tokens", mark)
    logged, output = logged_bytes(size_lines(mark))
    source, missing = "walker", list[str]()
    try:
        buffers = memory_breakdown(lib, handle, untested=True)
        _compare(buffers, logged)
    except BackendError as error:
        print(f"no exact account: {error.message}", file=sys.stderr)
        buffers, source, missing = logged, "log", ["model", "context"]
    return int(handle), {
        "buffers": buffers,
        "output": output,
        "n_ctx": int(api.llama_n_ctx(handle)),
        "n_batch": int(api.llama_n_batch(handle)),
        "n_ubatch": int(api.llama_n_ubatch(handle)),
        "source": source,
        "states": not params.layers,
        "extrapolated": False,
        "missing": missing,
    }


def _compare(buffers: list[BufferBytes], logged: list[BufferBytes]) -> None:
    """Raise BackendError when the map does not say of compute buffers what the log says."""
    exact, rounded = sum(b.compute for b in buffers), sum(b.compute for b in logged)
    if abs(exact - rounded) > (len(logged) + 1) * MIB // 100:
        raise BackendError(f"{exact} bytes of compute buffers in the map, {rounded} in the log")


if __name__ == "__main__":
    main()
