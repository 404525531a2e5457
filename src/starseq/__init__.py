"""Train sequence models from transcripts with holes: Star Temporal Classification.

    >>> from starseq import STCLoss, InsertionPenalty
"""

from starseq.loss import CTCLoss, SelflessCTCLoss, STCLoss, ctc_loss, selfless_ctc_loss, stc_loss
from starseq.penalty import InsertionPenalty

__version__ = "0.1.0"

__all__ = [
    "CTCLoss",
    "InsertionPenalty",
    "STCLoss",
    "SelflessCTCLoss",
    "__version__",
    "ctc_loss",
    "selfless_ctc_loss",
    "stc_loss",
]
