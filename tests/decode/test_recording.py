"""Alignment of a recording with its text: the best path of all, whatever anchors there are; words and audio that lack the other."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks import align as bench

from starseq.decode import recording
from starseq.decode.recording import FIRST_LABEL, SKIP, STAR, Heard, align_recording, heard

SPACE, A, B, C, D = 1, 2, 3, 4, 5
NAMES = {SPACE: " ", A: "a", B: "b", C: "c", D: "d"}


def planted(path: list[int], V: int = 6, noise: int = 0) -> Any:
    """Log-probabilities (T, V) in which one token of every frame has nearly all."""
    logits = 0.5 * np.random.default_rng(noise).normal(size=(len(path), V))
    logits[np.arange(len(path)), path] += 9
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def aligned(path: list[int], *words: list[int], space: int | None = SPACE) -> Any:
    tokens = sorted({token for word in words for token in word})
    return align_recording(heard(planted(path), tokens, space), tokens, words, space=space)


def test_words_stretches_and_words_without_audio() -> None:
    #            0  1  2  3  4      5  6      7  8  9  10 11     12 13
    found = aligned([0, A, A, 0, B, SPACE, 0, C, C, D, SPACE, 0, D, A], [A, B], [B, A, B], [D, A], [])
    assert [(one.word, one.start, one.end, one.has_audio) for one in found.words] == [
        (0, 1, 5, True), (1, 5, 12, False), (2, 12, 14, True),
    ]  # fmt: skip
    assert [(one.after, one.start, one.end, one.tokens) for one in found.stretches] == [(1, 7, 10, (C, D))]
    assert found.words[0].confidence > 0.95
    assert found.words[1].confidence > 0.9
    assert found.stretches[0].confidence > 0.95


def test_what_is_at_the_ends() -> None:
    found = aligned([C, D, SPACE, A, B, SPACE, D, C], [A, A, A], [A, B], [C, C, C])
    assert [one.has_audio for one in found.words] == [False, True, False]
    assert [(one.after, one.tokens) for one in found.stretches] == [(0, (C, D)), (2, (D, C))]
    # A letter that is read twice is two letters: between them there is a blank.
    found = aligned([A, 0, A, SPACE, A, A], [A, A], [A, A])
    assert [one.has_audio for one in found.words] == [True, False]


def test_no_words_no_frames_and_words_that_have_no_tokens() -> None:
    assert [(one.after, one.tokens) for one in aligned([0, A, B], []).stretches] == [(0, (A, B))]
    nothing = align_recording(heard(planted([]), [A], None), [A], [[A]])
    assert [(one.start, one.end, one.has_audio, one.confidence) for one in nothing.words] == [(0, 0, False, 1.0)]
    found = aligned([A, 0, B], [], [A], [], [B], space=None)
    assert [(one.word, one.start, one.end) for one in found.words] == [(1, 0, 1), (3, 2, 3)]


def readings(frames: int, words: list[list[int]]) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """For every choice of words, all that each frame can be: "gap", "blank", or the number of a token. A word is left out only
    beside a frame of a gap."""
    numbers = itertools.count()
    numbered = [[(next(numbers), token) for token in word] for word in words]
    for chosen in itertools.product((True, False), repeat=len(words)):
        # what a frame can be, and whether no frame has to
        units: list[tuple[Any, bool]] = []
        last, skipped = None, False
        for word, is_in in zip(numbered, chosen, strict=True):
            if not is_in:
                skipped = True
                continue
            for place, (number, token) in enumerate(word):
                units.append(("gap" if place == 0 else "blank", not (skipped and place == 0) and token != last))
                units.append((number, False))
                last, skipped = token, False if place == 0 else skipped
        units.append(("gap", not skipped))
        left_out = tuple(len(word) for word, is_in in zip(words, chosen, strict=True) if not is_in)
        for sizes in itertools.product(range(frames + 1), repeat=len(units)):
            if sum(sizes) == frames and all(size or empty for size, (_, empty) in zip(sizes, units, strict=True)):
                yield left_out, [unit for size, (unit, _) in zip(sizes, units, strict=True) for _ in range(size)]


@pytest.mark.parametrize("seed", range(12))
def test_the_best_path_of_all(seed: int) -> None:
    chance = np.random.default_rng(seed)
    words = [[[A, B], [B]], [[A, A], [B]], [[A], [A], [B]], [[B, A]]][seed % 4]
    tokens = [A, B]
    logits = 2 * chance.normal(size=(5, 5))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    frames = heard(log_probs, tokens, SPACE)
    x = frames.scores.astype(np.float64)
    flat = [token for word in words for token in word]

    def score(left_out: tuple[int, ...], units: list[Any]) -> float:
        total = SKIP * sum(left_out)
        for t, unit in enumerate(units):
            if unit == "gap":
                total += max(x[t, 1], x[t, 2] + STAR)
            else:
                total += x[t, 0] if unit == "blank" else x[t, FIRST_LABEL + tokens.index(flat[unit])]
        return total

    best = max(score(*reading) for reading in readings(5, words))
    text = recording._text(words, {A: FIRST_LABEL, B: FIRST_LABEL + 1})
    path = recording._search(frames, text, (0, 5, 0, len(flat)))
    on = {int(state) >> 1 for state in path if state & 1}
    left = tuple(len(word) for n, word in enumerate(words) if not on & set(np.flatnonzero(text.word == n).tolist()))
    ours = ["gap" if text.back[s >> 1] != -2 else "blank" for s in path.tolist()]
    units = [int(s) >> 1 if s & 1 else unit for s, unit in zip(path.tolist(), ours, strict=True)]
    assert score(left, units) == pytest.approx(best)


def made(seconds: float, errors: float, seed: int = 1) -> tuple[Heard, list[int], list[list[int]], Any]:
    vocabulary = bench.made_words(700, random.Random(seed))
    log_probs, spoken = bench.made_hour(vocabulary[:600], seconds, errors, seed)
    words, truth = bench.damaged(spoken, vocabulary[600:], 0.2, 0.05, seed)
    tokens = [2 + n for n in range(len(bench.LETTERS))]
    spelled = [[2 + bench.LETTERS.index(letter) for letter in word] for word in words]
    return heard(log_probs, tokens, 1), tokens, spelled, (spoken, truth)


def test_dropped_and_foreign_words_of_some_minutes_are_found() -> None:
    frames, tokens, words, truth = made(240, 0.1)
    seen: list[int] = []
    found = align_recording(frames, tokens, words, space=1, progress=lambda done, total: seen.append(done))
    shares = bench.judged(bench.in_seconds(found, 1 / bench.FRAMES_A_SECOND), *truth)
    assert shares["words placed within 0.2 s"] > 0.98
    assert shares["dropped words found"] > 0.93
    assert shares["foreign words found"] > 0.85
    assert shares["spoken words taken for foreign"] < 0.01
    assert seen == sorted(seen)
    assert seen[-1] == len(frames.best)


def test_anchors_change_nothing_and_save_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, tokens, words, _ = made(90, 0.15)
    cells: list[int] = []
    band = recording._band

    def counted(n: int, states: int, longest: int) -> Any:
        lo, hi = band(n, states, longest)
        cells.append(int((hi - lo).sum()))
        return lo, hi

    monkeypatch.setattr(recording, "_band", counted)
    results, sums = [], []
    for few in (1 << 40, 1 << 11):
        monkeypatch.setattr(recording, "_FEW", few)
        cells.clear()
        results.append(align_recording(frames, tokens, words, space=1))
        sums.append(sum(cells))
    assert results[0] == results[1]
    assert sums[1] < sums[0] / 10


def test_without_anchors_a_band_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    frames, tokens, words, truth = made(90, 0.1)
    monkeypatch.setattr(recording, "RUNS", {"letters": ()})
    monkeypatch.setattr(recording, "CELLS", 1 << 21)  # of 4,500 frames and 1,900 states
    band, widest = recording._band, []

    def seen(n: int, states: int, longest: int) -> Any:
        lo, hi = band(n, states, longest)
        widest.append((int((hi - lo).max()), states))
        return lo, hi

    monkeypatch.setattr(recording, "_band", seen)
    found = align_recording(frames, tokens, words, space=1)
    assert widest[0][0] < widest[0][1] / 2
    assert bench.judged(bench.in_seconds(found, 1 / bench.FRAMES_A_SECOND), *truth)["words placed within 0.2 s"] > 0.9


def test_anchors_that_leave_no_frames_between_them_are_none() -> None:
    text = recording._text([[A, B, C], [C, D, A]], {A: 3, B: 4, C: 5, D: 6})
    # From a to the d of the other word at least b, c, a gap and c take a frame; or b, c, a blank, c.
    assert recording._possible([(0, 0), (3, 4)], text, 20) == [(0, 0)]
    assert recording._possible([(0, 0), (5, 4)], text, 20) == [(0, 0), (5, 4)]
    assert recording._possible([(0, 0), (5, 4)], text, 6) == [(0, 0)]


def test_a_long_stretch_without_text_and_a_long_text_without_audio() -> None:
    chance = random.Random(3)
    words = [[chance.choice((A, B, C, D)) for _ in range(6)] for _ in range(60)]

    def spoken(part: list[list[int]]) -> list[int]:
        return [token for word in part for token in [*itertools.chain(*((letter, 0) for letter in word)), SPACE]]

    tokens = [A, B, C, D]
    frames = heard(planted(spoken(words)), tokens, SPACE)
    without = align_recording(frames, tokens, words[:20] + words[40:], space=SPACE)
    assert all(one.has_audio for one in without.words)
    (stretch,) = without.stretches
    assert (stretch.after, stretch.start, stretch.end) == (20, 20 * 13, 40 * 13 - 2)
    frames = heard(planted(spoken(words[:20] + words[40:])), tokens, SPACE)
    found = align_recording(frames, tokens, words, space=SPACE)
    assert [one.word for one in found.words if not one.has_audio] == list(range(20, 40))
    assert found.stretches == ()


def test_scores_are_kept_where_a_probability_is_0() -> None:
    frames = heard(np.array([[0.0, -math.inf], [-math.inf, 0.0]]), [1], None)
    assert np.isfinite(frames.scores).all()
    found = align_recording(frames, [1], [[1]])
    assert (found.words[0].start, found.words[0].end) == (1, 2)
