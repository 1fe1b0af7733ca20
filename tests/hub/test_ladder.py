"""The ladder: one listing, headers for few, and the sizes of the rest out of a sibling."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pytest

from gguf_spec.errors import HubError, RefError
from gguf_spec.header import ModelInfo
from gguf_spec.hub.ladder import list_ladder, single
from gguf_spec.hub.remote import hub_folder
from gguf_spec.hub.web import Web
from gguf_spec.refs import parse_ref
from tests.gguf_writer import Gguf
from tests.hub.conftest import REPO, make_ladder, rung
from tests.hub_server import HubServer, oid

QUANTS = (
    "BF16", "Q8_0", "UD-Q8_K_XL", "UD-Q6_K_XL", "Q6_K", "UD-Q5_K_XL", "Q5_K_M", "Q5_K_S", "Q4_1",
    "UD-Q4_K_XL", "Q4_K_M", "IQ4_NL", "Q4_K_S", "Q4_0", "IQ4_XS", "UD-Q3_K_XL", "Q3_K_M", "Q3_K_S",
    "UD-IQ3_XXS", "UD-Q2_K_XL", "Q2_K_L", "Q2_K", "UD-IQ2_M", "UD-IQ2_XXS", "UD-IQ1_M",
)  # fmt: skip


def test_quantizations_by_size(server: HubServer, web: Web) -> None:
    server.repos[REPO] = {**make_ladder(), "README.md": b"#", "imatrix.gguf": b"GGUF"}
    server.page_size = 3
    ladder = list_ladder(web, f"hf:{REPO}")
    assert [file.quant for file in ladder.files] == ["Q8_0", "Q6_K", "Q4_K_M", "Q2_K"]
    for file in ladder.files:
        data = server.repos[REPO][file.path]
        assert (file.bytes, file.revision) == (len(data), server.commit)
        assert file.ref == f"hf:{REPO}/{file.path}@{server.commit}"
        assert single(list_ladder(web, file.ref), parse_ref(file.ref)).path == file.path
    assert all("/resolve/" not in one.path for one in server.asked)


def test_the_quantization_that_is_named(server: HubServer, web: Web) -> None:
    files = make_ladder({"Q4_K_M": 40, "UD-Q4_K_XL": 44, "UD-Q2_K_XL": 20, "Q4_K_S": 38})
    server.repos[REPO] = files

    def found(ref: str) -> list[str]:
        return [file.quant for file in list_ladder(web, f"hf:{REPO}{ref}").files]

    assert found(":q4_k_m") == ["Q4_K_M"]
    assert found(":Q2_K_XL") == ["UD-Q2_K_XL"]
    assert found("/Toy-7B-Q4_K_S.gguf") == ["Q4_K_S"]
    assert found(":Q4_K_M@main") == ["Q4_K_M"]


def test_split_sets_in_folders(server: HubServer, web: Web) -> None:
    parts = {f"BF16/Toy-7B-BF16-0000{i}-of-00003.gguf": rung(50 * i).build() for i in (1, 2, 3)}
    holes = {"Q5_K_M/Toy-7B-Q5_K_M-00001-of-00002.gguf": rung(9).build()}
    server.repos[REPO] = {**make_ladder({"Q4_K_M": 40}), **parts, **holes}
    ladder = list_ladder(web, f"hf:{REPO}")
    assert [(file.quant, len(file.parts)) for file in ladder.files] == [("BF16", 3), ("Q4_K_M", 1)]
    assert ladder.files[0].bytes == sum(map(len, parts.values()))
    assert ladder.left_out == {next(iter(holes)): "only 1 of its 2 parts are there"}
    for name in ("BF16/Toy-7B-BF16.gguf", "BF16/Toy-7B-BF16-00002-of-00003.gguf"):
        assert list_ladder(web, f"hf:{REPO}/{name}").files == [ladder.files[0]]


def test_headers_of_split_sets(server: HubServer, web: Web) -> None:
    first = rung(4).key("split.no", "u16", 0).key("split.count", "u16", 2)
    second = Gguf().key("split.no", "u16", 1).key("split.count", "u16", 2)
    second.tensor("blk.9.ffn_up.weight", [64, 64])
    server.repos[REPO] = {
        "T-Q8_0-00001-of-00002.gguf": first.build(),
        "T-Q8_0-00002-of-00002.gguf": second.build(),
    }
    ladder = list_ladder(web, f"hf:{REPO}")
    info = ladder.header(ladder.files[0])
    assert info.tensors[-1].name == "blk.9.ffn_up.weight"
    assert info.file_bytes == ladder.files[0].bytes
    assert info.size_check == "ok"


def test_auxiliaries_are_left_out_by_name_and_by_header(server: HubServer, web: Web) -> None:
    clip = Gguf().key("general.architecture", "str", "clip").key("general.type", "str", "mmproj")
    clip.tensor("v.patch.weight", [64, 1000])
    head = rung(20, arch="eagle3")
    server.repos[REPO] = {
        **make_ladder(),
        "mmproj-F16.gguf": clip.build(),
        "eagle3-Toy-7B-Q8_0.gguf": head.build(),
        "MTP/Toy-7B-Q4_0-mtp-only.gguf": head.build(),
        "Toy-7B-Q5_K_M.gguf": rung(56, arch="eagle3").build(),  # which its name does not say
    }
    ladder = list_ladder(web, f"hf:{REPO}")
    assert "Q5_K_M" in [file.quant for file in ladder.files]
    assert sorted(file.path for file in ladder.auxiliaries) == [
        "MTP/Toy-7B-Q4_0-mtp-only.gguf", "eagle3-Toy-7B-Q8_0.gguf", "mmproj-F16.gguf",
    ]  # fmt: skip
    infos = ladder.settle(lambda infos: range(len(infos)))
    assert [file.quant for file in ladder.files] == ["Q8_0", "Q6_K", "Q4_K_M", "Q2_K"]
    assert {info.role for info in infos} == {"target"}
    assert ladder.left_out["Toy-7B-Q5_K_M.gguf"] == "its role is draft-eagle3"


def test_a_repository_of_drafters_only(server: HubServer, web: Web) -> None:
    server.repos[REPO] = {"Toy-7B-Q8_0.gguf": rung(20, arch="eagle3").build()}
    with pytest.raises(RefError, match=r"no model to run.*draft-eagle3"):
        list_ladder(web, f"hf:{REPO}").settle(lambda infos: range(len(infos)))


def test_several_models_have_to_be_told_apart(server: HubServer, web: Web) -> None:
    server.repos[REPO] = {
        "Toy-7B-Q8_0.gguf": rung(20).build(), "Other-3B-Q8_0.gguf": rung(10).build(),
    }  # fmt: skip
    with pytest.raises(RefError, match="2 models: other-3b, toy-7b"):
        list_ladder(web, f"hf:{REPO}")
    server.repos["a/b"] = {**make_ladder(), "Odd.gguf": rung(10).build()}
    ladder = list_ladder(web, "hf:a/b")
    assert len(ladder.files) == 4
    assert ladder.left_out["Odd.gguf"] == "another model"


def test_sketches_are_within_a_thousandth(server: HubServer, web: Web) -> None:
    sizes = {"Q8_0": 4000, "Q4_K_M": 2000, "Q2_K": 1000}
    server.repos[REPO] = make_ladder(sizes, vocabulary=3000)
    ladder = list_ladder(web, f"hf:{REPO}")
    sketches = [ladder.sketch(file) for file in ladder.files]
    assert [ladder.is_exact(file) for file in ladder.files] == [False, True, False]
    for sketch, file in zip(sketches, ladder.files, strict=True):
        exact = ladder.header(file)
        data = [sum(t.n_bytes for t in info.tensors) for info in (sketch, exact)]
        assert data[0] == pytest.approx(data[1], rel=1e-3)
        assert sketch.file_bytes == exact.file_bytes


def weights(info: ModelInfo) -> int:
    return sum(tensor.n_bytes for tensor in info.tensors)


def best_below(limit: int):
    """Choose as a plan does: the largest that fits, and its neighbour above."""

    def wanted(infos: Sequence[ModelInfo]) -> Iterable[int]:
        fitting = [i for i, info in enumerate(infos) if weights(info) <= limit]
        best = fitting[0] if fitting else len(infos) - 1
        return [best] if best == 0 else [best - 1, best]

    return wanted


def test_25_quantizations_behind_a_slow_link(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests for the list, and for few of the 25 headers of 10 MB their beginning."""
    # ids out of the last bytes: hashing 250 MB is not what is tested
    monkeypatch.setattr("tests.hub_server.oid", lambda data: oid(b"%d" % len(data) + data[-99:]))
    monkeypatch.setattr("tests.hub_server.blob_oid", lambda data: "0" * 40)
    vocabulary = 200_000
    base = rung(4, vocabulary=vocabulary, digits=36)
    files: dict[str, bytes] = {}
    for number, quant in enumerate(QUANTS):
        gguf = Gguf(entries=base.entries, tensors=list(base.tensors), data_bytes=base.data_bytes)
        gguf.tensor("blk.1.ffn_down.weight", [1024, 1000 - 30 * number], 8)
        if number < 3:
            for i in (0, 1):
                part = Gguf(entries=list(base.entries if i == 0 else base.entries[:3]))
                part.key("split.no", "u16", i).key("split.count", "u16", 2)
                part.tensor(f"blk.{i}.ffn_down.weight", [1024, 500 - 15 * number], 8)
                files[f"{quant}/Toy-7B-{quant}-0000{i + 1}-of-00002.gguf"] = part.build()
        else:
            files[f"Toy-7B-{quant}.gguf"] = gguf.build()
    server.repos[REPO] = files
    server.latency = 0.05
    limit = 700 * 1024 * 34 // 32
    with Web() as web:
        ladder = list_ladder(web, f"hf:{REPO}")
        assert len(ladder.files) == 25
        infos = ladder.settle(best_below(limit + vocabulary * 68))
    header = next(info.header_bytes for info in infos)
    assert header > 9_000_000
    exact = [file for file in ladder.files if ladder.is_exact(file)]
    assert 1 <= len(exact) <= 3
    assert server.sent < 40_000_000
    asked = len(server.asked)
    assert asked <= 2 + 2 * 4
    with Web(offline=True) as web:
        again = list_ladder(web, f"hf:{REPO}")
        assert again.settle(best_below(limit + vocabulary * 68)) == infos
    assert len(server.asked) == asked


def test_a_pinned_commit_needs_no_second_listing(server: HubServer, web: Web) -> None:
    server.repos[REPO] = make_ladder()
    first = list_ladder(web, f"hf:{REPO}@{server.commit}")
    asked = len(server.asked)
    assert list_ladder(web, f"hf:{REPO}@{server.commit}").files == first.files
    assert len(server.asked) == asked


def test_a_branch_that_moves_is_followed(server: HubServer, web: Web) -> None:
    server.repos[REPO] = make_ladder()
    assert len(list_ladder(web, f"hf:{REPO}").files) == 4
    server.commit = "d" * 40
    server.repos[REPO] = make_ladder({"Q4_K_M": 30})
    ladder = list_ladder(web, f"hf:{REPO}")
    assert (ladder.revision, len(ladder.files), ladder.note) == ("d" * 40, 1, None)


def test_offline_the_last_list_is_used_and_said(server: HubServer, web: Web) -> None:
    server.repos[REPO] = make_ladder()
    list_ladder(web, f"hf:{REPO}")
    ladder = list_ladder(Web(offline=True), f"hf:{REPO}")
    assert "may have changed since" in (ladder.note or "")
    server.close()
    with Web() as fresh:
        assert list_ladder(fresh, f"hf:{REPO}").files == ladder.files
    server.repos["x/y"] = {}
    with Web() as fresh, pytest.raises(HubError, match="cannot be reached"):
        list_ladder(fresh, "hf:x/y")


def test_a_listing_with_bad_paths(server: HubServer, web: Web) -> None:
    good = rung(4).build()
    server.repos[REPO] = {
        "../../evil.gguf": good,
        "/abs.gguf": good,
        "a//b.gguf": good,
        "T.gguf": good,
    }
    assert [file.path for file in list_ladder(web, f"hf:{REPO}").files] == ["T.gguf"]


@pytest.mark.parametrize("damage", ["other size", "other path", "nested", "cut"])
def test_a_kept_list_that_was_changed_is_asked_for_again(
    server: HubServer, web: Web, damage: str
) -> None:
    server.repos[REPO] = make_ladder()
    files = list_ladder(web, f"hf:{REPO}").files
    for path in (hub_folder() / "listings").iterdir():
        text = path.read_text()
        changed = {
            "other size": re.sub(r'(gguf", )(\d)', r"\g<1>9\2", text),
            "other path": text.replace('"Toy-7B-Q8_0.gguf"', "3"),
            "nested": "[" * 100_000,
            "cut": text[:-9],
        }[damage]
        path.write_text(changed)
    assert list_ladder(web, f"hf:{REPO}").files == files
    assert list_ladder(Web(offline=True), f"hf:{REPO}").files == files


def test_a_list_that_is_nested_without_end(server: HubServer, web: Web) -> None:
    nested = '{"a":' * 100_000
    server.repos[REPO] = make_ladder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.hub_server.json.dumps", lambda document: nested)
        with pytest.raises(HubError, match="instead of JSON"):
            list_ladder(web, f"hf:{REPO}")


def test_a_listing_that_leads_away(
    server: HubServer, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos[REPO] = make_ladder()
    server.page_size = 2
    other = f"http://localhost:{server.hub.server_port}"
    monkeypatch.setattr(HubServer, "url", other)
    with pytest.raises(HubError, match="goes on at another host"):
        list_ladder(web, f"hf:{REPO}")
