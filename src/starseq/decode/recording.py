"""A recording of hours and its text: where each word lies, which words have no audio, and which audio has no text.

Between the words there is a star: audio there may be anything. A word may be left out. The best path is that with the highest

    sum of log P_t(token)  +  STAR for a frame of a token between words  +  SKIP for a token of a word that is left out

Runs of tokens that occur once in the text and once in what the model reads are anchors. Between two of them all paths are compared,
unless there are too many: then those in a band around the diagonal. docs/align.md says what that takes.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from starseq.decode.recording_numba import FIRST_LABEL, OTHER, PAUSE, advance, backtrace

__all__ = ["FIRST_LABEL", "Heard", "Placed", "Recording", "Stretch", "align_recording", "heard"]

STAR = -1.0
"""the log-weight of a frame of a token that the text lacks"""
SKIP = -3.0
"""of a token of the text that the audio lacks"""
RUNS = {"letters": (12, 8, 5), "words": (5, 3)}
"""tokens of an anchor, where a token is about a letter or about a word: longer ones first, shorter ones where they leave much"""
CELLS = 1 << 27
"""the most frames times states that are searched between two anchors"""
_FEW = 1 << 17
"""cells between anchors that are not worth another anchor"""
_BLOCK = 4096
"""frames whose scores are in memory"""
_LOOKED = 1 << 22
"""cells in which words without audio are looked for once more"""

Array = np.ndarray[Any, Any]


class Heard(NamedTuple):
    """What a model says of T frames, as far as a text needs it.

    best: (T,) its best token. scores: (T, C), log-probabilities: of the blank, of the better of blank and space, of the best other
    token, and from column `FIRST_LABEL` on of `tokens`, those of the text.
    """

    best: Array
    scores: Array


class Placed(NamedTuple):
    """A word of the text, by its number. Frames are start .. end - 1.

    With audio: its frames, and as confidence the geometric mean of what the model gives its tokens. Without: the frames between
    its neighbours, and as confidence 1 less that of the best place there.
    """

    word: int
    start: int
    end: int
    confidence: float
    has_audio: bool


class Stretch(NamedTuple):
    """Audio without text: after so many words of the text. tokens: what the model reads there, spaces included. confidence: the
    mean probability of the frames that it reads."""

    after: int
    start: int
    end: int
    tokens: tuple[int, ...]
    confidence: float


class Recording(NamedTuple):
    """words: all that have tokens, in order. stretches: all audio without text, in order."""

    words: tuple[Placed, ...]
    stretches: tuple[Stretch, ...]


def heard(log_probs: Array, tokens: Sequence[int], space: int | None) -> Heard:
    """What is kept of log_probs (T, V), the blank first. tokens: (n,) those that occur in the text. space: what parts words.

    >>> log_probs = np.log(np.float32([[0.6, 0.1, 0.3], [0.1, 0.2, 0.7]]))
    >>> kept = heard(log_probs, [2], space=1)
    >>> kept.best.tolist(), np.exp(kept.scores.astype(np.float32)).round(1).tolist()
    ([0, 2], [[0.6000000238418579, 0.6000000238418579, 0.30000001192092896, 0.30000001192092896], \
[0.10000000149011612, 0.20000000298023224, 0.699999988079071, 0.699999988079071]])
    """
    parts = [0] if space is None else [0, space]
    rest = np.array(log_probs, dtype=np.float32)
    rest[:, parts] = -np.inf
    columns = [log_probs[:, 0], log_probs[:, parts].max(axis=1), rest.max(axis=1), *log_probs[:, list(tokens)].T]
    scores = np.stack(columns, axis=1).clip(-1000.0, 0.0)  # float16 ends at 65,504, and a path must not end at -inf
    return Heard(log_probs.argmax(axis=1).astype(np.int32), scores.astype(np.float16))


class _Text(NamedTuple):
    """The tokens of all words, (U,), and for each token and each gap what `advance` wants to know."""

    token: Array  # (U,)
    column: Array  # (U,)
    word: Array  # (U,) which of the words that have tokens
    joins: Array  # (U,)
    back: Array  # (U+1,)
    skip: Array  # (U+1,)


def align_recording(
    frames: Heard,
    tokens: Sequence[int],
    words: Sequence[Sequence[int]],
    *,
    space: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Recording:
    """The best path of a recording and its `words`, each a sequence of tokens. Words without tokens are in no result.

    tokens, space: as in `heard`. progress: of frames. A word with a token that is not in `tokens` is a KeyError.
    """
    column = {token: FIRST_LABEL + n for n, token in enumerate(tokens)}
    text = _text([word for word in words if len(word)], column)
    numbers = [number for number, word in enumerate(words) if len(word)]
    T = len(frames.best)
    path = np.zeros(T, dtype=np.int32)
    if T:
        for window in _windows(frames, text, space):
            first, last, begin, _ = window
            path[first:last] = _search(frames, text, window) + 2 * begin
            if progress is not None:
                progress(last, T)
    return Recording(tuple(_placed(frames, text, path, numbers)), tuple(_stretches(frames, text, path, numbers)))


def _text(words: Sequence[Sequence[int]], column: dict[int, int]) -> _Text:
    token = np.array([token for word in words for token in word], dtype=np.int32)
    U = len(token)
    ends = np.cumsum([0, *(len(word) for word in words)])
    back = np.full(U + 1, -2, dtype=np.int32)
    back[ends] = [-1, *ends[:-1]]
    skip = np.zeros(U + 1, dtype=np.float64)
    skip[ends[1:]] = SKIP * np.diff(ends)
    joins = np.ones(U, dtype=np.bool_)
    joins[1:] = token[1:] != token[:-1]
    return _Text(
        token, np.array([column[t] for t in token.tolist()], dtype=np.int32),
        np.repeat(np.arange(len(words), dtype=np.int32), np.diff(ends)), joins, back, skip,
    )  # fmt: skip


# --- anchors ----------------------------------------------------------------------------------------------------------


def _windows(frames: Heard, text: _Text, space: int | None) -> Iterator[tuple[int, int, int, int]]:
    """Frames first .. last - 1 with the tokens begin .. end - 1. From the second window on the first token has begun in the frame
    before; in all but the last window the last token is on the last frame."""
    best = frames.best
    silent = (best == 0) | (best == (0 if space is None else space))
    begins = ~silent & (best != np.concatenate(([0], best[:-1])))
    at = np.flatnonzero(begins)
    read = best[at]
    T, U = len(best), len(text.token)
    anchors: list[tuple[int, int]] = []
    runs = RUNS["letters" if 2.5 * np.count_nonzero(text.back != -2) < U else "words"]
    _add_anchors(anchors, read, at, text.token, (0, len(read), 0, U), (0, T, 0, U), runs)
    t, u = 0, 0
    for (here_t, here_u), (next_t, next_u) in pairwise([*_possible(anchors, text, T), (T, U)]):
        if (next_t - t) * (next_u - u) > _FEW:
            yield t, here_t + 1, u, here_u + 1
            t, u = here_t + 1, here_u
    yield t, T, u, U


def _possible(anchors: Sequence[tuple[int, int]], text: _Text, T: int) -> list[tuple[int, int]]:
    """Those of them between which there are frames enough: for all tokens, or for the rest of the one word, a gap, and the
    beginning of the other."""
    need = np.arange(len(text.token)) + np.cumsum(~text.joins)  # frames up to a token, without blanks that need not be
    ends = np.flatnonzero(text.back != -2)
    before = (need - need[ends[:-1][text.word]]).tolist()  # of the same word
    behind = (need[ends[1:][text.word] - 1] - need).tolist()
    kept: list[tuple[int, int]] = []
    for t, u in anchors:
        if kept:
            last_t, last_u = kept[-1]
            wanted = min(int(need[u] - need[last_u]), behind[last_u] + 1 + 1 + before[u])
        else:
            last_t, wanted = -1, min(int(need[u]) + 1, 1 + 1 + before[u])
        if t - last_t >= wanted and T - 1 - t >= behind[u] + 1:
            kept.append((t, u))
    return kept


def _add_anchors(
    anchors: list[tuple[int, int]], read: Array, at: Array, token: Array, part: tuple[int, int, int, int],
    window: tuple[int, int, int, int], runs: Sequence[int],
) -> None:  # fmt: skip
    """Adds pairs of a frame and a token in order: those between tokens read[r0:r1] and token[u0:u1]. window: the same part in
    frames."""
    r0, r1, u0, u1 = part
    if not runs or (window[1] - window[0]) * (window[3] - window[2]) <= _FEW:
        return
    pairs = _matches(read[r0:r1], token[u0:u1], runs[0])
    ends = [(r0 - 1, u0 - 1), *((r0 + r, u0 + u) for r, u in pairs), (r1, u1)]
    for (r, u), (next_r, next_u) in pairwise(ends):
        if r >= r0:
            anchors.append((int(at[r]), u))
        inside = (r + 1, next_r, u + 1, next_u)
        begin = window[0] if r < r0 else int(at[r])
        end = window[1] if next_r == r1 else int(at[next_r])
        _add_anchors(anchors, read, at, token, inside, (begin, end, u + 1, next_u), runs[1:])


def _matches(read: Array, token: Array, run: int) -> list[tuple[int, int]]:
    """The middles of runs that occur once in each, in the largest set in which both rise."""
    if min(len(read), len(token)) < run:
        return []
    ours, theirs = _runs(read, run), _runs(token, run)
    once_read, once_text = _once(ours), _once(theirs)
    _, i, j = np.intersect1d(ours[once_read], theirs[once_text], assume_unique=True, return_indices=True)
    r, u = once_read[i], once_text[j]
    order = np.argsort(r)
    rising = _longest_rising(u[order].tolist())
    return [(int(r[order[n]]) + run // 2, int(u[order[n]]) + run // 2) for n in rising]


def _runs(tokens: Array, run: int) -> Array:
    """A number for each run of so many tokens; two runs with one number are as good as impossible."""
    numbers = np.zeros(len(tokens) - run + 1, dtype=np.uint64)
    for n in range(run):
        numbers = numbers * np.uint64(0x9E3779B97F4A7C15) + tokens[n : n + len(numbers)].astype(np.uint64)
        numbers ^= numbers >> np.uint64(29)
    return numbers


def _once(numbers: Array) -> Array:
    _, first, count = np.unique(numbers, return_index=True, return_counts=True)
    once: Array = first[count == 1]
    return once


def _longest_rising(values: Sequence[int]) -> list[int]:
    """The places of a longest rising part of `values`.

    >>> _longest_rising([5, 1, 2, 9, 3])
    [1, 2, 4]
    """
    tails: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, value in enumerate(values):
        n = bisect.bisect_left(tails, value)
        before.append(places[n - 1] if n else -1)
        tails[n : n + 1], places[n : n + 1] = [value], [place]
    rising = []
    place = places[-1] if places else -1
    while place >= 0:
        rising.append(place)
        place = before[place]
    return rising[::-1]


# --- the search -------------------------------------------------------------------------------------------------------


def _search(frames: Heard, text: _Text, window: tuple[int, int, int, int], *, star: float = STAR) -> Array:
    """The best path of a window, states counted from its first gap."""
    first, last, begin, end = window
    n, states = last - first, 2 * (end - begin) + 1
    back = np.where(text.back[begin : end + 1] < begin, -2, text.back[begin : end + 1] - begin)
    is_open = text.back[begin : end + 1] != -2
    back = np.where(is_open & (back < 0), -1, back).astype(np.int32)
    lo, hi = _band(n, states, int(np.diff(np.flatnonzero(is_open), prepend=0, append=end - begin).max()))
    offset = np.concatenate(([0], np.cumsum(hi - lo)))
    choice = np.empty(int(offset[-1]), dtype=np.uint8)
    score = np.full(states, -math.inf)
    score[1 if first else 0] = 0.0
    for block in range(0, n, _BLOCK):
        part = slice(block, min(block + _BLOCK, n))
        x = np.asarray(frames.scores[first + part.start : first + part.stop], dtype=np.float32)
        advance(
            x, text.column[begin:end], text.joins[begin:end], back, text.skip[begin : end + 1], lo[part], hi[part],
            offset[part], score, choice, star,
        )  # fmt: skip
    state = states - 2
    if last == len(frames.best) and end == len(text.token):
        state = states - 1 if states == 1 or score[states - 1] >= score[states - 2] else states - 2
    path = np.empty(n, dtype=np.int32)
    backtrace(choice, lo, offset[:-1], back, state, path)
    return path


def _band(frames: int, states: int, longest: int) -> tuple[Array, Array]:
    """The states of each frame: all, or a band around the diagonal, wide enough for the longest word to be left out."""
    width = min(states, max(CELLS // max(1, frames), 8 * longest + 8))
    lo = np.linspace(0, states - width, max(1, frames))[:frames].round().astype(np.int64)
    return lo, lo + width


# --- what the path says -----------------------------------------------------------------------------------------------


def _placed(frames: Heard, text: _Text, path: Array, numbers: Sequence[int]) -> Iterator[Placed]:
    on = np.flatnonzero(path & 1)
    token = path[on] >> 1
    U = len(text.token)
    best = np.full(U, -np.inf, dtype=np.float32)
    for block in range(0, len(on), _BLOCK):
        part = slice(block, block + _BLOCK)
        np.maximum.at(best, token[part], frames.scores[on[part], text.column[token[part]]].astype(np.float32))
    word = text.word[token] if U else token
    start = np.full(len(numbers), -1, dtype=np.int64)
    end = np.full(len(numbers), -1, dtype=np.int64)
    start[word[::-1]], end[word] = on[::-1], on + 1
    size = np.bincount(text.word, minlength=len(numbers)) if U else np.zeros(0)
    confidence = np.exp(np.bincount(text.word, weights=best, minlength=len(numbers)) / size) if U else size
    ends = np.concatenate(([0], np.cumsum(size).astype(np.int64)))
    at = 0
    for is_absent, group in groupby(range(len(numbers)), key=lambda n: bool(start[n] < 0)):
        several = list(group)
        if not is_absent:
            for n in several:
                yield Placed(numbers[n], int(start[n]), int(end[n]), float(confidence[n]), True)
            at = int(end[several[-1]])
            continue
        behind = several[-1] + 1
        until = int(start[behind]) if behind < len(numbers) else len(path)
        for n in several:
            found = _spotted(frames, text, at, until, int(ends[n]), int(ends[n + 1]), len(several))
            yield Placed(numbers[n], at, until, 1.0 - found, False)


def _spotted(frames: Heard, text: _Text, first: int, last: int, begin: int, end: int, several: int) -> float:
    """The confidence of the best place of the tokens begin .. end - 1 in frames first .. last - 1; 0 where they have no room."""
    size = end - begin
    last = min(last, first + _LOOKED // (several * (2 * size + 1)))
    if last - first < size:
        return 0.0
    scores = np.array(frames.scores[first:last], dtype=np.float32)
    alone = Heard(frames.best[first:last], scores)
    column = text.column[begin:end]
    own = _Text(
        text.token[begin:end], column, np.zeros(size, dtype=np.int32), text.joins[begin:end].copy(),
        np.full(size + 1, -2, dtype=np.int32), np.zeros(size + 1),
    )  # fmt: skip
    own.back[[0, size]] = -1
    own.joins[0] = True
    path = _search(alone, own, (0, len(scores), 0, size))
    best = np.full(size, -1000.0, dtype=np.float32)
    on = np.flatnonzero(path & 1)
    np.maximum.at(best, path[on] >> 1, scores[on, column[path[on] >> 1]])
    return float(np.exp(best.mean()))


def _stretches(frames: Heard, text: _Text, path: Array, numbers: Sequence[int]) -> Iterator[Stretch]:
    on_word = path & 1 == 1
    gap = np.flatnonzero(~on_word & (text.back[path >> 1] != -2))
    at = gap[frames.scores[gap, OTHER] + np.float16(STAR) > frames.scores[gap, PAUSE]]  # as on the best path
    # The last word that has begun; a stretch goes on where a word is left out.
    word = (
        np.where(on_word, text.word[(path >> 1).clip(max=len(text.word) - 1)], -1)
        if len(text.word)
        else np.full_like(path, -1)
    )
    last_word = np.maximum.accumulate(word)[at]
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(last_word)) + 1).tolist(), len(at)]):
        if begin == end:
            continue
        first, last = int(at[begin]), int(at[end - 1]) + 1
        tokens = tuple(token for token, _ in groupby(frames.best[first:last].tolist()) if token)
        confidence = float(np.exp(frames.scores[at[begin:end], OTHER].astype(np.float32)).mean())
        w = int(last_word[begin])
        yield Stretch(numbers[w] + 1 if w >= 0 else 0, first, last, tokens, confidence)
