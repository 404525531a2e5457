"""Frame-wise log-probabilities as a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from starseq.wfst.graph import Arc, Graph


def emission_graph(log_probs: Tensor) -> Graph:
    """Return the acceptor of every label sequence of length T, weighted by `log_probs`.

    T + 1 states in a row; from state t to t + 1 an arc for every label v, of weight ``log_probs[t, v]``.

    Args:
        log_probs: (T, V) log-probabilities, or any scores; may require grad.

    Raises:
        ValueError: `log_probs` has not two dimensions.

    Example:
        >>> graph = emission_graph(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
        >>> graph.num_states, graph.arcs[3], graph.weights
        (3, Arc(source=1, target=2, input=1, output=1), tensor([-1., -2., -3., -4.]))
    """
    if log_probs.dim() != 2:
        raise ValueError(f"log_probs: expected shape (T, V), got {tuple(log_probs.shape)}")
    T, V = log_probs.shape
    arcs = [Arc(t, t + 1, v, v) for t in range(T) for v in range(V)]
    return Graph(T + 1, arcs, log_probs.flatten(), start=[0], final=[T])


def with_begins_and_lasts(log_probs: Tensor) -> Tensor:
    """Return (T, 3V): log-probabilities that a token is there, that it begins, and that it lasts.

    It lasts where it was there a frame before, P_t P_{t-1}, and begins where it was not, P_t (1 - P_{t-1}): in the first frame
    nothing was. 1 - P is the sum of the others, so `log_probs` must be of probabilities; where there are none, it is 1.

    Example:
        >>> both = with_begins_and_lasts(torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log())
        >>> both.exp()[1].tolist()
        [0.25, 0.75, 0.125, 0.375, 0.125, 0.375]
    """
    T, V = log_probs.shape
    if T == 0:
        return log_probs.repeat(1, 3)
    before = log_probs[:-1]
    # One row for each token that is left out. A sum of nothing, of which all are -inf, has no gradient.
    left = before[:, None, :].expand(-1, V, -1).masked_fill(torch.eye(V, dtype=torch.bool), -torch.inf)
    nothing = (left == -torch.inf).all(dim=2)
    was_not = left.masked_fill(nothing[:, :, None], 0).logsumexp(dim=2).masked_fill(nothing, -torch.inf)
    was_not = was_not.masked_fill((before == -torch.inf).all(dim=1, keepdim=True), 0)
    first = log_probs[:1]
    begins = torch.cat([first, log_probs[1:] + was_not])
    lasts = torch.cat([torch.full_like(first, -torch.inf), log_probs[1:] + before])
    return torch.cat([log_probs, begins, lasts], dim=1)
