"""Log-mel features: 80 bands, 25 ms windows every 10 ms, each utterance shifted and scaled to mean 0 and variance 1.

The numbers are Kaldi's `fbank` with its usual settings (DC removed per frame, pre-emphasis 0.97, Povey window, 20 Hz to
400 Hz below Nyquist, edges mirrored), so that they can be set beside those of Kaldi, k2 and lhotse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

_FLOOR = torch.finfo(torch.float32).eps
_CHUNK = 8192  # frames in flight: an hour of audio must not become gigabytes of windows


class LogMel(nn.Module):
    """Waveform (N,) in [-1, 1] to log-mel features (T, bands), T = round(N / shift).

    x_t = log max(eps, M |rfft(w * preemphasis(frame_t - mean))|^2), then, with `normalize`, (x - mean) / std over the
    utterance's own frames, band by band. Frame t is centred on sample (t + 1/2) * shift, the ends are mirrored.

    >>> LogMel()(torch.randn(16_000)).shape
    torch.Size([100, 80])

    A waveform too short for one frame raises `ValueError`.
    """

    window: Tensor
    mel: Tensor

    def __init__(
        self,
        rate: int = 16_000,
        bands: int = 80,
        *,
        window_seconds: float = 0.025,
        shift_seconds: float = 0.010,
        low: float = 20.0,
        high: float = -400.0,
        preemphasis: float = 0.97,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.rate, self.bands, self.top = rate, bands, _top(rate, high)
        self.length, self.shift = int(rate * window_seconds), int(rate * shift_seconds)
        if self.shift < 1 or self.length < self.shift:
            raise ValueError(f"rate={rate} leaves windows of {self.length} samples every {self.shift}")
        self.fft = 1 << (self.length - 1).bit_length()
        self.preemphasis, self.normalize = preemphasis, normalize
        self.settings = (
            f"rate={rate} bands={bands} window={self.length} shift={self.shift} low={low:g} high={high:g} "
            f"preemphasis={preemphasis:g} normalize={normalize}"
        )
        window = torch.hann_window(self.length, periodic=False, dtype=torch.float64).pow(0.85)
        self.register_buffer("window", window.float(), persistent=False)
        self.register_buffer("mel", mel_filters(rate, self.fft, bands, low, high), persistent=False)

    def frames(self, samples: int) -> int:
        """T for a waveform of `samples`.

        >>> LogMel().frames(16_079), LogMel().frames(16_080)
        (100, 101)
        """
        return (samples + self.shift // 2) // self.shift

    @torch.no_grad()
    def forward(self, wave: Tensor) -> Tensor:
        """wave (N,) -> (T, bands)."""
        if wave.ndim != 1 or self.frames(len(wave)) < 1:
            raise ValueError(f"wave is (N,) with at least {-(-self.shift // 2)} samples; got {tuple(wave.shape)}")
        windows = _mirrored(wave, self.frames(len(wave)), self.length, self.shift)
        features = torch.cat([self._log_mel(windows[i : i + _CHUNK]) for i in range(0, len(windows), _CHUNK)])
        return standardize(features) if self.normalize else features

    def batch(self, waves: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Waveforms (N_i,) -> features (B, max T, bands), zero past the lengths, and the lengths (B,).

        No utterance sees another, or padding: row i is `self(waves[i])`.
        """
        features = [self(wave) for wave in waves]
        lengths = torch.tensor([len(x) for x in features])
        return pad_sequence(features, batch_first=True), lengths

    def _log_mel(self, frames: Tensor) -> Tensor:
        """frames (T, length) -> (T, bands)."""
        frames = frames - frames.mean(dim=1, keepdim=True)
        before = torch.cat((frames[:, :1], frames[:, :-1]), dim=1)
        spectrum = torch.fft.rfft((frames - self.preemphasis * before) * self.window, n=self.fft)
        power: Tensor = spectrum.real.square() + spectrum.imag.square()
        return torch.mm(power, self.mel).clamp_min(_FLOOR).log()


def standardize(features: Tensor, eps: float = 1e-5) -> Tensor:
    """(T, F) with mean 0 and variance 1 in every column; a constant column becomes 0.

    >>> standardize(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[-1.0000,  0.0000],
            [ 1.0000,  0.0000]])
    """
    centred = features - features.mean(dim=0)
    return centred / (centred.square().mean(dim=0).sqrt() + eps)


def mel_filters(rate: int, fft: int, bands: int, low: float, high: float) -> Tensor:
    """Triangles on Kaldi's mel scale, mel(f) = 1127 ln(1 + f / 700): (fft // 2 + 1, bands).

    `high` <= 0 counts from Nyquist. Slopes are straight in mel, and the Nyquist bin has no weight, as in Kaldi.
    """
    top = _top(rate, high)
    if not 0 <= low < top <= rate / 2:
        raise ValueError(f"mel bands from {low} to {top} Hz do not fit a rate of {rate} Hz")
    edges = torch.linspace(_mel(low), _mel(top), bands + 2, dtype=torch.float64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    bins = torch.arange(fft // 2, dtype=torch.float64) * rate / fft
    mel = (1127.0 * (1.0 + bins / 700.0).log())[:, None]
    triangles = torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)).clamp_min(0)
    return nn.functional.pad(triangles, (0, 0, 0, 1)).float()


def _top(rate: int, high: float) -> float:
    """The upper edge of the bands, in Hz."""
    return high + rate / 2 if high <= 0 else high


def _mel(hertz: float) -> float:
    return 1127.0 * math.log(1.0 + hertz / 700.0)


def _mirrored(wave: Tensor, frames: int, length: int, shift: int) -> Tensor:
    """Windows (frames, length) centred on (t + 1/2) shift; past its ends the signal is mirrored, again and again."""
    left = length // 2 - shift // 2
    right = max(0, (frames - 1) * shift + length - left - len(wave))
    if max(left, right) <= len(wave):  # the usual case needs no index arithmetic
        padded = torch.cat((wave[:left].flip(0), wave, wave[len(wave) - right :].flip(0)))
    else:
        index = torch.arange(-left, len(wave) + right, device=wave.device) % (2 * len(wave))
        padded = wave[torch.minimum(index, 2 * len(wave) - 1 - index)]
    return padded.unfold(0, length, shift)[:frames]
