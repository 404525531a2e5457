"""Language models by their path: an ARPA file, a folder of ours, a folder of Hugging Face's."""

from __future__ import annotations

import os
from pathlib import Path

from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.lm import Scorer
from starseq.text.gaps import Unit
from starseq.text.normalise import Normaliser

__all__ = ["load"]


def load(
    path: str | os.PathLike[str],
    *,
    unit: Unit = "word",
    normaliser: Normaliser | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Scorer:
    """The language model at `path`, whichever kind it is.

    A folder with ``lm.yaml`` is a Transformer of ours, one with ``config.json`` a causal model of Hugging Face, and a file is
    ARPA. `unit` is for ARPA alone: the others know theirs. `normaliser` is applied to texts before they are scored.
    """
    if not os.path.isdir(path):
        from starseq.lm.ngram import NGram

        return NGram.load(path, unit=unit, normaliser=normaliser, progress=progress)
    if (Path(path) / "lm.yaml").is_file():
        from starseq.lm.transformer import TransformerLM

        return TransformerLM.load(path, normaliser=normaliser, device=device)
    if (Path(path) / "config.json").is_file():
        from starseq.lm.huggingface import HuggingFaceLM

        return HuggingFaceLM(path, normaliser=normaliser, device=device)
    raise DataError(f"{os.fspath(path)}: no language model: a folder of one has lm.yaml or config.json")
