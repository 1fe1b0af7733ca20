"""Sample-and-match."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.verify import Verdict, match

TOKENS = st.lists(st.integers(0, 2), max_size=8)


def test_the_first_disagreement_is_replaced() -> None:
    choices = [5, 6, 9, 8]
    assert match([5, 6, 7], choices.__getitem__) == Verdict(2, 9, "recovered")
    assert match([4, 6, 7], choices.__getitem__) == Verdict(0, 5, "recovered")


def test_a_draft_that_stands_earns_a_bonus() -> None:
    choices = [5, 6, 7, 8]
    assert match([5, 6, 7], choices.__getitem__) == Verdict(3, 8, "bonus")
    assert match([], choices.__getitem__) == Verdict(0, 5, "bonus")


@given(TOKENS, st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_emits_the_targets_choices_and_asks_in_order(draft: list[int], choices: list[int]) -> None:
    asked: list[int] = []

    def choose(i: int) -> int:
        asked.append(i)
        return choices[i]

    verdict = match(draft, choose)
    n = verdict.n_accepted
    assert [*draft[:n], verdict.next_token] == choices[: n + 1]
    assert asked == list(range(n + 1))
    if verdict.kind == "bonus":
        assert n == len(draft)
    else:
        assert draft[n] != choices[n]
