"""Which module computes what: the fused way of a backend, or the readable one; and what is asked of graphs besides the loss."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

from starseq.criteria.graph import LabelGraph
from starseq.emissions.tokens import Scores
from starseq.op import readable
from starseq.op.options import Batch, Options, turned


def way_of(options: Options) -> ModuleType:
    """A module with `forward` and `backward`, see starseq.op."""
    if options.backend == "torch":
        return readable
    return _module(f"op.{'lasting' if options.form.lasting else 'fused'}_{options.backend}")


def scores(batch: Batch, graph: LabelGraph, options: Options) -> Scores:
    """Of the arcs of a batch's graphs, the stars by themselves if `inserted`. Not for graphs in which tokens last."""
    if options.backend == "triton":
        found: Scores = _module("op.fused_triton").scores(batch, options)
        return found
    emissions = _module(f"emissions.vocabulary_{options.backend}")
    logits = turned(batch[0], options.batch_first)
    found = emissions.scores(
        logits, graph.tokens, graph.topology, batch[2], normalized=options.normalized, star=options.inserted
    )
    return found


@functools.cache
def _module(name: str) -> ModuleType:
    return importlib.import_module(f"starseq.{name}")
