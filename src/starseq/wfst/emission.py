"""Frame-wise log-probabilities as a graph."""

from __future__ import annotations

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
        >>> import torch
        >>> graph = emission_graph(torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]))
        >>> graph.num_states, graph.arcs[3], graph.weights
        (3, Arc(source=1, target=2, input=1, output=1), tensor([-1., -2., -3., -4.]))
    """
    if log_probs.dim() != 2:
        raise ValueError(f"log_probs: expected shape (T, V), got {tuple(log_probs.shape)}")
    T, V = log_probs.shape
    arcs = [Arc(t, t + 1, v, v) for t in range(T) for v in range(V)]
    return Graph(T + 1, arcs, log_probs.flatten(), start=[0], final=[T])
