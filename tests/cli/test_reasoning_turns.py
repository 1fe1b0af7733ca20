"""Turns of a chat with the templates of families that reason: the switch in the prompt, reasoning
and answer told apart token by token, what later turns see of it, and a limit.

A mask makes the tiny target say what a model of the family would say, byte by byte. The templates
have the structure of the real ones, as far as reasoning goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from gguf_spec.backend.template import ChatTemplate
from gguf_spec.cli.answer import warn_about_thinking
from gguf_spec.cli.constraint import Constraint
from gguf_spec.cli.loaded import Loaded
from gguf_spec.cli.output import Output
from gguf_spec.cli.screen import Foot, Screen
from gguf_spec.cli.turns import Turns
from gguf_spec.errors import RunError
from gguf_spec.profile import Profile, apply_values
from gguf_spec.profile_schema import Chat
from gguf_spec.reasoning import Part
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from gguf_spec.thinking import Thinking
from tests.cli.conftest import TARGET

OFF = "(enable_thinking is defined and not enable_thinking)"
#: Qwen3: the model opens its reasoning itself, and earlier turns lose it.
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
    "{% if " + OFF + " %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
#: Qwen3.5 and 3.6: the template opens it, and may keep that of earlier turns.
QWEN35 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content and preserve_thinking is defined and preserve_thinking %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
    "{% if " + OFF + " %}{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>\n' }}{% endif %}"
)
#: gpt-oss: channels, an effort, and no switch. It speaks of a message's thinking.
GPT_OSS = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "{{ '<|start|>system<|message|>Reasoning: ' + reasoning_effort + '<|end|>' }}"
    "{% for m in messages %}{% if '<|channel|>' in m.content %}{{ raise_exception('channels') }}"
    "{% endif %}{% if m.role == 'assistant' %}{% if m.thinking %}{{ m.thinking }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% else %}"
    "{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{{ '<|start|>assistant' }}"
)
#: GLM-4.5 and 4.6: a word at the end of the user's message, an empty block in the answer.
GLM46 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content }}"
    "{{ '/nothink' if " + OFF + " and not m.content.endswith('/nothink') else '' }}"
    "{% else %}{{ '<|assistant|>\n<think></think>\n' + m.content }}{% endif %}{% endfor %}"
    "{{ '<|assistant|>' }}{{ '\n<think></think>' if " + OFF + " else '' }}"
)
#: GLM-4.7-Flash: either tag at the end of the prompt, and reasoning kept if it is asked for.
GLM47 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}"
    "{% else %}<|assistant|>"
    "{% if clear_thinking is defined and not clear_thinking and m.reasoning_content %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% else %}</think>{% endif %}"
    "{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
    "{{ '</think>' if " + OFF + " else '<think>' }}"
)
#: DeepSeek R1: always opened by the template; earlier answers are cut behind their reasoning.
DEEPSEEK_R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{% endif %}{% endfor %}{{ '<｜Assistant｜><think>\n' }}"
)
HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"


class Family(NamedTuple):
    """A template; the ends of its prompts with --think auto and off; what a model writes to open
    its reasoning and to end it; arguments with which later turns keep it."""

    template: str
    on: str
    off: str | None
    opens: str
    ends: str
    keeps: dict[str, Any] | None = None


FAMILIES = {
    "Qwen3": Family(
        QWEN3, "assistant\n", "assistant\n<think>\n\n</think>\n\n", "<think>\n", "\n</think>\n\n"
    ),
    "Qwen3.5": Family(
        QWEN35, "assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n", "", "\n</think>\n\n",
        {"preserve_thinking": True},
    ),
    "gpt-oss": Family(
        GPT_OSS, "<|start|>assistant", None, "<|channel|>analysis<|message|>", HARMONY_END
    ),
    "GLM-4.6": Family(
        GLM46, "?<|assistant|>", "?/nothink<|assistant|>\n<think></think>", "\n<think>",
        "</think>\n",
    ),
    "GLM-4.7": Family(
        GLM47, "?<|assistant|><think>", "?<|assistant|></think>", "", "</think>",
        {"clear_thinking": False},
    ),
    "DeepSeek R1": Family(DEEPSEEK_R1, "?<｜Assistant｜><think>\n", None, "", "\n</think>\n\n"),
}  # fmt: skip


@dataclass
class Says:
    """A mask: these tokens come, then ``after``, or anything."""

    tokens: list[int]
    after: int | None = None

    def legal(self, ids: np.ndarray) -> np.ndarray:
        wanted = self.tokens[0] if self.tokens else self.after
        return np.ones(len(ids), dtype=bool) if wanted is None else np.asarray(ids == wanted)

    def advance(self, token: int) -> None:
        if not self.legal(np.array([token]))[0]:
            raise RunError(f"{token} may not come")
        self.tokens = self.tokens[1:]

    def copy(self) -> Says:
        return Says(list(self.tokens), self.after)


class Parts(Screen):
    """A screen that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[list[Part]] = []

    def start(self, foot: Foot, *, at_once: bool = False) -> None:
        self.calls.clear()

    def feed(self, parts: Sequence[Part], *, accepted: bool = False) -> None:
        self.calls.append(list(parts))

    def text(self, kind: str) -> str:
        return "".join(part.text for parts in self.calls for part in parts if part.kind == kind)

    def count(self, n_tokens: int) -> None: ...
    def tick(self) -> None: ...
    def finish(self) -> None: ...


@dataclass
class Scripted:
    """A chat whose answers are given."""

    turns: Turns
    screen: Parts
    prompts: list[str] = field(default_factory=list)

    def use(self, family: Family, **chat: Any) -> None:
        session = self.turns.session
        session.template = ChatTemplate(family.template, session.model)
        session.thinking = Thinking(family.template, session.model)
        settings = {"template": {}, **chat}
        self.turns.profile = self.turns.profile.model_copy(update={"chat": Chat(**settings)})
        self.turns.messages.clear()

    def ask(self, text: str, answer: str, *, ends: bool = True) -> dict[str, str]:
        """The message that answers ``text``; the model says ``answer``, and more unless it
        ``ends``."""
        model = self.turns.session.model
        tokens = [token for c in answer for token in model.tokenize(c)]
        self.turns.constraint = cast(Constraint, _Script(Says(tokens, model.eos if ends else None)))
        self.turns.answer(text)
        return self.turns.messages[-1]

    @property
    def prompt(self) -> str:
        return self.prompts[-1]


@dataclass(frozen=True)
class _Script:
    script: Says

    def mask(self, session: object, profile: object) -> Says:
        return self.script.copy()


def _written(session: Session, token: int) -> bytes:
    """A token of a prompt as its template wrote it."""
    model = session.model
    return model.special_text(token).encode() if model.is_control(token) else model.piece(token)


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    values = {
        "target.model": TARGET, "target.n_threads": 1, "target.n_ctx": 2048,
        "spec.types": ["ngram-simple"], "spec.control": False, "sampling.temperature": 0.0,
    }  # fmt: skip
    with Loaded(prepare(apply_values(Profile(), values)), Output("quiet")) as one:
        yield one


@pytest.fixture
def chat(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    screen = Parts()
    made = Scripted(Turns(loaded, Output("quiet"), 300, screen=screen), screen)
    session = loaded.session
    real = session.generate

    def generate(prompt: Sequence[int], *rest: Any) -> Any:
        made.prompts.append(b"".join(_written(session, token) for token in prompt).decode())
        return real(prompt, *rest)

    monkeypatch.setattr(session, "generate", generate)
    monkeypatch.setattr(session, "template", session.template)
    monkeypatch.setattr(session, "thinking", session.thinking)
    return made


@pytest.mark.parametrize("name", FAMILIES)
def test_a_turn_is_split_token_by_token(chat: Scripted, name: str) -> None:
    family = FAMILIES[name]
    chat.use(family)
    message = chat.ask("Why?", f"{family.opens}Hm, 1 < 2.{family.ends}So it is.")
    assert chat.prompt.endswith(family.on)
    assert message == {
        "role": "assistant", "content": "So it is.", "reasoning_content": "Hm, 1 < 2."
    }  # fmt: skip
    assert chat.screen.text("reasoning").strip() == "Hm, 1 < 2."
    assert chat.screen.text("answer").strip() == "So it is."
    assert "<" not in chat.screen.text("answer")
    assert len([parts for parts in chat.screen.calls if parts]) > 5, "as it comes"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_switch(chat: Scripted, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    family = FAMILIES[name]
    chat.use(family, think="on")
    chat.ask("Why?", f"{family.opens}Hm.{family.ends}So.")
    assert chat.prompt.endswith(family.on)
    chat.use(family, think="off")
    warn_about_thinking(chat.turns.session, chat.turns.profile, Output())
    if family.off is None:
        assert "--think off has no effect" in capsys.readouterr().err
        return
    assert capsys.readouterr().err == ""
    message = chat.ask("Why?", "It is <think>so</think>.")
    assert chat.prompt.endswith(family.off)
    assert message == {"role": "assistant", "content": "It is <think>so</think>."}
    chat.ask("And?", "Yes.")
    assert chat.prompt.endswith(family.off)


@pytest.mark.parametrize("name", FAMILIES)
def test_later_turns_see_what_the_template_lets_them(chat: Scripted, name: str) -> None:
    family = FAMILIES[name]
    answers = [f"{family.opens}Thought {i}.{family.ends}Answer {i}." for i in (1, 2)]
    kept = [{}] if family.keeps is None else [{}, family.keeps]
    for arguments in kept:
        chat.use(family, template=arguments)
        chat.ask("Why?", answers[0])
        chat.ask("And?", answers[1])
        chat.ask("So?", "Yes.")
        assert chat.prompt.count("Answer 1.") == chat.prompt.count("Answer 2.") == 1
        assert chat.prompt.count("Thought") == (2 if arguments else 0)
        assert chat.prompt.endswith(family.on)


def test_efforts(chat: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    family = FAMILIES["gpt-oss"]
    answer = f"{family.opens}Hm.{family.ends}So."
    for effort, told in (("auto", "medium"), ("low", "low"), ("high", "high")):
        chat.use(family, reasoning_effort=effort)
        warn_about_thinking(chat.turns.session, chat.turns.profile, Output())
        chat.ask("Why?", answer)
        assert f"Reasoning: {told}<|end|>" in chat.prompt
    assert capsys.readouterr().err == ""
    chat.use(FAMILIES["Qwen3"], reasoning_effort="low")
    warn_about_thinking(chat.turns.session, chat.turns.profile, Output())
    assert "--reasoning-effort has no effect" in capsys.readouterr().err


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("budget", [0, 5])
def test_a_budget_ends_it_with_the_mark_of_the_family(
    chat: Scripted, name: str, budget: int
) -> None:
    """The model would go on for ever."""
    family = FAMILIES[name]
    chat.use(family, think_budget=budget)
    chat.turns.max_tokens = 90
    chat.ask("Why?", family.opens.rstrip("\n") + "ab" * (budget // 2), ends=False)
    reasoning = chat.screen.text("reasoning").removeprefix("\n")
    marks = chat.screen.text("mark")
    assert marks.endswith(family.ends.strip())
    assert len(reasoning.encode()) >= budget // 2 * 2
    assert len(chat.turns.session.model.tokenize(reasoning)) <= budget
    assert (reasoning == "") == (budget == 0)
    assert chat.screen.text("answer")
