"""``gguf-spec plan``: its document, its text, its exit codes."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_spec.cli.app import run_cli
from gguf_spec.cli.plan_options import CACHE_TYPES
from gguf_spec.memory.cache import KV_TYPES
from gguf_spec.planning.offers import NGRAM_N_MAX
from tests.memory.drafts import eagle3
from tests.memory.hybrids import qwen35
from tests.memory.transformers import llama

MODELS = Path(__file__).parents[1] / "models"
TARGET = str(MODELS / "tiny-target.gguf")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 15 GB and a head for it, both without their weights."""
    folder = tmp_path_factory.mktemp("large")
    qwen35().write(folder / "q35.gguf")
    eagle3().write(folder / "head.gguf")
    return folder


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, code: int = 0) -> Any:
        assert run_cli(["plan", *map(str, arguments), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


def test_the_documents_keys_are_those_of_the_contract(planned: Any, large: Path) -> None:
    made = planned(large / "q35.gguf", "--vram", "24GiB", "-c", 32768, "--spec-type", "draft-mtp")
    assert made["schema"] == 1
    assert made["fits"] is True
    assert made["llama_cpp"].startswith("0.3.")
    target = made["target"]
    assert {k: target[k] for k in ("arch", "n_ctx", "tier", "type_k", "type_v")} == {
        "arch": "qwen35", "n_ctx": 32768, "tier": "A", "type_k": "f16", "type_v": "f16",
    }  # fmt: skip
    assert target["placement"] == {
        "n_gpu_layers": 66, "n_cpu_moe": 0, "tensor_split": None, "override_tensor": [],
        "devices": None,
    }  # fmt: skip
    assert list(target["bytes"]) == [
        "weights", "kv_cache", "recurrent_state", "compute", "output", "overhead",
    ]  # fmt: skip
    (device,) = made["devices"]
    assert (device["name"], device["total"]) == ("CUDA0", 24 << 30)
    assert device["budget"] == 23 << 30
    assert device["headroom"] == device["budget"] - device["used"]
    assert set(device["items"][0]) == {"owner", "kind", "bytes", "source", "why"}
    assert set(made["host"]) >= {"total", "used", "items"}
    assert set(made["ladder"][0]) >= {"quant", "file_bytes", "total_bytes", "fits", "missing_bytes"}
    assert made["draft"]["method"] == "draft-mtp"
    assert made["draft"]["n_max"] == 3
    assert set(made["draft"]["bytes"]) >= {
        "weights", "kv_cache", "snapshots", "compute", "output",
    }  # fmt: skip
    assert made["drafts"] == [made["draft"]]
    assert set(made["draft_candidates"][0]) == {
        "method", "ref", "bytes", "admitted", "missing_bytes", "reason", "origin",
    }  # fmt: skip
    assert made["reasons"]


def test_a_draft_leaves_the_target_as_it_is(planned: Any, large: Path) -> None:
    for vram in ("17GiB", "19GiB", "20GiB", "32GiB"):
        options = (large / "q35.gguf", "--vram", vram, "-c", 32768)
        without = planned(*options, "--draft", "none")
        beside = planned(*options, "-d", large / "head.gguf")
        assert beside["target"] == without["target"]
        assert without["draft"] is None
        assert without["draft_candidates"] == []
        (candidate,) = beside["draft_candidates"]
        assert candidate["ref"] == str(large / "head.gguf")
        assert candidate["bytes"] > 1 << 28
        assert candidate["admitted"] == (candidate["missing_bytes"] == 0)
    assert candidate["admitted"]


def test_without_a_gpu_everything_is_in_host_memory(planned: Any) -> None:
    made = planned(TARGET, "--probe", "off")
    assert made["devices"] == []
    total = sum(made["target"]["bytes"].values()) + sum(
        sum(draft["bytes"].values()) for draft in made["drafts"]
    )
    assert made["host"]["used"] == total == sum(item["bytes"] for item in made["host"]["items"])
    assert made["target"]["placement"]["n_gpu_layers"] == 0


def test_what_does_not_fit_ends_with_4_and_a_way_out(
    capsys: pytest.CaptureFixture[str], planned: Any, large: Path
) -> None:
    options = (large / "q35.gguf", "--vram", "8GiB", "--ram", "12GiB", "-c", 131072)
    made = planned(*options, code=4)
    assert made["fits"] is False
    assert made["missing_bytes"] > 0
    assert made["ladder"][0]["missing_bytes"] == made["missing_bytes"]
    assert run_cli(["plan", *map(str, options)]) == 4
    said = capsys.readouterr()
    assert "does NOT fit" in said.out
    assert said.err.startswith("error: it does not fit: Q4_K comes nearest, and ")
    longest = int(made["hints"][0].split()[1])
    shorter = [longest if option == 131072 else option for option in options]
    assert planned(*shorter)["target"]["n_ctx"] == longest


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--vram", "24"], 2, "did you mean 24GiB?"),
        (["--vram", "-1"], 2, "is not a size"),
        (["--ram", "1GiB,2GiB"], 2, "one size, not 2"),
        (["--vram", "1GiB", "--gpu", "rtx 3090"], 2, "--vram and --gpu"),
        (["--gpu", "rtx 9999"], 2, "no GPU"),
        (["--type-k", "q3"], 2, "is none of f32"),
        (["--min-quant", "Q9"], 2, "there is no quantization 'Q9'"),
        (["--n-cpu-moe", "2"], 2, "has no experts"),
        (["--vram", "1GiB", "--probe", "require"], 2, "this machine"),
        (["--mmproj", TARGET], 3, "is no projector"),
        (["-d", "missing.gguf"], 3, "no such file"),
    ],
)
def test_wrong_values_are_named(
    options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["plan", TARGET, *options]) == code
    assert words in capsys.readouterr().err


def test_a_missing_part_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(TARGET, tmp_path / "m-00001-of-00002.gguf")
    assert run_cli(["plan", str(tmp_path / "m-00001-of-00002.gguf"), "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["type"] == "RefError"
    assert "m-00002-of-00002.gguf" in said.err


def test_binary_units_are_all_the_same(planned: Any) -> None:
    sizes = ("24GB", "24GiB", "24 GB", "24g", str(24 << 30))
    totals = {planned(TARGET, "--vram", size)["devices"][0]["total"] for size in sizes}
    assert totals == {24 << 30}


def test_a_folder_is_a_ladder_without_what_is_no_model(planned: Any, tmp_path: Path) -> None:
    for quant, file_type in (("Q8_0", 7), ("Q4_K", 15), ("Q2_K", 10)):
        described = llama(4, 512, 8, 2, 1536, 32000, quant=quant)
        described.gguf.key("general.file_type", "u32", file_type)
        described.write(tmp_path / f"model-{quant}.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    made = planned(tmp_path, "--vram", "24GiB")
    assert [row["quant"] for row in made["ladder"]] == ["Q8_0", "Q4_K_M", "Q2_K"]
    assert made["target"]["quant"] == "Q8_0"
    assert made["target"]["ref"] == str(tmp_path / "model-Q8_0.gguf")
    assert [row["chosen"] for row in made["ladder"]] == [True, False, False]


def test_several_models_are_no_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(TARGET, tmp_path)
    llama(4, 512, 8, 2, 1536, 32000).write(tmp_path / "llama.gguf")
    assert run_cli(["plan", str(tmp_path)]) == 3
    assert "several models" in capsys.readouterr().err


def test_drafts_beside_the_target_are_found(planned: Any) -> None:
    made = planned(MODELS / "tiny-target.gguf", "--vram", "8GiB")
    methods = [candidate["method"] for candidate in made["draft_candidates"]]
    assert methods[0] == "draft-eagle3"
    assert {"draft-dflash", "draft-dspark", "ngram-simple"} <= set(methods)
    assert {c["origin"] for c in made["draft_candidates"]} <= {"sibling", "asked"}
    assert [draft["method"] for draft in made["drafts"]] == ["draft-eagle3", "ngram-simple"]


def test_known_gpus_have_names_backends_and_a_speed(planned: Any, large: Path) -> None:
    made = planned(large / "q35.gguf", "--gpu", "2x RTX 3090", "--ram", "64GiB")
    assert [device["name"] for device in made["devices"]] == ["CUDA0", "CUDA1"]
    assert made["host"]["total"] == 64 << 30
    assert 20 < made["speed"]["tokens_per_second"] < 100
    assert made["speed"]["source"] == "estimate"
    apple = planned(large / "q35.gguf", "--gpu", "M4 Max 64GB")
    assert apple["host"]["items"] == []
    assert len(apple["devices"]) == 1


def test_libllama_is_asked_and_agrees(planned: Any) -> None:
    made = planned(TARGET, "-d", MODELS / "tiny-eagle3.gguf", "--probe", "require")
    assert any(reason.startswith("libllama's own count agrees") for reason in made["reasons"])


def test_the_text_is_80_columns_wide_and_plain_where_it_goes_into_a_pipe(
    capsys: pytest.CaptureFixture[str], large: Path
) -> None:
    options = ["--vram", "12GiB,12GiB", "-c", "32768", "-d", str(large / "head.gguf")]
    assert run_cli(["plan", str(large / "q35.gguf"), *options]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    bars = [line for line in lines if line.startswith(("CUDA0", "CUDA1", "host"))]
    assert len(bars) == 3
    assert "WWWW" in bars[0]
    assert "K" in bars[0].split()[1]
    assert "·" in bars[0]
    assert any(line.startswith("*  Q4_K") for line in lines)


def test_colours_where_somebody_watches() -> None:
    from gguf_spec.cli.plan_text import plan_text
    from gguf_spec.memory import MemoryParams
    from gguf_spec.plan import plan
    from gguf_spec.planning.record import plan_record
    from gguf_spec.planning.types import Wish
    from tests.planning.worlds import GIB, machine, rungs

    made = plan_record(plan(rungs("dense", "Q4_K"), machine(8 * GIB), Wish(MemoryParams(0))))
    assert "\x1b[34m█" in plan_text(made, coloured=True)
    assert "█" not in plan_text(made, coloured=False)


def test_constants_that_help_texts_cannot_wait_for() -> None:
    from gguf_spec.drafters.ngram_registry import ngram_ceiling
    from gguf_spec.profile_schema import Spec

    assert set(CACHE_TYPES) == set(KV_TYPES)
    named = Spec(types=tuple(NGRAM_N_MAX))
    assert {kind: ngram_ceiling(kind, named) for kind in NGRAM_N_MAX} == NGRAM_N_MAX
    assert ngram_ceiling("ngram-simple", Spec()) <= NGRAM_N_MAX["ngram-simple"]


def test_a_plan_loads_nothing_that_it_does_not_need() -> None:
    """libllama's package brings numpy and jinja2, and takes longer to import than a plan takes."""
    code = (
        "import sys; from gguf_spec.cli.app import run_cli; "
        f"code = run_cli(['plan', {TARGET!r}, '--probe', 'off', '--offline', '--json']); "
        "loaded = {name.split('.')[0] for name in sys.modules}; "
        "print(code, sorted(loaded), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["host"]["total"] > 0
    code_text, _, names = done.stderr.splitlines()[-1].partition(" ")
    loaded = set(ast.literal_eval(names))
    assert code_text == "0"
    assert {"gguf_spec", "ctypes"} <= loaded
    assert not loaded & {"numpy", "llama_cpp", "jinja2", "httpx", "huggingface_hub", "rich"}
