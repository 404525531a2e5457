"""Completion: the best full transcript that contains a partial label.

    score(y) = log P(y | x) + alpha log P_LM(y) + beta |y|,        P(y | x) = sum over the alignments of y

over all y that contain the labels in order, with nothing between them where a gap is closed. No lambda: a token that is added costs
what the model, and the language model, say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from starseq import criteria
from starseq.arguments import check_values
from starseq.decode import complete_numba
from starseq.decode.align import check_finite, label_frames
from starseq.decode.confidence import Judge
from starseq.decode.ngram_automaton import NGramAutomaton
from starseq.emissions.tokens import NONE
from starseq.lattice import banded_numba

__all__ = ["CompletedToken", "Completion", "check_search", "complete", "complete_together", "embedded"]


class CompletedToken(NamedTuple):
    """A token of a completed transcript.

    start, end: its frames on the transcript's best alignment, start .. end - 1. known: it is one of the labels that were given;
    where there is a choice, the first that leaves the others a place. confidence: of a token that was added, its share against
    every other token, and none, in its place, by the acoustic model, all other tokens being as they are; 1 for a known one.
    """

    token: int
    start: int
    end: int
    known: bool
    confidence: float


class Completion(NamedTuple):
    """A full transcript, and what speaks for it: am = log P(y|x), lm = log P_LM(y) with the end of the sentence (0 without one)."""

    tokens: tuple[CompletedToken, ...]
    am: float
    lm: float
    score: float
    beam: tuple[tuple[int, ...], ...] = ()
    """of the best one, if that was asked for: all transcripts that the search ended with, best first"""

    @property
    def labels(self) -> tuple[int, ...]:
        """The transcript as tokens."""
        return tuple(token.token for token in self.tokens)


def complete(
    logits: Tensor,
    labels: Sequence[int] | Tensor = (),
    open: Sequence[bool] | Tensor | None = None,
    *,
    merge_repeats: bool = False,
    beam: int = 100,
    beam_threshold: float = 25.0,
    tokens_per_frame: int = 50,
    nbest: int = 1,
    lm: NGramAutomaton | None = None,
    alpha: float = 0.0,
    beta: float = 0.0,
    blank: int = 0,
    normalized: bool = True,
    judged: bool = True,
    keep_beam: bool = False,
) -> list[Completion]:
    """The `nbest` best transcripts that contain the labels, best first.

    Args:
        logits: (T, V), logits or log-probabilities.
        labels: (U,) the known labels.
        open: (U+1,) bool, whether tokens may be missing in gap l, after label l. None: everywhere.
        merge_repeats: the collapse: True for CTC and STC, False for published STC and selfless CTC.
        beam: how many prefixes are kept after each frame.
        beam_threshold: prefixes worse than the best by more than this are dropped.
        tokens_per_frame: the likeliest tokens of each frame extend prefixes, and always the next known label.
        nbest: how many transcripts are returned, if there are so many.
        lm, alpha: an n-gram model over the same tokens, and its weight.
        beta: is added for every token.
        blank: the token that means nothing.
        normalized: False says that the logits are log-probabilities already: no log-softmax.
        judged: False leaves out frames (0, 0) and confidences (1), which cost more than the search where `nbest` is large.
        keep_beam: fill in `Completion.beam`.

    Raises ValueError, in one sentence, for arguments out of range, NaN, alpha without a model, and labels that do not fit in.

        >>> probs = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.7, 0.2], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
        >>> [best] = complete(probs.log(), [2])
        >>> best.labels, [token.known for token in best.tokens], round(best.tokens[0].confidence, 2)
        ((1, 2), [False, True], 0.67)
        >>> [best] = complete(probs.log(), [2], [False, False])      # nothing is missing
        >>> best.labels
        (2,)
    """
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits: expected floating point (T, V), got {logits.dtype} of shape {tuple(logits.shape)}")
    T, V = logits.shape
    check_search(beam, beam_threshold, tokens_per_frame, nbest, lm, alpha, beta, V)
    target = torch.as_tensor(labels, dtype=torch.int64).reshape(-1).cpu()
    frames, U = torch.tensor([T]), len(target)
    check_values(target[None], frames, torch.tensor([U]), None, torch.Size((1, T, V)), blank)
    gaps = np.ones(U + 1, np.bool_) if open is None else torch.as_tensor(open, dtype=torch.bool).cpu().numpy()
    if gaps.shape != (U + 1,):
        raise ValueError(f"open: {U} labels have {U + 1} gaps, not {gaps.size}")
    x = logits.detach().cpu().float()
    check_finite(x[None], frames)
    log_probs = (x.log_softmax(dim=1).nan_to_num(nan=-torch.inf, neginf=-torch.inf) if normalized else x).contiguous()

    known = target.numpy()
    need = _frames_needed(known, merge_repeats)
    if need[0] > T:
        raise ValueError(f"no completion: {U} labels need more than {T} frames")
    falls_to = _falls_to(known, gaps)
    ahead = np.empty((T + 1, U + 1))
    complete_numba.future(log_probs.numpy(), blank, known, gaps, falls_to, merge_repeats, ahead)
    word_of, lm_start, lm_end, tables = _NO_LM if lm is None else lm.tables()
    if U and (alpha or beta):
        ahead += _price(known, alpha, beta, word_of, tables)
    judge = Judge(log_probs, merge_repeats=merge_repeats, tokens_per_frame=tokens_per_frame, blank=blank)
    node, log_am, log_lm, length, parent, last = complete_numba.search(
        log_probs.numpy(), blank, merge_repeats, known, gaps, falls_to, need, ahead, judge.top, beam,
        float(beam_threshold), float(alpha), float(beta), word_of, lm_start, lm_end, tables,
    )  # fmt: skip
    if not len(node):
        raise ValueError(f"no completion: every transcript with the {U} labels in it has probability 0")
    scores = log_am + beta * length + (alpha * log_lm if alpha else 0.0)
    ranked = np.argsort(-scores, kind="stable")
    order = ranked[:nbest]
    found = [_prefix(node[i], parent, last) for i in order]
    places = _frames(log_probs, found, blank, merge_repeats) if judged else [[(0, 0)] * len(one) for one in found]
    results = []
    for transcript, frames_of, by_lm in zip(found, places, log_lm[order].tolist(), strict=True):
        is_known = np.empty(len(transcript), np.bool_)
        complete_numba.embed(transcript, known, gaps, is_known)
        am, confidence = judge(transcript, ~is_known if judged else np.zeros(len(transcript), np.bool_))
        parts = zip(transcript.tolist(), frames_of, is_known.tolist(), confidence, strict=True)
        results.append(
            Completion(
                tuple(CompletedToken(token, *place, is_label, sure) for token, place, is_label, sure in parts),
                am,
                by_lm,
                am + (alpha * by_lm if alpha else 0.0) + beta * len(transcript),
            )
        )
    # The beam may have lost alignments of some; these scores have them all.
    best, *rest = sorted(results, key=lambda result: -result.score)
    if keep_beam:
        tree = parent.tolist(), last.tolist()  # lists are faster to walk
        best = best._replace(beam=tuple(tuple(_prefix(node[i], *tree).tolist()) for i in ranked))
    return [best, *rest]


def embedded(tokens: Sequence[int], labels: Sequence[int], open: Sequence[bool]) -> list[bool]:
    """Which tokens of a transcript that contains the labels are these: each is the first that leaves the others a place.

    >>> embedded([1, 2, 2, 3], [2, 3], [True, True, False])
    [False, True, False, True]
    """
    known = np.empty(len(tokens), np.bool_)
    complete_numba.embed(np.array(tokens, np.int64), np.array(labels, np.int64), np.array(open, np.bool_), known)
    return known.tolist()


def complete_together(
    logits: Sequence[Tensor],
    labels: Sequence[int] | Tensor = (),
    open: Sequence[bool] | Tensor | None = None,
    *,
    merge_repeats: Sequence[bool],
    nbest: int = 1,
    beam: int = 100,
    blank: int = 0,
    normalized: bool = True,
    **search: Any,
) -> list[Completion]:
    """The best transcripts that contain the labels, as several models see them, best first.

    The mean of the models' log P(y|x) stands for that of one. Each model searches by itself, and the `beam` best of each are the
    candidates: a transcript that none of them has among those is not found. Models may differ in their frames and in
    how repeats collapse, but not in their tokens. Frames are (0, 0) and confidences 1, as where `complete` is not to judge.

    Args:
        logits: of each model (T, V), as `complete` takes them.
        merge_repeats: of each model.
        search: the other settings of `complete`, the same for all.

    Raises ValueError, as `complete` does, and where no candidate fits into the frames of all models.

        >>> one = torch.tensor([[0.1, 0.6, 0.3], [0.1, 0.1, 0.8]]).log()
        >>> other = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.1, 0.8]]).log()
        >>> [best] = complete_together([one, other], merge_repeats=[False, False])
        >>> best.labels, complete(one)[0].labels, complete(other)[0].labels
        ((2, 2), (1, 2), (2, 2))
    """
    if (
        not all(x.dim() == 2 for x in logits)
        or len({x.shape[1] for x in logits}) != 1
        or len(logits) != len(merge_repeats)
    ):
        raise ValueError(
            f"logits: {len(logits)} models with {len(merge_repeats)} collapses, which need the same tokens"
        )
    if nbest < 1:
        raise ValueError(f"nbest: {nbest} is less than 1")
    alpha, beta = search.get("alpha", 0.0), search.get("beta", 0.0)
    found: list[dict[tuple[int, ...], Completion]] = []
    judges = []
    for x, merge in zip(logits, merge_repeats, strict=True):
        best = complete(
            x, labels, open, merge_repeats=merge, nbest=beam, beam=beam, blank=blank, normalized=normalized, judged=False,
            **search,
        )  # fmt: skip
        found.append({one.labels: one for one in best})
        log_probs = x.detach().cpu().float()
        log_probs = log_probs.log_softmax(dim=1) if normalized else log_probs
        judges.append(Judge(log_probs, merge_repeats=merge, blank=blank))
    results = []
    for transcript, one in {labels: one for each in found for labels, one in each.items()}.items():
        opinions = [
            each[transcript].am if transcript in each else judge(transcript, [False] * len(transcript)).log_p
            for each, judge in zip(found, judges, strict=True)
        ]
        am = sum(opinions) / len(opinions)
        if am > -math.inf:
            results.append(one._replace(am=am, score=am + alpha * one.lm + beta * len(transcript)))
    if not results:
        raise ValueError("no completion: every transcript has probability 0 for one of the models")
    return sorted(results, key=lambda result: -result.score)[:nbest]


_NO_LM: Any = (
    np.empty(0, np.int64), 0, -1,
    (np.full(1, -1, np.int64), np.zeros(1, np.int32), np.zeros(1), np.zeros(1), np.zeros(1, np.int32), 1),
)  # fmt: skip


def _prefix(node: int, parent: Any, last: Any) -> Any:
    """The tokens that lead to a node of the trie."""
    tokens = []
    while node:
        tokens.append(last[node])
        node = parent[node]
    return np.array(tokens[::-1], np.int64)


def _price(labels: Any, alpha: float, beta: float, word_of: Any, tables: Any) -> Any:
    """What the labels after each position will cost when they come, (U+1,): else prefixes that put them off would look cheap."""
    price = np.full(len(labels), float(beta))
    if alpha:
        price += alpha * np.array([complete_numba.lm_score(word_of[[v]], 0, tables) for v in labels])
    return np.append(np.cumsum(price[::-1])[::-1], 0.0)


def _falls_to(labels: Any, is_open: Any) -> Any:
    """Where a position falls back to if another token comes than its next label, (U+1,); -1: nowhere, the prefix is lost.

    The position of a prefix is how many labels it has matched: the most that one reading of it can have. An open position holds
    whatever comes. A closed one is inside a block of labels that must stand together; as in Knuth, Morris and Pratt's search it
    falls to the longest beginning of the block that is an end of what was read. A block at a closed start has one place only.
    """
    U = len(labels)
    falls = np.full(U + 1, -1, np.int64)
    start = -1  # the open position at which the block begins
    for position in range(U + 1):
        if is_open[position]:
            start = position
        elif start >= 0:
            block = labels[start:position].tolist()
            border = next(n for n in range(len(block) - 1, -1, -1) if block[:n] == block[len(block) - n :])
            falls[position] = start + border
    return falls


def _frames_needed(labels: Any, merge: bool) -> Any:
    """How many frames the labels after each position take at least, (U+1,)."""
    each = np.ones(len(labels), np.int64)
    if merge:
        each[:-1] += labels[1:] == labels[:-1]  # a blank between equals, counted with the first
    return np.append(np.cumsum(each[::-1])[::-1], 0)


def _frames(log_probs: Tensor, found: Sequence[Any], blank: int, merge: bool) -> list[list[tuple[int, int]]]:
    """The frames of every token of each transcript, (start, end), on its best alignment."""
    targets = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(x) for x in found], batch_first=True, padding_value=NONE
    )
    lengths = torch.tensor([len(x) for x in found])
    graph = criteria.load("ctc" if merge else "selfless_ctc")(targets, lengths, blank=blank)
    stays = torch.full_like(graph.tokens.enter, blank) if graph.tokens.stay is None else graph.tokens.stay
    x = log_probs.double()

    def scores(tokens: Tensor) -> Tensor:
        return x[:, tokens.clamp(min=0)].masked_fill(tokens == NONE, -math.inf).transpose(0, 1).contiguous()

    path, _ = banded_numba.viterbi(
        scores(stays), scores(graph.tokens.enter), graph.topology, torch.full((len(found),), len(x))
    )
    return [label_frames(graph, b, path[b].tolist()) for b in range(len(found))]


def check_search(
    beam: int,
    threshold: float,
    tokens_per_frame: int,
    nbest: int,
    lm: NGramAutomaton | None,
    alpha: float,
    beta: float,
    V: int,
) -> None:
    """Raise what `complete` raises for settings that are wrong whatever the utterance."""
    for name, value in (("beam", beam), ("tokens_per_frame", tokens_per_frame), ("nbest", nbest)):
        if value < 1:
            raise ValueError(f"{name}: {value} is less than 1")
    if nbest > beam:
        raise ValueError(f"nbest: {nbest} transcripts do not come out of a beam of {beam}")
    if not threshold >= 0:
        raise ValueError(f"beam_threshold: {threshold} is not a number from 0 on")
    if not (math.isfinite(alpha) and math.isfinite(beta) and alpha >= 0):
        raise ValueError(f"alpha, beta: expected finite numbers, alpha from 0 on, got {alpha} and {beta}")
    if alpha and lm is None:
        raise ValueError(f"alpha: {alpha} is the weight of a language model, and none was given")
    if lm is not None and len(lm.tables()[0]) != V:
        raise ValueError(f"lm: the language model knows {len(lm.tables()[0])} tokens, the logits have {V}")
