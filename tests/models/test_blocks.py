"""Attention with relative positions against the plain formula; causality; layer drop."""

import math

import pytest
import torch

from starseq.models.blocks import Attention, Block, Transformer, angles, rotate
from starseq.models.padding import FrameConv, InstanceNorm, standardise


def test_attention_by_the_formula():
    torch.manual_seed(0)
    attention, heads, width = Attention(24, 3).double(), 3, 8
    x, lengths = torch.randn(2, 7, 24, dtype=torch.float64), (7, 4)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    y = attention(x, angles(7, width), mask[:, None, None])
    for b, n in enumerate(lengths):
        q, k, v = attention.inward(x[b, :n]).chunk(3, dim=1)
        heard = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = torch.empty(n, n, dtype=torch.float64)
            for i in range(n):
                for j in range(n):  # the query stands still, the key is turned by the distance
                    turn = torch.cat([torch.tensor([(j - i) * 10_000 ** (-2 * m / width)]) for m in range(width // 2)])
                    turned = rotate(k[j : j + 1, part], torch.stack((turn.cos(), turn.sin()))[:, None])[0]
                    scores[i, j] = q[i, part] @ turned / math.sqrt(width)
            heard.append(scores.softmax(1) @ v[:, part])
        torch.testing.assert_close(y[b, :n], attention.outward(torch.cat(heard, 1)), atol=1e-6, rtol=1e-5)


def test_causal_sees_no_future():
    torch.manual_seed(0)
    stack = Transformer(16, heads=2, hidden=32, layers=2, causal=True).eval()
    x = torch.randn(1, 9, 16)
    y = stack(x)
    x[0, 5:] = 7.0
    torch.testing.assert_close(stack(x)[:, :5], y[:, :5])
    assert (stack(x)[:, 5:] - y[:, 5:]).abs().max() > 1e-2
    torch.testing.assert_close(stack(x, torch.tensor([5]))[:, :5], y[:, :5])


def test_positions_are_relative_and_matter():
    """Two attention layers hear an order, but not where it stands: zeros before it that nobody looks at change nothing."""
    torch.manual_seed(0)
    attention = Attention(16, 2)
    x = torch.randn(1, 6, 16)
    later = torch.cat((torch.zeros(1, 50, 16), x), 1)
    mask = (torch.arange(56) >= 50)[None, None, None]
    y = attention(x, angles(6, 8), None)
    torch.testing.assert_close(attention(later, angles(56, 8), mask)[:, 50:], y, atol=1e-5, rtol=1e-4)
    assert (attention(x.flip(1), angles(6, 8), None).flip(1) - y).abs().max() > 1e-3


def test_layer_drop_goes_around_the_ffn():
    torch.manual_seed(0)
    block = Block(8, 2, 16, layer_drop=0.3)
    x, by = torch.randn(1, 4, 8), angles(4, 4)
    whole = block.eval()(x, by, None)
    around = x + block.attention(block.attention_norm(x), by, None)
    block.train()
    dropped = 0
    for _ in range(400):
        y = block(x, by, None)
        is_around = torch.allclose(y, around, atol=1e-6)
        assert is_around or torch.allclose(y, whole, atol=1e-6)
        dropped += is_around
    assert 90 < dropped < 150  # 120 expected, of standard deviation 9
    block.layer_drop = 0.999999
    block(x, by, None).sum().backward()
    assert all(p.grad is not None for p in block.parameters())  # DDP waits for every gradient


def test_a_deep_stack_starts_tame():
    torch.manual_seed(0)
    stack = Transformer(64, heads=4, hidden=256, layers=36)
    x = torch.randn(2, 30, 64, requires_grad=True)
    by = angles(30, 16)
    y = x
    for block in stack.blocks:
        y = block(y, by, None)
    assert y.std() < 1.5
    stack(x).square().mean().backward()
    first, last = (stack.blocks[i].ffn[0].weight.grad.norm() for i in (0, -1))
    assert 0.2 < first / last < 5


def test_frames_are_centred_on_what_they_stand_for():
    conv = FrameConv(1, 1, kernel=15, stride=8)
    conv.conv.weight.data.fill_(1.0)
    conv.conv.bias.data.zero_()
    for t in range(24):
        x = torch.zeros(1, 24, 1)
        x[0, t] = 1.0
        seen = conv(x, torch.tensor([24]))[0][0, :, 0]
        assert seen[t // 8] == 1
        assert all(seen[u] == (8 * u - 3 <= t < 8 * u + 12) for u in range(3))


@pytest.mark.parametrize("channels", [False, True])
def test_norms_far_from_zero(channels):
    """A large mean leaves the variance: the sums are centred first."""
    x = torch.randn(1, 2, 8, 50, dtype=torch.float64) + 1e3
    exact = standardise(x, torch.tensor([30]), channels=channels)
    torch.testing.assert_close(
        standardise(x.float(), torch.tensor([30]), channels=channels).double(), exact, atol=1e-3, rtol=0
    )
    assert exact[..., :30].std(correction=0) == pytest.approx(1.0, abs=1e-4)


def test_instance_norm_far_from_zero():
    torch.manual_seed(0)
    x, lengths = torch.randn(1, 2, 8, 50, dtype=torch.float64) + 1e3, torch.tensor([30])
    exact = InstanceNorm(2).double()(x, lengths)
    torch.testing.assert_close(InstanceNorm(2)(x.float(), lengths).double(), exact, atol=1e-3, rtol=0)


def test_instance_norm_is_torchs():
    torch.manual_seed(0)
    ours, theirs = InstanceNorm(3), torch.nn.InstanceNorm2d(3, affine=True)
    for norm in (ours, theirs):
        norm.weight.data.copy_(torch.tensor([1.0, 2.0, 3.0]))
        norm.bias.data.copy_(torch.tensor([4.0, 5.0, 6.0]))
    x = torch.randn(2, 3, 4, 7)
    torch.testing.assert_close(ours(x, torch.tensor([7, 7])), theirs(x), atol=1e-5, rtol=1e-4)


def test_instance_norm_has_the_gradient_of_what_it_computes():
    torch.manual_seed(0)
    norm, lengths = InstanceNorm(3).double(), torch.tensor([5, 2, 0])
    x = torch.randn(3, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    parameters = {"weight": weight, "bias": bias}
    assert torch.autograd.gradcheck(
        lambda x, *_: torch.func.functional_call(norm, parameters, (x, lengths)), (x, weight, bias)
    )


def test_compiles():
    torch.manual_seed(0)
    stack = Transformer(16, heads=2, hidden=32, layers=2, layer_drop=0.1).eval()
    compiled = torch.compile(stack, fullgraph=True, backend="eager")
    x, lengths = torch.randn(2, 9, 16), torch.tensor([9, 4])
    torch.testing.assert_close(compiled(x, lengths), stack(x, lengths))
    stack.train()
    compiled(x, lengths)
