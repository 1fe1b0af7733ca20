"""Files on which llama.cpp would end the process: they end in an error that says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.drafters.seeded import (
    ASSISTANT_WIDTH,
    HEAD,
    N_VOCAB,
    WIDTH,
    gemma4,
    gemma4_assistant,
    step35,
)

#: Runs in a process of its own: (target, draft or None) pairs, one line for each.
CHILD = """
import json, sys
from gguf_spec.errors import GgufSpecError
from gguf_spec.profile import Profile
from gguf_spec.session import Session
from gguf_spec.setup import prepare

for name, target, draft in json.load(sys.stdin):
    print(json.dumps([name, "DIED", ""]), flush=True)
    spec = {"types": ["draft-mtp"], "draft": {"model": draft}}
    target = {"model": target, "n_ctx": 256, "n_threads": 1}
    profile = Profile.model_validate({"target": target, "spec": spec})
    try:
        with Session(prepare(profile)) as session:
            text = list(session.generate([229, 585, 192], session.params(max_tokens=8)))
        print(json.dumps([name, "RAN", str(len(text))]), flush=True)
    except GgufSpecError as error:
        print(json.dumps([name, type(error).__name__, error.message, error.exit_code]), flush=True)
"""


def outcomes(cases: list[tuple[str, Path, Path | None]]) -> dict[str, tuple[Any, ...]]:
    """What became of each case: (error type or RAN or DIED, message, …)."""
    sent = [(name, str(target), draft and str(draft)) for name, target, draft in cases]
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(sent),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.stderr[-2000:])
    return {name: tuple(rest) for name, *rest in lines}


def check(cases: list[tuple[str, Path, Path | None]], wanted: dict[str, str]) -> None:
    """Every case but "good" is an error with exit code 3 and the text that is ``wanted``."""
    found = outcomes(cases)
    assert found.pop("good")[0] == "RAN"
    for name, text in wanted.items():
        kind, message, *code = found.pop(name)
        assert kind not in ("RAN", "DIED"), name
        assert text in message, (name, message)
        assert code == [3], name
    assert not found


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_assistants(tmp_path: Path) -> None:
    target = gemma4(tmp_path / "target.gguf", exact=True)
    cases: list[tuple[str, Path, Path | None]] = []
    wanted: dict[str, str] = {}

    def add(name: str, text: str, *, n_layer: int = 2, **changed: Any) -> None:
        path = tmp_path / f"{len(cases)}.gguf"
        cases.append((name, target, gemma4_assistant(path, exact=True, n_layer=n_layer, **changed)))
        wanted[name] = text

    def add_target(name: str, text: str, **changed: Any) -> None:
        path = gemma4(tmp_path / f"target {len(cases)}.gguf", exact=True, **changed)
        cases.append((name, path, good))
        wanted[name] = text

    good = gemma4_assistant(tmp_path / "good.gguf", exact=True)
    cases.append(("good", target, good))
    add("no heads", "2 layers, of which 0 draft", nextn_predict_layers=None)
    add("too few heads", "2 layers, of which 1 draft", nextn_predict_layers=1)
    add("too many heads", "3 MTP layers of 2 layers", nextn_predict_layers=3)
    add("no layers", "block_count is 0", block_count=0, nextn_predict_layers=0)
    add("other width", f"target {WIDTH}, assistant made for 64", embedding_length_out=64)
    add("own width", f"made for {ASSISTANT_WIDTH}", embedding_length_out=None)
    keys = {f"attention.{kind}_length": 2 * HEAD for kind in ("key", "value")}
    add("wide keys", f"1 heads of {2 * HEAD} and {2 * HEAD} values, layer 3", **keys)
    keys = {f"attention.{kind}_length_swa": HEAD // 2 for kind in ("key", "value")}
    rotary = {"rope.dimension_count_swa": HEAD // 2}
    add("narrow keys", f"1 heads of {HEAD // 2} and {HEAD // 2} values, layer 2", **keys, **rotary)
    add("more heads", f"attends to 2 heads of {HEAD}", **{"attention.head_count_kv": 2})
    add("odd values", f"{HEAD} and {HEAD // 2} values", **{"attention.value_length": HEAD // 2})
    swa = "attention.sliding_window_pattern"
    add("no window", "in 0 of 2 layers", **{swa: [False, False]})
    add("short pattern", "has 1 values", **{swa: [True]})
    add("window of 0", "window of 0 tokens", **{"attention.sliding_window": 0})
    add("rotary", "64 rope dimensions", **{"rope.dimension_count_swa": 64})
    add(
        "vocabulary",
        "token_embd.weight",
        tensors={"token_embd.weight": zeros(N_VOCAB // 2, ASSISTANT_WIDTH)},
    )
    for lacking in ("nextn.pre_projection", "nextn.post_projection", "blk.1.attn_q", "output_norm"):
        add(f"no {lacking}", lacking, tensors={f"{lacking}.weight": None})
    add(
        "other shape",
        "pre_projection",
        tensors={"nextn.pre_projection.weight": zeros(ASSISTANT_WIDTH, WIDTH)},
    )
    add_target("windows the wrong way round", "sliding window", **{swa: [False, True] * 2})
    add_target("no windows", "in 0 of 4 layers", **{swa: [False] * 4})
    add_target("nobody's keys", "use the keys of others", **{"attention.shared_kv_layers": 4})
    add_target("shared keys", "use the keys of others", **{"attention.shared_kv_layers": 1})
    cases.append(("another family", step35(tmp_path / "step.gguf", 1, exact=True), good))
    wanted["another family"] = "attends to the cache of a gemma4 model"
    check(cases, wanted)


def test_assistants_of_other_shapes_run(tmp_path: Path) -> None:
    """Four layers as in the released files; windows only; a target whose last layers share keys."""
    target = gemma4(tmp_path / "target.gguf", exact=True)
    sharing = gemma4(tmp_path / "sharing.gguf", exact=True, **{"attention.shared_kv_layers": 2})
    good = gemma4_assistant(tmp_path / "good.gguf", exact=True)
    four = gemma4_assistant(tmp_path / "four.gguf", exact=False, n_layer=4)
    swa = {"attention.sliding_window_pattern": [True, True]}
    unused = {"rope_freqs.weight": None}
    path = tmp_path / "windows.gguf"
    windows = gemma4_assistant(path, exact=False, tensors=unused, **swa)
    cases: list[tuple[str, Path, Path | None]] = [
        ("four", target, four),
        ("windows", target, windows),
        ("sharing", sharing, good),
    ]
    found = outcomes(cases)
    assert {name: kind for name, (kind, *_) in found.items()} == dict.fromkeys(found, "RAN"), found


def test_chains(tmp_path: Path) -> None:
    cases: list[tuple[str, Path, Path | None]] = []
    wanted: dict[str, str] = {}

    def add(name: str, text: str, n_heads: int = 2, **changed: Any) -> None:
        path = tmp_path / f"{len(cases)}.gguf"
        cases.append((name, step35(path, n_heads, exact=True, **changed), None))
        wanted[name] = text

    add("good", "")
    del wanted["good"]
    for lacking in ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "ffn_up", "ffn_gate"):
        for block in (2, 3):
            name = f"blk.{block}.{lacking}.weight"
            add(f"no {name}", f"no {name}", tensors={name: None})
    stripped = {f"blk.{block}.nextn.eh_proj.weight": None for block in (2, 3)}
    add("stripped", "was stripped of its MTP head", tensors=stripped)
    add("no head for all", "no MTP head", nextn_predict_layers=None)
    add("too many heads", "blk.1.nextn.eh_proj", nextn_predict_layers=3)
    add("more heads than layers", "9 MTP layers of 4 layers", nextn_predict_layers=9)
    head = "blk.3.nextn.shared_head_head.weight"
    add("no output", "output.weight", tensors={head: None, "output.weight": None})
    swa = "attention.sliding_window_pattern"
    add("no window", "in 0 of 4 layers", **{swa: [False] * 4})
    add("short pattern", "has 3 values", **{swa: [True, False, True]})
    add("no trunk", "blk.0.ffn_up.weight is not there", tensors={"blk.0.ffn_up.weight": None})
    add("odd rotary", "1 rope dimensions", **{"rope.dimension_count": 2})
    add("no rotary", "0 rope dimensions", **{"rope.dimension_count": 0})
    add("no such norm", "output_norm", tensors={"output_norm.weight": None})
    check(cases, wanted)
