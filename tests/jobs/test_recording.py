"""`starseq align` of one recording: pieces join to the whole, a stopped job goes on, all formats say what was found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from tests.commands import Command
from tests.run_folder import CPU, make_run

from starseq import runs
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.decode.alignment_formats import Interval, to_srt, to_vtt
from starseq.jobs import recording as job
from starseq.jobs._where import Where
from starseq.jobs.recording import align_file
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

LETTERS = " abcdefghijklmnopqrstuvwxyz"
FRAME = 320  # samples at 16 kHz: 20 ms
SPOKEN = "the quick brown fox jumps over the lazy dog"
TEXT = "the quick zebu fox jumps Over 1984 the dog"


class Ear(torch.nn.Module):
    """Hears what `sound` says: the level of a frame is its token."""

    def __init__(self, stops_at: int = -1) -> None:
        super().__init__()
        self.heard, self.stops_at = [], stops_at

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.heard) == self.stops_at:
            raise KeyboardInterrupt
        self.heard.append(x.shape[1])
        return -((32 * x - torch.arange(len(LETTERS) + 1)) ** 2) * 10, lengths


def sound(*texts: str, pause: int = 50) -> Any:
    """A frame for each letter, a blank between two, and a pause after each text."""
    levels = [level for text in texts for c in text for level in (LETTERS.index(c) + 1, 0)] + [0] * pause
    return np.repeat(np.float32(levels) / 32, FRAME)


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ear:
    """A run whose model is an `Ear`. Its reader wants whole frames."""

    def reader(row: Any, data: bytes) -> torch.Tensor:
        wave = audio.decode(data, rate=16_000)
        assert len(wave) % FRAME == 0
        return wave.reshape(-1, FRAME).mean(1, keepdim=True)

    model = Ear()
    run = SimpleNamespace(
        folder=tmp_path, tokeniser=Tokeniser(Vocabulary(LETTERS), "char", unknown="drop"), model=model, reader=reader,
        seconds_per_frame=FRAME / 16_000,
    )  # fmt: skip
    monkeypatch.setattr(runs, "load", lambda folder: run)
    return model


def case(folder: Path, text: str = TEXT, *spoken: str) -> tuple[Path, Path]:
    soundfile.write(folder / "a.wav", sound(*(spoken or (SPOKEN,))), 16_000)
    (folder / "a.txt").write_text(text)
    return folder / "a.wav", folder / "a.txt"


def test_every_word_and_every_stretch_is_listed(ear: Ear, tmp_path: Path) -> None:
    wav, text = case(tmp_path)
    found = align_file("run", wav, text, [tmp_path / "out" / "a.json"], where=CPU)
    written = json.loads((tmp_path / "out" / "a.json").read_text())
    assert written == json.loads(json.dumps({"unit": "seconds", **vars(found)}))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.json"]
    # "O" and digits are none of the model's letters: of "Over" it has three.
    assert [word["word"] for word in found.words] == ["the", "quick", "fox", "jumps", "Over", "the", "dog"]
    for word in found.words:
        spoken = word["word"].lower()
        n = word["number"]
        place = SPOKEN.index(" the lazy") + 1 if (n, spoken) == (7, "the") else SPOKEN.index(spoken)
        begin = place + (1 if spoken == "over" else 0)
        assert (word["start"], word["end"]) == (
            pytest.approx(begin * 0.04), pytest.approx((place + len(spoken)) * 0.04 - 0.02),
        )  # fmt: skip
        assert word["confidence"] > 0.99
    (zebu,) = found.words_without_audio
    assert (zebu["word"], zebu["number"]) == ("zebu", 2)
    assert zebu["confidence"] > 0.9
    assert zebu["end"] == found.words[2]["start"]
    assert found.outside_vocabulary == ({"number": 6, "word": "1984"},)
    assert [(one["after"], one["text"]) for one in found.audio_without_text] == [(2, "brown"), (5, "o"), (8, "lazy")]
    assert found.end == pytest.approx(len(SPOKEN) * 0.04 + 1.0)


def long_case(folder: Path) -> tuple[Path, Path, Any]:
    """Nearly two minutes: five pieces."""
    spoken = [f"{a}{b} {SPOKEN} {b}{a}" for a in "abcmno" for b in "defghijkl"]
    wave = sound(*spoken)
    soundfile.write(folder / "long.wav", wave, 16_000)
    (folder / "long.txt").write_text(" ".join(spoken))
    return folder / "long.wav", folder / "long.txt", wave


def test_pieces_join_to_the_whole(ear: Ear, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wav, text, wave = long_case(tmp_path)
    seen: list[tuple[int, int | None]] = []
    pieces = align_file(
        "run",
        wav,
        text,
        [tmp_path / "a.json"],
        where=Where("cpu", progress=lambda done, total: seen.append((done, total))),
    )
    frames = len(wave) // FRAME
    assert len(ear.heard) == len(seen) == 5
    assert seen[-1] == (round(frames * 0.02), round(frames * 0.02))
    assert max(ear.heard) == 1500
    # Each neighbour has 6 seconds of the other.
    assert sum(ear.heard) == frames + (len(ear.heard) - 1) * 300
    monkeypatch.setattr(job, "PIECE", 1000.0)
    whole = align_file("run", wav, text, [tmp_path / "b.json"], where=CPU)
    assert ear.heard[-1] == frames
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert len(pieces.words) == len(text.read_text().split())
    assert pieces.end == whole.end == pytest.approx(frames * 0.02)


@pytest.mark.parametrize("seconds", [29.98, 30.0, 30.02, 54.0, 54.02])
def test_nothing_is_lost_where_a_piece_ends(ear: Ear, tmp_path: Path, seconds: float) -> None:
    frames = round(seconds * 50)
    wave = np.resize(sound("the lazy dog ", pause=1), frames * FRAME)
    soundfile.write(tmp_path / "a.wav", wave, 16_000)
    (tmp_path / "a.txt").write_text("dog")
    found = align_file("run", tmp_path / "a.wav", tmp_path / "a.txt", [tmp_path / "a.json"], where=CPU)
    assert found.end == pytest.approx(seconds)
    assert len(ear.heard) == (1 if seconds <= 30 else 2 if seconds <= 54 else 3)


def test_a_stopped_job_goes_on_behind_the_last_piece(ear: Ear, tmp_path: Path) -> None:
    wav, text, _ = long_case(tmp_path)
    expected = align_file("run", wav, text, [tmp_path / "whole.json"], where=CPU)
    pieces = len(ear.heard)
    ear.heard.clear()
    ear.stops_at = 2
    with pytest.raises(KeyboardInterrupt):
        align_file("run", wav, text, [tmp_path / "a.json"], where=CPU)
    (partial,) = tmp_path.glob(".a.json.partial")
    partial.write_bytes(partial.read_bytes() + b"half a frame")
    ear.heard.clear()
    ear.stops_at = -1
    assert align_file("run", wav, text, [tmp_path / "a.json"], where=CPU) == expected
    assert len(ear.heard) == pieces - 2
    assert not list(tmp_path.glob(".a.json.*"))

    # With another text that needs other tokens it begins anew.
    ear.heard.clear()
    ear.stops_at = 2
    with pytest.raises(KeyboardInterrupt):
        align_file("run", wav, text, [tmp_path / "a.json"], where=CPU)
    ear.heard.clear()
    ear.stops_at = -1
    (tmp_path / "long.txt").write_text("the dog")
    align_file("run", wav, text, [tmp_path / "a.json"], where=CPU)
    assert len(ear.heard) == pieces


def test_all_formats(ear: Ear, tmp_path: Path) -> None:
    wav, text = case(tmp_path, "the quick <b> zebu fox", "the quick fox jumps")
    names = ("a.json", "a.ctm", "a.TextGrid", "a.srt", "a.vtt")
    align_file("run", wav, text, [tmp_path / name for name in names], where=CPU)
    ctm, grid, srt, vtt = ((tmp_path / name).read_text() for name in names[1:])
    assert [line.split()[4] for line in ctm.splitlines() if line.startswith("a ")] == ["the", "quick", "fox", "*"]
    assert re.search(r"^;; no audio: <b> zebu \(0\.\d+ to 0\.\d+, confidence \d\.\d+\)$", ctm, re.MULTILINE)
    assert re.findall(r'text = "([^"]+)"', grid) == ["the", "quick", "fox", "jumps", "<b> zebu"]
    assert re.findall(r'name = "([^"]+)"', grid) == ["words", "audio without text", "words without audio"]
    assert srt == "1\n00:00:00,000 --> 00:00:00,740\nthe quick fox *\n"
    assert vtt.startswith("WEBVTT\n\nNOTE no audio: <b> zebu (")
    assert vtt.endswith("\n\n00:00:00.000 --> 00:00:00.740\nthe quick fox *\n")


def test_subtitles_end_at_a_pause_and_where_there_is_no_room() -> None:
    words = [Interval(n, n + 0.5, "word" * 5) for n in range(0, 10)]
    assert [cue.count("word" * 5) for cue in to_srt(words).split("\n\n")] == [4, 4, 2]
    words = [Interval(0, 1, "a"), Interval(3, 4, "b"), Interval(4.5, 7, "c"), Interval(7, 10.5, "&")]
    assert re.findall(r"\n(?!\d)(.+)\n", to_srt(words)) == ["a", "b c", "&"]
    assert "\n&amp;\n" in to_vtt(words)


@pytest.mark.parametrize(
    ("text", "target", "error", "sentence"),
    [
        (
            "dog",
            "a.txt2",
            ValueError,
            r"a.txt2: its suffix says no format; it is one of .json, .ctm, .textgrid, .srt, .vtt",
        ),
        (" * ", "a.json", DataError, r"a.txt: it has no words"),
        (b"\xff", "a.json", DataError, r"a.txt: not UTF-8 at byte 0"),
        ("dog", "a.wav.json", DataError, r"a.wav: not audio that can be decoded"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    ear: Ear, tmp_path: Path, text: str | bytes, target: str, error: type[Exception], sentence: str
) -> None:
    wav, transcript = case(tmp_path)
    transcript.write_bytes(text if isinstance(text, bytes) else text.encode())
    if target == "a.wav.json":
        wav.write_bytes(b"no audio")
    with pytest.raises(error, match=sentence):
        align_file("run", wav, transcript, [tmp_path / target], where=CPU)


def test_the_command(tmp_path: Path, command: Command) -> None:
    overrides = ("data.reader={name: audio, rate: 16000, bands: 80}", "model.stride=3", "criterion.name=ctc")
    run = make_run(tmp_path / "run", *overrides, lines=1)
    noise = np.random.default_rng(0).normal(size=70 * 16_000).astype("float32") * 0.1
    soundfile.write(tmp_path / "a.flac", noise, 16_000)
    (tmp_path / "a.txt").write_text("12 345 x * 6789")
    out = tmp_path / "a.json"
    done = command(
        "align", run, tmp_path / "a.flac", tmp_path / "a.txt", "-o", out, "-o", tmp_path / "a.srt", "--device", "cpu"
    )
    assert (done.code, done.err) == (0, "")
    assert re.search(r"a.json, .*a.srt: \d of 4 words placed, \d have no audio; ", done.out)
    assert done.out.endswith("; the model cannot write 1 words\n")
    found = json.loads(out.read_text())
    assert len(found["words"]) + len(found["words_without_audio"]) == 3
    assert 69 < found["end"] <= 70.1

    done = command("align", run, tmp_path / "a.flac", "-o", out)
    assert (done.code, "a.flac: a recording is aligned with its text" in done.err) == (2, True)
    done = command("align", run, tmp_path / "a.flac", tmp_path / "a.txt", "-o", out, "--split", "dev")
    assert (done.code, "--skip-bad are for manifests" in done.err) == (2, True)
    images = make_run(tmp_path / "images", lines=1)
    done = command("align", images, tmp_path / "a.flac", tmp_path / "a.txt", "-o", out)
    assert (done.code, "it reads images; only audio can be aligned as one recording" in done.err) == (2, True)
    done = command("align", images, images / "data" / "manifest.jsonl", "-o", out, "-o", tmp_path / "b")
    assert (done.code, "--out: the result of a manifest is one folder" in done.err) == (2, True)


@pytest.mark.parametrize("kind", ["wav2vec2", "parakeet_ctc"])
def test_a_model_of_hugging_face(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tiny_hf = pytest.importorskip("tests.tiny_hf", reason="folders of Hugging Face are not opened yet")
    model = tiny_hf.save(tmp_path / "model", kind)
    soundfile.write(tmp_path / "a.wav", 0.1 * np.random.default_rng(0).normal(size=35 * 16_000), 16_000)
    (tmp_path / "a.txt").write_text("bad cab * 12 fed")
    found = align_file(model, tmp_path / "a.wav", tmp_path / "a.txt", [tmp_path / "a.json"], where=CPU)
    assert [word["word"] for word in found.outside_vocabulary] == ["12"]
    assert len(found.words) + len(found.words_without_audio) == 3
    assert found.end == pytest.approx(35, abs=0.1)
