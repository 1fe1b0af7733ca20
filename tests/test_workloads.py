"""Workloads: the shipped ones, and files of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.errors import GgufSpecError, InputError, PromptError, UsageError
from gguf_spec.workloads import find_workload, shipped_names


def test_what_is_shipped() -> None:
    found = {name: find_workload(name) for name in shipped_names()}
    assert {"echo", "code-edit", "code-edit-predict", "short-answer", "chat"} <= set(found)
    assert len({workload.digest for workload in found.values()}) == len(found)
    assert not any("{{" in turn for workload in found.values() for turn in workload.turns)
    assert {workload.temperature for workload in found.values()} == {0.0, 1.0}
    assert len(found["chat"].turns) > 1
    assert found["code-edit-predict"].predict in found["code-edit"].turns[0]
    assert found["code-edit-predict"].turns == found["code-edit"].turns
    sizes = [len(workload.turns[0]) for workload in found.values()]
    assert max(sizes) > 10 * min(sizes)
    assert all(workload.description and workload.shipped for workload in found.values())


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("Say {{code}}.\n", encoding="utf-8")
    workload = find_workload(str(path))
    assert workload.turns == ("Say {{code}}.",)
    assert workload.name == "mine.txt"
    assert not workload.shipped


def test_a_toml_file_says_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('turns = ["a", "b"]\nmax_tokens = 7\ntemperature = 1\npredict = "c"\nseed = 3')
    workload = find_workload(str(path))
    assert (workload.turns, workload.max_tokens, workload.temperature) == (("a", "b"), 7, 1.0)
    assert (workload.predict, workload.seed, workload.name) == ("c", 3, "mine")


@pytest.mark.parametrize(
    ("name", "content", "kind", "told"),
    [
        ("a.txt", b"", PromptError, "empty"),
        ("a.txt", b" \n\n", PromptError, "empty"),
        ("a.txt", b"abc\xff", InputError, "byte 3 of 4"),
        ("a.toml", b"turns = [", InputError, "a.toml"),
        ("a.toml", b"turns = []", InputError, "turns"),
        ("a.toml", b'turns = [" "]', InputError, "turns"),
        ("a.toml", b'turns = ["a"]\nmax_token = 3', InputError, "did you mean `max_tokens`"),
        ("a.toml", b'turns = ["a"]\nmax_tokens = 0', InputError, "max_tokens"),
        ("a.toml", b'turns = ["a"]\nmax_tokens = true', InputError, "max_tokens"),
        ("a.toml", b'turns = ["a"]\ntemperature = nan', InputError, "temperature"),
        ("a.toml", b'turns = ["a"]\nseed = -1', InputError, "seed"),
        ("a.toml", b'turns = "a"', InputError, "turns"),
    ],
)
def test_what_is_no_workload(
    tmp_path: Path, name: str, content: bytes, kind: type[GgufSpecError], told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(kind) as caught:
        find_workload(str(path))
    assert told in caught.value.message


def test_an_unknown_name_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'echo'") as caught:
        find_workload("ecko")
    assert "translation" in str(caught.value.hint)
    with pytest.raises(InputError, match="cannot be read"):
        find_workload(str(tmp_path))
