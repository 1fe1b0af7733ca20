"""``gguf-spec bench`` and ``tune``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
@pytest.mark.parametrize("after", [1, 5])
def test_an_interrupt_keeps_finished_runs(after: int) -> None:
    """Ctrl-C comes after so many runs, in the middle of the next one."""
    code = (
        "import os, signal, sys\n"
        "from gguf_spec.bench.runner import Runner\n"
        "answer, done = Runner._answer, 0\n"
        "def interrupt(runner, result, *arguments):\n"
        "    global done\n"
        "    done += result.round > 0\n"
        f"    if done > {after}:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    answer(runner, result, *arguments)\n"
        "Runner._answer = interrupt\n"
        "from gguf_spec.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "bench", *WHAT, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
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
