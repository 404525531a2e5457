"""Triton's interpreter is chosen when kernels are defined, so tests that want it run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(
    not INSIDE, reason="run in the interpreter, by another process that a test of this file starts"
)
outside = pytest.mark.skipif(INSIDE, reason="the interpreter is on")


def run_again(file: str, *options: str) -> None:
    """The tests of a file once more, in the interpreter: some pass, and none fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, file]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
