"""Train sequence models from transcripts with holes: Star Temporal Classification.

    >>> from starseq import STCLoss, InsertionPenalty

The names are imported when they are first used: the command's tools for data do without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starseq.loss import (
        CTCLoss,
        SelflessCTCLoss,
        STCLoss,
        ctc_loss,
        selfless_ctc_loss,
        stc_loss,
    )
    from starseq.penalty import AdaptivePenalty, InsertionPenalty

__version__ = "0.1.0"

__all__ = [
    "AdaptivePenalty",
    "CTCLoss",
    "InsertionPenalty",
    "STCLoss",
    "SelflessCTCLoss",
    "__version__",
    "ctc_loss",
    "selfless_ctc_loss",
    "stc_loss",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'starseq' has no attribute {name!r}")
    home = "penalty" if name.endswith("Penalty") else "loss"
    module = importlib.import_module(f"starseq.{home}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
