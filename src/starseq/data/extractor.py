"""Readers of audio for models from outside: by the feature extractor that such a model was trained with, or as it is."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import Row

__all__ = ["ExtractorReader", "WaveformReader"]


class WaveformReader:
    """Audio to its samples, (T, 1), at `rate`; sizes are seconds."""

    bands = 1

    def __init__(self, rate: int = 16_000) -> None:
        if rate < 1:
            raise ValueError(f"rate is at least 1; got {rate}")
        self.rate = rate

    @property
    def key(self) -> str:
        return f"waveform rate={self.rate}"

    @property
    def seconds(self) -> float:
        """from one frame to the next"""
        return 1 / self.rate

    def __call__(self, row: Row, data: bytes) -> Tensor:
        return self.extract(self.wave(row, data), row.path)

    def wave(self, row: Row, data: bytes) -> Tensor:
        if row.features is not None:  # what `precompute` wrote
            raise DataError(f"{row.path}: features, not audio, which is what this model reads")
        return audio.decode(data, rate=self.rate, name=row.path)

    def extract(self, wave: Tensor, name: str) -> Tensor:
        """wave (N,) -> the frames, (T, F)."""
        return wave[:, None]

    def size(self, row: Row) -> float | None:
        return row.seconds

    def measure(self, row: Row, data: bytes) -> float:
        return audio.probe(data, name=row.path).seconds

    def frames(self, size: float) -> int:
        return round(size * self.rate)


class ExtractorReader(WaveformReader):
    """Audio to what the feature extractor of the model at `path` makes of it, unpadded and uncut."""

    def __init__(self, path: str) -> None:
        from starseq.pretrained import extractor_of

        try:
            self.extractor: Any = extractor_of(path)
        except ValueError as error:
            raise DataError(str(error)) from None
        rate = getattr(self.extractor, "sampling_rate", None)
        if not isinstance(rate, int):
            raise DataError(f"{path}: its feature extractor, {type(self.extractor).__name__}, is not for audio")
        super().__init__(rate)

    @property
    def key(self) -> str:
        return f"extractor {hashlib.sha256(self.extractor.to_json_string().encode()).hexdigest()[:16]}"

    @cached_property
    def _line(self) -> tuple[int, int, float]:
        """The frames of one second, the bands, and the samples from one frame to the next."""
        generator = torch.Generator().manual_seed(0)
        short, long = (self.extract(torch.randn(n * self.rate, generator=generator), "noise") for n in (1, 11))
        return len(short), short.shape[1], 10 * self.rate / (len(long) - len(short))

    @property
    def bands(self) -> int:  # type: ignore[override]
        """F"""
        return self._line[1]

    @property
    def seconds(self) -> float:
        return self._line[2] / self.rate

    def extract(self, wave: Tensor, name: str) -> Tensor:
        whisper = type(self.extractor).__name__ == "WhisperFeatureExtractor"
        options = {"padding": "do_not_pad", "truncation": False} if whisper else {"return_attention_mask": True}
        try:
            found = self.extractor(wave.numpy(), sampling_rate=self.rate, return_tensors="pt", **options)
        except (ValueError, RuntimeError, IndexError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{name}: the model's feature extractor takes no {len(wave) / self.rate:.3g} s of audio ({reason})"
            ) from None
        x: Tensor = found["input_values" if "input_values" in found else "input_features"][0]
        if x.ndim == 1:
            return x[:, None].float()
        if whisper:
            return x.T.contiguous().float()
        mask = found.get("attention_mask")
        return (x if mask is None else x[: int(mask[0].sum())]).contiguous().float()

    def frames(self, size: float) -> int:
        first, _, shift = self._line
        return max(0, first + round((size - 1) * self.rate / shift))
