"""Launches of Triton kernels without the price of asking each time what is known already.

`kernel[grid](...)` looks at every argument's type, value and alignment, to choose among compiled versions: tens of microseconds of
Python a launch, more than a small batch takes on the device. A `Launch` keeps the versions that it has seen and calls the compiled
one directly. It does so in the versions of Triton whose launches were read for this, and as long as nobody listens to launches;
in every other case, in the interpreter as well, it is `kernel[grid](...)`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

VERSIONS = ("3.5", "3.6", "3.7", "3.8", "3.9")
"""Of Triton, in which `CompiledKernel.run` takes (grid x, y, z, stream, function, packed metadata, launch metadata, enter hook,
exit hook, *all arguments)."""


_address, _dtype = Tensor.data_ptr, operator.attrgetter("dtype")


class Launch:
    """A kernel with its constants. The kernel's arguments come in this order: tensors, integers, constants.

    The integers, none of them negative, are to be in the kernel's do_not_specialize: then one compiled version serves all that
    fit in 32 bits.
    """

    def __init__(self, kernel: Any, constants: Sequence[Any], num_warps: int) -> None:
        self.kernel = kernel
        self.constants = tuple(constants)
        self.num_warps = num_warps
        self.seen: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}
        self.direct = _is_familiar(kernel)

    def __call__(self, grid: tuple[int, int], tensors: Sequence[Tensor], integers: Sequence[int]) -> None:
        """Runs `grid` programs on the device of the first tensor, in its current stream."""
        device = tensors[0].get_device()
        # torch.cuda.current_device is this, and asks first whether CUDA is there.
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                self(grid, tensors, integers)
            return
        addresses = list(map(_address, tensors))
        # Versions also differ by which pointers are multiples of 16, and by which integers need 64 bits: those are left to Triton.
        odd = functools.reduce(operator.or_, addresses) & 15 or max(integers) >= 2**31
        if odd or not self.direct or _somebody_listens(self.kernel):
            self._ask(grid, tensors, integers)
            return
        key = (device, *map(_dtype, tensors))
        found = self.seen.get(key)
        if found is None:
            compiled = self._ask(grid, tensors, integers)
            if all(hasattr(compiled, name) for name in ("run", "function", "packed_metadata")):
                self.seen[key] = (compiled.run, compiled.function, compiled.packed_metadata)
            else:
                self.direct = False
            return
        run, function, packed = found
        stream = torch._C._cuda_getCurrentRawStream(device)  # what Triton itself asks
        run(*grid, 1, stream, function, packed, None, None, None, *addresses, *integers, *self.constants)

    def _ask(self, grid: tuple[int, int], tensors: Sequence[Tensor], integers: Sequence[int]) -> Any:
        return self.kernel[grid](*tensors, *integers, *self.constants, num_warps=self.num_warps)


@functools.cache
def launch_of(kernel: Any, constants: tuple[Any, ...], num_warps: int) -> Launch:
    """The one `Launch` of a kernel with these constants."""
    return Launch(kernel, constants, num_warps)


def _is_familiar(kernel: Any) -> bool:
    """Whether this Triton's launches are known, and this is a kernel that it compiles (in the interpreter it is not)."""
    version = ".".join(triton.__version__.split(".")[:2])
    return (
        version in VERSIONS
        and isinstance(kernel, triton.runtime.JITFunction)
        and hasattr(torch._C, "_cuda_getCurrentRawStream")
        and hasattr(torch._C, "_cuda_getDevice")
        and all(hasattr(getattr(triton.knobs.runtime, name, None), "calls") for name in _HOOKS)
        and hasattr(kernel, "pre_run_hooks")
    )


_HOOKS = ("launch_enter_hook", "launch_exit_hook")


def _somebody_listens(kernel: Any) -> bool:
    """Whether a profiler, say, wants to be told of launches."""
    runtime = triton.knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or kernel.pre_run_hooks)
