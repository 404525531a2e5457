"""The models on a real GPU: the same logits as on the CPU, padding that is not seen, steps that bfloat16 survives."""

import itertools

import pytest
import torch

import starseq
from starseq import models
from starseq.models.letter_to_word import LETTERS, LetterToWord

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SMALL = {"gated_conv": {"width": 0.125}, "transformer": {"layers": 4}}


@pytest.mark.parametrize("name", models.names())
def test_like_on_the_cpu(name):
    torch.manual_seed(0)
    model = models.load(name)(32, ["<blank>", *"abcdefg"], **SMALL.get(name, {})).eval()
    x, lengths = torch.rand(3, 203, 32), torch.tensor([203, 77, 0])
    with torch.no_grad():
        here, after = model(x, lengths)
        x[1, 77:] = float("nan")
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
        loss = starseq.stc_loss(logits, targets, frames, labels, batch_first=True)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


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
