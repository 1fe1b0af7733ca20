"""Every drafter and stack of drafters gives the text of plain decoding on the tiny models.

A slice of ``scripts/check_equality.py``: each stack at two of the draft lengths, so that all of
these come up, few prompts and shorter texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.sampling import SamplingParams
from tests.stacks import GREEDY, LENGTHS, MANY_PROMPTS, STACKS, WARM, Stack, compare, split_mtp

SLICE = MANY_PROMPTS[::7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stacks")
    split_mtp(made)
    return made


@pytest.mark.parametrize("stack", STACKS, ids=lambda stack: stack.name)
@pytest.mark.parametrize(
    ("params", "exact"), [(GREEDY, True), (WARM, False)], ids=["exact greedy", "default warm"]
)
def test_the_text_is_that_of_plain_decoding(
    stack: Stack,
    params: SamplingParams,
    exact: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(folder))  # what was measured is good for all
    n_max = LENGTHS[(STACKS.index(stack) + 4 * exact) % len(LENGTHS)]
    found = compare(stack, n_max, folder, params, SLICE, 70, exact=exact)
    assert (found.texts, found.different) == (len(SLICE), 0)
    assert found.drafted > 0
    assert found.accepted > 0 or params is WARM
    assert not exact or found.limit > n_max
