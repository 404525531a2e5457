"""What a row looks like, to put into a page: a line image, or the spectrogram of a recording, as a data URI."""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import numpy as np
from torch import Tensor

from starseq.data.images import encode

__all__ = ["Picture", "picture"]


class Picture(NamedTuple):
    """A PNG as a data URI, and its size in pixels: a column for each input frame of the model."""

    uri: str
    width: int
    height: int


def picture(x: Tensor, *, ink: bool) -> Picture:
    """Frames (T, F) as grey pixels, time to the right: `ink` (1 is ink, 0 paper) as a line image with its feet down, else a
    spectrogram with low bands down. What is drawn is decoded and encoded anew: no byte of the user's file gets into a page.

    >>> import torch
    >>> made = picture(torch.zeros(40, 8), ink=True)
    >>> made.width, made.height, made.uri[:22]
    (40, 8, 'data:image/png;base64,')
    """
    values = x.detach().float().cpu().numpy().T
    if ink:
        grey = 255 * (1 - values.clip(0, 1))
    else:
        low, high = np.percentile(values, (2, 99.5)) if values.size else (0.0, 1.0)
        grey = 255 * (1 - ((values[::-1] - low) / max(high - low, 1e-6)).clip(0, 1))
    pixels = np.ascontiguousarray(grey.round().astype(np.uint8))
    return Picture("data:image/png;base64," + b64encode(encode(pixels)).decode(), pixels.shape[1], pixels.shape[0])
