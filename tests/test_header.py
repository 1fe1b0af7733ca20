from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_spec.errors import HeaderError
from gguf_spec.gguf_reader import ArrayRef
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import (
    NGRAM_TYPES,
    ModelInfo,
    check_loadable,
    join_parts,
    parse,
    read_header,
    read_model,
)
from tests.gguf_writer import F16, F32, Q4_K, Q8_0, Gguf, model

MODELS = Path(__file__).parent / "models"
TARGET = (MODELS / "tiny-target.gguf").read_bytes()
BIG = 2**62


def info_of(gguf: Gguf) -> ModelInfo:
    return parse(MemorySource(gguf.build()))


def refused(gguf: Gguf | bytes) -> str:
    data = gguf if isinstance(gguf, bytes) else gguf.build()
    with pytest.raises(HeaderError) as caught:
        parse(MemorySource(data))
    return caught.value.message


def unloadable(gguf: Gguf, as_target: bool = False) -> str:
    with pytest.raises(HeaderError) as caught:
        check_loadable(info_of(gguf), as_target=as_target)
    return caught.value.message


def test_facts_of_the_tiny_target() -> None:
    info = read_header(MODELS / "tiny-target.gguf")
    assert (info.arch, info.role, info.quant, info.version) == ("qwen3", "target", "Q8_0", 3)
    assert (info.n_params, info.file_bytes, info.header_bytes) == (1_820_864, 1_971_360, 30_097)
    assert (info.n_layer, info.n_layer_nextn, info.n_embd) == (4, 0, 192)
    assert (info.n_head, info.n_head_kv, info.n_ctx_train, info.vocab_size) == (4, 2, 2048, 1024)
    assert (info.tokenizer.model, info.tokenizer.pre) == ("gpt2", "qwen2")
    assert info.tokenizer.fingerprint == "c03360b33b5c913e"
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template
    assert info.size_check == "ok"
    assert info.needed_bytes == info.file_bytes
    assert 8.5 < info.bits_per_weight < 8.6
    assert info.spec_types == NGRAM_TYPES
    assert info.read_strings("tokenizer.ggml.tokens")[:3] == [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    ]
    assert info.read_numbers("tokenizer.ggml.token_type")[:5] == [3, 3, 3, 3, 1]
    assert info.metadata["tokenizer.ggml.add_bos_token"] is False
    check_loadable(info, as_target=True)


def test_mtp_layers_are_counted_apart_and_offered() -> None:
    info = read_header(MODELS / "tiny-mtp.gguf")
    assert (info.n_layer, info.n_layer_nextn, info.role) == (4, 1, "target")
    assert info.spec_types == (*NGRAM_TYPES, "draft-mtp")
    assert info.metadata["qwen35.rope.dimension_sections"] == (6, 5, 5, 0)
    check_loadable(info, as_target=True)


@pytest.mark.parametrize("name", ["tiny-draft.gguf", "tiny-othervocab-draft.gguf"])
def test_separate_drafts_are_models_of_their_own(name: str) -> None:
    info = read_header(MODELS / name)
    assert info.role == "target"
    check_loadable(info, as_target=True)


def test_big_endian_says_the_same_as_little_endian() -> None:
    little, big = info_of(model("<")), info_of(model(">"))
    assert (little.byte_order, big.byte_order) == ("little", "big")
    for fact in ("n_params", "tokenizer", "n_embd", "vocab_size", "tensors", "spec_types"):
        assert getattr(little, fact) == getattr(big, fact)
    key = "tokenizer.ggml.tokens"
    assert little.read_strings(key) == big.read_strings(key)
    assert little.read_numbers("tokenizer.ggml.token_type") == big.read_numbers(
        "tokenizer.ggml.token_type"
    )
    check_loadable(little)
    assert "big-endian" in unloadable(model(">"))


def test_versions() -> None:
    gguf = model()
    gguf.version = 2
    assert info_of(gguf).version == 2
    for version in (0, 1, 4, 77):
        gguf.version = version
        assert f"version {version};" in refused(gguf)
    swapped = model(">")
    swapped.version = 9
    assert "version 9;" in refused(swapped)


def test_what_is_no_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(HeaderError, match="is a directory"):
        read_header(tmp_path)
    file = tmp_path / "x.gguf"
    file.write_bytes(b"")
    with pytest.raises(HeaderError, match=r"is empty \(0 bytes\)"):
        read_header(file)
    file.write_text("<html>Sign in</html>")
    with pytest.raises(HeaderError, match="not a GGUF file: starts with b'<html>Sign in"):
        read_header(file)
    file.write_bytes(b"GGUF\3\0")
    with pytest.raises(HeaderError, match="truncated header"):
        read_header(file)


def test_truncated_tensor_data_is_told_with_both_sizes(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(TARGET[:1_000_000])
    info = read_header(file)
    assert info.size_check == "truncated: the file has 1000000 bytes, its header describes 1971360"
    with pytest.raises(HeaderError, match="has 1000000 bytes, its header describes 1971360"):
        check_loadable(info)
    file.write_bytes(TARGET + b"\0" * 1000)
    assert "1000 more than its header needs" in read_header(file).size_check


def counts(n_tensors: int | None = None, n_keys: int | None = None) -> Gguf:
    gguf = model()
    gguf.n_tensors, gguf.n_keys = n_tensors, n_keys
    return gguf


def string_length(length: int) -> Gguf:
    gguf = Gguf()
    return gguf.raw(gguf.text("k") + gguf.pack("i", 8) + gguf.text("v", length))


def entry_type(kind: int) -> Gguf:
    gguf = Gguf()
    return gguf.raw(gguf.text("k") + gguf.pack("iQ", kind, 1))


def nested_array() -> Gguf:
    gguf = Gguf()
    return gguf.raw(gguf.text("k") + gguf.pack("iiQ", 9, 9, 1))


BROKEN: dict[str, tuple[Callable[[], Gguf], str]] = {
    "2^62 tensors": (lambda: counts(n_tensors=BIG), f"{BIG} tensors cannot be"),
    "2^62 keys": (lambda: counts(n_keys=BIG), f"{BIG} metadata keys cannot be"),
    "-1 tensors": (lambda: counts(n_tensors=-1), "-1 tensors"),
    "string of 2^62": (lambda: string_length(BIG), f"{BIG} bytes"),
    "array of 2^62 numbers": (lambda: Gguf().array("k", "u8", [1], BIG), f"{BIG} elements"),
    "array of 2^61 u64": (lambda: Gguf().array("k", "u64", [1], 2**61), f"{2**61} elements"),
    "array of 2^62 strings": (lambda: Gguf().array("k", "str", ["a"], BIG), f"{BIG} elements"),
    "array beyond": (lambda: Gguf().array("k", "str", ["a" * 90], 9), "truncated header"),
    "array of arrays": (nested_array, "unknown value type 9"),
    "value type": (lambda: entry_type(13), "unknown value type 13"),
    "negative value type": (lambda: entry_type(-1), "unknown value type -1"),
    "two keys": (lambda: Gguf().key("k", "u8", 1).key("k", "u8", 2), "'k' is there twice"),
    "empty key": (lambda: Gguf().key("", "u8", 1), "metadata key 0 is empty"),
    "NUL in key": (lambda: Gguf().key(b"a\0b", "u8", 1), "NUL"),
    "alignment 0": (lambda: Gguf().key("general.alignment", "u32", 0), "is 0, not a power"),
    "alignment 24": (lambda: Gguf().key("general.alignment", "u32", 24), "is 24, not a power"),
    "alignment i32": (lambda: Gguf().key("general.alignment", "i32", 32), "it is i32"),
    "5 dims": (lambda: Gguf().tensor("t", [1] * 5), "5 dimensions, at most 4"),
    "dim 0": (lambda: Gguf().tensor("t", [4, 0]), "impossible shape [4, 0]"),
    "dim -1": (lambda: Gguf().tensor("t", [-1]), "impossible shape [-1]"),
    "overflow": (lambda: Gguf().tensor("t", [2**32, 2**32]), "impossible shape"),
    "2^63 bytes": (lambda: Gguf().tensor("t", [2**61, 2]), f"{2**64} bytes"),
    "type 4": (lambda: Gguf().tensor("t", [32], 4), "unknown ggml type 4"),
    "type 43": (lambda: Gguf().tensor("t", [32], 43), "unknown ggml type 43"),
    "row": (lambda: Gguf().tensor("t", [33], Q8_0), "rows of 33, not a multiple of Q8_0's 32"),
    "two tensors": (lambda: Gguf().tensor("t", [8]).tensor("t", [8]), "'t' is there twice"),
    "offset": (lambda: Gguf().tensor("t", [8], offset=7), "at offset 7, expected 0"),
    "gap": (lambda: Gguf().tensor("t", [8]).tensor("u", [8], offset=64), "offset 64, expected 32"),
    "long name": (lambda: Gguf().tensor("t" * 64, [8]), "has 64 bytes, at most 63"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_structure_is_refused_with_its_numbers(case: str) -> None:
    make, message = BROKEN[case]
    assert message in refused(make())


@pytest.mark.parametrize(
    ("gguf", "role"),
    [
        (model(arch="eagle3"), "draft-eagle3"),
        (model(arch="dflash"), "draft-dflash"),
        (model(arch="dflash").tensor("markov_w1.weight", [64, 300], Q8_0), "draft-dspark"),
        (model(arch="gemma4-assistant"), "assistant"),
        (model(arch="clip"), "mmproj"),
        (model().key("general.type", "str", "adapter"), "adapter"),
    ],
)
def test_roles_are_told_by_content(gguf: Gguf, role: str) -> None:
    info = info_of(gguf)
    assert info.role == role
    assert info.spec_types == ()


def test_a_file_with_the_mtp_block_alone_is_no_target() -> None:
    gguf = model(arch="qwen35", block_count=3).key("qwen35.nextn_predict_layers", "u32", 1)
    gguf.tensors = []
    gguf.data_bytes = 0
    gguf.tensor("blk.2.nextn.eh_proj.weight", [128, 64], Q8_0)
    assert info_of(gguf).role == "draft-mtp"
    for name, value in (("inner_size", 64), ("time_step_rank", 2), ("state_size", 32)):
        gguf.key(f"qwen35.ssm.{name}", "u32", value)
    gguf.key("qwen35.ssm.group_count", "u32", 2).key("qwen35.ssm.conv_kernel", "u32", 4)
    check_loadable(info_of(gguf))
    assert "drafter (draft-mtp)" in unloadable(gguf, as_target=True)


def test_an_encoder_is_no_target() -> None:
    gguf = model().key("llama.attention.causal", "bool", False)
    check_loadable(info_of(gguf))
    assert "cannot generate text" in unloadable(gguf, as_target=True)


def test_mtp_is_not_offered_without_a_graph_for_it() -> None:
    gguf = model(arch="glm4", block_count=3).key("glm4.nextn_predict_layers", "u32", 1)
    gguf.tensor("blk.2.nextn.eh_proj.weight", [128, 64], Q8_0)
    info = info_of(gguf)
    assert (info.role, info.n_layer, info.n_layer_nextn) == ("target", 2, 1)
    assert info.spec_types == NGRAM_TYPES


@pytest.mark.parametrize(
    ("kind", "file_type", "quant"),
    [
        (Q4_K, 15, "Q4_K_M"),
        (Q4_K, 14, "Q4_K_S"),
        (Q4_K, 7, "Q4_K"),
        (F16, 1, "F16"),
        (F32, 15, "F32"),
    ],
)
def test_quantization_is_judged_by_the_tensors(kind: int, file_type: int, quant: str) -> None:
    gguf = Gguf().key("general.file_type", "u32", file_type)
    gguf.tensor("token_embd.weight", [256, 900], Q8_0).tensor("blk.0.x.weight", [256, 64], kind)
    assert info_of(gguf).quant == quant


def test_sampling_defaults_and_large_arrays() -> None:
    gguf = model().key("general.sampling.temp", "f32", 0.5).key("general.sampling.top_k", "i32", 64)
    gguf.array("numbers", "f32", [0.25] * 3000).array("few", "u16", [1, 2])
    info = info_of(gguf)
    assert info.sampling == {"temp": 0.5, "top_k": 64}
    assert isinstance(info.metadata["numbers"], ArrayRef)
    assert info.read_numbers("numbers") == [0.25] * 3000
    assert info.metadata["few"] == (1, 2)
    assert info.read_strings("few") == []
    assert info.read_numbers("absent") == []


def split_set(folder: Path, n_tensors: int = 5) -> list[Path]:
    first = model()
    first.key("split.no", "u16", 0).key("split.count", "u16", 2)
    first.key("split.tensors.count", "i32", n_tensors + 1)
    second = Gguf().key("split.no", "u16", 1).key("split.count", "u16", 2)
    second.tensor("output.weight", [64, 300], Q8_0)
    paths = [folder / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths[0].write_bytes(first.build())
    paths[1].write_bytes(second.build())
    return paths


def test_split_sets_are_read_whole_from_any_part(tmp_path: Path) -> None:
    paths = split_set(tmp_path)
    info = read_model(paths[1])
    assert info == read_model(paths[0])
    assert info.files == tuple(str(path) for path in paths)
    assert info.file_bytes == sum(path.stat().st_size for path in paths)
    assert info.n_params == read_header(paths[0]).n_params + 64 * 300
    assert info.size_check == "ok"
    check_loadable(info, as_target=True)
    paths[1].write_bytes(paths[1].read_bytes()[:-100])
    with pytest.raises(HeaderError, match="truncated"):
        check_loadable(read_model(paths[0]))


def test_incomplete_or_mixed_split_sets(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="the parts have 6 tensors, not 10"):
        read_model(split_set(tmp_path, n_tensors=9)[0])
    paths = split_set(tmp_path)
    data = paths[1].read_bytes()
    paths[1].unlink()
    with pytest.raises(HeaderError, match=r"00002-of-00002\.gguf does not exist"):
        read_model(paths[0])
    paths[1].write_bytes(paths[0].read_bytes())
    with pytest.raises(HeaderError, match="says it is part 1 of 2, expected 2 of 2"):
        read_model(paths[0])
    other = tmp_path / "renamed.gguf"
    other.write_bytes(data)
    with pytest.raises(HeaderError, match="its name does not say so"):
        read_model(other)


def test_a_large_vocabulary_is_skipped_fast(tmp_path: Path) -> None:
    file = tmp_path / "large.gguf"
    file.write_bytes(model(tokens=[f"token{i}" for i in range(262_144)]).build())
    best = 9.0
    for _ in range(3):  # the machine may be busy
        start = time.perf_counter()
        info = read_header(file)
        best = min(best, time.perf_counter() - start)
    assert info.vocab_size == 262_144
    assert best < 0.3


def test_the_header_limit_is_kept() -> None:
    with pytest.raises(HeaderError, match="header too large"):
        parse(MemorySource(TARGET), max_header_bytes=20_000)


def survives(data: bytes) -> None:
    """HeaderError or a ModelInfo: anything else fails the test by itself."""
    try:
        info = parse(MemorySource(data))
        check_loadable(info, as_target=True)
        info.read_strings("tokenizer.ggml.tokens")
    except HeaderError:
        return


FUZZ = settings(
    max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@FUZZ
@given(st.integers(0, 31_000))
def test_any_truncation_is_survived(length: int) -> None:
    survives(TARGET[:length])


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 30_096), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_changed_bytes_are_survived(changes: list[tuple[int, int]]) -> None:
    data = bytearray(TARGET)
    for position, value in changes:
        data[position] = value
    survives(bytes(data))


@FUZZ
@given(st.integers(0, 30_088), st.sampled_from([0, 1, 2**31, 2**32 - 1, BIG, 2**63, 2**64 - 1]))
def test_any_changed_number_is_survived(position: int, value: int) -> None:
    data = bytearray(TARGET)
    struct.pack_into("<Q", data, position, value)
    survives(bytes(data))


@FUZZ
@given(st.binary(max_size=300))
def test_any_bytes_after_the_magic_are_survived(data: bytes) -> None:
    survives(b"GGUF\3\0\0\0" + data)


def test_parts_that_were_read_elsewhere_are_joined(tmp_path: Path) -> None:
    paths = split_set(tmp_path)
    parts = [parse(MemorySource(path.read_bytes(), str(path))) for path in paths]
    joined = join_parts(parts)
    assert joined.tensors == read_model(paths[0]).tensors
    assert (joined.file_bytes, joined.size_check) == (read_model(paths[0]).file_bytes, "ok")
    with pytest.raises(HeaderError, match="says it is part 1 of 2, expected 1 of 1"):
        join_parts(parts[:1])
    with pytest.raises(HeaderError, match="says it is part 2 of 2, expected 1 of 2"):
        join_parts(parts[::-1])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first = parse(MemorySource(split_set(tmp_path)[0].read_bytes()))
    again = replace(first, split_no=1)
    with pytest.raises(HeaderError, match=r"tensor 'token_embd\.weight' is in more than one part"):
        join_parts([first, again])


def test_a_long_tokenizer_needs_a_long_header_and_the_limit_says_how_long() -> None:
    merges = [f"left{i:08} right{i:08}" for i in range(262_144)]
    gguf = model(tokens=[f"token{i:06}" for i in range(262_144)])
    data = gguf.array("tokenizer.ggml.merges2", "str", merges).build()
    info = parse(MemorySource(data))
    assert info.header_bytes > 10_000_000
    assert info.vocab_size == 262_144
    with pytest.raises(HeaderError) as caught:
        parse(MemorySource(data), max_header_bytes=4 << 20)
    assert caught.value.exit_code == 3
    match = re.search(r"ends at byte (\d+), the limit is (\d+)", caught.value.message)
    assert match is not None
    assert int(match[1]) > int(match[2]) == 4 << 20
