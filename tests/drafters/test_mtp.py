"""Drafts from an MTP head: the text stays, and as many tokens are accepted as in llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel
from gguf_spec.errors import BackendError
from gguf_spec.header import read_model
from gguf_spec.pairing import check_pair, own_head
from gguf_spec.sampling import SamplingParams
from tests.drafters.heads import GREEDY, MODELS, acceptance, bench, check_equality, rewrite
from tests.test_backend import PROMPTS

WARM = SamplingParams(temperature=0.8, seed=1)


@pytest.mark.parametrize(("n_max", "native"), [(1, 0.647), (3, 0.433)])
def test_acceptance_is_that_of_llama_cpp(n_max: int, native: float) -> None:
    assert acceptance("draft-mtp", n_max) == pytest.approx(native, abs=0.03)


def test_the_targets_noise_helps_where_text_is_drawn() -> None:
    # llama.cpp's heads draft greedily: .206 here. With the noise of the target they agree more.
    assert acceptance("draft-mtp", 3, WARM) > 0.3


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "behind n-grams"])
@pytest.mark.parametrize("n_rs_seq", [0, 3], ids=["checkpoints", "snapshots"])
def test_the_text_is_that_of_plain_decoding(
    params: SamplingParams, stacked: bool, n_rs_seq: int
) -> None:
    """The target's state is recurrent. Three tokens are dropped with snapshots of it or with a
    checkpoint, the longer drafts of n-grams with a checkpoint in any case."""
    made = check_equality("draft-mtp", params, stacked=stacked, n_rs_seq=n_rs_seq)
    assert made.target.n_rollback == n_rs_seq
    assert made.sources == ({"draft-mtp", "ngram-simple"} if stacked else {"draft-mtp"})
    assert made.rate > 0.15


def test_a_head_in_a_context_that_is_too_short_for_the_text() -> None:
    with bench("draft-mtp", 3, n_ctx=64) as made:
        prompt = made.prompt(PROMPTS[0])
        expected = made.plain(prompt, n=1000)
        assert len(prompt) + len(expected) == 65
        sequence = made.open([made.drafter()], [3])
        assert made.answer(sequence, prompt, n=1000) == expected
        assert made.rate > 0.2


def test_a_head_in_a_file_of_its_own(tmp_path: Path) -> None:
    """The same tensors in two files: the block of the head, and everything but the block."""
    both = MODELS / "tiny-mtp.gguf"
    block = "blk.4."
    head = rewrite(
        both, tmp_path / "head.gguf", lambda name: name.startswith(block) or "blk." not in name
    )
    trunk = rewrite(
        both,
        tmp_path / "trunk.gguf",
        lambda name: not name.startswith(block),
        changed={"qwen35.nextn_predict_layers": None, "qwen35.block_count": 4},
    )
    pair = check_pair(read_model(trunk), read_model(head))
    assert (pair.usable, pair.type) == (True, "draft-mtp")
    apart = acceptance("draft-mtp", 3, target=trunk, head_file=head)
    assert apart == acceptance("draft-mtp", 3)
    assert "no MTP head" in own_head(read_model(trunk)).reason
    stripped = rewrite(both, tmp_path / "stripped.gguf", lambda name: not name.startswith(block))
    assert "stripped" in own_head(read_model(stripped)).reason


def test_the_head_is_refused_unless_it_was_loaded() -> None:
    with LlamaModel(MODELS / "tiny-mtp.gguf") as model, pytest.raises(BackendError, match="loaded"):
        LlamaContext(model, ContextParams(64, mtp=True))
    with (
        LlamaModel(MODELS / "tiny-target.gguf") as model,
        pytest.raises(BackendError, match="no MTP head"),
    ):
        LlamaContext(model, ContextParams(64, mtp=True))
