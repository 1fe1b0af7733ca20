"""Commands of ``chat`` that reach beyond its messages."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gguf_spec.cli import completion, first_run
from gguf_spec.cli.answer import prepare_setup
from gguf_spec.cli.conversation import Conversation
from gguf_spec.cli.loaded import Loaded
from gguf_spec.cli.output import Output
from gguf_spec.cli.status import fitted
from gguf_spec.cli.turns import Turns
from gguf_spec.errors import InputError
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import Setup
from tests.cli.conftest import DRAFT, TARGET, Cli, Result

NGRAM = ("--spec-type", "ngram-simple", "--set", "spec.ngram-simple.size_n=3", "--fixed")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture
def chat(cli: Cli) -> Cli:
    def call(script: str, *arguments: str) -> Result:
        return cli("chat", TARGET, "-t", "1", "--temp", "0", "-n", "8", *arguments, stdin=script)

    return call


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny target with the chat template of a model that reasons."""
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", "--chat-template",
         TEMPLATE, TARGET, str(path)], check=True, capture_output=True,
    )  # fmt: skip
    return str(path)


# ---------------------------------------------------------------- Ctrl-C in a command


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    """A chat in a terminal, between two prompts."""
    out = Output.of()
    profile = apply_values(Profile(), {"target.model": TARGET, "target.n_threads": 1})
    with Loaded(prepare_setup(profile, out), out) as loaded:
        yield Conversation(Turns(loaded, out, 4, interactive=True))


def test_ctrl_c_ends_a_command_and_not_the_chat(
    conversation: Conversation, capfd: pytest.CaptureFixture[str]
) -> None:
    interrupt = partial(signal.raise_signal, signal.SIGINT)
    conversation.commands["/wait"] = (lambda rest: interrupt(), "", "")
    assert conversation.take("/wait") is None
    assert "(interrupted)" in capfd.readouterr().err
    assert conversation.take("hello") == "length"
    conversation.turns.interactive = False
    with pytest.raises(KeyboardInterrupt):
        conversation.take("/wait")


def test_ctrl_c_behind_a_retried_answer_leaves_one_of_them(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = conversation.turns
    conversation.take("hello")
    before = [dict(message) for message in turns.messages]
    assert len(before) == 2

    def interrupted(report: object) -> None:  # the new answer has been remembered by then
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(turns, "_say_why_it_ended", interrupted)
    assert conversation.take("/retry") is None
    assert turns.messages == before


def test_a_chat_that_lost_its_model_ends(conversation: Conversation, tmp_path: Path) -> None:
    loaded = conversation.turns.loaded
    copy = tmp_path / "copy.gguf"
    shutil.copy(TARGET, copy)
    conversation.take(f"/set target.model {copy}")
    copy.unlink()
    bad = tmp_path / "bad.gguf"
    shutil.copy(TARGET, bad)
    opened = loaded._opened

    def vanishing(setup: Setup) -> Session:
        bad.unlink(missing_ok=True)  # while it is loaded
        return opened(setup)

    loaded._opened = vanishing  # type: ignore[method-assign]
    with pytest.raises(InputError):
        conversation.take(f"/set target.model {bad}")


# --------------------------------------------------------------------------- drafting


def test_drafting_is_switched_off_and_on_at_once(chat: Cli) -> None:
    script = "hello\n/spec off\n/retry\n/stats\n/spec on\n/retry\n/stats\n/spec\n"
    result = chat(script, *NGRAM, "-n", "60")
    assert len(set(result.out.splitlines())) == 1
    _, off, on = result.err.split("last: ")
    assert "nothing drafted" in off.split("all: ")[0]
    assert "accepted" in on.split("all: ")[0]
    assert "loading" not in result.err


def test_another_type_loads_the_model_again(chat: Cli) -> None:
    script = "hello\n/spec ngram-mod\nmore\n/spec nonsense\n/spec ngram-mod\n/spec\n"
    result = chat(script, "--spec-type", "none")
    assert "(loading the model again, to draft with ngram-mod)" in result.err
    assert result.err.count("loading") == 1
    assert "unknown spec type" in result.err or "nonsense" in result.err
    assert "drafting: ngram-mod" in result.err
    assert result.out == chat("hello\nmore\n", "--spec-type", "none").out


def test_settings_of_the_model_load_it_again(chat: Cli) -> None:
    result = chat("/set target.n_ctx 512\nhello\n/stats\n/set chat.think_budget 5\n")
    assert "context: " in result.err
    assert " of 512 tokens" in result.err
    assert "(chat.think_budget is 5)" in result.err
    assert result.out == chat("hello\n").out


def test_what_does_not_load_leaves_the_chat_as_it_was(chat: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(f'[target]\nmodel = "{tmp_path}/none.gguf"\n', encoding="utf-8")
    result = chat(f"hello\n/profile {bad}\n/profile nothing\n/retry\n")
    assert result.err.count("error: ") == 2
    first, second = result.out.splitlines()
    assert first == second


def test_another_profile_goes_on_with_the_conversation(chat: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(
        f'[target]\nmodel = "{DRAFT}"\nn_threads = 1\n[chat]\nsystem = "Be brief."\n'
        "[sampling]\ntemperature = 0.0\n",
        encoding="utf-8",
    )
    result = chat(f"hello\n/profile {other}\n/system\nmore\n/stats\n/profile\n")
    assert "(loading " in result.err
    assert "Be brief." in result.err
    assert "2 answers" in result.err


# -------------------------------------------------------------------------- reasoning


def test_reasoning_is_kept_apart(cli: Cli, thinker: str) -> None:
    arguments = ("-t", "1", "--temp", "0", "-p", "hello", "-n", "20", "--json")
    thought = cli("run", thinker, *arguments, "--think-budget", "4").json
    assert thought["reasoning"]
    assert thought["answer"]
    assert thought["text"].count("</think>") == 1
    at_once = cli("run", thinker, *arguments, "--think", "off").json
    assert at_once["reasoning"] == ""
    assert at_once["answer"] == at_once["text"]
    free = cli("run", thinker, *arguments).json
    assert free["answer"] == ""
    assert free["text"].startswith(thought["reasoning"][:1])


def test_a_budget_gives_the_same_text_with_drafts(cli: Cli, thinker: str) -> None:
    common = (*NGRAM, "-t", "1", "--temp", "0", "-p", "a b a b a b", "-n", "80", "--json")
    texts = [
        cli("run", thinker, *common, "--think-budget", "9", "--spec-type", kind).json
        for kind in ("none", "ngram-simple")
    ]
    assert texts[0]["tokens"] == texts[1]["tokens"]
    assert texts[1]["spec"]["num_accepted_tokens"] > 0


def test_think_command(cli: Cli, thinker: str) -> None:
    script = "\n".join(
        ("/think", "/think show", "/think 3", "hello", "/think show", "/think off", "more",
         "/think", "/think maybe", "/think expand", "/save s.json")
    )  # fmt: skip
    result = cli("chat", thinker, "-t", "1", "--temp", "0", "-n", "12", stdin=script)
    assert "reasoning: auto, no limit" in result.err
    assert "there is no reasoning to show" in result.err
    assert "reasoning: off, at most 3 tokens" in result.err
    assert "/think maybe: neither" in result.err
    assert '"reasoning_content": ' in Path("s.json").read_text(encoding="utf-8")
    first, _ = result.out.split("</think>")
    assert first.strip() in result.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--think", "on", "--think on has no effect"),
        ("--reasoning-effort", "low", "--reasoning-effort has no effect"),
        ("--think-budget", "5", "--think-budget has no effect"),
    ],
)
def test_what_a_model_cannot_do_is_said(tiny: Cli, option: str, value: str, said: str) -> None:
    result = tiny("-p", "x", "-n", "2", option, value)
    assert (result.code, said in result.err) == (0, True)


# ---------------------------------------------------------------------------- display


def test_statistics_by_position(chat: Cli) -> None:
    result = chat("hello\n/stats\n", *NGRAM, "-n", "60")
    lines = result.err.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("tokens that stood"))
    first = lines[at + 1].split()
    assert first[0] == "1"
    assert set(first[1]) <= set("█▏▎▍▌▋▊▉")
    assert "time saved: not known" in result.err


def test_a_status_line_keeps_what_matters() -> None:
    parts = ["12.0 tokens/s", "5 tokens", "a long reason that goes on and on", "context 1/2"]
    assert fitted(parts, 200) == " · ".join(parts)
    assert fitted(parts, 24) == "12.0 tokens/s · 5 tokens"
    assert fitted(parts, 52) == "12.0 tokens/s · 5 tokens · a long reason that goes…"
    assert fitted(["日本語" * 20], 30) == "日本語" * 4 + "日本" + "…"


def test_no_colours_without_a_terminal(chat: Cli) -> None:
    assert "no colours here" in chat("/color on\n").err


# ------------------------------------------------------------------ first run, and shell


def test_local_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    names = [
        "a.gguf", "mmproj-a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf",
        "models/deep/c.gguf", "other/d.gguf", "e.txt", "mtp-a.gguf", "hf/hub/x/snapshots/1/f.gguf",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {path.name for path in first_run.local_models()}
    assert found == {"a.gguf", "b-00001-of-00002.gguf", "c.gguf", "f.gguf"}


def test_completion(tmp_path: Path) -> None:
    for name in ("one.gguf", "other.txt", "own.toml", ".hidden.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "old").mkdir()
    assert completion.profiles_and_models("o") == ["old/", "one.gguf", "own.toml"]
    assert "demo" in completion.profiles_and_models("d")
    assert completion.models("draft-mtp=on") == ["draft-mtp=one.gguf"]
    assert completion.spec_types("au") == ["auto"]
    assert completion.spec_types("ngram-mod,draft-m") == ["ngram-mod,draft-mtp"]
    assert completion.files("none/x", (".gguf",)) == []


def test_a_shell_can_ask() -> None:
    (Path.cwd() / "here.gguf").touch()
    done = subprocess.run(
        [sys.executable, "-m", "gguf_spec"], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "_GGUF_SPEC_COMPLETE": "complete_bash",
             "COMP_WORDS": "gguf-spec chat he", "COMP_CWORD": "2",
             "PYTHONPATH": str(Path(completion.__file__).parents[2])},
    )  # fmt: skip
    assert done.stdout.split() == ["here.gguf"]


def test_the_program_alone_tells_how_to_begin(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    assert result.out.startswith("Start with one of these")
