"""Kernels for lines of ARPA files: numbers and words to bytes and back. Words are rows of letters: those of word w are
letters[starts[w]:starts[w + 1]]."""

from __future__ import annotations

from typing import Any

import numpy as np

from starseq.lm.records_numba import bits_at, jit

__all__ = ["WHOLE", "fill_lookup", "parse", "write"]

_DECIMALS = 7
_TAB, _NEWLINE, _RETURN, _SPACE, _BACKSLASH = 9, 10, 13, 32, 92
_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46

WHOLE, FULL, SECTION_ENDS, CUT = 0, 1, 2, 3
NOT_A_NUMBER, TOO_FEW_WORDS, UNKNOWN_WORD, TOO_MUCH, POSITIVE = 4, 5, 6, 7, 8


@jit
def _write_number(out: Any, at: int, value: float) -> int:
    """A number with up to seven decimals, without zeros at its end."""
    scaled = np.int64(np.floor(abs(value) * 10.0**_DECIMALS + 0.5))
    if scaled == 0:
        out[at] = _ZERO
        return at + 1
    if value < 0:
        out[at] = _MINUS
        at += 1
    whole, rest = scaled // 10**_DECIMALS, scaled % 10**_DECIMALS
    digits = 1
    while whole >= 10**digits:
        digits += 1
    for k in range(digits):
        out[at + digits - 1 - k] = _ZERO + whole % 10
        whole //= 10
    at += digits
    if rest:
        digits = _DECIMALS
        while rest % 10 == 0:
            rest //= 10
            digits -= 1
        out[at] = _POINT
        at += 1
        for k in range(digits):
            out[at + digits - 1 - k] = _ZERO + rest % 10
            rest //= 10
        at += digits
    return at


@jit
def write(
    keys: Any, first: int, order: int, bits: int, log10_p: Any, log10_backoff: Any, letters: Any, starts: Any, out: Any
) -> tuple[int, int]:
    """Lines for the n-grams `keys`[first:] into `out`, as long as there is room; which comes next, and how much was written.

    `log10_backoff` is empty where a line has none.
    """
    at = 0
    for i in range(first, len(keys)):
        need = 64
        for k in range(order):
            word = np.int64(bits_at(keys[i], k * bits, bits))
            need += starts[word + 1] - starts[word] + 1
        if at + need > len(out):
            return i, at
        at = _write_number(out, at, log10_p[i])
        for k in range(order - 1, -1, -1):
            out[at] = _TAB if k == order - 1 else _SPACE
            at += 1
            word = np.int64(bits_at(keys[i], k * bits, bits))
            for letter in range(starts[word], starts[word + 1]):
                out[at] = letters[letter]
                at += 1
        if len(log10_backoff):
            out[at] = _TAB
            at = _write_number(out, at + 1, log10_backoff[i])
        out[at] = _NEWLINE
        at += 1
    return len(keys), at


@jit
def _hash(text: Any, start: int, end: int) -> Any:
    """FNV-1a."""
    value = np.uint64(14695981039346656037)
    for i in range(start, end):
        value = (value ^ np.uint64(text[i])) * np.uint64(1099511628211)
    return value ^ (value >> np.uint64(32))


@jit
def _look_up(text: Any, start: int, end: int, letters: Any, starts: Any, lookup: Any) -> Any:
    """The place in `lookup` (a power of two of them, -1: free) of a word or, if it is not there, where it would be."""
    mask = np.uint64(len(lookup) - 1)
    place = _hash(text, start, end) & mask
    while True:
        word = lookup[np.int64(place)]
        if word < 0:
            return np.int64(place)
        if starts[word + 1] - starts[word] == end - start:
            same = True
            for k in range(end - start):
                if letters[starts[word] + k] != text[start + k]:
                    same = False
                    break
            if same:
                return np.int64(place)
        place = (place + np.uint64(1)) & mask


@jit
def fill_lookup(letters: Any, starts: Any, lookup: Any) -> int:
    """Enter all words into `lookup`, which is all -1; the first word that is there already, or -1."""
    for word in range(len(starts) - 1):
        place = _look_up(letters, starts[word], starts[word + 1], letters, starts, lookup)
        if lookup[place] >= 0:
            return word
        lookup[place] = word
    return -1


@jit
def _parse_number(text: Any, start: int, end: int) -> tuple[bool, float]:
    """Whether text[start:end] is a number, and which."""
    at, negative, digits, exponent = start, False, 0, 0
    if at < end and (text[at] == _MINUS or text[at] == _PLUS):
        negative = text[at] == _MINUS
        at += 1
    value, after_point = 0.0, False
    while at < end:
        letter = text[at]
        if _ZERO <= letter <= _NINE:
            value = value * 10.0 + (letter - _ZERO)
            digits += 1
            if after_point:
                exponent -= 1
        elif letter == _POINT and not after_point:
            after_point = True
        else:
            break
        at += 1
    if at < end and digits and (text[at] == 101 or text[at] == 69):  # e, E
        at += 1
        below = at < end and text[at] == _MINUS
        if at < end and (text[at] == _MINUS or text[at] == _PLUS):
            at += 1
        power, digits = 0, 0
        while at < end and _ZERO <= text[at] <= _NINE and digits < 4:
            power = power * 10 + (text[at] - _ZERO)
            digits += 1
            at += 1
        exponent += -power if below else power
    if not digits or at < end:
        return False, 0.0
    value = value / 10.0**-exponent if exponent < 0 else value * 10.0**exponent
    return True, -value if negative else value


@jit
def _skip(text: Any, at: int, end: int, spaces: bool) -> int:
    """Behind the white space, or else behind the word, that begins at `at`."""
    while at < end and ((text[at] == _SPACE or text[at] == _TAB or text[at] == _RETURN) == spaces):
        at += 1
    return at


@jit
def parse(
    text: Any, at: int, order: int, letters: Any, starts: Any, lookup: Any, words: Any, log10_p: Any, log10_backoff: Any
) -> tuple[int, int, int]:
    """n-grams from the lines of `text`, from `at` on, into `words` (n, order), `log10_p` and `log10_backoff` (n,).

    Returns (where the next line begins, how many n-grams, why it stopped): FULL, SECTION_ENDS at an empty line or one with a
    backslash, CUT at a line without an end, WHOLE at the end of `text`, or what is wrong with this line. Without `lookup` (order
    1), `words` (n, 2) holds where a word begins and ends.
    """
    rows = 0
    while at < len(text):
        end = at
        while end < len(text) and text[end] != _NEWLINE:
            end += 1
        if end == len(text):
            return at, rows, CUT
        start = _skip(text, at, end, True)
        if start == end or text[start] == _BACKSLASH:
            return at, rows, SECTION_ENDS
        if rows == len(words):
            return at, rows, FULL
        stop = _skip(text, start, end, False)
        good, number = _parse_number(text, start, stop)
        if not good:
            return at, rows, NOT_A_NUMBER
        if number > 0:
            return at, rows, POSITIVE
        log10_p[rows] = number
        for k in range(order):
            start = _skip(text, stop, end, True)
            stop = _skip(text, start, end, False)
            if start == stop:
                return at, rows, TOO_FEW_WORDS
            if len(lookup):
                word = lookup[_look_up(text, start, stop, letters, starts, lookup)]
                if word < 0:
                    return at, rows, UNKNOWN_WORD
                words[rows, k] = word
            else:
                words[rows, 0], words[rows, 1] = start, stop
        log10_backoff[rows] = 0.0
        start = _skip(text, stop, end, True)
        if start < end:
            stop = _skip(text, start, end, False)
            good, number = _parse_number(text, start, stop)
            if not good or _skip(text, stop, end, True) < end:
                return at, rows, TOO_MUCH
            log10_backoff[rows] = number
        rows += 1
        at = end + 1
    return at, rows, WHOLE
