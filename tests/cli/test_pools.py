"""Texts that are kept: ``spec.pool = "profile"``, and ``profiles forget``."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.cli import answer
from gguf_spec.cli.output import Output
from gguf_spec.ngram_pool_file import save_pool
from tests.cli.conftest import DRAFT, OTHER_VOCABULARY, TARGET, Cli

KEEP = ("--set", "spec.pool=profile")
SAMPLED = ("-p", "hello", "-n", "40", "--json", "--temp", "1", "--seed", "5")
PROFILE = f"""
[target]
model = '{TARGET}'
n_threads = 1
[spec]
types = ["ngram-simple"]
pool = "profile"
[spec.ngram-simple]
size_n = 4
"""


def pools() -> list[Path]:
    return sorted(Path("home/cache/pools").glob("*"))


def write(name: str, text: str = PROFILE) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_reference_keeps_texts_too(tiny: Cli) -> None:
    arguments = (*SAMPLED, "--set", "spec.ngram-simple.size_n=4")
    first = tiny(*arguments).json
    assert not pools()
    assert tiny(*arguments, *KEEP).json["tokens"] == first["tokens"]
    assert len(pools()) == 1
    again = tiny(*arguments, *KEEP).json
    assert again["tokens"] == first["tokens"]
    assert again["spec"]["steps"] < first["spec"]["steps"]


def test_profiles_keep_their_texts_apart(cli: Cli) -> None:
    first, second = write("a/mine.toml"), write("b/mine.toml")
    plain = cli("run", first, *SAMPLED).json
    other = cli("run", second, *SAMPLED).json
    assert other["spec"]["steps"] == plain["spec"]["steps"]
    assert cli("run", first, *SAMPLED).json["spec"]["steps"] < plain["spec"]["steps"]
    assert len(pools()) == 2


def test_forget(cli: Cli) -> None:
    write("home/profiles/mine.toml")
    assert cli("profiles", "forget", "mine").out == "nothing is kept for mine\n"
    for _ in range(2):
        cli("run", "mine", *SAMPLED)
    cli("run", TARGET, *SAMPLED, *KEEP, "-t", "1")
    cli("run", "mine", "-m", OTHER_VOCABULARY, *SAMPLED)
    (kept,) = (path for path in pools() if not path.name.startswith("mine-"))
    result = cli("profiles", "forget", "mine")
    assert result.code == 0
    assert "1 text, " in result.out
    assert len(result.out.splitlines()) == 2  # with another tokenizer too
    assert pools() == [kept]
    record = cli("profiles", "forget", TARGET, "--json").json
    assert [item["path"] for item in record["deleted"]] == [str(kept.absolute())]
    assert record["deleted"][0]["tokens"] > 40
    assert pools() == []
    again = cli("profiles", "forget", TARGET, "--json")
    assert again.code == 0
    assert again.json["deleted"] == []


def test_forget_needs_neither_profile_nor_model(cli: Cli) -> None:
    file = Path(write("home/profiles/mine.toml"))
    cli("run", "mine", *SAMPLED)
    file.write_text("[target]\nmodel = 'gone.gguf'\n[spce]\n", encoding="utf-8")
    assert "deleted" in cli("profiles", "forget", "mine").out
    write("home/profiles/mine.toml")
    cli("run", "mine", *SAMPLED)
    file.unlink()
    assert "deleted" in cli("profiles", "forget", "mine").out
    result = cli("profiles", "forget", "mine")
    assert result.code == 3
    assert "no profile named 'mine'" in result.err


@pytest.mark.parametrize("data", [b"", b"GGSPPOOL", b"not a pool" * 10])
def test_damaged_pools_are_refused_and_can_be_forgotten(cli: Cli, data: bytes) -> None:
    write("home/profiles/mine.toml")
    cli("run", "mine", *SAMPLED)
    (pool,) = pools()
    pool.write_bytes(data)
    pool.with_name(f"mine-too-{'0' * 16}.pool").write_bytes(data)
    result = cli("run", "mine", *SAMPLED)
    assert result.code == 3
    assert str(pool.absolute()) in result.err
    assert "delete the file" in result.err
    assert "it was damaged" in cli("profiles", "forget", "mine").out
    assert [path.name for path in pools()] == [f"mine-too-{'0' * 16}.pool"]
    assert cli("run", "mine", *SAMPLED).code == 0


def test_a_pool_of_another_vocabulary_is_refused(cli: Cli) -> None:
    write("home/profiles/mine.toml")
    cli("run", "mine", *SAMPLED)
    (pool,) = pools()
    save_pool(pool, [[1, 2, 3]], fingerprint="0" * 16, n_vocab=7)
    result = cli("run", "mine", *SAMPLED)
    assert result.code == 3
    assert "another tokenizer" in result.err
    assert "with 7 tokens" in result.err


def test_what_comes_up_later_is_said_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write("home/profiles/mine.toml")
    Path("home/cache").mkdir(parents=True)
    Path("home/cache/pools").touch()  # where a folder should be
    monkeypatch.setattr("gguf_spec.session.load_pool", lambda path, **more: [])
    result = cli("run", "mine", "-p", "hello", "-n", "3", "--quiet")
    assert result.code == 0
    assert result.err.startswith("warning: texts for later drafts are not kept: ")
    result = cli("chat", "mine", "-n", "3", "--quiet", stdin="hello\nmore\n/retry\n")
    assert result.code == 0
    assert result.err.count("are not kept") == 1
    assert len(result.out.splitlines()) == 3


def test_warnings_are_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    session = SimpleNamespace(warnings=["one", "two", "one"])
    out = Output.of()
    for _ in range(2):
        answer.show_warnings(session, out)  # type: ignore[arg-type]
    Output.of().warning("one")
    assert capsys.readouterr().err == "warning: one\nwarning: two\nwarning: one\n"


BAD = """
extends = 'base.toml'
[target]
modle = 'x'
n_ctx = 'much'
n_cpu_moe = -1
override_tensor = ['nonsense']
devices = 3
[spec]
pool = 'forever'
types = ['medusa']
[sampling]
repeat_penalty = 0.0
"""


def test_all_problems_of_a_profile_are_listed(cli: Cli) -> None:
    write("bad.toml", BAD)
    write("base.toml", "[spec]\nn_max = 'lots'\n[spec.ngram-mod]\nn_mach = 1\n")
    result = cli("run", "bad.toml", "-p", "a", "--json")
    assert result.code == 3
    problems = result.json["error"]["problems"]
    for line in (4, 5, 6, 7, 8, 10, 11, 13):
        assert sum(problem.startswith(f"bad.toml:{line}:") for problem in problems) == 1, line
    assert sum(problem.startswith("base.toml:") for problem in problems) == 2
    assert len(problems) == 10
    assert all(problem in result.err for problem in problems)
    assert "`medusa` is not in llama.cpp" in result.err


def test_a_profile_that_extends_itself(cli: Cli) -> None:
    write("a.toml", "extends = 'b.toml'\n")
    write("b.toml", "extends = 'a.toml'\n[sampling]\ntemprature = 1\n")
    result = cli("run", "a.toml", "-p", "a", "--json")
    assert result.code == 3
    assert "circle: a.toml -> b.toml -> a.toml" in result.err
    assert len(result.json["error"]["problems"]) == 2


def test_a_lora_that_is_none(cli: Cli) -> None:
    write("lora.toml", f"{PROFILE.replace('n_threads = 1', '')}[sampling]\n")
    text = Path("lora.toml").read_text(encoding="utf-8")
    text = text.replace("[spec]", f"lora = ['{DRAFT}:0.5']\n[spec]", 1)
    write("lora.toml", text)
    result = cli("run", "lora.toml", "-p", "a")
    assert result.code == 3
    assert "not a LoRA adapter" in result.err
    assert os.path.basename(DRAFT) in result.err
    assert cli("run", TARGET, "-p", "a", "--set", "target.lora=gone.gguf").code == 3


def test_placement_that_is_not_here(cli: Cli) -> None:
    for setting in ("target.devices=CUDA77", "target.override_tensor=ffn=CUDA77"):
        result = cli("run", TARGET, "-t", "1", "-p", "a", "--set", setting)
        assert result.code == 3
        assert "CUDA77" in result.err
    result = cli("run", TARGET, "-t", "1", "-p", "a", "-n", "2", "--device", "none")
    assert result.code == 0
