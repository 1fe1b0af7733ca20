"""The expected answer: ``run --predict-file`` and ``/predict`` in ``chat``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import DRAFT, TARGET, Cli

ARGUMENTS = ("-p", "hello", "-n", "40", "--json", "--temp", "1", "--seed", "5")


@pytest.fixture
def answer(tiny: Cli) -> str:
    """A file with what will be answered, which no n-gram of the text so far gives."""
    Path("answer.txt").write_text(tiny(*ARGUMENTS).json["text"], encoding="utf-8")
    return "answer.txt"


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k4v", "ngram-mod", "ngram-cache"])
def test_the_expected_answer_is_drafted(tiny: Cli, answer: str, kind: str) -> None:
    plain = tiny(*ARGUMENTS, "--spec-type", kind).json
    record = tiny(*ARGUMENTS, "--spec-type", kind, "--predict-file", answer).json
    assert record["tokens"] == plain["tokens"]
    gain = record["spec"]["num_accepted_tokens"] - plain["spec"]["num_accepted_tokens"]
    assert gain > 10
    assert record["spec"]["steps"] < plain["spec"]["steps"]


@pytest.mark.parametrize(
    ("file", "said"),
    [("missing.txt", "No such file"), (".", "is a folder"), ("latin.txt", "not UTF-8")],
)
def test_files_that_cannot_be_used(tiny: Cli, file: str, said: str) -> None:
    Path("latin.txt").write_bytes("naïve".encode("latin-1"))
    result = tiny("-p", "hello", "--predict-file", file)
    assert result.code == 3
    assert f"{file} " in result.err
    assert said in result.err
    assert "--predict-file" in result.err or file == "latin.txt"


def test_an_empty_file_is_ignored(tiny: Cli) -> None:
    Path("empty.txt").write_text("\n", encoding="utf-8")
    result = tiny(*ARGUMENTS, "--predict-file", "empty.txt")
    assert result.code == 0
    assert result.err == "warning: --predict-file: the file is empty, and ignored\n"


@pytest.mark.parametrize("types", ["none", "draft-simple"])
def test_without_ngrams_it_is_not_used(tiny: Cli, answer: str, types: str) -> None:
    draft = ("-d", DRAFT) if types == "draft-simple" else ()
    result = tiny(*ARGUMENTS, "--predict-file", answer, "--spec-type", types, *draft, "--quiet")
    assert result.code == 0
    assert f"--predict-file is NOT used: n-grams draft from it, and the spec type is {types}" in (
        result.err
    )
    assert "--spec-type ngram-simple" in result.err
    assert len(result.err.splitlines()) == 1


def test_chat_expects_one_answer(cli: Cli, answer: str) -> None:
    def chat(script: str, *more: str) -> tuple[str, list[str]]:
        arguments = ("-t", "1", "--temp", "1", "--seed", "5", "-n", "40", "--fixed", *more)
        result = cli("chat", TARGET, *arguments, stdin=script)
        assert result.code == 0
        return result.out, result.err.splitlines()

    def drafts(lines: list[str]) -> str:
        return next(line for line in lines if "drafts: " in line)

    plain, told = chat("hello\n/stats\n")
    expected, told_expected = chat(f"/predict {answer}\nhello\n/stats\n")
    cleared, told_cleared = chat(f"/predict {answer}\n/predict\nhello\n/stats\n")
    assert plain == expected == cleared
    assert any(f"tokens of {answer} next)" in line for line in told_expected)
    assert "(no text is expected any more)" in told_cleared
    assert drafts(told) == drafts(told_cleared) != drafts(told_expected)
    _, told = chat(f"/predict {answer}\nhello\n/predict\n")
    assert "no text is expected" in told
    _, told = chat(f"/predict {answer}\n/predict {answer}\n", "--spec-type", "none")
    assert sum("/predict is NOT used" in line for line in told) == 2
