"""The recipes of the package: what each is called, its text, and what it is for. Imports nothing heavy: `--help` reads it."""

from __future__ import annotations

from importlib import resources

__all__ = ["listing", "names", "purpose", "text"]


def names() -> list[str]:
    """What they are called.

    >>> names()
    ['digits', 'handwriting', 'iam', 'librispeech-letters', 'librispeech-words', 'speech']
    """
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def text(name: str) -> str:
    """The YAML of one."""
    return (resources.files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def purpose(name: str) -> str:
    """What it is for, on what data, and how long it takes: the comment at the top of its file, as one line.

    >>> purpose("digits").partition(".")[0]
    'To try things out: lines of handwritten digits, which are built in'
    """
    lines = text(name).splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.lstrip("# ") for line in lines[:end])


def listing() -> str:
    """All of them, the tasks before the published ones: a paragraph for each."""
    published = {name: purpose(name).startswith("Published") for name in names()}
    return "\n\n".join(f"{name}: {purpose(name)}" for name in sorted(published, key=lambda name: published[name]))
