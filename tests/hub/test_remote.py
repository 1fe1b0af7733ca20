"""Headers of remote files: what is asked, what is believed, what is kept."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.errors import GgufSpecError, HeaderError, HubError
from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import parse, read_model
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.ladder import list_ladder
from gguf_spec.hub.remote import RemoteFile, address_parts, hub_folder, read_remote
from gguf_spec.hub.web import Web, endpoint_of
from gguf_spec.pairing import check_pair
from tests.hub.conftest import REPO, make_ladder, rung
from tests.hub_server import HubServer, oid


def hub_file(server: HubServer, data: bytes) -> RemoteFile:
    server.repos[REPO] = {"m.gguf": data}
    url = f"{server.url}/{REPO}/resolve/{server.commit}/m.gguf"
    return RemoteFile(f"hf:{REPO}/m.gguf", url, len(data), oid(data))


def read(web: Web, file: RemoteFile):
    return read_remote(web, HeaderCache(hub_folder()), file)


def test_it_is_what_a_local_reader_finds(server: HubServer, web: Web) -> None:
    server.throttle = 0.001  # or all of it is on its way before anybody can say stop
    data = rung(9000, vocabulary=20_000).build()
    info = read(web, hub_file(server, data))
    local = parse(MemorySource(data, info.path))
    assert info == local
    assert info.read_strings("tokenizer.ggml.tokens")[7] == "token-000007"
    assert server.sent < len(data)


def test_one_range_request_and_the_token_for_the_first_host_only(
    server: HubServer, web: Web
) -> None:
    web.token = "hf_secret"
    server.require_token = "hf_secret"
    read(web, hub_file(server, rung(40).build()))
    asked, sent = server.asked
    assert asked.headers["authorization"] == "Bearer hf_secret"
    assert "authorization" not in sent.headers
    assert sent.headers["range"] == asked.headers["range"] == f"bytes=0-{64 * 2**20 - 1}"
    assert sent.headers["accept-encoding"] == "identity"


def test_the_token_is_for_the_endpoint_only(server: HubServer, web: Web) -> None:
    web.token = "hf_secret"
    server.plain["m.gguf"] = rung(4).build()
    read(web, RemoteFile("m", f"{server.store_url}/m.gguf"))
    assert all("authorization" not in one.headers for one in server.asked)


def test_the_cache_gives_the_same_header_without_the_network(server: HubServer, web: Web) -> None:
    file = hub_file(server, rung(40, vocabulary=30_000).build())
    first = read(web, file)
    count = len(server.asked)
    again = read(Web(offline=True), file)
    assert len(server.asked) == count
    assert again == first
    for key in first.arrays:
        assert again.raw_array(key) == first.raw_array(key)
    assert check_pair(first, again).usable
    header = next((hub_folder() / "headers").rglob("*.z"))
    assert header.stat().st_size < 4096


def test_vocabularies_are_kept_once(server: HubServer, web: Web) -> None:
    for size in (40, 50):
        read(web, hub_file(server, rung(size).build()))
    assert len(list((hub_folder() / "vocabularies").iterdir())) == 1
    assert len(list((hub_folder() / "headers").rglob("*.z"))) == 2


@pytest.mark.parametrize("damage", [b"", b"x" * 50, None])
def test_a_damaged_cache_is_no_cache(server: HubServer, web: Web, damage: bytes | None) -> None:
    file = hub_file(server, rung(40).build())
    first = read(web, file)
    entry = next((hub_folder() / "headers").rglob("*.z"))
    entry.write_bytes(entry.read_bytes()[:-9] if damage is None else damage)
    assert read(web, file) == first


NESTED = b"[" * 100_000  # which json gives up on with another error than for bad JSON


@pytest.mark.parametrize("change", [lambda r: r | {"alignment": 64}, lambda r: None])
def test_a_kept_header_that_was_changed_is_no_entry(
    server: HubServer, web: Web, change: Callable[[dict[str, Any]], Any]
) -> None:
    """Even where all of it can be read."""
    file = hub_file(server, rung(40).build())
    first = read(web, file)
    entry = next((hub_folder() / "headers").rglob("*.z"))
    data = entry.read_bytes()
    changed = change(json.loads(zlib.decompress(data[32:])))
    packed = zlib.compress(NESTED if changed is None else json.dumps(changed).encode())
    for front in (data[:32], b""):
        entry.write_bytes(front + packed)
        assert read(web, file) == first


@pytest.mark.parametrize("length", [0, 10, 40, -1])
def test_half_a_vocabulary_is_none(server: HubServer, web: Web, length: int) -> None:
    file = hub_file(server, rung(40).build())
    words = read(web, file).read_strings("tokenizer.ggml.tokens")
    kept = next((hub_folder() / "vocabularies").iterdir())
    kept.write_bytes(kept.read_bytes()[:length])
    assert read(web, file).read_strings("tokenizer.ggml.tokens") == words
    assert read(Web(offline=True), file).read_strings("tokenizer.ggml.tokens") == words


def test_a_damaged_vocabulary_is_said_once(server: HubServer, web: Web) -> None:
    file = hub_file(server, rung(40).build())
    words = read(web, file).read_strings("tokenizer.ggml.tokens")
    kept = next((hub_folder() / "vocabularies").iterdir())
    data = kept.read_bytes()
    kept.write_bytes(data[:-9] + bytes(9))
    with pytest.raises(HeaderError, match="vocabulary"):
        read(web, file).read_strings("tokenizer.ggml.tokens")
    assert read(web, file).read_strings("tokenizer.ggml.tokens") == words


def refused(web: Web, file: RemoteFile) -> GgufSpecError:
    with pytest.raises(GgufSpecError) as caught:
        read(web, file)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert "\n" not in caught.value.message
    assert not list(hub_folder().rglob("*.z"))
    return caught.value


FAULTS = {
    "page": ({"page": True}, "web page"),
    "loop": ({"loop": True}, "redirects in a loop"),
    "expired": ({"expired": 99}, "expired"),
    "total": ({"wrong_total": 1234567}, "1234567 bytes, expected"),
    "range": ({"shift": 8}, "asked for bytes from 0 on"),
    "content": ({"new_etag": "0" * 64}, "changed"),
    "closed": ({"close_after": 2000}, "closed the connection after 2000 bytes"),
    "garbage": ({"other_content": b"\x7fELF" + bytes(99_000)}, "expected"),
    "compressed": ({"compressed": True}, "compressed"),
    "gone": ({"status": 404, "error_code": "EntryNotFound"}, "no such file"),
    "busy": ({"status": 503}, "HTTP 503"),
}


@pytest.mark.parametrize(("faults", "told"), FAULTS.values(), ids=FAULTS)
def test_broken_words(server: HubServer, web: Web, faults: dict[str, object], told: str) -> None:
    file = hub_file(server, rung(40, vocabulary=5000).build())
    server.faults = dataclasses.replace(server.faults, **faults)
    assert told in refused(web, file).message


def test_garbage_of_the_right_size(server: HubServer, web: Web) -> None:
    file = hub_file(server, rung(40).build())
    server.faults.other_content = b"<html>" + bytes((file.size or 0) - 6)
    assert "not a GGUF file" in refused(web, file).message


def test_a_siblings_header_tells_how_much_to_ask_for(server: HubServer, web: Web) -> None:
    data = rung(4000, vocabulary=20_000).build()
    file = hub_file(server, data)
    cache = HeaderCache(hub_folder())
    info = read_remote(web, cache, file, likely=500_000)
    assert server.sent == 500_000 + 128 * 1024
    other = dataclasses.replace(file, size=None)  # another key
    assert read_remote(web, cache, other, likely=1000).tensors == info.tensors
    assert [one.headers["range"] for one in server.of("store")] == [
        "bytes=0-631071", "bytes=0-132071", f"bytes=0-{64 * 2**20 - 1}",
    ]  # fmt: skip


def test_a_server_without_ranges_is_read_no_further_than_needed(
    server: HubServer, web: Web
) -> None:
    server.faults.ignore_ranges = True
    server.throttle = 0.0005
    data = rung(30_000).build()
    info = read(web, hub_file(server, data))
    assert info == parse(MemorySource(data, info.path))
    assert server.sent < len(data) / 2


def test_a_header_beyond_the_limit(
    server: HubServer, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_spec.hub.remote.MAX_HEADER", 100_000)
    error = refused(web, hub_file(server, rung(4, vocabulary=20_000).build()))
    assert "header too large" in error.message
    assert "100000" in error.message


STATUS = {
    "401": (401, {}, "token", "HF_TOKEN"),
    "gated": (403, {"error_code": "GatedRepo"}, "gated", "accept its conditions"),
    "403": (403, {}, "token", "HF_TOKEN"),
    "404": (404, {"error_code": "RepoNotFound"}, "missing", "check the name"),
    "429": (429, {"answer_headers": {"Retry-After": "9000"}}, "limit", "wait"),
    "500": (500, {}, "server", "later"),
}


@pytest.mark.parametrize(("status", "more", "kind", "hint"), STATUS.values(), ids=STATUS)
def test_refusals_are_told_apart(
    server: HubServer, web: Web, status: int, more: dict[str, object], kind: str, hint: str
) -> None:
    file = hub_file(server, rung(4).build())
    server.faults = dataclasses.replace(server.faults, status=status, **more)
    error = refused(web, file)
    assert isinstance(error, HubError)
    assert error.kind == kind
    assert hint in (error.hint or "")
    assert str(status) in error.message
    assert "secret" not in error.message


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"RateLimit": '"resolvers";r=0;t=42'}, 42.0),
        ({}, 0.5),
    ],
)
def test_a_wait_is_honoured(
    server: HubServer, web: Web, naps: list[float], headers: dict[str, str], wait: float
) -> None:
    file = hub_file(server, rung(4).build())
    server.faults.status, server.faults.times = 429, 1
    server.faults.answer_headers = headers
    told: list[str] = []
    web.tell = told.append
    assert read(web, file).arch == "llama"
    assert naps == [wait]
    assert "429" in told[0]


def test_a_connection_that_breaks_once_is_made_again(server: HubServer, web: Web) -> None:
    file = hub_file(server, rung(40, vocabulary=5000).build())
    server.faults.close_after = 3000
    web.sleep = lambda seconds: setattr(server.faults, "close_after", None)
    assert read(web, file).vocab_size == 5000


# -- plain addresses ----------------------------------------------------------------------------


def test_a_plain_address_is_asked_whether_it_is_the_same(server: HubServer, web: Web) -> None:
    server.plain["d/m.gguf"] = rung(4, vocabulary=400).build()
    file = RemoteFile("m", f"{server.store_url}/d/m.gguf?x=1")
    assert read(web, file).vocab_size == 400
    server.plain["d/m.gguf"] = rung(4, vocabulary=500).build()
    assert read(web, file).vocab_size == 500
    server.faults.close_after = 100  # enough to ask, too little to read
    assert read(web, file).vocab_size == 500
    told: list[str] = []
    assert read(Web(offline=True, tell=told.append), file).vocab_size == 500
    assert "offline" in told[0]
    server.faults.new_etag = '"another"'
    with pytest.raises(HubError, match="closed"):
        read(web, file)


def test_an_address_without_version_is_not_kept(server: HubServer, web: Web) -> None:
    server.plain["m.gguf"] = rung(4).build()
    server.faults.new_etag = 'W/"weak"'
    read(web, RemoteFile("m", f"{server.store_url}/m.gguf"))
    assert not list(hub_folder().rglob("*.z"))


def test_parts_of_a_plain_address() -> None:
    urls = [file.url for file in address_parts("https://h/d/m-00002-of-00003.gguf?k=v")]
    assert urls == [f"https://h/d/m-0000{i}-of-00003.gguf?k=v" for i in (1, 2, 3)]
    assert [file.url for file in address_parts("https://h/m.gguf?a")] == ["https://h/m.gguf?a"]


def test_an_unwritable_cache_is_said_once(server: HubServer, web: Web, home: Path) -> None:
    (home / "home").write_text("a file, no folder")
    told: list[str] = []
    web.tell = told.append
    ladder = list_ladder(web, f"hf:{_repo(server)}")
    infos = ladder.settle(lambda infos: range(len(infos)))
    assert [info.file_bytes for info in infos] == [file.bytes for file in ladder.files]
    server.plain["m.gguf"] = rung(4).build()
    assert read(web, RemoteFile("m", f"{server.store_url}/m.gguf")).vocab_size == 300
    assert len(told) == 1
    assert "cannot write to" in told[0]
    assert "GGUF_SPEC_HOME" in told[0]


def _repo(server: HubServer) -> str:
    server.repos[REPO] = make_ladder()
    return REPO


def test_nobody_answers(server: HubServer, home: Path) -> None:
    file = hub_file(server, rung(4).build())
    server.close()
    with Web() as web:
        error = refused(web, file)
    assert isinstance(error, HubError)
    assert error.kind == "connect"


def test_a_local_header_is_read_from_the_file(tmp_path: Path) -> None:
    data = rung(4).build()
    (tmp_path / "m.gguf").write_bytes(data)
    cache = HeaderCache(tmp_path / "cache")
    info = read_model(tmp_path / "m.gguf")
    cache.store("k", info)
    assert cache.load("k", info.path) == info
    assert cache.load("other", info.path) is None


@pytest.mark.parametrize(
    "address",
    ["nonsense", "ftp://host", "http://", "http://[::1", "http://host:port", "http://:80"],
)
def test_an_endpoint_that_is_no_address(address: str) -> None:
    with pytest.raises(HubError, match="HF_ENDPOINT is") as caught:
        endpoint_of({"HF_ENDPOINT": address})
    assert "HF_ENDPOINT" in (caught.value.hint or "")


def test_a_bad_endpoint_matters_to_the_hub_alone(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.plain["m.gguf"] = rung(4).build()
    monkeypatch.setenv("HF_ENDPOINT", "not a url")
    with Web(token="hf_secret") as web:
        assert read(web, RemoteFile("m", f"{server.store_url}/m.gguf")).vocab_size == 300
        assert all("authorization" not in one.headers for one in server.asked)
        with pytest.raises(HubError, match="HF_ENDPOINT is 'not a url'") as caught:
            list_ladder(web, f"hf:{REPO}")
    assert caught.value.kind == "endpoint"
