"""``--grammar``, ``--json-schema``, ``--logprobs`` and ``--audit``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import DRAFT, TARGET, Cli

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
}
PROMPT = ("-p", "Invent a person.", "-n", "200")


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON), encoding="utf-8")
    return str(path)


@pytest.fixture
def illegal(tmp_path: Path) -> str:
    """What an n-gram drafter takes from: text that begins like the answer, and is no JSON."""
    path = tmp_path / "illegal.txt"
    start = '{"name": "a", "age": 3, "tags": ['
    text = "".join(f"{start[:n]} oops }} ] 007 " for n in range(1, len(start)))
    path.write_text(text * 2, encoding="utf-8")
    return str(path)


def test_fifty_answers_are_valid_json_with_a_drafter_of_illegal_text(
    cli: Cli, schema: str, illegal: str
) -> None:
    drafted = 0
    for seed in range(50):
        record = cli(
            *("run", TARGET, "-t", "1", *PROMPT, "--temp", "1.2", "--seed", str(seed)),
            *("--json-schema", schema, "--spec-type", "ngram-simple", "--predict-file", illegal),
            *("--set", "spec.ngram-simple.size_n=1", "--json", "--fixed"),
        ).json
        person = json.loads(record["text"])
        assert record["finish_reason"] == "stop"
        assert list(person) == ["name", "age", "tags"]
        assert 0 <= person["age"] <= 120
        assert set(person["tags"]) <= {"red", "blue"}
        drafted += record["spec"]["num_draft_tokens"]
    assert drafted > 50


@pytest.mark.parametrize("settings", [(), ("--temp", "0.9"), ("--repeat-penalty", "1.3")])
def test_drafts_do_not_change_a_constrained_answer(
    tiny: Cli, schema: str, illegal: str, settings: tuple[str, ...]
) -> None:
    exact = ("--set", "target.flash_attn=on", "--set", "target.type_k=bf16")
    exact += ("--set", "target.type_v=bf16", "--seed", "4", "--json-schema", schema, "--json")
    plain = tiny(*PROMPT, *settings, *exact, "--spec-type", "none").json
    for options in (
        ("--spec-type", "ngram-simple", "--predict-file", illegal),
        ("-d", DRAFT, "--spec-type", "draft-simple"),
    ):
        record = tiny(*PROMPT, *settings, *exact, *options, "--audit").json
        assert record["tokens"] == plain["tokens"]
        assert record["audit"]["verdict"] == "token-identical"
    assert record["spec"]["num_accepted_tokens"] > 0


def test_a_grammar_constrains_an_answer(tiny: Cli, tmp_path: Path) -> None:
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "yes" | "no"\n', encoding="utf-8")
    result = tiny(*PROMPT, "--grammar", str(path))
    assert result.code == 0
    assert result.out in ("yes\n", "no\n")


def test_every_answer_of_a_chat_is_constrained(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "yes" | "no"', encoding="utf-8")
    result = cli("chat", TARGET, "-t", "1", "--grammar", str(path), stdin="hello\nand again\n")
    assert result.code == 0
    assert len(result.out.split()) == 2
    assert set(result.out.split()) <= {"yes", "no"}


def test_logprobs_are_in_the_document(tiny: Cli) -> None:
    plain = tiny("-p", "hello", "-n", "20", "--json", "--logprobs", "3").json
    record = tiny(
        *("-p", "hello", "-n", "20", "--json", "--logprobs", "3"),
        *("-d", DRAFT, "--spec-type", "draft-simple"),
    ).json
    assert record["spec"]["num_accepted_tokens"] > 0
    assert [one["id"] for one in record["logprobs"]] == record["tokens"]
    for one, other in zip(record["logprobs"], plain["logprobs"], strict=True):
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)
        assert [top["id"] for top in one["top"]] == [top["id"] for top in other["top"]]
        assert one["id"] == one["top"][0]["id"]  # greedily chosen
        assert one["logprob"] == one["top"][0]["logprob"] <= 0
    text = "".join(one["token"] for one in record["logprobs"])
    assert text.startswith(record["text"][:5])
    assert "logprobs" not in tiny("-p", "hello", "-n", "2", "--json").json


def test_logprobs_end_with_the_tokens_at_a_stop_string(tiny: Cli) -> None:
    text = tiny("-p", "hello", "-n", "20", "--json").json["text"]
    stop = text[3:5]
    record = tiny("-p", "hello", "-n", "20", "--json", "--logprobs", "0", "--stop", stop).json
    assert record["finish_reason"] == "stop"
    assert [one["id"] for one in record["logprobs"]] == record["tokens"]
    assert record["logprobs"][0]["top"] == []


def test_an_audit_says_what_it_found(tiny: Cli) -> None:
    result = tiny("-p", "hello", "-n", "20", "--audit", "-d", DRAFT)
    assert result.code == 0
    assert result.err.endswith("audit: 20 tokens checked, token-identical\n")


def test_residual_texts_are_not_audited(tiny: Cli) -> None:
    """They are not the text of the seed, and nothing is broken."""
    arguments = ("-p", "hello", "-n", "20", "--audit", "-d", DRAFT, "--verify", "residual")
    assert tiny(*arguments).code == 0  # greedy: that text is the seed's
    result = tiny(*arguments, "--temp", "1")
    assert result.code == 2
    assert (result.out, "hint: --verify match" in result.err) == ("", True)


def test_a_broken_text_fails_the_audit(tiny: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculation that lets drafts through unseen, as a broken one would."""
    from gguf_spec import engine

    def gullible(draft, sampler, history, logits, row, drawn):  # type: ignore[no-untyped-def]
        return len(draft), sampler.sample(logits(row + len(draft)), len(history) + len(draft), [])

    monkeypatch.setattr(engine, "judge", gullible)
    arguments = ("-p", "hello", "-n", "40", "--audit", "--json")
    result = tiny(*arguments, "-d", DRAFT, "--spec-type", "draft-simple")
    assert result.code == 1
    assert result.json["audit"]["verdict"] == "broken"
    first = result.json["audit"]["differing"][0]
    assert set(first) == {"index", "token", "expected", "gap"}
    assert f"  token {first['index']}: plain decoding has " in result.err


BAD_FILES = {
    "g.gbnf": ("--grammar", 'root ::= "a" |\n  b', "g.gbnf:2:3: the rule b is not defined"),
    "s.json": ("--json-schema", '{"type": "object",}', "s.json:1:19: not JSON"),
    "t.json": ("--json-schema", '{"not": {}}', "t.json: #: not is not supported"),
    "latin.gbnf": ("--grammar", b'root ::= "\xe9"', "latin.gbnf is not UTF-8"),
    "empty.gbnf": ("--grammar", "", "empty.gbnf: the grammar has no rules"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_cannot_be_used(cli: Cli, tmp_path: Path, name: str) -> None:
    option, content, message = BAD_FILES[name]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    # Told before anything is loaded: there is no such model.
    result = cli("run", "missing.gguf", option, name, "-p", "x")
    assert result.code == 3
    assert message in result.err
    assert cli("run", "missing.gguf", option, "no such file", "-p", "x").code == 3


def test_options_that_do_not_go_together(cli: Cli, schema: str) -> None:
    both = cli("run", TARGET, "-p", "x", "--grammar", schema, "--json-schema", schema)
    assert both.code == 2
    assert "cannot be combined" in both.err
    without_json = cli("run", TARGET, "-p", "x", "--logprobs", "3")
    assert without_json.code == 2
    assert "--json" in without_json.err
    assert cli("run", TARGET, "-p", "x", "--json", "--logprobs", "21").code == 2


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{# [/THINK] #}{{ messages[0].content }}[THINK]", "[/THINK]"),
        ("{# <channel|> #}{{ messages[0].content }}<|channel>thought\n", "<channel|>"),
    ],
)
def test_a_grammar_begins_behind_reasoning_of_every_format(
    cli: Cli, tmp_path: Path, template: str, end: str
) -> None:
    """The budget forces the end of the reasoning, and the grammar goes on from there."""
    model, grammar = tmp_path / "thinker.gguf", tmp_path / "g.gbnf"
    grammar.write_text('root ::= "yes" | "no"', encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", "--chat-template",
         template, TARGET, str(model)],
        check=True, capture_output=True,
    )  # fmt: skip
    result = cli(
        *("run", str(model), "-t", "1", "-p", "x", "-n", "60", "--grammar", str(grammar)),
        *("--think", "on", "--think-budget", "3", "--json"),
    )
    assert result.code == 0
    reasoning, mark, answer = result.json["text"].partition(end)
    assert (bool(reasoning), mark) == (True, end)
    assert answer in ("yes", "no")


def test_thinking_on_needs_a_template_that_says_how_it_ends(cli: Cli, schema: str) -> None:
    result = cli("run", TARGET, "-p", "x", "--json-schema", schema, "--think", "on")
    assert result.code == 3
    assert "--think on" in result.err
