"""Headers without their vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gguf_spec.bare_header import bare_header, bare_headers
from gguf_spec.errors import HeaderError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, check_loadable, parse
from tests.gguf_writer import Gguf, model


def info(gguf: Gguf) -> ModelInfo:
    return parse(MemorySource(gguf.build()))


@pytest.mark.parametrize("order", ["<", ">"])
def test_all_but_the_vocabulary_stays(order: str) -> None:
    gguf = model(order).array("llama.rope.scaling.short_factor", "f32", [0.5, 2.0])
    whole = info(gguf.key("general.alignment", "u32", 64) if order == ">" else gguf)
    file = bare_header(whole)
    bare = parse(MemorySource(file.data + bytes(file.size - len(file.data))))
    assert bare.tensors == whole.tensors
    assert (bare.byte_order, bare.alignment, bare.version) == (
        whole.byte_order,
        whole.alignment,
        whole.version,
    )
    assert bare.size_check == "ok"
    kept = {k: v for k, v in whole.metadata.items() if not k.startswith("tokenizer.")}
    added = {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": 300}
    assert {k: v for k, v in bare.metadata.items() if not k.endswith("short_factor")} == {
        k: v for k, v in (kept | added).items() if not k.endswith("short_factor")
    }
    key = "llama.rope.scaling.short_factor"
    assert bare.read_numbers(key) == whole.read_numbers(key) == [0.5, 2.0]
    assert len(file.data) < whole.header_bytes / 2
    if order == "<":
        check_loadable(bare)


def test_a_stated_size_stays() -> None:
    same = parse(MemorySource(bare_header(info(model().key("llama.vocab_size", "u32", 300))).data))
    assert same.metadata["llama.vocab_size"] == 300
    assert "tokenizer.ggml.tokens" not in same.metadata


def test_a_vocabulary_of_another_size_than_stated_stays() -> None:
    whole = info(model().key("llama.vocab_size", "u32", 320))
    other = parse(MemorySource(bare_header(whole).data))
    assert dict(other.types) == dict(whole.types)
    assert other.read_strings("tokenizer.ggml.tokens") == [f"t{i}" for i in range(300)]


def test_the_number_of_token_types_is_the_size_of_a_tensor() -> None:
    gguf = model().key("tokenizer.ggml.token_type_count", "u32", 2)
    bare = parse(MemorySource(bare_header(info(gguf)).data))
    assert bare.metadata["tokenizer.ggml.token_type_count"] == 2


def test_a_file_without_vocabulary_is_left_alone() -> None:
    gguf = Gguf().key("general.architecture", "str", "eagle3").tensor("fc.weight", [64, 64])
    bare = parse(MemorySource(bare_header(info(gguf)).data))
    assert dict(bare.metadata) == {"general.architecture": "eagle3"}


def test_parts() -> None:
    one, two = (replace(info(model()), split_no=n, split_count=2) for n in range(2))
    names = [file.name for file in bare_headers([one, two])]
    assert names == ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"]
    for wrong in ([one], [one, one], [one, two, two], []):
        with pytest.raises(HeaderError, match="parts"):
            bare_headers(wrong)
    assert bare_header(info(model())).name == "model.gguf"
