"""The line below an answer."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_spec.cli.output import Output
from gguf_spec.cli.summary import answer_line, draft_line

TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple")


def report(*drafted: str, types: tuple[str, ...] = TYPES, accepted: int = 1234) -> dict[str, Any]:
    counts = {"num_drafts": 9, "num_draft_tokens": 2000, "num_accepted_tokens": accepted}
    total = {name: value * len(drafted) for name, value in counts.items()}
    return {
        "timings": {"decode_tokens_per_second": 123.4},
        "completion_tokens": 1000,
        "prompt_tokens": 500,
        "cached_tokens": 400,
        "finish_reason": "length",
        "spec": {
            "types": list(types),
            "exactness": "seed-exact",
            **total,
            "by_type": dict.fromkeys(drafted, counts),
        },
    }


def test_one_type() -> None:
    small = {**report("ngram-mod", types=("ngram-mod",)), "cached_tokens": 0}
    assert answer_line({**small, "finish_reason": "stop"}) == (
        "123.4 tokens/s · 1000 tokens · prompt 500 · accepted 1234/2000 (62%)"
    )
    line = answer_line(report("ngram-mod", types=("ngram-mod",), accepted=500))
    assert line == (
        "123.4 tokens/s · 1000 tokens · prompt 500 (400 cached) ·\n"
        "  accepted 500/2000 (25%) · cut by length"
    )
    assert draft_line(report("ngram-mod")["spec"]) == "accepted 1234/2000 (62%) by ngram-mod"
    assert draft_line(report()["spec"]) == "nothing drafted"


def test_a_text_that_is_not_the_seeds_is_said_to_be_so() -> None:
    told = report("draft-simple", types=("draft-simple",))
    told["spec"]["exactness"] = "distribution-exact"
    assert "(62%) · distribution-exact · cut by length" in answer_line(told).replace("\n ", "")


def test_several_types_each_with_their_own_counts() -> None:
    text = answer_line(report("draft-simple", "ngram-mod"))
    assert text.splitlines() == [
        "123.4 tokens/s · 1000 tokens · prompt 500 (400 cached) ·",
        "  accepted 2468/4000 (62%): ngram-mod 1234/2000, draft-simple 1234/2000 ·",
        "  cut by length",
    ]


def test_80_columns_hold_whatever_has_drafted() -> None:
    for n in range(len(TYPES) + 1):
        for title in ("", "last: "):
            text = answer_line(report(*TYPES[:n]), title=title)
            assert max(map(len, text.splitlines())) <= 80
            assert text.count("1234/2000") == n
            assert all(kind in text for kind in TYPES[:n])


def test_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = answer_line(report("ngram-mod", types=("ngram-mod",)))
    assert text == (
        "123.4 tokens/s · 1000 tokens ·\n  prompt 500 (400 cached) ·\n"
        "  accepted 1234/2000 (62%) ·\n  cut by length"
    )
    message = "  one two three four five six seven 0.123 eight\n\nnine"
    Output.of().say(message)
    assert capsys.readouterr().err == f"{message}\n"
    monkeypatch.setattr("gguf_spec.cli.output.is_terminal", lambda stream: True)
    Output.of().say(message)
    assert capsys.readouterr().err == (
        "  one two three four five six seven\n  0.123 eight\n\nnine\n"
    )


def test_a_pause_is_told_without_its_figures() -> None:
    told = report("ngram-simple", types=("ngram-simple", "draft-mtp"))
    reasons = "draft-mtp pauses: a draft of 2 takes 2.1; draft-simple rests for this answer: slow"
    told["spec"]["control"] = {"enabled": True, "cost": {}, "paused": reasons}
    line = " ".join(answer_line(told).split())
    assert "by ngram-simple · draft-mtp pauses, draft-simple rests for this answer · cut" in line
    assert max(map(len, answer_line(told).splitlines())) <= 80
    told["spec"]["control"]["paused"] = None
    assert "pauses" not in answer_line(told)
