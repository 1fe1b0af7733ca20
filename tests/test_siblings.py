"""Drafters beside a target: which names are found, in what order, and what their headers decide."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gguf_spec import siblings
from gguf_spec.header import ModelInfo, read_model
from gguf_spec.siblings import Listing, candidates, hinted_type, model_name, search
from tests.drafters.heads import rewrite
from tests.gguf_writer import Gguf, model

MODELS = Path(__file__).parent / "models"


def ranked(target: str, *names: str, above: tuple[str, ...] = (), quant: str = "") -> list[str]:
    """The names that are found beside ``target``, the best first; ``above/`` marks the folder."""
    here, up = Path("/m/here"), Path("/m")
    listings = [Listing(here, 0, (target, *names)), Listing(up, 1, above)]
    found = candidates(here / target, listings, quant)
    return [("" if one.distance == 0 else "above/") + one.path.name for one in found]


def belongs(target: str, *names: str, above: tuple[str, ...] = ()) -> dict[str, bool]:
    listings = [Listing(Path("/m/here"), 0, (target, *names)), Listing(Path("/m"), 1, above)]
    return {c.path.name: c.belongs for c in candidates(Path("/m/here", target), listings)}


@pytest.mark.parametrize(
    ("name", "called", "quant", "kind"),
    [
        ("mtp-Qwen3.6-27B-Q8_0.gguf", "qwen3.6-27b", "q8_0", "draft-mtp"),
        ("mtp-gemma-4-12B-it.gguf", "gemma-4-12b-it", "", "draft-mtp"),
        ("dflash-Qwen3-8B-BF16.gguf", "qwen3-8b", "bf16", "draft-dflash"),
        ("dspark-DeepSeek-V4-Flash-0731-MXFP4.gguf", "deepseek-v4-flash-0731", "mxfp4",
         "draft-dspark"),
        ("eagle3-gpt-oss-120b-Q8_0-00001-of-00002.gguf", "gpt-oss-120b", "q8_0", "draft-eagle3"),
        ("Qwen3.6-27B-DFlash-IQ4_XS.gguf", "qwen3.6-27b", "iq4_xs", "draft-dflash"),
        ("gemma-4-E2B-it-qat-assistant-MTP-Q8_0.gguf", "gemma-4-e2b-it-qat", "q8_0", "draft-mtp"),
        ("gemma-4-12B-it-qat-UD-Q4_K_XL.gguf", "gemma-4-12b-it-qat", "ud-q4_k_xl", None),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct", "q4_1", None),
        ("Q8_0.gguf", "q8_0", "", None),
    ],
)  # fmt: skip
def test_names_tell_model_quantization_and_type(
    name: str, called: str, quant: str, kind: str | None
) -> None:
    assert model_name(name) == (called, quant)
    assert hinted_type(name) == kind


def test_the_nearer_folder_then_the_same_quantization_then_the_nearest_bits() -> None:
    names = ("mtp-m-BF16.gguf", "mtp-m-Q8_0.gguf", "mtp-m-Q4_0.gguf", "mtp-m-Q5_K_M.gguf")
    above = ("mtp-m-Q4_K_M.gguf",)
    assert ranked("m-Q4_K_M.gguf", *names, above=above) == [
        "mtp-m-Q4_0.gguf",
        "mtp-m-Q5_K_M.gguf",
        "mtp-m-Q8_0.gguf",
        "mtp-m-BF16.gguf",
        "above/mtp-m-Q4_K_M.gguf",
    ]
    assert ranked("m-Q8_0.gguf", *names)[0] == "mtp-m-Q8_0.gguf"
    four = ("mtp-m-Q4_0.gguf", "mtp-m-Q4_K_S.gguf", "mtp-m-Q4_K_M.gguf")
    assert ranked("m-Q4_K_M.gguf", *four)[0] == "mtp-m-Q4_K_M.gguf"
    assert ranked("m-F16.gguf", *names)[0] == "mtp-m-BF16.gguf"
    assert ranked("m.gguf", *names, quant="Q5_K_M")[0] == "mtp-m-Q5_K_M.gguf"


def test_the_target_s_own_name_comes_before_any_other() -> None:
    found = ranked("a-7B-Q4_0.gguf", "mtp-b-7B-Q4_0.gguf", "mtp-a-7B-Q8_0.gguf", "mtp-Q4_0.gguf",
                   above=("mtp-a-7B-Q4_0.gguf",))  # fmt: skip
    assert found[:2] == ["mtp-a-7B-Q8_0.gguf", "above/mtp-a-7B-Q4_0.gguf"]
    # "Qwen3" stands in "Qwen3.6" as a word of its own, "a-7" does not in "a-7B".
    assert ranked("a-7B.gguf", "mtp-a-7.gguf", "mtp-a.gguf") == ["mtp-a.gguf", "mtp-a-7.gguf"]


def test_a_foreign_name_belongs_only_where_there_is_no_other_model() -> None:
    assert belongs("a.gguf", "mtp-head.gguf") == {"mtp-head.gguf": True}
    assert belongs("a-Q4_0.gguf", "a-Q8_0.gguf", "mtp-x.gguf") == {"mtp-x.gguf": True}
    assert belongs("a.gguf", "b.gguf", "mtp-b.gguf", "mtp-a.gguf") == {
        "mtp-a.gguf": True,
        "mtp-b.gguf": False,
    }
    assert belongs("a.gguf", "mtp-x.gguf", above=("b.gguf", "mtp-y.gguf")) == {
        "mtp-x.gguf": True,
        "mtp-y.gguf": False,
    }
    assert belongs("a.gguf", "mmproj-F16.gguf", "mtp-x.gguf")["mtp-x.gguf"]


def test_what_is_no_candidate() -> None:
    names = ("mtp-m-00002-of-00002.gguf", "mmproj-mtp-m.gguf", "other.gguf", "eagle3.gguf",
             "imatrix-mtp-m.gguf")  # fmt: skip
    assert ranked("m.gguf", *names, "mtp-m-00001-of-00002.gguf") == ["mtp-m-00001-of-00002.gguf"]
    assert ranked("mtp-m.gguf") == []


# -- on a disk ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tiny target as ``tiny.gguf``."""
    (tmp_path / "here").mkdir()
    shutil.copy(MODELS / "tiny-target.gguf", tmp_path / "here" / "tiny.gguf")
    return tmp_path / "here"


def put(name: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(MODELS / f"tiny-{name}.gguf", path)
    return path


def target_of(folder: Path) -> ModelInfo:
    return read_model(folder / "tiny.gguf")


def looked(target: ModelInfo, *kinds: str) -> dict[str, tuple[str | None, bool, str]]:
    """What was found, in order."""
    found = search(target).look(kinds or siblings.HEAD_TYPES)
    return {one.path.name: (one.type, one.usable, one.reason) for one in found}


def test_headers_decide_and_names_only_suggest(folder: Path) -> None:
    put("eagle3", folder / "mtp-tiny.gguf")
    put("dflash", folder.parent / "dflash-tiny.gguf")
    put("draft", folder / "dspark-tiny.gguf")
    assert {name: found[:2] for name, found in looked(target_of(folder)).items()} == {
        "mtp-tiny.gguf": ("draft-eagle3", True),
        "dspark-tiny.gguf": (None, False),
        "dflash-tiny.gguf": ("draft-dflash", True),
    }
    assert next(iter(looked(target_of(folder), "draft-dflash"))) == "dflash-tiny.gguf"


def test_broken_and_foreign_files_are_skipped_with_a_reason(folder: Path) -> None:
    (folder / "mtp-a.gguf").write_bytes(b"no model at all")
    (folder / "mtp-b.gguf").write_bytes((MODELS / "tiny-eagle3.gguf").read_bytes()[:4000])
    (folder / "mtp-c.gguf").mkdir()
    (folder / "mtp-d.gguf").symlink_to("gone.gguf")
    (folder / "mtp-e-00001-of-00002.gguf").write_bytes(
        model(arch="qwen35").key("split.no", "u16", 0).key("split.count", "u16", 2).build()
    )
    clip = Gguf().key("general.architecture", "str", "clip").tensor("v.weight", [64])
    (folder / "mtp-f.gguf").write_bytes(clip.build())
    (folder / "mtp-g.gguf").write_bytes(model(arch="gemma4_assistant").build())
    cut = (MODELS / "tiny-eagle3.gguf").read_bytes()[:-5000]
    (folder / "mtp-h.gguf").write_bytes(cut)
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "mtp-i.gguf")  # reading it would wait for ever
    reasons = {name: reason for name, (_, _, reason) in looked(target_of(folder)).items()}
    for name, words in {
        "mtp-a.gguf": "not a GGUF file",
        "mtp-b.gguf": "truncated header",
        "mtp-c.gguf": "is a directory",
        "mtp-d.gguf": "does not exist",
        "mtp-e-00001-of-00002.gguf": "mtp-e-00002-of-00002.gguf does not exist",
        "mtp-f.gguf": "projector",
        "mtp-g.gguf": "gemma4_assistant",
        "mtp-h.gguf": "truncated",
        **({"mtp-i.gguf": "not a regular file"} if hasattr(os, "mkfifo") else {}),
    }.items():
        assert words in reasons.pop(name), name
    assert reasons == {}


def test_a_file_that_changes_while_it_is_read_is_skipped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put("eagle3", folder / "eagle3-tiny.gguf")
    rule = siblings.check_pair

    def cut_meanwhile(*infos: ModelInfo) -> object:
        file.write_bytes(b"GGUF")
        return rule(*infos)

    monkeypatch.setattr(siblings, "check_pair", cut_meanwhile)
    ((kind, usable, reason),) = looked(target_of(folder)).values()
    assert (kind, usable) == (None, False)
    assert "the file changed" in reason


def test_links_lead_to_both_folders_and_no_file_counts_twice(folder: Path, tmp_path: Path) -> None:
    put("eagle3", folder / "eagle3-tiny.gguf")
    links = tmp_path / "links" / "deep"
    links.mkdir(parents=True)
    (links / "tiny.gguf").symlink_to(folder / "tiny.gguf")
    put("dflash", links / "dflash-tiny.gguf")
    (links / "eagle3-again.gguf").symlink_to(folder / "eagle3-tiny.gguf")
    (links / "mtp-self.gguf").symlink_to(folder / "tiny.gguf")
    found = search(target_of(links))
    assert sorted(one.path.name for one in found.found) == [
        "dflash-tiny.gguf",
        "eagle3-tiny.gguf",
    ]
    assert found.problems == ()


def test_a_cached_repository_is_searched_in_all_its_snapshots(tmp_path: Path) -> None:
    repo = tmp_path / "models--owner--tiny"
    blob = put("target", repo / "blobs" / "0123")
    (repo / "snapshots" / "aaa" / "Q8_0").mkdir(parents=True)
    (repo / "snapshots" / "aaa" / "Q8_0" / "tiny.gguf").symlink_to(blob)
    put("eagle3", repo / "snapshots" / "aaa" / "eagle3-tiny.gguf")
    put("dflash", repo / "snapshots" / "bbb" / "dflash-tiny.gguf")
    put("dspark", repo.parent / "models--other--tiny" / "snapshots" / "ccc" / "dspark-tiny.gguf")
    found = search(read_model(repo / "snapshots" / "aaa" / "Q8_0" / "tiny.gguf"))
    assert {one.path.name: one.distance for one in found.found} == {
        "eagle3-tiny.gguf": 1,
        "dflash-tiny.gguf": 1,
    }


def test_a_split_target_is_not_its_own_sibling(tmp_path: Path) -> None:
    first = model().key("split.no", "u16", 0).key("split.count", "u16", 2)
    second = Gguf().key("split.no", "u16", 1).key("split.count", "u16", 2).tensor("x", [64])
    for number, part in enumerate((first, second), 1):
        (tmp_path / f"mtp-m-0000{number}-of-00002.gguf").write_bytes(part.build())
    target = read_model(tmp_path / "mtp-m-00001-of-00002.gguf")
    assert search(target).found == ()


def test_work_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (folder / f"mtp-{number:02}.gguf").write_bytes(b"nothing")
    target = target_of(folder)
    found = search(target)
    assert len(list(found.look())) == siblings.MAX_HEADERS
    assert "40 files are named like drafters" in found.problems[0]
    monkeypatch.setattr(siblings, "MAX_NAMES", 10)
    assert "more than 10 files" in search(target).problems[0]


def test_an_unreadable_folder_is_a_problem_and_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def guarded(path: str | os.PathLike[str]) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied")
        return scan(path)

    target = target_of(folder)
    monkeypatch.setattr(os, "scandir", guarded)
    found = search(target)
    assert found.found == ()
    assert found.problems == (f"{folder} cannot be read: Permission denied",)


def test_an_mtp_head_is_found_for_the_trunk_it_was_cut_from(tmp_path: Path) -> None:
    source = MODELS / "tiny-mtp.gguf"
    keys = {"qwen35.nextn_predict_layers": None, "qwen35.block_count": 4}
    rewrite(source, tmp_path / "tiny.gguf", lambda n: not n.startswith("blk.4."), changed=keys)
    rewrite(source, tmp_path / "mtp-tiny.gguf", lambda n: not n.startswith(("blk.0", "blk.1",
            "blk.2", "blk.3")))  # fmt: skip
    assert looked(target_of(tmp_path))["mtp-tiny.gguf"][:2] == ("draft-mtp", True)
