"""Write the headers of ``models``: ``python -m tests.headers.make``."""

from __future__ import annotations

from pathlib import Path

from tests.headers.models import FILES

FOLDER = Path(__file__).parent


def main() -> None:
    """Write every header, and delete those that are described no more."""
    for path in FOLDER.glob("*.gguf"):
        if path.stem not in FILES:
            path.unlink()
    for name, file in FILES.items():
        (FOLDER / f"{name}.gguf").write_bytes(file.described(name).header())


if __name__ == "__main__":
    main()
