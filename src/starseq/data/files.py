"""Files: written whole or not at all, found only under the root that the user gave, known by their content."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from starseq.data.errors import DataError

__all__ = [
    "atomic_writer",
    "check_target",
    "check_unlocked",
    "folder_if_done",
    "hash_of",
    "locked",
    "naming",
    "resolve_inside",
    "write_bytes",
    "write_text",
]


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open `path` for writing so that readers see the old file or the new one, never half of one.

    The bytes go to a hidden ``.NAME.*.tmp`` in the same folder, which is flushed to the disk and renamed over `path`
    when the block ends. An exception removes it and leaves the old file as it was; a process killed in the block leaves
    the old file and a stray ``.tmp``. Missing folders are made, and a link is followed, so that it stays a link.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with atomic_writer(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> (folder / "a.txt").read_text(), len(list(folder.iterdir()))
    ('whole', 1)
    """
    check_target(path)
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not `tempfile`: its files are readable by their owner only, and this one becomes the result.
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.tmp")
    try:
        with naming(path), open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


@contextmanager
def folder_if_done(path: str | os.PathLike[str]) -> Iterator[None]:
    """Folders that the block makes for `path` go again where it fails and they are empty."""
    folder = Path(os.path.abspath(path))
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for one in new:
                one.rmdir()
        raise


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Where the disk is full, the error names `path`: Python's own does not say what could not be written."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            error.filename = os.fspath(path)
        raise


_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextmanager
def locked(target: str | os.PathLike[str], path: Path) -> Iterator[None]:
    """No other process is in such a block with the same `path`, a hidden file that is there meanwhile: to it `target` is a
    `DataError`. The lock of a killed process goes with it. Where the system has none, as on Windows or some network drives,
    nothing is locked. Its folder is made, and stays if anything is written there.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), ".lock")
    >>> with locked("labels.jsonl", file), locked("labels.jsonl", file):
    ...     pass
    Traceback (most recent call last):
        ...
    starseq.data.errors.DataError: labels.jsonl: another process is writing it
    >>> file.exists()
    False
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DataError(f"{os.fspath(target)}: another process is writing it") from None
        except OSError:
            pass  # no locks here
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
        os.close(descriptor)  # who had it has removed it in between
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            if is_new:
                path.parent.rmdir()  # unless something was written
        os.close(descriptor)


def check_unlocked(target: str | os.PathLike[str], path: Path) -> None:
    """A `DataError` where another process is in a `locked` block with this `path`, found out without taking the lock."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"{os.fspath(target)}: another process is writing it") from None
    except OSError:
        pass  # no such file, or no locks here


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system can (Windows cannot open a folder)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path` atomically (see `atomic_writer`)."""
    with atomic_writer(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8 and with its line ends as they are."""
    write_bytes(path, text.encode())


def check_target(target: str | os.PathLike[str], *sources: str | os.PathLike[str]) -> None:
    """A result that would take the place of what it is made from is a `DataError`: it may be the only copy. So is one that
    would take the place of a folder, or of anything else that is no file.

    >>> check_target("a/../labels.jsonl", "labels.jsonl")
    Traceback (most recent call last):
        ...
    starseq.data.errors.DataError: a/../labels.jsonl: this is the file that is read; choose another name for the result
    """
    real = os.path.realpath(target)
    if os.path.exists(real) and not os.path.isfile(real):
        raise DataError(f"{os.fspath(target)}: not a regular file, so it cannot be replaced")
    if any(real == os.path.realpath(source) for source in sources):
        raise DataError(f"{os.fspath(target)}: this is the file that is read; choose another name for the result")


def resolve_inside(path: str, folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """`path`, relative to `folder`, as a real path under `root` (the folder itself by default).

    What counts is where the path ends once every ``..`` and link is followed: outside `root` it is a `DataError`. So a
    manifest from elsewhere cannot make a job read ``../../.ssh/id_rsa``. The file need not exist.

    >>> import tempfile
    >>> folder = os.path.realpath(tempfile.mkdtemp())
    >>> resolve_inside("clips/a.wav", folder).relative_to(folder).as_posix()
    'clips/a.wav'
    >>> resolve_inside("../a.wav", folder)
    Traceback (most recent call last):
    ...
    starseq.data.errors.DataError: path '../a.wav' leads out of the root ...
    """
    if "\0" in path:
        raise DataError(f"path {path!r} holds a NUL character")
    inside = os.path.realpath(folder if root is None else root)
    real = os.path.realpath(os.path.join(folder, path))
    if os.path.commonpath([inside, real]) != inside:
        raise DataError(f"path {path!r} leads out of the root {inside!r}: if that is meant, give a wider root")
    return Path(real)


def hash_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, or of the files of a folder with their names: the same on every machine."""
    path = Path(path)
    if path.is_dir():
        names = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(f"{name} {hash_of(path / name)}\n" for name in names).encode()).hexdigest()
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
