"""A history against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.history import History

# Ids whose bytes overlap: 256 is 00 01 00 00, so its bytes stand at odd offsets of others, too.
TOKENS = st.lists(st.sampled_from([0, 1, 256, 65536, 2**31 - 1, -1]), max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), TOKENS),
        st.tuples(st.just("truncate"), st.integers(0, 20)),
    ),
    max_size=12,
)


@given(TOKENS, OPERATIONS, TOKENS, st.integers(1, 4))
def test_behaves_like_a_list(
    start: list[int], operations: list[tuple[str, object]], tail: list[int], n: int
) -> None:
    history, model = History(start), list(start)
    for name, argument in operations:
        epoch = history.epoch
        if name == "extend":
            history.extend(argument)  # type: ignore[arg-type]
            model.extend(argument)  # type: ignore[arg-type]
            assert history.epoch == epoch
        else:
            shorter = argument < len(model)  # type: ignore[operator]
            history.truncate(argument)  # type: ignore[arg-type]
            del model[argument:]  # type: ignore[misc]
            assert (history.epoch != epoch) == shorter
        assert len(history) == len(model)
        assert list(history) == model
        assert history[:] == model
        assert [history[i] for i in range(-len(model), len(model))] == model + model
        assert history[1:-1] == model[1:-1]
        for i in range(len(model)):
            for j in range(len(model)):
                here, there = model[i : i + n], model[j : j + n]
                assert (history.ngram(i, n) == history.ngram(j, n)) == (here == there)
        for cut in (0, len(model) // 2, len(model)):
            other = model[:cut] + tail
            agree = 0
            while agree < min(len(model), len(other)) and model[agree] == other[agree]:
                agree += 1
            assert history.common_prefix(other) == agree


def test_common_prefix_takes_any_sequence() -> None:
    history = History([1, 2, 3])
    assert history.common_prefix((1, 2, 3, 4)) == 3
    assert history.common_prefix(History([1, 2])) == 2
    assert history.common_prefix([]) == 0
    assert history.common_prefix([2]) == 0


def test_a_key_is_a_copy() -> None:
    history = History([1, 2, 3])
    key = history.ngram(1, 2)
    history.truncate(1)
    history.extend([9, 9])
    assert {key: 5}[History([2, 3]).ngram(0, 2)] == 5
