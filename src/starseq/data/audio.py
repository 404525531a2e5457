"""Audio: a file or its bytes to one mono waveform at one sampling rate.

Decoding is libsndfile's (wav, flac, ogg with opus or vorbis, mp3 and whatever else it knows); resampling is a
windowed-sinc polyphase filter in torch, so that nothing of torchaudio is needed.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from starseq.data.errors import DataError

SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".opus", ".oga", ".mp3", ".aiff", ".aif", ".au", ".w64", ".caf"})

# Rates outside this range are header damage: resampling from them would also need absurd amounts of memory.
_RATES = range(100, 1_000_001)

# WAV that holds the samples of other formats as what they are read: numpy's type, the header's tag, bits.
_PCM16, _PCM32, _FLOAT = ("int16", 1, 16), ("int32", 1, 32), ("float32", 3, 32)
_WAV = {**dict.fromkeys(("PCM_16", "PCM_S8", "PCM_U8", "ULAW", "ALAW"), _PCM16), "PCM_24": _PCM32}
_HEAD = struct.Struct("<4sI8sIHHIIHH4sI")
"""of a WAV that has no more than its samples"""
_SCALES = {(1, 16): ("<i2", 2.0**-15), (1, 32): ("<i4", 2.0**-31), (3, 32): ("<f4", 1.0)}
_BLOCK = 1 << 16  # frames decoded at a time: a header that lies about its length cannot make us allocate for it


@dataclass(frozen=True)
class AudioInfo:
    """What the header says: `rate` in Hz, `frames` (samples a channel), `channels`."""

    rate: int
    frames: int
    channels: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def probe(source: Path | bytes, *, name: str | None = None) -> AudioInfo:
    """The header of an audio file, without decoding it. Bad input: as `decode`.

    >>> probe(encode(torch.zeros(800), 16_000)).seconds
    0.05
    """
    import soundfile

    name = name or (str(source) if isinstance(source, Path) else "audio")
    try:
        info = soundfile.info(str(source) if isinstance(source, Path) else io.BytesIO(source))
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(source, name, error) from None
    _check_header(name, info.samplerate, info.frames)
    return AudioInfo(info.samplerate, info.frames, info.channels)


def decode(source: Path | bytes, *, rate: int | None = 16_000, name: str | None = None) -> Tensor:
    """The waveform of an audio file: (N,) float32, channels averaged, resampled to `rate` (None: as it is).

    `source` is a path or the file's bytes; `name` is how an error calls it. A file that is missing, empty, corrupt or
    cut short, a sampling rate of 0, and samples that are not finite raise `DataError` with one sentence.

    >>> decode(encode(torch.zeros(800), 8_000)).shape
    torch.Size([1600])
    """
    import soundfile

    name = name or (str(source) if isinstance(source, Path) else "audio")
    try:
        # From bytes even for a path: one way through libsndfile, and the same way for members of an archive.
        data = source.read_bytes() if isinstance(source, Path) else source
    except OSError as error:
        raise _unreadable(source, name, error) from None
    try:
        wave: NDArray[np.float32]
        plain = _plain_wav(data)
        if plain is not None:  # a part of a recording is not decoded twice
            wave, old = plain
            stated = len(wave)
            _check_header(name, old, stated)
        else:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                _check_header(name, file.samplerate, file.frames)
                blocks = []
                while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
                    blocks.append(block)
                wave = np.concatenate(blocks) if blocks else np.zeros((0, 1), np.float32)
                old, stated = file.samplerate, file.frames
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(data, name, error) from None
    if len(wave) < stated:
        raise DataError(f"{name}: the audio is cut short, after {len(wave)} of {stated} samples")
    if _riff_is_cut(data):
        raise DataError(f"{name}: the audio is cut short, after {len(data)} bytes")
    if not len(wave):
        raise DataError(f"{name}: the audio has no samples")
    mono = torch.from_numpy(wave.mean(axis=1, dtype=np.float32) if wave.shape[1] > 1 else wave[:, 0])
    if not math.isfinite(float(mono.sum())):
        bad = int((~torch.isfinite(mono)).nonzero()[0])
        raise DataError(f"{name}: sample {bad} is {float(mono[bad])}, not a finite number")
    return mono if rate is None else resample(mono, old, rate)


def part(
    file: Path | BinaryIO, start: float, end: float | None, *, channel: int | None = None, name: str | None = None
) -> bytes:
    """A part of a recording, from `start` to `end` seconds (None: its end), as a WAV with the same samples.

    The rest is neither read nor decoded. `channel` takes one of them, counted from 0. Raises as `decode` does, also for a part
    that is not there; an end that lies behind that of the recording by half a second or less is taken for it.

    >>> data = part(io.BytesIO(encode(torch.zeros(8_000), 8_000)), 0.25, 0.5)
    >>> probe(data).frames
    2000
    """
    import soundfile

    name = name or (str(file) if isinstance(file, Path) else "audio")
    try:
        with soundfile.SoundFile(str(file) if isinstance(file, Path) else file) as sound:
            rate = sound.samplerate
            _check_header(name, rate, sound.frames)
            first, last = span(AudioInfo(rate, sound.frames, sound.channels), start, end, channel=channel, name=name)
            dtype, tag, bits = _WAV.get(sound.subtype, _FLOAT)
            sound.seek(first)
            wave = sound.read(last - first, dtype=dtype, always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(file, name, error) from None
    if len(wave) < last - first:
        raise DataError(f"{name}: the audio is cut short, after {first + len(wave)} samples")
    wave = wave if channel is None else wave[:, channel : channel + 1]
    samples: bytes = wave.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    channels = wave.shape[1]
    block = channels * bits // 8
    form = tag, channels, rate, rate * block, block, bits
    return _HEAD.pack(b"RIFF", 36 + len(samples), b"WAVEfmt ", 16, *form, b"data", len(samples)) + samples


def _plain_wav(data: bytes) -> tuple[NDArray[np.float32], int] | None:
    """The samples (N, channels) and the rate of a WAV with nothing in it but a format of `_SCALES` and all of its samples; None for
    every other file. The samples are those that libsndfile gives."""
    if len(data) < _HEAD.size or data[:4] != b"RIFF":
        return None
    _, _, kind, size, tag, channels, rate, _, block, bits, chunk, count = _HEAD.unpack_from(data)
    scale = _SCALES.get((tag, bits))
    if (kind, size, chunk) != (b"WAVEfmt ", 16, b"data") or scale is None or not channels:
        return None
    if not 0 < count == len(data) - _HEAD.size or count % block or 8 * block != channels * bits:
        return None
    dtype, factor = scale
    wave = np.frombuffer(data, dtype, offset=_HEAD.size).reshape(-1, channels).astype(np.float32)
    return (wave if factor == 1.0 else wave * np.float32(factor)), rate


def span(info: AudioInfo, start: float, end: float | None, *, channel: int | None = None, name: str) -> tuple[int, int]:
    """The samples of a part, first and last + 1; one that is not there is a `DataError` (see `part`)."""
    wanted = f"from {start:g} s to {'the end' if end is None else f'{end:g} s'}"
    nothing = DataError(f"{name}: there is nothing {wanted}, for it has {info.seconds:g} s")
    if not (math.isfinite(start) and (end is None or math.isfinite(end))):
        raise nothing
    first, last = round(start * info.rate), info.frames if end is None else round(end * info.rate)
    if not (0 <= first < min(last, info.frames) and last <= info.frames + info.rate // 2):
        raise nothing
    if channel is not None and not 0 <= channel < info.channels:
        raise DataError(f"{name}: no channel {channel}, for it has {info.channels}")
    return first, min(last, info.frames)


def encode(wave: Tensor, rate: int, *, format: str = "WAV", subtype: str | None = None) -> bytes:
    """The bytes of an audio file that holds `wave`: (N,) or (N, channels)."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, wave.cpu().numpy(), rate, format=format, subtype=subtype)
    return buffer.getvalue()


def resample(wave: Tensor, old: int, new: int, *, zeros: int = 32, rolloff: float = 0.95) -> Tensor:
    """`wave` (N,), sampled at `old` Hz, at `new` Hz: (ceil(N * new / old),).

    out[n] = sum_k wave[k] h(n old / new - k), with h a sinc at `rolloff` of the lower Nyquist frequency under a Hann
    window of `zeros` zero crossings to a side. Only new / gcd(old, new) different fractions occur: one filter, one
    strided product each.

    >>> resample(torch.ones(5), 16_000, 16_000)
    tensor([1., 1., 1., 1., 1.])
    >>> len(resample(torch.ones(441), 44_100, 16_000))
    160
    """
    if min(old, new) <= 0:
        raise ValueError(f"sampling rates are positive; got old={old}, new={new}")
    if old == new:
        return wave
    gcd = math.gcd(old, new)
    old, new = old // gcd, new // gcd
    length = -(-len(wave) * new // old)
    filters, starts = _filters(old, new, zeros, rolloff)
    taps = filters.shape[1]
    # The last output reads half the taps past its own place; a stride's worth more lets every phase be as long.
    padded = torch.nn.functional.pad(wave, (taps // 2, taps // 2 + old + 1))
    out = wave.new_empty(-(-length // new), new)
    for phase, start in enumerate(starts):
        windows = padded[start:].unfold(0, taps, old)[: len(out)]  # (len(out), taps), a view
        for i in range(0, len(out), _BLOCK):  # in blocks, because the product copies where windows overlap
            out[i : i + _BLOCK, phase] = windows[i : i + _BLOCK] @ filters[phase].to(wave)
    return out.flatten()[:length]


@lru_cache(maxsize=32)
def _filters(old: int, new: int, zeros: int, rolloff: float) -> tuple[Tensor, list[int]]:
    """For each of `new` phases: its taps, (new, K), and the input sample at or before it, on which they are centred."""
    cutoff = rolloff * min(1.0, new / old)  # in units of the input's Nyquist frequency
    reach = math.ceil(zeros / cutoff)
    phase = torch.arange(new, dtype=torch.float64) * old / new
    start = phase.floor()
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)[None] - (phase - start)[:, None]
    window = torch.cos((offset * cutoff / zeros).clamp(-1, 1) * math.pi / 2) ** 2
    taps = torch.sinc(offset * cutoff) * window
    taps /= taps.sum(dim=1, keepdim=True)  # a constant stays that constant, whatever the phase
    return taps.float(), [int(s) for s in start]


def _check_header(name: str, rate: int, frames: int) -> None:
    if rate not in _RATES:
        raise DataError(f"{name}: the sampling rate is {rate} Hz")
    if frames <= 0:
        raise DataError(f"{name}: the audio has no samples")


def _riff_is_cut(data: bytes) -> bool:
    """A WAV that lost its end: libsndfile reads what is there and says nothing. 0 and 2^32 - 1 mean `not known`."""
    stated = int.from_bytes(data[4:8], "little")
    return data[:4] == b"RIFF" and 0 < stated < 0xFFFF_FFFF and stated > len(data)


def _unreadable(source: Path | bytes | BinaryIO, name: str, error: Exception) -> DataError:
    """One sentence for what libsndfile, or the file system, could not read."""
    if isinstance(source, Path):
        if not source.is_file():
            return DataError(f"{name}: no such file")
        try:
            with source.open("rb") as file:
                source = file.read(64)
        except OSError as problem:
            return DataError(f"{name}: cannot be read ({problem.strerror})")
    elif not isinstance(source, bytes):
        source.seek(0)
        source = source.read(64)
    if not source:
        return DataError(f"{name}: the file is empty")
    if source[:4] == b"RIFF" and source[12:16] == b"fmt " and source[24:28] == bytes(4):
        return DataError(f"{name}: the sampling rate is 0 Hz")
    reason = str(error).rsplit(": ", 1)[-1].strip().rstrip(".") or type(error).__name__
    return DataError(f"{name}: not audio that can be decoded ({reason})")
