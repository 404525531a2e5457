"""The models on a real GPU: the same logits as on the CPU, padding that is not seen, steps that bfloat16 survives."""

import itertools

import pytest
import torch

import starseq
from starseq import models
from starseq.models import depthwise, padding
from starseq.models.depthwise import DepthwiseConv
from starseq.models.letter_to_word import LETTERS, LetterToWord

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SMALL = {"gated_conv": {"width": 0.125}, "transformer": {"layers": 4}}


@pytest.mark.parametrize("name", models.names())
def test_like_on_the_cpu(name):
    torch.manual_seed(0)
    model = models.load(name)(32, ["<blank>", *"abcdefg"], **SMALL.get(name, {})).eval()
    x, lengths = torch.rand(3, 203, 32), torch.tensor([203, 77, 0])
    with torch.no_grad():
        here, after = model(x, lengths)
        x[1, 77:] = float("nan")
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # which has ten bits
            there, _ = model.cuda()(x.cuda(), lengths.cuda())
    for b, n in enumerate(after.tolist()):
        torch.testing.assert_close(there[b, :n].cpu(), here[b, :n], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", models.names())
def test_a_step_in_mixed_precision(name):
    torch.manual_seed(0)
    model = models.load(name)(32, ["<blank>", *"abcdefg"], **SMALL.get(name, {})).cuda()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, lengths = torch.rand(4, 203, 32, device="cuda"), torch.tensor([203, 150, 77, 41], device="cuda")
    targets, labels = torch.randint(1, 8, (4, 5), device="cuda"), torch.full((4,), 5, device="cuda")
    losses = []
    for _ in range(30):
        with torch.autocast("cuda", torch.bfloat16):
            logits, frames = model(x, lengths)
        loss = starseq.stc_loss(logits, targets, frames, labels, penalty=-0.5, merge_repeats=False, batch_first=True)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def norm_and_slopes(x, grad, lengths):
    """The instance norm's result and its gradients for x, weight and bias."""
    torch.manual_seed(1)
    norm = padding.InstanceNorm(x.shape[1]).cuda()
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    norm.to(torch.promote_types(x.dtype, torch.float32))
    x = x.detach().requires_grad_()
    y = norm(x, lengths)
    return [y.detach(), *torch.autograd.grad(y, (x, norm.weight, norm.bias), grad)]


@pytest.mark.parametrize(  # every shape in one type, every type in two: each pair of them is compiled
    ("C", "H", "W", "dtype"),
    [(*shape, torch.float32) for shape in ((1, 1, 1), (3, 8, 150), (2, 16, 300), (1, 1, 9_000))]
    + [(*shape, dtype) for shape in ((5, 7, 13), (2, 32, 601)) for dtype in DTYPES],
)
def test_instance_norm(C, H, W, dtype, monkeypatch):
    """In one launch, as by torch's operations; rubbish in the padding, the same bits every time."""
    torch.manual_seed(0)
    x, grad = (torch.randn(4, C, H, W, device="cuda", dtype=torch.float64).to(dtype) for _ in range(2))
    lengths = torch.tensor([W, 0, W // 2, 1], device="cuda")
    past = ~padding.real(lengths, W)[:, None, None]
    poisoned = [each.masked_fill(past, float("nan")) for each in (x, grad)]
    first, *others = (norm_and_slopes(*poisoned, lengths) for _ in range(5))
    assert [each.dtype for each in first[:2]] == [dtype, dtype]
    assert all(each.equal(same) for other in others for each, same in zip(first, other, strict=True))
    assert not any(each[past.expand_as(x)].any() for each in first[:2])

    monkeypatch.setattr(padding, "_launched", lambda: None)
    torchs = norm_and_slopes(x, grad, lengths)
    truth = norm_and_slopes(x.double(), grad.double(), lengths)
    # torch's own error in that precision is allowed for, and a rounding of the result. Of float64 torch's own is what stands for
    # the truth, though it rounds as often: of numbers around 1, whatever is left of them.
    eps = torch.finfo(dtype).eps
    for ours, theirs, exact in zip(first, torchs, truth, strict=True):
        size = exact.abs().max().item() + (8.0 if dtype == torch.float64 else 1e-3)
        error, allowed = ((each.double() - exact).abs().max().item() for each in (ours, theirs))
        assert error <= 1.5 * allowed + 8 * eps * size, (error, allowed, size)


def test_instance_norm_of_no_images():
    x, lengths = torch.rand(0, 3, 4, 5, device="cuda"), torch.zeros(0, dtype=torch.int64, device="cuda")
    assert norm_and_slopes(x, x, lengths)[2].tolist() == [0, 0, 0]


def test_instance_norm_is_quicker_than_its_parts(monkeypatch):
    x, grad = (torch.randn(8, 1024, 8, 150, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x.requires_grad_()
    norm, lengths = padding.InstanceNorm(1024).cuda(), torch.full((8,), 150, device="cuda")
    best = {}
    for name, launched in (("ours", padding._launched()), ("parts", None)):
        monkeypatch.setattr(padding, "_launched", lambda launched=launched: launched)
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.autograd.grad(norm(x, lengths), (x, norm.weight, norm.bias), grad)
            end.record()
            torch.cuda.synchronize()
            best[name] = min(best.get(name, float("inf")), start.elapsed_time(end))
    print(f"instance norm: ours {best['ours']:.3f} ms, parts {best['parts']:.3f} ms")
    assert best["ours"] < 0.7 * best["parts"]


def conv_and_slopes(layer, x, grad):
    """A convolution's result and its gradients for x and the weights."""
    x = x.detach().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, (x, layer.weight), grad)]


@pytest.mark.parametrize(
    ("C", "H", "W", "K", "dtype"),
    [(*shape, torch.float32) for shape in ((1, 1, 1, 3), (64, 8, 150, 3), (2, 32, 601, 5))]
    + [(*shape, dtype) for shape in ((5, 7, 13, 3), (3, 16, 301, 11)) for dtype in DTYPES],
)
def test_depthwise_conv(C, H, W, K, dtype, monkeypatch):
    """As torch's own, the same bits every time, and nothing of the memory around it."""
    torch.manual_seed(0)
    x, grad = (torch.randn(4, C, H, W, device="cuda", dtype=torch.float64).to(dtype) for _ in range(2))
    layer = DepthwiseConv(C, K).to("cuda", dtype)
    rubbish = [torch.full_like(x, float("nan")) for _ in range(8)]  # what new tensors will lie on
    del rubbish
    first, *others = (conv_and_slopes(layer, x, grad) for _ in range(5))
    assert all(each.dtype == dtype for each in first)
    assert all(each.equal(same) for other in others for each, same in zip(first, other, strict=True))
    exact = DepthwiseConv(C, K).to("cuda", torch.float64)
    exact.weight.data.copy_(layer.weight)
    monkeypatch.setattr(depthwise, "_launched", lambda: None)
    truth = conv_and_slopes(exact, x.double(), grad.double())
    eps = torch.finfo(dtype).eps
    for ours, right in zip(first, truth, strict=True):
        assert (ours.double() - right).abs().max().item() <= (2 + K) * eps * (right.abs().max().item() + 1e-3)


def test_depthwise_conv_is_quicker_than_torchs(monkeypatch):
    x, grad = (torch.randn(8, 1024, 8, 150, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    layer, best = DepthwiseConv(1024, 3).to("cuda", torch.bfloat16), {}
    for name, launched in (("ours", depthwise._launched()), ("torch", None)):
        monkeypatch.setattr(depthwise, "_launched", lambda launched=launched: launched)
        for _ in range(20):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            conv_and_slopes(layer, x, grad)
            end.record()
            torch.cuda.synchronize()
            best[name] = min(best.get(name, float("inf")), start.elapsed_time(end))
    print(f"depthwise: ours {best['ours']:.3f} ms, torch's {best['torch']:.3f} ms")
    assert best["ours"] < best["torch"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_letter_to_word_is_no_slower_than_the_dense_product(dtype):
    words = itertools.islice(("".join(w) for w in itertools.product(LETTERS[:16], repeat=4)), 50_000)
    layer = LetterToWord(words).cuda()
    E = layer.E.T.contiguous().to(dtype)
    x = torch.randn(16, 188, 580, device="cuda", dtype=dtype, requires_grad=True)
    weights = torch.randn(16, 188, 50_001, device="cuda", dtype=dtype)
    best = dict.fromkeys(("ours", "dense"), float("inf"))
    for _ in range(20):
        for name, f in (("ours", layer), ("dense", lambda x: torch.nn.functional.linear(x, E))):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.autograd.grad(f(x), x, weights)
            end.record()
            torch.cuda.synchronize()
            best[name] = min(best[name], start.elapsed_time(end))
    print(
        f"{dtype}: ours {best['ours']:.3f} ms, dense {best['dense']:.3f} ms, ratio {best['ours'] / best['dense']:.2f}"
    )
    assert best["ours"] < 1.3 * best["dense"]
