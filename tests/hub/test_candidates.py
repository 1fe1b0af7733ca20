"""Candidates of ``--draft auto``: where they come from, their order, and what their headers say."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.header import ModelInfo, read_model
from gguf_spec.hub.candidates import Candidate, find_candidates
from gguf_spec.hub.header_cache import HeaderCache
from gguf_spec.hub.inventory import take_inventory
from gguf_spec.hub.ladder import list_ladder
from gguf_spec.hub.local import kept_header, local_models
from gguf_spec.hub.web import Web
from gguf_spec.refs import hf_cache_dir
from tests.hub_server import HubServer

MODELS = Path(__file__).parent.parent / "models"
OWN = "owner/Tiny-GGUF"
HEADS = {
    "draft-mtp": "tiny-mtp.gguf",
    "draft-eagle3": "tiny-eagle3.gguf",
    "draft-dflash": "tiny-dflash.gguf",
    "draft-dspark": "tiny-dspark.gguf",
}


def data(name: str) -> bytes:
    return (MODELS / name).read_bytes()


def register(rows: Sequence[dict[str, str]]) -> None:
    home = Path(os.environ["GGUF_SPEC_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    lines = []
    for row in rows:
        lines += ["[[drafter]]", *(f'{key} = "{value}"' for key, value in row.items())]
    (home / "drafters.toml").write_text("\n".join(lines))


def known(repo: str, kind: str, **more: str) -> dict[str, str]:
    name = read_model(MODELS / "tiny-target.gguf").name
    return {"target": name, "kind": kind, "repo": repo, "source": "a test", **more}


@pytest.fixture
def target(server: HubServer, web: Web) -> ModelInfo:
    server.repos[OWN] = {"Tiny-Q8_0.gguf": data("tiny-target.gguf")}
    ladder = list_ladder(web, f"hf:{OWN}")
    return ladder.header(ladder.files[0])


def shown(candidates: Sequence[Candidate]) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.origin, one.usable) for one in candidates]


def test_nothing_is_known(web: Web, target: ModelInfo) -> None:
    found = find_candidates(web, target)
    assert (found.candidates, found.problems) == ([], [])


def test_siblings_in_the_repository(server: HubServer, web: Web, target: ModelInfo) -> None:
    server.commit = "a" * 40
    server.repos[OWN] |= {
        f"{kind.removeprefix('draft-')}-Tiny-Q8_0.gguf": data(name)
        for kind, name in HEADS.items()
        if kind != "draft-mtp"
    }
    ladder = list_ladder(web, f"hf:{OWN}")
    info = ladder.header(ladder.files[0])
    found = find_candidates(web, info, repository=ladder.repository)
    assert shown(found.candidates) == [
        ("draft-dspark", "sibling", True),
        ("draft-dflash", "sibling", True),
        ("draft-eagle3", "sibling", True),
    ]
    first = found.candidates[0]
    assert first.ref == f"hf:{OWN}/dspark-Tiny-Q8_0.gguf@{'a' * 40}"
    assert first.said == "dspark-Tiny-Q8_0.gguf in the same repository"


def test_the_rule_for_siblings_is_llama_cpps(server: HubServer, web: Web) -> None:
    head = data("tiny-eagle3.gguf")
    server.repos[OWN] = {
        "a/b/Tiny-Q4_K_M.gguf": data("tiny-target.gguf"),
        "eagle3-Tiny-Q4_K_M.gguf": head,
        "a/eagle3-Tiny-Q8_0.gguf": head,
        "a/eagle3-Tiny-Q5_0.gguf": head + bytes(1),
        "a/b/c/eagle3-Tiny-Q4_K_M.gguf": head,
        "x/eagle3-Tiny-Q4_K_M.gguf": head,
    }
    ladder = list_ladder(web, f"hf:{OWN}")
    info = ladder.header(ladder.files[0])
    (one,) = find_candidates(web, info, repository=ladder.repository).candidates
    assert [ref.split("/", 2)[2].partition("@")[0] for ref, _ in one.rungs] == [
        "a/eagle3-Tiny-Q5_0.gguf", "a/eagle3-Tiny-Q8_0.gguf", "eagle3-Tiny-Q4_K_M.gguf",
    ]  # fmt: skip


def test_the_registry(server: HubServer, web: Web, target: ModelInfo) -> None:
    server.repos["some/Heads"] = {
        "eagle3-x-Q8_0.gguf": data("tiny-eagle3.gguf"),
        "other.gguf": data("tiny-othervocab-draft.gguf"),
    }
    server.repos["some/Small"] = {
        "Small-Q8_0.gguf": data("tiny-draft.gguf"),
        "Small-Q4_0.gguf": data("tiny-draft.gguf") + bytes(8),
    }
    server.repos["some/Wrong"] = {"Wrong-Q8_0.gguf": data("tiny-othervocab-draft.gguf")}
    register(
        [
            known("some/Heads", "draft-eagle3", files="eagle3-*", pays="depends", note="so so"),
            known("some/Small", "draft-simple", pays="no", note="slower"),
            known("some/Wrong", "draft-simple", pays="yes", note="better"),
            known("some/Gone", "draft-dflash"),
        ]
    )
    found = find_candidates(web, target)
    assert shown(found.candidates) == [
        ("draft-eagle3", "registry", True),
        ("draft-simple", "registry", True),
        ("draft-simple", "registry", False),
    ]
    head, small, wrong = found.candidates
    assert head.said == f"known for {target.name} (a test)"
    assert (head.pays, head.note) == ("depends", "so so")
    assert (small.pays, len(small.rungs)) == ("no", 2)
    assert small.ref.startswith("hf:some/Small/Small-Q8_0.gguf@")
    assert "differ" in wrong.reason
    (problem,) = found.problems
    assert "some/Gone" in problem
    assert "404" in problem


def test_a_host_that_never_answers_is_waited_for_once(
    server: HubServer, target: ModelInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gguf_spec.hub.web.HURRY", 0.3)
    register([known(f"some/Heads-{i}", "draft-eagle3") for i in range(6)])
    with socket.create_server(("127.0.0.1", 0)) as mute:
        found = find_candidates(Web(hub=f"http://127.0.0.1:{mute.getsockname()[1]}"), target)
    (problem,) = found.problems
    assert problem.startswith("known drafts were not looked at: 127.0.0.1:")


def test_weights_that_have_to_be_converted(web: Web, target: ModelInfo) -> None:
    register([known("some/Safetensors", "draft-eagle3")])
    path = Path(os.environ["GGUF_SPEC_HOME"]) / "drafters.toml"
    path.write_text(path.read_text() + "\ngguf = false")
    found = find_candidates(web, target)
    assert found.candidates == []
    assert "some/Safetensors is known, and has to be converted first" in found.problems[0]


def test_offline_what_was_read_is_used(server: HubServer, web: Web, target: ModelInfo) -> None:
    server.repos["some/Heads"] = {"eagle3-x-Q8_0.gguf": data("tiny-eagle3.gguf")}
    register([known("some/Heads", "draft-eagle3"), known("some/New", "draft-dflash")])
    first = find_candidates(web, target)
    asked = len(server.asked)
    again = find_candidates(Web(offline=True), target)
    assert again.candidates == first.candidates
    assert "draft-dflash: not looked at, hf:some/New" in again.problems[0]
    assert len(server.asked) == asked


def test_models_on_this_machine(web: Web, target: ModelInfo, home: Path) -> None:
    snapshot = hf_cache_dir() / "models--some--Small" / "snapshots" / ("b" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(MODELS / "tiny-draft.gguf", snapshot / "Small-Q8_0.gguf")
    studio = home / "user" / ".lmstudio" / "models" / "a" / "b"
    studio.mkdir(parents=True)
    shutil.copy(MODELS / "tiny-eagle3.gguf", studio / "head.gguf")
    shutil.copy(MODELS / "tiny-othervocab-draft.gguf", studio / "other.gguf")
    found = find_candidates(web, target)
    assert shown(found.candidates) == [
        ("draft-eagle3", "cache", True), ("draft-simple", "cache", True),
    ]  # fmt: skip
    assert found.candidates[1].ref == "hf:some/Small/Small-Q8_0.gguf"
    assert found.candidates[0].said == "in the folder of LM Studio"


def test_of_draft_models_the_tenth_comes_first(web: Web, target: ModelInfo, home: Path) -> None:
    studio = home / "user" / ".lmstudio" / "models" / "a" / "b"
    studio.mkdir(parents=True)
    for name in ("one", "two", "three"):
        shutil.copy(MODELS / "tiny-draft.gguf", studio / f"{name}.gguf")
    draft = read_model(MODELS / "tiny-draft.gguf").n_params
    big = replace(target, n_params=10 * draft)
    found = find_candidates(web, big)
    assert len(found.candidates) == 3
    from gguf_spec.hub import candidates

    sizes = {"one": 6 * draft, "two": draft, "three": draft // 40}
    scaled = [
        replace(one, rungs=((one.ref, replace(one.info, n_params=sizes[Path(one.ref).stem])),))
        for one in found.candidates
    ]
    ordered = candidates._sorted(big, scaled)
    assert [Path(one.ref).stem for one in ordered] == ["two", "one", "three"]


def test_a_model_too_large_for_a_draft(server: HubServer, web: Web, target: ModelInfo) -> None:
    server.repos["some/Same"] = {"Same-Q8_0.gguf": data("tiny-target.gguf")}
    register([known("some/Same", "draft-simple")])
    (one,) = find_candidates(web, target).candidates
    assert not one.usable
    assert "too many for a draft" in one.reason


def test_beside_a_local_file(web: Web, tmp_path: Path, server: HubServer) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(MODELS / "tiny-target.gguf", folder / "Tiny-Q8_0.gguf")
    shutil.copy(MODELS / "tiny-eagle3.gguf", folder / "eagle3-Tiny-Q8_0.gguf")
    found = find_candidates(web, read_model(folder / "Tiny-Q8_0.gguf"))
    assert shown(found.candidates) == [("draft-eagle3", "sibling", True)]
    assert server.asked == []


# -- what is on this machine --------------------------------------------------------------------


def test_the_inventory(home: Path) -> None:
    folder = home / "mine"
    folder.mkdir()
    for name in ("tiny-target.gguf", "tiny-draft.gguf", "tiny-eagle3.gguf"):
        shutil.copy(MODELS / name, folder / name)
    (folder / "broken.gguf").write_bytes(b"GGUF")
    (folder / "link.gguf").symlink_to(folder / "tiny-draft.gguf")
    blob = home / "ollama" / "blobs" / ("sha256-" + "1" * 64)
    blob.parent.mkdir(parents=True)
    shutil.copy(MODELS / "tiny-othervocab-draft.gguf", blob)
    manifest = home / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "toy" / "1b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", '
        f'"digest": "sha256:{"1" * 64}"}}]}}'
    )
    found = {one["ref"]: one for one in take_inventory((folder,)) if one["place"] != "demo"}
    names = {Path(ref).name for ref in found}
    (small,) = names & {"link.gguf", "tiny-draft.gguf"}  # two names of one file
    assert names == {
        "broken.gguf", small, "ollama:toy:1b", "tiny-eagle3.gguf", "tiny-target.gguf",
    }  # fmt: skip
    target = str(folder / "tiny-target.gguf")
    head = found[str(folder / "tiny-eagle3.gguf")]
    assert (head["role"], head["drafts_for"]) == ("draft-eagle3", [target])
    drafts = [one for one in found.values() if one["drafts_for"] == [target]]
    assert len(drafts) == 2
    assert found[str(folder / "broken.gguf")]["problem"]
    assert found["ollama:toy:1b"]["drafts_for"] == []


def test_kept_headers_of_local_files_notice_a_change(home: Path) -> None:
    path = home / "m.gguf"
    cache = HeaderCache(home / "cache")
    shutil.copy(MODELS / "tiny-target.gguf", path)
    first = kept_header(cache, path)
    assert kept_header(cache, path) == first
    shutil.copy(MODELS / "tiny-draft.gguf", path)
    assert kept_header(cache, path).n_params != first.n_params


def test_an_unwritable_cache_only_takes_longer(home: Path) -> None:
    shutil.copytree(MODELS, home / "mine", ignore=shutil.ignore_patterns("*.md"))
    (home / "home").write_text("a file, no folder")
    found = [one for one in local_models((home / "mine",)) if one.place == "folder"]
    assert len(found) == 7
    assert all(one.info is not None for one in found)
