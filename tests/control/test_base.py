"""The fixed policy."""

from __future__ import annotations

from gguf_spec.control import Choice, FixedPolicy, Round


def test_asks_every_drafter_in_order_up_to_its_ceiling() -> None:
    policy = FixedPolicy([9, 3])
    assert list(policy.choose(20)) == [Choice(0, 9, 1), Choice(1, 3, 1)]
    assert list(policy.choose(9)) == [Choice(0, 9, 1), Choice(1, 3, 1)]


def test_never_past_the_limit() -> None:
    for limit in range(1, 12):
        assert [c.n_max for c in FixedPolicy([9, 3]).choose(limit)] == [
            min(limit, 9),
            min(limit, 3),
        ]


def test_an_empty_draft_is_never_worth_it() -> None:
    assert [c.n_min for c in FixedPolicy([4], [0]).choose(5)] == [1]
    assert [c.n_min for c in FixedPolicy([4], [3]).choose(5)] == [3]


def test_no_drafters_no_choices() -> None:
    assert list(FixedPolicy([]).choose(5)) == []


def test_learns_nothing() -> None:
    policy = FixedPolicy([4])
    before = list(policy.choose(5))
    for _ in range(50):
        policy.record(Round(0, 4, 0, 1.0, 1.0))
    assert list(policy.choose(5)) == before


def test_a_dropped_drafter_is_not_asked_and_the_others_keep_their_numbers() -> None:
    policy = FixedPolicy([5, 3, 4], [2, 1, 1])
    policy.drop(1)
    assert policy.choose(10) == [Choice(0, 5, 2), Choice(2, 4)]
    policy.drop(0)
    policy.drop(0)
    assert policy.choose(1) == [Choice(2, 1)]
