"""``gguf-spec profiles``, ``inspect`` and ``doctor``."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.cli.toml import finite, to_toml
from gguf_spec.devices import FoundGpu
from gguf_spec.errors import BackendError
from gguf_spec.profile import Profile
from tests.cli.conftest import DRAFT, OTHER_VOCABULARY, TARGET, Cli

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

BAD = "[target]\nn_ctx = 0\n[spec]\ntypes = ['ngarm']\n"


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_list(cli: Cli) -> None:
    write("profiles/mine.toml", "description = 'Mine'\n[target]\nmodel = 'x.gguf'\n")
    write("profiles/bad.toml", BAD)
    found = {item["name"]: item for item in cli("profiles", "list", "--json").json["profiles"]}
    assert set(found) >= {"mine", "bad", "demo"}
    assert found["mine"]["description"] == "Mine"
    assert found["mine"]["model"].endswith("x.gguf")
    assert found["demo"]["spec_types"] == ["auto"]
    assert found["bad"]["error"]
    text = cli("profiles", "list").out
    assert re.search(r"^mine +Mine$", text, re.MULTILINE)
    assert "cannot be used" in text


def test_show(cli: Cli) -> None:
    write("base.toml", "[target]\nn_ctx = 4096\n[sampling]\nstop = ['\"\\u00e9', 'b']\n")
    write("mine.toml", "extends = './base.toml'\n[sampling]\nlogit_bias = {7 = -inf}\n")
    shown = cli("profiles", "show", "mine.toml")
    assert shown.code == 0
    written = toml.loads(shown.out)
    assert written["target"] == {"n_ctx": 4096}
    assert written["sampling"]["logit_bias"] == {"7": float("-inf")}
    assert "# top_k = 40" in shown.out
    everything = cli("profiles", "show", "mine.toml", "--json").json
    assert everything["sampling"]["top_k"] == 40
    assert everything["sampling"]["logit_bias"] == {"7": "-inf"}


def test_what_is_shown_can_be_loaded_with_all_defaults_written() -> None:
    table = Profile().model_dump(by_alias=True)
    text = to_toml(table)
    assert Profile.model_validate(toml.loads(text)) == Profile()


def test_to_toml() -> None:
    table = {"a b": 'x"\n\x7f', "f": [1.5, float("inf")], "t": {"k": {"x y": True}}}
    assert toml.loads(to_toml(table)) == table
    assert finite({"a": [float("inf")]}) == {"a": ["inf"]}


def test_check(cli: Cli) -> None:
    write("good.toml", "[target]\nn_ctx = 5\n")
    write("bad.toml", BAD)
    assert cli("profiles", "check", "good.toml").out == "good.toml: ok\n"
    assert cli("profiles", "check", "--json").json["ok"] is True
    bad = cli("profiles", "check", "bad.toml")
    assert bad.code == 3
    assert "bad.toml:2" in bad.err
    assert "bad.toml:4" in bad.err
    both = cli("profiles", "check", "good.toml", "bad.toml", "--json")
    assert both.code == 3
    assert len(both.json["error"]["problems"]) == 2
    assert cli("profiles", "check", "nope").code == 3


def test_path_and_schema(cli: Cli) -> None:
    assert Path(cli("profiles", "path", "demo").out.strip()).is_file()
    assert cli("profiles", "path").out.splitlines()[0].endswith("profiles")
    assert cli("profiles", "path", "nope").code == 3
    schema = json.loads(cli("profiles", "schema").out)
    assert schema == cli("profiles", "schema", "--json").json
    assert "target" in schema["properties"]


def test_inspect(cli: Cli) -> None:
    record = cli("inspect", TARGET, "--json").json
    assert set(record) >= {
        "arch", "name", "role", "quant", "bits_per_weight", "n_params", "n_layer",
        "n_layer_nextn", "n_embd", "n_head", "n_head_kv", "n_ctx_train", "vocab_size",
        "tokenizer", "chat_template", "header_bytes", "file_bytes", "size_check", "parts",
        "spec_types",
    }  # fmt: skip
    assert "Q8_0" in cli("inspect", TARGET).out


def test_inspect_pair(cli: Cli) -> None:
    assert cli("inspect", TARGET, DRAFT, "--json").json["pair"]["usable"] is True
    assert "can it draft? yes, as draft-simple" in cli("inspect", TARGET, DRAFT).out
    other = cli("inspect", TARGET, OTHER_VOCABULARY)
    assert other.code == 0
    assert "can it draft? no" in other.out


def test_inspect_draws_where_the_bytes_are(cli: Cli) -> None:
    text = cli("inspect", TARGET).out
    parts = cli("inspect", TARGET, "--json").json["tensor_bytes"]
    (bar,) = [line for line in text.splitlines() if set(line) <= set("EARFXOD·") and line]
    assert len(bar) == 78
    feed_forward = 78 * parts["feed_forward"] / sum(parts.values())
    assert abs(bar.count("F") - feed_forward) <= 1
    assert "F feed-forward " in text
    drawn = text[text.index(bar) :].split("\n\n")[0].splitlines()
    assert max(map(len, drawn)) <= 80


def test_inspect_missing(cli: Cli) -> None:
    assert cli("inspect", "missing.gguf").code == 3


def test_doctor(cli: Cli) -> None:
    record = cli("doctor", "--json").json
    assert record["usable"] is True
    assert record["versions"]["llama-cpp-python"]
    assert record["memory"]["total"] > 0
    assert record["tested"] == ["CPU on Linux"]
    assert any(device["kind"] == "cpu" for device in record["devices"])
    assert "CPU" in record["backends"]
    assert record["memory_account"]["available"] is True
    text = cli("doctor").out
    assert "not tested" in text
    for what in ("CUDA", "Metal", "Windows", "NVML", "libc++ (macOS) and MSVC (Windows)"):
        assert what in text


GIB = 1 << 30
RTX = FoundGpu(
    "nvml", "nvidia", "NVIDIA GeForce RTX 4090", "0000:01:00.0", 24 * GIB, GIB, "nvidia 575"
)


@pytest.mark.parametrize(
    ("gpu", "backends", "message", "fix"),
    [
        (RTX, ("CPU",), "has no CUDA backend", "-DGGML_CUDA=on"),
        (RTX, ("CUDA", "CPU"), "cannot use it", "--debug"),
        (replace(RTX, driver=""), ("CUDA", "CPU"), "no driver", "install the driver"),
        (replace(RTX, vendor="amd"), ("CUDA", "CPU"), "no ROCm backend", "-DGGML_HIP=on"),
        (replace(RTX, vendor="intel", integrated=True), ("CPU",), None, None),
    ],
)
def test_doctor_explains_a_gpu_that_is_not_used(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    gpu: FoundGpu,
    backends: tuple[str, ...],
    message: str | None,
    fix: str | None,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("gguf_spec.devices.nvml_gpus", lambda: ([gpu], ""))
    monkeypatch.setattr("gguf_spec.devices.sysfs_gpus", list)
    monkeypatch.setattr("gguf_spec.backend.list_backends", lambda: list(backends))
    record = cli("doctor", "--json").json
    assert record["unusable_gpus"][0]["total"] == 24 * GIB
    problems = [p for p in record["problems"] if "RTX 4090" in p["message"]]
    assert len(problems) == (message is not None)
    if message is not None and fix is not None:
        assert message in problems[0]["message"]
        assert fix in problems[0]["fix"]
    assert "not used 0000:01:00.0" in cli("doctor").out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    if gpu.vendor == "nvidia":  # hidden on purpose, from a build that could use it
        problems = str(cli("doctor", "--json").json["problems"])
        assert ("RTX 4090" in problems) is ("CUDA" not in backends)


def test_doctor_without_libllama(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendError("it does not load", hint="pip install something")

    monkeypatch.setattr("gguf_spec.backend.load_lib", fail)
    result = cli("doctor")
    assert result.code == 1
    assert "problem: it does not load" in result.out
    assert "fix: pip install something" in result.out


def test_doctor_names_the_build_for_a_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name == "nvidia-smi" else None)
    monkeypatch.setattr("gguf_spec.backend.list_devices", list)
    fixes = [problem["fix"] for problem in cli("doctor", "--json").json["problems"]]
    assert any("GGML_CUDA" in fix for fix in fixes)
