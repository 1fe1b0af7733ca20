"""The stored headers, and files as long as the models that they describe."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gguf_spec.header import read_header

FOLDER = Path(__file__).parent


def stored(name: str) -> Path:
    """The header called ``name``."""
    return FOLDER / f"{name}.gguf"


def whole(name: str, folder: Path) -> Path:
    """A sparse file with the header ``name``, of the model's full size; all weights are zero. A
    vocabulary of a draft's own names the target's first tokens."""
    path = folder / f"{name}.gguf"
    raw = stored(name).read_bytes()
    path.write_bytes(raw)
    tensors = read_header(path).tensors
    end = max(tensor.offset + tensor.n_bytes for tensor in tensors)
    with path.open("r+b") as file:
        file.truncate(len(raw) + end)
        for tensor in tensors:
            if tensor.name == "d2t":
                file.seek(len(raw) + tensor.offset)
                file.write(np.arange(tensor.n_elements, dtype=np.int64).tobytes())
    return path
