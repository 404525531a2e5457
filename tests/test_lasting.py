"""Where tokens begin: probabilities again, by their definition; a token that lasts is one, and pays once."""

import itertools
import math

import pytest
import torch

import starseq
from starseq.lasting import onsets


def by_definition(p, blank):
    """p: (T, V). Frame by frame, token by token."""
    result = torch.zeros_like(p)
    for t, v in itertools.product(range(p.shape[0]), range(p.shape[1])):
        before = p[t - 1, v] if t else 0.0
        if v == blank:
            result[t, v] += p[t, v]
        else:
            result[t, v] += p[t, v] * (1 - before)
            result[t, blank] += p[t, v] * before
    return result


@pytest.mark.parametrize("blank", [0, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_definition(blank, dtype):
    logits = 2 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    found = onsets(logits, blank=blank)
    assert found.dtype == dtype
    torch.testing.assert_close(found.exp(), by_definition(logits.softmax(-1), blank))
    torch.testing.assert_close(found.logsumexp(-1), torch.zeros(6, dtype=dtype), atol=1e-6, rtol=0)


def test_layouts():
    logits = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(0))
    found = onsets(logits)
    torch.testing.assert_close(onsets(logits.transpose(0, 1), batch_first=True), found.transpose(0, 1))
    torch.testing.assert_close(onsets(logits[:, 1]), found[:, 1])
    torch.testing.assert_close(onsets(logits[:, 1], batch_first=True), found[:, 1])
    torch.testing.assert_close(onsets(logits.log_softmax(-1)), found)
    assert onsets(logits[:0]).shape == (0, 3, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype):
    logits = torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = onsets(logits)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, onsets(logits.float()))


@pytest.mark.parametrize(("logits", "blank", "name"), [
    (torch.zeros(3), 0, "logits"), (torch.zeros(2, 3, 0), 0, "logits"), (torch.zeros(2, 3, dtype=torch.int64), 0, "logits"),
    ([[0.0, 1.0]], 0, "logits"), (torch.zeros(2, 3), 3, "blank: 3"), (torch.zeros(2, 3), -1, "blank: -1"),
])  # fmt: skip
def test_mistakes(logits, blank, name):
    with pytest.raises(ValueError, match=name):
        onsets(logits, blank=blank)


def test_a_frame_sees_the_one_before_and_no_other():
    """So padding behind an utterance changes nothing in it, and NaN stays where it is."""
    logits = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[5] = math.nan
    same = torch.isclose(onsets(logits), onsets(other)).all(-1)
    assert same.tolist() == [True] * 5 + [False] * 2 + [True] * 2


def test_gradient():
    logits = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(onsets, (logits,))


@pytest.mark.parametrize("size", [1.0, 20.0, 500.0])
def test_sure_frames_have_finite_scores_and_gradients(size):
    path = torch.tensor([1, 1, 0, 2, 2, 2, 1])
    logits = (size * torch.nn.functional.one_hot(path, 4)).float().requires_grad_()
    found = onsets(logits)
    assert found.isfinite().all()
    starseq.stc_loss(found[:, None], torch.tensor([[1, 1]]), (7,), (2,)).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() < 10


@pytest.mark.parametrize("size", [1.0, 10.0, 17.0, 30.0, 80.0])
def test_what_is_left_beside_a_sure_token_is_not_lost(size):
    """It is sure on both frames and must begin on both: log(1 - P) is log 2 - size, and pulls at the others, however small."""
    logits = torch.tensor([[0.0, size, 0.0]] * 2, requires_grad=True)
    found = onsets(logits)[1, 1]
    total = math.log(2 + math.exp(size))
    assert found.item() == pytest.approx((size - total) + (math.log(2) - total), rel=1e-6)
    found.backward()
    p = math.exp(size - total)
    torch.testing.assert_close(logits.grad[0], torch.tensor([0.5 - (1 - p) / 2, -p, 0.5 - (1 - p) / 2]))


@pytest.mark.parametrize("size", [10.0, 17.0, 30.0])
def test_single_precision_loses_nothing_of_a_loss_with_repeats(size):
    """Three frames, two of them for the same label: it must begin anew where the model is sure that it lasts."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 6, generator=generator) + size * torch.nn.functional.one_hot(torch.tensor([2, 2, 2]), 6)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        x = logits.clone().to(dtype).requires_grad_()
        starseq.stc_loss(onsets(x)[:, None], torch.tensor([[2, 2]]), (3,), (2,), reduction="sum").backward()
        gradients.append(x.grad.double())
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=0)
    assert gradients[1].abs().max() > 0.1


def test_an_improbable_blank_is_no_more_probable():
    logits = torch.tensor([[-200.0, 0.0, 0.0], [-200.0, 0.0, -300.0]], requires_grad=True)
    found = onsets(logits)
    half = math.log(0.5)
    torch.testing.assert_close(found[:, 0], torch.tensor([-200.0 + half, half]))
    found[0, 0].backward()
    torch.testing.assert_close(logits.grad[0], torch.tensor([1.0, -0.5, -0.5]))


def test_a_frame_that_no_token_fits():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    logits[1] = -math.inf
    logits.requires_grad_()
    found = onsets(logits)
    assert (found[1] == -math.inf).all()
    torch.testing.assert_close(found[2], logits[2].log_softmax(-1))  # after it all begins
    loss = starseq.stc_loss(found[:, None], torch.tensor([[2]]), (4,), (1,))
    assert loss == math.inf
    loss.backward()
    assert (logits.grad == 0).all()
    (gradient,) = torch.autograd.grad(onsets(logits)[[0, 2, 3]].sum(), logits)
    assert gradient.isfinite().all()


def test_a_token_that_is_alone_cannot_begin_again():
    logits = torch.tensor([[-math.inf, 3.0, -math.inf]] * 2, requires_grad=True)
    found = onsets(logits)
    torch.testing.assert_close(found.exp(), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    loss = starseq.stc_loss(found[:, None], torch.tensor([[1]]), (2,), (1,))
    assert loss == 0
    loss.backward()
    assert (logits.grad == 0).all()


def test_a_token_without_any_probability():
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    logits[:, 3] = -math.inf
    logits.requires_grad_()
    found = onsets(logits)
    assert (found[:, 3] == -math.inf).all()
    found[:, :3].sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("labels", [[1], [2, 3], [2, 2], [2, 3, 3], [2, 3, 2, 3]])
def test_stc_pays_once_for_a_token_that_lasts(labels):
    """Sure frames a a b - a b b: collapsed a b a b, of which those that are no labels are inserted."""
    path = torch.tensor([2, 2, 3, 0, 2, 3, 3])
    logits = 60.0 * torch.nn.functional.one_hot(path, 4).double()
    loss = starseq.stc_loss(onsets(logits)[:, None], torch.tensor([labels]), (7,), (len(labels),), penalty=math.log(0.25),
                            reduction="sum")  # fmt: skip
    read, matched = [2, 3, 2, 3], 0
    for token in read:
        matched += matched < len(labels) and token == labels[matched]
    if matched < len(labels):
        assert loss > 20
    else:
        assert loss.item() == pytest.approx((len(read) - len(labels)) * math.log(4))
