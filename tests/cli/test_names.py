"""Names of profiles, models and files that are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import DRAFT, TARGET, Cli

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX files and names")
NO_HOME = "~nobody-of-that-name"
COMMANDS = [
    ("profiles", "show"),
    ("profiles", "check"),
    ("profiles", "forget"),
    ("profiles", "path"),
    ("run", "-p", "a"),
]
ids = " ".join


@pytest.mark.parametrize("name", [".", "./", "/", "//", "..", "/..", "../", "home/.."])
@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_folders_are_neither_profiles_nor_models(
    cli: Cli, command: tuple[str, ...], name: str
) -> None:
    Path("home").mkdir()
    result = cli(*command, name)
    assert result.code == 3
    assert "is a folder" in result.err
    assert result.out == ""


@pytest.mark.parametrize("name", [NO_HOME, f"{NO_HOME}/x", f"{NO_HOME}/x.toml"])
@pytest.mark.parametrize("command", COMMANDS, ids=ids)
def test_homes_of_nobody(cli: Cli, command: tuple[str, ...], name: str) -> None:
    result = cli(*command, name)
    assert result.code == 3
    assert result.err.startswith("error: ")
    assert cli("run", f"{NO_HOME}/x.gguf", "-p", "a").code == 3
    assert cli("run", TARGET, "-p", "a", "-d", f"{NO_HOME}/x.gguf").code == 3


def test_no_profile_is_written_for_nobody(cli: Cli) -> None:
    assert cli("profiles", "new", f"{NO_HOME}/x.toml").code == 2
    assert not Path(NO_HOME).exists()
    assert cli("profiles", "new", f"./{NO_HOME}/x.toml").code == 0
    assert Path(NO_HOME, "x.toml").is_file()


@posix
def test_names_that_are_not_utf8(cli: Cli) -> None:
    name = os.fsdecode(b"f\xff.gguf")
    try:
        shutil.copy(TARGET, name)
    except OSError:
        pytest.skip("this file system has no such names")
    assert cli("inspect", name).code == 0
    for arguments in ((name,), ("-m", name), (TARGET, "-d", name), (TARGET, "-d", f"draft={name}")):
        result = cli("run", *arguments, "-p", "a")
        assert result.code == 3
        assert "the name is not UTF-8" in result.err
    assert cli("profiles", "new", "mine", "-m", name).code == 3
    assert cli("profiles", "forget", name).code == 0
    assert cli("chat", name).code == 3


@posix
def test_a_device_is_no_profile(cli: Cli) -> None:
    for command in COMMANDS[:2]:
        result = cli(*command, "/dev/null")
        assert result.code == 3
        assert "is not a regular file" in result.err
    assert "is not a regular file" in cli("run", "/dev/null", "-p", "a").err


@posix
def test_special_files_are_neither_waited_for_nor_read() -> None:
    """The prompt is from a file: beside -p, what is piped in is read as a part of it."""
    Path("a").write_text("a", encoding="utf-8")
    os.mkfifo("pipe")
    os.mkfifo("pipe.toml")
    os.mkfifo("pipe.gguf")
    bind = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    subprocess.run([sys.executable, "-c", bind], check=True)
    devices = ("pipe", "sock", "/dev/zero", "/dev/stdin")
    model = ("run", TARGET, "-t", "1", "-n", "1", "-f", "a")
    lines = [
        *(("run", name, "-f", "a") for name in (*devices, "pipe.gguf", "pipe.toml")),
        *((*model, "-d", name) for name in devices),
        *((*model, "--set", f"target.lora={name}") for name in devices),
        *(("plan", TARGET, "--probe", "off", "--mmproj", name) for name in devices),
        *(
            (*model, option, name)
            for name in devices[:3]
            for option in ("--grammar", "--json-schema", "--predict-file")
        ),
        *(("run", TARGET, "-f", name) for name in devices[:3]),
        *(("bench", TARGET, "--workload", name) for name in devices[:3]),
        (
            *model,
            "--spec-type",
            "ngram-cache",
            "--set",
            "spec.ngram-cache.lookup_cache_static=pipe",
        ),
    ]
    reader, writer = os.pipe()  # a stdin into which nobody ever writes
    try:
        done = run_all(lines, stdin=reader)
    finally:
        os.close(reader)
        os.close(writer)
    for line, (code, text) in zip(lines, done, strict=True):
        assert code == 3, (line, text)
        assert "is not a regular file" in text, (line, text)


def run_all(lines: list[tuple[str, ...]], stdin: int) -> list[tuple[int, str]]:
    """Exit code and messages of each line, all of them in one process, within a minute."""
    code = (
        "import contextlib, io, json, sys\n"
        "from gguf_spec.cli.app import run_cli\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "        code = run_cli(line)\n"
        "    print(json.dumps([code, said.getvalue()]), flush=True)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=60)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@posix
def test_prompts_come_from_pipes_that_are_open(tiny: Cli) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"def read(")
    os.close(writer)
    command = ["run", TARGET, "-t", "1", "-n", "2", "-f", "/dev/stdin"]
    done = subprocess.run(
        [sys.executable, "-m", "gguf_spec", *command],
        stdin=reader, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    os.close(reader)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert tiny("-n", "2", "-f", "-", stdin="def read(").out
    reader, writer = os.pipe()
    os.write(writer, b"def read(")
    os.close(writer)
    assert tiny("-n", "2", "-f", f"/dev/fd/{reader}").out
    os.close(reader)


@posix
def test_a_pipe_is_a_profile(cli: Cli) -> None:
    reader, writer = os.pipe()
    try:
        text = f"[target]\nmodel = '{TARGET}'\nn_threads = 1\n"
        os.write(writer, text.encode())
        os.close(writer)
        assert cli("run", f"/dev/fd/{reader}", "-p", "a", "-n", "2", "--temp", "0").code == 0
    finally:
        os.close(reader)


@posix
def test_what_is_no_file_is_not_opened_for_a_pool(tiny: Cli, cli: Cli) -> None:
    keep = ("-p", "a", "-n", "2", "--set", "spec.pool=profile")
    assert tiny(*keep).code == 0
    (pool,) = Path("home/cache/pools").glob("*.pool")
    pool.unlink()
    os.mkfifo(pool)
    result = tiny(*keep)
    assert result.code == 3
    assert "is not a regular file" in result.err
    os.mkfifo(pool.with_name(f"other-{'0' * 16}.pool"))
    pool.with_name(f"folder-{'0' * 16}.pool").mkdir()
    assert str(pool.name) in cli("profiles", "forget", TARGET).out
    assert not pool.exists()
    assert tiny(*keep).code == 0


def test_a_home_that_is_a_file(tiny: Cli, cli: Cli) -> None:
    Path("home").write_text("", encoding="utf-8")
    result = tiny("-p", "a", "-n", "2", "--set", "spec.pool=profile")
    assert result.code == 0
    assert result.out
    assert result.err.startswith("warning: texts for later drafts are not kept: ")
    assert cli("profiles", "forget", TARGET).code == 0
    assert cli("profiles", "list").code == 0


def test_all_experts_on_the_cpu(tiny: Cli) -> None:
    assert tiny("-p", "a", "-n", "2", "--n-cpu-moe", "2147483647").code == 0


@pytest.mark.parametrize(
    "settings",
    [
        ('target.override_tensor=["[=CPU"]',),
        ("chat.template={messages=[]}",),
        ("spec.draft.type_v=q8_0", "target.flash_attn=off"),
        ("target.main_gpu=2147483648",),
        ("sampling.presence_penalty=-1e300",),
    ],
    ids=ids,
)
def test_values_that_libllama_could_not_use(cli: Cli, settings: tuple[str, ...]) -> None:
    given = [part for item in settings for part in ("--set", item)]
    result = cli("run", TARGET, "-d", DRAFT, "-p", "a", *given)
    assert result.code == 2
    table = {item.split("=", 1)[0]: item.split("=", 1)[1] for item in settings}
    lines = [f"{key} = {value}" for key, value in table.items()]
    text = "\n".join(lines).replace("q8_0", "'q8_0'").replace("= off", "= 'off'")
    Path("p.toml").write_text(text, encoding="utf-8")
    assert cli("run", "p.toml", "-m", TARGET, "-p", "a").code == 3


def test_the_penalties_look_back_at_everything(tiny: Cli) -> None:
    arguments = ("-p", "a", "-n", "100", "--json", "--set", "sampling.presence_penalty=100")
    plain = tiny(*arguments, "--set", "sampling.penalty_last_n=-1", "--spec-type", "none").json
    assert len(set(plain["tokens"])) == len(plain["tokens"])
    assert plain["sampling"]["penalty_last_n"] == -1
    assert tiny(*arguments, "--set", "sampling.penalty_last_n=-1").json["tokens"] == plain["tokens"]
    few = tiny(*arguments, "--set", "sampling.penalty_last_n=4").json["tokens"]
    assert len(set(few)) < len(few)


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"])
def test_folders_in_homes_of_nobody(
    cli: Cli, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is there, and a variable that is wrong for others stops nobody here."""
    monkeypatch.setenv(variable, f"{NO_HOME}/x")
    result = cli("models", "--json")
    assert result.code == 0
    assert isinstance(result.json["models"], list)


def test_a_folder_of_models_in_a_home_of_nobody(cli: Cli) -> None:
    result = cli("models", f"{NO_HOME}/x")
    assert result.code == 3
    assert "is no folder" in result.err


def test_records_go_home(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves ``--output=~/x`` as it is."""
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    Path("prompt.txt").write_text("x y z", encoding="utf-8")
    more = ("-t", "1", "-c", "300", "-n", "2", "--repeat", "1", "--spec-type", "ngram-simple")
    result = cli("bench", TARGET, *more, "--workload", "prompt.txt", "--output=~/x")
    assert result.code == 0
    assert len(list(Path("home/x").glob("*.json"))) == 1
