"""Align an hour with its text, by what any CTC model says of it: also where the text lacks words, or has words that nobody spoke.

    pip install starseq
    python examples/align_an_hour.py

For a run of starseq and an audio file this is one command: starseq align RUN long.wav text.txt -o long.srt
Here the hour is made: every letter stands for a frame or two, as such a model shows them, in noise.
"""

import argparse
import random
import time

import numpy as np

from starseq.decode.recording import Heard, align_recording, heard

SECONDS_A_FRAME, BLANK, SPACE = 0.02, 0, 1
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = {letter: 2 + n for n, letter in enumerate(LETTERS)}


def spoken_words(minutes: float, chance: random.Random) -> list[str]:
    types = ["".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(2000)]
    return chance.choices(types, k=round(140 * minutes))


def model(words: list[str], random_: np.random.Generator) -> np.ndarray:
    """(T, 28) log-probabilities: the blank, the space between words, and the letters."""
    path = []
    for word in words:
        for letter in word:
            path += [TOKENS[letter]] * random_.integers(1, 3) + [BLANK] * random_.integers(1, 4)
        path += [SPACE] + [BLANK] * random_.integers(1, 5)
    logits = random_.normal(size=(len(path), 2 + len(LETTERS))).astype(np.float32)
    logits[np.arange(len(path)), path] += random_.uniform(2, 12, len(path))  # not always the best token
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def main(minutes: float) -> tuple[int, int, int]:
    chance, random_ = random.Random(0), np.random.default_rng(0)
    spoken = spoken_words(minutes, chance)
    # The text: every fifth word is gone, and here and there is one that nobody spoke.
    text = [word for n, word in enumerate(spoken) if n % 5]
    for n in range(len(text) - 1, 0, -20):
        text.insert(n, "zzyzzyx")

    # An hour does not fit into a model at once. Of each piece we keep what the text needs, 11 MB an hour.
    tokens = list(TOKENS.values())
    log_probs = model(spoken, random_)
    pieces = [heard(log_probs[at : at + 1500], tokens, SPACE) for at in range(0, len(log_probs), 1500)]
    frames = Heard(np.concatenate([best for best, _ in pieces]), np.concatenate([scores for _, scores in pieces]))

    begun = time.perf_counter()
    found = align_recording(frames, tokens, [[TOKENS[letter] for letter in word] for word in text], space=SPACE)
    seconds = len(log_probs) * SECONDS_A_FRAME
    print(
        f"{seconds / 60:.0f} minutes aligned in {time.perf_counter() - begun:.1f} s, the compilation of the kernel included"
    )
    for word in found.words[:8]:
        place = f"{word.start * SECONDS_A_FRAME:7.2f} to {word.end * SECONDS_A_FRAME:7.2f} s"
        print(f"{place}  {text[word.word]:<10} {'' if word.has_audio else 'nobody said it; '}{word.confidence:.2f}")
    absent = [text[word.word] for word in found.words if not word.has_audio]
    print(f"words without audio: {len(absent)}, of which put in: {absent.count('zzyzzyx')} of {text.count('zzyzzyx')}")
    print(f"stretches of audio without text: {len(found.stretches)}; words dropped: {-(-len(spoken) // 5)}")
    return len(absent), absent.count("zzyzzyx"), len(found.stretches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    main(parser.parse_args().minutes)
