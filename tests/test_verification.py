"""``verify`` on the tiny models, sound and with faults planted in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec import verification
from gguf_spec.backend import LlamaContext
from gguf_spec.context import Run
from gguf_spec.drafters.draft_cache import DraftCache
from gguf_spec.engine import SequenceState
from gguf_spec.errors import UsageError
from gguf_spec.history import History
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Row, Sampler
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.verification import Verification, measure_widths, verify_session
from gguf_spec.widths import WidthLimits, WidthResult, limits_of
from tests.conftest import MODELS

Make = Callable[..., Session]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path))
    return tmp_path


def session(
    target: str, types: Sequence[str], drafts: dict[str, str] | None = None, **more: object
) -> Session:
    values: dict[str, object] = {
        "target.model": str(MODELS / target),
        "target.n_ctx": 512,
        "target.n_threads": 1,
        "spec.types": list(types),
        "spec.control": False,
    }
    values |= {f"spec.{kind}.model": str(MODELS / file) for kind, file in (drafts or {}).items()}
    profile = apply_values(Profile(), values | more)
    return Session(prepare(profile), least_width=16)


def examine(made: Session) -> Verification:
    with made:
        return verify_session(made, n_tokens=40, n_prompts=5, depths=(16, 200))


def draft_model() -> Session:
    return session("tiny-target.gguf", ["draft-simple"], {"draft-simple": "tiny-draft.gguf"})


def test_sound_drafters_are_token_identical() -> None:
    found = examine(
        session(
            "tiny-target.gguf",
            ["ngram-simple", "draft-simple", "draft-eagle3"],
            {"draft-simple": "tiny-draft.gguf", "draft-eagle3": "tiny-eagle3.gguf"},
        )
    )
    assert found.verdict == "token-identical"
    names = [result.type for result in found.types]
    together = "ngram-simple+draft-simple+draft-eagle3"
    assert names == ["ngram-simple", "draft-simple", "draft-eagle3", together]
    for result in found.types[1:3]:
        assert result.accepted > 20
        assert result.compared >= 12
    assert found.types[0].drafted > 0


def test_a_head_inside_a_hybrid_target_is_sound() -> None:
    found = examine(session("tiny-mtp.gguf", ["draft-mtp"]))
    assert found.verdict == "token-identical"
    assert found.types[0].compared >= 12


def test_a_verifier_that_accepts_too_much_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
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
    found = examine(draft_model())
    assert found.verdict == "broken"
    (result,) = found.types
    assert result.drafter_is_sound
    assert any(not divergence.near_tie for divergence in result.divergences)


def test_a_rollback_that_leaves_a_token_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's cache keeps one rejected token, in place of the next one."""
    commit = SequenceState.commit

    def forgetful(self: SequenceState, run: Run, decode_seconds: float) -> object:
        step = commit(self, run, decode_seconds)
        if step.n_drafted > step.n_accepted + 1:
            self.history._tokens[-1] = run.tokens[step.n_accepted + 1]
        return step

    monkeypatch.setattr(SequenceState, "commit", forgetful)
    assert examine(draft_model()).verdict == "broken"


def test_a_draft_model_that_reads_a_shifted_text_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catch_up = DraftCache.catch_up

    def shifted(self: DraftCache, text: Sequence[int]) -> int:
        return catch_up(self, [text[0], *text[:-1]])

    monkeypatch.setattr(DraftCache, "catch_up", shifted)
    found = examine(draft_model())
    assert found.verdict == "broken"
    assert not found.types[0].divergences  # the text is right all the same
    assert not found.types[0].drafter_is_sound


def test_a_head_that_reads_the_wrong_rows_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rounds, not in prompts, its states are of the token before."""
    states = LlamaContext.states

    def off(
        self: LlamaContext, layers: Sequence[int], row: int, n: int, out: object = None
    ) -> NDArray[np.float32]:
        rows = states(self, layers, row, n)
        return np.roll(rows, 1, axis=0) if n <= 8 else rows

    monkeypatch.setattr(LlamaContext, "states", off)
    found = examine(
        session("tiny-target.gguf", ["draft-eagle3"], {"draft-eagle3": "tiny-eagle3.gguf"})
    )
    assert not found.types[0].divergences
    assert found.verdict == "broken"


def test_a_head_that_is_hardly_ever_right_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that a fresh drafter shares shows in that hardly anything stands."""
    states = LlamaContext.states
    monkeypatch.setattr(LlamaContext, "states", lambda *args: -20.0 * states(*args))
    found = examine(session("tiny-mtp.gguf", ["draft-mtp"]))
    (result,) = found.types
    assert result.agreed > 0.8 * result.compared
    assert found.verdict == "broken"


@pytest.mark.parametrize("n_ctx", [1, 2, 16, 17])
def test_a_context_without_room_for_a_width(n_ctx: int) -> None:
    values = {"target.n_ctx": n_ctx}
    with session("tiny-target.gguf", ["ngram-simple"], None, **values) as made:
        assert {result.depth for result in measure_widths(made)} == ({1} if n_ctx == 17 else set())
        with pytest.raises(UsageError, match=rf"of {n_ctx} tokens has no room .* has 27 tokens"):
            verify_session(made)


def test_exact_mode_is_judged_by_the_widths_that_it_keeps_to(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on gemma3, wider batches differ: drafts never get there. Where one would, it counts."""
    compare = verification.compare_widths

    def rounded(*args: object, **more: object) -> Iterator[WidthResult]:
        for result in compare(*args, **more):  # type: ignore[arg-type]
            yield result if result.width <= 3 else replace(result, identical_rows=0)

    monkeypatch.setattr(verification, "compare_widths", rounded)
    drafts = {"draft-simple": "tiny-draft.gguf"}
    exact = {"spec.exact": True, "spec.n_max": 7}
    with session("tiny-target.gguf", ["draft-simple"], drafts, **exact) as made:
        found = verify_session(made, n_tokens=20, n_prompts=2, depths=(16, 200))
        assert (found.verdict, found.max_width) == ("token-identical", 3)
        assert {width.width for width in found.widths if not width.identical} >= {4, 8, 16}
        found.limits = WidthLimits((16, 320), (4, 4))
        found.max_width = 4
        assert found.verdict == "identical-up-to-near-ties"
    with session("tiny-target.gguf", ["draft-simple"], drafts, **{"spec.n_max": 7}) as made:
        found = verify_session(made, n_tokens=20, n_prompts=2, depths=(16, 200))
        assert (found.verdict, found.max_width) == ("identical-up-to-near-ties", 8)


def test_widths_stay_within_a_short_context() -> None:
    with session("tiny-target.gguf", ["ngram-simple"], None, **{"target.n_ctx": 40}) as made:
        results = measure_widths(made, (16, 200))
        assert results
        assert all(result.depth + result.rows <= 40 for result in results)
        assert limits_of(results).at(0) >= 1
