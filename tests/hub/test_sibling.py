"""Many quantizations for few bytes: tensor tables of siblings, and what is believed of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.ladder import list_ladder
from gguf_spec.hub.remote import RemoteFile, hub_folder, read_remote
from gguf_spec.hub.sibling import read_sibling
from gguf_spec.hub.web import Web
from gguf_spec.memory import MemoryParams
from gguf_spec.plan import plan
from gguf_spec.plan_machine import Limits, sized_machine
from gguf_spec.plan_request import PlanRequest, make_plan
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.types import Plan, Rung, Wish
from tests.gguf_writer import Gguf
from tests.hub.conftest import REPO, rung
from tests.hub.ladders import Sparse, ladder, mix, one_type, sparse_oid, vocabulary
from tests.hub_server import HubServer, oid

GIB = 1 << 30
WISH = Wish(MemoryParams(0), n_ctx=8192)


def remote(server: HubServer, name: str, gguf: Gguf) -> RemoteFile:
    data = gguf.build()
    server.repos.setdefault(REPO, {})[name] = data
    url = f"{server.url}/{REPO}/resolve/{server.commit}/{name}"
    return RemoteFile(f"hf:{REPO}/{name}", url, len(data), oid(data))


def files(server: HubServer) -> tuple[RemoteFile, RemoteFile]:
    first = remote(server, "a.gguf", rung(40, vocabulary=20_000))
    return first, remote(server, "b.gguf", rung(50, vocabulary=20_000))


def whole(server: HubServer, file: RemoteFile) -> ModelInfo:
    data = server.repos[REPO][file.url.rpartition("/")[2]]
    return parse(MemorySource(data, file.name))


def ranges(server: HubServer, after: int) -> list[str]:
    return [one.headers["range"] for one in server.asked[after:]]


def test_two_short_ranges_and_one_link(server: HubServer, web: Web) -> None:
    first, second = files(server)
    cache = HeaderCache(hub_folder())
    base = read_remote(web, cache, first)
    asked = len(server.asked)
    info = read_sibling(web, cache, [second], base)
    assert info == whole(server, second)
    assert [one.host for one in server.asked[asked:]] == ["hub", "store", "store"]
    for text in ranges(server, asked):
        start, end = map(int, re.findall(r"\d+", text))
        assert end - start < 100_000
    count = len(server.asked)
    with Web(offline=True) as away:
        assert read_sibling(away, cache, [second], base) == info
    assert len(server.asked) == count


def test_a_sibling_is_not_taken_for_the_header(server: HubServer, web: Web) -> None:
    first, second = files(server)
    cache = HeaderCache(hub_folder())
    read_sibling(web, cache, [second], read_remote(web, cache, first))
    asked = len(server.asked)
    assert read_remote(web, cache, second) == whole(server, second)
    assert len(server.asked) == asked + 2


def test_another_vocabulary_is_read(server: HubServer, web: Web) -> None:
    first, _ = files(server)
    other = remote(server, "c.gguf", rung(50, vocabulary=21_000))
    cache = HeaderCache(hub_folder())
    info = read_sibling(web, cache, [other], read_remote(web, cache, first))
    assert info == whole(server, other)
    assert info.vocab_size == 21_000
    assert len(info.read_strings("tokenizer.ggml.tokens")) == 21_000


@pytest.mark.parametrize("fault", ["ignore_ranges", "close_after", "single_use"])
def test_what_cannot_be_had_in_pieces_is_read_whole(
    server: HubServer, web: Web, fault: str
) -> None:
    first, second = files(server)
    cache = HeaderCache(hub_folder())
    base = read_remote(web, cache, first)
    sent = server.sent
    if fault == "close_after":
        server.faults.close_after = 10_000
        web.sleep = lambda seconds: setattr(server.faults, "close_after", None)
    else:
        setattr(server.faults, fault, True)
    assert read_sibling(web, cache, [second], base) == whole(server, second)
    assert server.sent - sent > base.header_bytes


def large(server: HubServer, monkeypatch: pytest.MonkeyPatch, types: str, n_vocab: int) -> None:
    """A ladder of a model of 32 billion weights, behind a link with 50 ms of latency."""
    monkeypatch.setattr("tests.hub_server.oid", sparse_oid)
    monkeypatch.setattr("tests.hub_server.blob_oid", lambda data: "0" * 40)
    kinds = one_type if types == "one type" else mix
    server.repos[REPO] = ladder(kinds, vocabulary(n_vocab), n_vocab)  # type: ignore[assignment]
    server.latency = 0.05


def machine_of(vram: float) -> Machine:
    return sized_machine(Limits((int(vram * GIB),), 16 * GIB, 0))


def planned(vram: float) -> Plan:
    made, warnings = make_plan(PlanRequest(f"hf:{REPO}", "none", wish=WISH), machine_of(vram))
    assert warnings == ()
    return made


@pytest.mark.parametrize("types", ["one type", "mix"])
@pytest.mark.parametrize("vram", [18.8, 26.0])
def test_25_quantizations_of_10_megabytes(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, types: str, vram: float
) -> None:
    """At most two whole headers, wherever the limit is: 26 GiB is just beyond several files."""
    large(server, monkeypatch, types, 200_000)
    made = planned(vram)
    assert made.target is not None
    assert made.target.rung.info.header_bytes > 9_000_000
    assert server.sent < 40_000_000
    assert len(server.asked) <= 16
    asked = [one.headers["range"] for one in server.of("store")]
    lengths = [int(end) - int(start) for start, end in (t[6:].split("-") for t in asked)]
    assert len([length for length in lengths if length > 1_000_000]) <= 2


@pytest.mark.parametrize("types", ["one type", "mix"])
def test_the_plan_is_that_of_the_whole_headers(
    server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch, types: str
) -> None:
    """For limits all over the ladder, and just around the sizes of its files."""
    large(server, monkeypatch, types, 2000)
    server.latency = 0.0
    with Web() as web:
        listed = list_ladder(web, f"hf:{REPO}")
        exact = {file.ref: listed.header(file) for file in listed.files}
    monkeypatch.setenv("GGUF_SPEC_HOME", str(home / "another"))
    rungs = [Rung(ref, info) for ref, info in exact.items()]
    for vram in (17.2, 20.63, 26.0, 38.3):
        made, best = planned(vram).target, plan(rungs, machine_of(vram), WISH).target
        assert made is not None
        assert best is not None
        assert made.rung.info == exact[made.rung.ref]
        with Web(offline=True) as away:  # all of the header that is planned with has been read
            kept = list_ladder(away, made.rung.ref)
            assert kept.header(kept.files[0]) == exact[made.rung.ref]
        # of two as good as equal ones either may be taken: sizes are sketched to a thousandth
        assert made.rung.info.bits_per_weight >= best.rung.info.bits_per_weight * 0.999
        again = plan([Rung(made.rung.ref, exact[made.rung.ref])], machine_of(vram), WISH).target
        assert again is not None
        assert (made.tier, made.items) == (again.tier, again.items)


def test_sparse_files_are_what_they_say() -> None:
    files = ladder(mix, vocabulary(2000), 2000)
    for path, data in files.items():
        assert isinstance(data, Sparse)
        info = parse(MemorySource(data.head, path))
        assert info.needed_bytes <= len(data) <= info.needed_bytes + 32
