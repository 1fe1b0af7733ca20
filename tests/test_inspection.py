from __future__ import annotations

import json
from pathlib import Path

import pytest

from gguf_spec.errors import HeaderError
from gguf_spec.header import NGRAM_TYPES, read_model
from gguf_spec.inspection import inspect_file, inspect_pair, tensor_bytes
from tests.gguf_writer import Q8_0, Gguf, model

MODELS = Path(__file__).parent / "models"
KEYS = [
    "arch", "name", "role", "quant", "bits_per_weight", "n_params", "n_layer", "n_layer_nextn",
    "n_embd", "n_head", "n_head_kv", "n_ctx_train", "vocab_size", "tokenizer", "chat_template",
    "header_bytes", "file_bytes", "size_check", "tensor_bytes", "parts",
    "spec_types", "draft_types", "made_for",
]  # fmt: skip


def test_the_record_has_exactly_the_agreed_keys() -> None:
    path = MODELS / "tiny-target.gguf"
    record = inspect_file(path)
    assert list(record) == [*KEYS, "sidecars", "sidecar_problems"]
    assert json.loads(json.dumps(record)) == record
    assert record["arch"] == "qwen3"
    assert record["role"] == "target"
    assert record["file_bytes"] == 1_971_360
    assert record["n_params"] == 1_820_864
    assert record["tokenizer"] == {
        "model": "gpt2",
        "pre": "qwen2",
        "fingerprint": "c03360b33b5c913e",
    }
    assert record["chat_template"] is True
    assert record["parts"] == [str(path)]
    assert record["spec_types"] == list(NGRAM_TYPES)


def test_where_the_bytes_are() -> None:
    headers = Path(__file__).parent / "headers"
    for path in (*MODELS.glob("*.gguf"), *headers.glob("*.gguf")):
        info = read_model(path)
        assert sum(tensor_bytes(info).values()) == sum(one.n_bytes for one in info.tensors)
    mixed = tensor_bytes(read_model(headers / "qwen3.6-35b-a3b-mtp-q4_k_xl.gguf"))
    assert max(mixed, key=mixed.__getitem__) == "experts"
    assert set(mixed) >= {"embeddings", "attention", "recurrent", "experts", "output", "draft"}
    dense = tensor_bytes(read_model(headers / "llama-3.1-8b-q8_0.gguf"))
    assert set(dense) == {"embeddings", "attention", "feed_forward", "output", "other"}
    assert dense["embeddings"] == dense["output"] == 128256 * 4096 // 32 * 34
    assert dense["feed_forward"] == 32 * 3 * 4096 * 14336 // 32 * 34


def test_the_mtp_model_offers_its_own_drafter() -> None:
    record = inspect_file(MODELS / "tiny-mtp.gguf")
    assert (record["n_layer"], record["n_layer_nextn"]) == (4, 1)
    assert record["file_bytes"] == 2_483_040
    assert record["spec_types"][-1] == "draft-mtp"


def test_pairs() -> None:
    target = MODELS / "tiny-target.gguf"
    good = inspect_pair(target, MODELS / "tiny-draft.gguf")
    assert list(good) == [*KEYS, "draft", "pair"]
    assert good["draft"]["file_bytes"] == 178_592
    assert good["pair"]["usable"] is True
    assert good["pair"]["type"] == "draft-simple"
    bad = inspect_pair(target, MODELS / "tiny-othervocab-draft.gguf")
    assert bad["pair"]["usable"] is False
    assert "token 263 differs" in bad["pair"]["reason"]


def test_a_split_set_is_one_model(tmp_path: Path) -> None:
    first = model().key("split.no", "u16", 0).key("split.count", "u16", 2)
    second = Gguf().key("split.no", "u16", 1).key("split.count", "u16", 2)
    second.tensor("output.weight", [64, 300], Q8_0)
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for path, gguf in zip(paths, (first, second), strict=True):
        path.write_bytes(gguf.build())
    record = inspect_file(paths[0])
    assert record["parts"] == [str(path) for path in paths]
    assert record["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert record["name"] == "made up"


def test_a_damaged_file_is_described_or_refused(tmp_path: Path) -> None:
    data = (MODELS / "tiny-target.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(data[:40_000])
    assert "40000" in inspect_file(file)["size_check"]
    file.write_bytes(data[:4_000])
    with pytest.raises(HeaderError, match="truncated header"):
        inspect_file(file)
