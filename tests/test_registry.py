"""The registry of drafters: the shipped table, the user's, and which rows are for which target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.errors import InputError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse
from gguf_spec.registry import FILE, KINDS, PAYS, Row, known_drafters, read_rows, rows, words
from tests.gguf_writer import model


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path))
    return tmp_path / FILE


def target(name: str, arch: str = "qwen35", vocab: int = 248320) -> ModelInfo:
    info = parse(MemorySource(model(arch=arch).build(), "x/file.gguf"))
    return replace(info, name=name, vocab_size=vocab)


ROW = Row("Qwen3.6-27B", "draft-mtp", "a/b", "me")


def test_the_shipped_rows_are_whole() -> None:
    found = rows()
    assert len(found) > 50
    assert len({row.key for row in found}) == len(found)
    for row in found:
        assert row.source
        assert row.arch
        if row.pays in ("yes", "no", "depends"):
            assert row.note, row
    assert {row.kind for row in found} == set(KINDS)


@pytest.mark.parametrize(
    ("name", "yes"),
    [
        ("Qwen3.6 27B", True),
        ("Qwen3.6-27B-Instruct", True),
        ("Qwen_Qwen3.6-27B", True),
        ("qwen3.6-27b", True),
        ("Qwen3.6-2.7B", False),
        ("Qwen3.6-270B", False),
        ("Qwen3.6", False),
        ("Carnice-Qwen3.6-27B", False),
    ],
)
def test_names(name: str, yes: bool) -> None:
    assert ROW.matches(target(name)) is yes


def test_a_header_has_to_agree() -> None:
    info = target("Qwen3.6-27B")
    assert replace_row(arch="qwen35").matches(info)
    assert not replace_row(arch="qwen3").matches(info)
    assert replace_row(vocab=248320 + 128).matches(info)
    assert not replace_row(vocab=248320 + 129).matches(info)
    assert replace_row(pre="qwen2").matches(info)
    assert not replace_row(pre="qwen35").matches(info)
    assert replace_row(fingerprint=info.tokenizer.fingerprint).matches(info)
    assert not replace_row(fingerprint="0" * 16).matches(info)


def replace_row(**values: object) -> Row:
    return replace(ROW, **values)  # type: ignore[arg-type]


def test_other_names_of_a_model() -> None:
    info = target("some file")
    assert not ROW.matches(info)
    assert ROW.matches(info, ["Qwen3.6-27B-GGUF"])
    meta = {**info.metadata, "general.basename": "Qwen3.6", "general.size_label": "27B"}
    assert ROW.matches(replace(info, metadata=meta))
    assert ROW.matches(replace(info, path="/m/Qwen3.6-27B-UD-Q4_K_XL.gguf"))


def test_which_files_of_a_repository() -> None:
    row = replace_row(files="mtp-*")
    assert row.takes("sub/MTP-x-Q8_0.gguf")
    assert not row.takes("x-mtp-.gguf")
    assert not row.takes("mtp-readme.md")
    assert replace_row(files="MTP/*").takes("mtp/x.gguf")


def test_the_order_is_by_kind_and_by_what_pays() -> None:
    found = known_drafters(target("Qwen3.6-35B-A3B", "qwen35moe"))
    assert [(row.kind, row.pays) for row in found] == [
        ("draft-mtp", "depends"), ("draft-dflash", "no"), ("draft-simple", "no"),
    ]  # fmt: skip
    assert known_drafters(target("Nobody-7B")) == []


def test_the_users_rows_come_first_and_replace(own: Path) -> None:
    own.write_text(
        '[[drafter]]\ntarget = "Qwen3.6-27B"\nkind = "draft-mtp"\nrepo = "me/mine"\n'
        'source = "measured here"\npays = "yes"\n'
        '[[drafter]]\ntarget = "qwen3.6-27b"\nkind = "draft-mtp"\n'
        'repo = "ggml-org/Qwen3.6-27B-GGUF"\nsource = "me"\npays = "never"\n'
    )
    repos = [row.repo for row in known_drafters(target("Qwen3.6-27B")) if row.kind == "draft-mtp"]
    assert repos == ["me/mine"]


BAD = {
    "syntax": ("[[drafter", "drafters.toml"),
    "table": ("[x]\na = 1", "unknown table 'x'"),
    "list": ("drafter = 3", "no list of rows"),
    "key": ('[[drafter]]\ntargte = "a"', "unknown key 'targte'"),
    "type": ('[[drafter]]\ntarget = "a"\nvocab = "b"', "vocab is 'b'"),
    "missing": ('[[drafter]]\ntarget = "a"', "row 1: kind, repo, source missing"),
    "kind": (
        '[[drafter]]\ntarget = "a"\nkind = "mtp"\nrepo = "a/b"\nsource = "c"', "kind is 'mtp'",
    ),
    "repo": (
        '[[drafter]]\ntarget = "a"\nkind = "draft-mtp"\nrepo = "../b"\nsource = "c"', "repo is",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD.values(), ids=BAD)
def test_bad_files(own: Path, text: str, told: str) -> None:
    own.write_text(text)
    with pytest.raises(InputError) as caught:
        rows()
    assert told in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 3


def test_words_and_values() -> None:
    assert words("Meta-Llama-3.1-8B_Instruct") == ["llama", "3.1", "8b", "instruct"]
    assert words("Qwen") == ["qwen"]
    assert PAYS.index("yes") < PAYS.index("unknown") < PAYS.index("no")
    assert read_rows(Path("gguf_spec/drafters.toml").resolve())
