"""The criteria of one utterance, each in one sentence: minus the log weight of the alignments that mean the target.

Slow and plain on purpose, this is what the fast backends are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from starseq.wfst.compose import intersect
from starseq.wfst.emission import emission_graph
from starseq.wfst.graph import Graph
from starseq.wfst.label_graphs import ctc_graph, selfless_ctc_graph, stc_graph
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
    merge_repeats: bool = True,
) -> Tensor:
    """Return the STC loss of one utterance, by its label graph with the stars expanded to tokens.

    .. math:: -\\log \\sum_\\pi \\prod_t P_t(\\pi_t) \\, e^{\\lambda \\cdot \\text{tokens inserted in } \\pi}

    over the alignments whose tokens, repeats merged and then blanks removed, contain the target as a subsequence. Labels last
    freely, an inserted token pays when it begins. The derivative with respect to a gap's `log_penalty` is minus the expected
    number of tokens inserted there.

    Args:
        log_probs: (T, V) log-probabilities; differentiable.
        target: the U labels.
        log_penalty: a number, or a tensor, 0-d or (U + 1,) with one weight for each gap; differentiable. -inf closes
            a gap.
        blank: the blank.
        merge_repeats: False for the published loss, whose repeats are not merged.

    Returns:
        The 0-d loss, in float32 or `log_probs`' wider dtype; inf, with gradient 0, where no alignment exists.

    Raises:
        ValueError: as `stc_graph`, or `log_probs` has not two dimensions.

    Example:
        Of the 3^2 alignments over {blank, 1, 2} 1- -1 11 mean "1", and 12 21 insert a token at half the weight:

        >>> stc(torch.zeros(2, 3), [1], log_penalty=torch.tensor(0.5).log()).neg().exp()
        tensor(4.)

        Of the 2^3 alignments over {blank, 1}, the 7 that hold a 1 at all mean "1" with holes, if repeats are kept:

        >>> stc(torch.zeros(3, 2), [1], log_penalty=0.0, merge_repeats=False).neg().exp()
        tensor(7.0000)
    """
    tokens = [v for v in range(log_probs.shape[-1]) if v != blank]
    if isinstance(log_penalty, Tensor):
        log_penalty = log_penalty.cpu()
    return _negative_log_weight(log_probs, stc_graph(target, blank, tokens, log_penalty, merge_repeats))


def _negative_log_weight(log_probs: Tensor, label_graph: Graph) -> Tensor:
    """Sum in float64 on the CPU, whatever comes in."""
    emissions = emission_graph(log_probs.to("cpu", torch.float64))
    loss = -forward_score(intersect(emissions, label_graph))
    return loss.to(log_probs.device, torch.promote_types(log_probs.dtype, torch.float32))
