"""Who has to wait for kernels that are compiled is told; nobody is told of his own functions, or twice of one wait."""

import subprocess
import sys
import types

import numba
import pytest
from numba.core import event

from starseq.lattice import notice_numba
from starseq.lattice.notice_numba import Notice
from starseq.op import fused_numba

SENTENCE = "starseq: compiling for this CPU"


def compiled(module: str | None):
    """A function of that module, compiled on the spot."""

    def plus_one(x):
        return x + 1

    plus_one.__module__ = module
    numba.njit(plus_one)(1)


@pytest.fixture
def listening():
    """A new notice instead of that of the process."""
    event.unregister("numba:compile", notice_numba.NOTICE)
    with event.install_listener("numba:compile", Notice()):
        yield
    event.register("numba:compile", notice_numba.NOTICE)


@pytest.mark.parametrize(("modules", "told"), [
    (["starseq.op.fused_numba"], 1), (["starseq.op.fused_numba", "starseq.lm.records_numba"], 1), (["theirs"], 0),
    (["theirs", "starseq.op.fused_numba"], 1), ([None], 0),
])  # fmt: skip
def test_told_once(modules, told, listening, caplog):
    for module in modules:
        compiled(module)
    assert [record.getMessage().startswith(SENTENCE) for record in caplog.records] == [True] * told


def test_told_again_after_a_pause(caplog):
    now = iter((0.0, 0.0, 9.0, 9.0, 9.0, 18.0, 30.0, 30.0, 31.0))
    notice = Notice(lambda: next(now))
    ours = types.SimpleNamespace(data={"dispatcher": types.SimpleNamespace(py_func=fused_numba.forward)})
    told = []
    for _ in range(3):  # compiled from 0 to 9 and 9 to 18, and then from 30 to 31
        notice.on_start(ours)
        notice.on_end(ours)
        told.append(len(caplog.records))
    assert told == [1, 1, 2]


def test_where_nobody_has_set_up_logging_it_is_on_stderr():
    program = (
        "import starseq.lattice.elementary_numba\nfrom tests.test_numba_notice import compiled\n"
        "compiled('theirs')\ncompiled('starseq.x')\ncompiled('starseq.y')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert line == f"{SENTENCE}, for up to a minute; the result is kept"
    assert done.stdout == ""
