"""Hidden states: what the backend hands out and refuses, and heads that must not miss any."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gguf_spec.backend import (
    ContextParams,
    LlamaContext,
    LlamaModel,
    ModelParams,
    load_lib,
    symbols,
)
from gguf_spec.context import Run
from gguf_spec.errors import BackendError, GgufSpecError
from gguf_spec.hidden_states import NEXTN, state_problem
from gguf_spec.profile import Profile
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from tests.conftest import MODELS
from tests.drafters.heads import EXACT, Bench, bench
from tests.test_backend import PROMPTS

KINDS = ["draft-mtp", "draft-eagle3"]


def fresh(made: Bench, prompt: list[int], n: int) -> tuple[list[int], int, int]:
    """Text, drafted and accepted of a sequence that has seen nothing else."""
    sequence = made.open([made.drafter()], [3])
    text = made.answer(sequence, prompt, n=n)
    total = sequence.progress.spec.total
    return text, total.num_draft_tokens, total.num_accepted_tokens


@dataclass(frozen=True)
class Turn:
    """The second prompt: what is kept of the first text, and the text after it."""

    name: str
    keep: int
    more: str
    n_first: int = 60


TURNS = (
    Turn("goes on", 10_000, "\n\ndef write_file(path):\n"),
    Turn("the same again", 0, ""),
    Turn("another end of the answer", -7, "\n\nclass Reader:\n"),
    Turn("another end of the prompt", -65, "\n\nclass Reader:\n"),
    Turn("nothing in common", -10_000, "# something else\nimport sys\n"),
    Turn("a stopped answer goes on", 10_000, "\n\ndef write_file(path):\n", n_first=-20),
)


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_turn_drafts_as_a_fresh_sequence_does(kind: str, turn: Turn) -> None:
    """What the target keeps of its cache, the head has to have as well."""
    with bench(kind, 3, **EXACT) as made:
        first = made.prompt(PROMPTS[0])
        sequence = made.open([made.drafter()], [3])
        stop = -turn.n_first if turn.n_first < 0 else None
        text = [*first, *made.answer(sequence, first, n=abs(turn.n_first) + 20, stop_after=stop)]
        if turn.keep:
            end = len(text) + turn.keep if turn.keep < 0 else len(text)
            second = [*text[: max(end, 0)], *made.prompt(turn.more)]
        else:
            second = first
        again = made.answer(sequence, second, n=80)
        total = sequence.progress.spec.total
        found = again, total.num_draft_tokens, total.num_accepted_tokens
        cached = sequence.progress.cached_tokens
        assert found == fresh(made, second, 80)
        if kind == "draft-eagle3" and turn.name != "nothing in common":
            # One token fewer than there is in common, where the text turns off.
            assert cached >= len(second) - len(made.prompt(turn.more)) - 2 > 0 or not turn.more


def counts(context: LlamaContext, prompt: list[int], layers: Sequence[int]) -> np.ndarray:
    context.clear(0)
    context.decode([Run(0, 0, prompt, 0)])
    return context.states(layers, 0, len(prompt))


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_token_whatever_the_batch(kind: str) -> None:
    """Rows of one batch, of single tokens, and of several sequences in one batch."""
    with bench(kind, 3, n_seq_max=2, **EXACT) as made:
        context, layers = made.target, made.layers
        prompt = made.prompt(PROMPTS[1])
        whole = counts(context, prompt, layers)
        widths = {NEXTN: context.model.n_embd_out}
        assert whole.shape == (
            len(prompt),
            sum(widths.get(layer, context.model.n_embd) for layer in layers),
        )
        context.clear(0)
        for i, token in enumerate(prompt):
            context.decode([Run(0, i, [token], i % 2)])
            np.testing.assert_allclose(context.states(layers, 0, 1)[0], whole[i], atol=0.05)
        other = made.prompt(PROMPTS[2])
        context.clear(0)
        runs = [Run(0, 0, prompt, 1), Run(1, 0, other, 0)]
        context.decode(runs)
        both = context.states(layers, runs[0].row, len(prompt))
        np.testing.assert_allclose(both, whole, atol=0.05)
        second = context.states(layers, runs[1].row, len(other))
        np.testing.assert_allclose(second, counts(context, other, layers), atol=0.05)


def test_states_that_are_not_there_are_refused() -> None:
    """Every one of these would end the process, or read memory that is not the state's."""
    with bench("draft-eagle3", 3) as made:
        target, head, layers = made.target, made.head, made.layers
        with pytest.raises(BackendError, match="computed: 0"):
            target.states(layers, 0, 1)
        target.decode([Run(0, 0, [5, 6, 7], 1)])
        for row, n in ((0, 4), (3, 1), (-1, 1), (2, 2)):
            with pytest.raises(BackendError, match="computed: 3"):
                target.states(layers, row, n)
        with pytest.raises(BackendError, match="layer 0 are not switched on"):
            target.states((0,), 0, 1)
        with pytest.raises(BackendError, match="does not keep states"):
            target.own_state(0)
        states = target.states(layers, 0, 3)
        for wrong in (states[:, :-1], states[:0], np.zeros((head.n_ubatch + 1, states.shape[1]))):
            with pytest.raises(BackendError, match="wanted"):
                head.encode(wrong.astype(np.float32))
        rows = head.encode(states).copy()
        with pytest.raises(BackendError, match="wanted"):
            head.decode_states(Run(0, 0, [5, 6, 7], 0), states)
        with pytest.raises(BackendError, match="rows of logits"):
            head.decode_states(Run(0, 0, [5, 6, 7], 1), rows)
        head.decode_states(Run(0, 0, [5, 6, 7], 0), rows)
        with pytest.raises(BackendError, match="no state of row"):
            head.own_state(3)


@pytest.mark.parametrize("kind", KINDS)
def test_drafting_on_is_decoding_own_states_step_by_step(kind: str) -> None:
    with bench(kind, 3, **EXACT) as made:
        head, start = made.head, len(made.prompt(PROMPTS[0]))
        prepare_head(made, made.prompt(PROMPTS[0]))
        rows, tokens = [head.logits(0).copy()], [int(head.logits(0).argmax())]
        for i in range(4):
            state = head.own_state(0).reshape(1, -1)
            head.decode_states(Run(0, start + i, [tokens[-1]], 1), state)
            rows.append(head.logits(0).copy())
            tokens.append(int(rows[-1].argmax()))

        seen: list[np.ndarray] = []
        stop = 0

        def choose(row: np.ndarray) -> int | None:
            seen.append(row.copy())
            return int(row.argmax()) if len(seen) < stop else None

        for limit, most, n_decoded in ((5, 9, 4), (1, 9, 0), (9, 3, 2)):
            seen.clear()
            stop = most
            prepare_head(made, made.prompt(PROMPTS[0]))
            head.logits(0)
            before = head.busy_seconds
            head.draft_on(0, start, limit, choose)
            assert (head.busy_seconds > before) == (n_decoded > 0)
            assert head._length(0) == start + n_decoded
            assert len(seen) == n_decoded + 1
            assert all((a == b).all() for a, b in zip(seen, rows, strict=False))


def test_drafting_on_stops_at_an_end_and_is_refused_without_states() -> None:
    with bench("draft-eagle3", 3) as made:
        head, length = made.head, len(made.prompt(PROMPTS[0]))
        prepare_head(made, made.prompt(PROMPTS[0]))
        end = next(token for token in range(head.n_vocab) if head.is_end(token))
        chosen = iter([5, end, 6])
        head.draft_on(0, length, 9, lambda row: next(chosen))
        assert next(chosen) == 6
        assert head._length(0) == length + 1
        head.remove(0, 3)
        with pytest.raises(BackendError, match="failed with code"):
            head.draft_on(0, 2, 9, lambda row: 5)  # a position that is taken
        with pytest.raises(BackendError, match=r"no logits|no state"):
            head.draft_on(0, 3, 9, lambda row: 5)
        made.target.decode([Run(0, 0, [5], 1)])
        with pytest.raises(BackendError, match="does not keep states"):
            made.target.draft_on(0, 1, 2, lambda row: 5)


def prepare_head(made: Bench, prompt: list[int]) -> None:
    """Decode ``prompt`` on the head, beside states from a seed; the last one has logits."""
    head = made.head
    head.clear(0)
    shape = len(prompt), head._state_width
    states = np.random.default_rng(1).standard_normal(shape, np.float32)
    head.decode_states(Run(0, 0, prompt[:-1], 0), states[:-1])
    head.decode_states(Run(0, len(prompt) - 1, prompt[-1:], 1), states[-1:])


def test_states_are_written_where_they_are_wanted() -> None:
    with bench("draft-eagle3", 3) as made:
        target, layers = made.target, made.layers
        target.decode([Run(0, 0, [5, 6, 7], 1)])
        states = target.states(layers, 0, 3)
        room = np.zeros((9, states.shape[1]), np.float32)
        assert target.states(layers, 1, 2, room[4:6]).base is room
        assert (room[4:6] == states[1:]).all()
        assert not room[:4].any()
        assert not room[6:].any()
        for wrong in (room[:3], room[:2, :-1]):
            with pytest.raises(BackendError, match=r"states of shape \(2, "):
                target.states(layers, 1, 2, wrong)
        target.close()
        with pytest.raises(BackendError, match="has been closed"):
            target.states(layers, 1, 2)


def test_states_that_a_model_cannot_give_are_refused(tiny_target: LlamaModel) -> None:
    for layers, message in (
        ((NEXTN,), "last hidden state of qwen3"),
        ((4,), "output of the last layer of qwen3"),
        ((5,), "layer 5 is wanted, the target has 4 layers"),
        ((-2,), "layer -2"),
    ):
        with pytest.raises(BackendError, match=message):
            LlamaContext(tiny_target, ContextParams(64, layers=layers))
    assert "layer inputs of gemma3" in (state_problem("gemma3", 18, (3,)) or "")
    assert state_problem("qwen35", 18, (3, 0, NEXTN)) is None
    with (
        LlamaModel(MODELS / "tiny-eagle3.gguf") as head,
        pytest.raises(BackendError, match="ctx_other"),
    ):
        LlamaContext(head, ContextParams(64))


def test_missing_functions_turn_off_what_needs_them(
    monkeypatch: pytest.MonkeyPatch, tiny_target: LlamaModel
) -> None:
    lib = load_lib()
    assert symbols.absent(lib.api) == {}
    name = "llama_get_embeddings_layer_inp"
    monkeypatch.setitem(
        symbols.SYMBOLS, name, symbols.Symbol("_Zgone", "?gone", None, (), "drafting with heads")
    )
    # The plain C name is tried first, the mangled one is not there any more.
    assert symbols.absent(lib.api) == {name: "drafting with heads"}
    monkeypatch.setattr(lib, "_extra", {})
    monkeypatch.setitem(lib.missing, name, "drafting with heads")
    with LlamaContext(tiny_target, ContextParams(64, layers=(1,))) as context:
        context.decode([Run(0, 0, [5], 1)])
        with pytest.raises(BackendError, match=r"does not export .*: drafting with heads"):
            context.states((1,), 0, 1)


@pytest.mark.parametrize("n_rs_seq", [0, 1, 4])
def test_a_recurrent_state_goes_back_as_far_as_its_snapshots(n_rs_seq: int) -> None:
    """libllama would also go back to snapshots that an earlier decode left behind: to a wrong
    state, without a word."""
    params = {"n_rs_seq": n_rs_seq, "max_width": 8, **EXACT}
    with (
        LlamaModel(MODELS / "tiny-mtp.gguf", ModelParams()) as model,
        LlamaContext(model, ContextParams(256, **params)) as context,  # type: ignore[arg-type]
    ):
        assert (context.n_rollback, context.removes_tail) == (n_rs_seq, False)
        text = model.tokenize(PROMPTS[1])[:12]

        def logits_after(tokens: Sequence[int]) -> np.ndarray:
            context.clear(0)
            context.decode([Run(0, 0, tokens, 1)])
            return context.logits(len(tokens) - 1).copy()

        r = random.Random(n_rs_seq)
        for _ in range(60):
            widths = [r.randrange(1, 7) for _ in range(3)]
            context.clear(0)
            done: list[int] = []
            for width in widths:
                rows = r.choices(text, k=width)
                context.decode([Run(0, len(done), rows, width)])
                done += rows
            back = r.randrange(1, 7)
            keep = len(done) - back
            possible = keep > 0 and back <= n_rs_seq and back < widths[-1]
            if keep <= 0:
                continue
            assert context.remove(0, keep) is possible
            if possible:
                assert not context.remove(0, keep - 1)  # a second time
                context.decode([Run(0, keep, [7], 1)])
                np.testing.assert_allclose(
                    context.logits(0), logits_after([*done[:keep], 7]), atol=0.05
                )


@pytest.mark.parametrize(
    ("n_ctx", "n_ubatch", "n_rollback"),
    [(1, 512, 0), (2, 512, 0), (3, 512, 1), (64, 1, 0), (64, 4, 2)],
)
def test_snapshots_fit_into_a_physical_batch(n_ctx: int, n_ubatch: int, n_rollback: int) -> None:
    """libllama aborts on a decode if they do not."""
    params = ContextParams(n_ctx, n_ubatch=n_ubatch, n_rs_seq=3, max_width=4)
    with (
        LlamaModel(MODELS / "tiny-mtp.gguf", ModelParams()) as model,
        LlamaContext(model, params) as context,
    ):
        assert context.n_rollback == n_rollback
        tokens = [5, 6, 7, 8, 9, 10][:n_ctx]
        context.decode([Run(0, 0, tokens, 1)])
        assert np.isfinite(context.logits(len(tokens) - 1)).all()


def test_sessions_choose_heads_by_what_the_files_are() -> None:
    """A file with a head of its own needs nothing more; what another file is for, its header says,
    however it was named."""
    target, mtp = str(MODELS / "tiny-target.gguf"), str(MODELS / "tiny-mtp.gguf")
    eagle3, small = str(MODELS / "tiny-eagle3.gguf"), str(MODELS / "tiny-draft.gguf")

    def types(model: str, **spec: object) -> tuple[str, ...]:
        return prepare(made(model, **spec)).spec_types

    assert types(mtp) == ("ngram-simple", "draft-mtp")
    assert types(mtp, types=["ngram-mod", "draft-mtp"]) == ("ngram-mod", "draft-mtp")
    assert types(target, draft={"model": eagle3}) == ("ngram-simple", "draft-eagle3")
    simple = {"draft-simple": {"model": eagle3}}
    assert types(target, **simple) == ("ngram-simple", "draft-eagle3")
    chosen = ["ngram-cache", "draft-simple"]
    assert types(target, types=chosen, **simple) == ("ngram-cache", "draft-eagle3")
    both = prepare(
        made(mtp, types=["draft-eagle3", "draft-mtp"], **{"draft-eagle3": {"model": eagle3}})
    )
    assert both.spec_types == ("draft-eagle3", "draft-mtp")
    assert both.layers == (NEXTN, 1, 2, 3)
    assert both.n_rs_seq == 3
    plain = prepare(made(mtp, types=["ngram-simple"]))
    assert (plain.layers, plain.n_rs_seq) == ((), 0)
    for model, spec, message in (
        (target, {"types": ["draft-mtp"]}, "draft-mtp is not available: tiny-target has no MTP"),
        (target, {"types": ["draft-eagle3"]}, "draft-eagle3 needs a draft model"),
        (target, {"types": ["draft-eagle3"], "draft": {"model": small}}, "drafts for draft-simple"),
        (target, {"draft-mtp": {"model": mtp}}, "it is for draft-simple, not for draft-mtp"),
    ):
        with pytest.raises(GgufSpecError, match=message):
            prepare(made(model, **spec))


@pytest.mark.parametrize(
    ("model", "spec", "source"),
    [
        ("tiny-mtp", {}, "draft-mtp"),
        ("tiny-target", {"draft": {"model": str(MODELS / "tiny-eagle3.gguf")}}, "draft-eagle3"),
    ],
)
def test_sessions_draft_with_heads_and_keep_the_text(
    model: str, spec: dict[str, object], source: str
) -> None:
    texts = []
    for wanted in (spec, {"types": ["none"]}):
        with Session(
            prepare(made(str(MODELS / f"{model}.gguf"), control=False, **wanted))
        ) as session:
            for prompt in PROMPTS[:3]:
                generation = session.generate(
                    session.raw_prompt(prompt), session.params(max_tokens=60)
                )
                for _ in generation:
                    pass
                texts.append(generation.text)
            if wanted is spec:
                assert generation.report()["spec"]["by_type"][source]["num_accepted_tokens"] > 0
                assert session.warnings == []
    assert texts[:3] == texts[3:]


def made(model: str, **spec: object) -> Profile:
    """A profile for ``model`` under exact settings."""
    target = {"model": model, "n_ctx": 512, "n_threads": 1, **EXACT}
    return Profile.model_validate({"target": target, "spec": spec, "sampling": {"temperature": 0}})
