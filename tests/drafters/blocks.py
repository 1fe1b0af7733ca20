"""Tiny models with DFlash and DSpark heads, and files made of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel
from gguf_spec.block_format import BlockFormat, block_format
from gguf_spec.drafters.dflash import DFlash, block_params, make_block_drafter
from gguf_spec.header import read_model
from gguf_spec.sampling import SamplingParams
from tests.drafters.heads import EXACT, GREEDY, MODELS, Bench
from tests.test_backend import PROMPTS

FILES = {"draft-dflash": MODELS / "tiny-dflash.gguf", "draft-dspark": MODELS / "tiny-dspark.gguf"}


@dataclass
class BlockBench(Bench):
    """As ``Bench``, with what the head's file says. ``make`` builds its drafters."""

    form: BlockFormat = field(default_factory=lambda: BlockFormat(0, 0))
    p_min: float = 0.0
    make: Callable[..., DFlash] = make_block_drafter

    def drafter(self) -> DFlash:
        return self.make(self.head, self.form, self.layers, p_min=self.p_min)

    def run(self, n_max: int, params: SamplingParams = GREEDY, n: int = 256) -> list[list[int]]:
        """Answers to the eight prompts, each in a new sequence."""
        answers = []
        for text in PROMPTS:
            sequence = self.open([self.drafter()], [n_max])
            answers.append(self.answer(sequence, self.prompt(text), params, n))
        return answers


@contextmanager
def block_bench(
    kind: str,
    n_max: int,
    *,
    file: Path | None = None,
    target: str = "tiny-target",
    p_min: float = 0.0,
    head_n_ctx: int = 1024,
    **params: Any,
) -> Iterator[BlockBench]:
    """Contexts for drafts of up to ``n_max`` tokens; ``params`` are the target's."""
    file = file or FILES[kind]
    form = block_format(read_model(file))
    shared = {"n_ctx": 1024, "max_width": n_max + 1, "n_rs_seq": n_max, **params}
    cache = {key: shared[key] for key in EXACT if key in shared}
    with (
        LlamaModel(MODELS / f"{target}.gguf") as model,
        LlamaModel(file) as own,
        LlamaContext(model, ContextParams(layers=own.target_layers, **shared)) as context,
    ):
        asked = block_params(context, form, n_max, p_min)
        asked["n_seq_max"] = shared.get("n_seq_max", 1)
        with LlamaContext(own, ContextParams(n_ctx=head_n_ctx, **cache, **asked)) as head:
            yield BlockBench(context, head, kind, own.target_layers, form=form, p_min=p_min)


def rewrite(
    source: Path,
    path: Path,
    keys: Mapping[str, Any],
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    """A copy of ``source`` at ``path`` with other values for ``keys``, and more ``tensors``."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "dflash")
    for name, read in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in keys:
            kind = read.types[0]
            sub = read.types[-1] if len(read.types) > 1 else None
            writer.add_key_value(name, read.contents(), kind, sub)
    for name, value in keys.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        else:
            writer.add_uint32(name, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dflash2(path: Path, k: int, *, strength: float) -> tuple[Path, dict[str, NDArray[np.float32]]]:
    """tiny-dflash as a DFlash 2 file, and its selector: of rank 1, whose scores are ``strength``
    times noise. Its convolutions change nothing, so without strength it drafts what tiny-dflash
    drafts."""
    n_embd, n_vocab, kernel, group = 192, 1024, 2, 64
    rng = np.random.default_rng(1)

    def noise(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape, np.float32)

    selector = {
        "selector_predecessor.weight": noise(n_vocab, 1) * np.float32(strength),
        "selector_successor.weight": noise(n_vocab, 1),
        "selector_hidden.weight": noise(1, n_embd),
    }
    tensors = dict(selector)
    base = np.zeros((2, kernel, n_embd), np.float32)
    base[:, 0] = 1.0
    for layer in range(2):
        for part in ("attn", "ffn"):
            tensors[f"blk.{layer}.{part}_conv_base"] = base
            tensors[f"blk.{layer}.{part}_conv_proj.weight"] = np.zeros(
                (2 * kernel * n_embd // group, n_embd), np.float32
            )
    keys = {
        "dflash.conv_kernel_size": kernel,
        "dflash.conv_group_size": group,
        "dflash.selector_rank": 1,
        "dflash.selector_top_k": k,
    }
    return rewrite(FILES["draft-dflash"], path, keys, tensors), selector
