"""Rescoring and the search for weights, on lists where the answer is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from starseq.data.errors import DataError
from starseq.decode.nbest import Hypothesis, NBest
from starseq.decode.rescore import rescore, score_lists
from starseq.decode.weights import best_weights


class Table:
    """Looks texts up, and remembers what was asked."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores
        self.batches: list[list[str]] = []

    def score(self, texts: Sequence[str]) -> Tensor:
        self.batches.append(list(texts))
        return torch.tensor([self.scores[text] for text in texts])


def nbest(id: str, *parts: tuple[str, float]) -> NBest:
    return NBest(id, tuple(Hypothesis(text, (1,), am, -99.0, 7) for text, am in parts))


def test_the_order_is_that_of_the_formula() -> None:
    lists = [nbest("u", ("a bb", -1.0), ("a", -1.5), ("ccc c c", -4.0))]
    scorer = Table({"a bb": -5.0, "a": -2.0, "ccc c c": -1.0})
    for alpha, beta, unit in ((0.0, 0.0, "char"), (1.0, 0.0, "word"), (0.5, 2.0, "word"), (1.0, -0.3, "char")):
        (found,) = rescore(lists, scorer, alpha, beta, unit=unit)
        length = (lambda text: len(text.split())) if unit == "word" else len
        expected = sorted(
            lists[0].hyps, key=lambda hyp: -(hyp.am + alpha * scorer.scores[hyp.text] + beta * length(hyp.text))
        )
        assert [hyp.text for hyp in found.hyps] == [hyp.text for hyp in expected]
        for hyp in found.hyps:
            assert (hyp.lm, hyp.length) == (scorer.scores[hyp.text], length(hyp.text))


def test_texts_of_several_lists_are_scored_together_and_once() -> None:
    texts = [f"{'x' * n}{k}" for n in (1, 30, 5) for k in range(6)]
    lists = [nbest(f"u{k}", *((text, -1.0) for text in texts)) for k in range(11)]
    scorer = Table({text: -float(len(text)) for text in texts})
    done: list[int] = []
    found = list(score_lists(lists, scorer, progress=done.append))
    assert scorer.batches == [texts, texts]
    assert [hyp.text for hyp in found[0].hyps] == texts
    assert [one.id for one in found] == [f"u{k}" for k in range(11)]
    assert done == [8, 11]


def test_what_cannot_be_rescored_is_a_sentence() -> None:
    with pytest.raises(DataError, match="'u' has an empty n-best list"):
        list(rescore([NBest("u", ())], Table({}), 1.0, 0.0))
    with pytest.raises(DataError, match="gives nan for the text 'a'"):
        list(rescore([nbest("u", ("a", -1.0))], Table({"a": math.nan}), 1.0, 0.0))

    class Wrong:
        def score(self, texts: Sequence[str]) -> Tensor:
            return torch.zeros(len(texts), 1)

    with pytest.raises(ValueError, match=r"shape \(1, 1\) for 1 texts"):
        list(rescore([nbest("u", ("a", -1.0))], Wrong(), 1.0, 0.0))


def planted(alpha: float, beta: float, count: int = 400) -> tuple[list[NBest], list[str]]:
    """Lists whose truth is what these weights choose, among hypotheses with random scores."""
    generator = torch.Generator().manual_seed(0)
    lists, references = [], []
    for u in range(count):
        am, lm = -10 * torch.rand(2, 12, generator=generator, dtype=torch.float64)
        length = torch.randint(1, 6, (12,), generator=generator)
        hyps = tuple(
            Hypothesis(
                " ".join(f"w{k}" for _ in range(int(length[k]))), (1,), am[k].item(), lm[k].item(), int(length[k])
            )
            for k in range(12)
        )
        lists.append(NBest(f"u{u}", hyps))
        references.append(max(hyps, key=lambda hyp: hyp.score(alpha, beta)).text)
    return lists, references


@pytest.mark.parametrize(("alpha", "beta"), [(0.8, 0.6), (2.1, -3.3), (0.0, 0.0), (3.9, 5.2)])
def test_planted_weights_are_found(alpha: float, beta: float) -> None:
    """The last pair lies outside the first grid."""
    lists, references = planted(alpha, beta)
    found = best_weights(lists, references, unit="word")
    assert found.percent < 1
    assert found.alpha == pytest.approx(alpha, abs=0.15)
    assert found.beta == pytest.approx(beta, abs=0.3)


def test_the_surface_is_what_each_point_gives() -> None:
    lists, references = planted(1.0, 0.5, count=30)
    found = best_weights(lists, references, unit="word", alphas=(0.0, 1.0), betas=(0.5, -1.0), refinements=0)
    assert (found.surface.alphas, found.surface.betas) == ((0.0, 1.0), (-1.0, 0.5))
    words = sum(len(reference.split()) for reference in references)
    for i, alpha in enumerate(found.surface.alphas):
        for j, beta in enumerate(found.surface.betas):
            errors = 0
            for nbest, reference in zip(lists, references, strict=True):
                text = max(nbest.hyps, key=lambda hyp: hyp.score(alpha, beta)).text.split()
                same = set(text) == set(reference.split())
                errors += abs(len(text) - len(reference.split())) if same else max(len(text), len(reference.split()))
            assert found.surface.percent[i][j] == pytest.approx(100 * errors / words)
    assert found.surface.percent[1][1] == 0


def test_nothing_to_tune_on_is_a_sentence() -> None:
    lists, references = planted(1.0, 0.0, count=2)
    for arguments, sentence in {
        ((), ()): "no n-best list",
        (tuple(lists), ("", "")): "every reference is empty",
        ((NBest("u", ()), lists[1]), tuple(references)): "'u' has an empty n-best list",
    }.items():
        with pytest.raises(DataError, match=sentence):
            best_weights(*arguments, unit="word")
