"""The published models, parameter by parameter."""

import itertools

import pytest
import torch

from starseq import models
from starseq.models.letter_to_word import LETTERS

WORDS = ["<blank>", *itertools.islice(("".join(w) for w in itertools.product(LETTERS[:16], repeat=4)), 50_000)]
CHARACTERS = ["<blank>", *map(chr, range(48, 48 + 79))]  # as many as IAM has
LETTER_FORM = {"kernel": 7, "stride": 3, "width": 768, "dropout": 0.2, "front_dropout": 0.2, "layer_drop": 0.2}


def block(width, hidden):
    return 4 * width * (width + 1) + hidden * (width + 1) + width * (hidden + 1) + 4 * width


def words(width, hidden):
    """Convolution to twice the width, 36 blocks, the last norm, a linear layer to 20 positions of 29 letters; E is not learned."""
    return 2 * width * (80 * 15 + 1) + 36 * block(width, hidden) + 2 * width + 580 * (width + 1)


@pytest.mark.parametrize(
    ("name", "inputs", "tokens", "settings", "count", "stride"),
    [
        # published: "70M", which these settings do not give; 36 blocks of width 384 with FFN 3072 are 107M
        ("transformer", 80, WORDS, {}, 107_549_764, 8),
        # the form nearest to the stated 70M
        ("transformer", 80, WORDS, {"hidden": 1536}, 65_027_140, 8),
        # published: about 260M
        (
            "transformer",
            80,
            ["<blank>", *map(str, range(28))],
            {**LETTER_FORM, "letter_to_word": False},
            256_048_925,
            3,
        ),
        # published: about 39M
        ("gated_conv", 32, CHARACTERS, {}, 38_975_141, 4),
        # ours
        ("crnn", 64, CHARACTERS, {}, 4_116_912, 4),
        ("crnn", 32, CHARACTERS, {}, 3_985_840, 4),
        ("transformer_small", 80, CHARACTERS, {}, 5_128_784, 4),
    ],
)
def test_size(name, inputs, tokens, settings, count, stride):
    with torch.device("meta"):  # shapes without memory
        model = models.load(name)(inputs, tokens, **settings)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.stride == stride


def test_sizes_by_hand():
    assert words(384, 3072) == 107_549_764
    assert words(384, 1536) == 65_027_140


def test_the_word_model_ends_in_words():
    model = models.load("transformer")(80, WORDS, width=16, hidden=16, layers=1)
    logits, lengths = model(torch.randn(1, 100, 80), torch.tensor([100]))
    assert logits.shape == (1, 13, 50_001)
    assert lengths.tolist() == [13]
    assert model.output[0].out_features == 580
