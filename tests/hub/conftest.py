"""A Hub on loopback, and a home of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gguf_spec.hub.web import Web
from tests.cli.conftest import cli  # noqa: F401 (a fixture)
from tests.gguf_writer import Q8_0, Gguf, model
from tests.hub_server import HubServer, hub_server

REPO = "owner/Toy-7B-GGUF"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every folder that a model could be in, empty."""
    for name in (
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE",
        "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "HF_OIDC_RESOURCE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "user").mkdir()
    return tmp_path


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def naps() -> list[float]:
    """The waits of ``web``, which are not waited."""
    return []


@pytest.fixture
def web(server: HubServer, naps: list[float]) -> Iterator[Web]:
    with Web(sleep=naps.append) as web:
        yield web


@pytest.fixture
def ladder_of() -> Callable[..., dict[str, bytes]]:
    """Files of a repository: quantizations with made-up tensors."""
    return make_ladder


def rung(
    size: int,
    *,
    vocabulary: int = 300,
    arch: str = "llama",
    name: str = "Toy 7B",
    digits: int = 6,
) -> Gguf:
    """A model whose one large tensor has ``size`` KiB."""
    tokens = [f"token-{i:0{digits}d}" for i in range(vocabulary)]
    gguf = model(arch=arch, tokens=tokens)
    gguf.entries[1] = gguf.text("general.name") + gguf.pack("i", 8) + gguf.text(name)
    gguf.tensor("blk.1.ffn_up.weight", [1024, size], Q8_0)
    return gguf


def make_ladder(sizes: dict[str, int] | None = None, *, vocabulary: int = 300) -> dict[str, bytes]:
    sizes = sizes or {"Q8_0": 80, "Q6_K": 64, "Q4_K_M": 48, "Q2_K": 30}
    return {
        f"Toy-7B-{quant}.gguf": rung(size, vocabulary=vocabulary).build()
        for quant, size in sizes.items()
    }
