"""`python benchmarks/align.py`: alignment of an hour, with words dropped from its text and words of others put in.

The hour is made: a path of letters is planted in noise, 50 frames a second. With `--model RUN` it is an hour of librispeech-7h in
`--corpora` instead, joined from test utterances with half a second of silence between them. Said are the shares of spoken words
placed within 0.2 s of where they are, of dropped words whose audio is found, of foreign words that are found to have no audio;
time, and memory. In the joined utterances a word is where the model's alignment of the one utterance with its whole text has it.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from starseq import runs
from starseq.data import audio
from starseq.data.manifest import read_bytes, read_manifest
from starseq.decode.align import align
from starseq.decode.recording import Heard, Recording, align_recording, heard
from starseq.jobs.recording import Aligned, align_file
from starseq.text.known import known_text

FRAMES_A_SECOND = 50
LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
TOLERANCE = 0.2
SILENCE, RATE = 0.5, 16_000
Array = np.ndarray[Any, Any]


class Spoken(NamedTuple):
    """A word that is in the audio, in seconds."""

    word: str
    start: float
    end: float


def made_words(types: int, chance: random.Random) -> list[str]:
    """Words of 2 to 9 letters, as frequent letters are in English; no two alike."""
    words: dict[str, None] = {}
    while len(words) < types:
        size = chance.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, 8, 9))
        words["".join(chance.choices(LETTERS, weights=range(30, 4, -1), k=size))] = None
    return list(words)


def made_hour(words: Sequence[str], seconds: float, errors: float, seed: int) -> tuple[Array, list[Spoken]]:
    """Log-probabilities (T, 28) of the blank, a space and the letters, and what is spoken. A letter lasts for one or two of two to
    five frames. At a share `errors` of them another letter is read."""
    random_ = np.random.default_rng(seed)
    T = round(seconds * FRAMES_A_SECOND)
    logits = random_.normal(0, 1.0, (T, 2 + len(LETTERS))).astype(np.float32)
    logits[:, 0] += 6.0
    spoken, t = [], 10
    # Zipf's law: common words come again and again.
    ranks = random_.choice(
        len(words), size=T, p=(1 / np.arange(2, len(words) + 2)) / (1 / np.arange(2, len(words) + 2)).sum()
    )
    for rank in ranks:
        word = words[rank]
        if t + 6 * len(word) + 20 > T:
            break
        begin = t
        for letter in word:
            token = 2 + LETTERS.index(letter)
            if random_.random() < errors:
                other = 2 + random_.integers(len(LETTERS))
                logits[t, other] += random_.uniform(6, 10)
                logits[t, token] += random_.uniform(2, 8)
            else:
                lasts = random_.integers(1, 3)
                logits[t : t + lasts, token] += random_.uniform(7, 12)
            end = t + 1
            t += int(random_.integers(2, 5))
        spoken.append(Spoken(word, begin / FRAMES_A_SECOND, end / FRAMES_A_SECOND))
        logits[t, 1] += random_.uniform(6, 12)
        t += int(random_.integers(2, 6)) + (int(random_.integers(20, 60)) if random_.random() < 0.05 else 0)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits, spoken


def damaged(
    spoken: Sequence[Spoken], others: Sequence[str], drop: float, foreign: float, seed: int
) -> tuple[list[str], list[Spoken | None]]:
    """A text that lacks a share of what is spoken and has words that nobody spoke; of each word, what it is in the audio."""
    chance = random.Random(seed)
    words: list[str] = []
    truth: list[Spoken | None] = []
    for one in spoken:
        if chance.random() < foreign:
            words.append(chance.choice(others))
            truth.append(None)
        if chance.random() >= drop:
            words.append(one.word)
            truth.append(one)
    return words, truth


def judged(found: Aligned, spoken: Sequence[Spoken], truth: Sequence[Spoken | None]) -> dict[str, float]:
    """Shares of what was found."""
    here = {word["number"]: word for word in found.words}
    placed = [
        n in here and abs(here[n]["start"] - was.start) <= TOLERANCE and abs(here[n]["end"] - was.end) <= TOLERANCE
        for n, was in enumerate(truth) if was is not None
    ]  # fmt: skip
    absent = {word["number"] for word in found.words_without_audio}
    kept = {id(one) for one in truth}
    dropped = [one for one in spoken if id(one) not in kept]
    covered = np.zeros(round(100 * spoken[-1].end) + 100, dtype=bool)
    for stretch in found.audio_without_text:
        covered[round(100 * stretch["start"]) : round(100 * stretch["end"])] = True
    missing = [covered[round(100 * one.start) : round(100 * one.end)].mean() > 0.5 for one in dropped]
    return {
        "words placed within 0.2 s": float(np.mean(placed)),
        "dropped words found": float(np.mean(missing)),
        "foreign words found": float(np.mean([n in absent for n, was in enumerate(truth) if was is None])),
        "spoken words taken for foreign": float(
            np.mean([n in absent for n, was in enumerate(truth) if was is not None])
        ),
    }


def in_seconds(found: Recording, seconds: float) -> Aligned:
    """What `align_recording` found, with frames of so many seconds."""

    def placed(has_audio: bool) -> tuple[dict[str, Any], ...]:
        return tuple(
            {"number": one.word, "start": one.start * seconds, "end": one.end * seconds}
            for one in found.words if one.has_audio == has_audio
        )  # fmt: skip

    stretches = tuple({"start": one.start * seconds, "end": one.end * seconds} for one in found.stretches)
    return Aligned("", 0.0, placed(True), placed(False), stretches, ())


def made(seconds: float, errors: float, seed: int, folder: Path) -> dict[str, float]:
    """The figures of a made recording."""
    vocabulary = made_words(3500, random.Random(seed))
    log_probs, spoken = made_hour(vocabulary[:3000], seconds, errors, seed)
    words, truth = damaged(spoken, vocabulary[3000:], 0.2, 0.05, seed)
    tokens = [2 + n for n in range(len(LETTERS))]
    kept = heard(log_probs, tokens, space=1)
    del log_probs
    np.save(folder / "scores.npy", kept.scores)
    frames = Heard(kept.best, np.load(folder / "scores.npy", mmap_mode="r"))
    del kept
    spelled = [[2 + LETTERS.index(letter) for letter in word] for word in words]
    align_recording(Heard(frames.best[:100], frames.scores[:100]), tokens, spelled[:3], space=1)  # compiles
    begun = time.perf_counter()
    found = align_recording(frames, tokens, spelled, space=1)
    took = time.perf_counter() - begun
    tracemalloc.start()
    align_recording(frames, tokens, spelled, space=1)
    most = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    sizes = {"frames": len(frames.best), "words spoken": len(spoken), "words of the text": len(words)}
    return {
        **sizes,
        **judged(in_seconds(found, 1 / FRAMES_A_SECOND), spoken, truth),
        "seconds": took,
        "MiB at most": most,
    }


def read(model: Path, corpus: Path, seconds: float, seed: int, folder: Path) -> dict[str, float]:
    """The figures of test utterances of `corpus`, joined, with a model of letters."""
    import soundfile

    run = runs.load(model)
    assert run.seconds_per_frame is not None
    rows, total = [], 0.0
    for row in read_manifest(corpus / "manifest.jsonl"):
        if row.get("split") == "test" and total < seconds:
            rows.append(row)
            total += row["duration"] + SILENCE
    spoken, at, waves = [], 0.0, []
    for row in rows:
        wave = audio.decode(read_bytes(row, corpus), rate=RATE)
        x = run.reader(row, audio.encode(wave, RATE))
        with torch.no_grad():
            logits, _ = run.model(x[None], torch.tensor([len(x)]))
        labels = list(known_text(run.tokeniser, row.text, marked=True).labels)
        texts = [run.tokeniser.vocabulary[label] for label in labels]
        found = align(logits[0], labels, criterion="ctc").labels
        for is_space, group in groupby(range(len(labels)), key=lambda n: texts[n] == " "):
            if not is_space:
                several = list(group)
                start, end = (at + run.seconds_per_frame * x for x in (found[several[0]].start, found[several[-1]].end))
                spoken.append(Spoken("".join(texts[n] for n in several), start, end))
        waves += [wave, torch.zeros(round(SILENCE * RATE))]
        at += len(wave) / RATE + SILENCE
    soundfile.write(folder / "hour.wav", torch.cat(waves).numpy(), RATE)
    words, truth = damaged(spoken, made_words(500, random.Random(seed)), 0.2, 0.05, seed)
    (folder / "hour.txt").write_text(" ".join(words))
    begun = time.perf_counter()
    aligned = align_file(model, folder / "hour.wav", folder / "hour.txt", [folder / "hour.json"])
    took, most = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sizes = {"seconds of audio": at, "words spoken": len(spoken), "words of the text": len(words)}
    return {**sizes, **judged(aligned, spoken, truth), "seconds": took, "MiB at most": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument(
        "--errors", type=float, default=0.1, help="share of letters that are misread, where they are made"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a run, or a folder of Hugging Face")
    parser.add_argument("--corpora", type=Path, default=Path("../shared/data"))
    one = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if one.model is None:
            result = made(one.seconds, one.errors, one.seed, Path(folder))
        else:
            result = read(one.model, one.corpora / "librispeech-7h", one.seconds, one.seed, Path(folder))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
