"""What a profile makes of models and contexts: every key is tested by its effect."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_spec.backend import load_lib, recent_log
from gguf_spec.backend.template import ChatTemplate
from gguf_spec.engine import Request
from gguf_spec.errors import (
    GgufSpecError,
    HeaderError,
    InputError,
    NoFitError,
    PairError,
    UsageError,
)
from gguf_spec.loading import rope_params, target_params
from gguf_spec.profile import Profile, apply_values
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.session import Session
from gguf_spec.setup import MAX_THREADS, default_threads, prepare

MODELS = Path(__file__).parent / "models"
TARGET = str(MODELS / "tiny-target.gguf")
DRAFT = str(MODELS / "tiny-draft.gguf")
OTHER = str(MODELS / "tiny-othervocab-draft.gguf")
PROMPT = "def read(self):\n    return self.file.read()\n\ndef write(self"


def profile(**values: Any) -> Profile:
    """A profile for the tiny target; ``target__n_ctx=5`` sets [target] n_ctx."""
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    return apply_values(
        Profile(),
        {
            "target.model": TARGET,
            "target.n_threads": 1,
            "sampling.temperature": 0.0,
            "spec.control": False,
            **dotted,
        },
    )


def logits(**values: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits after a prompt, under a profile."""
    with Session(prepare(profile(**values))) as session:
        rows = []
        generation = session.generate(session.raw_prompt(PROMPT), session.params(max_tokens=2))
        for _ in generation:
            rows.append(session.context.logits(0 if rows else generation.n_prompt - 1).copy())
        return rows[0]


def log_of(**values: Any) -> str:
    """What llama.cpp said while a profile was loaded."""
    recent_log().lines.clear()
    with Session(prepare(profile(**values))):
        return "\n".join(line for _, line in recent_log().lines)


def test_the_context_is_as_long_as_asked() -> None:
    assert prepare(profile(target__n_ctx=300)).n_ctx == 300
    assert prepare(profile()).n_ctx == 2048, "the trained length, which is below 8192"
    assert prepare(profile(target__n_ctx="max")).n_ctx == 2048
    longer = prepare(profile(target__n_ctx=4096))
    assert longer.n_ctx == 4096
    assert "4096" in longer.warnings[0]
    assert "2048" in longer.warnings[0]
    with Session(prepare(profile(target__n_ctx=300))) as session:
        generation = session.generate(session.raw_prompt("def"), session.params(ignore_end=True))
        for _ in generation:
            pass
        assert generation.finish_reason == "length"
        assert generation.n_prompt + len(generation.tokens) == 301


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("type_k", "q8_0", "K (q8_0)"),
        ("type_v", "bf16", "V (bf16)"),
        ("n_batch", 700, "n_batch               = 700"),
        ("n_ubatch", 96, "n_ubatch              = 96"),
        ("flash_attn", "on", "flash_attn            = enabled"),
        ("flash_attn", "off", "flash_attn            = disabled"),
        ("rope_freq_base", 5000.0, "freq_base             = 5000"),
        ("rope_freq_scale", 0.5, "freq_scale            = 0.5"),
        ("use_mmap", False, "load_mode = none"),
    ],
)
def test_llama_cpp_is_told(key: str, value: Any, said: str) -> None:
    text = log_of(**{f"target__{key}": value})
    assert said in text, "\n".join(x for x in text.split("\n") if said.split()[0] in x)


def test_threads_are_used() -> None:
    setup = prepare(profile(target__n_threads=1, target__n_threads_batch=2))
    with Session(setup) as session:
        api, handle = session.model.lib.api, session.context.handle
        assert (api.llama_n_threads(handle), api.llama_n_threads_batch(handle)) == (1, 2)
    automatic = prepare(profile(target__n_threads="auto"))
    assert automatic.n_threads == automatic.n_threads_batch == default_threads() >= 1
    assert prepare(profile(target__n_threads=3)).n_threads_batch == 3


def test_rope_settings_change_what_is_computed() -> None:
    plain = logits()
    assert np.array_equal(plain, logits())
    for changed in (
        {"target__rope_freq_base": 1000.0},
        {"target__rope_freq_scale": 0.5},
        {"target__rope_scaling": "yarn", "target__rope_freq_scale": 0.5},
    ):
        assert not np.allclose(plain, logits(**changed), atol=1e-3), changed
    yarn = {"target__rope_scaling": "yarn", "target__rope_freq_scale": 0.5}
    with_yarn = logits(**yarn)
    # llama.cpp derives the attention factor by itself unless the extrapolation is off.
    no_mix = {**yarn, "target__yarn_ext_factor": 0.0}
    attention = {**no_mix, "target__yarn_attn_factor": 2.0}
    assert not np.array_equal(logits(**no_mix), logits(**attention))
    for key, value in (
        ("yarn_ext_factor", 0.5),
        ("yarn_beta_fast", 4.0),
        ("yarn_beta_slow", 3.0),
        ("yarn_orig_ctx", 64),
    ):
        changed = {**yarn, f"target__{key}": value}
        assert not np.array_equal(with_yarn, logits(**changed)), key


def test_placement_keys_reach_the_loader() -> None:
    target = profile(
        target__n_gpu_layers=7,
        target__n_cpu_moe=2,
        target__override_tensor=[r"blk\.3\..*=CPU"],
        target__tensor_split=[3, 1],
        target__main_gpu=1,
        target__devices=["CUDA0"],
        target__split_mode="row",
        target__use_mmap=False,
        target__use_mlock=True,
    ).target
    params = target_params(target)
    assert params.n_gpu_layers == 7
    assert params.tensor_split == (3.0, 1.0)
    assert (params.main_gpu, params.devices, params.split_mode) == (1, ("CUDA0",), "row")
    assert (params.use_mmap, params.use_mlock) == (False, True)
    assert params.overrides[0] == (r"blk\.3\..*", "CPU")
    assert [pattern for pattern, _ in params.overrides[1:]] == [
        rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps" for i in range(2)
    ]
    for all_layers in (
        target_params(target, 2),
        target_params(profile(target__n_cpu_moe=2**31 - 1).target),
    ):
        assert all_layers.overrides[-1][0] == r"blk\.\d+\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    for everything in ("all", "auto", -1):
        assert target_params(profile(target__n_gpu_layers=everything).target).n_gpu_layers is None
    assert rope_params(profile().target) == ()


def test_overrides_are_applied() -> None:
    text = log_of(target__override_tensor=[r"blk\.1\.attn_q.*=CPU"])
    assert "blk.1.attn_q" in text
    with pytest.raises(InputError, match="no buffer type TPU0"):
        log_of(target__override_tensor=[r"x=TPU0"])
    with pytest.raises(InputError, match="no device TPU0"):
        log_of(target__devices=["TPU0"])


def write_lora(path: Path, *, arch: str = "qwen3", base: str = "blk.0.attn_q.weight") -> Path:
    """A LoRA adapter of rank 2 for the tiny target's first query matrix (192 -> 256)."""
    numbers = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0)
    writer.add_tensor(f"{base}.lora_a", numbers.normal(0, 1, (2, 192)).astype(np.float32))
    writer.add_tensor(f"{base}.lora_b", numbers.normal(0, 1, (256, 2)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_lora_changes_what_is_computed(tmp_path: Path) -> None:
    lora = write_lora(tmp_path / "lora.gguf")
    plain, full = logits(), logits(target__lora=[str(lora)])
    half, none = logits(target__lora=[f"{lora}:0.5"]), logits(target__lora=[f"{lora}:0"])
    np.testing.assert_array_equal(plain, none)
    assert not np.allclose(plain, full, atol=1e-3)
    assert not np.allclose(half, full, atol=1e-3)
    assert not np.allclose(half, plain, atol=1e-3)


def test_a_lora_for_another_model_is_refused(tmp_path: Path) -> None:
    for lora, words in (
        (write_lora(tmp_path / "a.gguf", arch="llama"), "adapts llama models, the target is qwen3"),
        (write_lora(tmp_path / "b.gguf", base="blk.77.attn_q.weight"), "blk.77.attn_q.weight"),
        (Path(DRAFT), "not a LoRA adapter"),
    ):
        with pytest.raises(HeaderError, match=words) as caught:
            prepare(profile(target__lora=[str(lora)]))
        assert caught.value.exit_code == 3
    with pytest.raises(InputError):
        prepare(profile(target__lora=[str(tmp_path / "missing.gguf")]))


def test_spec_types_are_chosen() -> None:
    assert prepare(profile()).spec_types == ("ngram-simple",)
    both = prepare(profile(**{"spec__draft.model": DRAFT}))
    assert both.spec_types == ("ngram-simple", "draft-simple")
    assert prepare(profile(spec__types=["none"])).spec_types == ()
    assert prepare(profile(spec__types=["none"])).max_width == 1
    loud = prepare(profile(spec__types=["none"], **{"spec__draft.model": DRAFT}))
    assert loud.drafts == ()
    assert "NOT used" in loud.warnings[0]
    with pytest.raises(UsageError, match="needs a draft model"):
        prepare(profile(spec__types=["draft-simple"]))
    with pytest.raises(InputError, match="draft-mtp is not available"):
        prepare(profile(spec__types=["draft-mtp"]))


def test_ceilings_size_the_batch() -> None:
    values = {"spec__draft.model": DRAFT, "spec__draft.n_max": 5}
    setup = prepare(profile(**values))
    assert setup.ceilings == (48, 5)
    assert setup.max_width == 49
    assert prepare(profile(spec__n_max=4, **values)).ceilings == (4, 4)
    small = {"spec__ngram-simple.size_m": 20, "spec__types": ["ngram-simple"]}
    assert prepare(profile(**small)).ceilings == (20,)


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(PairError, match="token 263 differs") as caught:
        prepare(profile(**{"spec__draft.model": OTHER}))
    assert caught.value.exit_code == 3
    assert "--set spec.translate=true" in str(caught.value.hint)


def test_a_draft_of_another_vocabulary_is_translated_on_request() -> None:
    """And one of the same vocabulary is not."""
    texts = []
    for draft, types in ((None, "none"), (OTHER, "draft-simple"), (DRAFT, "draft-simple")):
        values: dict[str, Any] = {"spec.draft.model": draft} if draft else {}
        values |= {"target.flash_attn": "on", "target.type_k": "bf16", "target.type_v": "bf16"}
        wanted = profile(spec__translate=True, spec__types=[types], **values)
        setup = prepare(wanted)
        assert setup.warnings == ()
        assert [d.translated for d in setup.drafts] == [draft == OTHER] * len(setup.drafts)
        with Session(setup) as session:
            kinds = [type(drafter).__name__ for drafter in session.sequence.drafters]
            assert kinds == {None: [], OTHER: ["TranslatedDraft"], DRAFT: ["DraftModel"]}[draft]
            generation = session.generate(session.raw_prompt(PROMPT), session.params(max_tokens=60))
            texts.append("".join(delta.text for delta in generation))
    assert texts[1:] == texts[:1] * 2


def test_draft_settings_reach_the_draft_context() -> None:
    values = {
        "spec__draft.model": DRAFT,
        "spec__draft.n_ctx": 333,
        "spec__draft.n_ubatch": 64,
        "spec__draft.type_k": "q8_0",
        "spec__draft.p_min": 0.75,
    }
    recent_log().lines.clear()
    with Session(prepare(profile(**values))) as session:
        drafter: Any = session.sequence.drafters[1]
        assert drafter.context.n_ctx == 333
        assert drafter.context.n_ubatch == 64
        assert drafter._p_min == 0.75
        said = [line for _, line in recent_log().lines if "K (q8_0)" in line]
        assert len(said) == 1


def test_numbers_that_would_end_the_process_are_refused() -> None:
    for values in (
        {"target__n_threads": MAX_THREADS + 1},
        {"target__n_ctx": 2**31},
        {"target__n_batch": 2**31},
    ):
        with pytest.raises(GgufSpecError, match="at most"):
            prepare(profile(**values))


def test_a_cache_larger_than_all_memory_is_refused() -> None:
    with pytest.raises(NoFitError, match=r"2000000000 tokens needs .* GiB") as caught:
        prepare(profile(target__n_ctx=2_000_000_000))
    assert caught.value.exit_code == 4
    # The way out is a context that fits, and no longer one would.
    found = re.search(r"-c (\d+) would fit", caught.value.hint or "")
    assert found is not None
    assert prepare(profile(target__n_ctx=int(found[1]))).n_ctx == int(found[1])
    with pytest.raises(NoFitError):
        prepare(profile(target__n_ctx=2 * int(found[1])))


def test_a_draft_that_does_not_fit_is_left_out_with_its_reason() -> None:
    values = {"spec__draft.model": DRAFT, "spec__draft.n_ctx": 2_000_000_000}
    setup = prepare(profile(**values))
    assert setup.spec_types == ("ngram-simple",)
    assert setup.drafts == ()
    assert len(setup.warnings) == 1
    assert re.search(r"draft-simple .* NOT used: .* GiB are missing", setup.warnings[0])
    assert setup.n_ctx == prepare(profile()).n_ctx
    with Session(setup) as session:
        assert session.spec_types == ("ngram-simple",)


def test_shortest_drafts_are_set_per_type() -> None:
    values = {"spec__draft.model": DRAFT, "spec__n_min": 2, "spec__draft.n_min": 3}
    setup = prepare(profile(**values, **{"spec__draft.n_max": 6}))
    assert setup.floors == (2, 3)
    with Session(setup) as session:
        steps = session.engine.generate(
            session.sequence,
            Request(session.raw_prompt(PROMPT), Sampler(SamplingParams()), 80),
        )
        lengths = {step.n_drafted for step in steps if step.source == "draft-simple"}
    assert lengths
    assert min(lengths) >= 3


def test_a_report_is_the_documented_json() -> None:
    values = {"spec__draft.model": DRAFT, "target__n_ctx": 512}
    with Session(prepare(profile(**values))) as session:
        generation = session.generate(session.raw_prompt(PROMPT), session.params(max_tokens=60))
        text = "".join(delta.text for delta in generation)
        report = json.loads(json.dumps(generation.report()))
    assert report["text"] == text != ""
    assert report["completion_tokens"] == len(report["tokens"]) == 60
    assert report["finish_reason"] == "length"
    spec, timings = report["spec"], report["timings"]
    assert report["completion_tokens"] == 1 + spec["steps"] + spec["num_accepted_tokens"]
    assert spec["types"] == ["ngram-simple", "draft-simple"]
    assert sum(c["num_drafts"] for c in spec["by_type"].values()) == spec["num_drafts"]
    assert 0 < timings["overhead_seconds"] < timings["decode_seconds"]
    assert timings["decode_tokens_per_second"] == pytest.approx(59 / timings["decode_seconds"])
    assert report["model"] == {"ref": TARGET, "arch": "qwen3", "quant": "Q8_0", "n_ctx": 512}


def test_stop_strings_end_where_they_stand() -> None:
    with Session(prepare(profile())) as session:
        prompt = session.raw_prompt(PROMPT)
        whole = session.generate(prompt, session.params(max_tokens=80))
        pieces = [session.model.piece(t) for delta in whole for t in delta.tokens]
        middle = whole.text[len(whole.text) // 2 :][:5]
        stopped = session.generate(prompt, session.params(max_tokens=80, stop=(middle,)))
        shown = "".join(delta.text for delta in stopped)
        assert stopped.finish_reason == "stop"
        assert shown == stopped.text == whole.text[: whole.text.index(middle)]
        # The tokens go up to the one that completed the stop string, and not further.
        assert stopped.tokens == whole.tokens[: len(stopped.tokens)]
        upto = b"".join(pieces[: len(stopped.tokens)]).decode()
        assert middle in upto
        assert middle not in b"".join(pieces[: len(stopped.tokens) - 1]).decode(errors="replace")
        # The cache holds no more than was emitted: the next turn reuses it and is right.
        again = session.generate(prompt, session.params(max_tokens=80))
        for _ in again:
            pass
        assert again.text == whole.text


def test_an_answer_can_be_cancelled_and_the_next_is_right() -> None:
    with Session(prepare(profile(**{"spec__draft.model": DRAFT}))) as session:
        prompt = session.raw_prompt(PROMPT)
        whole = session.generate(prompt, session.params(max_tokens=60))
        for _ in whole:
            pass
        cut = session.generate(prompt, session.params(max_tokens=60))
        for n, _ in enumerate(cut):
            if n == 4:
                cut.cancel()
        assert cut.finish_reason == "cancelled"
        assert whole.text.startswith(cut.text)
        assert len(cut.tokens) < 60
        again = session.generate(prompt, session.params(max_tokens=60))
        for _ in again:
            pass
        assert again.tokens == whole.tokens


def test_a_seed_repeats_and_minus_one_does_not() -> None:
    values = {"sampling__temperature": 1.0, "spec__draft.model": DRAFT}
    texts = []
    with Session(prepare(profile(**values))) as session:
        for seed in (5, 5, -1, -1):
            wanted = profile(**values, sampling__seed=seed)
            params = session.params(wanted, max_tokens=40)
            generation = session.generate(session.raw_prompt(PROMPT), params)
            for _ in generation:
                pass
            texts.append((generation.report()["seed"], generation.text))
    assert texts[0] == texts[1]
    assert texts[0][0] == 5
    assert len({seed for seed, _ in texts}) == 3


def test_a_failed_load_leaves_nothing_behind() -> None:
    with pytest.raises(InputError, match="no device"):
        Session(prepare(profile(target__devices=["TPU0"])))
    with Session(prepare(profile())) as session:
        assert session.model.n_vocab == 1024


def test_a_libllama_without_checkpoints_drafts_only_where_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hybrid = str(MODELS / "tiny-mtp.gguf")
    values = {"target__model": hybrid, "spec__types": ["ngram-simple"]}

    def answer() -> tuple[list[str], str]:
        with Session(prepare(profile(**values))) as session:
            generation = session.generate(session.raw_prompt(PROMPT), session.params(max_tokens=40))
            for _ in generation:
                pass
            assert generation.report()["spec"]["types"] == list(session.spec_types)
            return session.warnings, generation.text

    warnings, text = answer()
    assert warnings == []
    monkeypatch.setitem(load_lib().missing, "llama_state_seq_get_size_ext", "checkpoints")
    warnings, same = answer()
    assert "no drafting" in warnings[0]
    assert same == text


NGRAM_TABLES = {
    "ngram-simple": {"size_n": 3, "size_m": 9},
    "ngram-map-k": {"size_n": 3, "size_m": 9},
    "ngram-map-k4v": {"size_n": 3, "size_m": 9},
    "ngram-mod": {"n_match": 3, "n_min": 2, "n_max": 9},
    "ngram-cache": {"n_draft": 5},
}


@pytest.mark.parametrize("kind", NGRAM_TABLES)
def test_every_ngram_type_drafts_and_leaves_the_text_alone(kind: str) -> None:
    table = {f"spec__{kind}.{key}": value for key, value in NGRAM_TABLES[kind].items()}
    exact = {"target__type_k": "bf16", "target__type_v": "bf16", "target__flash_attn": "on"}
    reports = []
    for types in (["none"], [kind]):
        setup = prepare(profile(spec__types=types, **table, **exact))
        with Session(setup) as session:
            generation = session.generate(
                session.raw_prompt(PROMPT), session.params(max_tokens=150)
            )
            for _ in generation:
                pass
            reports.append(generation.report())
    assert reports[0]["tokens"] == reports[1]["tokens"]
    counts = reports[1]["spec"]["by_type"][kind]
    assert counts["num_accepted_tokens"] > 20
    longest = NGRAM_TABLES[kind].get("size_m") or NGRAM_TABLES[kind].get("n_max") or 5
    assert len(reports[1]["spec"]["accepted_per_position"]) == longest == setup.ceilings[0]


@pytest.mark.parametrize(
    ("kind", "key", "values", "attribute"),
    [
        ("ngram-simple", "size_n", 5, "size_n"),
        ("ngram-simple", "size_m", 7, "size_m"),
        ("ngram-map-k", "min_hits", 2, "min_hits"),
        ("ngram-map-k4v", "size_n", 6, "size_n"),
        ("ngram-mod", "n_match", 24, "n_match"),
        ("ngram-mod", "n_min", 5, "n_min"),
        ("ngram-mod", "n_max", 55, "n_max"),
        ("ngram-cache", "n_draft", 3, "n_draft"),
    ],
)
def test_parameters_are_what_they_say_where_they_are_used(
    kind: str, key: str, values: int, attribute: str
) -> None:
    setup = prepare(profile(spec__types=[kind], **{f"spec__{kind}.{key}": values}))
    with Session(setup) as session:
        assert getattr(session.sequence.drafters[0], attribute) == values


def predicted(session: Session, text: str, n: int) -> dict[str, Any]:
    """The report of an answer whose expected text is ``text``."""
    tokens = tuple(session.model.tokenize(text))
    params = session.params(max_tokens=n, predicted=tokens)
    generation = session.generate(session.raw_prompt(PROMPT), params)
    for _ in generation:
        pass
    return generation.report()


def test_the_right_prediction_is_accepted_and_a_wrong_one_is_dropped() -> None:
    with Session(prepare(profile(spec__types=["none"]))) as session:
        plain = predicted(session, "", 120)
    with Session(prepare(profile())) as session:
        right = predicted(session, plain["text"], 120)
        wrong = predicted(session, "Nothing like it.\n" * 40, 120)
    assert right["tokens"] == wrong["tokens"] == plain["tokens"]
    assert right["spec"]["acceptance_rate"] >= 0.95
    assert right["spec"]["num_accepted_tokens"] > 100
    assert wrong["spec"]["num_draft_tokens"] - wrong["spec"]["num_accepted_tokens"] < 60


@pytest.mark.parametrize("pool", ["request", "session", "profile"])
def test_pools_last_as_long_as_they_say(
    pool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path))
    accepted = []
    setup = prepare(profile(spec__pool=pool, **{"spec__ngram-simple.size_n": 8}), name="test")
    for _ in range(2):
        with Session(setup) as session:
            for _ in range(2):
                session.engine.sequences[0].truncate(0)
                generation = session.generate(
                    session.raw_prompt("import os\n\n"), session.params(max_tokens=60)
                )
                for _ in generation:
                    pass
                spec = generation.report()["spec"]
                accepted.append(spec["num_accepted_tokens"])
    # The same request again drafts from the first answer: at once, in the next session, or never.
    gain = {"request": (0, 0, 0), "session": (1, 0, 1), "profile": (1, 1, 1)}[pool]
    assert [count > accepted[0] + 20 for count in accepted[1:]] == [bool(g) for g in gain]
    assert (setup.pool_path is not None and setup.pool_path.exists()) == (pool == "profile")


def test_a_damaged_pool_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path))
    setup = prepare(profile(spec__pool="profile"), name="test")
    assert setup.pool_path is not None
    setup.pool_path.parent.mkdir(parents=True)
    for content in (b"", b"nonsense" * 20):
        setup.pool_path.write_bytes(content)
        with pytest.raises(InputError):
            Session(setup)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0, "repeat_penalty": 1.3},
        {"temperature": 0.8, "top_k": 5, "seed": 3},
        {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.1, "seed": 4},
        {"temperature": 0.9, "dry_multiplier": 0.8, "seed": 5},
        {"temperature": 0.9, "mirostat": 1, "seed": 6},
        {"temperature": 0.9, "mirostat": 2, "seed": 7},
        {"temperature": 0.7, "dynatemp_range": 0.5, "seed": 8},
        {"temperature": 0.0, "frequency_penalty": 0.4, "presence_penalty": 0.3},
        {"temperature": 0.5, "logit_bias": {"10": 3.0, "20": -100.0}, "seed": 9},
    ],
    ids=lambda sampling: "-".join(sampling),
)
def test_every_sampler_gives_the_same_text_with_speculation(sampling: dict[str, Any]) -> None:
    exact = {"target__type_k": "bf16", "target__type_v": "bf16", "target__flash_attn": "on"}
    table = {f"sampling__{key}": value for key, value in sampling.items()}
    stack = {
        "spec__types": ["ngram-simple", "draft-simple"],
        "spec__draft.model": DRAFT,
        "spec__ngram-simple.size_n": 3,
        "spec__ngram-simple.size_m": 8,
    }
    texts = []
    for drafting in ({"spec__types": ["none"]}, stack):
        with Session(prepare(profile(**exact, **table, **drafting))) as session:
            generation = session.generate(
                session.raw_prompt(PROMPT), session.params(max_tokens=150)
            )
            for _ in generation:
                pass
            texts.append(generation.tokens)
            report = generation.report()
    assert texts[0] == texts[1]
    assert report["spec"]["num_accepted_tokens"] > 10
    # The setting does something: without it the text is another.
    with Session(prepare(profile(**exact, sampling__temperature=0.0))) as session:
        generation = session.generate(session.raw_prompt(PROMPT), session.params(max_tokens=150))
        for _ in generation:
            pass
        assert generation.tokens != texts[0]


def test_what_does_not_exist_yet_is_named_and_what_exists_is_not() -> None:
    warnings = prepare(profile(memory__vram="8GiB", engine__kind="llama-server")).warnings
    assert len(warnings) == 1
    assert "IGNORED: engine.kind" in warnings[0]
    quiet = prepare(
        profile(sampling__repeat_penalty=1.2, target__n_cpu_moe=1, spec__pool="request")
    )
    assert quiet.warnings == ()


def test_chat_template_arguments_come_from_the_profile() -> None:
    setup = prepare(profile(chat__template={"flavour": "return self.name"}))
    with Session(setup) as session:
        session.template = ChatTemplate("{{ flavour }}", session.model)
        messages = [{"role": "user", "content": "hello"}]
        wanted = session.model.tokenize("return self.name", parse_special=True)
        assert session.chat_prompt(messages) == wanted
        assert session.chat_prompt(messages, flavour="x") == session.model.tokenize("x")


def test_sampling_comes_from_the_profile_then_the_file_then_us() -> None:
    setup = prepare(apply_values(Profile(), {"target.model": TARGET, "sampling.top_k": 7}))
    recommended = {
        "general.sampling.temp": 0.25,
        "general.sampling.top_k": 99,
        "general.sampling.top_p": 0.5,
    }
    target = dataclasses.replace(setup.target, sampling=recommended)
    with Session(dataclasses.replace(setup, target=target)) as session:
        sampling = session.params().sampling
        assert (sampling.top_k, sampling.temperature, sampling.top_p) == (7, 0.25, 0.5)
        assert sampling.min_p == 0.05
