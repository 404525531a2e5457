"""Corpora on disk to manifests: one file, one corpus, found by being there.

A corpus is a module of this package with a function `prepare(source, out, *, ..., skip_bad, progress) -> Report`. Its
docstring, its parameters and their `Annotated` notes become the command `starseq prepare NAME`. A module that can tell
its own files has a function `understands(source) -> bool` too, and one whose files can take fillings has
`put_back(source, rows, putter)`. Modules whose names begin with an underscore are what the
corpora share.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from starseq.corpora._build import Report, reading_marks
from starseq.corpora._edit import PutBack, Putter
from starseq.data.manifest import Row

__all__ = ["PutBack", "Putter", "Report", "load", "names", "putter_back", "reader_of", "reading_marks"]

_ASKED = (
    "kaldi", "librispeech", "nemo", "lhotse", "subtitles", "kraken", "pagexml", "alto", "tei", "huggingface", "table", "folder",
)  # fmt: skip
"""The most particular ones first: a folder of pages holds images, and may hold text files beside them."""


def names() -> list[str]:
    """The corpora there are.

    >>> "librispeech" in names()
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Callable[..., Report]:
    """The `prepare` function of a corpus; an unknown name raises `ValueError`."""
    if name not in names():
        raise ValueError(f"corpus {name!r} is not one of {', '.join(names())}")
    prepare: Callable[..., Report] = importlib.import_module(f"{__name__}.{name}").prepare
    return prepare


def putter_back(name: str) -> Callable[[Path, Sequence[Row], Putter], None] | None:
    """What puts fillings back into the files of a corpus, or None where its files cannot take any."""
    back: Callable[[Path, Sequence[Row], Putter], None] | None
    back = getattr(importlib.import_module(f"{__name__}.{name}"), "put_back", None)
    return back


def reader_of(source: str | os.PathLike[str]) -> str | None:
    """The name of the corpus that understands what is at `source`, a folder or a file; None where none does.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> reader_of(folder) is None
    True
    >>> [(folder / name).write_text("x") for name in ("a.png", "a.txt")] and reader_of(folder)
    'folder'
    """
    for name in _ASKED:
        if importlib.import_module(f"{__name__}.{name}").understands(Path(source)):
            return name
    return None
