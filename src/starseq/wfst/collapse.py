"""From alignments to the tokens that they mean."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from starseq.wfst.graph import EPSILON, Arc, Graph


def ctc_collapse(tokens: Iterable[int], blank: int = 0) -> Graph:
    """Return CTC's collapse: it reads an alignment, and writes its tokens, repeats merged and then blanks removed.

    A state is what stands there: 0 the blank, where it starts, and one for each token. Where another token stands, a token
    begins, and is written; the same token still stands, and nothing is written.

    Args:
        tokens: the alphabet, without the blank.
        blank: the blank.

    Example:
        >>> from starseq.wfst import GraphBuilder, compose
        >>> builder = GraphBuilder(5, start=[0], final=[4])
        >>> for t, v in enumerate([1, 1, 0, 1]):
        ...     builder.add_arc(t, t + 1, v)
        >>> [arc.output for arc in compose(builder.build(), ctc_collapse([1, 2])).arcs]  # -1 is nothing
        [1, -1, -1, 1]
    """
    stands = [blank, *tokens]
    arcs = [
        Arc(before, after, token, EPSILON if after in (0, before) else token)
        for before in range(len(stands))
        for after, token in enumerate(stands)
    ]
    return Graph(len(stands), arcs, torch.zeros(len(arcs), dtype=torch.float64), [0], range(len(stands)))
