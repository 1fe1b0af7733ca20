"""Records: written whole under a new name, read defensively, told and drawn."""

from __future__ import annotations

import json
import os
import signal
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.bench.chart import chart
from gguf_spec.bench.document import described, document, model_facts
from gguf_spec.bench.measure import measure
from gguf_spec.bench.records import check_folder, read_record, write_record
from gguf_spec.bench.runner import Runner
from gguf_spec.bench.setups import BenchSetup, plain_setup, synthetic_setup
from gguf_spec.bench.table import compared, render, told
from gguf_spec.errors import InputError
from gguf_spec.session import Session
from scripts.sweep_tables import markdown as sweep_tables
from scripts.sweep_tables import pool_markdown
from tests.bench.conftest import WORKLOADS

RESULTS = Path(__file__).parents[2] / "bench_results"
FIXED = BenchSetup("draft-simple fixed", ("draft-simple",), control=False)


@pytest.fixture(scope="module")
def record(session: Session) -> dict[str, Any]:
    runner = Runner(session, WORKLOADS, [plain_setup(), FIXED, synthetic_setup(0.9, 3)])
    measured = measure(runner, 3)
    model = model_facts(session, lambda done, total: None)
    return document(measured, model, ["gguf-spec", "bench", str(session.setup.path)])


def test_what_a_record_has(record: dict[str, Any]) -> None:
    assert record["command"] == "gguf-spec bench tiny-target.gguf"
    assert record["complete"]
    assert len(record["model"]["files"][0]["sha256"]) == 64
    assert record["model"]["drafts"][0]["type"] == "draft-simple"
    assert record["peak_memory"]["resident_bytes"]["gguf-spec"] > 1 << 20
    owners = {one["owner"] for one in record["peak_memory"]["buffers"]}
    assert owners == {"target", "draft-simple"}
    assert len(record["comparisons"]) == 2 * len(WORKLOADS)
    for one in record["comparisons"]:
        assert one["equal"]
        assert len(one["pairs"]) == 3
        assert all(item["baseline"] and item["setup"] for item in one["pairs"])
        assert one["decode"]["n"] == 3
    everything = [one for one in record["theory"] if one["workload"] is None]
    assert [one["setup"] for one in everything] == [FIXED.name, "synthetic 0.9"]


def test_a_round_trip(record: dict[str, Any], tmp_path: Path) -> None:
    check_folder(tmp_path / "new")
    path = write_record(tmp_path / "new", record, {".md": "text", ".svg": "<svg/>"})
    assert read_record(path) == json.loads(json.dumps(record))
    assert path.with_suffix(".md").read_text() == "text"
    assert sorted(p.suffix for p in path.parent.iterdir()) == [".json", ".md", ".svg"]


def test_every_record_has_a_name_of_its_own(record: dict[str, Any], tmp_path: Path) -> None:
    paths = [write_record(tmp_path, record, {".md": str(i)}) for i in range(4)]
    assert len(set(paths)) == 4
    assert [path.with_suffix(".md").read_text() for path in paths] == ["0", "1", "2", "3"]


def test_nor_does_it_take_what_lies_beside(
    record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document of an earlier record is gone, its table is not."""
    monkeypatch.setattr("gguf_spec.bench.records._stem", lambda record: "bench-x")
    (tmp_path / "bench-x.md").write_text("earlier")
    assert write_record(tmp_path, record, {".md": "new"}).name == "bench-x-2.json"
    assert (tmp_path / "bench-x.md").read_text() == "earlier"


def test_a_full_disk_leaves_nothing(
    record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_record(tmp_path, record, {".md": "kept"})
    content = before.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf_spec.bench.records.os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_record(tmp_path, record, {".md": "lost"})
    assert before.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [before, before.with_suffix(".md")]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        check_folder(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix", reason="a limit on the size of files")
def test_a_full_disk_leaves_no_probe(tmp_path: Path) -> None:
    """Making a file takes no room, what is written into it does."""
    import resource

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            check_folder(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no record"),
        (b"[1]", "is no record"),
        (b'{"format": "other"}', "is no record"),
        (b"[" * 100_000, "is no record"),
        (b'{"format": "gguf-spec bench", "version": 9}', "version 9"),
        (b'{"format": "gguf-spec bench", "version": 1, "model": 3}', "model"),
    ],
)
def test_what_is_no_record(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_record(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_record(tmp_path / "absent.json")


def test_tables(record: dict[str, Any]) -> None:
    text, markdown = told(record), told(record, markdown=True)
    for workload in WORKLOADS:
        assert workload.name in text
        assert f"| {workload.name} |" in markdown
    assert f"{FIXED.name}: theory beside practice" in text
    assert "the formula" in text
    assert "75.0 %" in text  # three pairs promise no more
    assert "### " not in text


def test_a_speed_is_a_median(record: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(record))
    for one in changed["comparisons"]:
        for pair, speed in zip(one["pairs"], (10.0, 20.0, None), strict=True):
            pair["baseline"]["tokens_per_second"] = speed
    rows = [line.split() for line in told(changed).splitlines() if line.startswith("one ")]
    assert {row[1] for row in rows} == {"15.0"}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-*.md")), ids=lambda path: path.stem)
def test_the_tables_that_are_kept_are_those_of_the_records(path: Path) -> None:
    record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    kinds = {"sweep": sweep_tables, "pool": pool_markdown}
    tables = kinds.get(path.name.partition("-")[0], partial(told, markdown=True))
    assert path.read_text(encoding="utf-8") == tables(record)


def test_what_is_refused_is_told(record: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(record))
    one = changed["comparisons"][0]
    one |= {"refused": "the text differs from token 3: broken", "decode": None, "total": None}
    assert "no claim: the text differs from token 3: broken" in told(changed)
    assert "no claim" in chart(changed)


def test_records_side_by_side(record: dict[str, Any]) -> None:
    faster = json.loads(json.dumps(record))
    for one in faster["comparisons"]:
        one["decode"] = {key: value * 5 for key, value in one["decode"].items()}
    faster["machine"]["cpu"] = "another"
    faster["workloads"][0]["sha256"] = "0"
    text = compared({"before": record, "after": faster})
    rows = [line for line in text.splitlines() if line.startswith(FIXED.name)]
    assert len(rows) == len(WORKLOADS) + 1
    assert any(row.endswith("faster") for row in rows)
    assert "the machine differs" in text
    assert "not the same texts under one name: one" in text


def test_the_chart_is_a_picture(record: dict[str, Any]) -> None:
    root = ET.fromstring(chart(record))
    texts = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert {workload.name for workload in WORKLOADS} <= set(texts)
    bars = [node for node in root.iter() if node.tag.endswith("rect")]
    assert len(bars) == 1 + 2 + len(record["comparisons"])
    assert all(float(bar.get("width", "0")) >= 0 for bar in bars)


def test_columns_line_up() -> None:
    lines = render([["name", "n", ""], ["日本", "1", "x"], ["long name", "22", ""]]).splitlines()
    assert lines[0] == "name        n"
    assert lines[1] == "日本        1  x"
    assert lines[2] == "long name  22"


def test_no_folders_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x")
    command = [str(path), f"llama-server={path}", "hf:owner/repo:Q4_0", "--set", "a.b=c"]
    assert described(command) == [
        "model.gguf",
        "llama-server=model.gguf",
        "hf:owner/repo:Q4_0",
        "--set",
        "a.b=c",
    ]


def test_marks_on_other_characters_take_no_column() -> None:
    marked = "e\N{COMBINING ACUTE ACCENT}a"
    lines = render([["name", "x"], [marked, "1"], ["abcd", "3"]]).splitlines()
    assert lines == ["name  x", f"{marked}    1", "abcd  3"]
