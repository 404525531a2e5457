"""Subtitles beside recordings: SRT and WebVTT with all that players read, and what is wrong by file and line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from starseq.corpora import load, reader_of
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

prepare = load("subtitles")
RATE = 8_000

SRT = """\ufeff1
00:00:00,500 --> 00:00:01,250
- <i>The</i> quick
- {\\an8}<font color="red">brown</font> * fox [door]

2
00:00:02,000 --> 00:00:02,500 X1:40 X2:600
(music)

3
00:00:03,000 --> 00:00:04,300
5 < 6 &amp; more
"""

VTT = """WEBVTT - a talk
Kind: captions

NOTE
from --> to is said here, too

STYLE
::cue { color: red }

intro
00:00.500 --> 00:01.250 align:start
<v.loud Ann &amp; Ben>hello <00:00:00.900><c>there</c></v>

00:00:02.000 --> 00:00:03.000
second
"""


@pytest.fixture
def wave(tmp_path: Path) -> np.ndarray:
    wave = np.random.default_rng(0).integers(-9_000, 9_000, 4 * RATE).astype(np.int16)
    soundfile.write(tmp_path / "talk.flac", wave, RATE)
    return wave


def test_srt(tmp_path: Path, wave: np.ndarray) -> None:
    (tmp_path / "talk.srt").write_text(SRT.replace("\n", "\r\n"))
    assert reader_of(tmp_path) == "subtitles"
    report = prepare(tmp_path, tmp_path / "out", check=True)
    assert dict(report.left_out) == {"cue without words": 1}
    first, second = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert first.fields == {
        "id": "talk-0000500-0001250", "path": "../talk.flac", "text": "The quick brown * fox", "recording": "talk",
        "split": first["split"], "start": 0.5, "end": 1.25, "duration": 0.75, "samples": 6_000, "sampling_rate": RATE,
    }  # fmt: skip
    assert (second.text, second["start"], second["end"], second["split"]) == ("5 < 6 & more", 3.0, 4.0, first["split"])
    data = read_bytes(first, tmp_path / "out", tmp_path)
    assert np.array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0], wave[4_000:10_000])
    assert report.unmarked == 1  # text may be missing anywhere in it


def test_webvtt_in_a_language_and_a_split(tmp_path: Path, wave: np.ndarray) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "talk.flac").rename(tmp_path / "test" / "talk.flac")
    (tmp_path / "test" / "talk.en.vtt").write_text(VTT)
    (tmp_path / "test" / "lost.vtt").write_text(VTT)
    report = prepare(tmp_path, tmp_path / "out")
    assert dict(report.left_out) == {".vtt file without a recording": 1}
    first, second = read_manifest(tmp_path / "out" / "manifest.jsonl")
    assert [first[name] for name in ("id", "text", "speaker", "split")] == ["intro", "hello there", "Ann & Ben", "test"]
    assert (second.id, second.text) == ("test/talk-0002000-0003000", "second")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "talk.srt",
            "1\n00:00:01,000 -> 00:00:02,000\nx\n",
            r"talk\.srt, line 1: '1' is not the time of a cue, from --> to",
        ),
        (
            "talk.srt",
            "\n1\n00:01,0000 --> 00:02,0\nx\n",
            r"talk\.srt, line 3: '00:01,0000 --> 00:02,0' is not the time",
        ),
        ("talk.srt", "1\n00:00:09,000 --> 00:00:10,000\nx\n", "line 2: talk.flac: there is nothing from 9 s to 10 s"),
        ("talk.srt", "1\n00:00:02,000 --> 00:00:01,000\nx\n", "line 2: talk.flac: there is nothing from 2 s to 1 s"),
        ("talk.vtt", "00:00.000 --> 00:01.000\nx\n", r"talk\.vtt, line 1: not WebVTT, which begins with WEBVTT"),
        ("talk.srt", "1\n00:00:00,000 --> 00:00:01,000\n\udcff\n", r"talk\.srt, line 3: not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, wave: np.ndarray, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=message):
        prepare(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="found nothing to put into a manifest; 1 bad, first"):
        prepare(tmp_path, tmp_path / "out", skip_bad=True)


def test_two_recordings_of_one_name(tmp_path: Path, wave: np.ndarray) -> None:
    (tmp_path / "talk.srt").write_text(SRT)
    (tmp_path / "talk.wav").write_bytes((tmp_path / "talk.flac").read_bytes())
    with pytest.raises(ManifestError, match=r"talk\.srt, line 1: belongs to talk\.flac and talk\.wav alike"):
        prepare(tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="none: no such folder"):
        prepare(tmp_path / "none", tmp_path / "out")
