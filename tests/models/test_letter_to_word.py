"""The letter-to-word encoder: the published example, its matrix by hand, its errors, its speed."""

import itertools
import time

import pytest
import torch

from starseq.models.letter_to_word import LETTERS, LetterToWord


def test_the_published_example():
    """Letters a, b, c, words a, cab, ca. The figure's result, with its two misprinted sums corrected, is [3.1, 2.2, -1.0, -0.1].

    The scores below are ours, chosen so that these four sums come out; all others are 100, and must not be touched.
    """
    a, b, c, blank, pad = range(5)
    x = torch.full((3, 5), 100.0)
    x[0, blank], x[0, a], x[0, c] = 2.1, 1.2, 0.3
    x[1, a], x[1, pad] = -1.0, 0.4
    x[2, b], x[2, pad] = -0.3, 0.6
    layer = LetterToWord(["a", "cab", "ca"], letters="abc", max_length=3)
    torch.testing.assert_close(layer(x.flatten()), torch.tensor([3.1, 2.2, -1.0, -0.1]))
    by_hand = torch.zeros(4, 3, 5)
    for word, spelled in enumerate([(blank, pad, pad), (a, pad, pad), (c, a, b), (c, a, pad)]):
        for position, letter in enumerate(spelled):
            by_hand[word, position, letter] = 1
    assert layer.E.T.equal(by_hand.reshape(4, 15))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_letters(dtype):
    words = ["the", "fox's", "a" * 20, "zebu"]
    layer = LetterToWord(words)
    assert layer.inputs == 580
    x = torch.randn(2, 3, 580).to(dtype).requires_grad_()
    y = layer(x)
    assert y.shape == (2, 3, 5)
    assert y.dtype == dtype
    at = x.detach().double().view(2, 3, 20, 29)
    index = {letter: i for i, letter in enumerate(LETTERS)}
    for number, word in enumerate(words, 1):
        spelled = [index[letter] for letter in word] + [28] * (20 - len(word))
        expected = sum(at[:, :, p, letter] for p, letter in enumerate(spelled))
        torch.testing.assert_close(
            y[..., number].double(), expected, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0
        )
    expected = at[:, :, 0, 27] + at[:, :, 1:, 28].sum(2)
    torch.testing.assert_close(y[..., 0].double(), expected, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(y[0, 0, 1], x)
    assert gradient[0, 0].nonzero().flatten().tolist() == [
        *(p * 29 + index[letter] for p, letter in enumerate("the")), *(p * 29 + 28 for p in range(3, 20))
    ]  # fmt: skip


def test_gradcheck():
    layer = LetterToWord(["a", "ba"], letters="ab", max_length=2)
    assert torch.autograd.gradcheck(layer, torch.randn(3, 8, dtype=torch.float64, requires_grad=True))


def test_new_words_after_training():
    x = torch.randn(4, 580)
    layer, both = LetterToWord(["one"]), LetterToWord(["one", "two"])
    before = layer(x)
    layer.add_words(["two"])
    assert layer.words == ["one", "two"]
    assert layer(x).equal(both(x))
    assert layer(x)[:, :2].equal(before)
    layer.add_words([])
    assert layer(x).shape == (4, 3)
    assert not layer.state_dict()  # it follows from the words, so a saved model takes any of them


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ok", "a" * 21], f"word '{'a' * 21}': has 21 letters, not 1 to 20"),
        (["ok", ""], "word '': has 0 letters, not 1 to 20"),
        (["ok", "Fox"], "word 'Fox': 'F' is none of the letters"),
        (["ok", "##e"], "word '##e': '#' is none of the letters"),
        (["ok", "fox", "ok"], "word 'ok': is given twice"),
    ],
)
def test_bad_words(words, message):
    with pytest.raises(ValueError, match=message):
        LetterToWord(words)
    layer = LetterToWord(["first"])
    with pytest.raises(ValueError, match=message):
        layer.add_words(words)
    assert layer.words == ["first"]


def test_bad_arguments():
    with pytest.raises(ValueError, match="letters: one of 'aba' is given twice"):
        LetterToWord([], letters="aba")
    with pytest.raises(ValueError, match="max_length is at least 1; got 0"):
        LetterToWord([], max_length=0)
    with pytest.raises(ValueError, match="x has 580 scores, 20 positions of letters; got 29"):
        LetterToWord(["a"])(torch.zeros(29))
    with pytest.raises(ValueError, match="word 'ok': is given twice"):
        LetterToWord(["ok"]).add_words(["ok"])


@pytest.mark.slow
def test_no_slower_than_the_dense_product():
    """(4 x 190, 580) -> 50,001, forward and backward, against F.linear with the same matrix: the best of several turns."""
    words = list(itertools.islice(("".join(w) for w in itertools.product(LETTERS[:16], repeat=4)), 50_000))
    layer = LetterToWord(words)
    E = layer.E.T.contiguous()
    x, weights = torch.randn(4, 190, 580, requires_grad=True), torch.randn(4, 190, 50_001)
    best = dict.fromkeys(("ours", "dense"), float("inf"))
    for _ in range(6):
        for name, f in (("ours", layer), ("dense", lambda x: torch.nn.functional.linear(x, E))):
            start = time.perf_counter()
            torch.autograd.grad(f(x), x, weights)
            best[name] = min(best[name], time.perf_counter() - start)
    print(
        f"ours {best['ours'] * 1e3:.0f} ms, dense {best['dense'] * 1e3:.0f} ms, ratio {best['ours'] / best['dense']:.2f}"
    )
    assert best["ours"] < 1.3 * best["dense"]
