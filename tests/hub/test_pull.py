"""Downloads: interrupted, damaged, at the same time; and the cache that others read."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from types import ModuleType

import pytest

from gguf_spec.errors import AmbiguousRefError, GgufSpecError, HubError, RefError
from gguf_spec.hub.pull import Pulled, obtain, pull
from gguf_spec.hub.web import Web
from gguf_spec.refs import hf_cache_dir, resolve
from tests.hub.conftest import REPO, make_ladder, rung
from tests.hub_server import HubServer, oid


def silent(what: str, done: int | None, total: int | None) -> None: ...


@pytest.fixture
def big(server: HubServer) -> bytes:
    data = rung(4000).build()
    server.repos[REPO] = {**make_ladder(), "Toy-7B-F16.gguf": data}
    return data


def cache_files() -> list[str]:
    """What lies in the caches, but for locks and pointers."""
    root = hf_cache_dir()
    files = [path for path in root.rglob("*") if path.is_file() and ".locks" not in path.parts]
    return sorted(path.name for path in files if path.parent.name != "refs")


def test_a_download_lies_where_hf_would_put_it(server: HubServer, web: Web, big: bytes) -> None:
    done = pull(web, f"hf:{REPO}:F16", silent)
    root = hf_cache_dir() / "models--owner--Toy-7B-GGUF"
    link = root / "snapshots" / server.commit / "Toy-7B-F16.gguf"
    assert done.path == link
    assert link.read_bytes() == big
    assert os.readlink(link) == f"../../blobs/{oid(big)}"
    assert (root / "refs" / "main").read_text() == server.commit
    assert resolve(f"hf:{REPO}:F16") == link
    assert done.ref == f"hf:{REPO}/Toy-7B-F16.gguf@{server.commit}"
    assert pull(web, done.ref, silent).fresh == 0


def test_a_second_pull_asks_for_nothing_but_the_list(
    server: HubServer, web: Web, big: bytes
) -> None:
    assert pull(web, f"hf:{REPO}:F16", silent).fresh == 1
    asked = len(server.asked)
    again = pull(web, f"hf:{REPO}:F16", silent)
    assert again.fresh == 0
    assert all("/resolve/" not in one.path for one in server.asked[asked:])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """huggingface_hub, online and without Xet, which is another protocol."""
    import huggingface_hub

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    return huggingface_hub


def test_huggingface_hub_agrees(server: HubServer, web: Web, big: bytes, hub: ModuleType) -> None:
    """Its own client talks to the same loopback Hub, and finds what was pulled."""
    server.page_size = 2
    api = hub.HfApi(endpoint=server.url)
    listed = {
        one.path: (one.size, one.lfs.sha256)
        for one in api.list_repo_tree(REPO, recursive=True)
        if hasattr(one, "size")
    }
    from gguf_spec.hub.ladder import list_ladder

    ladder = list_ladder(web, f"hf:{REPO}")
    assert {one.path: (one.size, one.oid) for one in ladder.repository.files} == listed
    url = hub.hf_hub_url(REPO, "Toy-7B-F16.gguf", endpoint=server.url)
    told = hub.get_hf_file_metadata(url, endpoint=server.url)
    assert (told.etag, told.size, told.commit_hash) == (oid(big), len(big), server.commit)
    mine = pull(web, f"hf:{REPO}:F16", silent).path
    asked = len(server.of("store"))
    theirs = hub.hf_hub_download(
        REPO, "Toy-7B-F16.gguf", endpoint=server.url, cache_dir=hf_cache_dir()
    )
    assert Path(theirs) == mine
    assert len(server.of("store")) == asked
    found = hub.scan_cache_dir(hf_cache_dir())
    assert not found.warnings
    assert found.size_on_disk == len(big)


def test_what_hf_has_downloaded_is_here(
    server: HubServer, web: Web, big: bytes, hub: ModuleType
) -> None:
    theirs = hub.hf_hub_download(
        REPO, "Toy-7B-F16.gguf", endpoint=server.url, cache_dir=hf_cache_dir()
    )
    done = pull(web, f"hf:{REPO}:F16", silent)
    assert (done.fresh, done.path) == (0, Path(theirs))


def test_split_sets_and_folders(server: HubServer, web: Web) -> None:
    data = [rung(20).key("split.no", "u16", i).key("split.count", "u16", 2) for i in (0, 1)]
    parts = {f"Q8_0/Toy-Q8_0-0000{i + 1}-of-00002.gguf": one.build() for i, one in enumerate(data)}
    server.repos[REPO] = {**make_ladder({"Q4_K_M": 20}), **parts}
    done = pull(web, f"hf:{REPO}:Q8_0", silent)
    assert [path.read_bytes() for path in done.files] == list(parts.values())
    assert done.path.name.endswith("-00001-of-00002.gguf")
    assert resolve(f"hf:{REPO}:Q8_0") == done.path


def test_a_file_that_git_keeps_itself(server: HubServer, web: Web) -> None:
    server.repos[REPO] = {"small.gguf": rung(1).build()}
    server.small = {"small.gguf"}
    assert pull(web, f"hf:{REPO}", silent).path.read_bytes() == rung(1).build()
    server.faults.other_content = bytes(rung(1).build()[:-1]) + b"x"
    (next((hf_cache_dir() / "models--owner--Toy-7B-GGUF" / "blobs").iterdir())).unlink()
    with pytest.raises(HubError, match="checksum"):
        pull(web, f"hf:{REPO}", silent)


FAULTS = {
    "lies about its length": ({"wrong_total": 12_345}, "12345 bytes, expected"),
    "closes early, always": ({"end_at": 900_000}, "closes the connection after 900000 of"),
    "sends a page": ({"page": True}, "web page"),
    "redirects in a loop": ({"loop": True}, "redirects in a loop"),
    "expired links": ({"expired": 99}, "expired"),
    "another file": ({"new_etag": "0" * 64}, "changed meanwhile"),
    "compressed": ({"compressed": True}, "compressed"),
    "gone": ({"status": 404}, "HTTP 404"),
}


@pytest.mark.parametrize(("faults", "told"), FAULTS.values(), ids=FAULTS)
def test_broken_words(
    server: HubServer, web: Web, big: bytes, faults: dict[str, object], told: str
) -> None:
    from gguf_spec.hub.ladder import list_ladder

    list_ladder(web, f"hf:{REPO}")
    server.faults = dataclasses.replace(server.faults, **faults)
    with pytest.raises(HubError) as caught:
        pull(web, f"hf:{REPO}:F16", silent)
    assert told in caught.value.message
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert "signature" not in caught.value.message
    assert cache_files() == []
    with pytest.raises(RefError):
        resolve(f"hf:{REPO}:F16")


@pytest.mark.parametrize("content", ["damaged", "html"])
def test_content_of_the_right_size(server: HubServer, web: Web, big: bytes, content: str) -> None:
    if content == "html":
        server.faults.other_content = b"<html>" + bytes(len(big) - 6)
        told = "no GGUF file"
    else:
        server.faults.other_content = big[:-1] + b"x"
        told = "wrong checksum"
    with pytest.raises(HubError, match=told):
        pull(web, f"hf:{REPO}:F16", silent)
    assert cache_files() == []


def test_links_that_expire_are_asked_for_again(server: HubServer, web: Web, big: bytes) -> None:
    server.faults.close_after = 1_000_000

    def next_link(seconds: float) -> None:
        server.faults.expired = 1

    web.sleep = next_link
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big


def test_a_server_that_closes_early_is_asked_for_the_rest(
    server: HubServer, web: Web, big: bytes
) -> None:
    server.faults.close_after = 1_300_000
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big
    starts = [one.headers.get("range") for one in server.of("store")]
    assert starts == [None, "bytes=1300000-", "bytes=2600000-", "bytes=3900000-"]


def leave_partial(data: bytes, size: int) -> Path:
    blobs = hf_cache_dir() / "models--owner--Toy-7B-GGUF" / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{oid(data)}.incomplete"
    partial.write_bytes(data[:size])
    return partial


def test_a_server_that_sends_another_range(server: HubServer, web: Web, big: bytes) -> None:
    leave_partial(big, 700_000)
    server.faults.shift = 8
    with pytest.raises(HubError, match="asked for bytes from 700000 on"):
        pull(web, f"hf:{REPO}:F16", silent)
    assert cache_files() == []


def test_a_server_that_ignores_ranges_sends_all_of_it(
    server: HubServer, web: Web, big: bytes
) -> None:
    leave_partial(big, 700_000)
    server.faults.ignore_ranges = True
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big


@pytest.mark.parametrize("kind", ["wrong bytes", "too long", "whole", "empty"])
def test_what_was_here_may_be_wrong(server: HubServer, web: Web, big: bytes, kind: str) -> None:
    partial = leave_partial(big, {"whole": len(big), "empty": 0}.get(kind, 700_000))
    if kind == "wrong bytes":
        partial.write_bytes(b"GGUF" + bytes(700_000))
    elif kind == "too long":
        partial.write_bytes(bytes(len(big) + 1))
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big
    if kind == "whole":
        assert server.of("store") == []
    assert not partial.exists()


def test_an_outage_keeps_what_came(server: HubServer, web: Web, big: bytes) -> None:
    def outage(what: str, done: int | None, total: int | None) -> None:
        if done and done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(web, f"hf:{REPO}:F16", outage)
    (name,) = cache_files()
    assert name == f"{oid(big)}.incomplete"
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big
    assert server.of("store")[-1].headers["range"].startswith("bytes=1")
    assert f"{oid(big)}.incomplete" not in cache_files()


PULL = (
    "import sys; from gguf_spec.hub.pull import pull; from gguf_spec.hub.web import Web; "
    "print(pull(Web(), sys.argv[1], lambda *a: None).fresh)"
)


def spawn(ref: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PULL, ref], stdout=subprocess.PIPE, text=True)


def test_killed_at_ten_points_it_ends_with_the_right_file(server: HubServer, big: bytes) -> None:
    """The points are bytes that the store has sent, so that each falls into the transfer."""
    server.throttle = 0.004
    points = sorted(random.Random(7).sample(range(50_000, len(big) - 100_000), 10))
    for point in points:
        process = spawn(f"hf:{REPO}:F16")
        have = partial_bytes(big)
        server.sent = 0
        while process.poll() is None and server.sent + have < point:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.communicate()
        assert not (blob(big)).exists()
    server.throttle = 0.0
    process = spawn(f"hf:{REPO}:F16")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.strip()) == (0, "1")
    assert blob(big).read_bytes() == big
    asked = [one.headers.get("range") for one in server.of("store")]
    assert asked.count(None) <= 2  # all others went on where it had stopped


def blob(data: bytes) -> Path:
    return hf_cache_dir() / "models--owner--Toy-7B-GGUF" / "blobs" / oid(data)


def partial_bytes(data: bytes) -> int:
    partial = blob(data).with_name(f"{oid(data)}.incomplete")
    return partial.stat().st_size if partial.exists() else 0


def test_two_at_once_give_one_file(server: HubServer, web: Web, big: bytes) -> None:
    server.throttle = 0.002
    told: list[str] = []
    results: list[Pulled] = []

    def one() -> None:
        results.append(pull(web, f"hf:{REPO}:F16", lambda what, done, total: told.append(what)))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.fresh for result in results) == [0, 0, 1]
    assert len(server.of("store")) == 1
    assert any(what.startswith("waiting for another download") for what in told)
    assert blob(big).read_bytes() == big


def test_two_processes_at_once_give_one_file(server: HubServer, big: bytes) -> None:
    server.throttle = 0.01
    processes = [spawn(f"hf:{REPO}:F16") for _ in range(2)]
    done = [
        (process.communicate(timeout=60)[0].strip(), process.returncode) for process in processes
    ]
    assert sorted(done) == [("0", 0), ("1", 0)]
    assert len(server.of("store")) == 1
    assert server.sent == len(big)
    assert blob(big).read_bytes() == big


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_seen_before(
    server: HubServer, web: Web, big: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage(10**9, 10**9, 1_000_000))
    with pytest.raises(HubError, match=f"needs {len(big)} bytes more, 1000000 are free") as caught:
        pull(web, f"hf:{REPO}:F16", silent)
    assert caught.value.kind == "disk"
    assert server.of("store") == []


def test_a_disk_that_gets_full(server: HubServer, web: Web, big: bytes) -> None:
    """A limit on the size of files stands for it: the system refuses to write on."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, 900_000)); " + PULL
    )
    command = [sys.executable, "-c", code, f"hf:{REPO}:F16"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "HubError: cannot write to" in done.stderr
    assert pull(web, f"hf:{REPO}:F16", silent).path.read_bytes() == big


def test_an_unwritable_cache(server: HubServer, web: Web, big: bytes, home: Path) -> None:
    hf_cache_dir().parent.mkdir(parents=True)
    hf_cache_dir().write_text("a file, no folder")
    with pytest.raises(HubError, match="cannot write to") as caught:
        pull(web, f"hf:{REPO}:F16", silent)
    assert caught.value.kind == "disk"


def test_a_file_in_place_of_a_link(
    server: HubServer, web: Web, big: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError("no links on this disk")

    monkeypatch.setattr("os.symlink", refuse)
    done = pull(web, f"hf:{REPO}:F16", silent)
    assert not done.path.is_symlink()
    assert done.path.read_bytes() == big
    assert pull(web, f"hf:{REPO}:F16", silent).fresh == 0


# -- what is missing ----------------------------------------------------------------------------


def refused(web: Web, ref: str) -> str:
    with pytest.raises(GgufSpecError) as caught:
        pull(web, ref, silent)
    assert caught.value.exit_code == 3
    text = f"{caught.value.message} | {caught.value.hint}"
    assert "\n" not in text
    return text


def test_names_that_lead_nowhere(server: HubServer, web: Web, big: bytes) -> None:
    assert "HTTP 404: there is no such repository" in refused(web, "hf:no/body:Q8_0")
    assert "no such revision" in refused(web, f"hf:{REPO}@v9")
    there = "it has F16, Q8_0, Q6_K, Q4_K_M, Q2_K"
    assert f"has no quantization Q5_K_M | {there}" in refused(web, f"hf:{REPO}:Q5_K_M")
    assert "names 5 models: F16 (" in refused(web, f"hf:{REPO}")
    assert "has no file x.gguf | it has Toy-7B-F16.gguf" in refused(web, f"hf:{REPO}/x.gguf")
    server.repos["a/b"] = {"README.md": b"#"}
    assert "no .gguf file in it" in refused(web, "hf:a/b")
    server.repos["a/c"] = {"m-Q8_0-00001-of-00003.gguf": b"GGUF", "m-Q8_0-00003-of-00003.gguf": b""}
    assert "has no model to run" in refused(web, "hf:a/c")
    assert "only 2 of its 3 parts" in refused(web, "hf:a/c/m-Q8_0.gguf")


def test_offline(server: HubServer, big: bytes) -> None:
    assert "was not listed here before" in refused(Web(offline=True), f"hf:{REPO}:F16")
    with pytest.raises(RefError, match="not in the Hugging Face cache"):
        obtain(Web(offline=True), f"hf:{REPO}:F16", silent)


def test_obtain_downloads_what_is_not_here(server: HubServer, web: Web, big: bytes) -> None:
    path = obtain(web, f"hf:{REPO}:F16", silent)
    asked = len(server.asked)
    assert obtain(web, f"hf:{REPO}:F16", silent) == path
    assert obtain(Web(offline=True), f"hf:{REPO}", silent) == path
    assert len(server.asked) == asked
    obtain(web, f"hf:{REPO}:Q2_K", silent)
    with pytest.raises(AmbiguousRefError):
        obtain(web, f"hf:{REPO}", silent)


def test_lm_studios_folder(server: HubServer, web: Web, home: Path) -> None:
    folder = home / "user" / ".lmstudio" / "models" / "owner" / "Toy-7B-GGUF"
    folder.mkdir(parents=True)
    (folder / "Toy-7B-Q8_0.gguf").write_bytes(rung(4).build())
    assert obtain(web, f"hf:{REPO}:Q8_0", silent) == folder / "Toy-7B-Q8_0.gguf"
    assert server.asked == []


# -- plain addresses ----------------------------------------------------------------------------


def test_a_plain_address(server: HubServer, web: Web) -> None:
    server.plain["d/m.gguf"] = rung(400).build()
    url = f"{server.store_url}/d/m.gguf?key=1"
    done = pull(web, url, silent)
    assert done.path.read_bytes() == server.plain["d/m.gguf"]
    assert (pull(web, url, silent).fresh, obtain(web, url, silent)) == (0, done.path)
    server.plain["d/m.gguf"] = rung(500).build()
    assert pull(web, url, silent).path.read_bytes() == rung(500).build()
    assert pull(Web(offline=True), url, silent).fresh == 0


def test_a_plain_address_is_resumed_if_it_is_the_same(server: HubServer, web: Web) -> None:
    server.plain["m.gguf"] = rung(4000).build()
    url = f"{server.store_url}/m.gguf"

    def stop(what: str, done: int | None, total: int | None) -> None:
        if done and done > 1_000_000:
            raise KeyboardInterrupt

    for data in (rung(4000).build(), rung(3000).build()):
        with pytest.raises(KeyboardInterrupt):
            pull(web, url, stop)
        server.plain["m.gguf"] = data
        assert pull(web, url, silent).path.read_bytes() == data
        assert server.asked[-1].headers["range"].startswith("bytes=1")
        server.plain["m.gguf"] = rung(5000).build()
    assert pull(web, url, silent).path.read_bytes() == rung(5000).build()


def test_a_plain_address_without_ranges_starts_over(server: HubServer, web: Web) -> None:
    data = server.plain["m.gguf"] = rung(4000).build()
    url = f"{server.store_url}/m.gguf"

    def stop(what: str, done: int | None, total: int | None) -> None:
        if done and done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(web, url, stop)
    server.faults.ignore_ranges = True
    told: list[tuple[int | None, int | None]] = []
    path = pull(web, url, lambda what, done, total: told.append((done, total))).path
    assert server.asked[-1].headers["range"].startswith("bytes=1")
    assert path.read_bytes() == data
    assert (0, len(data)) in told  # the progress goes back to the beginning


def test_a_plain_file_that_changes_meanwhile(server: HubServer, web: Web) -> None:
    server.plain["m.gguf"] = rung(4000).build()
    server.faults.close_after = 1_000_000

    def replace(seconds: float) -> None:
        server.plain["m.gguf"] = rung(4001).build()

    server.faults.end_at = 1_000_000
    web.sleep = replace
    with pytest.raises(HubError, match=r"changed meanwhile|expected"):
        pull(web, f"{server.store_url}/m.gguf", silent)
    folder = next((Path(os.environ["GGUF_SPEC_HOME"]) / "cache" / "downloads").iterdir())
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []
