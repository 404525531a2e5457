"""What goes wrong through no fault of the program: one sentence that the user can act on."""

from __future__ import annotations

__all__ = ["DataError"]


class DataError(ValueError):
    """Input that cannot be used. The message is one sentence: where, and what is wrong there.

    The command prints it and exits with 2; from Python it is a ``ValueError`` like any other.
    """
