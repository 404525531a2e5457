"""Kernels of Kneser-Ney estimation. The key of an n-gram holds its words from the last to the first, `bits` each.

So the order of keys is the suffix order: n-grams with the same last words stand together, and the first n * bits of a key are
the key of the n-gram's last n words. `reorder` makes the context order of it: all words but the last, likewise, then the last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from starseq.lm.records_numba import bits_at, jit, same_start

__all__ = ["BEGIN", "END", "MARK", "UNKNOWN", "adjust", "pack", "pack_rows", "reorder", "sum_contexts"]

UNKNOWN, BEGIN, END = 0, 1, 2
"""The first three words: <unk>, <s> and </s>."""

MARK = np.uint64(1 << 63)
"""Set in the count of an n-gram that pruning takes away."""

SMALL = 5
"""Counts of counts are kept for counts below this."""


@jit
def put(row: Any, start: int, count: int, value: Any) -> None:
    """Write a number to bits start .. start + count of a key, which are 0; count < 64."""
    word, offset = start >> 6, start & 63
    over = offset + count - 64
    if over > 0:
        row[word] |= value >> np.uint64(over)
        row[word + 1] |= value << np.uint64(64 - over)
    else:
        row[word] |= value << np.uint64(-over)


@jit
def pack_rows(rows: Any, bits: int, out: Any) -> None:
    """The keys of n-grams (N, n) into `out` (N, W), which is 0."""
    last = rows.shape[1] - 1
    for i in range(len(rows)):
        for k in range(last + 1):
            put(out[i], k * bits, bits, np.uint64(rows[i, last - k]))


@jit
def pack(words: Any, start: int, order: int, bits: int, out: Any) -> None:
    """The n-gram that ends at each of words[start:], with a count of 1, into `out` (n, W), which is 0.

    Sentences end with </s>; before the first word of one there is <s>, as often as it takes.
    """
    width = out.shape[1]
    for i in range(start, len(words)):
        row = out[i - start]
        inside = True
        for k in range(order):
            word = BEGIN
            if inside:
                at = i - k
                if k and (at < 0 or words[at] == END):
                    inside = False
                else:
                    word = words[at]
            put(row, k * bits, bits, np.uint64(word))
        row[width - 1] = np.uint64(1)


@jit
def _emit(n: int, row: Any, count: Any, marked: bool, bits: int, pruned: Any, out: Any, sizes: Any, stats: Any) -> None:
    """Write the last n words of the n-gram `row`, with their count, behind the n-grams of that order in `out`."""
    for k in range(n):
        marked |= pruned[np.int64(bits_at(row, k * bits, bits))]
    width = out.shape[2]
    target = out[n - 1, sizes[n - 1]]
    for word in range(width - 1):
        left = n * bits - 64 * word
        value = row[word]
        if left <= 0:
            value = np.uint64(0)
        elif left < 64:
            value = value >> np.uint64(64 - left) << np.uint64(64 - left)
        target[word] = value
    target[width - 1] = (count | MARK) if marked else count
    sizes[n - 1] += 1
    if count < SMALL:
        stats[n - 1, np.int64(count)] += 1
    if not marked:
        stats[n - 1, SMALL] += 1


@jit
def adjust(
    records: Any, order: int, bits: int, last: Any, counts: Any, totals: Any, opened: int,
    thresholds: Any, pruned: Any, out: Any, sizes: Any, stats: Any, is_end: bool,
) -> int:  # fmt: skip
    """Adjusted counts of all orders, from n-grams of the highest one with their counts, in suffix order.

    An n-gram below the highest order counts the different words before it, except that one which begins with <s>, before which
    nothing is, keeps its plain count. The last words of the record before are still open, up to `opened` of them: `last` is
    its key, `counts` and `totals` (order,) are their adjusted and plain counts. So blocks can be cut anywhere; `is_end` closes.

    Written: `out` (order, n, W) with `sizes` (order,); `stats` (order, 6), how many n-grams have count 0..4, and how many stay.
    Marked as pruned: plain counts up to the order's threshold, and words that are `pruned`; never <unk>, <s> or </s> alone.
    Returns how many are open now.
    """
    width = records.shape[1]
    rows = len(records) + 1 if is_end else len(records)
    for r in range(rows):
        same = 0
        if r < len(records):
            while same < opened and bits_at(records[r], same * bits, bits) == bits_at(last, same * bits, bits):
                same += 1
        for n in range(opened, same, -1):
            special = n == 1 and bits_at(last, 0, bits) <= END
            marked = totals[n - 1] <= thresholds[n - 1] and not special
            _emit(n, last, counts[n - 1], marked, bits, pruned, out, sizes, stats)
        if r == len(records):
            return 0
        row, count = records[r], records[r, width - 1]
        for n in range(same):
            totals[n] += count
        if same:
            counts[same - 1] += np.uint64(1)
        opened = same
        begins = False
        while opened + 1 < order and not begins:
            begins = bits_at(row, opened * bits, bits) == BEGIN
            counts[opened] = count if begins else np.uint64(1)
            totals[opened] = count
            opened += 1
        if (
            not begins
        ):  # otherwise <s> stands before the place of the first word, and this is no n-gram of the highest order
            special = order == 1 and bits_at(row, 0, bits) <= END
            marked = count <= thresholds[order - 1] and not special
            _emit(order, row, count, marked, bits, pruned, out, sizes, stats)
        for word in range(width - 1):
            last[word] = row[word]
    return opened


@jit
def reorder(records: Any, order: int, bits: int, back: bool) -> None:
    """Keys in suffix order to context order, in place; or back."""
    words = (order * bits + 63) >> 6
    old = np.empty(words, np.uint64)
    for i in range(len(records)):
        row = records[i]
        for word in range(words):
            old[word] = row[word]
            row[word] = np.uint64(0)
        for k in range(order):
            to = (k + 1) % order if back else (k - 1) % order
            put(row, to * bits, bits, bits_at(old, k * bits, bits))


@jit
def sum_contexts(
    records: Any, bits: int, words: int, discounts: Any, last: Any, sums: Any, out: Any, is_end: bool
) -> int:
    """For every context, the sum of its counts and the share gamma that its n-grams leave to the lower order.

    gamma = (D1 N1 + D2 N2 + D3 N3 + counts of what is pruned) / sum, where Nc of its n-grams that stay have count c (3: or
    more). A context is `bits` long. The present one is `last`, with `sums` (5,): sum, pruned, N1, N2, N3; so blocks can be cut
    anywhere. Writes (key of `words` words, sum, gamma as float64) to `out`, and returns how many.
    """
    width = records.shape[1]
    written = 0
    rows = len(records) + 1 if is_end else len(records)
    for r in range(rows):
        if sums[0] and (r == len(records) or not same_start(records[r], last, bits)):
            gamma = float(sums[1])
            for c in range(3):
                gamma += discounts[c + 1] * sums[2 + c]
            for word in range(words):
                out[written, word] = last[word]
            left = words * 64 - bits
            if left:
                by = np.uint64(left)
                out[written, words - 1] = out[written, words - 1] >> by << by
            out[written, words] = np.float64(sums[0]).view(np.uint64)
            out[written, words + 1] = np.float64(gamma / sums[0]).view(np.uint64)
            written += 1
            sums[:] = 0
        if r < len(records):
            row = records[r]
            for word in range(words):
                last[word] = row[word]
            marked = row[width - 1] & MARK != 0
            count: Any = np.int64(row[width - 1] & ~MARK)
            sums[0] += count
            if marked:
                sums[1] += count
            elif count:
                sums[1 + min(count, 3)] += 1
    return written
