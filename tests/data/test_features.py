"""Log-mel features against a plain numpy computation, against lhotse, and against themselves in a batch."""

import numpy as np
import pytest
import torch

from starseq.data.features import LogMel, mel_filters, standardize


def plain_log_mel(wave: np.ndarray, rate: int = 16_000, bands: int = 80) -> np.ndarray:
    """Frame by frame, bin by bin, in float64, from Kaldi's definition."""
    length, shift, fft = rate * 25 // 1000, rate // 100, 512
    frames = (len(wave) + shift // 2) // shift
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))) ** 0.85
    mel = lambda f: 1127 * np.log(1 + f / 700)  # noqa: E731
    edges = np.linspace(mel(20), mel(rate / 2 - 400), bands + 2)
    out = np.zeros((frames, bands))
    for t in range(frames):
        first = t * shift + shift // 2 - length // 2
        index = np.arange(first, first + length)
        while (index < 0).any() or (index >= len(wave)).any():  # mirrored, again and again
            index = np.where(index < 0, -1 - index, index)
            index = np.where(index >= len(wave), 2 * len(wave) - 1 - index, index)
        frame = wave[index].astype(np.float64)
        frame -= frame.mean()
        frame = np.concatenate(([frame[0] * 0.03], frame[1:] - 0.97 * frame[:-1])) * window
        power = np.abs(np.fft.rfft(frame, fft)) ** 2
        for band in range(bands):
            left, centre, right = edges[band : band + 3]
            m = mel(np.arange(fft // 2) * rate / fft)
            up, down = (m - left) / (centre - left), (right - m) / (right - centre)
            weight = np.maximum(0, np.minimum(up, down))
            out[t, band] = np.log(max((weight * power[:-1]).sum(), np.finfo(np.float32).eps))
    return out


@pytest.mark.parametrize("samples", [80, 200, 401, 1600, 5_077])
def test_against_plain_numpy(samples):
    wave = 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))
    got = LogMel(normalize=False)(wave)
    assert got.shape == (LogMel().frames(samples), 80)
    np.testing.assert_allclose(got.numpy(), plain_log_mel(wave.numpy()), atol=2e-3)


def test_against_lhotse():
    fbank = pytest.importorskip("lhotse.features.kaldi.layers").Wav2LogFilterBank()
    wave = 0.1 * torch.randn(16_123, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(LogMel(normalize=False)(wave), fbank(wave[None])[0], atol=2e-3)


def test_mean_and_variance_of_every_band():
    x = LogMel()(torch.randn(8_000))
    assert x.mean(dim=0).abs().max() < 1e-5
    assert (x.square().mean(dim=0) - 1).abs().max() < 1e-3
    assert torch.equal(standardize(torch.full((5, 3), 7.0)), torch.zeros(5, 3))
    assert torch.isfinite(LogMel()(torch.zeros(1_000))).all()  # silence: a constant floor, so 0
    assert torch.equal(LogMel()(torch.zeros(80)), torch.zeros(1, 80))


def test_a_batch_is_its_rows():
    log_mel, waves = LogMel(), [torch.randn(n) for n in (900, 16_000, 80)]
    x, lengths = log_mel.batch(waves)
    assert lengths.tolist() == [6, 100, 1]
    for row, length, wave in zip(x, lengths, waves, strict=True):
        assert torch.equal(row[:length], log_mel(wave))
        assert not row[length:].any()


def test_long_audio_in_chunks_is_the_same(monkeypatch):
    wave = torch.randn(40_000)
    whole = LogMel()(wave)
    monkeypatch.setattr("starseq.data.features._CHUNK", 7)
    assert torch.allclose(LogMel()(wave), whole, atol=1e-4)


def test_other_rates():
    assert LogMel(8_000, bands=40)(torch.randn(8_000)).shape == (100, 40)
    filters = mel_filters(16_000, 512, 80, 20.0, -400.0)
    assert filters.shape == (257, 80)
    assert (filters.sum(dim=0) > 0).all()


@pytest.mark.parametrize("bad", [torch.zeros(79), torch.zeros(0), torch.zeros(2, 800)])
def test_bad_waveforms(bad):
    with pytest.raises(ValueError, match="at least 80 samples"):
        LogMel()(bad)


def test_bad_settings():
    with pytest.raises(ValueError, match="do not fit"):
        LogMel(high=9_000)
    with pytest.raises(ValueError, match="rate=50"):
        LogMel(50)
