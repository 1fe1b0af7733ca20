"""``gguf-spec chat``, scripted through stdin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import TARGET, Cli, Result


@pytest.fixture
def chat(cli: Cli) -> Cli:
    def call(script: str, *arguments: str) -> Result:
        return cli("chat", TARGET, "-t", "1", "--temp", "0", *arguments, stdin=script)

    return call


def test_answers_go_to_stdout_and_all_else_to_stderr(chat: Cli, tiny: Cli) -> None:
    result = chat("hello\n\n   \n/stats\n", "-n", "6")
    assert result.code == 0
    assert result.out == tiny("-p", "hello", "-n", "6").out
    assert "1 answers, 6 tokens" in result.err
    assert ">" not in result.out


@pytest.mark.parametrize("line", ["long " * 300, "read @latin.txt", "/set target.n_ctx 12\n/retry"])
def test_a_message_without_an_answer_makes_a_script_fail(chat: Cli, line: str) -> None:
    Path("latin.txt").write_bytes(b"\xe9t\xe9")
    result = chat(f"hello\n{line}\n/exit\n", "-n", "6", "-c", "128")
    assert result.code == 1
    assert result.err.count("error: ") == 1
    assert len(result.out.splitlines()) == 1


@pytest.mark.parametrize(
    "line", ["/load broken.json", "/nonsense", "/set top_k many", "/save", "/predict missing.txt"]
)
def test_a_command_that_fails_makes_a_script_fail(chat: Cli, line: str) -> None:
    Path("broken.json").write_text("{", encoding="utf-8")
    result = chat(f"{line}\nhello\n/exit\n", "-n", "2")
    assert result.code == 1
    assert len(result.out.splitlines()) == 1  # the conversation goes on
    assert chat("/help\n/stats\n/undo\n/set top_k 4\n/exit\n").code == 0


def test_a_full_context_holds_no_more_than_it_can(chat: Cli) -> None:
    result = chat("hello\n/stats\n", "-n", "-1", "-c", "64")
    assert "the context of 64 tokens is full" in result.err
    assert "context: 64 of 64 tokens after the last answer" in result.err


def test_a_large_file_is_refused_before_it_is_tokenized(chat: Cli, cli: Cli) -> None:
    Path("large.txt").write_text("word " * 6_000_000, encoding="utf-8")
    result = chat("read @large.txt\nhello\n", "-n", "2")
    assert result.code == 1
    assert "error: the prompt has at least " in result.err
    assert " tokens, the context holds " in result.err
    assert len(result.out.splitlines()) == 1
    for raw in ((), ("--raw",)):
        refused = cli("run", TARGET, "-t", "1", "-f", "large.txt", *raw)
        assert refused.code == 3
        assert "error: the prompt has at least " in refused.err


def test_stats_tell_what_verify_has_found(chat: Cli, verify: Cli) -> None:
    assert "verified: not here" in chat("hello\n/stats\n", "-n", "4", "-c", "300").err
    assert verify("-n", "8", "-c", "300", "--fixed").code == 0
    told = chat("hello\n/stats\n", "-n", "4", "-c", "300", "--fixed").err
    assert "verified: token-identical (" in told


def test_turns_reuse_the_prefix(chat: Cli) -> None:
    result = chat("hello\nmore\n/stats\n", "-n", "6")
    assert len(result.err.split("cached")) == 2
    assert "2 answers" in result.err


def test_undo_and_retry_give_the_same_answer_again(chat: Cli) -> None:
    first, second = "hello\n", "more\n"
    once = chat(first + second, "-n", "6").out
    assert chat(first + second + "/undo\n" + second, "-n", "6").out.startswith(once)
    retried = chat(first + second + "/retry\n", "-n", "6")
    assert retried.out == once + once.splitlines(keepends=True)[-1]
    assert "will be the same" in retried.err


def test_clear_starts_over(chat: Cli) -> None:
    result = chat("hello\n/clear\nhello\n", "-n", "6")
    half = len(result.out) // 2
    assert result.out[:half] == result.out[half:]


def test_system(chat: Cli) -> None:
    script = "/system\n/system Be brief.\n/system\nhello\n"
    result = chat(script, "-n", "6")
    assert "there is no system message" in result.err
    assert "Be brief." in result.err
    assert result.out == chat("hello\n", "-n", "6", "--system", "Be brief.").out


def test_set(chat: Cli) -> None:
    lines = ("/set temp 1.5", "/set sampling.seed 3", "/set top_k=5", "hello")
    result = chat("\n".join(lines), "-n", "20")
    assert "(temperature is 1.5)" in result.err
    changed = chat("hello", "-n", "20", "--temp", "1.5", "--seed", "3", "--top-k", "5")
    assert result.out == changed.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/retyr", "did you mean /retry"),
        ("/undo", "nothing to undo"),
        ("/retry", "nothing to retry"),
        ("/stats", "no answers yet"),
        ("/help", "/system [TEXT]"),
        ("/set", "needs KEY VALUE"),
        ("/set temp", "needs KEY VALUE"),
        ("/set temp hot", "temperature"),
        ("/set temprature 1", "did you mean `temperature`"),
        ("/set target.n_ctx 5", "--set target.n_ctx=5"),
        ("/predict", "no text is expected"),
        ("/predict nothing.txt", "/predict nothing.txt cannot be read: No such file"),
        ("/predict .", "is a folder"),
    ],
)
def test_commands_that_only_say_something(chat: Cli, line: str, said: str) -> None:
    result = chat(f"{line}\n/exit\nnever answered\n")
    done = ("/undo", "/retry", "/stats", "/help", "/set target.n_ctx 5", "/predict")
    assert result.code == (0 if line in done else 1)
    assert said in result.err
    assert result.out == ""


def test_full_context_is_said_and_the_chat_goes_on(chat: Cli, tiny: Cli) -> None:
    result = chat("hello\nmore\n/clear\nhello\n", "-c", "64")
    assert "the context of 64 tokens is full" in result.err
    assert "64" in result.err
    assert "/clear starts over" in result.err
    half = len(result.out) // 2
    assert result.out[:half] == result.out[half:]


def test_a_long_first_message_does_not_end_the_chat(chat: Cli) -> None:
    result = chat(f"{'word ' * 100}\nhello\n", "-c", "64", "-n", "3")
    assert result.code == 1
    assert "the context holds 64" in result.err
    assert result.out


def test_cut_by_predict_is_said(chat: Cli) -> None:
    assert "-n/--predict" in chat("hello\n", "-n", "2").err


def test_no_json(chat: Cli) -> None:
    assert chat("hello\n", "--json").code == 2
