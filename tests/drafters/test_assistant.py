"""An assistant on the target's own cache: whatever the draft's settings, it reads the target's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams
from gguf_spec.context import Run
from gguf_spec.drafters.neural import head_params
from gguf_spec.errors import BackendError
from gguf_spec.header import read_model
from gguf_spec.hidden_states import NEXTN
from gguf_spec.pairing import check_pair
from gguf_spec.profile import Profile
from gguf_spec.session import Session
from gguf_spec.setup import prepare
from tests.conftest import MODELS
from tests.drafters.blocks import rewrite
from tests.drafters.heads import EXACT, bench
from tests.drafters.seeded import gemma4, gemma4_assistant, prompt

Files = tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("assistants")
    return gemma4(folder / "target.gguf", exact=True), gemma4_assistant(
        folder / "assistant.gguf", exact=True
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"flash_attn": "off"},
        {"flash_attn": "on", "type_k": "q8_0", "type_v": "q8_0"},
        {"swa_full": True, "type_k": "bf16"},
    ],
    ids=["transposed values", "quantized", "full windows"],
)
def test_the_cache_is_the_targets(files: Files, changed: dict[str, Any]) -> None:
    """What the draft's table says of a cache is for drafts that have one."""
    target, assistant = files
    draft = {"model": str(assistant), "type_k": "f32", "type_v": "q4_0", "n_ctx": 32}
    profile = Profile.model_validate(
        {
            "target": {"model": str(target), "n_ctx": 512, "n_threads": 1, **changed},
            "spec": {"types": ["draft-mtp"], "draft": draft, "n_max": 3, "control": False},
        }
    )
    with Session(prepare(profile)) as session:
        params = session.params(max_tokens=150)
        generation = session.generate(prompt(20), params)
        for _ in generation:
            pass
        spec = session.sequence.progress.spec.total
        assert session.sequence.history[:] == prompt(170)
        assert spec.num_draft_tokens > 90
        assert spec.num_accepted_tokens == spec.num_draft_tokens


def test_windows_that_slide(files: Files) -> None:
    """Texts several windows long, on a cache of a window and a batch."""
    with bench("draft-mtp", 3, *files, n_ubatch=32, n_batch=32, **EXACT) as made:
        sequence = made.open([made.drafter()], [3])
        assert made.answer(sequence, prompt(400), n=300) == prompt(700)[400:]
        assert made.rate == 1.0


def test_the_target_has_to_be_empty_and_as_wide(files: Files) -> None:
    target, assistant = files
    with (
        LlamaModel(target) as model,
        LlamaModel(assistant, ModelParams(load_mtp=True)) as own,
        LlamaContext(model, ContextParams(64, n_seq_max=2, layers=(NEXTN,))) as context,
    ):
        given = head_params("draft-mtp", own, context)
        with pytest.raises(BackendError, match="for 1 sequences, its target has 2"):
            LlamaContext(own, ContextParams(**{**given, "n_seq_max": 1}))
        context.decode([Run(1, 0, [7, 8], 1)])
        with pytest.raises(BackendError, match="cache to be empty"):
            LlamaContext(own, ContextParams(**given))
        assert context._length(1) == 2
        context.clear(1)
        with LlamaContext(own, ContextParams(**given)) as head:
            context.decode([Run(1, 0, [7, 8], 1)])
            state = context.states((NEXTN,), 0, 1)
            head.decode_states(Run(1, 2, [9], 1), state)
            assert np.isfinite(head.logits(0)).all()
            # Neither drafting nor closing takes anything from the target.
            assert context._length(1) == 2
        assert context._length(1) == 2


def test_dflash_by_the_name_of_an_assistant(tmp_path: Path) -> None:
    """Files called "-assistant" that are DFlash heads exist; the header decides."""
    path = rewrite(MODELS / "tiny-dflash.gguf", tmp_path / "tiny-30B-assistant.gguf", {})
    info = read_model(path)
    assert info.role == "draft-dflash"
    pair = check_pair(read_model(MODELS / "tiny-target.gguf"), info)
    assert (pair.usable, pair.type) == (True, "draft-dflash")
