"""Convolutions within each channel: the kernels, in the interpreter, against torch's own, value and gradients; and they compile.

The interpreter is chosen when kernels are defined, so these tests run in a process of their own, which the first one starts.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.interpreter import inside, outside, run_again
from torch import Tensor

from starseq.models import depthwise
from starseq.models.depthwise import DepthwiseConv

pytest.importorskip("triton")
from starseq.models import depthwise_triton

# The interpreter cuts bfloat16 off where a GPU rounds.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@outside
def test_in_the_interpreter() -> None:
    run_again(__file__)


def images(C: int, H: int, W: int, K: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x, its gradient, and weights, which are float32 unless x is float64."""
    generator = torch.Generator().manual_seed(H * W)
    x, grad = (torch.randn(2, C, H, W, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    weight = torch.randn(C, 1, K, K, generator=generator, dtype=torch.promote_types(dtype, torch.float32))
    return x, grad, weight


def slopes(f, x: Tensor, grad: Tensor, weight: Tensor) -> list[Tensor]:
    """The result and the gradients for x and the weights."""
    leaves = [each.detach().requires_grad_() for each in (x, weight)]
    y = f(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]


def by_torch(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=len(weight))


@inside
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("C", "H", "W", "K"),
    [
        *((1, 1, 1, 3), (3, 5, 7, 3), (2, 8, 70, 3), (1, 3, 256, 3), (1, 3, 517, 3), (2, 1, 9, 3)),
        *((2, 4, 9, 1), (3, 6, 5, 5), (1, 7, 9, 11)),
    ],
)
def test_like_torch(C: int, H: int, W: int, K: int, dtype: torch.dtype) -> None:
    """Channels of part of a block, of many, rows longer than a block; kernels larger than the image."""
    x, grad, weight = images(C, H, W, K, dtype)
    truth = slopes(by_torch, x.double(), grad.double(), weight.double())
    ours = slopes(depthwise_triton.depthwise, x, grad, weight)
    assert [each.dtype for each in ours] == [dtype, dtype, weight.dtype]
    for one, other in zip(ours[:2], truth[:2], strict=True):
        bound = TOLERANCE[dtype]
        torch.testing.assert_close(one.double(), other, rtol=bound, atol=1e-12 if dtype == torch.float64 else 8e-6)
    bound = TOLERANCE[torch.float64 if dtype == torch.float64 else torch.float32]  # a sum in float32 or better
    torch.testing.assert_close(ours[2].double(), truth[2], rtol=bound, atol=bound * (H * W) ** 0.5 * 4)


@inside
def test_gradcheck() -> None:
    x, _, weight = images(2, 3, 4, 3)
    leaves = [each.requires_grad_() for each in (x, weight)]
    assert torch.autograd.gradcheck(depthwise_triton.depthwise, leaves, fast_mode=True)


@inside
def test_any_layout() -> None:
    """Images with the channels last, weights that lie apart, a gradient that is one number."""
    x, _, weight = images(3, 4, 6, 3)
    grad = torch.tensor(0.5, dtype=x.dtype).expand_as(x)
    last, apart = x.contiguous(memory_format=torch.channels_last), torch.stack((weight, -weight), 4)[..., 0]
    assert not last.is_contiguous()
    assert not apart.is_contiguous()
    ours = slopes(depthwise_triton.depthwise, last, grad, apart)
    torch.testing.assert_close(ours, slopes(by_torch, x, grad, weight))


@inside
def test_what_is_not_asked_for_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad, weight = images(2, 3, 4, 3)
    made: list[str] = []
    for name in ("_convolve", "_correlate"):
        real = getattr(depthwise_triton, name)
        monkeypatch.setattr(
            depthwise_triton, name, lambda *args, name=name, real=real, **more: made.append(name) or real(*args, **more)
        )
    torch.autograd.grad(depthwise_triton.depthwise(x, weight.requires_grad_()), weight, grad)
    assert made == ["_convolve", "_correlate"]
    torch.autograd.grad(depthwise_triton.depthwise(x.requires_grad_(), weight.detach()), x, grad)
    assert made[2:] == ["_convolve", "_convolve"]


@inside
@pytest.mark.parametrize("shape", [(0, 3, 4, 6), (2, 3, 4, 0)])
def test_nothing(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    y, for_x, for_weight = slopes(depthwise_triton.depthwise, x, x, torch.ones(3, 1, 3, 3))
    assert y.shape == for_x.shape == shape
    assert not for_weight.any()


def test_one_device() -> None:
    x, _, weight = images(1, 2, 3, 3)
    with pytest.raises(ValueError, match="on one device; got cpu and meta"):
        depthwise_triton.depthwise(x, weight.to("meta"))


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (2, 1, 3, 5), (2, 1, 2, 2), (2, 2, 3, 3)])
def test_shapes_that_do_not_belong_together(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"K odd; got images \(4, 2, 5, 6\), weight"):
        depthwise_triton.depthwise(torch.zeros(4, 2, 5, 6), torch.zeros(shape))


def test_one_image_alone_is_no_batch() -> None:
    with pytest.raises(ValueError, match=r"got images \(3, 3, 6\), weight"):
        depthwise_triton.depthwise(torch.zeros(3, 3, 6), torch.zeros(3, 1, 3, 3))


@pytest.mark.parametrize(("image", "weight"), [(torch.int64, torch.int64), (torch.float32, torch.bfloat16)], ids=str)
def test_types_that_do_not_belong_together(image: torch.dtype, weight: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"as exact as the images, or more; got images {image}, weight {weight}"):
        depthwise_triton.depthwise(torch.zeros(1, 2, 3, 4, dtype=image), torch.zeros(2, 1, 3, 3, dtype=weight))


def test_a_kernel_without_a_centre() -> None:
    with pytest.raises(ValueError, match="odd, so that it has a centre; got 4"):
        DepthwiseConv(3, 4)


class OnCuda(Tensor):
    """Says that it is there."""

    is_cuda = True


def test_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert depthwise._launched() is depthwise_triton.depthwise
    launched: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(depthwise, "_launched", lambda: lambda *args: launched.append(args) or args[0])
    layer, x = DepthwiseConv(3, 3), torch.rand(1, 3, 4, 5)
    layer(x)
    assert not launched
    layer(x.as_subclass(OnCuda))
    assert launched[0][1] is layer.weight
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    layer(x.as_subclass(OnCuda))
    assert launched[1][0].dtype == torch.bfloat16
    layer.double()(x.double().as_subclass(OnCuda))
    assert launched[2][0].dtype == torch.float64
    layer.float()
    monkeypatch.setattr(depthwise, "_launched", lambda: None)
    torch.testing.assert_close(layer(x.as_subclass(OnCuda)), by_torch(x, layer.weight), check_dtype=True)


KERNELS = (
    (depthwise_triton._convolution, {"TURNED": True, "K": 11}),
    (depthwise_triton._correlation, {"K": 11}),
    (depthwise_triton._convolution_down, {"TURNED": True}),
    (depthwise_triton._correlation_down, {}),
)


@outside
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_compiles_for_hopper(dtype: str) -> None:
    from tests.test_triton_compiles import compile_kernel

    types = dict.fromkeys(("x_ptr", "out_ptr", "grad_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("weight_ptr", "parts_ptr"), "*fp32")
    for function, constants in KERNELS:
        block, warps, _ = depthwise_triton._columns(300)
        assert compile_kernel(function, types, {"EXACT": False, "BLOCK": block, **constants}, warps)


@outside
def test_integers_are_not_specialised() -> None:
    from tests.test_triton_compiles import assert_not_specialised

    assert_not_specialised(*(function for function, _ in KERNELS))
