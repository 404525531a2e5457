"""The small models learn to read lines of digits in a few hundred steps, and leave the all-blank plateau that CTC begins with."""

import random

import pytest
import torch

import starseq
from starseq import models
from starseq.models.crnn import Stage


def test_there_is_a_way_around_the_second_convolution():
    torch.manual_seed(0)
    stage = Stage(3, 4, deep=True, pool=1)
    x, lengths = torch.randn(2, 3, 8, 9), torch.tensor([9, 5])
    first = torch.relu(stage.norms[0](stage.convs[0](x), lengths))
    stage.norms[1].weight.data.zero_()
    torch.testing.assert_close(stage(x, lengths)[0], torch.nn.functional.max_pool2d(first, (2, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "lr", "steps"),
    [
        ("conv_small", {}, 0.003, 400),
        ("crnn", {"channels": 16, "hidden": 128}, 0.001, 250),
        ("transformer_small", {"width": 144, "hidden": 576, "layers": 4}, 0.001, 600),
    ],
)
def test_learns(name, settings, lr, steps):
    digits = pytest.importorskip("starseq.corpora.digits")
    pytest.importorskip("sklearn")
    pool, draw = digits.digit_pools()["train"], random.Random(0)
    torch.manual_seed(0)
    model = models.load(name)(digits.HEIGHT, ["<blank>", *"0123456789"], **settings)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr)
    warm = torch.optim.lr_scheduler.LinearLR(optimiser, 0.02, 1.0, 50)
    losses = []
    for _ in range(steps):
        lines = [digits.compose(pool, draw) for _ in range(8)]
        images = [torch.from_numpy(255 - pixels.T).float() / 255 for _, pixels in lines]
        labels = [torch.tensor([1 + int(digit) for digit in text]) for text, _ in lines]
        logits, lengths = model(
            torch.nn.utils.rnn.pad_sequence(images, batch_first=True), torch.tensor([len(image) for image in images])
        )
        targets = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)
        counts = [len(label) for label in labels]
        loss = starseq.ctc_loss(logits, targets, lengths, counts, batch_first=True, reduction="none").mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        optimiser.zero_grad()
        warm.step()
        losses.append(loss.item())
    assert sum(losses[-50:]) / 50 < 5  # all blank: about 16
