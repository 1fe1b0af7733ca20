"""A loaded model: weights and vocabulary."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType, TracebackType
from typing import Any

from gguf_spec.backend.breakdown import size_lines
from gguf_spec.backend.ggml import device_array, overrides_array
from gguf_spec.backend.lib import Lib, load_lib
from gguf_spec.backend.log import LOG, captured_stderr
from gguf_spec.errors import BackendError, GgufSpecError, InputError, NoFitError
from gguf_spec.hidden_states import ASSISTANT_ARCH, CHAIN_ARCHS, MTP_ARCHS

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ALL_LAYERS = 1 << 20
_NO_MEMORY = ("out of memory", "failed to allocate", "unable to allocate", "bad_alloc")


@dataclass(frozen=True, slots=True)
class ModelParams:
    """How to load a model. ``n_gpu_layers`` None loads every layer onto a GPU if there is one.

    ``devices`` are names to offload to, empty for all. ``overrides`` puts tensors whose names match
    a regular expression into a buffer type: pairs of both. ``repack`` allows weights to be stored
    rearranged for the CPU (llama.cpp's extra buffer types). ``load_mtp`` loads the head that
    predicts further tokens, which is skipped otherwise.
    """

    n_gpu_layers: int | None = None
    split_mode: str = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    devices: tuple[str, ...] = ()
    overrides: tuple[tuple[str, str], ...] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    repack: bool = True
    load_mtp: bool = False


class LlamaModel:
    """A model in memory. Close it, or use it as a context manager; contexts on it close first.

    Raises (constructor):
        InputError: libllama could not load the file; the message holds its own words.
        NoFitError: there was not enough memory.
        KeyboardInterrupt: the load was interrupted, and nothing stays behind.
    """

    def __init__(
        self,
        path: Path,
        params: ModelParams | None = None,
        *,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.path = path
        self.lib: Lib = load_lib()
        self._arrays: list[ctypes.Array[Any]] = []
        begun = perf_counter()
        params = params or ModelParams()
        self.has_mtp = params.load_mtp
        """Whether the tensors of the MTP head, if the file has one, are in memory."""
        self.logged_sizes: list[str] = []
        """What llama.cpp logged about the sizes of buffers."""
        self._handle: int | None = self._load(params, progress)
        self.load_seconds = perf_counter() - begun
        api = self.lib.api
        self._vocab = api.llama_model_get_vocab(self._handle)
        self.n_vocab = int(api.llama_vocab_n_tokens(self._vocab))
        self.n_ctx_train = int(api.llama_model_n_ctx_train(self._handle))
        self.n_embd = int(api.llama_model_n_embd(self._handle))
        self.n_embd_out = int(api.llama_model_n_embd_out(self._handle))
        """Width of the hidden states that leave the model."""
        self._pieces: dict[int, bytes] = {}

    @property
    def handle(self) -> int:
        """The pointer that libllama wants.

        Raises:
            BackendError: the model has been closed.
        """
        if self._handle is None:
            raise BackendError("the model has been closed")
        return self._handle

    @property
    def n_swa(self) -> int:
        """Width of the sliding attention window in tokens, 0 if there is none."""
        if not self.lib.has("llama_model_n_swa"):
            return 0
        return int(self.lib.api.llama_model_n_swa(self.handle))

    @functools.cached_property
    def arch(self) -> str:
        """The architecture's name, as in the file."""
        return self.metadata("general.architecture") or ""

    @functools.cached_property
    def n_layer(self) -> int:
        """Layers of the model proper, without those of an MTP head."""
        return int(self.lib.api.llama_model_n_layer(self.handle))

    @functools.cached_property
    def n_layer_nextn(self) -> int:
        """Layers of the MTP head, 0 if there is none."""
        return int(self.lib.api.llama_model_n_layer_nextn(self.handle))

    @functools.cached_property
    def mask(self) -> int:
        """Id of the mask token, -1 if there is none."""
        return int(self.lib.api.llama_vocab_mask(self._vocab))

    @functools.cached_property
    def target_layers(self) -> tuple[int, ...]:
        """Of an EAGLE-3, DFlash or DSpark draft: the target's layers whose inputs it reads.

        Raises:
            BackendError: this libllama does not tell.
        """
        count = self.lib.extra("llama_model_target_layer_ids_n")(self.handle)
        ids = self.lib.extra("llama_model_target_layer_ids")(self.handle)
        return tuple(ids[:count]) if count else ()

    @functools.cached_property
    def n_embd_features(self) -> int:
        """Of such a draft: width of the rows that it takes from the target, all layers together
        (``n_embd_inp_enc`` in llama.cpp's eagle3.cpp and dflash.cpp)."""
        width = self.metadata(f"{self.arch}.target_hidden_size") if self.arch == "eagle3" else None
        return len(self.target_layers) * int(width or self.n_embd)

    def n_embd_states(self, *, mtp: bool) -> int:
        """Width of the state rows that a draft head decodes (``llama_batch_ext_select_n_embd_inp``
        in llama-batch.cpp). libllama reads that much whatever the array holds."""
        if mtp:
            return self.n_embd_out
        if self.arch == "dflash":
            return self.n_embd_features
        return int(self.lib.api.llama_model_n_embd_inp(self.handle))

    def mtp_problem(self) -> str | None:
        """Why this model cannot compute an MTP head; None if it can.

        libllama aborts on a head whose tensors were not loaded, and on a chain of heads where the
        architecture's graph expects one.
        """
        if self.n_layer_nextn == 0:
            return f"{self.path.name} has no MTP head"
        if not self.has_mtp:
            return f"the MTP head of {self.path.name} was not loaded"
        if self.arch == ASSISTANT_ARCH:
            return None
        if self.arch not in MTP_ARCHS:
            return f"llama.cpp does not compute the MTP heads of {self.arch} models"
        if self.n_layer_nextn > 1 and self.arch not in CHAIN_ARCHS:
            return (
                f"llama.cpp computes one MTP head of {self.arch} models, not {self.n_layer_nextn}"
            )
        return None

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text; None if it has no such key."""
        room = 256
        buffer = ctypes.create_string_buffer(room)
        n = self.lib.api.llama_model_meta_val_str(self.handle, key.encode(), buffer, room)
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    @functools.cached_property
    def add_bos(self) -> bool:
        """Whether the vocabulary wants a BOS token in front of a text."""
        return bool(self.lib.api.llama_vocab_get_add_bos(self._vocab))

    @functools.cached_property
    def bos(self) -> int:
        """Id of the BOS token, -1 if there is none."""
        return int(self.lib.api.llama_vocab_bos(self._vocab))

    @functools.cached_property
    def eos(self) -> int:
        """Id of the EOS token, -1 if there is none."""
        return int(self.lib.api.llama_vocab_eos(self._vocab))

    @functools.cached_property
    def eot(self) -> int:
        """Id of the token that ends a turn, -1 if there is none."""
        return int(self.lib.api.llama_vocab_eot(self._vocab))

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends a generation (llama.cpp's EOG: end of text, of turn …)."""
        return bool(self.lib.api.llama_vocab_is_eog(self._vocab, token))

    def is_control(self, token: int) -> bool:
        """Whether ``token`` is a control token: one that no ordinary text produces."""
        return bool(self.lib.api.llama_vocab_is_control(self._vocab, token))

    def tokenize(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Token ids of ``text``. ``add_special`` adds BOS and EOS if the vocabulary says so,
        ``parse_special`` recognises control tokens written out in the text.

        Raises:
            BackendError: libllama could not tokenize the text.
        """
        data = text.encode("utf-8", errors="replace")
        room = len(data) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * room)()
            count = self.lib.api.llama_tokenize(
                self._vocab, data, len(data), buffer, room, add_special, parse_special
            )
            if count >= 0:
                return list(buffer[:count])
            room = -count
        raise BackendError(f"libllama could not tokenize a text of {len(data)} bytes")

    def piece(self, token: int) -> bytes:
        """The bytes that ``token`` stands for; control tokens stand for none."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token, special=False)
        return piece

    def special_text(self, token: int) -> str:
        """How ``token`` is written, control tokens included; "" for no token (id -1)."""
        return self._piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def load_lora(self, path: Path) -> int:
        """Load a LoRA adapter; it is freed with the model.

        Raises:
            InputError: libllama could not load it for this model.
        """
        mark = LOG.mark()
        with captured_stderr():
            adapter = self.lib.api.llama_adapter_lora_init(self.handle, str(path).encode())
        if not adapter:
            what = f"libllama could not load the LoRA adapter {path.name}"
            raise load_error(what, mark, is_file=True)
        return int(ctypes.cast(adapter, ctypes.c_void_p).value or 0)

    def close(self) -> None:
        """Free the model. Further calls do nothing."""
        if self._handle is not None:
            self.lib.api.llama_model_free(self._handle)
            self._handle = None

    def __enter__(self) -> LlamaModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _piece(self, token: int, *, special: bool) -> bytes:
        room = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            count = self.lib.api.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if count >= 0:
                return bytes(buffer.raw[:count])
            room = -count
        return b""

    def _load(self, params: ModelParams, progress: Callable[[float], None] | None) -> int:
        api = self.lib.api
        raw = raw_model_params(api, params, self._arrays)
        watch = _LoadWatch(progress)
        raw.progress_callback = callback = api.llama_progress_callback(watch)
        mark = LOG.mark()
        with captured_stderr():
            # Ctrl-C: Python runs its handler inside the callback, which then says "stop".
            handle = api.llama_model_load_from_file(str(self.path).encode(), raw)
        del callback
        if watch.error is not None:
            if handle:
                api.llama_model_free(handle)
            raise watch.error
        if not handle:
            raise load_error(f"libllama could not load {self.path.name}", mark, is_file=True)
        self.logged_sizes = size_lines(mark)
        return int(handle)


class _LoadWatch:
    """The progress callback: reports, and stops the load when Python wants to raise something."""

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self.error: BaseException | None = None
        self._progress = progress
        self._thread = threading.get_ident()

    def __call__(self, fraction: float, _: object) -> bool:
        try:
            if self.error is None and self._progress and threading.get_ident() == self._thread:
                self._progress(fraction)
        except BaseException as error:  # an exception cannot cross libllama; it is raised later
            self.error = error
        return self.error is None


def load_error(what: str, mark: int, *, is_file: bool = False) -> GgufSpecError:
    """The error for a failed load or context, in libllama's own words since ``LOG.mark()``.

    ``is_file``: it is a file that libllama refused, and so an input.
    """
    said = [line.strip() for level, line in LOG.since(mark) if level in ("warn", "error")]
    words = "; ".join(dict.fromkeys(said[-3:]))
    lowered = " ".join(said).lower()
    if any(word in lowered for word in _NO_MEMORY):
        return NoFitError(
            f"{what}: not enough memory ({words})",
            hint="lower -g/--n-gpu-layers or -c/--ctx-size, or choose a smaller quantization",
        )
    kind = InputError if is_file else BackendError
    return kind(f"{what}{': ' + words if words else ''}", hint="--debug shows what llama.cpp said")


def raw_model_params(api: ModuleType, params: ModelParams, keep: list[ctypes.Array[Any]]) -> Any:
    """``llama_model_params`` for ``params``. The model keeps pointers into the arrays that are
    added to ``keep``, which has to outlive it."""
    raw = api.llama_model_default_params()
    raw.n_gpu_layers = _ALL_LAYERS if params.n_gpu_layers is None else params.n_gpu_layers
    raw.split_mode = _SPLIT_MODES[params.split_mode]
    raw.main_gpu = params.main_gpu
    raw.load_mode = _load_mode(params)
    raw.use_extra_bufts = params.repack
    raw.load_mtp = params.load_mtp
    if params.tensor_split:
        keep.append(_float_array(params.tensor_split, int(api.llama_max_devices())))
        raw.tensor_split = keep[-1]
    if params.devices:
        keep.append(device_array(params.devices))
        raw.devices = ctypes.addressof(keep[-1])
    if params.overrides:
        keep.append(overrides_array(params.overrides))
        raw.tensor_buft_overrides = ctypes.addressof(keep[-1])
    return raw


def _load_mode(params: ModelParams) -> int:
    """llama.cpp's load modes: bit 0 is mmap, bit 1 mlock; -1 lets it choose."""
    if params.use_mmap and not params.use_mlock:
        return -1
    return int(params.use_mmap) + 2 * int(params.use_mlock)


def _float_array(values: Sequence[float], size: int) -> ctypes.Array[ctypes.c_float]:
    return (ctypes.c_float * max(size, len(values)))(*values)
