"""Every Triton kernel compiles for Hopper, without a GPU: what the interpreter accepts, the compiler may not."""

from __future__ import annotations

import itertools
import os
import re

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402

from starseq.emissions import vocabulary_triton  # noqa: E402
from starseq.lattice import banded_triton  # noqa: E402

POINTERS = {
    "grad_ptr": "*fp32", "enter_ptr": "*i64", "stay_ptr": "*i64", "left_out_ptr": "*i64", "weight_ptr": "*fp32",
    "skip_ptr": "*i1", "num_states_ptr": "*i64",
    "lengths_ptr": "*i64", "steps_ptr": "*i8", "path_ptr": "*i64",
}  # fmt: skip


def compile_kernel(kernel, types: dict[str, str], constants: dict[str, object], warps: int) -> str:
    """PTX of a kernel; `types` overrides POINTERS, other pointers are float64, other arguments int32."""
    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = types.get(name, POINTERS.get(name, "*fp64"))
        else:
            signature[name] = "i32"
    places = [i for i, name in enumerate(kernel.arg_names) if name.endswith("_ptr")]
    attributes = {(i,): [["tt.divisibility", 16]] for i in places}  # as torch allocates
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]


@pytest.mark.parametrize(("skip", "exact"), [*itertools.product([False, True], repeat=2)])
def test_lattice(skip: bool, exact: bool) -> None:
    scores = {"stay_ptr": "*fp64", "enter_ptr": "*fp64"}
    constants = {"ENDS": 2, "SKIP": skip, "EXACT": exact, "BLOCK": 64}
    assert compile_kernel(banded_triton._forward_backward, scores, constants, 2)
    assert compile_kernel(banded_triton._viterbi, scores, {"ENDS": 2, "SKIP": skip, "BLOCK": 64}, 2)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("stars", "long"), [*itertools.product([False, True], repeat=2)])
def test_vocabulary(dtype: str, stars: bool, long: bool) -> None:
    types = {"x_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"}
    size = {"fp64": 8, "fp32": 4}.get(dtype, 2)
    blocks = {"BLOCK_V": 4096 if long else 128, "ALIGN": 16 // size if long else 1, "BLOCK_S": 32}
    common = {
        "STAYS": not stars,
        "STARS": stars,
        "LEAVES_OUT": stars,
        "NORMALIZED": True,
        "EXACT": dtype == "fp64",
        "stride_v": 1,
        **blocks,
    }
    warps = 8 if long else 1
    scores = compile_kernel(vocabulary_triton._scores, types, {**common, "KEEP_STAR": stars}, warps)
    constants = {**common, "SKIP": not stars, "DENSE": not long, "BLOCK_K": 32, "out_stride_v": 1}
    gradient = compile_kernel(vocabulary_triton._gradient, types, constants, warps)
    if long:  # rows of an odd length are still read and written 16 bytes at a time
        for ptx in (scores, gradient):
            streams = re.findall(r"global\S*evict_first\S*", ptx)
            assert streams
            assert all(x.endswith((".v4.b32", ".v2.b64")) for x in streams), set(streams)
