"""Every Triton kernel compiles for Hopper, without a GPU: what the interpreter accepts, the compiler may not."""

from __future__ import annotations

import itertools
import os
import re

import pytest
import torch

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402

from starseq.emissions import slots_triton, vocabulary_triton  # noqa: E402
from starseq.lattice import banded_triton  # noqa: E402
from starseq.op import fused_triton, lasting_triton  # noqa: E402
from starseq.penalty import look_triton  # noqa: E402

POINTERS = {
    "grad_ptr": "*fp32", "weight_ptr": "*fp32",
    "skip_ptr": "*i1", "num_states_ptr": "*i64",
    "lengths_ptr": "*i64", "steps_ptr": "*i8", "path_ptr": "*i64", "labels_ptr": "*i64", "target_lengths_ptr": "*i64",
    "loss_ptr": "*fp32",
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


def assert_not_specialised(*kernels) -> None:
    """A `Launch` takes one version for all integers: so must the kernels."""
    for kernel in kernels:
        for parameter in kernel.params:
            if not parameter.is_constexpr and not parameter.name.endswith("_ptr"):
                assert parameter.do_not_specialize, f"{kernel.__name__}: {parameter.name}"


@pytest.mark.parametrize(("skip", "exact"), [*itertools.product([False, True], repeat=2)])
def test_lattice(skip: bool, exact: bool) -> None:
    scores = {"stay_ptr": "*fp64", "enter_ptr": "*fp64"}
    constants = {"ENDS": 2, "SKIP": skip, "EXACT": exact, "BLOCK": 64}
    assert compile_kernel(banded_triton._forward_backward, scores, constants, 2)
    assert compile_kernel(banded_triton._viterbi, scores, {"ENDS": 2, "SKIP": skip, "BLOCK": 64}, 2)


@pytest.mark.parametrize(("stars", "long"), [*itertools.product([False, True], repeat=2)])
def test_scores_that_are_no_probabilities(stars: bool, long: bool) -> None:
    types = {"x_ptr": "*fp32", "out_ptr": "*fp32", "loss_ptr": "*fp32"}
    common = {"STARS": stars, "NORMALIZED": False, "EXACT": False,
              "BLOCK_V": 512 if long else 128, "ALIGN": 4 if long else 1, "BLOCK_S": 32}  # fmt: skip
    form, missing = {"MERGING": not stars, "STRIDE_V": 1}, {} if stars else {"weight_ptr": None}
    assert compile_kernel(fused_triton._scores, types, {**common, **form, **missing, "KEEP_STAR": stars}, 4)
    gradient = {"OUT_STRIDE_V": 1, "REDUCTION": 2, "DENSE": not long, "BLOCK_K": 16}
    assert compile_kernel(fused_triton._gradient, types, {**common, **form, **missing, **gradient}, 4)


def assert_wide(*kernels: str, at_least: int = 16) -> None:
    """Rows of an odd length are still read and written 16 bytes at a time."""
    widths = {".v4.b32": 16, ".v2.b64": 16, ".v2.b32": 8}
    for ptx in kernels:
        streams = re.findall(r"global\S*evict_first\S*", ptx)
        assert streams
        assert all(widths.get(x[-7:], 0) >= at_least for x in streams), set(streams)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("tokens", "states"), [(80, 25), (3_000, 151), (50_001, 25), (50_001, 41)])
@pytest.mark.parametrize("merging", [False, True])
def test_fused(dtype: str, merging: bool, tokens: int, states: int) -> None:
    long = tokens > 1024
    exact, stars = dtype == "fp64", not merging
    types = {"x_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "loss_ptr": "*fp64" if exact else "*fp32"}
    form = {"MERGING": merging, "STARS": stars, "NORMALIZED": True, "EXACT": exact, "STRIDE_V": 1}
    missing = {} if stars else {"weight_ptr": None}
    kind = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    names = ("BLOCK_V", "ALIGN", "BLOCK_S")
    *sizes, warps = vocabulary_triton.blocks(kind, tokens, states, unit=True, gradient=False)
    constants = {**form, **missing, **dict(zip(names, sizes, strict=True)), "KEEP_STAR": stars}
    scores = compile_kernel(fused_triton._scores, types, constants, warps)
    *sizes, warps = vocabulary_triton.blocks(kind, tokens, states, unit=True, gradient=True)
    constants = {**form, **missing, **dict(zip(names, sizes, strict=True)), "OUT_STRIDE_V": 1, "REDUCTION": 2}
    gradient = compile_kernel(
        fused_triton._gradient,
        types,
        {**constants, "DENSE": not long, "BLOCK_K": vocabulary_triton.keys_at_once(states)},
        warps,
    )
    if long:
        assert_wide(
            scores, at_least=8 if dtype in ("bf16", "fp16") else 16
        )  # narrower, and quicker: bound by arithmetic
        assert_wide(gradient)
        return
    for reduction in (0, 2):
        constants = {"MERGING": merging, "REDUCTION": reduction, "ZERO_INFINITY": True, "EXACT": exact, "BLOCK": 64}
        assert compile_kernel(fused_triton._lattice, types, constants, 2)
    constants = {"EXACT": exact, "BLOCK_S": 32, "BLOCK_T": 64}
    assert compile_kernel(fused_triton._insertions, {"out_ptr": types["loss_ptr"]}, constants, 4)


@pytest.mark.parametrize("per_gap", [False, True])
@pytest.mark.parametrize(
    ("dtype", "slots", "tiled"),
    [("fp32", False, False), ("fp32", False, True), ("fp64", False, True), ("fp32", True, False), ("bf16", True, True)],
)
def test_lasting(dtype: str, slots: bool, tiled: bool, per_gap: bool) -> None:
    exact, computed = dtype == "fp64", "*fp64" if dtype == "fp64" else "*fp32"
    types = {
        **dict.fromkeys(("x_ptr", "out_ptr"), f"*{dtype}"),
        **dict.fromkeys(("m_ptr", "P_ptr", "row_ptr", "kept_ptr", "state_ptr", "back_row_ptr", "loss_ptr"), computed),
        **dict.fromkeys(("least_ptr", "sum_ptr", "share_ptr", "grad_ptr"), "*fp32"),
        **dict.fromkeys(("e_ptr", "power_ptr", "z_power_ptr", "slot_ptr", "token_ptr", "size_ptr"), "*i32"),
        **dict.fromkeys(("length_ptr", "count_ptr"), "*i64"), **dict.fromkeys(("alive_ptr", "mark_ptr"), "*i8"),
    }  # fmt: skip
    of_x, chunk = {"STRIDE_V": 1}, {"CHUNK": 16, "CHUNKS": 16, "KEEP": 4}
    graph = {"PER_GAP": per_gap, "EXACT": exact, "SLOTS": slots, "ROWS": 32}
    loss = {"NORMALIZED": per_gap, "REDUCTION": 2, "ZERO_INFINITY": True, "BLOCK": 64}
    gradient = {"OUT_STRIDE_V": 1, "REDUCTION": 2, "NORMALIZED": True}
    todo = [
        (lasting_triton._sums, {**of_x, **chunk, **graph, "TOKENS": 32, "TILED": tiled}),
        (lasting_triton._loss, loss),
        (lasting_triton._gradient, {**of_x, **gradient, **chunk, **graph, "ALL": 32, "TOKENS": 8, "INSERTED": per_gap}),
    ]
    rows = {"PER_GAP": per_gap, "CHUNK": 16, "ROWS": 32, "SLOTS": slots, "INSERTED": per_gap}
    todo.append((lasting_triton._row_posteriors, rows))
    if not slots:
        todo.append((lasting_triton._probabilities, {**of_x, "EXACT": exact, "BLOCK": 64, "ROWS": 32, "TILED": tiled}))
    elif not per_gap:
        blocks = {**of_x, "CHUNK": 16, "BLOCK": 256}
        todo += [
            (slots_triton.mark, {"ALIVE": 1e-7, "ODDS": 1e2, "BLOCK": 256, "ROWS": 128}),
            (slots_triton.norms, {**of_x, "BLOCK": 512, "ALIGN": 4}), (slots_triton.find, blocks),
            (slots_triton.deal, {**blocks, "PARTS": 16, "SLOTS": 64, "ROWS": 32, "SOME": 64}),
            (slots_triton.fill_dead, {**blocks, **gradient}),
        ]  # fmt: skip
    for kernel, constants in todo:
        assert_not_specialised(kernel)
        whole = {"number_ptr": "*i32"} if kernel in (slots_triton.find, slots_triton.deal) else {}
        assert compile_kernel(kernel, {**types, **whole}, constants, 4), kernel.__name__


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize(("tokens", "states"), [(128, 32), (2048, 256)])
def test_look(dtype: str, tokens: int, states: int) -> None:
    kernels = look_triton._frames, look_triton._walk, look_triton._move
    assert_not_specialised(*kernels)
    types = {"x_ptr": f"*{dtype}", "token_ptr": "*i32", "counts_ptr": "*i64", "open_ptr": "*i1"}
    sizes = {"BLOCK_V": tokens, "BLOCK_S": states}
    assert compile_kernel(kernels[0], types, {"STRIDE_V": 1, "EXACT": dtype == "fp64", **sizes}, tokens // 512 or 1)
    for some_open in (False, True):
        assert compile_kernel(kernels[1], types, {"SOME_OPEN": some_open, "BLOCK": states}, states // 32)
    rule = {"P_MIN": 0.02, "P_MAX": 0.94, "RATE": 0.04, "SHARE": 0.25}
    assert compile_kernel(kernels[2], {"counts_ptr": "*fp64"}, rule, 1)
