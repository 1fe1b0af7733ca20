"""``gguf-spec bench`` and ``tune``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gguf_spec.cli.tune import WORKLOADS
from gguf_spec.profile import load_profile
from tests.cli.conftest import DRAFT, TARGET, Cli

SHORT = ("-t", "1", "-c", "300", "-n", "10")
WHAT = (TARGET, *SHORT, "--workload", "prompt.txt")
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")


@pytest.fixture(autouse=True)
def _prompt() -> None:
    Path("prompt.txt").write_text("x y z x y z x y", encoding="utf-8")


def _records() -> list[Path]:
    return sorted(Path("bench_results").glob("*.json"))


def _document(path: Path) -> Any:
    """The record at ``path``."""
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_record_and_its_readers(cli: Cli) -> None:
    result = cli("bench", *WHAT, "-d", DRAFT, "--repeat", "2", "--json")
    assert (result.code, result.err) == (0, "")
    record = result.json
    (path,) = _records()
    assert record.pop("path") == str(path)
    assert json.loads(path.read_text(encoding="utf-8")) == record
    assert [one["name"] for one in record["setups"]] == ["plain", "auto"]
    assert record["comparisons"][0]["equal"]
    assert path.with_suffix(".svg").read_text(encoding="utf-8").startswith("<svg")
    shown = cli("bench", "show", str(path))
    assert shown.code == 0
    assert "prompt.txt" in shown.out
    assert cli("bench", "show", str(path), "--json").json == record
    again = cli("bench", *WHAT, "-d", DRAFT, "--repeat", "1", "--quiet")
    assert (again.code, again.err) == (0, "")
    assert "auto beside plain" in again.out
    first, second = _records()
    compared = cli("bench", "compare", str(first), str(second))
    assert compared.code == 0
    assert first.stem in compared.out
    assert len(cli("bench", "compare", str(first), str(second), "--json").json["records"]) == 2


def test_types_are_compared_one_by_one(cli: Cli) -> None:
    types = "ngram-simple,draft-simple"
    more = ("-d", DRAFT, "--spec-type", types, "--fixed", "--synthetic", "0.7", "--repeat", "1")
    record = cli("bench", *WHAT, *more, "-o", "elsewhere", "--json").json
    names = [one["name"] for one in record["setups"]]
    assert names == ["plain", "ngram-simple fixed", "draft-simple fixed", "synthetic 0.7"]
    assert Path(record["path"]).parent == Path("elsewhere")


def test_synthetic_alone(cli: Cli) -> None:
    more = ("--synthetic", "1", "--spec-draft-n-max", "4", "--repeat", "1", "--json")
    record = cli("bench", *WHAT, *more).json
    assert [one["name"] for one in record["setups"]] == ["plain", "synthetic 1"]
    run = next(one for one in record["runs"] if one["setup"] == "synthetic 1")
    assert run["num_accepted_tokens"] == run["num_draft_tokens"] > 0
    assert run["steps"] < 9


def test_nothing_is_kept_for_later_runs(cli: Cli) -> None:
    """A profile that keeps texts: what is measured must not come from them, nor go into them."""
    Path("mine.toml").write_text(
        f'[target]\nmodel = "{TARGET}"\n[spec]\ntypes = ["ngram-simple"]\npool = "profile"\n'
    )
    result = cli("bench", "mine.toml", *SHORT, "--workload", "prompt.txt", "--repeat", "1")
    assert result.code == 0
    assert not list(Path("home").rglob("pools/*"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--workload", "ecko"), 2, "did you mean 'echo'"),
        (("--workload", "empty.txt"), 3, "empty"),
        (("--workload", "latin.txt"), 3, "not UTF-8"),
        (("--workload", "prompt.txt", "--workload", "sub/prompt.txt"), 2, "two workloads"),
        (("--repeat", "0"), 2, "too small"),
        (("--synthetic", "1.5"), 2, "0 to 1"),
        (("--spec-type", "none"), 2, "nothing to compare"),
        (("--peer", "vllm"), 2, "not llama-server"),
        (("--peer", "llama-server="), 2, "not llama-server"),
        (("--peer", "llama-server=absent"), 2, "no program absent"),
        (("--peer", "llama-server=dies", "--workload", "prompt.txt"), 1, "code 3"),
        (("-o", "prompt.txt", "--workload", "prompt.txt"), 3, "cannot be written"),
        (("other",), 2, "too many arguments: other"),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    Path("empty.txt").write_bytes(b"\n")
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("sub").mkdir()
    Path("sub/prompt.txt").write_text("hello")
    Path("dies").write_text("#!/bin/sh\nexit 3\n")
    Path("dies").chmod(0o755)
    result = cli("bench", TARGET, *SHORT, *arguments)
    assert result.code == code
    assert message in result.err
    assert not _records()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show",), 2),
        (("compare", "prompt.txt"), 2),
        (("show", "absent.json"), 3),
        (("show", "prompt.txt"), 3),
    ],
)
def test_no_records_to_read(cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    assert cli("bench", *arguments).code == code


def test_broken_is_exit_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from gguf_spec.bench.runner import Runner

    make = Runner.__init__

    def then_break(runner: Runner, *arguments: Any, **named: Any) -> None:
        make(runner, *arguments, **named)
        monkeypatch.setattr(
            "gguf_spec.engine.judge",
            lambda draft, sampler, history, logits, row, drawn: (
                len(draft),
                int(logits(row + len(draft)).argmax()),
            ),
        )

    monkeypatch.setattr(Runner, "__init__", then_break)
    result = cli("bench", *WHAT, "-d", DRAFT, "--spec-type", "draft-simple", "--fixed",
                 "--repeat", "2")  # fmt: skip
    assert result.code == 1
    assert re.search(r"no claim: the text differs from token \d+: broken", result.out)


def test_a_disk_that_is_full(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("bench", *WHAT, "--repeat", "1").code == 0
    before = {path: path.read_bytes() for path in Path("bench_results").iterdir()}

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf_spec.bench.records.os.fsync", full)
    result = cli("bench", *WHAT, "--repeat", "1")
    assert result.code == 3
    assert "No space left on device" in result.err
    assert "auto beside plain" in result.out  # it has been measured, so it is shown
    assert {path: path.read_bytes() for path in Path("bench_results").iterdir()} == before


@posix
@pytest.mark.parametrize(
    ("after", "name", "ends"),
    [
        (1, "SIGINT", 130),
        (5, "SIGINT", 130),
        (1, "SIGTERM", -15),
        (5, "SIGTERM", -15),
        (5, "SIGHUP", -1),
    ],
)
def test_an_interrupt_keeps_finished_runs(after: int, name: str, ends: int) -> None:
    """Ctrl-C, or a signal that ends, comes after so many runs, in the middle of the next one."""
    code = (
        "import os, signal, sys\n"
        "from gguf_spec.bench.runner import Runner\n"
        "answer, done = Runner._answer, 0\n"
        "def interrupt(runner, result, *arguments):\n"
        "    global done\n"
        "    done += result.round > 0\n"
        f"    if done > {after}:\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    answer(runner, result, *arguments)\n"
        "Runner._answer = interrupt\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "bench", *WHAT, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == ends
    assert "Traceback" not in done.stderr
    if after == 1 and ends < 0:  # it dies of the signal: nobody asks what it says then
        assert not _records()
        return
    document = json.loads(done.stdout)
    if after == 1:  # plain decoding alone is no pair
        assert document["error"]["type"] == "KeyboardInterrupt"
        assert not _records()
        return
    assert not document["complete"]
    assert len(document["runs"]) == after
    assert len(document["comparisons"][0]["pairs"]) == 2
    assert len(_records()) == 1


def test_tune_writes_a_profile(cli: Cli) -> None:
    more = ("--spec-type", "ngram-simple", "--repeat", "5", "-o", "tuned.toml")
    result = cli("tune", *WHAT, *more, "--json")
    assert (result.code, result.err) == (0, "")
    record = result.json
    assert record["profile"] == "tuned.toml"
    assert len(record["tried"]) == 9
    tuned = load_profile("tuned.toml")
    assert tuned.spec.types == (("ngram-simple",) if record["worth_it"] else ("none",))
    assert tuned.target.model == TARGET
    before = Path("tuned.toml").read_text(encoding="utf-8")
    refused = cli("tune", *WHAT, *more)
    assert refused.code == 3
    assert "there already" in refused.err
    assert Path("tuned.toml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--spec-type", "none"), 2),
        (("--workload", "ecko"), 2),
        (("-o", "a/b"), 2),
        (("--repeat", "4"), 2),
        (("-m", "absent.gguf"), 2),
    ],
)
def test_bad_input_for_tune(cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    assert cli("tune", *WHAT, *arguments).code == code


def test_damaged_records_are_told(cli: Cli) -> None:
    """A value of the wrong kind, and one that only a comparison reads."""
    assert cli("bench", TARGET, "-t", "1", "--repeat", "1", "-n", "2", "--workload", "prompt.txt",
               "--spec-type", "ngram-simple").code == 0  # fmt: skip
    (good,) = _records()
    record = json.loads(good.read_text(encoding="utf-8"))
    bad = Path("bad.json")
    bad.write_text(json.dumps({**record, "peak_memory": []}), encoding="utf-8")
    for words in (("show", "bad.json"), ("compare", str(good), "bad.json")):
        result = cli("bench", *words)
        assert result.code == 3
        assert "bad.json: is damaged" in result.err
    record["workloads"][0]["name"] = {}
    bad.write_text(json.dumps(record), encoding="utf-8")
    result = cli("bench", "compare", str(good), "bad.json")
    assert result.code == 3
    assert "is damaged" in result.err


TRICKY = ("new\nline.txt", "esc\x1b[31m.txt", "caf\udce9.txt", "a|b&<c>.txt")


@posix
def test_names_that_cannot_be_shown(cli: Cli) -> None:
    """Line breaks, escapes and bytes that are no UTF-8 in names of files: the record is written,
    and its tables and its picture are whole."""
    for name in TRICKY:
        Path(name).write_text("x y z x y z", encoding="utf-8")
    named = [part for name in TRICKY for part in ("--workload", name)]
    more = ("--spec-type", "ngram-simple", "--repeat", "1")
    result = cli("bench", TARGET, *SHORT, *named, *more)
    assert result.code == 0
    (path,) = _records()
    names = [one["name"] for one in json.loads(path.read_text("utf-8"))["workloads"]]
    assert names == ["new\\nline.txt", "esc\\x1b[31m.txt", "caf\\udce9.txt", "a|b&<c>.txt"]
    for name in names:
        assert re.search(rf"^{re.escape(name)} ", result.out, re.MULTILINE)
    picture = ElementTree.fromstring(path.with_suffix(".svg").read_text("utf-8"))
    assert set(names) <= {element.text for element in picture.iter()}
    rows = [line for line in path.with_suffix(".md").read_text("utf-8").splitlines() if "|" in line]
    assert all(line.startswith("| ") and line.endswith(" |") for line in rows[1:])


@posix
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_record_is_written_if_nobody_reads(options: tuple[str, ...]) -> None:
    more = ("--spec-type", "ngram-simple", "--repeat", "1", *options)
    command = [sys.executable, "-m", "gguf_spec", "bench", *WHAT, *more]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (1, False)
    assert b"No space left" in done.stderr
    (path,) = _records()
    assert _document(path)["complete"]


@posix
@pytest.mark.parametrize(
    "where",
    ["gguf_spec.bench.records._write", "gguf_spec.bench.chart.chart", "gguf_spec.bench.table.told"],
)
def test_an_interrupt_is_too_late_for_what_is_measured(where: str) -> None:
    """It comes while the record is made or written: the record is there, and whole."""
    module, name = where.rsplit(".", 1)
    code = (
        "import os, signal\n"
        f"import {module} as module\n"
        f"inner = module.{name}\n"
        "def interrupted(*arguments, **named):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return inner(*arguments, **named)\n"
        f"module.{name} = interrupted\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    more = ("--spec-type", "ngram-simple", "--repeat", "1", "--quiet")
    command = [sys.executable, "-c", code, "bench", *WHAT, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = _records()
    assert _document(path)["complete"]
    assert len(list(path.parent.iterdir())) == 3


@posix
def test_a_record_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    from gguf_spec.bench import records

    record = {"model": {"files": [{"file": "m.gguf"}]}}

    def interrupted(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_write", interrupted)
        (tmp_path / "out").mkdir()
        with pytest.raises(KeyboardInterrupt):
            records.write_record(tmp_path / "out", record, {".md": ""})
    assert not list((tmp_path / "out").iterdir())


def test_numbers_that_are_none_and_other_versions(cli: Cli) -> None:
    assert cli("bench", *WHAT, "--spec-type", "ngram-simple", "--repeat", "1").code == 0
    (good,) = _records()
    text = good.read_text(encoding="utf-8")
    for name, changed in {
        "nan.json": re.sub('"median": [0-9.]+', '"median": NaN', text),
        "huge.json": re.sub('"median": [0-9.]+', '"median": 1e999', text),
        "true.json": text.replace('"version": 1,', '"version": true,'),
        "two.json": text.replace('"version": 1,', '"version": 2,'),
    }.items():
        assert changed != text
        Path(name).write_text(changed, encoding="utf-8")
        assert cli("bench", "show", name).code == 3
    Path("rows.json").write_text(text.replace("prompt.txt", "a\\u001b[31m\\nb"), encoding="utf-8")
    assert re.search(r"^a\\x1b\[31m\\nb ", cli("bench", "show", "rows.json").out, re.MULTILINE)
    twice = cli("bench", "compare", str(good), str(good), "--json")
    assert list(twice.json["records"]) == [str(good)]


@pytest.mark.parametrize("name", ["~nobody-of-this-name/prompt.txt", "a" * 300])
def test_no_such_workload(cli: Cli, name: str) -> None:
    result = cli("bench", TARGET, "--workload", name)
    assert result.code == 2
    assert "no workload and no file" in result.err


@pytest.mark.parametrize(
    "path", ["prompt.txt/a.toml", f"{'a' * 300}.toml", "folder.toml", "/dev/null/a.toml"]
)
def test_tune_finds_out_first_that_it_cannot_write(
    cli: Cli, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_spec.tune.search", None)
    Path("folder.toml").mkdir()
    result = cli("tune", *WHAT, "--force", "-o", path)
    assert result.code == 3
    assert "cannot be written" in result.err
    assert sorted(Path.cwd().iterdir()) == [
        Path("folder.toml").absolute(),
        Path("prompt.txt").absolute(),
    ]


def test_tune_shows_what_it_cannot_write(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, *, force: bool) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf_spec.cli.new_profile._write_whole", full)
    result = cli("tune", *WHAT, "--spec-type", "ngram-simple", "--repeat", "5", "-o", "a.toml")
    assert result.code == 3
    assert "tried, best first" in result.out
    assert "No space left" in result.err
    assert not Path("a.toml").exists()


def test_tune_decodes_as_it_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line decides over the workload, and what does not fit is left out."""
    import gguf_spec.tune
    from gguf_spec.bench.runner import Runner

    search, seen = gguf_spec.tune.search, []

    def watched(runner: Runner, *arguments: Any, **named: Any) -> Any:
        seen.append(runner)
        return search(runner, *arguments, **named)

    monkeypatch.setattr("gguf_spec.tune.search", watched)
    more = ("--temp", "0.5", "--seed", "7", "--spec-type", "ngram-cache", "--repeat", "5")
    result = cli("tune", TARGET, "-t", "1", "-c", "250", "-n", "4", *more, "-o", "a.toml")
    assert result.code == 0
    assert "not measured: extract" in result.err
    (runner,) = seen
    assert len(runner.conversations) < len(WORKLOADS)
    for conversation in runner.conversations:
        assert conversation.prompts[0].params.sampling.temperature == 0.5
        assert conversation.prompts[0].params.sampling.seed == 7
    assert "extract" not in Path("a.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'turns = "{"x " * 100_000}"', "must be an array of texts, got 'x x"),
        (f"turns = {{a = {'9' * 5000}}}", "a number has more than 64 bits"),
        ('turns = ["a"]\ntemperature = true', "must be a number, got True"),
        ('turns = ["a"]\nseed = 1979-05-27', "must be a whole number"),
        ('turns = ["a"]\nsystem = 1', "must be a text, got 1"),
    ],
)
def test_workloads_that_are_none(cli: Cli, text: str, message: str) -> None:
    """They are told in a line, however long they are."""
    Path("odd.toml").write_text(text, encoding="utf-8")
    result = cli("bench", TARGET, *SHORT, "--workload", "odd.toml")
    assert result.code == 3
    assert message in result.err
    assert len(result.err) < 300


def test_a_context_too_small_for_all_is_told_in_a_line(cli: Cli) -> None:
    result = cli("bench", TARGET, "-t", "1", "-c", "8", "-n", "2")
    assert result.code == 2
    assert "the context has 8; nor can the" in result.err
    assert len(result.err.splitlines()) == 2
    assert len(result.err) < 300


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"format": "gguf-spec bench",\n "version"', "line 2, column 11"),
        (b'{"a": NaN}', "a number is none"),
        (b"\xff\xfe\x00", "byte"),
        (b"[" * 100_000, "too deep"),
    ],
)
def test_records_that_were_cut(cli: Cli, content: bytes, reason: str) -> None:
    Path("cut.json").write_bytes(content)
    result = cli("bench", "show", "cut.json")
    assert result.code == 3
    assert "was cut or changed" in result.err
    assert reason in result.err


@posix
def test_tune_replaces_nothing_but_the_profile(cli: Cli) -> None:
    """No pipe or device, even by a link, and no file that only has a similar name."""
    os.mkfifo("pipe")
    Path("mine.toml").symlink_to("pipe")
    more = ("--spec-type", "ngram-simple", "--repeat", "5", "--force", "-o")
    result = cli("tune", *WHAT, *more, "mine.toml")
    assert result.code == 3
    assert "not a regular file" in result.err
    assert Path("pipe").is_fifo()
    Path("yours.toml").write_text("# mine\n", encoding="utf-8")
    Path("yours.toml.new").write_text("precious", encoding="utf-8")
    assert cli("tune", *WHAT, *more, "yours.toml").code == 0
    assert Path("yours.toml.new").read_text(encoding="utf-8") == "precious"
    assert "gguf-spec tune" in Path("yours.toml").read_text(encoding="utf-8")
