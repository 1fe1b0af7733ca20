"""``gguf-spec verify`` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gguf_spec.history import History
from gguf_spec.sampling import Row, Sampler
from tests.cli.conftest import DRAFT, Cli

FEW = ("-n", "12", "-c", "300")


def test_json_document(verify: Cli) -> None:
    result = verify(*FEW, "-d", DRAFT, "--json")
    assert result.code == 0
    assert result.err == ""
    record = result.json
    assert record["verdict"] == "token-identical"
    assert {
        "width",
        "depth",
        "identical_rows",
        "rows",
        "max_logit_difference",
        "argmax_flips",
    } <= set(record["widths"][0])
    assert {"type", "equal", "first_divergence", "top2_gap"} <= set(record["spec_types"][0])
    assert [item["type"] for item in record["spec_types"]][-1] == "ngram-simple+draft-simple"
    assert record["exact_cost"] is None


def test_tables_and_what_run_tells(verify: Cli, tiny: Cli) -> None:
    before = tiny("-c", "300", "-d", DRAFT, "-p", "a", "-n", "2", "--json").json
    assert before["spec"]["verified"] is None
    result = verify(*FEW, "-d", DRAFT)
    assert "identical: 1-" in result.out
    assert "token-identical" in result.out.splitlines()[-1]
    after = tiny("-c", "300", "-d", DRAFT, "-p", "a", "-n", "2", "--json").json
    assert after["spec"]["verified"]["verdict"] == "token-identical"
    other = tiny("-c", "300", "-d", DRAFT, "-p", "a", "-n", "2", "--json", "--threads-batch", "2")
    assert other.json["spec"]["verified"] is None


def test_exact_says_what_it_costs(verify: Cli) -> None:
    record = verify(*FEW, "--exact", "-d", DRAFT, "--json").json
    assert record["settings"]["type_k"] == "bf16"
    assert record["exact_cost"] > 0


def test_broken_is_exit_code_1(verify: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def accepts_all(
        draft: Sequence[int],
        sampler: Sampler,
        history: History,
        logits: Callable[[int], Row],
        row: int,
        drawn: Sequence[object],
    ) -> tuple[int, int]:
        return len(draft), int(logits(row + len(draft)).argmax())

    monkeypatch.setattr("gguf_spec.engine.judge", accepts_all)
    result = verify("-n", "30", "-c", "300", "-d", DRAFT)
    assert result.code == 1
    assert "BROKEN" in result.out
    assert result.out.splitlines()[-1].startswith("broken: ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-n", "1"), 2),
        (("--depth", "0"), 2),
        (("--depth", "x"), 2),
        (("--depth", "300", "-c", "300"), 2),
        (("--depth", "237", "-c", "300"), 2),
        (("-m", "absent.gguf"), 3),
    ],
)
def test_bad_input(verify: Cli, arguments: tuple[str, ...], code: int) -> None:
    assert verify(*arguments).code == code


def test_a_tiny_context(verify: Cli) -> None:
    """Where no text can be compared there is no verdict."""
    for more in ((), ("--exact",)):
        result = verify("-c", "28", "-n", "4", "--json", *more)
        assert result.code == 0
        assert result.json["verdict"] == "token-identical"
        assert result.json["spec_types"][0]["tokens"] > 0
        assert (result.json["exact_cost"] is not None) == bool(more)
        for n_ctx in ("1", "3", "20"):
            result = verify("-c", n_ctx, "--json", *more)
            assert result.code == 2
            assert "-c 123 would hold it" in result.json["error"]["hint"]


def test_what_cannot_be_remembered_is_told_nevertheless(verify: Cli, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    result = verify("-n", "4", "-c", "64", "--json")
    assert result.code == 0
    assert result.json["verdict"] == "token-identical"
    assert "not remembered: " in result.err
