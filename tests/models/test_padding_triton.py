"""The instance norm in one launch: what torch's operations make of it, value and gradients, in the interpreter; and it compiles.

The interpreter is chosen when kernels are defined, so these tests run in a process of their own, which the first one starts.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import torch
from tests.interpreter import inside, outside, run_again
from torch import Tensor

from starseq import models
from starseq.models import padding
from starseq.models.padding import InstanceNorm

pytest.importorskip("triton")
from starseq.models import padding_triton

# The interpreter cuts bfloat16 off where a GPU rounds.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-11}
POISON = (math.nan, math.inf, -math.inf)


@outside
def test_in_the_interpreter() -> None:
    run_again(__file__)


def images(C: int, H: int, W: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """x, its gradient, weight, bias, lengths: full, none, half, one column. Weights are float32 unless x is float64."""
    generator = torch.Generator().manual_seed(H * W)
    x, grad = (torch.randn(4, C, H, W, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    weight, bias = torch.randn(2, C, generator=generator, dtype=torch.promote_types(dtype, torch.float32))
    return x + 1, grad, weight, bias, torch.tensor([W, 0, W // 2, 1])


def by_torch(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> list[Tensor]:
    """The result and the gradients for x, weight and bias, in float64."""
    norm = InstanceNorm(len(weight)).double()
    norm.weight.data.copy_(weight)
    norm.bias.data.copy_(bias)
    x = x.double().requires_grad_()
    y = norm(x, lengths)
    return [y.detach(), *torch.autograd.grad(y, (x, norm.weight, norm.bias), grad.double())]


def by_triton(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in (x, weight, bias)]
    y = padding_triton.instance_norm(*leaves, lengths)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def poisoned(x: Tensor, lengths: Tensor) -> Tensor:
    """x with NaN and inf past the lengths."""
    x = x.clone()
    for b, length in enumerate(lengths.tolist()):
        rubbish = torch.tensor(POISON, dtype=x.dtype).repeat(x.shape[3])
        x[b, :, :, length:] = rubbish[: x.shape[3] - length]
    return x


@inside
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("C", "H", "W"),
    [(1, 1, 1), (3, 5, 7), (2, 8, 70), (1, 3, 517), (1, 8, 512), (1, 1, 4_099), (1, 33, 251)],
)
def test_like_torch(C: int, H: int, W: int, dtype: torch.dtype) -> None:
    """Channels of part of a block, of many, rows longer than a block, aligned and odd; rubbish past every length."""
    x, grad, weight, bias, lengths = images(C, H, W, dtype)
    exact = dtype == torch.float64
    truth = by_torch(x, grad, weight, bias, lengths)
    ours = by_triton(poisoned(x, lengths), poisoned(grad, lengths), weight, bias, lengths)
    assert [each.dtype for each in ours] == [dtype, dtype, weight.dtype, weight.dtype]
    for b, length in enumerate(lengths.tolist()):
        for each in ours[:2]:
            assert not each[b, :, :, length:].any()
    for one, other in zip(ours[:2], truth[:2], strict=True):
        torch.testing.assert_close(one.double(), other, rtol=TOLERANCE[dtype], atol=1e-11 if exact else 4e-6)
    for one, other in zip(ours[2:], truth[2:], strict=True):  # sums over all pixels, in float32 or better
        bound = TOLERANCE[torch.float64 if exact else torch.float32]
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=bound * math.sqrt(H * W) * 4)


@inside
def test_gradcheck() -> None:
    x, _, weight, bias, lengths = images(2, 2, 3)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *args: padding_triton.instance_norm(*args, lengths), leaves, fast_mode=True)


@inside
def test_a_large_mean_does_not_hide_the_variance() -> None:
    x, grad, weight, bias, lengths = images(2, 9, 11, torch.float32)
    x += 1e4
    truth = by_torch(x, grad, weight, bias, lengths)
    for one, other in zip(by_triton(x, grad, weight, bias, lengths), truth, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=5e-3, atol=5e-3)


@inside
def test_any_layout() -> None:
    """Images with the channels last, a gradient that is one number, lengths that lie apart, of any integer type."""
    x, _, weight, bias, lengths = images(3, 4, 6)
    grad = torch.tensor(0.5, dtype=x.dtype).expand_as(x)
    truth = by_torch(x, grad, weight, bias, lengths)
    apart = torch.stack((lengths, -lengths), 1).to(torch.int16)[:, 0]
    last = x.contiguous(memory_format=torch.channels_last)
    assert not last.is_contiguous()
    assert not apart.is_contiguous()
    torch.testing.assert_close(by_triton(last, grad, weight, bias, apart), truth)


@inside
def test_nothing_saved_but_what_came_in() -> None:
    """Two numbers a channel of an image, besides the arguments."""
    arguments = x, weight, bias, lengths = [images(3, 4, 6)[i] for i in (0, 2, 3, 4)]
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        padding_triton.instance_norm(x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), lengths)
    places = {each.data_ptr() for each in arguments}
    assert sum(each.numel() for each in saved if each.data_ptr() not in places) == 2 * 4 * 3


@inside
def test_no_images() -> None:
    x, grad, weight, bias, lengths = images(3, 4, 6)
    y, for_x, for_weight, for_bias = by_triton(x[:0], grad[:0], weight, bias, lengths[:0])
    assert y.shape == for_x.shape == (0, 3, 4, 6)
    assert for_weight.tolist() == for_bias.tolist() == [0, 0, 0]


@inside
def test_no_second_gradient() -> None:
    x, _, weight, bias, lengths = images(1, 2, 3)
    y = padding_triton.instance_norm(x.requires_grad_(), weight, bias, lengths)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@inside
def test_in_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = models.load("crnn")(32, ["<blank>", "a", "b"], channels=1, hidden=4, dropout=0.0)
    x, lengths = torch.rand(2, 13, 32), torch.tensor([13, 6])

    def run() -> list[Tensor]:
        model.zero_grad()
        logits, _ = model(x, lengths)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters())]

    truth = run()
    launched = padding_triton.instance_norm
    monkeypatch.setattr(InstanceNorm, "forward", lambda norm, x, n: launched(x, norm.weight, norm.bias, n))
    torch.testing.assert_close(run(), truth, rtol=1e-4, atol=1e-4)


def test_one_device() -> None:
    x, _, weight, bias, lengths = images(1, 2, 3)
    with pytest.raises(ValueError, match="on one device; got cpu, meta and cpu"):
        padding_triton.instance_norm(x, weight, bias, lengths.to("meta"))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_shapes_that_do_not_belong_together(cut: int) -> None:
    x, _, weight, bias, lengths = images(2, 2, 3)
    arguments = [x, weight, bias, lengths]
    arguments[cut] = arguments[cut][:1]
    with pytest.raises(ValueError, match=r"got images \(4, 2, 2, 3\), lengths"):
        padding_triton.instance_norm(*arguments)


class OnCuda(Tensor):
    """Says that it is there."""

    is_cuda = True


def test_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert padding._launched() is padding_triton.instance_norm
    launched: list[tuple[Tensor, ...]] = []
    monkeypatch.setattr(padding, "_launched", lambda: lambda *args: launched.append(args) or args[0])
    norm, lengths = InstanceNorm(1), torch.tensor([3])
    here = torch.rand(1, 1, 2, 3)
    there = here.as_subclass(OnCuda)
    truth = norm(here, lengths)
    assert not launched
    assert norm(there, lengths) is there
    assert launched == [(there, norm.weight, norm.bias, lengths)]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(norm(there, lengths), truth)
    monkeypatch.undo()
    monkeypatch.setattr(padding, "_launched", lambda: None)
    assert torch.equal(norm(there, lengths), truth)


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(padding.importlib.util, "find_spec", lambda name: None)
    padding._launched.cache_clear()
    yield
    padding._launched.cache_clear()


@pytest.mark.usefixtures("without_triton")
def test_without_triton() -> None:
    assert padding._launched() is None


@outside
def test_models_do_not_need_triton() -> None:
    """Nor does it cost them the time to import it."""
    code = "import sys; from starseq import models; print(models.names()); assert 'triton' not in sys.modules"
    assert (
        "gated_conv" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


@outside
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("pixels", [1_200, 8_000, 19_200, 19_201])
def test_compiles_for_hopper(pixels: int, dtype: str) -> None:
    """And where channels begin at multiples of 16 bytes, all pixels are read and written 16 bytes at a time."""
    from tests.test_triton_compiles import compile_kernel

    exact = dtype == "fp64"
    types = dict.fromkeys(("x_ptr", "out_ptr", "grad_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("weight_ptr", "bias_ptr", "moments_ptr", "parts_ptr"), "*fp64" if exact else "*fp32")
    block, warps, whole, align = padding_triton._blocks(pixels)
    assert whole == (pixels < 8192)
    constants = {"EXACT": exact, "WHOLE": whole, "ALIGN": align, "BLOCK": block}
    for kernel, numbers in (
        (padding_triton._forward, 5),
        (padding_triton._backward, 6),
    ):  # length, weight, moments, ...
        ptx = compile_kernel(kernel, types, constants, warps)
        accesses = re.findall(r"(?:ld|st)\.global\S*", ptx)
        narrow = [access for access in accesses if not access.endswith((".v4.b32", ".v2.b64"))]
        assert len(accesses) > numbers
        assert len(narrow) == (numbers if align > 1 else len(accesses)), accesses


@outside
def test_integers_are_not_specialised() -> None:
    from tests.test_triton_compiles import assert_not_specialised

    assert_not_specialised(padding_triton._forward, padding_triton._backward)
