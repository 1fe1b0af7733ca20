"""The probe: libllama's own account from a header, and the many ways of not getting one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gguf_spec.backend import ContextParams, LlamaContext, LlamaModel, ModelParams, load_lib
from gguf_spec.backend.breakdown import memory_breakdown
from gguf_spec.bare_header import HeaderFile, bare_headers
from gguf_spec.block_format import block_format
from gguf_spec.context import Run
from gguf_spec.drafters.neural import head_params
from gguf_spec.errors import ProbeError
from gguf_spec.header import read_header
from gguf_spec.hidden_states import NEXTN
from gguf_spec.probe import ProbeDraft, ProbeModel, child, probe
from gguf_spec.probe import files as probe_files
from gguf_spec.probe.files import write_headers

# A probe allocates as a load without mmap does: with it, weights lie in the file's own pages.
ALLOCATED = ModelParams(use_mmap=False)
SMALL = ContextParams(512, n_ubatch=64)


def asked(path: Path, params: ModelParams = ALLOCATED) -> ProbeModel:
    return ProbeModel(bare_headers([read_header(path)]), params)


def header_only(data: bytes, size: int | None = None) -> ProbeModel:
    return ProbeModel((HeaderFile(data, size or len(data)),), ALLOCATED)


def failure(model: ProbeModel, context: ContextParams = SMALL, **options: Any) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        probe(model, context, **options)
    return caught.value


@pytest.fixture(autouse=True)
def own_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything that a probe writes goes below ``tmp_path / "temp"``; nothing may stay there."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    "context",
    [
        SMALL,
        ContextParams(1000, n_seq_max=3, max_width=8, n_ubatch=128, type_k="q8_0", type_v="q8_0"),
        ContextParams(1024, n_seq_max=4, kv_unified=True, flash_attn="off"),
    ],
    ids=["small", "quantized-sequences", "unified"],
)
def test_a_target_takes_what_the_probe_says(
    tiny: Path, own_temp: Path, context: ContextParams
) -> None:
    path = tiny / "tiny-target.gguf"
    result = probe(asked(path), context)
    with LlamaModel(path, ALLOCATED) as model, LlamaContext(model, context) as live:
        assert list(result.target.buffers) == memory_breakdown(model.lib, live.handle)
        assert result.target.n_ctx == model.lib.api.llama_n_ctx(live.handle)
    assert result.target.source == "walker"
    assert not result.target.missing
    assert result.target.total("context") > 0
    assert result.draft is None
    assert not list(own_temp.iterdir())


@pytest.mark.parametrize("n_rs_seq", [1, 2, 16])
def test_snapshots(tiny: Path, n_rs_seq: int) -> None:
    path, context = tiny / "tiny-mtp.gguf", replace(SMALL, n_rs_seq=n_rs_seq)
    result = probe(asked(path), context)
    with LlamaModel(path, ALLOCATED) as model, LlamaContext(model, context) as live:
        assert list(result.target.buffers) == memory_breakdown(model.lib, live.handle)
    assert not result.target.extrapolated


def test_more_snapshots_than_there_is_memory_for(tiny: Path) -> None:
    """8 x 215,040 bytes each: 250 of them are more than half of 512 MiB, and are not made."""
    wide = ContextParams(512, n_seq_max=8, n_ubatch=256)  # there are no more than fit a batch
    none, one, many = (
        probe(asked(tiny / "tiny-mtp.gguf"), replace(wide, n_rs_seq=n), memory_limit=limit)
        for n, limit in ((0, None), (1, None), (250, 1 << 29))
    )
    assert many.target.extrapolated
    start, step = none.target.total("context"), one.target.total("context")
    assert step - start == 8 * 215_040
    assert many.target.total("context") == start + 250 * 8 * 215_040
    assert many.target.total("model") == none.target.total("model")


@pytest.mark.parametrize("layers", [(1,), (1, 2, 3), (0, 2, NEXTN), (NEXTN,)])
def test_room_for_hidden_states_comes_with_the_first_decode(
    tiny: Path, layers: tuple[int, ...]
) -> None:
    path, context = tiny / "tiny-mtp.gguf", replace(SMALL, layers=layers, n_rs_seq=3)
    result = probe(asked(path), context)
    with LlamaModel(path, ALLOCATED) as model, LlamaContext(model, context) as live:
        before = memory_breakdown(model.lib, live.handle)
        live.decode([Run(0, 0, [1, 2, 3], 1)])
        after = memory_breakdown(model.lib, live.handle)
    assert list(result.target.buffers) == after
    assert result.target.states
    if layers != (NEXTN,):
        assert after != before


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("draft-simple", "tiny-draft"),
        ("draft-eagle3", "tiny-eagle3"),
        ("draft-dflash", "tiny-dflash"),
        ("draft-dspark", "tiny-dspark"),
        ("draft-mtp", None),
    ],
)
def test_a_draft_takes_what_the_probe_says(tiny: Path, kind: str, file: str | None) -> None:
    path = tiny / ("tiny-target.gguf" if file else "tiny-mtp.gguf")
    params = replace(ALLOCATED, load_mtp=file is None)
    own = tiny / f"{file}.gguf" if file else path
    is_block = kind in ("draft-dflash", "draft-dspark")
    form = block_format(read_header(own)) if is_block else None
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(path, params))
        target = stack.enter_context(LlamaContext(model, SMALL))
        drafting = stack.enter_context(LlamaModel(own, params)) if file else model
        sizes = head_params(kind, drafting, target, form, n_max=4)
        context = ContextParams(512, n_batch=32, n_ubatch=32, **sizes)
        made = stack.enter_context(LlamaContext(drafting, context))
        live = memory_breakdown(model.lib, made.handle)
    wanted = replace(context, other=None)
    draft_model = asked(own, params) if file else None
    draft = ProbeDraft(draft_model, wanted, on_target="other" in sizes)
    result = probe(asked(path, params), SMALL, draft)
    assert result.draft is not None
    # The weights of a head inside the target's file are counted with the target.
    expected = live if file else [replace(item, model=0) for item in live]
    assert list(result.draft.buffers) == expected
    assert result.target == probe(asked(path, params), SMALL).target


def test_a_head_alone_is_refused_in_libllamas_words(tiny: Path) -> None:
    error = failure(asked(tiny / "tiny-eagle3.gguf"))
    assert error.kind == "refused"
    assert "requires ctx_other" in error.message


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_models(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request.getfixturevalue(name).path
    context = ContextParams(4096, n_seq_max=2, max_width=4)
    bare = probe(asked(path), context)
    with LlamaModel(path, ALLOCATED) as model, LlamaContext(model, context) as live:
        assert list(bare.target.buffers) == memory_breakdown(model.lib, live.handle)
    if name == "smollm2":  # with its vocabulary, the numbers are the same
        monkeypatch.setattr(probe_files, "_taken", lambda path: path.stat().st_size)
        whole = probe(ProbeModel.local(path, ALLOCATED), context)
        assert whole.target == bare.target


def test_split_models(tmp_path: Path, tiny: Path) -> None:
    whole = read_header(tiny / "tiny-target.gguf")
    headers = split(whole.path, 2)
    result = probe(ProbeModel(headers, ALLOCATED), SMALL)
    assert result.target == probe(asked(Path(whole.path)), SMALL).target


def split(path: str, count: int) -> tuple[HeaderFile, ...]:
    """The headers of the model in ``path`` as if its tensors were in ``count`` files."""
    info = read_header(path)
    files = []
    share = -(-len(info.tensors) // count)
    for number in range(count):
        offset, tensors = 0, []
        for tensor in info.tensors[number * share : (number + 1) * share]:
            tensors.append(replace(tensor, offset=offset))
            offset += -(-tensor.n_bytes // info.alignment) * info.alignment
        about = {
            "split.no": number,
            "split.count": count,
            "split.tensors.count": len(info.tensors),
        }
        part = replace(
            info,
            tensors=tuple(tensors),
            needed_bytes=info.data_offset + offset,
            split_no=number,
            split_count=count,
            metadata={**info.metadata, **about} if number == 0 else about,
            types={
                **info.types,
                "split.no": "u16",
                "split.count": "u16",
                "split.tensors.count": "i32",
            },
            arrays=info.arrays if number == 0 else {},
        )
        files.append(part)
    return bare_headers(files)


def test_parameters_of_the_load_arrive(tiny: Path) -> None:
    params = ModelParams(
        n_gpu_layers=3,
        tensor_split=(1.0, 2.0),
        devices=("none",),
        overrides=((r"blk\.0\..*", "CPU"),),
        repack=False,
        use_mmap=False,
    )
    path = tiny / "tiny-target.gguf"
    context = replace(SMALL, rope=(("rope_freq_base", 5e5),))
    result = probe(asked(path, params), context)
    with LlamaModel(path, params) as model, LlamaContext(model, context) as live:
        assert list(result.target.buffers) == memory_breakdown(model.lib, live.handle)


def test_without_the_map_the_log_is_asked(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's own code, in this process: this header is known to do no harm."""
    lib = load_lib()
    path = write_headers(tmp_path / "target", asked(tiny / "tiny-target.gguf").files)
    record = {"path": str(path), "params": asdict(ALLOCATED)}
    model = child._load(lib, record, [])
    monkeypatch.setitem(lib.missing, "llama_get_memory_breakdown", "an older libllama")
    monkeypatch.delitem(lib._extra, "llama_get_memory_breakdown", raising=False)
    context, account = child._measure(lib, model, asdict(SMALL), 0)
    lib.api.llama_free(context)
    lib.api.llama_model_free(model)
    exact = probe(asked(tiny / "tiny-target.gguf"), SMALL).target
    assert account["source"] == "log"
    assert account["missing"] == ["model", "context"]
    (buffer,) = account["buffers"]
    assert (buffer["model"], buffer["context"]) == (0, 0)
    assert abs(buffer["compute"] - exact.total("compute")) <= (1 << 20) // 100


# ------------------------------------------------------------------ what goes wrong


def test_an_abort_is_told_with_its_assertion(tiny: Path) -> None:
    """llama's graph asserts that the rotary dimension is the whole head."""
    info = read_header(tiny / "tiny-target.gguf")
    key = f"{info.arch}.rope.dimension_count"
    part = replace(info, metadata={**info.metadata, key: 4}, types={**info.types, key: "u32"})
    error = failure(ProbeModel(bare_headers([part]), ALLOCATED))
    assert error.kind == "abort"
    assert "GGML_ASSERT" in error.message


def test_absurd_dimensions(tiny: Path) -> None:
    info = read_header(tiny / "tiny-target.gguf")
    absurd = replace(info, metadata={**info.metadata, f"{info.arch}.block_count": 2**31})
    error = failure(ProbeModel(bare_headers([absurd]), ALLOCATED))
    assert error.kind in ("abort", "refused", "memory", "crash")


def test_a_truncated_header_is_refused(tiny: Path) -> None:
    (whole,) = bare_headers([read_header(tiny / "tiny-target.gguf")])
    error = failure(header_only(whole.data[: len(whole.data) // 2]))
    assert error.kind == "refused"


def test_a_file_shorter_than_its_tensors_is_refused(tiny: Path) -> None:
    (whole,) = bare_headers([read_header(tiny / "tiny-target.gguf")])
    error = failure(header_only(whole.data, whole.size - 4096))
    assert error.kind == "refused"
    assert "bounds" in error.message


def test_memory_has_a_limit(tiny: Path) -> None:
    """Recurrent states are allocated for real: 256 sequences of them take more than a MiB."""
    model, context = asked(tiny / "tiny-mtp.gguf"), replace(SMALL, n_seq_max=256)
    assert failure(model, context, memory_limit=1 << 20).kind == "memory"
    assert probe(model, context).target.total("context") > 1 << 20


def fake_python(folder: Path, script: str) -> str:
    """An executable that does ``script`` instead of running the probe."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("kill -ABRT $$", "abort"),
        ("kill -SEGV $$", "crash"),
        ("kill -FPE $$", "crash"),
        ("kill -KILL $$", "killed"),
        ("echo terminate called: std::bad_alloc >&2; kill -ABRT $$", "memory"),
        ("echo 'GGML_ASSERT(ctx->mem_buffer != NULL) failed' >&2; kill -ABRT $$", "memory"),
        ("echo something >&2; exit 7", "failed"),
        ("exit 0", "failed"),
        ("echo '[1]'", "failed"),
        ("echo '{}'", "failed"),
        ("echo '{\"target\": '", "failed"),
        ('echo \'{"target": {"buffers": 3}, "draft": null}\'', "failed"),
    ],
)
def test_the_reason_is_told(tmp_path: Path, own_temp: Path, script: str, kind: str) -> None:
    error = failure(header_only(b"GGUF"), python=fake_python(tmp_path, script))
    assert error.kind == kind
    assert not list(own_temp.iterdir())


def test_no_python(tmp_path: Path) -> None:
    for python in (str(tmp_path / "missing"), str(tmp_path), ""):
        assert failure(header_only(b"GGUF"), python=python).kind == "start"


def test_a_file_of_any_length_takes_no_room(tiny: Path) -> None:
    """libllama asks that the tensors are within the file, not that nothing follows."""
    small = asked(tiny / "tiny-target.gguf")
    (file,) = small.files
    large = replace(small, files=(replace(file, size=1 << 40),))
    assert probe(large, SMALL) == probe(small, SMALL)


def processes(mark: Path) -> list[int]:
    """Processes that have ``mark`` in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(mark) in word for word in process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def sleeper(folder: Path) -> str:
    """A script that waits for a child of its own, which says so in ``folder / "ready"``."""
    code = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    words = (sys.executable, "-c", code, str(folder / "ready"))
    return " ".join(shlex.quote(word) for word in words) + " & wait"


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_a_timeout_ends_the_whole_group(tmp_path: Path, own_temp: Path) -> None:
    error = failure(
        header_only(b"GGUF"), python=fake_python(tmp_path, sleeper(tmp_path)), timeout=1
    )
    assert error.kind == "timeout"
    assert (tmp_path / "ready").exists()
    assert gone(tmp_path / "ready")
    assert not list(own_temp.iterdir())


def gone(mark: Path) -> bool:
    """Whether the processes end; the kernel takes a moment to bury them."""
    for _ in range(200):
        if not processes(mark):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_ctrl_c_ends_the_whole_group(tmp_path: Path, own_temp: Path) -> None:
    python = fake_python(tmp_path, sleeper(tmp_path))
    code = (
        "import sys, tempfile; from gguf_spec.probe import *; "
        "from gguf_spec.bare_header import HeaderFile; "
        "from gguf_spec.backend import ContextParams, ModelParams\n"
        "tempfile.tempdir = sys.argv[2]\n"
        "try: probe(ProbeModel((HeaderFile(b'GGUF', 4),), ModelParams()), ContextParams(8),"
        " python=sys.argv[1])\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, python, str(own_temp)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    while not (tmp_path / "ready").exists():
        assert parent.poll() is None
        time.sleep(0.02)
    os.kill(parent.pid, signal.SIGINT)
    out, _ = parent.communicate(timeout=60)
    assert out == "interrupted\n"
    assert gone(tmp_path / "ready")
    assert not list(own_temp.iterdir())


def test_a_real_probe_that_takes_too_long(tiny: Path, own_temp: Path) -> None:
    error = failure(asked(tiny / "tiny-target.gguf"), timeout=0.01)
    assert error.kind == "timeout"
    assert not list(own_temp.iterdir())


def test_the_current_folder_is_not_searched_for_modules(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert probe(asked(tiny / "tiny-target.gguf"), SMALL).target.total("model") > 0


def test_a_disk_without_sparse_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a long file takes what it is long, none is made."""
    monkeypatch.setattr(probe_files, "_taken", lambda path: path.stat().st_size)
    error = failure(header_only(b"GGUF", 1 << 40))
    assert error.kind == "no-sparse-files"
    assert "TMPDIR" in (error.hint or "")


def test_a_file_longer_than_any_file_can_be() -> None:
    assert failure(header_only(b"GGUF", 2**63 - 1)).kind == "no-sparse-files"
