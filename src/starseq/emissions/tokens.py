"""What a label graph reads from the vocabulary: which token, or which star, each of its arcs consumes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

NONE = -1
"""In place of a token: an arc that does not exist, or a star that leaves nothing out."""


class Tokens(NamedTuple):
    """The tokens on the arcs of B graphs of S states.

    blank: the token that means nothing.
    enter: (B, S) integers, what the arcs that enter a state from other states consume.
    stay: (B, S) integers, what its self-loop consumes; or None: every self-loop consumes blank, and no other arc does.
    star_weight: (B, S) floating, or None: the log-weight at which the self-loop also takes *any* token but blank,
        or -inf where it does not.
    star_except: (B, S) integers, the one token that this star leaves out, or NONE; None where there are no stars. A graph's last
        state leaves out nothing.
    lasting: a token that a star takes may last over several frames and is one token still, and stars stand on the arcs that enter
        their states as well. States that remember a token are more than those of this description: see `starseq.lattice.gaps`.

    A token outside 0..V-1 is impossible: an arc that consumes it has the score -inf, and a star has nothing to leave out.
    States that an utterance's graph does not have may hold anything.
    """

    blank: int
    enter: Tensor
    stay: Tensor | None = None
    star_weight: Tensor | None = None
    star_except: Tensor | None = None
    lasting: bool = False


class Scores(NamedTuple):
    """Log-scores of the arcs of a label graph at every frame, (B, T, S); undefined past an utterance's frames.

    stay, enter: the self-loops and the entering arcs. star: the part of `stay` that is the star's (empty unless asked for).
    norm: (B, T), the log of the sum over the vocabulary, 0 where scores are taken as they are.
    """

    stay: Tensor
    enter: Tensor
    star: Tensor
    norm: Tensor
