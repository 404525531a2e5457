"""Train sequence models from transcripts with holes: Star Temporal Classification.

    >>> from starseq import STCLoss, InsertionPenalty

The names are imported when they are first used: the command's tools for data do without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starseq.lasting import onsets
    from starseq.loss import (
        CTCLoss,
        LastingSTCLoss,
        SelflessCTCLoss,
        STCLoss,
        ctc_loss,
        lasting_stc_loss,
        selfless_ctc_loss,
        stc_loss,
    )
    from starseq.penalty import AdaptivePenalty, InsertionPenalty
    from starseq.sharpness import Sharpness

__version__ = "0.1.0"

__all__ = [
    "AdaptivePenalty",
    "CTCLoss",
    "InsertionPenalty",
    "LastingSTCLoss",
    "STCLoss",
    "SelflessCTCLoss",
    "Sharpness",
    "__version__",
    "ctc_loss",
    "lasting_stc_loss",
    "onsets",
    "selfless_ctc_loss",
    "stc_loss",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'starseq' has no attribute {name!r}")
    homes = {"onsets": "lasting", "Sharpness": "sharpness", "AdaptivePenalty": "penalty", "InsertionPenalty": "penalty"}
    home = homes.get(name, "loss")
    module = importlib.import_module(f"starseq.{home}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
