"""What a row looks like, to put into a page: a line image, or the spectrogram of a recording, as a data URI."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from starseq.data import audio
from starseq.data.dataset import Reader
from starseq.data.extractor import WaveformReader
from starseq.data.features import LogMel
from starseq.data.images import encode, open_image

__all__ = ["Picture", "line_picture", "picture", "sound"]

_HEIGHT, _WIDTH = 96, 2400
"""a line image is not larger"""
_SOUND_RATE = 16_000
_LONGEST_SOUND = 120
"""seconds"""


class Picture(NamedTuple):
    """A data URI, and its size in pixels: a column for each input frame of the model."""

    uri: str
    width: int
    height: int


def picture(x: Tensor, *, ink: bool, format: Literal["PNG", "JPEG"] = "PNG") -> Picture:
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
    data = b64encode(encode(pixels, format=format)).decode()
    return Picture(f"data:image/{format.lower()};base64,{data}", pixels.shape[1], pixels.shape[0])


def drawable(x: Tensor, reader: Reader) -> tuple[Tensor, int]:
    """What is drawn of the frames that a reader gives, (T, F), and how many of these a column is: samples become log-mel bands.

    >>> import torch
    >>> drawn, samples = drawable(torch.zeros(16_000, 1), WaveformReader(16_000))
    >>> drawn.shape[1], samples
    (80, 160)
    """
    if not isinstance(reader, WaveformReader) or reader.bands > 1:
        return x, 1
    bands = LogMel(reader.rate)
    if bands.frames(len(x)) < 1:
        return x, 1
    return bands(x[:, 0]), bands.shift


def line_picture(data: bytes, *, name: str) -> Picture:
    """A line image as it is, in grey, and not larger than a page needs. An image that cannot be decoded is a `DataError`."""
    image = open_image(data, name=name)
    scale = min(1.0, _HEIGHT / image.height, _WIDTH / image.width)
    if scale < 1:
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=75)
    return Picture("data:image/jpeg;base64," + b64encode(buffer.getvalue()).decode(), image.width, image.height)


def sound(data: bytes, *, name: str) -> str:
    """A recording as a data URI that browsers play, small; empty for a long one. One that cannot be decoded is a `DataError`."""
    import soundfile

    wave = audio.decode(data, rate=_SOUND_RATE, name=name)
    if len(wave) > _LONGEST_SOUND * _SOUND_RATE:
        return ""
    kind, options = ("MP3", {"compression_level": 0.9}) if "MP3" in soundfile.available_formats() else ("FLAC", {})
    buffer = io.BytesIO()
    soundfile.write(buffer, wave.numpy(), _SOUND_RATE, format=kind, **options)
    media = {"MP3": "mpeg", "FLAC": "flac"}[kind]
    return f"data:audio/{media};base64," + b64encode(buffer.getvalue()).decode()
