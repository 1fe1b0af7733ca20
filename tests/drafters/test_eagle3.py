"""Drafts from an EAGLE-3 head: the text stays, and as many tokens are accepted as in llama.cpp."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_spec.header import read_model
from gguf_spec.pairing import check_pair
from gguf_spec.sampling import SamplingParams
from tests.drafters.heads import GREEDY, MODELS, acceptance, bench, check_equality, rewrite
from tests.test_backend import PROMPTS

WARM = SamplingParams(temperature=0.8, seed=1)


@pytest.mark.parametrize(("n_max", "native"), [(3, 0.784), (7, 0.559)])
def test_acceptance_is_that_of_llama_cpp(n_max: int, native: float) -> None:
    assert acceptance("draft-eagle3", n_max) == pytest.approx(native, abs=0.03)


def test_the_targets_noise_helps_where_text_is_drawn() -> None:
    # llama.cpp's heads draft greedily: .305 here. With the noise of the target they agree more.
    assert acceptance("draft-eagle3", 3, WARM) > 0.32


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "behind n-grams"])
@pytest.mark.parametrize("target", ["tiny-target", "tiny-mtp"])
def test_the_text_is_that_of_plain_decoding(
    params: SamplingParams, stacked: bool, target: str
) -> None:
    """tiny-mtp has a recurrent state, and the head was not trained for it."""
    made = check_equality("draft-eagle3", params, stacked=stacked, target=target)
    assert made.sources == ({"draft-eagle3", "ngram-simple"} if stacked else {"draft-eagle3"})
    assert made.rate > 0.25 or target == "tiny-mtp"


def test_a_head_in_a_context_that_is_too_short_for_the_text() -> None:
    with bench("draft-eagle3", 3, n_ctx=64) as made:
        prompt = made.prompt(PROMPTS[0])
        expected = made.plain(prompt, n=1000)
        assert len(prompt) + len(expected) == 65
        sequence = made.open([made.drafter()], [3])
        assert made.answer(sequence, prompt, n=1000) == expected
        assert made.rate > 0.2


def with_own_vocabulary(path: Path, ids: list[int]) -> Path:
    """tiny-eagle3 with embeddings of its own, and an output for the tokens ``ids`` only."""
    reader = gguf.GGUFReader(MODELS / "tiny-target.gguf")
    found = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    table = gguf.quants.dequantize(found.data, found.tensor_type).astype(np.float32)
    inside = [i for i in ids if 0 <= i < len(table)]
    output = table[[*inside, *[0] * (len(ids) - len(inside))]]
    added = {"d2t": np.array(ids, np.int64), "token_embd.weight": table, "output.weight": output}
    return rewrite(MODELS / "tiny-eagle3.gguf", path, lambda name: True, added=added)


def test_a_reduced_vocabulary(tmp_path: Path) -> None:
    """A head that knows the common half of the tokens, in an order of its own."""
    used: set[int] = set()
    with bench("draft-eagle3", 3) as made:
        for text in PROMPTS:
            used |= set(made.plain(made.prompt(text)))
    ids = sorted(used | set(range(5, 1024, 3)), key=lambda i: i * 7 % 1024)
    assert 300 < len(ids) < 800
    head = with_own_vocabulary(tmp_path / "reduced.gguf", ids)
    assert check_pair(read_model(MODELS / "tiny-target.gguf"), read_model(head)).usable
    assert acceptance("draft-eagle3", 3, head_file=head) > 0.75
    # Without the tokens that the text is made of, it drafts others, and the text is the same.
    rest = [i for i in range(1024) if i not in used]
    poor = with_own_vocabulary(tmp_path / "poor.gguf", rest)
    with bench("draft-eagle3", 3, head_file=poor) as made:
        prompt = made.prompt(PROMPTS[0])
        sequence = made.open([made.drafter()], [3])
        assert made.answer(sequence, prompt) == made.plain(prompt)
        assert made.accepted == 0 < made.drafted


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([7, 1024], "drafts token 1024, its vocabulary has 1024 tokens"),
        ([7, -1], "drafts token -1"),
        ([7, 8, 7], "names a token twice"),
    ],
)
def test_a_reduced_vocabulary_that_libllama_would_abort_on(
    tmp_path: Path, ids: list[int], message: str
) -> None:
    head = with_own_vocabulary(tmp_path / "wrong.gguf", ids)
    pair = check_pair(read_model(MODELS / "tiny-target.gguf"), read_model(head))
    assert not pair.usable
    assert message in pair.reason
