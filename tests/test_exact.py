"""The token-identical mode: what it changes, what it keeps to, what it uses again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.control import FixedPolicy
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.engine import Engine, Request, SequenceState
from gguf_spec.exact import cache_types, conditions, remember, store_path
from gguf_spec.profile import Profile, Target, apply_values
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.verify_store import file_identity, load_record, merged_widths, widths_of
from gguf_spec.widths import WidthLimits, WidthResult
from tests.conftest import MODELS
from tests.toy import ToyContext

GREEDY = SamplingParams()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path))
    return tmp_path


def exact_profile(**values: object) -> Profile:
    settings: dict[str, object] = {
        "target.model": str(MODELS / "tiny-target.gguf"),
        "target.n_ctx": 300,
        "target.n_threads": 1,
        "spec.types": ["draft-simple"],
        "spec.draft-simple.model": str(MODELS / "tiny-draft.gguf"),
        "spec.exact": True,
        "spec.control": False,
    }
    return apply_values(Profile(), settings | values)


def generate(engine: Engine, sequence: SequenceState, prompt: Sequence[int], n: int) -> list[int]:
    steps = engine.generate(sequence, Request(prompt, Sampler(GREEDY), n, ignore_end=True))
    return [token for step in steps for token in step.tokens]


def test_drafts_keep_to_the_width_of_the_depth() -> None:
    target = ToyContext(5)
    engine = Engine(target)
    sequence = engine.open([DraftModel(ToyContext(5))], FixedPolicy([8]))
    sequence.width_limit = WidthLimits((20, 40, 60), (9, 4, 2)).at
    target.decodes.clear()
    generate(engine, sequence, [3, 1, 2], 90)
    limits = {"<=20": 0, "<=40": 0, "<=60": 0, "more": 0}
    for (run,) in target.decodes:
        if run.n_outputs:
            place = next((n for n in (20, 40, 60) if run.start <= n), None)
            key = "more" if place is None else f"<={place}"
            limits[key] = max(limits[key], run.n_outputs)
    assert limits == {"<=20": 9, "<=40": 4, "<=60": 2, "more": 1}


@pytest.mark.parametrize("shared", [0, 5, 16, 20, 33, 47, 48])
def test_only_whole_chunks_are_used_again(shared: int) -> None:
    target = ToyContext(6, n_ubatch=16)
    engine = Engine(target)
    sequence = engine.open([], FixedPolicy([]))
    sequence.keeps_whole_chunks = True
    prompt = [1 + i % 20 for i in range(40)]
    answer = generate(engine, sequence, prompt, 30)
    text = [*prompt, *answer]
    again = [*text[:shared], 21, *(1 + i % 19 for i in range(30))]
    generate(engine, sequence, again, 5)
    # Two chunks of 16 were decoded as such; the third was shorter, and the answer single.
    assert sequence.progress.cached_tokens == min(shared, 32) // 16 * 16


def test_chunks_of_the_second_prompt_count_too() -> None:
    target = ToyContext(6, n_ubatch=16)
    engine = Engine(target)
    sequence = engine.open([], FixedPolicy([]))
    sequence.keeps_whole_chunks = True
    first = [1 + i % 20 for i in range(20)]
    text = [*first, *generate(engine, sequence, first, 40)]
    generate(engine, sequence, [*text, 5], 4)
    assert sequence.progress.cached_tokens == 16
    generate(engine, sequence, [*text, 7], 4)
    assert sequence.progress.cached_tokens == 48


def test_the_cache_is_bf16_or_what_the_profile_says() -> None:
    assert cache_types(Target()) == (("bf16", "bf16"), ("q8_0", "q8_0"))
    assert cache_types(Target(type_k="q8_0")) == (("q8_0", "f16"),)


def test_exact_measures_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepare(exact_profile())
    with Session(setup) as session:
        assert session.context.params.type_k == session.context.params.type_v == "bf16"
        assert session.context.params.flash_attn == "on"
        assert session.limits.narrowest == 4
        assert session.limits.deepest == 192
        assert session.verified is None
        first = session.limits
    assert len(list((home / "cache" / "verify").iterdir())) == 1

    def never(*args: object, **more: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("gguf_spec.verification.compare_widths", never)
    with Session(setup) as session:
        assert session.limits == first
    other = replace(setup, n_threads_batch=2)
    with pytest.raises(AssertionError, match="measured again"), Session(other):
        pass


@pytest.mark.parametrize(("n_ctx", "deepest"), [(1, 0), (2, 0), (18, 2), (30, 12)])
def test_what_a_short_context_measured_is_not_all(home: Path, n_ctx: int, deepest: int) -> None:
    """Findings are kept for all lengths of the context."""
    chunks: dict[str, object] = {"target.n_ubatch": 1 if n_ctx == 1 else 2}
    for _ in range(2):
        with Session(prepare(exact_profile(**chunks, **{"target.n_ctx": n_ctx}))) as session:
            assert session.limits.deepest == deepest
    with Session(prepare(exact_profile(**chunks))) as session:
        assert session.limits.at(192) == 4
        assert session.limits.narrowest == 4


def test_findings_that_cannot_be_kept(home: Path) -> None:
    (home / "cache").write_text("a file")
    with Session(prepare(exact_profile())) as session:
        assert session.limits.at(100) == 4
        (warning,) = session.warnings
    assert "not kept" in warning
    assert "Not a directory" in warning


def test_exact_text_is_plain_text(home: Path) -> None:
    """Over the depth where the measurements end, where nothing is drafted any more."""
    texts = []
    for types in (["none"], ["draft-simple"]):
        with Session(prepare(exact_profile(**{"spec.types": types}))) as session:
            prompt = session.raw_prompt("the old man and the sea " * 6)
            n = 290 - len(prompt)
            params = session.params(max_tokens=n, ignore_end=True, sampling=GREEDY)
            generation = session.generate(prompt, params)
            for _ in generation:
                pass
            texts.append(generation.tokens)
            report = generation.report()
    assert texts[0] == texts[1]
    assert report["spec"]["num_accepted_tokens"] > 0
    assert report["spec"]["steps"] > 290 - 192 - 20


def test_every_condition_counts(home: Path) -> None:
    with Session(prepare(exact_profile())) as session:
        setup, context = session.setup, session.context
        base = conditions(setup, context)
        path = store_path(setup, context)
        assert base["cache"] == ["bf16", "bf16", False]
        assert base["repack"] is False
        context.params = replace(context.params, n_threads=3)
        assert store_path(setup, context) != path


def test_a_changed_model_is_another_one(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    data = bytearray((MODELS / "tiny-draft.gguf").read_bytes())
    file.write_bytes(data)
    before = file_identity([file])
    data[-5] ^= 1
    file.write_bytes(data)
    assert file_identity([file]) != before


def test_records_are_merged_and_damaged_ones_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    one, two = WidthResult(2, 16, 16, 16, 0.0, 0), WidthResult(3, 16, 18, 18, 0.0, 0)
    newer = WidthResult(2, 16, 16, 3, 0.5, 1)
    remember(path, {"verdict": "token-identical"}, [one, two])
    remember(path, {}, [newer])
    record = load_record(path)
    assert record["verdict"] == "token-identical"
    assert widths_of(record) == [newer, two] == merged_widths([one, two], [newer])
    for damage in ("", "{", "[]", '{"widths": [{}]}', '{"widths": 3}', "[" * 99999, "\x00"):
        path.write_text(damage, encoding="utf-8")
        assert load_record(path) == {}
    path.write_text(json.dumps(record), encoding="utf-8")
    assert load_record(path) == record
