"""Plans for repositories: few headers, the revision pinned, drafts from the registry and beside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.gguf_writer import F16, Q4_K, Q8_0, model
from tests.hub.conftest import REPO
from tests.hub.test_candidates import HEADS, known, register
from tests.hub_server import HubServer

MODELS = Path(__file__).parent.parent / "models"
TYPES = {"F16": (F16, 1), "Q8_0": (Q8_0, 7), "Q4_K_M": (Q4_K, 15)}  # of tensors and of files
MACHINE = ("--vram", "64GiB", "--ram", "8GiB", "--reserve", "0", "--probe", "off")


@pytest.fixture(autouse=True)
def _cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def quantizations() -> dict[str, bytes]:
    """One model of 8 million weights in three types."""
    files = {}
    for quant, (kind, file_type) in TYPES.items():
        gguf = model(file_type=file_type)
        gguf.tensor("blk.1.ffn_up.weight", [1024, 8000], kind)
        files[f"Toy-7B-{quant}.gguf"] = gguf.build()
    return files


def data(name: str) -> bytes:
    return (MODELS / name).read_bytes()


def test_the_best_that_fits(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = quantizations()
    done = cli("plan", f"hf:{REPO}", *MACHINE, "--json")
    assert done.code == 0, done.err
    plan = done.json
    assert plan["target"]["ref"] == f"hf:{REPO}/Toy-7B-F16.gguf@{server.commit}"
    assert [rung["quant"] for rung in plan["ladder"]] == ["F16", "Q8_0", "Q4_K_M"]
    assert [rung["exact"] for rung in plan["ladder"]] == [True, False, False]
    told = cli("plan", f"hf:{REPO}", *MACHINE).out
    assert told.count("~0.9") == 2
    assert "its header was not needed" in told
    local = cli("plan", str(MODELS / "tiny-target.gguf"), *MACHINE)
    assert "~" not in local.out
    read = {one.path for one in server.asked if "/resolve/" in one.path}
    assert read == {f"/{REPO}/resolve/{server.commit}/Toy-7B-F16.gguf"}


def test_in_less_memory_it_is_another_one(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = quantizations()
    one = cli("plan", f"hf:{REPO}:Q8_0", *MACHINE, "--json").json
    budget = str(one["devices"][0]["used"] + 400_000)
    machine = ("--vram", budget, "--ram", "8GiB", "--reserve", "0", "--probe", "off")
    plan = cli("plan", f"hf:{REPO}", *machine, "--json").json
    assert "Toy-7B-Q8_0" in plan["target"]["ref"]
    assert [rung["fits"] for rung in plan["ladder"]] == [False, True, True]
    asked = len(server.asked)
    again = cli("plan", f"hf:{REPO}", *machine, "--offline", "--json")
    assert again.json["target"] == plan["target"]
    assert "may have changed since" in again.err
    assert len(server.asked) == asked


def test_nothing_fits(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = quantizations()
    machine = ("--vram", "1MiB", "--ram", "1MiB", "--reserve", "0", "--probe", "off")
    done = cli("plan", f"hf:{REPO}", *machine, "--json")
    assert done.code == 4
    assert done.json["fits"] is False


def test_bad_references(cli: Cli, server: HubServer) -> None:
    server.repos[REPO] = quantizations()
    for ref, told in (
        (f"hf:{REPO}:Q2_K", "it has F16, Q8_0, Q4_K_M"),
        ("hf:no/body", "there is no such repository"),
    ):
        done = cli("plan", ref, *MACHINE)
        assert (done.code, told in done.err) == (3, True), done.err
    done = cli("plan", "hf:other/one", "--offline", *MACHINE)
    assert (done.code, "offline" in done.err) == (3, True)


def test_a_plain_address(cli: Cli, server: HubServer) -> None:
    server.plain["m.gguf"] = quantizations()["Toy-7B-Q4_K_M.gguf"]
    url = f"{server.store_url}/m.gguf"
    assert cli("plan", url, *MACHINE, "--json").json["target"]["ref"] == url


def repository_with_heads(server: HubServer) -> str:
    server.repos["o/tiny"] = {"Tiny-Q8_0.gguf": data("tiny-target.gguf")} | {
        f"{kind.removeprefix('draft-')}-Tiny-Q8_0.gguf": data(name)
        for kind, name in HEADS.items()
        if kind != "draft-mtp"
    }
    return "hf:o/tiny"


def candidates(plan: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    return [
        (one["method"], one["origin"])
        for one in plan["draft_candidates"]
        if one["method"].startswith("draft-")
    ]


def test_drafts_beside_and_known(cli: Cli, server: HubServer) -> None:
    ref = repository_with_heads(server)
    server.repos["some/Small"] = {"Small-Q8_0.gguf": data("tiny-draft.gguf")}
    server.repos["some/Slow"] = {"Slow-Q8_0.gguf": data("tiny-draft.gguf")}
    register(
        [
            known("some/Small", "draft-simple"),
            known("some/Slow", "draft-simple", pays="no", note="5 -> 4"),
        ]
    )
    plan = cli("plan", ref, *MACHINE, "--json").json
    assert candidates(plan) == [
        ("draft-eagle3", "sibling"), ("draft-dflash", "sibling"), ("draft-dspark", "sibling"),
        ("draft-simple", "registry"), ("draft-simple", "registry"),
    ]  # fmt: skip
    assert plan["draft"]["ref"] == f"hf:o/tiny/eagle3-Tiny-Q8_0.gguf@{server.commit}"
    slow = next(one for one in plan["draft_candidates"] if "some/Slow" in (one["ref"] or ""))
    assert not slow["admitted"]
    assert "known to be slower: 5 -> 4" in slow["reason"]
    simple = cli("plan", ref, *MACHINE, "--spec-type", "draft-simple", "--json").json
    assert simple["draft"]["ref"].startswith("hf:some/Small/")
    assert {**simple["target"], "ref": 0} == {**plan["target"], "ref": 0}


def test_a_draft_that_is_named(cli: Cli, server: HubServer) -> None:
    ref = repository_with_heads(server)
    server.repos["some/Heads"] = {"eagle3-x-Q8_0.gguf": data("tiny-eagle3.gguf")}
    plan = cli("plan", ref, "-d", "hf:some/Heads", *MACHINE, "--json").json
    assert plan["draft"]["ref"].startswith("hf:some/Heads/eagle3-x-Q8_0.gguf@")
    assert plan["draft_candidates"][0]["origin"] == "asked"


def test_pull_what_the_plan_admits(cli: Cli, server: HubServer) -> None:
    ref = repository_with_heads(server)
    done = cli("pull", ref, "--plan", "-c", "256", "--json")
    assert done.code == 0, done.err
    pulled = done.json
    assert Path(pulled["path"]).read_bytes() == data("tiny-target.gguf")
    (draft,) = pulled["drafts"]
    assert draft["ref"] == pulled["plan"]["draft"]["ref"]
    assert Path(draft["path"]).read_bytes() == data("tiny-eagle3.gguf")
    assert pulled["revision"] == server.commit
    none = cli("pull", ref, "--plan", "-d", "none", "--json").json
    assert (none["drafts"], none["fresh"]) == ([], 0)


def test_pull_refuses_what_does_not_fit(
    cli: Cli,
    server: HubServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gguf_spec import plan_machine
    from gguf_spec.plan_machine import Limits, sized_machine

    small = sized_machine(Limits((1 << 20,), 1 << 20, 0))
    monkeypatch.setattr(plan_machine, "this_machine", lambda limits: small)
    server.repos[REPO] = quantizations()
    done = cli("pull", f"hf:{REPO}", "--plan")
    assert done.code == 4
    assert "nothing was downloaded" in done.err
    assert not list((Path(os.environ["HF_HOME"])).rglob("*.gguf"))
    assert cli("pull", f"hf:{REPO}:Q4_K_M", "-c", "512").code == 2


def without_blocks(data: bytes) -> bytes:
    return data.replace(b"llama.block_count", b"llama.block_counX")


def test_a_quantization_that_cannot_be_used_is_left_out(cli: Cli, server: HubServer) -> None:
    """As in a folder: it is said, and the plan is for what is left."""
    files = server.repos[REPO] = quantizations()
    first, second, third = files
    files[first] = without_blocks(files[first])
    files[second] = b"<html>" + files[second][6:]
    done = cli("plan", f"hf:{REPO}", *MACHINE, "-d", "none", "--json")
    assert done.code == 0, done.err
    assert third in done.json["target"]["ref"]
    assert f"{first} is left out: it cannot be used: the file: llama.block_count" in done.err
    assert f"{second} is left out: it cannot be used: the file is not a GGUF file" in done.err
    done = cli("plan", f"hf:{REPO}/{first}", *MACHINE, "-d", "none", "--json")
    assert (done.code, first in done.json["error"]["message"]) == (3, True)


def test_what_is_wrong_with_two_of_them_is_wrong_with_the_model(
    cli: Cli, server: HubServer
) -> None:
    """So 25 headers of 10 MB are not read to say so."""
    files = {name: without_blocks(data) for name, data in quantizations().items()}
    server.repos[REPO] = files
    done = cli("plan", f"hf:{REPO}", *MACHINE, "-d", "none", "--json")
    assert (done.code, "block_count is missing" in done.json["error"]["message"]) == (3, True)
    assert len({one.path for one in server.asked if "/resolve/" in one.path}) == 2
