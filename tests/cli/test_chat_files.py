"""Conversations in files, files in conversations, and the cache beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gguf_spec.cli.attach import attached
from gguf_spec.cli.chat_file import SavedChat, load_chat, save_chat
from gguf_spec.errors import InputError
from tests.cli.conftest import TARGET, Cli, Result

MESSAGES = [
    {"role": "user", "content": "hi <|im_end|> 日本"},
    {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
]


@pytest.fixture
def chat(cli: Cli) -> Cli:
    def call(script: str, *arguments: str) -> Result:
        common = ("-t", "1", "--temp", "0", "--spec-type", "none", "-n", "6")
        return cli("chat", TARGET, *common, *arguments, stdin=script)

    return call


# ---------------------------------------------------------------------- conversations


def test_where_the_option_stands_does_not_matter(chat: Cli) -> None:
    for line in ("a--state.json --state", "--state b--state.json"):
        assert chat(f"hello\n/save {line}\n").code == 0
    names = sorted(path.name for path in Path.cwd().glob("*--state*"))
    assert names == [f"{x}--state.json{end}" for x in "ab" for end in ("", ".state")]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    save_chat(path, SavedChat("Be brief.", MESSAGES, "demo"), {"arch": "llama"})
    assert load_chat(path) == SavedChat("Be brief.", MESSAGES, "demo")
    assert "日本" in path.read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["chat.json"]


GOOD = {"format": "gguf-spec conversation", "version": 1, "messages": MESSAGES}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"", "cannot be read"),
        (b'{"broken": ', "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        ([], "does not say"),
        ({"messages": MESSAGES}, "does not say"),
        ({**GOOD, "version": 2}, "version is 2, known is 1"),
        ({**GOOD, "system": 5}, "system message"),
        ({**GOOD, "messages": None}, "no list of messages"),
        ({**GOOD, "messages": MESSAGES[1:]}, "message 1 is not the user's"),
        ({**GOOD, "messages": MESSAGES[:1]}, "the last message has no answer"),
        ({**GOOD, "messages": [MESSAGES[0], {"role": "assistant"}]}, "message 2 has no text"),
        ({**GOOD, "messages": [MESSAGES[0], {**MESSAGES[1], "reasoning_content": 1}]},
         "reasoning of message 2"),
        ({**GOOD, "messages": ["x", "y"]}, "message 1"),
    ],
)  # fmt: skip
def test_broken_files_are_told(tmp_path: Path, document: object, problem: str) -> None:
    path = tmp_path / "bad.json"
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(data)
    with pytest.raises(InputError, match=problem):
        load_chat(path)


def test_a_loaded_conversation_goes_on_as_the_saved_one(chat: Cli) -> None:
    once = chat("hello\nmore\n/save a b.json\nagain\n").out
    result = chat("/load 'a b.json'\nagain\n")
    assert "(loaded 2 messages" in result.err
    assert once.endswith(result.out)
    assert result.out


def test_a_broken_file_leaves_the_conversation_alone(chat: Cli) -> None:
    Path("bad.json").write_text("{", encoding="utf-8")
    result = chat("hello\n/load bad.json\nmore\n/load .\n/load\n/load none.json\n")
    assert result.code == 1
    assert result.out == chat("hello\nmore\n").out
    assert result.err.count("error: ") == 4


def test_a_file_cannot_command_the_terminal(chat: Cli) -> None:
    evil = {**GOOD, "model": "m\x1b[2J", "system": "\x1b]0;title\x07Be brief."}
    Path("evil.json").write_text(json.dumps(evil), encoding="utf-8")
    result = chat("/load evil.json\n/system\n")
    assert "written with m[2J;" in result.err
    assert "]0;titleBe brief." in result.err
    assert not {"\x1b", "\x07"} & set(result.err)


def test_other_files_are_not_overwritten(chat: Cli) -> None:
    Path("notes.txt").write_text("precious", encoding="utf-8")
    result = chat("/save notes.txt\n/save\n/save no/such/folder.json\n/save a.json\n/save a.json\n")
    assert "notes.txt exists and is no conversation" in result.err
    assert "/save needs a FILE" in result.err
    assert "folder.json cannot be written" in result.err
    assert result.err.count("(saved 0 messages") == 2
    assert Path("notes.txt").read_text(encoding="utf-8") == "precious"


# ------------------------------------------------------------------------------ cache


def prompt_line(result: Result) -> list[int]:
    """Prompt and cached tokens of the last ``/stats``."""
    last = [line for line in result.err.splitlines() if line.startswith("last: ")][-1]
    words = last[last.index("prompt ") :].replace("(", " ").split()
    return [int(words[1]), int(words[2]) if words[3:4] == ["cached)"] else 0]


def test_the_cache_is_saved_and_loaded(chat: Cli) -> None:
    once = chat("hello\nmore\n/save --state c.json\nagain\n/stats\n")
    assert "(and the cache of " in once.err
    result = chat("/load c.json\nagain\n/stats\n")
    assert "(the cache has their " in result.err
    assert once.out.endswith(result.out)
    assert prompt_line(result) == prompt_line(once)
    assert prompt_line(result)[1] > 20


@pytest.mark.parametrize("at", [0, 20, 200, 5000, -40, -1])
def test_a_damaged_cache_never_reaches_libllama(chat: Cli, at: int) -> None:
    chat("hello\nmore\n/save --state c.json\n")
    path = Path("c.json.state")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    result = chat("/load c.json\nagain\n/stats\n")
    assert "warning: the cache was not loaded" in result.err
    assert prompt_line(result)[1] == 0


def test_a_cut_or_empty_cache_is_refused(chat: Cli) -> None:
    chat("hello\nmore\n/save --state c.json\n")
    path = Path("c.json.state")
    for data in (b"", path.read_bytes()[:50], path.read_bytes()[:-1]):
        path.write_bytes(data)
        assert "warning: the cache was not loaded" in chat("/load c.json\n").err


def test_a_cache_of_another_set_up_is_refused(chat: Cli) -> None:
    chat("hello\n/save --state c.json\n")
    assert "is of another set-up: n_ctx" in chat("/load c.json\n", "-c", "512").err
    os.remove(Path(os.environ["GGUF_SPEC_HOME"]) / "state.key")
    assert "is damaged, or was made with other settings" in chat("/load c.json\n").err


def test_an_empty_cache_is_not_saved(chat: Cli) -> None:
    assert "nothing in the cache" in chat("/save --state c.json\n").err


# ------------------------------------------------------------------------------ files


def test_files_go_along() -> None:
    Path("a.txt").write_text("text of a\n", encoding="utf-8")
    Path("b c.md").write_text("```\ncode\n```\n", encoding="utf-8")
    message = 'see @a.txt, (not @a.txtx) and @"b c.md"; me@a.txt @nobody @.'
    text, names = attached(message)
    assert names == ["a.txt", "b c.md"]
    assert text == (
        f"{message}\n\na.txt:\n```\ntext of a\n```\n\nb c.md:\n````\n```\ncode\n```\n````"
    )
    assert attached("no file @here") == ("no file @here", [])


def test_a_file_that_is_no_text_is_told(chat: Cli) -> None:
    Path("x.bin").write_bytes(b"\xff\xfe")
    result = chat("what is @x.bin\n")
    assert "x.bin is not UTF-8 text" in result.err
    assert result.out == ""
