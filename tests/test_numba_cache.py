"""What is compiled for the CPU is kept where numba finds a place for it, forgotten when a source changed, and runs without one."""

import errno
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from numba.core import caching

import starseq
from starseq import numba_cache
from starseq.lattice.notice_numba import Notice
from starseq.lm import records_numba


def test_indices_older_than_a_source_are_forgotten(tmp_path):
    old, new = tmp_path / "a.nbi", tmp_path / "b.nbi"
    for time, path in enumerate((old, new), 1):
        path.touch()
        os.utime(path, (time, time))
    numba_cache.forget_older(tmp_path, 1.5)
    assert not old.exists()
    assert new.exists()
    numba_cache.forget_older(tmp_path / "no such folder", 1.5)


def test_a_change_in_what_a_kernel_calls_arrives_wherever_code_is_kept(tmp_path):
    """As by `git pull`, with NUMBA_CACHE_DIR: the caller's own file stays as it was."""
    package = tmp_path / "starseq"
    (package / "lm").mkdir(parents=True)
    for name in ("__init__.py", "numba_cache.py", "lm/__init__.py"):
        shutil.copy(Path(starseq.__file__).parent / name, package / name)
    (package / "__init__.py").write_text("")
    (package / "lm/__init__.py").write_text("")
    head = "from starseq.numba_cache import kept\n"
    called, calling = package / "lm/called_numba.py", package / "lm/calling_numba.py"
    calling.write_text(
        head + "from starseq.lm.called_numba import one\n\n@kept\ndef two(x):\n    return one(x) + one(x)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = []
    for time, number in ((1.7e9, 1), (1.9e9, 5)):  # the second is after all that the first run wrote
        called.write_text(head + f"\n@kept\ndef one(x):\n    return {number} + x\n")
        for path in (package / "numba_cache.py", calling, called):
            os.utime(path, (1.7e9, 1.7e9 if path != called else time))
        program = "from starseq.lm.calling_numba import two; print(two(0), two.stats.cache_hits)"
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        said.append(run.stdout.split()[0])
        for index in (tmp_path / "cache").rglob("*.nbi"):
            os.utime(index, (1.8e9, 1.8e9))
    assert said == ["2", "10"]
    assert list((tmp_path / "cache").rglob("*.nbi"))


def test_without_a_place_it_is_compiled_all_the_same_and_said(monkeypatch, caplog):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(numba_cache, "_nowhere", False)
    assert numba_cache.can_keep()
    assert numba_cache.kept(lambda x: x + 1, nogil=True)(1) == 2
    assert not numba_cache.can_keep()
    ours = types.SimpleNamespace(data={"dispatcher": types.SimpleNamespace(py_func=records_numba.match.py_func)})
    Notice().on_start(ours)
    assert "no place to keep the result; NUMBA_CACHE_DIR" in caplog.text


def test_a_full_disk_stops_nobody_and_is_said_once(monkeypatch, caplog):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", full)
    for number in (1, 2):
        assert numba_cache.kept(lambda x: x + number, nogil=True)(1) == 1 + number  # noqa: B023
    assert [record.getMessage() for record in caplog.records].count(
        "starseq: what was compiled could not be kept: No space left on device; NUMBA_CACHE_DIR may name another folder"
    ) == 1


def test_what_else_numba_finds_wrong_is_not_hidden(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("something else")

    monkeypatch.setattr(numba_cache.numba, "njit", broken)
    with pytest.raises(RuntimeError, match="something else"):
        numba_cache.kept(lambda x: x)
