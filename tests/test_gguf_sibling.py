"""A sibling's header out of two pieces of its file: right, or refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_sibling import parse_sibling, vocabulary_of
from gguf_spec.gguf_source import ByteSource, MemorySource
from gguf_spec.header import ModelInfo, parse
from tests.gguf_writer import BF16, F16, Q8_0, Gguf

N_VOCAB = 3000


def rung(
    kind: int = Q8_0,
    *,
    order: str = "<",
    words: int = N_VOCAB,
    width: int = 24,
    before: str = "Toy",
    behind: str = "",
    layers: int = 3,
    pre: str = "qwen2",
) -> Gguf:
    """A model with a vocabulary of ``words`` tokens of ``width`` bytes."""
    gguf = Gguf(order=order).key("general.architecture", "str", "llama")
    gguf.key("general.name", "str", before).array("general.tags", "str", ["a", "b"])
    gguf.key("llama.block_count", "u32", layers).key("tokenizer.ggml.model", "str", "gpt2")
    gguf.array("tokenizer.ggml.tokens", "str", [f"{i:0{width}d}" for i in range(words)])
    gguf.array("tokenizer.ggml.suppressed", "i32", [1, 2])
    gguf.array("tokenizer.ggml.scores", "f64", [0.5] * max(words, 9000))
    gguf.array("general.languages", "str", ["en", behind or "de"])
    gguf.key("general.file_type", "u32", 7).key("tokenizer.ggml.pre", "str", pre)
    if behind:
        gguf.key("quantize.imatrix.file", "str", behind)
    for layer in range(layers):
        gguf.tensor(f"blk.{layer}.attn_q.weight", [64, 64], kind)
    return gguf.tensor("output_norm.weight", [64])


def spliced(base: ModelInfo, data: bytes, *, more: int = 4096) -> tuple[ModelInfo, int]:
    """What comes of ``data``, and how many of its bytes were looked at."""
    vocabulary = vocabulary_of(base)
    assert vocabulary is not None
    n_tail = base.header_bytes - vocabulary.end + more

    def tail_at(offset: int) -> tuple[ByteSource, int]:
        return MemorySource(data[offset:]), min(n_tail, len(data) - offset)

    n_head = min(vocabulary.start + more, len(data))
    source = MemorySource(data, "sibling")
    return parse_sibling(base, vocabulary, source, n_head, tail_at), n_head + n_tail


BASE = parse(MemorySource(rung().build(), "base"))
SIBLINGS = {
    "same": rung(),
    "other types": rung(F16),
    "longer before": rung(BF16, before="Toy with a longer name"),
    "longer behind": rung(F16, behind="imatrix.gguf"),
    "fewer layers": rung(F16, layers=2),
}


@pytest.mark.parametrize("gguf", SIBLINGS.values(), ids=SIBLINGS)
def test_it_is_what_the_whole_header_says(gguf: Gguf) -> None:
    data = gguf.build()
    info, n_bytes = spliced(BASE, data)
    whole = parse(MemorySource(data, "sibling"))
    assert info == whole
    assert list(info.metadata) == list(whole.metadata)
    for key in whole.arrays:
        assert info.raw_array(key) == whole.raw_array(key)
    assert n_bytes < whole.header_bytes / 5


def test_big_endian() -> None:
    base = parse(MemorySource(rung(order=">").build(), "base"))
    data = rung(F16, order=">", before="Other").build()
    assert spliced(base, data)[0] == parse(MemorySource(data, "sibling"))
    with pytest.raises(HeaderError, match="not like that of base"):
        spliced(base, rung(F16).build())


STRANGERS = {
    "more tokens": rung(words=N_VOCAB + 1),
    "longer tokens": rung(width=25),
    "no vocabulary": rung(words=0),
    "another tokenizer": rung(pre="llama-bpe"),
    "cut": rung().build()[:-4096],
    "no GGUF": b"GIF" + rung().build()[3:],
    "more data": rung().build() + bytes(4096),
}


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_a_file_that_is_no_sibling_is_refused(stranger: Gguf | bytes) -> None:
    with pytest.raises(HeaderError):
        spliced(BASE, stranger if isinstance(stranger, bytes) else stranger.build())


def test_metadata_beyond_the_pieces_is_refused() -> None:
    with pytest.raises(HeaderError, match="too large"):
        spliced(BASE, rung(before="x" * 9000).build())
    with pytest.raises(HeaderError, match="too large"):
        spliced(BASE, rung(behind="x" * 9000).build())


def test_a_header_without_big_arrays_has_nothing_to_leave_out() -> None:
    gguf = Gguf().key("general.architecture", "str", "llama").tensor("a.weight", [64, 64])
    assert vocabulary_of(parse(MemorySource(gguf.build()))) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2000), st.sampled_from(["<i", "<Q"]), st.integers(0, 2**31 - 1))
def test_any_changed_number_is_right_or_refused(at: int, form: str, value: int) -> None:
    """Counts, lengths, types and offsets before and behind the vocabulary."""
    vocabulary = vocabulary_of(BASE)
    assert vocabulary is not None
    data = bytearray(rung(F16).build())
    places = [*range(4, vocabulary.start - 8), *range(vocabulary.end, BASE.header_bytes - 8)]
    struct.pack_into(form, data, places[at % len(places)], value)
    try:
        info = spliced(BASE, bytes(data))[0]
    except HeaderError:
        return
    assert info == parse(MemorySource(bytes(data), "sibling"))
