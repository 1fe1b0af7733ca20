"""A chat with a hybrid target that drafts with its own MTP layer: its state cannot be cut back, and
no turn reads again what it has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from gguf_spec.cli.conversation import Conversation
from gguf_spec.cli.loaded import Loaded
from gguf_spec.cli.output import Output
from gguf_spec.cli.turns import Turns
from gguf_spec.context import Run
from gguf_spec.profile import Profile, apply_values
from gguf_spec.setup import prepare
from tests.cli.conftest import MODELS

MESSAGES = ("def read(self, path):", "class Parser:\n    pass", "import os, sys\n\nx = [1, 2]")
#: How much behind the last kept state a prompt may differ: the end of the last answer, which was
#: chosen and not decoded, and the frame of the message.
FRAME = 24


@dataclass
class Chat:
    """A conversation that counts the positions at which its target reads a prompt for the first
    time, and again."""

    conversation: Conversation
    decoded: list[int] = field(default_factory=list)

    def say(self, line: str) -> int:
        """Take ``line``; how many rows of its prompt were decoded."""
        self.decoded.clear()
        assert self.conversation.take(line) in ("stop", "length")
        n_prompt = self.report["prompt_tokens"]
        return sum(position < n_prompt for position in self.decoded)

    @property
    def report(self) -> dict[str, int]:
        return self.conversation.turns.reports[-1]

    @property
    def answer(self) -> str:
        return self.conversation.turns.messages[-1]["content"]


@pytest.fixture(params=["draft-mtp", "none"])
def chat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    values = {
        "target.model": str(MODELS / "tiny-mtp.gguf"), "target.n_threads": 1,
        "target.n_ctx": 1024, "spec.types": [request.param], "spec.control": False,
        "sampling.temperature": 0.0,
    }  # fmt: skip
    out = Output("quiet")
    with Loaded(prepare(apply_values(Profile(), values)), out) as loaded:
        made = Chat(Conversation(Turns(loaded, out, 40)))
        context = loaded.session.context
        assert not context.removes_tail
        real = context.decode

        def decode(runs: Sequence[Run], **options: bool) -> None:
            for run in runs:
                made.decoded += range(run.start, run.start + len(run.tokens))
            real(runs, **options)

        monkeypatch.setattr(context, "decode", decode)
        yield made


def test_three_turns_and_back(chat: Chat) -> None:
    prompts = []
    for i, message in enumerate(MESSAGES):
        n_read = chat.say(message)
        n_prompt, n_cached = chat.report["prompt_tokens"], chat.report["cached_tokens"]
        assert n_read == n_prompt - n_cached
        if i:
            assert n_cached >= prompts[-1]
            assert n_read <= FRAME + len(message)
        prompts.append(n_prompt)
    third = chat.answer
    drafted = sum(report["spec"]["num_draft_tokens"] for report in chat.conversation.turns.reports)
    assert (drafted > 0) == ("draft-mtp" in chat.conversation.turns.session.spec_types)

    assert chat.say("/retry") <= 1
    assert chat.answer == third
    chat.conversation.take("/undo")
    n_read = chat.say("x = 1")
    assert n_read <= FRAME
    assert chat.report["cached_tokens"] >= prompts[1]
    chat.conversation.take("/undo")
    chat.conversation.take("/undo")
    assert chat.say(MESSAGES[1]) <= FRAME + len(MESSAGES[1])
    assert chat.report["cached_tokens"] >= prompts[0]
