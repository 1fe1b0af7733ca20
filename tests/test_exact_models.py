"""``--exact`` on models: the text is that of plain decoding, token for token, whatever is asked.

``scripts/check_exact.py`` does the same at length on SmolLM2 and gemma3. Plain decoding is done in
a session of its own under the same settings, so that the two have no cache in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.backend import LlamaModel
from gguf_spec.grammars.schema import schema_to_gbnf
from gguf_spec.profile import Profile, apply_values
from gguf_spec.session import Session
from gguf_spec.setup import NGRAM_TYPES, prepare
from tests.conftest import MODELS
from tests.stacks import SHORT_NGRAMS
from tests.test_backend import PROMPTS

CODE = "\n".join(PROMPTS)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
LIST = 'root ::= ("- " [a-z ]+ "\\n")+'


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured for one test is good for the others."""
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path_factory.getbasetemp() / "exact"))


@contextmanager
def exact(model: Path | str, types: Sequence[str], **changes: object) -> Iterator[Session]:
    """A session in exact mode that drafts as much as it may, drawing nothing."""
    path = model if isinstance(model, Path) else MODELS / f"{model}.gguf"
    values: dict[str, object] = {
        "target.model": str(path),
        "target.n_ctx": 1024,
        "target.n_threads": 1,
        "spec.types": list(types),
        "spec.n_max": 3,
        "spec.exact": True,
        "spec.control": False,
        "sampling.temperature": 0,
        **SHORT_NGRAMS,
    }
    with Session(prepare(apply_values(Profile(), values | changes))) as session:
        assert session.context.params.type_k == "bf16"
        assert types == ["none"] or session.limits.narrowest == session.setup.max_width > 1
        yield session


def answer(session: Session, prompt: Sequence[int], n: int, **given: Any) -> dict[str, Any]:
    """The report of an answer of up to ``n`` tokens."""
    generation = session.generate(prompt, session.params(max_tokens=n, **given))
    for _ in generation:
        pass
    assert generation.events == []
    return generation.report()


def drafted(report: dict[str, Any]) -> int:
    return int(report["spec"]["num_draft_tokens"])


def own_draft(model: str) -> dict[str, object]:
    """The target drafts for itself."""
    return {"spec.draft-simple.model": str(MODELS / f"{model}.gguf")}


CASES: dict[str, tuple[str, tuple[str, ...], dict[str, object]]] = {
    **{kind: ("tiny-target", (kind,), {}) for kind in NGRAM_TYPES},
    "self-draft": ("tiny-target", ("draft-simple",), own_draft("tiny-target")),
    "draft-mtp on a hybrid": ("tiny-mtp", ("draft-mtp",), {}),
    "ngram-cache and draft-mtp": ("tiny-mtp", ("ngram-cache", "draft-mtp"), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_long_texts(name: str) -> None:
    """At depths to both sides of 512, where the attention of a single token is split."""
    model, types, changes = CASES[name]
    texts, reports = [], []
    for asked in (["none"], list(types)):
        with exact(model, asked, **(changes if asked != ["none"] else {})) as session:
            tokens = (session.raw_prompt(CODE) * 9)[:470]
            reports.append(answer(session, tokens, 160, ignore_end=True))
            texts.append(reports[-1]["tokens"])
    assert texts[0] == texts[1]
    assert len(texts[0]) == 160
    assert drafted(reports[1]) > 40


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "JSON schema": {"grammar": schema_to_gbnf(json.dumps(PERSON))},
    "GBNF": {"grammar": LIST},
    "repeat penalty": {"sampling.repeat_penalty": 1.3},
    "drawn": {"sampling.temperature": 0.8, "sampling.seed": 7},
    "all": {"grammar": LIST, "sampling.repeat_penalty": 1.3, "sampling.temperature": 0.8,
            "sampling.seed": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("case", ["ngram-simple", "self-draft", "ngram-cache and draft-mtp"])
def test_grammars_and_penalties(case: str, name: str) -> None:
    model, types, changes = CASES[case]
    settings = dict(CONSTRAINTS[name])
    grammar = settings.pop("grammar", None)
    reports = []
    for asked in (["none"], list(types)):
        own = {**settings, **(changes if asked != ["none"] else {})}
        with exact(model, asked, **own) as session:
            given = {} if grammar is None else {"mask": session.grammar(grammar)}
            reports.append(
                [answer(session, session.raw_prompt(p), 40, **given) for p in PROMPTS[:3]]
            )
    assert [one["tokens"] for one in reports[0]] == [one["tokens"] for one in reports[1]]
    assert sum(map(drafted, reports[1])) > 0


def chat(session: Session, questions: Sequence[str], n: int, *, keeps: bool) -> Any:
    """The answers to ``questions`` in turn, each with all before it as its prompt, and how much of
    that was in the cache, which a session that does not keep it finds empty."""
    messages: list[dict[str, str]] = []
    found = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        prompt = session.chat_prompt(messages)  # type: ignore[arg-type]
        session.sequence.consistent &= keeps
        report = answer(session, prompt, n)
        messages.append({"role": "assistant", "content": report["text"]})
        found.append((report["tokens"], report["cached_tokens"]))
    return found


def check_turns(model: Path | str, types: Sequence[str], n: int, **changes: object) -> None:
    """Three turns of a chat that drafts and keeps its cache are three plain answers that begin with
    an empty one."""
    questions = [f"Write a function {name}: {text}" for name, text in QUESTIONS]
    runs = []
    for asked, keeps in ((list(types), True), (["none"], False)):
        given = {k: v for k, v in changes.items() if asked != ["none"] or "spec" not in k}
        with exact(model, asked, **given) as session:
            runs.append(chat(session, questions, n, keeps=keeps))
    kept, fresh = runs
    assert [tokens for tokens, _ in fresh] == [tokens for tokens, _ in kept]
    assert [cached for _, cached in fresh] == [0, 0, 0]
    assert kept[2][1] > kept[1][1] > 0 or model == "tiny-mtp"


QUESTIONS = (
    ("read_file", "Read the file at a path and give back its lines, without their ends."),
    ("count_words", "Count how often each word stands in a list of lines."),
    ("close", "Close the file, and do nothing when that has been done before."),
)


@pytest.mark.parametrize(
    ("model", "types", "changes"),
    [
        ("tiny-target", ["ngram-simple"], {}),
        ("tiny-target", ["draft-simple"], own_draft("tiny-target")),
        ("tiny-target", ["draft-eagle3"],
         {"spec.draft-eagle3.model": str(MODELS / "tiny-eagle3.gguf")}),
        ("tiny-mtp", ["ngram-cache", "draft-mtp"], {}),
    ],
    ids=["ngram", "self-draft", "eagle3", "hybrid"],
)  # fmt: skip
def test_turns_of_a_chat(model: str, types: list[str], changes: dict[str, object]) -> None:
    check_turns(model, types, 80, **{"target.n_ubatch": 32, **changes})


SMOLLM2: dict[str, object] = {"target.n_ctx": 740, "target.n_ubatch": 32, "spec.n_max": 1}
"""Deep enough for widths to be known beyond the split. Both tests have the same measurements."""


@pytest.mark.model
@pytest.mark.timeout(900)
def test_turns_of_a_chat_with_smollm2(smollm2: LlamaModel) -> None:
    check_turns(Path(smollm2.path), ["ngram-cache"], 8, **SMOLLM2)


@pytest.mark.model
@pytest.mark.timeout(900)
def test_smollm2_beyond_the_split(smollm2: LlamaModel) -> None:
    texts, drafts = [], []
    with exact(Path(smollm2.path), ["ngram-cache"], **SMOLLM2) as session:
        tokens = (session.raw_prompt("one, two, three, four and " * 99))[:520]
        for plain in (False, True):
            if plain:  # on the same cache, of which whole chunks are used again
                session.sequence.width_limit = lambda depth: 1
            report = answer(session, tokens, 24, ignore_end=True)
            texts.append(report["tokens"])
            drafts.append(drafted(report))
    assert texts[0] == texts[1]
    assert drafts[0] > 6
    assert drafts[1] == 0
