"""The confidence of every token of a given transcript is the share that brute force gives it; workers give results in order."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
from tests.decode.test_complete import probabilities

from starseq.data.errors import DataError
from starseq.data.pool import interrupts_held
from starseq.decode.confidence import Judge
from starseq.decode.workers import work_ahead


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_every_token_has_its_share(merge: bool, scale: float) -> None:
    T, V = 4, 4
    log_probs = (scale * torch.randn(T, V, generator=torch.Generator().manual_seed(7))).log_softmax(dim=1)
    everything = probabilities(log_probs, merge)
    judge = Judge(log_probs, merge_repeats=merge)
    for n in range(T + 1):
        for y in itertools.product(range(1, V), repeat=n):
            log_p, confidence = judge(y)
            if y not in everything:  # needs more frames than there are
                assert log_p == -math.inf
                assert confidence == (0.0,) * n
                continue
            assert log_p == pytest.approx(math.log(everything[y]), abs=1e-5)
            for j, share in enumerate(confidence):
                others = [(*y[:j], v, *y[j + 1 :]) for v in range(1, V)] + [(*y[:j], *y[j + 1 :])]
                total = math.fsum(everything.get(other, 0.0) for other in others)
                assert share == pytest.approx(everything[y] / total, abs=1e-5)


def test_tokens_that_are_none() -> None:
    log_probs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).log_softmax(dim=1)
    judge = Judge(log_probs, merge_repeats=False, blank=1)
    for token in (4, -1, 1):
        with pytest.raises(ValueError, match=rf"tokens: {token} is none of 0\.\.3 but the blank, 1"):
            judge([2, token])
    with pytest.raises(ValueError, match="wanted: expected 2 values, got 1"):
        judge([2, 3], [True])
    with pytest.raises(ValueError, match=r"blank: 4 is outside 0\.\.3, the vocabulary"):
        Judge(log_probs, merge_repeats=False, blank=4)


def test_what_is_not_wanted_is_sure() -> None:
    log_probs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).log_softmax(dim=1)
    judge = Judge(log_probs, merge_repeats=False)
    both, one = judge([1, 2]).confidence, judge([1, 2], [False, True]).confidence
    assert one == (1.0, both[1])


def double(number: int) -> tuple[int, int]:
    if number < 0:
        raise ValueError("a number below 0")
    return 2 * number, os.getpid()


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order_and_errors_as_they_were(workers: int) -> None:
    with work_ahead(double, workers) as submit:
        waiting = [submit(number) for number in range(6)]
        bad = submit(-1)
        found = [result() for result in waiting]
        assert [value for value, _ in found] == [0, 2, 4, 6, 8, 10]
        assert ({process for _, process in found} == {os.getpid()}) == (workers == 0)
        with pytest.raises(ValueError, match="a number below 0"):
            bad()


def die(sign: int) -> None:
    os.kill(os.getpid(), sign)


def test_a_worker_that_is_killed_is_a_sentence() -> None:
    with work_ahead(die, 1) as submit:
        result = submit(signal.SIGKILL)
        with pytest.raises(DataError, match="a worker was killed, perhaps for want of memory"):
            result()
        with pytest.raises(DataError, match="a worker was killed"):
            submit(signal.SIGKILL)


INTERRUPTED = """
import time
from starseq.decode.workers import work_ahead
try:
    with work_ahead(time.sleep, 2) as submit:
        waiting = [submit(seconds) for seconds in (0, 0, *busy)]
        waiting[0](), waiting[1]()
        print("begun", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize("busy", [(), (0.3,) * 200], ids=["idle", "busy"])
def test_ctrl_c_ends_the_workers_without_a_word_of_theirs(busy: tuple[float, ...]) -> None:
    assert interrupted(f"busy = {busy}\n{INTERRUPTED}") == (0, "stopped\n", "")


SLOW_TO_START = """
import os, time
from starseq.decode.workers import work_ahead

def start_slowly():
    os.write(1, b"begun\\n")  # whole, whoever else writes
    time.sleep(0.5)

os.register_at_fork(after_in_child=start_slowly)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are not forked")
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_while_workers_start(workers: int) -> None:
    """They do not hear it yet, and the first process ends when all of them are there."""
    begin = f"""
try:
    with work_ahead(abs, {workers}):
        time.sleep(1000)
except KeyboardInterrupt:
    print("stopped")
"""
    code, out, error = interrupted(SLOW_TO_START + begin)
    assert (code, out.replace("begun\n", ""), error) == (0, "stopped\n", "")


def test_a_call_is_not_waited_for() -> None:
    """Neither after Ctrl-C nor after an error, of which a terminal tells the workers nothing."""
    for sends in (True, False):
        script = f"""
import os, time
from starseq.decode.workers import work_ahead
heard, told = os.pipe()

def work(seconds):
    try:
        os.write(told, b".")
        time.sleep(seconds)
    except KeyboardInterrupt:
        print("cleaned", flush=True)
        raise

try:
    with work_ahead(work, 1) as submit:
        result = submit(1000)
        submit(1000)
        os.read(heard, 1)
        print("begun", flush=True)
        if {sends}:
            result()
        raise ValueError
except (KeyboardInterrupt if {sends} else ValueError):
    print("stopped", flush=True)
"""
        assert (sends, *interrupted(script, sends=sends)) == (sends, 0, "cleaned\nstopped\n", "")


def test_who_does_not_hear_ctrl_c_has_workers_that_do_not() -> None:
    """As with nohup."""
    script = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import time
from starseq.decode.workers import work_ahead

def work(seconds):
    print("begun", flush=True)
    time.sleep(seconds)
    return seconds

with work_ahead(work, 1) as submit:
    print(submit(1)())
"""
    assert interrupted(script) == (0, "1\n", "")


def test_ctrl_c_is_heard_at_the_end_of_what_must_not_be_interrupted() -> None:
    done = []

    def work() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")
        done.append("and no more")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    with interrupts_held():
        pass  # and nothing is left of it


def interrupted(script: str, sends: bool = True) -> tuple[int, str, str]:
    """Runs a script, and sends Ctrl-C as a terminal does when it has printed "begun": how it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # or what comes right behind the first line would lie in a buffer, where communicate does not look
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    if sends:
        os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=300)  # a hang, however slow the machine is
    return process.returncode, out.decode(), error.decode()
