"""Files are written whole or not at all, and nothing outside the root is found."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from starseq.data.errors import DataError
from starseq.data.files import atomic_writer, locked, naming, resolve_inside, write_bytes, write_text
from starseq.lm import records
from starseq.lm.estimate import estimate


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.txt"
    with atomic_writer(target) as file:
        file.write(b"whole")
        file.flush()
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    write_text(target, "old")

    def interrupted() -> None:
        with atomic_writer(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    write_text(target, "old")
    script = (
        "import sys, os, signal; from starseq.data.files import atomic_writer\n"
        "with atomic_writer(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    # What a killed process leaves is hidden, and does not pass for a result.
    assert [path.name[-4:] for path in tmp_path.iterdir() if path != target] == [".tmp"]


@pytest.fixture
def full_at() -> Iterator[Callable[[int], None]]:
    """A disk on which no file has room for more than so many bytes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_names_the_file(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    full_at(4096)
    with pytest.raises(OSError, match=r"out\.txt") as caught:
        write_bytes(tmp_path / "out.txt", bytes(100_000))
    assert caught.value.filename == str(tmp_path / "out.txt")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match=r"\.a\.arpa\.runs"):
        estimate((["a", "b"] for _ in range(10_000)), tmp_path / "a.arpa", order=3, memory=1 << 16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (OSError(errno.ENOSPC, "full"), "b"),
        (OSError(errno.EDQUOT, "full"), "b"),
        (OSError(errno.ENOSPC, "full", "a"), "a"),
        (OSError(errno.EIO, "no disk"), None),
    ],
)
def test_only_a_full_disk_without_a_name_gets_one(error: OSError, name: str | None) -> None:
    with pytest.raises(OSError) as caught, naming("b"):  # noqa: PT011
        raise error
    assert caught.value.filename == name


def test_a_full_disk_under_records_has_its_number(tmp_path: Path, full_at: Callable[[int], None]) -> None:
    full_at(4096)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        records.Table(tmp_path / "table", 2).append(np.zeros((10_000, 2), np.uint64))
    assert caught.value.errno == errno.EFBIG


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "out.txt", tmp_path / "link.txt"
    write_text(target, "old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "")
    (tmp_path / "usual").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a regular file"), atomic_writer(tmp_path):
        pass
    with pytest.raises(DataError, match="not a regular file"), atomic_writer(os.devnull):
        pass


def test_paths_inside_the_root(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    real = Path(os.path.realpath(tmp_path))
    assert resolve_inside("a/b.wav", folder) == real / "corpus/a/b.wav"
    assert resolve_inside("a/../b.wav", folder) == real / "corpus/b.wav"
    assert resolve_inside("../b.wav", folder, tmp_path) == real / "b.wav"
    assert resolve_inside(str(real / "corpus/b.wav"), folder) == real / "corpus/b.wav"
    assert resolve_inside("b.wav", folder, "/") == real / "corpus/b.wav"


@pytest.mark.parametrize(
    "path", ["../b.wav", "a/../../b.wav", "/etc/passwd", "..", "link/b.wav", "dangling", "../corpus2/x"]
)
def test_paths_that_leave_the_root(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "dangling").symlink_to(tmp_path / "missing")
    with pytest.raises(DataError, match="leads out of the root"):
        resolve_inside(path, folder)


def test_a_nul_in_a_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NUL"):
        resolve_inside("a\0b", tmp_path)


def test_the_lock_of_a_killed_process_goes_with_it(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    program = (
        "import sys, time; from pathlib import Path; from starseq.data.files import locked\n"
        "with locked('x', Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        with pytest.raises(DataError, match="x: another process is writing it"), locked("x", lock):
            pass
        process.kill()
        process.wait()
    assert lock.exists()
    with locked("x", lock):
        pass
    assert not lock.exists()
