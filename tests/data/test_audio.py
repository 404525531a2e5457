"""Decoding and resampling: what comes out, and one sentence for everything that cannot come out."""

import io
import math
import struct

import numpy as np
import pytest
import soundfile
import torch

from starseq.data.audio import decode, encode, part, probe, resample
from starseq.data.errors import DataError


def tone(frequency: float, rate: int, seconds: float = 1.0) -> torch.Tensor:
    t = torch.arange(int(rate * seconds), dtype=torch.float64) / rate
    return torch.sin(2 * math.pi * frequency * t).float()


@pytest.mark.parametrize(
    ("format", "subtype", "tolerance"),
    [("WAV", "PCM_16", 1e-4), ("WAV", "FLOAT", 0.0), ("FLAC", None, 1e-4), ("OGG", "OPUS", 0.1), ("MP3", None, 0.1)],
)
def test_formats_from_bytes_and_path(tmp_path, format, subtype, tolerance):
    wave = 0.5 * tone(440, 16_000)
    data = encode(wave, 16_000, format=format, subtype=subtype)
    (tmp_path / "a.bin").write_bytes(data)
    for source in (data, tmp_path / "a.bin"):
        assert probe(source).rate == 16_000
        decoded = decode(source)
        assert decoded.dtype == torch.float32
        assert abs(len(decoded) - 16_000) <= (0 if format != "MP3" else 1152)
        middle = slice(2000, 14_000)  # codecs ring at the ends
        assert (decoded[middle] - wave[middle]).abs().max() <= tolerance


def test_channels_are_averaged():
    stereo = torch.stack((torch.full((800,), 0.5), torch.full((800,), -0.25)), dim=1)
    assert torch.allclose(decode(encode(stereo, 16_000, subtype="FLOAT")), torch.full((800,), 0.125))


@pytest.mark.parametrize("old", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000])
def test_resampled_sine_is_that_sine(old):
    for frequency in (100, 1_000, 3_000):
        got = resample(tone(frequency, old), old, 16_000)
        assert len(got) == 16_000
        inner = slice(400, -400)
        assert (got - tone(frequency, 16_000))[inner].abs().max() < 2e-4


def test_resampling_removes_what_would_alias():
    assert resample(tone(11_000, 48_000), 48_000, 16_000)[400:-400].abs().max() < 1e-4


def test_resampling_odd_rates_needs_little_memory_and_keeps_constants():
    # gcd 1: 16,000 phases. A dense filter bank would take gigabytes.
    got = resample(torch.ones(44_101), 44_101, 16_000)
    assert len(got) == 16_000
    assert (got[400:-400] - 1).abs().max() < 1e-5
    assert len(resample(torch.ones(3), 16_000, 48_000)) == 9
    assert torch.equal(resample(torch.arange(5.0), 7, 7), torch.arange(5.0))
    with pytest.raises(ValueError, match="old=0"):
        resample(torch.ones(3), 0, 16_000)


def wav(**changes: object) -> bytes:
    data = bytearray(encode(0.5 * tone(440, 16_000, 0.1), 16_000))
    if "rate" in changes:
        data[24:28] = struct.pack("<I", changes["rate"])
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a.wav: the file is empty"),
        (b"no audio at all", "a.wav: not audio that can be decoded"),
        (wav()[:1000], "a.wav: the audio is cut short"),
        (encode(torch.rand(16_000), 16_000, format="FLAC")[:9000], "a.wav: not audio that can be decoded"),
        (encode(torch.rand(16_000), 16_000, format="MP3")[:1200], "a.wav: the audio is cut short"),
        (encode(torch.rand(16_000), 16_000, format="OGG", subtype="OPUS")[:2000], "a.wav: not audio"),
        (wav(rate=0), "a.wav: the sampling rate is 0 Hz"),
        (wav(rate=7), "a.wav: the sampling rate is 7 Hz"),
        (encode(torch.zeros(0), 16_000), "a.wav: the audio has no samples"),
        (encode(torch.tensor([0.0, math.nan]), 16_000, subtype="FLOAT"), "a.wav: sample 1 is nan, not a finite number"),
        (encode(torch.tensor([math.inf, 0.0]), 16_000, subtype="FLOAT"), "a.wav: sample 0 is inf, not a finite number"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # a wav holds the time at which it was made
)
def test_bad_audio_is_one_sentence(data, message):
    with pytest.raises(DataError) as caught:
        decode(data, name="a.wav")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert "0x" not in str(caught.value)  # no object's address


def test_missing_file(tmp_path):
    for read in (decode, probe):
        with pytest.raises(DataError, match=r"a\.wav: no such file"):
            read(tmp_path / "a.wav")


def test_a_lying_header_allocates_nothing():
    data = bytearray(encode(tone(440, 16_000, 0.1), 16_000, format="FLAC"))
    data[21:26] = bytes([data[21] | 0x0F, 0xFF, 0xFF, 0xFF, 0xFF])  # total samples: 2^36 - 1, 256 GiB as float32
    with pytest.raises(DataError, match=r"cut short|decoded"):
        decode(bytes(data), name="a.flac")


@pytest.mark.parametrize(
    ("suffix", "subtype"),
    [("wav", name) for name in ("PCM_16", "PCM_24", "PCM_32", "PCM_U8", "ULAW", "FLOAT", "DOUBLE")]
    + [("flac", "PCM_16"), ("flac", "PCM_24"), ("ogg", "VORBIS"), ("ogg", "OPUS"), ("mp3", None)],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_a_part_has_the_samples_of_the_whole(tmp_path, suffix, subtype, as_file):
    noise = 0.1 * torch.randn((32_000, 2), generator=torch.Generator().manual_seed(0))
    if subtype == "FLOAT":
        noise *= 1_000  # as some write them
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encode(noise, 16_000, format=suffix.upper(), subtype=subtype))
    whole = decode(path, rate=None)
    close = 1e-5 if suffix == "mp3" else 0.0
    for start, end, first, last in ((0.5, 0.75, 8_000, 12_000), (1.25, None, 20_000, len(whole)), (0, 0.1, 0, 1_600)):
        data = part(io.BytesIO(path.read_bytes()) if as_file else path, start, end)
        assert probe(data).frames == last - first
        assert (decode(data, rate=None) - whole[first:last]).abs().max() <= close
    sides = [decode(part(path, 0.5, 0.75, channel=side), rate=None) for side in (0, 1)]
    assert (sum(sides) / 2 - whole[8_000:12_000]).abs().max() <= 1e-3 * whole.abs().max()
    assert not torch.equal(*sides)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "PCM_U8"])
def test_a_part_is_decoded_once_and_right(subtype, channels, monkeypatch):
    """The samples of a part are those that libsndfile reads from it, bit by bit, and it is not asked again."""
    wave = np.random.default_rng(0).uniform(-1, 1, (4_000, channels))
    file = io.BytesIO()
    soundfile.write(file, wave, 8_000, format="WAV", subtype=subtype)
    whole = file.getvalue()
    data = part(io.BytesIO(whole), 0.1, 0.3)
    expected, full = (soundfile.read(io.BytesIO(one), dtype="float32", always_2d=True)[0] for one in (data, whole))
    decoded = decode(whole, rate=None)
    assert np.array_equal(decoded, full.mean(axis=1, dtype=np.float32) if channels > 1 else full[:, 0])
    monkeypatch.setattr(soundfile, "SoundFile", None)
    found = decode(data, rate=None)
    assert np.array_equal(found, expected.mean(axis=1, dtype=np.float32) if channels > 1 else expected[:, 0])


def test_a_part_of_what_is_no_audio(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"no audio")
    for source in (tmp_path / "a.wav", io.BytesIO(b"no audio")):
        with pytest.raises(DataError, match=r"x\.wav: not audio that can be decoded"):
            part(source, 0, 1, name="x.wav")
    with pytest.raises(DataError, match=r"b\.wav: no such file"):
        part(tmp_path / "b.wav", 0, 1)
    with pytest.raises(DataError, match=r"audio: there is nothing from 0 s to 1\.6 s, for it has 1 s"):
        part(io.BytesIO(encode(torch.zeros(8_000), 8_000)), 0, 1.6)
