"""``gguf-spec run`` in this process: answers, prompts, profiles, bad input."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gguf_spec.drafters.base import Draft
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.sampling import Sampler
from tests.cli.conftest import DRAFT, MODELS, OTHER_VOCABULARY, TARGET, Cli
from tests.gguf_writer import Gguf


def test_text_goes_to_stdout_and_nothing_else(tiny: Cli) -> None:
    result = tiny("-n", "8", "-p", "hello")
    assert result.code == 0
    assert result.out.endswith("\n")
    assert result.err == ""
    assert result.out == tiny("-n", "8", "-p", "hello", "--quiet").out


def test_json_document(tiny: Cli) -> None:
    plain = tiny("-n", "8", "-p", "hello")
    result = tiny("-n", "8", "-p", "hello", "--json", "--seed", "42")
    assert result.err == ""
    record = result.json
    assert set(record) == {
        "text", "tokens", "finish_reason", "prompt_tokens", "cached_tokens", "completion_tokens",
        "seed", "sampling", "model", "spec", "timings",
    }  # fmt: skip
    assert set(record["model"]) == {"ref", "arch", "quant", "n_ctx"}
    assert set(record["spec"]) == {
        "types", "verify", "exactness", "steps", "num_drafts", "num_draft_tokens",
        "num_accepted_tokens", "acceptance_rate", "mean_acceptance_length",
        "accepted_per_position", "by_type", "drafts", "events", "control", "verified",
    }  # fmt: skip
    assert set(record["spec"]["control"]) == {"enabled", "cost", "paused"}
    assert set(record["timings"]) >= {
        "load_seconds", "warmup_seconds", "prefill_seconds", "decode_seconds",
        "prefill_tokens_per_second", "decode_tokens_per_second", "overhead_seconds",
    }  # fmt: skip
    assert record["text"] == plain.out.removesuffix("\n")
    assert record["finish_reason"] == "length"
    assert record["completion_tokens"] == len(record["tokens"]) == 8
    assert record["seed"] == 42
    assert record["sampling"]["temperature"] == 0.0
    assert record["model"]["ref"] == TARGET


def test_drafting_does_not_change_greedy_text(tiny: Cli) -> None:
    set_n = ("--set", "spec.ngram-simple.size_n=3")
    arguments = ("-p", "hello", "-n", "60", "--json", *set_n)
    plain = tiny(*arguments, "--spec-type", "none").json
    ngram = tiny(*arguments, "--spec-type", "ngram-simple").json
    both = tiny(*arguments, "-d", DRAFT).json
    assert plain["tokens"] == ngram["tokens"] == both["tokens"]
    assert plain["text"] == ngram["text"] == both["text"]
    assert plain["spec"]["types"] == []
    assert plain["spec"]["acceptance_rate"] is None
    assert ngram["spec"]["num_accepted_tokens"] > 0
    assert both["spec"]["types"] == ["ngram-simple", "draft-simple"]
    assert "draft-simple" in both["spec"]["by_type"]


def test_two_neural_drafters_each_with_a_context_and_a_row_of_statistics(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "60", "--json")
    plain = tiny(*arguments, "--spec-type", "none").json
    drafts = [f"draft-{kind}={MODELS}/tiny-{kind}.gguf" for kind in ("eagle3", "dflash")]
    both = tiny(*arguments, "-d", drafts[0], "-d", drafts[1], "--spec-draft-n-max", "2")
    assert both.err == ""
    spec = both.json["spec"]
    assert both.json["tokens"] == plain["tokens"]
    assert spec["types"] == ["ngram-simple", "draft-eagle3", "draft-dflash"]
    assert len(spec["accepted_per_position"]) == 2
    order = ("--spec-type", "draft-dflash,draft-eagle3")
    turned = tiny(*arguments, "-d", drafts[0], "-d", drafts[1], *order).json
    assert turned["tokens"] == plain["tokens"]
    assert turned["spec"]["types"] == ["draft-dflash", "draft-eagle3"]


@pytest.mark.drops
def test_a_drafter_that_fails_is_named_and_the_answer_is_whole(
    tiny: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("-p", "hello", "-n", "40")
    plain = tiny(*arguments, "--json", "--spec-type", "none").json
    draft, calls = DraftModel.draft, itertools.count(1)

    def fails(drafter: DraftModel, limit: int, sampler: Sampler) -> Draft:
        if next(calls) % 6 == 0:
            raise OSError(5, "device lost")
        return draft(drafter, limit, sampler)

    monkeypatch.setattr(DraftModel, "draft", fails)
    drafted = tiny(*arguments, "--json", "-d", DRAFT, "--spec-type", "draft-simple")
    message = "draft-simple failed and drafts no more: OSError(5, 'device lost')"
    assert drafted.code == 0
    assert drafted.err == f"warning: {message}\n"
    spec = drafted.json["spec"]
    assert drafted.json["tokens"] == plain["tokens"]
    assert spec["types"] == ["draft-simple"]
    (event,) = spec["events"]
    assert 0 < event.pop("completion_tokens") < 40
    assert event == {"kind": "dropped", "type": "draft-simple", "message": message}
    debug = tiny(*arguments, "-d", DRAFT, "--spec-type", "draft-simple", "--debug")
    assert debug.out == plain["text"] + "\n"
    assert "Traceback" in debug.err
    assert "in fails" in debug.err


def test_drafting_does_not_change_sampled_text(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "40", "--json", "--temp", "0.8", "--seed", "7")
    plain = tiny(*arguments, "--spec-type", "none").json
    drafted = tiny(*arguments, "--spec-type", "draft-simple", "-d", DRAFT).json
    assert plain["tokens"] == drafted["tokens"]
    assert drafted["spec"]["num_draft_tokens"] > 0


def test_seeds(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "30", "--temp", "1", "--json")
    first = tiny(*arguments).json
    assert tiny(*arguments, "--seed", str(first["seed"])).json["tokens"] == first["tokens"]
    assert tiny(*arguments, "--seed", "1").json["tokens"] != first["tokens"]


def test_stop_strings_are_cut_off(tiny: Cli) -> None:
    whole = tiny("-p", "hello", "-n", "20", "--json").json
    stop = whole["text"][5:8]
    result = tiny("-p", "hello", "-n", "20", "--stop", "never this", "--stop", stop, "--json").json
    assert result["finish_reason"] == "stop"
    assert result["text"] == whole["text"][: whole["text"].index(stop)]
    assert result["tokens"] == whole["tokens"][: len(result["tokens"])]


def test_prompt_sources_agree(tiny: Cli, tmp_path: Path) -> None:
    Path("prompt.txt").write_text("hello\n", encoding="utf-8")
    Path("bom.txt").write_bytes(b"\xef\xbb\xbfhello\r\n")
    expected = tiny("-n", "5", "-p", "hello", "--json").json["prompt_tokens"]
    for arguments, stdin in (
        (["-f", "prompt.txt"], None),
        (["-f", "bom.txt"], None),
        (["-f", "-"], "hello"),
        ([], "hello\n"),
        (["-p", ""], "hello\n"),
        (["-p", "hello"], ""),
    ):
        result = tiny("-n", "5", "--json", *arguments, stdin=stdin)
        assert result.code == 0, result.err
        assert result.json["prompt_tokens"] == expected


def test_piped_text_follows_after_a_blank_line(tiny: Cli) -> None:
    both = tiny("--raw", "-n", "5", "--json", "-p", "one", stdin="two").json
    assert both["tokens"] == tiny("--raw", "-n", "5", "--json", "-p", "one\n\ntwo").json["tokens"]


def test_raw_keeps_the_last_newline(tiny: Cli) -> None:
    raw = tiny("--raw", "-n", "5", "--json", stdin="hello\n").json
    assert raw["tokens"] == tiny("--raw", "-n", "5", "--json", "-p", "hello\n").json["tokens"]


def test_system_message(tiny: Cli) -> None:
    plain = tiny("-n", "1", "-p", "hello", "--json").json["prompt_tokens"]
    told = tiny("-n", "1", "-p", "hello", "--json", "--system", "Be brief.").json["prompt_tokens"]
    assert told > plain


def test_unlimited(tiny: Cli) -> None:
    result = tiny("-p", "hello", "-n", "-1", "-c", "64", "--json").json
    assert result["finish_reason"] == "length"
    assert result["prompt_tokens"] + result["completion_tokens"] >= 64


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [(["-p", ""], None), ([], ""), (["-f", "empty.txt"], None), (["-f", "-"], "\n")],
)
def test_empty_prompts(tiny: Cli, arguments: list[str], stdin: str | None) -> None:
    Path("empty.txt").touch()
    result = tiny(*arguments, stdin=stdin)
    assert result.code == 3
    assert "prompt is empty" in result.err


@pytest.mark.parametrize(
    ("file", "said"),
    [("missing.txt", "No such file"), (".", "is a folder"), ("latin.txt", "not UTF-8")],
)
def test_prompt_files_that_cannot_be_used(tiny: Cli, file: str, said: str) -> None:
    Path("latin.txt").write_bytes("naïve".encode("latin-1"))
    result = tiny("-f", file)
    assert result.code == 3
    assert said in result.err


def test_prompt_longer_than_the_context(tiny: Cli) -> None:
    result = tiny("-c", "16", "-p", "word " * 100)
    assert result.code == 3
    assert "16" in result.err
    assert "tokens" in result.err


def test_context_above_the_trained_one_is_a_warning(tiny: Cli) -> None:
    result = tiny("-c", "4096", "-n", "1", "-p", "a")
    assert result.code == 0
    assert "warning: " in result.err
    assert "4096" in result.err
    assert "2048" in result.err


def test_draft_that_is_not_used_is_said(tiny: Cli) -> None:
    for types in ("none", "ngram-simple"):
        result = tiny("-d", DRAFT, "--spec-type", types, "-n", "1", "-p", "a", "--quiet")
        assert result.code == 0
        assert "NOT used" in result.err


def test_draft_with_another_vocabulary(tiny: Cli) -> None:
    result = tiny("-d", OTHER_VOCABULARY, "-p", "a")
    assert result.code == 3
    assert "cannot draft" in result.err
    assert "1024" in result.err
    assert "896" in result.err
    assert "--set spec.translate=true" in result.err
    arguments = ("-p", "def f(x):", "-n", "40", "--json", "--spec-type")
    plain = tiny(*arguments, "none").json
    translate = ("--set", "spec.translate=true")
    translated = tiny("-d", OTHER_VOCABULARY, *arguments, "draft-simple", *translate)
    assert "IGNORED" not in translated.err
    assert translated.json["text"] == plain["text"]
    assert translated.json["spec"]["types"] == ["draft-simple"]
    assert translated.json["spec"]["num_draft_tokens"] > 0


def test_settings_that_nothing_looks_at_are_said(tiny: Cli) -> None:
    result = tiny("-n", "1", "-p", "a", "--set", "engine.kind=llama-server")
    assert "IGNORED: engine.kind" in result.err


def _header(**changes: int) -> bytes:
    return Gguf(**changes).key("general.architecture", "str", "llama").header()


BAD_FILES = {
    "empty.gguf": b"",
    "text.gguf": b"This is not a model.\n" * 100,
    "magic.gguf": b"GGML" + bytes(100),
    "future.gguf": _header(version=99),
    "keys.gguf": _header(n_keys=2**62),
    "tensors.gguf": _header(n_tensors=2**62),
    "truncated.gguf": Path(TARGET).read_bytes()[:5000],
    "cut.gguf": Path(TARGET).read_bytes()[:-1000],
}


@pytest.mark.parametrize("name", [*BAD_FILES, "missing.gguf", "folder/"])
@pytest.mark.parametrize("as_draft", [False, True])
def test_files_that_are_no_models(cli: Cli, name: str, as_draft: bool) -> None:
    for file, data in BAD_FILES.items():
        Path(file).write_bytes(data)
    Path("folder").mkdir()
    model = ["run", TARGET, "-d", name] if as_draft else ["run", name]
    result = cli(*model, "-p", "a", "-t", "1", "--json")
    assert result.code == 3
    assert set(result.json["error"]) == {"type", "message", "hint"}
    assert name.rstrip("/") in result.err
    assert len(result.err.splitlines()) <= 2


def test_references_that_lead_nowhere(cli: Cli) -> None:
    for ref, said in (
        ("demoo", "did you mean `demo`"),
        ("owner/repo", "hf:owner/repo"),
        ("foo:bar", "foo:"),
        ("mine.toml", "no such file"),
    ):
        result = cli("run", ref, "-p", "a")
        assert result.code == 3
        assert said in result.err


PROFILE = f"""
[target]
model = '{TARGET}'
n_ctx = 128
n_threads = 1
[spec]
types = ["ngram-simple"]
[spec.draft]
p_min = 0.5
[sampling]
temperature = 0.0
stop = ["never"]
"""


def test_profile_and_precedence(cli: Cli) -> None:
    Path("mine.toml").write_text(PROFILE, encoding="utf-8")
    base = ("run", "mine.toml", "-p", "hello", "-n", "4", "--json")
    assert cli(*base).json["model"]["n_ctx"] == 128
    assert cli(*base, "--set", "target.n_ctx=96").json["model"]["n_ctx"] == 96
    both = cli(*base, "--set", "target.n_ctx=96", "-c", "80")
    assert both.json["model"]["n_ctx"] == 80
    assert cli(*base, "-c", "max").json["model"]["n_ctx"] == 2048
    assert cli(*base, "-d", DRAFT).json["spec"]["types"] == ["ngram-simple", "draft-simple"]
    assert cli(*base, "-d", DRAFT, "--spec-type", "auto").json["spec"]["types"]
    assert cli(*base, "-d", DRAFT, "--set", "spec.types=none").json["spec"]["types"] == []


def test_model_option(cli: Cli) -> None:
    result = cli("run", "-m", TARGET, "-t", "1", "-n", "1", "-p", "a", "--json")
    assert result.json["model"] == {"ref": TARGET, "arch": "qwen3", "quant": "Q8_0", "n_ctx": 2048}
    assert result.json["sampling"]["temperature"] == 0.7


def test_wrong_value_in_a_profile(cli: Cli) -> None:
    Path("bad.toml").write_text("[target]\nn_ctx = 0\nmodle = 'x'\n", encoding="utf-8")
    result = cli("run", "bad.toml", "-p", "a", "--json")
    assert result.code == 3
    assert len(result.json["error"]["problems"]) == 2


@pytest.mark.parametrize(
    "setting", ["target.n_ctx=4294967297", "target.n_threads=100000", "target.n_batch=99999999999"]
)
def test_numbers_on_which_libllama_would_crash(cli: Cli, setting: str) -> None:
    result = cli("run", TARGET, "-p", "a", "--set", setting)
    assert result.code == 2
    assert "at most" in result.err


def test_the_rule_of_verification_is_told(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "40", "--json", "--seed", "7", "--spec-type", "draft-simple")
    arguments += ("-d", DRAFT)

    def rule(*more: str) -> tuple[str, str]:
        result = tiny(*arguments, *more)
        assert result.code == 0
        return result.json["spec"]["verify"], result.json["spec"]["exactness"]

    assert rule("--temp", "0.8") == ("match", "seed-exact")
    assert rule("--temp", "0.8", "--verify", "match") == ("match", "seed-exact")
    assert rule("--temp", "0.8", "--verify", "residual") == ("residual", "distribution-exact")
    assert rule("--temp", "0.8", "--verify", "auto") == ("residual", "distribution-exact")
    # Nothing is drawn at temperature 0, and n-grams leave nothing to chance.
    assert rule("--temp", "0", "--verify", "residual") == ("match", "seed-exact")
    assert rule("--temp", "0.8", "--verify", "residual", "--spec-type", "ngram-simple") == (
        "match",
        "seed-exact",
    )


def test_exact_is_not_combined_with_what_is_not(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "2", "-c", "64", "--exact", "-d", DRAFT, "--temp", "1")
    result = tiny(*arguments, "--verify", "residual")
    assert result.code == 2
    assert (
        result.err == 'error: --verify: verify "residual" does not keep the text, and exact is on\n'
    )
    result = tiny(*arguments, "--set", "target.flash_attn=off")
    assert result.code == 2
    assert 'flash_attn is "off", and spec.exact needs it' in result.err
    report = tiny(*arguments, "--verify", "auto", "--json").json
    assert report["spec"]["exactness"] == "seed-exact"


def test_kept_costs_in_tiny_contexts(cli: Cli) -> None:
    """Kept measurements are checked with no wider batches than the context takes."""
    arguments = ("run", TARGET, "-t", "1", "--raw", "-p", "a", "-n", "2")
    for n_ctx in ("3", "3", "2", "2"):
        assert cli(*arguments, "-c", n_ctx).code == 0


def test_residual_text_is_repeated_by_its_seed(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "40", "--json", "--temp", "1", "--seed", "7", "-d", DRAFT)
    arguments += ("--verify", "residual")
    first, second = (tiny(*arguments).json for _ in range(2))
    assert first["tokens"] == second["tokens"]
    assert first["spec"]["num_accepted_tokens"] > 0


def test_a_rule_that_has_nothing_to_do_is_said(tiny: Cli) -> None:
    arguments = ("-p", "hello", "-n", "2", "-d", DRAFT, "--set", "spec.draft_sampling=greedy")
    assert "are matched" in tiny(*arguments, "--verify", "residual").err
    assert tiny(*arguments).err == ""
    arguments = ("-p", "hello", "-n", "2", "--spec-type", "ngram-simple")
    assert "are matched" in tiny(*arguments, "--verify", "residual").err
    assert tiny(*arguments, "--verify", "auto").err == ""
    result = tiny("-p", "hello", "--verify", "mach")
    assert result.code == 2
    assert "none of match, residual, auto" in result.err
