"""Rescoring: n-best lists reordered by another language model, with its own weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import torch

from starseq.data.errors import DataError
from starseq.decode.nbest import NBest
from starseq.lm import Scorer
from starseq.text.gaps import Unit

__all__ = ["length_in", "reorder", "rescore", "score_lists"]

_LISTS_AT_ONCE = 8


def length_in(unit: Unit, text: str) -> int:
    """|y| in words or in characters, spaces included.

    >>> length_in("word", "a bc"), length_in("char", "a bc")
    (2, 4)
    """
    return len(text) if unit == "char" else len(text.split())


def rescore(
    lists: Iterable[NBest], scorer: Scorer, alpha: float, beta: float, *, unit: Unit = "char",
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[NBest]:  # fmt: skip
    """The lists by log P(y|x) + alpha log P_LM'(y) + beta |y|, best first; |y| in words or characters.

    >>> from starseq.decode.nbest import Hypothesis
    >>> class Short:
    ...     def score(self, texts): return torch.tensor([-float(len(text)) for text in texts])
    >>> nbest = NBest("x", (Hypothesis("abc", (1, 2, 3), -1.0, 0.0, 3), Hypothesis("a", (1,), -2.0, 0.0, 1)))
    >>> [[hyp.text for hyp in found.hyps] for found in rescore([nbest], Short(), alpha=1.0, beta=0.0)]
    [['a', 'abc']]
    """
    for nbest in score_lists(lists, scorer, unit=unit, progress=progress):
        yield reorder(nbest, alpha, beta)


def reorder(nbest: NBest, alpha: float, beta: float) -> NBest:
    """One list, best first under these weights; texts in the order of their characters where they are equal."""
    return NBest(nbest.id, tuple(sorted(nbest.hyps, key=lambda hyp: (-hyp.score(alpha, beta), hyp.text))))


def score_lists(
    lists: Iterable[NBest], scorer: Scorer, *, unit: Unit = "char", progress: Callable[[int], None] = lambda done: None
) -> Iterator[NBest]:
    """The lists with `lm` and `length` by another language model and unit, in the same order.

    Texts of several lists go to the model together, each once: it batches them by length. A `DataError` where a list is
    empty, or the model gives a text no number.
    """
    done = 0
    remaining = iter(lists)
    while pool := list(islice(remaining, _LISTS_AT_ONCE)):
        for nbest in pool:
            if not nbest.hyps:
                raise DataError(f"utterance {nbest.id!r} has an empty n-best list: there is nothing to rescore")
        texts = list(dict.fromkeys(hyp.text for nbest in pool for hyp in nbest.hyps))
        with torch.no_grad():
            scores = scorer.score(texts)
        if scores.shape != (len(texts),):
            raise ValueError(f"the language model gave scores of shape {tuple(scores.shape)} for {len(texts)} texts")
        if not torch.isfinite(scores).all():
            at = int(torch.isfinite(scores).logical_not().nonzero()[0])
            raise DataError(f"the language model gives {scores[at].item()} for the text {texts[at]!r}")
        log_lm = dict(zip(texts, scores.tolist(), strict=True))
        for nbest in pool:
            hyps = (hyp._replace(lm=log_lm[hyp.text], length=length_in(unit, hyp.text)) for hyp in nbest.hyps)
            yield NBest(nbest.id, tuple(hyps))
        done += len(pool)
        progress(done)
