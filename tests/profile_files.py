"""What the tests of profiles share: files in a folder of their own, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_spec.errors import ProfileError
from gguf_spec.profile import Profile, load_profile


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the profiles of whoever runs the tests out of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path / "home"))


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def load(text: str) -> Profile:
    return load_profile(write("p.toml", text))


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ProfileError) as info:
        load(text)
    assert info.value.exit_code == 3
    assert all(problem in info.value.message for problem in info.value.problems)
    return info.value.problems or (info.value.message,)


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in table.items():
        is_table = isinstance(value, dict) and value
        result |= flat(value, f"{prefix}{key}.") if is_table else {f"{prefix}{key}": value}
    return result
