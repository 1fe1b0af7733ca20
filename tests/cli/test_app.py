"""Help, version, errors as text and as JSON, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gguf_spec import __version__
from gguf_spec.cli import run as run_module
from gguf_spec.cli.app import app
from gguf_spec.cli.output import printable, shortened
from tests.cli.conftest import TARGET, Cli

COMMANDS = [[], ["run"], ["chat"], ["plan"], ["inspect"], ["doctor"], ["profiles"]] + [
    ["profiles", name] for name in ("list", "show", "new", "check", "path", "forget", "schema")
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert "Examples:\n    gguf-spec" in result.output or "gguf-spec" in result.output


@pytest.mark.parametrize("command", [[], ["profiles"]])
def test_no_command_shows_help(cli: Cli, command: list[str]) -> None:
    result = cli(*command)
    assert result.code == 0
    assert "Commands:" in result.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"gguf-spec {__version__}\n"


@pytest.mark.parametrize("command", [[], ["run"], ["chat"], ["profiles"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    heavy = ["numpy", "llama_cpp", "psutil", "gguf", "rich.progress"]
    if not command:
        heavy.append("pydantic")  # typer may use it itself for a command's options
    code = (
        "import sys\n"
        "from gguf_spec.cli.app import run_cli\n"
        f"assert run_cli({[*command, '--help']}) == 0\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "rnu"),
        (["run", "--temmp", "1"], "--temmp"),
        (["run", "-t", "0", "-p", "a"], "'--threads': 0"),
        (["run", "-t", "-1", "-p", "a"], "'--threads': -1"),
        (["run", "-t", "x", "-p", "a"], "'--threads'"),
        (["run", "-t", "513", "-p", "a"], "at most 512"),
        (["run", "--threads-batch", "0", "-p", "a"], "--threads-batch"),
        (["run", "-n", "0", "-p", "a"], "'--predict': 0"),
        (["run", "-n", "-2", "-p", "a"], "'--predict': -2"),
        (["run", "-c", "0", "-p", "a"], "'--ctx-size'"),
        (["run", "-c", "-5", "-p", "a"], "'--ctx-size'"),
        (["run", "-c", "most", "-p", "a"], "'--ctx-size'"),
        (["run", "-c", "99999999999", "-p", "a"], "'--ctx-size'"),
        (["run", "-g", "some", "-p", "a"], "'--n-gpu-layers'"),
        (["run", "--tensor-split", "a,b", "-p", "a"], "--tensor-split"),
        (["run", "--tensor-split", "0,0", "-p", "a"], "--tensor-split"),
        (["run", "--temp", "-1", "-p", "a"], "--temp"),
        (["run", "--temp", "inf", "-p", "a"], "--temp"),
        (["run", "--top-k", "-1", "-p", "a"], "--top-k"),
        (["run", "--top-p", "1.5", "-p", "a"], "--top-p"),
        (["run", "--top-p", "nan", "-p", "a"], "--top-p"),
        (["run", "--min-p", "2", "-p", "a"], "--min-p"),
        (["run", "--repeat-penalty", "0", "-p", "a"], "--repeat-penalty"),
        (["run", "--repeat-penalty", "nan", "-p", "a"], "--repeat-penalty"),
        (["run", "--repeat-penalty", "1e-300", "-p", "a"], "from 0.001 to 1000"),
        (["run", "--n-cpu-moe", "-1", "-p", "a"], "--n-cpu-moe"),
        (["run", "--device", "CUDA0,", "-p", "a"], "--device"),
        (["run", "--device", "none,CUDA0", "-p", "a"], "none stands alone"),
        (["run", "--device", "CUDA77", "-p", "a"], "there is no device CUDA77"),
        (["chat", "--device", "CPU"], "there is no device CPU to offload to"),
        (["run", "--seed", "-2", "-p", "a"], "--seed"),
        (["run", "--stop", "", "-p", "a"], "--stop"),
        (["run", "--think", "maybe", "-p", "a"], "--think"),
        (["run", "--spec-draft-n-max", "0", "-p", "a"], "--spec-draft-n-max"),
        (["run", "--spec-draft-n-min", "-1", "-p", "a"], "--spec-draft-n-min"),
        (["run", "--spec-draft-p-min", "1.1", "-p", "a"], "--spec-draft-p-min"),
        (["run", "--spec-type", "ngarm-simple", "-p", "a"], "did you mean `ngram-simple`"),
        (["run", "--spec-type", "none,ngram", "-p", "a"], "--spec-type"),
        (["run", "--spec-type", "medusa", "-p", "a"], "nearest is draft-mtp or draft-eagle3"),
        (["run", "--spec-type", "ngram-mod,layer-skip", "-p", "a"], "`layer-skip` is not in llama"),
        (["chat", "--spec-type", "Layer_Skip"], "nearest is draft-mtp, or draft-simple"),
        (["run", "--set", "spec.types=medusa", "-p", "a"], "`medusa` is not in llama.cpp"),
        (["run", "-d", "medusa=x", "-p", "a"], "`medusa` is not in llama.cpp"),
        (["run", "--set", "target.n_ctx", "-p", "a"], "KEY=VALUE"),
        (["run", "--set", "target.nctx=5", "-p", "a"], "did you mean `n_ctx`"),
        (["run", "-d", "foo=x", "-p", "a"], "-d/--draft foo=x"),
        (["run", "-d", "ngram=x", "-p", "a"], "takes no draft model"),
        (["run", "-d", "draft=", "-p", "a"], "after the equals sign"),
        (["run", "-d", "x", "-d", "draft=y", "-p", "a"], "two drafts"),
        (["run", "x.gguf", "-m", "y.gguf", "-p", "a"], "two target models"),
        (["run", "-p", "a", "-f", "b"], "cannot be combined"),
        (["run", "--raw", "--system", "b", "-p", "a"], "--system"),
        (["run"], "no prompt"),
        (["chat", "-n", "0"], "'--predict': 0"),
        (["run", "a", "b"], "b"),
        (["inspect"], "REF"),
        (["profiles", "new"], "NAME"),
        (["profiles", "new", ""], "it is empty"),
        (["profiles", "new", "a/b"], "is no name"),
        (["profiles", "new", "a\nb.toml"], "is no name"),
        (["profiles", "new", "hf:owner/repo"], "is no name"),
        (["profiles", "new", "~nobody-of-that-name/x.toml"], "no home folder"),
        (["run", TARGET, "-p", "a", "--system", "\udcff"], "not UTF-8"),
        (["run", TARGET, "-p", "a", "--stop", "\udcff"], "not UTF-8"),
        (["run", TARGET, "-p", "a", "--set", "target.model=\udcff.gguf"], "not UTF-8"),
        (["profiles", "new", "model.gguf"], "is no name"),
        (["profiles", "new", "x", "-d", "ngram=y"], "takes no draft model"),
        (["profiles", "forget"], "PROFILE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_command_lines_exit_2(cli: Cli, arguments: list[str], said: str) -> None:
    result = cli(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert said in result.err
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) <= 2


def test_two_options_that_do_not_fit_are_named_as_typed(cli: Cli) -> None:
    result = cli("run", "-p", "a", "--spec-draft-n-min", "5", "--spec-draft-n-max", "2")
    assert result.code == 2
    assert result.err.startswith("error: --spec-draft-n-min: ")


def test_errors_are_json_too(cli: Cli) -> None:
    result = cli("run", "-t", "0", "-p", "a", "--json")
    assert result.code == 2
    assert result.json["error"]["type"] == "UsageError"
    assert "--threads" in result.json["error"]["message"]
    assert "error: " in result.err
    result = cli("run", "nothing.gguf", "-p", "a", "--json")
    assert result.code == 3
    assert set(result.json["error"]) == {"type", "message", "hint"}
    assert result.json["error"]["type"] == "RefError"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def fail(*arguments: object, **more: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("gguf_spec.cli.choice.make_profile", fail)
    assert run_module.run
    return monkeypatch


def test_unexpected_errors_are_one_line(cli: Cli, broken: pytest.MonkeyPatch) -> None:
    result = cli("run", "-p", "a")
    assert result.code == 1
    assert result.err == "error: unexpected KeyError: 'oops'\nhint: --debug shows more\n"


@pytest.mark.parametrize("arguments", [["run", "--debug"], ["--debug", "run"]])
def test_debug_shows_the_traceback(
    cli: Cli, broken: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    result = cli(*arguments, "-p", "a")
    assert result.code == 1
    assert "Traceback" in result.err


def test_memory_error_is_no_fit(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setattr("gguf_spec.cli.choice.make_profile", fail)
    assert cli("run", "-p", "a").code == 4


def test_debug_shows_the_log_of_llama_cpp(cli: Cli) -> None:
    from gguf_spec.backend import recent_log

    try:
        result = cli("run", TARGET, "-t", "1", "-n", "1", "-p", "a", "--debug")
    finally:
        recent_log().echo = False
    assert result.code == 0
    assert "llama_context" in result.err


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert printable("a\x1b[2Jb\nü日本") == "a\\x1b[2Jb\nü日本"


def test_long_words_are_cut_in_the_middle(cli: Cli) -> None:
    assert shortened("a" * 200 + " b") == "a" * 200 + " b"
    assert len(shortened(f"x {'y' * 5000} z")) < 200
    name = f"folder/{'y' * 5000}.gguf"
    result = cli("run", name, "-p", "a", "--json")
    assert result.code == 3
    assert "folder/yyy" in result.err
    assert "yyy.gguf" in result.err
    assert max(len(line) for line in result.err.splitlines()) < 600
    assert name in result.json["error"]["message"]
    assert len(cli("profiles", "show", f"{'y' * 5000}.toml").err) < 1000


def test_docs_are_current() -> None:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, root / "scripts" / "make_cli_docs", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
