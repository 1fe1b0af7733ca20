"""GGUF headers of realistic size, described layer by layer, without weights.

The keys that libllama asks for, and the tensors by name, shape and type (src/models/*.cpp). A
header takes some ten kilobytes; as a sparse file of the full size libllama accepts it for a model
of many gigabytes. The models are in ``transformers``, ``hybrids`` and ``drafts``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gguf_spec.gguf_types import TENSOR_TYPES
from tests.gguf_writer import BYTES, Gguf

NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
SIZES = {kind.name: (kind.block, kind.n_bytes) for kind in TENSOR_TYPES.values()}
BYTES.update({NUMBERS[name]: size for name, size in SIZES.items()})


class Described:
    """A header under construction; ``quant`` is the type of matrices that name none.

    ``tensors`` has (name, shape, type) of what is in it.
    """

    def __init__(self, arch: str, n_vocab: int, *, quant: str = "Q4_K", **keys: Any) -> None:
        self.arch = arch
        self.quant = quant
        self.n_vocab = n_vocab
        self.gguf = Gguf()
        self.n_bytes = 0
        self.tensors: list[tuple[str, tuple[int, ...], str]] = []
        self.gguf.key("general.architecture", "str", arch).key("general.name", "str", arch)
        self.gguf.key("tokenizer.ggml.model", "str", "no_vocab")
        self.keys(vocab_size=n_vocab, **keys)

    def keys(self, **values: Any) -> None:
        """Add ``<arch>.<name>``; two underscores in a name are a dot."""
        for name, value in values.items():
            self._key(f"{self.arch}.{name.replace('__', '.')}", value)

    def _key(self, key: str, value: Any) -> None:
        if isinstance(value, str):
            self.gguf.key(key, "str", value)
        elif isinstance(value, bool):
            self.gguf.key(key, "bool", value)
        elif isinstance(value, float):
            self.gguf.key(key, "f32", value)
        elif isinstance(value, int):
            self.gguf.key(key, "u32", value)
        else:
            kind = "bool" if isinstance(value[0], bool) else "i32"
            self.gguf.array(key, kind, value)

    def tensor(self, name: str, *shape: int, quant: str | None = None) -> None:
        """Add a tensor: vectors are F32, matrices of the quantization, as far as rows fit it."""
        kind = quant or (self.quant if len(shape) > 1 else "F32")
        block, size = SIZES[kind]
        if shape[0] % block:
            kind, block, size = ("Q8_0", 32, 34) if shape[0] % 32 == 0 else ("F32", 1, 4)
        n_bytes = size
        for dim in shape:
            n_bytes *= dim
        n_bytes //= block
        self.gguf.tensor(name, shape, NUMBERS[kind], offset=self.n_bytes)
        self.tensors.append((name, shape, kind))
        self.n_bytes += -(-n_bytes // 32) * 32

    def layer(self, il: int, **shapes: Sequence[int]) -> None:
        """Add ``blk.<il>.<name>.weight`` for each name."""
        for name, shape in shapes.items():
            self.tensor(f"blk.{il}.{name}.weight", *shape)

    def ends(self, n_embd: int, *, output: bool = True, embd: str | None = None) -> None:
        """Embeddings, the last norm, and an output of their own unless they are tied."""
        self.tensor("token_embd.weight", n_embd, self.n_vocab, quant=embd)
        self.tensor("output_norm.weight", n_embd)
        if output:
            self.tensor("output.weight", n_embd, self.n_vocab, quant="Q6_K")

    def header(self) -> bytes:
        raw = self.gguf.header()
        return raw + b"\0" * (-len(raw) % 32)

    def write(self, path: Path) -> Path:
        """A sparse file of the full size."""
        with path.open("wb") as file:
            file.write(self.header())
            file.truncate(len(self.header()) + self.n_bytes)
        return path


def attention(
    d: Described, il: int, e: int, heads: int, kv: int, k: int, v: int, *, q_scale: int = 1
) -> None:
    """The matrices of plain attention; ``q_scale`` 2 is a query with a gate."""
    d.layer(il, attn_norm=[e], attn_q=[e, heads * k * q_scale], attn_k=[e, kv * k])
    d.layer(il, attn_v=[e, kv * v], attn_output=[heads * v, e])


def dense(d: Described, il: int, e: int, ff: int) -> None:
    d.layer(il, ffn_gate=[e, ff], ffn_up=[e, ff], ffn_down=[ff, e])


def experts(d: Described, il: int, e: int, ff: int, n: int) -> None:
    d.tensor(f"blk.{il}.ffn_gate_inp.weight", e, n, quant="F32")
    d.layer(il, ffn_gate_exps=[e, ff, n], ffn_up_exps=[e, ff, n], ffn_down_exps=[ff, e, n])


def shared(d: Described, il: int, e: int, ff: int) -> None:
    d.layer(il, ffn_gate_shexp=[e, ff], ffn_up_shexp=[e, ff], ffn_down_shexp=[ff, e])


def basic(
    n_layer: int, e: int, ctx: int, heads: int, kv: int, ff: int, **more: Any
) -> dict[str, Any]:
    return {
        "block_count": n_layer,
        "embedding_length": e,
        "context_length": ctx,
        "attention__head_count": heads,
        "attention__head_count_kv": kv,
        "feed_forward_length": ff,
        "attention__layer_norm_rms_epsilon": 1e-6,
        **more,
    }


def nextn(d: Described, il: int, e: int) -> None:
    d.tensor(f"blk.{il}.nextn.eh_proj.weight", 2 * e, e)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        d.tensor(f"blk.{il}.nextn.{name}.weight", e)
