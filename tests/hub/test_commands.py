"""``pull``, ``models``, ``inspect`` and ``run`` with a Hub on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_spec.refs import hf_cache_dir
from tests.cli.conftest import Cli
from tests.hub.conftest import REPO, make_ladder
from tests.hub_server import HubServer

MODELS = Path(__file__).parent.parent / "models"


@pytest.fixture(autouse=True)
def _cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tiny_repo(server: HubServer) -> str:
    files = ("tiny-target", "tiny-draft", "tiny-eagle3")
    names = ("Tiny-Q8_0", "Small/Small-Q4_0", "heads/eagle3-Tiny-Q8_0")
    server.repos["o/tiny"] = {
        f"{name}.gguf": (MODELS / f"{file}.gguf").read_bytes()
        for file, name in zip(files, names, strict=True)
    }
    return "hf:o/tiny/Tiny-Q8_0.gguf"


def test_pull_prints_the_path(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = make_ladder()
    done = cli("pull", f"hf:{REPO}:Q4_K_M")
    assert done.code == 0
    path = Path(done.out.strip())
    assert path.read_bytes() == server.repos[REPO]["Toy-7B-Q4_K_M.gguf"]
    again = cli("pull", f"hf:{REPO}:Q4_K_M", "--json").json
    assert again == {
        "ref": f"hf:{REPO}/Toy-7B-Q4_K_M.gguf@{server.commit}",
        "path": str(path),
        "files": [str(path)],
        "bytes": path.stat().st_size,
        "revision": server.commit,
        "fresh": 0,
    }


def test_pull_says_what_there_is(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = make_ladder()
    done = cli("pull", f"hf:{REPO}:Q5_K_M", "--json")
    assert done.code == 3
    error = done.json["error"]
    assert error["message"] == f"hf:{REPO} has no quantization Q5_K_M"
    assert error["hint"] == "it has Q8_0, Q6_K, Q4_K_M, Q2_K"
    assert done.err.count("\n") == 2


def test_models_lists_what_was_pulled(cli: Cli, server: HubServer, tiny_repo: str) -> None:
    for path in server.repos["o/tiny"]:
        assert cli("pull", f"hf:o/tiny/{path}").code == 0
    found = {one["ref"]: one for one in cli("models", "--json").json["models"]}
    assert found["hf:o/tiny/Small/Small-Q4_0.gguf"]["drafts_for"] == [tiny_repo]
    assert found["hf:o/tiny/heads/eagle3-Tiny-Q8_0.gguf"]["role"] == "draft-eagle3"
    assert found[tiny_repo]["place"] == "Hugging Face"
    shown = cli("models").out
    head, *rows = shown.splitlines()
    assert head.split() == ["REF", "SIZE", "QUANT", "ROLE", "ARCH", "DRAFTS", "FOR"]
    assert any(row.startswith(tiny_repo) for row in rows)


def test_models_of_a_folder_that_is_none(cli: Cli, server: HubServer) -> None:
    done = cli("models", "nowhere")
    assert (done.code, "nowhere is no folder" in done.err) == (3, True)


def test_inspect_reads_headers_only(cli: Cli, server: HubServer, tiny_repo: str) -> None:
    found = cli("inspect", tiny_repo, "hf:o/tiny/heads/eagle3-Tiny-Q8_0.gguf", "--json").json
    local = cli(
        "inspect", str(MODELS / "tiny-target.gguf"), str(MODELS / "tiny-eagle3.gguf"), "--json"
    ).json
    assert found["pair"] == local["pair"]
    assert found["pair"]["usable"]
    assert {**found, "parts": 0, "draft": 0} == {**local, "parts": 0, "draft": 0}
    assert not hf_cache_dir().exists()
    asked = len(server.asked)
    assert cli("inspect", tiny_repo, "--offline", "--json").json["arch"] == found["arch"]
    assert len(server.asked) == asked
    assert cli("inspect", "hf:o/other", "--offline").code == 3


def test_an_unwritable_cache_does_not_keep_from_reading(
    cli: Cli, server: HubServer, tiny_repo: str, home: Path
) -> None:
    plan = ("--vram", "8GiB", "--ram", "8GiB", "--probe", "off", "-d", "none", "--json")
    known = cli("plan", "hf:o/tiny/Tiny-Q8_0.gguf", *plan).json
    shutil.rmtree(home / "home")
    (home / "home").write_text("a file, no folder")
    done = cli("inspect", tiny_repo, "--json")
    assert (done.code, done.json["role"]) == (0, "target")
    assert done.err.count("cannot write to") == 1
    done = cli("plan", "hf:o/tiny/Tiny-Q8_0.gguf", *plan)
    assert (done.code, done.json) == (0, known)
    assert done.err.count("cannot write to") == 1
    hf_cache_dir().parent.mkdir(exist_ok=True)
    hf_cache_dir().write_text("a file, no folder")
    done = cli("pull", tiny_repo)
    assert done.code == 3
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"cannot write to {hf_cache_dir()}" in errors[0]


@pytest.mark.parametrize("address", ["not a url", "http://[::1"])
def test_a_bad_endpoint_is_for_who_asks_the_hub(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    model = home / "alone.gguf"
    shutil.copy(MODELS / "tiny-target.gguf", model)
    for command in (["plan", "--probe", "off"], ["inspect"], ["pull"]):
        done = cli(*command, str(model), "--json")
        assert (done.code, done.err) == (0, ""), command
    run = ("-t", "1", "-n", "2", "--raw", "-p", "a", "--spec-type", "none", "--json")
    assert cli("run", str(model), *run).code == 0
    for command in (["plan", "hf:a/b"], ["inspect", "hf:a/b"], ["pull", "hf:a/b"]):
        done = cli(*command)
        assert (done.code, "HF_ENDPOINT is" in done.err) == (3, True)
        assert "unset HF_ENDPOINT" in done.err


def test_run_downloads_what_is_not_here(cli: Cli, server: HubServer, tiny_repo: str) -> None:
    words = ("-t", "1", "-n", "4", "--temp", "0", "--raw", "-p", "a", "--spec-type", "none")
    first = cli("run", tiny_repo, *words, "--json")
    assert first.code == 0, first.err
    local = cli("run", str(MODELS / "tiny-target.gguf"), *words, "--json")
    assert first.json["tokens"] == local.json["tokens"]
    asked = len(server.asked)
    assert cli("run", tiny_repo, *words).code == 0
    assert len(server.asked) == asked


def test_run_says_what_is_wrong_with_the_hub(cli: Cli, server: HubServer) -> None:
    server.faults.status, server.faults.error_code = 403, "GatedRepo"
    done = cli("run", "hf:o/gated:Q8_0", "-p", "x")
    assert done.code == 3
    assert f"accept its conditions at {server.url}/o/gated, then" in done.err  # a page there is
    assert done.out == ""


def test_without_the_extra(tmp_path: Path, server: HubServer) -> None:
    """Modules that are None cannot be imported: as if they were not installed."""
    code = (
        "import sys; sys.modules['httpx'] = None; sys.modules['filelock'] = None; "
        "from gguf_spec.cli.app import run_cli; sys.exit(run_cli(sys.argv[1:]))"
    )
    for command in (["pull", "hf:o/r:Q8_0"], ["run", "hf:o/r:Q8_0", "-p", "x"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command, "--json"], capture_output=True, text=True
        )
        assert done.returncode == 3, done.stderr
        assert "pip install 'gguf-spec[hub]'" in json.loads(done.stdout)["error"]["hint"]
