"""Direct launches: the same calls that Triton would make, and Triton itself wherever something is out of the ordinary."""

from __future__ import annotations

import os

import pytest
import torch

triton = pytest.importorskip("triton")

from starseq.lattice import launch_triton  # noqa: E402
from starseq.lattice.launch_triton import Launch  # noqa: E402


class Compiled:
    """Stands for triton.compiler.CompiledKernel: notes what it is launched with."""

    function, packed_metadata = 77, (4, 1, 0)

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def run(self, *arguments: object) -> None:
        self.calls.append(arguments)


class Kernel:
    """Stands for triton.JITFunction: kernel[grid](...) compiles."""

    def __init__(self, compiled: object) -> None:
        self.pre_run_hooks: list[object] = []
        self.asked: list[tuple[object, ...]] = []
        self.compiled = compiled

    def __getitem__(self, grid: tuple[int, ...]):
        def ask(*arguments: object, num_warps: int) -> object:
            self.asked.append((grid, *arguments, num_warps))
            return self.compiled

        return ask


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(launch_triton, "_is_familiar", lambda kernel: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 1234, raising=False)
    return Kernel(Compiled())


def aligned(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """torch aligns to 64 bytes."""
    x = torch.zeros(16, dtype=dtype)
    assert x.data_ptr() % 16 == 0
    return x


def test_second_launch_is_direct(kernel: Kernel) -> None:
    launch = Launch(kernel, (True, 64), 4)
    x, y = aligned(), aligned()
    launch((5, 2), (x, y), (7, 0))
    assert kernel.asked == [((5, 2), x, y, 7, 0, True, 64, 4)]
    assert kernel.compiled.calls == []  # Triton has launched it
    launch((6, 1), (x, y), (8, 9))
    assert len(kernel.asked) == 1
    stream = 1234
    assert kernel.compiled.calls == [
        (6, 1, 1, stream, 77, (4, 1, 0), None, None, None, x.data_ptr(), y.data_ptr(), 8, 9, True, 64)
    ]


def test_each_type_has_its_version(kernel: Kernel) -> None:
    launch = Launch(kernel, (), 4)
    for dtypes in ((torch.float32, torch.int64), (torch.bfloat16, torch.int64), (torch.float32, torch.int32)):
        for _ in range(2):
            launch((1, 1), [aligned(dtype) for dtype in dtypes], (1,))
    assert len(kernel.asked) == 3
    assert len(kernel.compiled.calls) == 3


def test_what_triton_specialises_is_left_to_it(kernel: Kernel) -> None:
    launch = Launch(kernel, (), 4)
    for _ in range(2):
        launch((1, 1), (aligned()[1:],), (1,))  # an odd address
        launch((1, 1), (aligned(),), (2**31,))  # an integer of 64 bits
    assert len(kernel.asked) == 4
    assert kernel.compiled.calls == []


def test_listeners_hear_of_every_launch(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(kernel, (), 4)
    launch((1, 1), (aligned(),), (1,))
    for hooks in (
        triton.knobs.runtime.launch_enter_hook.calls,
        triton.knobs.runtime.launch_exit_hook.calls,
        kernel.pre_run_hooks,
    ):
        before = len(kernel.asked)
        hooks.append(print)
        try:
            launch((1, 1), (aligned(),), (1,))
        finally:
            hooks.remove(print)
        assert len(kernel.asked) == before + 1
    launch((1, 1), (aligned(),), (1,))
    assert len(kernel.compiled.calls) == 1


def test_an_unfamiliar_compiled_kernel_is_never_called() -> None:
    kernel = Kernel(object())
    launch = Launch(kernel, (), 4)
    launch.direct = True
    for _ in range(3):
        launch((1, 1), (aligned(),), (1,))
    assert len(kernel.asked) == 3
    assert not launch.direct


def test_what_is_familiar(monkeypatch: pytest.MonkeyPatch) -> None:
    from starseq.op import fused_triton

    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    kernel = fused_triton._lattice
    for name in ("_cuda_getCurrentRawStream", "_cuda_getDevice"):  # missing where torch is built without CUDA
        monkeypatch.setattr(torch._C, name, lambda *device: 0, raising=hasattr(torch._C, name))
    assert launch_triton._is_familiar(kernel) is not interpreted
    assert not launch_triton._is_familiar(Kernel(Compiled()))  # no kernel of Triton's
    monkeypatch.setattr(triton, "__version__", "4.0.1")
    assert not launch_triton._is_familiar(kernel)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is on")
def test_integers_are_not_specialised() -> None:
    from tests.test_triton_compiles import assert_not_specialised

    from starseq.op import fused_triton as fused

    assert_not_specialised(fused._scores, fused._lattice, fused._insertions, fused._gradient)
