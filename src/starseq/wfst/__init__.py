"""The readable reference: weighted finite-state transducers whose arc weights are torch tensors.

Torch's autograd is the autograd over graphs: ``forward_score(compose(a, b))`` differentiates to the weights of a and b.
"""

from starseq.wfst.collapse import ctc_collapse
from starseq.wfst.compose import compose, intersect, project
from starseq.wfst.draw import to_dot, to_svg, to_text
from starseq.wfst.emission import emission_graph
from starseq.wfst.graph import EPSILON, Arc, Graph, GraphBuilder
from starseq.wfst.label_graphs import (
    LASTING,
    STAR,
    ctc_graph,
    expand_stars,
    selfless_ctc_graph,
    star_label,
    star_symbols,
    stc_chain,
    stc_graph,
    stc_positions,
)
from starseq.wfst.losses import ctc, selfless_ctc, stc
from starseq.wfst.rational import closure, concatenate, union
from starseq.wfst.score import Path, forward_score, viterbi_path
from starseq.wfst.topology import live, trim

__all__ = [
    "EPSILON",
    "LASTING",
    "STAR",
    "Arc",
    "Graph",
    "GraphBuilder",
    "Path",
    "closure",
    "compose",
    "concatenate",
    "ctc",
    "ctc_collapse",
    "ctc_graph",
    "emission_graph",
    "expand_stars",
    "forward_score",
    "intersect",
    "live",
    "project",
    "selfless_ctc",
    "selfless_ctc_graph",
    "star_label",
    "star_symbols",
    "stc",
    "stc_chain",
    "stc_graph",
    "stc_positions",
    "to_dot",
    "to_svg",
    "to_text",
    "trim",
    "union",
    "viterbi_path",
]
