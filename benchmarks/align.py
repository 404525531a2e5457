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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from starseq.decode.recording import Heard, Recording, align_recording, heard

FRAMES_A_SECOND = 50
LETTERS = "etaoinshrdlcumwfgypbvkjxqz"
TOLERANCE = 0.2
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


def judged(
    found: Recording, spoken: Sequence[Spoken], truth: Sequence[Spoken | None], seconds: float
) -> dict[str, float]:
    """Shares of what was found. seconds: of a frame."""
    placed = [
        one.has_audio and abs(one.start * seconds - was.start) <= TOLERANCE and abs(one.end * seconds - was.end) <= TOLERANCE
        for one in found.words if (was := truth[one.word]) is not None
    ]  # fmt: skip
    absent = [not one.has_audio for one in found.words if truth[one.word] is None]
    wrong = [not one.has_audio for one in found.words if truth[one.word] is not None]
    kept = {id(one) for one in truth}
    dropped = [one for one in spoken if id(one) not in kept]
    covered = np.zeros(round(spoken[-1].end / seconds) + 100, dtype=bool)
    for stretch in found.stretches:
        covered[stretch.start : stretch.end] = True
    missing = [covered[round(one.start / seconds) : round(one.end / seconds)].mean() > 0.5 for one in dropped]
    return {
        "words placed within 0.2 s": float(np.mean(placed)),
        "dropped words found": float(np.mean(missing)),
        "foreign words found": float(np.mean(absent)),
        "spoken words taken for foreign": float(np.mean(wrong)),
    }


def made(seconds: float, errors: float, seed: int, folder: Path) -> dict[str, float]:
    chance = random.Random(seed)
    vocabulary = made_words(3500, chance)
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
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    found = align_recording(frames, tokens, spelled, space=1)
    took = time.perf_counter() - begun
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    result = judged(found, spoken, truth, 1 / FRAMES_A_SECOND)
    return {"frames": len(frames.best), "words": len(words), **result, "seconds": took, "MiB more than before": more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--errors", type=float, default=0.1, help="share of letters that are misread")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(made(arguments.seconds, arguments.errors, arguments.seed, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
