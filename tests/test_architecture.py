"""The direction of dependencies, read from the imports themselves."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "gguf_spec"

# From the top down: a module may import from its own layer and from those below, never from above.
LAYERS = (
    {"cli", "server", "__main__"},
    {"session", "session_state", "generation", "bench", "tune", "verification", "exact"},
    {"setup", "loading", "plan_machine", "plan_probe", "plan_request", "plan_remote", "run_plan"},
    {"engine", "equality", "curves", "witness"},
    {"drafters"},
    {"backend", "probe", "hub", "devices", "refs", "ladder"},
)
# Front ends may be imported by front ends only, and what asks hosts by hub, too: reading a header
# from the network is as much a part of the library as reading one from a disk.
HOSTS = {"httpx", "huggingface_hub", "filelock"}
RICH = {"rich", "markdown_it", "prompt_toolkit"}
FRONT_ENDS = {"typer", "click", "requests", "starlette"} | RICH | HOSTS


def imports(path: Path) -> set[str]:
    """Every module that the file imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    """The module or package directly under gguf_spec that ``path`` belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def layer(name: str) -> int:
    """Index into LAYERS; everything else is a pure module, below all of them."""
    return next((i for i, members in enumerate(LAYERS) if name in members), len(LAYERS))


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_dependencies_point_downwards(path: Path) -> None:
    own = layer(part(path))
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "gguf_spec" and rest and part(path) != rest[0]:
            assert layer(rest[0]) >= own, f"{path.name} imports {name} from above"
        if head in FRONT_ENDS:
            allowed = own == 0 or (head in HOSTS and part(path) == "hub")
            assert allowed, f"{path.name} imports {head}"
        if head == "llama_cpp":
            assert part(path) in ("backend", "probe"), f"{path.name} imports llama_cpp"


def test_what_asks_hosts_is_loaded_when_one_is_asked() -> None:
    """The packages of the extra are optional, and slow to import."""
    names = sorted(p.stem for p in FILES if part(p) == "hub" and p.stem != "__init__")
    code = "import sys\n" + "".join(f"import gguf_spec.hub.{name}\n" for name in names)
    code += "print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(ast.literal_eval(done.stdout)) & HOSTS


def test_the_files_are_found() -> None:
    assert {part(p) for p in FILES} >= {"engine", "drafters", "backend", "cli", "sampling"}


def test_pure_modules_load_without_a_backend_or_a_front_end() -> None:
    pure = sorted({part(p) for p in FILES if layer(part(p)) == len(LAYERS)} - {"__init__"})
    code = "import sys\n" + "".join(f"import gguf_spec.{name}\n" for name in pure)
    code += "print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & (FRONT_ENDS | {"llama_cpp"})
