"""The stored headers are those of the files that the shipped profiles name."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from gguf_spec.header import ModelInfo, read_model
from gguf_spec.pairing import ROLE_TYPES, check_pair, own_head
from gguf_spec.profile import DRAFT_TYPES, load_profile
from gguf_spec.profile_find import shipped_folder
from tests.headers.files import stored, whole
from tests.headers.models import CASES, FILES

#: Bytes that a file holds for each token of its vocabulary: the token, its kind, its merge.
VOCABULARY = 70
Model = Callable[[str], ModelInfo]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model by the name of its header, read once."""
    folder = tmp_path_factory.mktemp("models")
    return functools.cache(lambda name: read_model(whole(name, folder)))


def test_every_profile_of_a_real_model_has_a_machine_and_a_header() -> None:
    names = {path.stem for path in shipped_folder().glob("*.toml")}
    assert {name for name in names if name != "demo" and not name.startswith("base-")} == set(CASES)
    used = {name for case in CASES.values() for name in (case.target, case.draft) if name}
    assert used <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_stored_headers_are_what_is_described(name: str) -> None:
    described = FILES[name].described(name)
    assert stored(name).read_bytes() == described.header()
    assert len(described.header()) < 70_000


@pytest.mark.parametrize("name", [name for name, file in FILES.items() if file.n_bytes])
def test_they_describe_as_many_bytes_as_the_public_file_has(name: str) -> None:
    described, public = FILES[name].described(name), FILES[name].n_bytes or 0
    assert abs(described.n_bytes - public) <= 0.02 * public + VOCABULARY * described.n_vocab


@pytest.mark.parametrize("name", CASES)
def test_each_draft_is_for_its_target(name: str, model: Model) -> None:
    case, profile = CASES[name], load_profile(name)
    target = model(case.target)
    kinds = [kind for kind in profile.spec.types if kind in DRAFT_TYPES]
    if case.draft is None:
        assert kinds == (["draft-mtp"] if own_head(target).usable and kinds else [])
        return
    draft = model(case.draft)
    assert kinds == [ROLE_TYPES[draft.role]]
    # Headers without a vocabulary say no more than its size, which has to be enough here.
    pair = check_pair(target, draft)
    assert pair.usable or pair.other_vocabulary, pair.reason
    assert target.vocab_size == draft.vocab_size
