"""What every model keeps: lengths, padding that is not seen, any T, mixed precision; found by being there."""

import inspect

import pytest
import torch

import starseq
from starseq import models
from starseq.models.padding import frames_after

TOKENS = ["<blank>", *"abcdefg"]
# Small forms of the large ones: the same code.
SMALL = {
    "conv_small": {},
    "crnn": {"channels": 4, "hidden": 16},
    "gated_conv": {"width": 0.0625, "stem": 5, "layers": 4},
    "transformer": {"width": 32, "hidden": 64, "layers": 3},
    "transformer_small": {"width": 32, "hidden": 64, "layers": 2},
}
HEIGHT = 32


def small(name, inputs=HEIGHT, **settings):
    torch.manual_seed(0)
    return models.load(name)(inputs, TOKENS, **(SMALL[name] | settings))


def without_chance(model):
    """In training mode, but with nothing drawn."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.LSTM) or hasattr(module, "causal"):
            module.dropout = 0.0
        if hasattr(module, "layer_drop"):
            module.layer_drop = 0.0
    return model.train()


@pytest.fixture(params=sorted(set(models.names()) - {"hf"}))
def name(request):
    return request.param


def test_a_name_that_is_no_model_is_named():
    with pytest.raises(ValueError, match="model: 'blocks' is none of conv_small, crnn"):
        models.load("blocks")


def test_signature(name):
    parameters = list(inspect.signature(models.load(name)).parameters.values())
    assert [p.name for p in parameters[:2]] == ["inputs", "tokens"]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[2:])


@pytest.mark.parametrize("T", [0, 1, 3, 8, 9, 41])
def test_frames_are_ceil_of_t_over_stride(name, T):
    model = small(name).eval()
    lengths = torch.tensor([T, T // 2, 0])
    logits, after = model(torch.randn(3, T, HEIGHT), lengths)
    assert logits.shape == (3, -(-T // model.stride), len(TOKENS))
    assert after.equal(frames_after(lengths, model.stride))
    assert after.equal(model.output_lengths(lengths))
    assert logits.isfinite().all()


@pytest.mark.parametrize(("mode", "garbage"), [("eval", 1e4), ("eval", float("nan")), ("train", float("inf"))])
def test_padding_is_not_seen(name, mode, garbage):
    """An utterance has the same logits and gradients alone and in a batch with rubbish after it."""
    model = small(name)
    model = model.eval() if mode == "eval" else without_chance(model)
    x, lengths = torch.rand(4, 43, HEIGHT), torch.tensor([43, 18, 1, 0])
    for b, length in enumerate(lengths):
        x[b, length:] = garbage
    together, after = model(x, lengths)
    alone = [model(x[b : b + 1, :n], lengths[b : b + 1])[0][0] for b, n in enumerate(lengths.tolist())]
    for b, n in enumerate(after.tolist()):
        torch.testing.assert_close(together[b, :n], alone[b], atol=2e-5, rtol=1e-4)

    torch.cat([together[b, :n] for b, n in enumerate(after.tolist())]).square().sum().backward()
    gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    torch.cat(alone).square().sum().backward()
    for key, p in model.named_parameters():
        torch.testing.assert_close(gradients[key], p.grad, atol=1e-4 * p.grad.abs().max().item() + 1e-5, rtol=1e-3)


def test_the_last_real_frame_is_seen(name):
    model = small(name).eval()
    x, lengths = torch.rand(1, 30, HEIGHT), torch.tensor([29])
    before = model(x, lengths)[0]
    x[0, 28] += 1.0
    assert (model(x, lengths)[0] - before)[0, -1].abs().max() > 1e-4


def test_deterministic(name):
    x, lengths = torch.rand(2, 20, HEIGHT), torch.tensor([20, 13])

    def run():
        model = small(name).train()
        torch.manual_seed(1)
        logits, _ = model(x, lengths)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters())]

    assert all(a.equal(b) for a, b in zip(run(), run(), strict=True))


def test_mixed_precision(name):
    model = small(name).eval()
    x, lengths = torch.rand(2, 40, HEIGHT), torch.tensor([40, 25])
    exact, after = model(x, lengths)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, _ = model(x, lengths)
    targets = torch.tensor([[1, 2], [3, 0]])
    loss = starseq.stc_loss(logits, targets, after, (2, 1), penalty=-0.5, batch_first=True)
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())
    for b, n in enumerate(after.tolist()):
        # Untrained and given noise, gated_conv takes means over noise: of its bfloat16 little else is left.
        assert (logits[b, :n].float() - exact[b, :n]).norm() < 0.35 * exact[b, :n].norm()


def test_nothing_saved_depends_on_the_length(name):
    model = small(name).eval()
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    with torch.no_grad():
        for T in (5, 700):
            assert model(torch.rand(1, T, HEIGHT), torch.tensor([T]))[0].isfinite().all()
    assert shapes == {key: value.shape for key, value in model.state_dict().items()}
    assert set(shapes) == {key for key, _ in model.named_parameters()}


def test_every_parameter_learns(name):
    model = without_chance(small(name))
    logits, lengths = model(torch.rand(2, 60, HEIGHT), torch.tensor([60, 50]))
    loss = starseq.ctc_loss(logits, torch.tensor([[1, 2], [3, 4]]), lengths, (2, 2), batch_first=True)
    loss.backward()
    still = [key for key, p in model.named_parameters() if not p.grad.any()]
    assert not still


@pytest.mark.parametrize("height", [30, 32, 64])
def test_heights(height):
    for reader in ("crnn", "gated_conv", "conv_small"):
        model = small(reader, inputs=height)
        assert model(torch.rand(1, 21, height), torch.tensor([21]))[0].shape == (1, 6, len(TOKENS))


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_strides(stride):
    for reader in ("crnn", "conv_small", "transformer_small"):
        model = small(reader, stride=stride).eval()
        x = torch.rand(2, 21, HEIGHT)
        logits, lengths = model(x, torch.tensor([21, 10]))
        assert logits.shape[1] == -(-21 // stride)
        torch.testing.assert_close(
            logits[1, : lengths[1]], model(x[1:, :10], torch.tensor([10]))[0][0], atol=1e-5, rtol=1e-4
        )


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="stride is a power of two up to 16; got 3"):
        small("crnn", stride=3)
    with pytest.raises(ValueError, match="stride is between 1 and the kernel, 15, so that no frame is skipped; got 16"):
        small("transformer", stride=16)
    with pytest.raises(ValueError, match="width is a multiple of twice the heads; got 30 and 4"):
        small("transformer", width=30)
    with pytest.raises(ValueError, match=r"layer_drop is a probability below 1; got 1\.5"):
        small("transformer", layer_drop=1.5)
    with pytest.raises(ValueError, match="layers are more than 2"):
        small("gated_conv", layers=2)
    with pytest.raises(ValueError, match=r"dropout is a probability below 1; got 1\.0"):
        small("gated_conv", dropout=1.0)


def test_gated_conv_drops_in_training_alone():
    """And never fills padding: a padded line is read as the line alone."""
    model, plain = small("gated_conv", dropout=0.5), small("gated_conv")
    x, lengths = torch.rand(1, 40, HEIGHT), torch.tensor([30])
    x[:, 30:] = 0
    dropped = []
    model.dropout.register_forward_hook(lambda module, inputs, output: dropped.append(module))
    assert not torch.equal(model(x, lengths)[0], model(x, lengths)[0])
    assert len(dropped) == 2 * (SMALL["gated_conv"]["layers"] + 1)  # what each block adds, and what is read
    torch.testing.assert_close(model.eval()(x, lengths)[0], plain.eval()(x, lengths)[0])
    torch.testing.assert_close(model(x, lengths)[0][:, :8], model(x[:, :30], lengths)[0])


@pytest.mark.parametrize("frames", [1, 32, 45, 100])
def test_rows_of_the_handwriting_model_are_aligned_and_gradients_lie_as_they_do(frames):
    """Else its kernels read value by value, and copy every gradient."""
    model, seen = small("gated_conv"), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[3]))
        block.register_full_backward_hook(lambda _, __, grads: seen.append(grads[0].is_contiguous()))
    logits, _ = model(torch.randn(2, frames, HEIGHT), torch.tensor([frames, frames]))
    assert logits.shape[1] == frames_after(frames, model.stride)
    logits.sum().backward()
    widths, layouts = seen[: len(model.blocks)], seen[len(model.blocks) :]
    assert [width % 8 for width in widths] == [0] * len(model.blocks)
    assert layouts == [True] * len(model.blocks)
