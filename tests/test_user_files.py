"""Files that a user names: what has no end is refused, and what nobody writes is not waited for."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from gguf_spec.user_files import is_readable, is_stdin, read_up_to, read_whole, write_whole

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX files and names")


def refused(path: Path, most: int = 10, *, pipes: bool = True) -> str:
    with pytest.raises(OSError, match=r"^") as caught:
        read_whole(path, most, pipes=pipes)
    return str(caught.value.strerror)


def test_regular_files_up_to_a_size(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert read_whole(path, 10) == b"0123456789"
    assert refused(path, 9) == "it has more than 9 bytes"
    path.write_bytes(b"")
    assert read_whole(path, 10) == b""
    os.symlink(path, tmp_path / "link")
    assert read_whole(tmp_path / "link", 10) == b""


def test_what_has_no_end_or_no_writer_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "pipe", tmp_path / "link")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), Path("/dev/null")):
        assert refused(path) == "it is not a regular file"
        assert not is_readable(path, pipes=True)
    assert refused(tmp_path) == "Is a directory"
    with pytest.raises(FileNotFoundError):
        read_whole(tmp_path / "none", 10)


def test_a_pipe_that_is_open_can_be_asked_for() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"abc")
        os.close(writer)
        path = Path(f"/dev/fd/{reader}")
        assert is_readable(path, pipes=True)
        assert not is_readable(path)
        assert refused(path, pipes=False) == "it is not a regular file"
        assert read_whole(path, 3, pipes=True) == b"abc"
    finally:
        os.close(reader)


def test_an_open_file_is_read_in_parts_and_not_after_its_end() -> None:
    data = bytes(range(256)) * (3 << 12)
    assert read_up_to(io.BytesIO(data), len(data)) == data
    with pytest.raises(OSError, match="more than 3145727 bytes"):
        read_up_to(io.BytesIO(data), len(data) - 1)

    class Terminal(io.BytesIO):
        asked = 0

        def read(self, n: int | None = -1, /) -> bytes:
            self.asked += 1
            return super().read(n)

    terminal = Terminal(b"typed")
    assert read_up_to(terminal, 100) == b"typed"
    assert terminal.asked == 1


def test_names_of_stdin() -> None:
    assert all(map(is_stdin, ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", "/dev/../dev/stdin")))
    assert not any(map(is_stdin, ("/dev/fd/63", "stdin", "/dev/stdin0", "-")))


def test_what_is_written_is_whole_and_a_link_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "a", tmp_path / "link"
    link.symlink_to("a")
    write_whole(link, b"one", b"two")
    assert link.is_symlink()
    assert path.read_bytes() == b"onetwo"

    def fails(source: object, goal: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"another")
    assert path.read_bytes() == b"onetwo"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "link"]


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, linked: bool) -> None:
    """A device in whose place a file is renamed is gone for all programs."""
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        name = path
        if linked:
            name = tmp_path / f"{path.name}.link"
            name.symlink_to(path)
        with pytest.raises(OSError, match=r"not a regular file|directory"):
            write_whole(name, b"x")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert folder.is_dir()
    assert not list(tmp_path.glob("*.part"))
