"""An extension of griffe, which reads docstrings for the API reference: examples that begin with >>> are code, not quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\s*\n|\Z)", re.DOTALL)


class Doctests(Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The docstring with each example in a fence.

    >>> fenced("What.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").split("\\n")
    ['What.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)
