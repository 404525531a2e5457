"""The criteria of one utterance, each in one sentence: minus the log weight of the alignments that mean the target.

Slow and plain on purpose, this is what the fast backends are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from starseq.wfst.compose import intersect
from starseq.wfst.emission import emission_graph
from starseq.wfst.graph import Graph
from starseq.wfst.label_graphs import Matching, ctc_graph, lasting_stc_graph, selfless_ctc_graph, stc_graph
from starseq.wfst.score import forward_score


def ctc(log_probs: Tensor, target: Sequence[int], *, blank: int = 0) -> Tensor:
    """Return the CTC loss of one utterance: that of ``torch.nn.functional.ctc_loss`` with ``reduction="none"``.

    Args:
        log_probs: (T, V) log-probabilities; differentiable.
        target: the U labels.
        blank: the blank.

    Returns:
        The 0-d loss, in float32 or `log_probs`' wider dtype; inf, with gradient 0, where no alignment exists.

    Raises:
        ValueError: `log_probs` has not two dimensions, or the blank is among the labels.

    Example:
        Of the 2^3 alignments over {blank, 1}, the 6 that hold one run of 1s mean "1":

        >>> ctc(torch.zeros(3, 2), [1]).neg().exp()
        tensor(6.)
    """
    return _negative_log_weight(log_probs, ctc_graph(target, blank))


def selfless_ctc(log_probs: Tensor, target: Sequence[int], *, blank: int = 0) -> Tensor:
    """Return the loss of CTC without self-loops on labels; arguments and result as in `ctc`.

    Example:
        Of the 2^3 alignments over {blank, 1}, the 3 that hold one 1 mean "1":

        >>> selfless_ctc(torch.zeros(3, 2), [1]).neg().exp()
        tensor(3.)
    """
    return _negative_log_weight(log_probs, selfless_ctc_graph(target, blank))


def stc(
    log_probs: Tensor,
    target: Sequence[int],
    *,
    log_penalty: float | Tensor,
    blank: int = 0,
    matching: Matching = "leftmost",
) -> Tensor:
    """Return the STC loss of one utterance, by the published label graph with its stars expanded to tokens.

    .. math:: -\\log \\sum_\\pi \\prod_t P_t(\\pi_t) \\, e^{\\lambda \\cdot \\text{tokens inserted in } \\pi}

    over the alignments whose tokens contain the target as a subsequence. The derivative with respect to a gap's
    `log_penalty` is minus the expected number of tokens inserted there.

    Args:
        log_probs: (T, V) log-probabilities; differentiable.
        target: the U labels.
        log_penalty: a number, or a tensor, 0-d or (U + 1,) with one weight for each gap; differentiable. -inf closes
            a gap.
        blank: the blank.
        matching: "leftmost" or "all", see `stc_graph`.

    Returns:
        The 0-d loss, in float32 or `log_probs`' wider dtype; inf, with gradient 0, where no alignment exists.

    Raises:
        ValueError: as `stc_graph`, or `log_probs` has not two dimensions.

    Example:
        Of the 2^3 alignments over {blank, 1}, the 7 that hold a 1 at all mean "1" with holes:

        >>> stc(torch.zeros(3, 2), [1], log_penalty=0.0).neg().exp()
        tensor(7.0000)
    """
    return _negative_log_weight(log_probs, _starred(stc_graph, log_probs, target, log_penalty, blank, matching))


def lasting_stc(
    log_probs: Tensor,
    target: Sequence[int],
    *,
    log_penalty: float | Tensor,
    blank: int = 0,
    matching: Matching = "leftmost",
) -> Tensor:
    """Return the loss of STC with the collapse of CTC: labels last freely, an inserted token pays when it begins.

    The alignments are those whose tokens, repeats merged and then blanks removed, contain the target as a subsequence. Arguments
    and result as in `stc`.

    Example:
        Of the 3^2 alignments over {blank, 1, 2} 1- -1 11 mean "1", and 12 21 insert a token at half the weight:

        >>> lasting_stc(torch.zeros(2, 3), [1], log_penalty=torch.tensor(0.5).log()).neg().exp()
        tensor(4.)
    """
    return _negative_log_weight(log_probs, _starred(lasting_stc_graph, log_probs, target, log_penalty, blank, matching))


def _starred(
    graph: Callable[..., Graph],
    log_probs: Tensor,
    target: Sequence[int],
    log_penalty: float | Tensor,
    blank: int,
    matching: Matching,
) -> Graph:
    """The label graph with its stars expanded to the tokens that `log_probs` know."""
    tokens = [v for v in range(log_probs.shape[-1]) if v != blank]
    if isinstance(log_penalty, Tensor):
        log_penalty = log_penalty.cpu()
    return graph(target, blank, tokens, log_penalty, matching)


def _negative_log_weight(log_probs: Tensor, label_graph: Graph) -> Tensor:
    """Sum in float64 on the CPU, whatever comes in."""
    emissions = emission_graph(log_probs.to("cpu", torch.float64))
    loss = -forward_score(intersect(emissions, label_graph))
    return loss.to(log_probs.device, torch.promote_types(log_probs.dtype, torch.float32))
