"""The search behind `starseq.decode.complete`, compiled: prefixes in a trie, their acceptance by one integer each.

Names: a *hypothesis* is a prefix of the transcript in the beam, with the summed weight of its alignments up to the current frame,
apart for those that end in blank and in its last token. Its *position* is how much of the partial label it contains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from starseq.numba_cache import kept

_GOLDEN = np.int64(-7046029254386353131)  # 2^64 / golden ratio: spreads keys over the table
_NEGLIGIBLE = 30.0  # a share of e^-30 changes no confidence


F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile, keep the result on the disk, release the GIL."""
    compiled: F = kept(function, nogil=True, boundscheck=False, error_model="numpy")
    return compiled


@jit
def _logaddexp(a: Any, b: Any) -> Any:
    larger, smaller = (a, b) if a > b else (b, a)
    return larger if smaller == -np.inf else larger + np.log1p(np.exp(smaller - larger))


# --- hash tables: int64 keys, -1 where free ---------------------------------------------------------------------------


@jit
def _slot(keys: Any, key: Any) -> Any:
    """Where a key is, or the free place where it belongs."""
    mask = keys.size - 1
    place = ((key * _GOLDEN) >> np.int64(20)) & mask
    while keys[place] != key and keys[place] != -1:
        place = (place + 1) & mask
    return place


# --- the language model: states and fall-backs ------------------------------------------------------------------------


@jit
def lm_step(
    state: Any, word: Any, keys: Any, targets: Any, log_prob: Any, backoff: Any, fallback: Any, width: Any
) -> Any:
    """log P(word | state) and the n-gram state that it leads to. State 0 knows nothing; it answers for every word."""
    total = 0.0
    while True:
        place = _slot(keys, state * width + word)
        if keys[place] != -1:
            return total + log_prob[targets[place]], np.int64(targets[place])
        if state == 0:
            return -np.inf, np.int64(0)
        total += backoff[state]
        state = fallback[state]


@jit
def state_of(words: Any, width: Any, keys: Any, targets: Any) -> Any:
    """The state that is this n-gram, or -1."""
    state = np.int64(0)
    for i in range(words.size):
        place = _slot(keys, state * width + words[i])
        if keys[place] == -1:
            return np.int64(-1)
        state = np.int64(targets[place])
    return state


@jit
def add_states(words: Any, first: Any, width: Any, keys: Any, targets: Any, fallback: Any) -> Any:
    """Enter n-grams (N, n), all shorter ones being there, as states from `first` on; the first that cannot be, or -1."""
    count, n = words.shape
    for i in range(count):
        beginning = state_of(words[i, : n - 1], width, keys, targets)
        key = beginning * width + words[i, n - 1]
        place = _slot(keys, key)
        if beginning < 0 or keys[place] != -1:
            return i
        keys[place], targets[place] = key, first + i
        falls = np.int64(-1)
        for start in range(1, n):
            falls = state_of(words[i, start:], width, keys, targets)
            if falls >= 0:
                break
        fallback[first + i] = max(falls, 0)
    return -1


@jit
def lm_score(words: Any, start: Any, lm: Any) -> Any:
    """The sum over a sequence of words."""
    total, state = 0.0, np.int64(start)
    for i in range(words.size):
        log_p, state = lm_step(state, words[i], lm[0], lm[1], lm[2], lm[3], lm[4], lm[5])
        total += log_p
    return total


# --- the partial label as an automaton --------------------------------------------------------------------------------


@jit
def step(position: Any, token: Any, labels: Any, is_open: Any, falls_to: Any) -> Any:
    """The position after one more token, or -1 where nothing can mend it. See complete.py, `_falls_to`."""
    while True:
        if position < labels.size and labels[position] == token:
            return position + 1
        if is_open[position]:
            return position
        if falls_to[position] < 0:
            return -1
        position = falls_to[position]


@jit
def embed(tokens: Any, labels: Any, is_open: Any, known: Any) -> None:
    """Mark the tokens that are the labels: each is the first that leaves the rest a place."""
    n, U = tokens.size, labels.size
    fits = np.zeros((n + 1, U + 1), np.bool_)  # whether tokens[i:] mean labels[l:] from gap l on
    fits[n, U] = True
    for i in range(n - 1, -1, -1):
        for l in range(U + 1):
            fits[i, l] = (is_open[l] and fits[i + 1, l]) or (l < U and tokens[i] == labels[l] and fits[i + 1, l + 1])
    l = 0
    for i in range(n):
        known[i] = l < U and tokens[i] == labels[l] and fits[i + 1, l + 1]
        l += known[i]


@jit
def future(log_probs: Any, blank: Any, labels: Any, is_open: Any, falls_to: Any, merge: Any, out: Any) -> None:
    """out (T+1, U+1): about the log-probability that frames t.. bring what is missing from a position.

    Exact where every gap is open and repeats do not merge. It ranks hypotheses of the beam, it never enters a score.
    """
    T, U = log_probs.shape[0], labels.size
    out[T, :U] = -np.inf
    out[T, U] = 0.0
    for t in range(T - 1, -1, -1):
        row = log_probs[t]
        p_blank = np.exp(np.float64(row[blank]))
        for l in range(U + 1):
            p_next = np.exp(np.float64(row[labels[l]])) if l < U else 0.0
            p_again = np.exp(np.float64(row[labels[l - 1]])) if merge and l > 0 else 0.0
            others = max(1.0 - p_blank - p_next, 1e-30)
            if merge and l > 0 and l < U and labels[l - 1] == labels[l]:
                p_next *= 0.5  # the same token goes on, or comes again
                p_again = p_next
            if is_open[l]:
                here = p_blank + others
                if merge and l > 0 and l < U and labels[l - 1] == labels[l]:
                    here += p_again
            else:
                here = p_blank + p_again
            total = np.log(here) + out[t + 1, l] if here > 0 else -np.inf
            if l < U and p_next > 0:
                total = _logaddexp(total, np.log(p_next) + out[t + 1, l + 1])
            if not is_open[l] and falls_to[l] >= 0:
                total = _logaddexp(total, _after_a_fall(row, others, labels, l, is_open, falls_to, out[t + 1]))
            out[t, l] = total


@jit
def _after_a_fall(row: Any, others: Any, labels: Any, position: Any, is_open: Any, falls_to: Any, after: Any) -> Any:
    """The part of `future` in which another token comes than the next label of a closed position: as `step` has it, what it falls
    to may have that token for its own next label. after: (U+1,), of the next frame."""
    total, at = -np.inf, position
    while not is_open[at] and falls_to[at] >= 0:
        at = falls_to[at]
        is_new, above = at < labels.size, position
        while is_new and above != at:  # else it would not have fallen so far
            is_new = above == labels.size or labels[above] != labels[at]
            above = falls_to[above]
        if is_new:
            p = np.exp(np.float64(row[labels[at]]))
            others = max(others - p, 1e-30)
            if p > 0:
                total = _logaddexp(total, np.log(p) + after[at + 1])
    return _logaddexp(total, np.log(others) + after[at]) if is_open[at] else total


# --- the search -------------------------------------------------------------------------------------------------------


@jit
def largest(log_probs: Any, blank: Any, top: Any) -> None:
    """top (T, k): the likeliest tokens of each frame but blank, in falling order, then -1. For small k."""
    k = top.shape[1]
    for t in range(log_probs.shape[0]):
        row, tokens = log_probs[t], top[t]
        count = 0
        least = -np.inf
        for v in range(row.size):
            if row[v] > least and v != blank:
                i = count if count < k else k - 1
                while i > 0 and row[tokens[i - 1]] < row[v]:
                    tokens[i] = tokens[i - 1]
                    i -= 1
                tokens[i] = v
                count += count < k
                if count == k:
                    least = row[tokens[k - 1]]
        tokens[count:] = -1


@jit
def _nth(values: Any, count: Any, n: Any) -> Any:
    """The n-th largest of `count` values, n from 0 on, which loses their order: Hoare's selection."""
    low, high = 0, count - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if n <= j:
            high = j
        elif n >= i:
            low = i
        else:
            break
    return values[n]


@jit
def _keep(
    count: Any, beam: Any, rank: Any, scratch: Any, origin: Any, token: Any, position: Any, state: Any, p_blank: Any,
    p_token: Any, lm: Any,
) -> Any:  # fmt: skip
    """Move the `beam` best candidates to the front, in their order; ties go to the earlier. Returns count and cutoff."""
    if count <= beam:
        return count, -np.inf
    for i in range(count):
        scratch[i] = rank[i]
    cutoff = _nth(scratch, count, beam - 1)
    above = 0
    for i in range(count):
        above += rank[i] > cutoff
    ties = beam - above
    kept = 0
    for i in range(count):
        if rank[i] < cutoff or (rank[i] == cutoff and ties == 0):
            continue
        ties -= rank[i] == cutoff
        rank[kept], origin[kept], token[kept], position[kept] = rank[i], origin[i], token[i], position[i]
        state[kept], p_blank[kept], p_token[kept], lm[kept] = state[i], p_blank[i], p_token[i], lm[i]
        kept += 1
    return kept, cutoff


@jit
def search(
    log_probs: Any, blank: Any, merge: Any, labels: Any, is_open: Any, falls_to: Any, need: Any, ahead: Any,
    top: Any, beam: Any, threshold: Any, alpha: Any, beta: Any, word_of: Any, lm_start: Any,
    lm_end: Any, lm: Any,
) -> Any:  # fmt: skip
    """The last beam (nodes, log-weights, scores of the language model, lengths) and the trie (parent and last token of a node).

    log_probs: (T, V). need: (U+1,) frames that a position still takes. ahead: (T+1, U+1), what `future` says, and more. top: (T, k)
    tokens by which prefixes are extended. word_of: (V,), the language model's word of each token, empty without one.
    """
    T, V = log_probs.shape
    U = labels.size
    has_lm = word_of.size > 0
    lm_keys, lm_targets, lm_log_prob, lm_backoff, lm_fallback, lm_width = lm
    # The trie. Node 0 is the empty prefix.
    room, nodes = 1024, 1
    parent, last = np.empty(room, np.int32), np.empty(room, np.int32)
    slot_of = np.empty(room, np.int32)  # of a node in the beam, or -1
    parent[0], last[0], slot_of[0] = -1, -1, 0
    keys, values = np.full(4 * room, -1, np.int64), np.empty(4 * room, np.int32)
    # The beam.
    size = 1
    node, length = np.zeros(1, np.int32), np.zeros(1, np.int32)
    position, state = np.zeros(1, np.int64), np.full(1, lm_start, np.int64)
    p_blank, p_token, lm_total = np.zeros(1), np.full(1, -np.inf), np.zeros(1)
    total = np.zeros(1)
    first_child, next_child = np.empty(1, np.int32), np.empty(1, np.int32)
    # Candidates for the next beam.
    k = top.shape[1]
    marked = np.full(V, -1, np.int64)  # the hypothesis whose child by this token is in the beam
    marks = 0
    capacity = 0
    c_rank, c_scratch, c_p_blank, c_p_token, c_lm = np.empty(0), np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    c_origin, c_token = np.empty(0, np.int32), np.empty(0, np.int32)
    c_position, c_state = np.empty(0, np.int64), np.empty(0, np.int64)

    for t in range(T):
        row = log_probs[t]
        left = T - t - 1
        count = 0
        wanted = min(size * (k + 2), max(4 * beam, beam + 16))
        if wanted > capacity:
            capacity = 2 * wanted
            c_rank, c_scratch, c_p_blank, c_p_token, c_lm = (
                np.empty(capacity), np.empty(capacity), np.empty(capacity), np.empty(capacity), np.empty(capacity)
            )  # fmt: skip
            c_origin, c_token = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
            c_position, c_state = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        ahead_most = ahead[t + 1].max()
        best = -np.inf

        # Prefixes as they are: by blank, by their last token going on, and from their own parent in the beam.
        first_child[:size] = -1
        for i in range(size):
            n = node[i]
            stays = total[i] + row[blank]
            again = -np.inf
            if n > 0:
                v = last[n]
                if merge:
                    again = p_token[i] + row[v]
                above = slot_of[parent[n]]
                if above >= 0:
                    next_child[i] = first_child[above]
                    first_child[above] = i
                    source = p_blank[above] if merge and last[parent[n]] == v else total[above]
                    again = _logaddexp(again, source + row[v])
                if merge and position[i] < U and labels[position[i]] == v and need[position[i]] + 1 > left:
                    again = -np.inf  # its next label is the same token, for which no frame is left after a blank
            if need[position[i]] > left:
                continue
            weight = _logaddexp(stays, again)
            if weight == -np.inf:
                continue
            rank = weight + alpha * lm_total[i] + beta * length[i] + ahead[t + 1, position[i]]
            best = max(best, rank)
            c_rank[count], c_origin[count], c_token[count], c_position[count] = rank, i, -1, position[i]
            c_state[count], c_p_blank[count], c_p_token[count], c_lm[count] = state[i], stays, again, lm_total[i]
            count += 1
        cutoff = best - threshold
        if count >= beam:
            for i in range(count):
                c_scratch[i] = c_rank[i]
            cutoff = max(cutoff, _nth(c_scratch, count, beam - 1))

        # Prefixes with one more token. Tokens fall, so the first that cannot reach the beam ends the list.
        for i in range(size):
            n = node[i]
            child = first_child[i]
            while child >= 0:
                marked[last[node[child]]] = marks
                child = next_child[child]
            here = position[i]
            label = labels[here] if here < U else -1
            stays_open = is_open[here]
            candidates = k if stays_open or falls_to[here] >= 0 else 0  # else nothing but the label may come here
            before = alpha * lm_total[i] + beta * (length[i] + 1)
            bound = before + (ahead[t + 1, here] if stays_open else ahead_most)
            for c in range(-1, candidates):
                v = label if c < 0 else top[t, c]
                if v < 0 and c >= 0:
                    break
                if v < 0 or (c >= 0 and v == label):
                    continue
                source = p_blank[i] if merge and last[n] == v else total[i]
                if c >= 0 and total[i] + row[v] + bound < cutoff:
                    break
                weight = source + row[v]
                if weight == -np.inf or marked[v] == marks:
                    continue
                then = step(here, v, labels, is_open, falls_to)
                if then < 0 or need[then] + (merge and then < U and labels[then] == v) > left:
                    continue
                rank = weight + before + ahead[t + 1, then]
                if rank < cutoff:
                    continue
                log_p, follows = 0.0, state[i]
                if has_lm:
                    log_p, follows = lm_step(
                        state[i], word_of[v], lm_keys, lm_targets, lm_log_prob, lm_backoff, lm_fallback, lm_width
                    )
                    if alpha != 0:
                        rank += alpha * log_p
                    if not rank >= cutoff:
                        continue
                if rank == -np.inf:
                    continue
                if rank > best:
                    best = rank
                    cutoff = max(cutoff, best - threshold)
                c_rank[count], c_origin[count], c_token[count], c_position[count] = rank, i, v, then
                c_state[count], c_p_blank[count], c_p_token[count] = follows, -np.inf, weight
                c_lm[count] = lm_total[i] + log_p
                count += 1
                if count == capacity:
                    count, least = _keep(
                        count,
                        beam,
                        c_rank,
                        c_scratch,
                        c_origin,
                        c_token,
                        c_position,
                        c_state,
                        c_p_blank,
                        c_p_token,
                        c_lm,
                    )
                    cutoff = max(cutoff, least)
            marks += 1

        count, least = _keep(
            count, beam, c_rank, c_scratch, c_origin, c_token, c_position, c_state, c_p_blank, c_p_token, c_lm
        )
        # The next beam: those within the threshold, with nodes for the new ones.
        new_node, new_length = np.empty(count, np.int32), np.empty(count, np.int32)
        new_position, new_state = np.empty(count, np.int64), np.empty(count, np.int64)
        new_p_blank, new_p_token, new_lm, new_total = np.empty(count), np.empty(count), np.empty(count), np.empty(count)
        kept = 0
        for c in range(count):
            if c_rank[c] < best - threshold:
                continue
            i, v = c_origin[c], c_token[c]
            here = node[i]
            new_length[kept] = length[i]
            if v >= 0:
                new_length[kept] += 1
                key = np.int64(here) * V + v
                place = _slot(keys, key)
                if keys[place] == -1:
                    if nodes == room:
                        room *= 2
                        parent, last = _longer(parent, room), _longer(last, room)
                        slot_of = _longer(slot_of, room)
                        keys, values = np.full(4 * room, -1, np.int64), np.empty(4 * room, np.int32)
                        for m in range(1, nodes):
                            place = _slot(keys, np.int64(parent[m]) * V + last[m])
                            keys[place], values[place] = np.int64(parent[m]) * V + last[m], m
                        place = _slot(keys, key)
                    keys[place], values[place] = key, nodes
                    parent[nodes], last[nodes], slot_of[nodes] = here, v, -1
                    nodes += 1
                here = values[place]
            new_node[kept], new_position[kept], new_state[kept] = here, c_position[c], c_state[c]
            new_p_blank[kept], new_p_token[kept], new_lm[kept] = c_p_blank[c], c_p_token[c], c_lm[c]
            new_total[kept] = _logaddexp(c_p_blank[c], c_p_token[c])
            kept += 1
        for i in range(size):
            slot_of[node[i]] = -1
        size = kept
        node, length, position, state = new_node, new_length, new_position, new_state
        p_blank, p_token, lm_total, total = new_p_blank, new_p_token, new_lm, new_total
        for i in range(size):
            slot_of[node[i]] = i
        first_child, next_child = np.empty(size, np.int32), np.empty(size, np.int32)

    # All that is left accepts: `need` saw to it.
    if has_lm:
        for i in range(size):
            log_p, _ = lm_step(state[i], lm_end, lm_keys, lm_targets, lm_log_prob, lm_backoff, lm_fallback, lm_width)
            lm_total[i] += log_p
    return node[:size], total[:size], lm_total[:size], length[:size], parent, last


@jit
def _longer(x: Any, room: Any) -> Any:
    result = np.empty(room, x.dtype)
    result[: x.size] = x
    return result


# --- one transcript: its exact weight, and how sure each token is -----------------------------------------------------


@jit
def certainty(
    log_probs: Any,
    blank: Any,
    merge: Any,
    log_star: Any,
    top: Any,
    log_rest: Any,
    tokens: Any,
    wanted: Any,
    confidence: Any,
) -> Any:
    """log P(tokens | frames), and for the wanted tokens their share against another token, or none, in their place.

    log_star: (T,), the log-sum over all tokens but blank. Where repeats merge, the likeliest tokens of a frame, top (T, k), may
    last for several frames, and the others, together log_rest (T,), for one. wanted, confidence: (n,).
    """
    T, V = log_probs.shape
    n = tokens.size
    # Before frame t, with l tokens written: ends in blank (or anything, where nothing merges); ends in token l.
    blank_to, token_to = np.full((T + 1, n + 1), -np.inf), np.full((T + 1, n + 1), -np.inf)
    blank_to[0, 0] = 0.0
    for t in range(T):
        row = log_probs[t]
        for l in range(max(0, n - (T - t)), min(n, t + 1) + 1):
            if merge:
                blank_to[t + 1, l] = _logaddexp(blank_to[t, l], token_to[t, l]) + row[blank]
                if l > 0:
                    entering = _logaddexp(blank_to[t, l - 1], token_to[t, l])
                    if l == 1 or tokens[l - 2] != tokens[l - 1]:
                        entering = _logaddexp(entering, token_to[t, l - 1])
                    token_to[t + 1, l] = entering + row[tokens[l - 1]]
            else:
                entering = blank_to[t, l - 1] + row[tokens[l - 1]] if l > 0 else -np.inf
                blank_to[t + 1, l] = _logaddexp(blank_to[t, l] + row[blank], entering)
    log_z = _logaddexp(blank_to[T, n], token_to[T, n])
    if log_z == -np.inf or not wanted.any():
        return log_z

    # From frame t on, with l tokens written: after a blank (or anything); after token l.
    blank_from, token_from = np.full((T + 1, n + 1), -np.inf), np.full((T + 1, n + 1), -np.inf)
    blank_from[T, n] = 0.0
    token_from[T, n] = 0.0
    for t in range(T - 1, -1, -1):
        row = log_probs[t]
        for l in range(max(0, n - (T - t)), min(n, t + 1) + 1):  # one may be left out, so one more than frames before
            entering = -np.inf
            if l < n:
                entering = row[tokens[l]] + (token_from[t + 1, l + 1] if merge else blank_from[t + 1, l + 1])
            blank_from[t, l] = _logaddexp(row[blank] + blank_from[t + 1, l], entering)
            if merge and l > 0:
                again = row[tokens[l - 1]] + token_from[t + 1, l]
                after = again if l < n and tokens[l] == tokens[l - 1] else _logaddexp(again, entering)
                token_from[t, l] = _logaddexp(row[blank] + blank_from[t + 1, l], after)
    runs, seen = np.empty(V if merge else 0), np.empty(V if merge else 0, np.int64)
    for j in range(1, n + 1):
        if not wanted[j - 1]:
            continue
        before, after = tokens[j - 2] if j > 1 else -1, tokens[j] if j < n else -1
        # Without the token.
        alternatives = -np.inf
        if j == n:
            alternatives = _logaddexp(blank_to[T, j - 1], token_to[T, j - 1])
        else:
            for t in range(T):
                into = blank_to[t, j - 1]
                if merge and before != after:
                    into = _logaddexp(into, token_to[t, j - 1])
                on = token_from[t + 1, j + 1] if merge else blank_from[t + 1, j + 1]
                alternatives = _logaddexp(alternatives, into + log_probs[t, after] + on)
        # With any token in its place, itself among them.
        if not merge:
            for t in range(T):
                alternatives = _logaddexp(alternatives, blank_to[t, j - 1] + log_star[t] + blank_from[t + 1, j])
        else:
            alternatives = _logaddexp(alternatives, log_z)
            others = _other_runs(
                log_probs,
                blank,
                top,
                log_rest,
                j,
                tokens,
                log_z,
                blank_to,
                token_to,
                blank_from,
                token_from,
                runs,
                seen,
            )
            alternatives = _logaddexp(alternatives, others)
        confidence[j - 1] = min(np.exp(log_z - alternatives), 1.0)
    return log_z


@jit
def _other_runs(
    log_probs: Any, blank: Any, top: Any, log_rest: Any, j: Any, tokens: Any, log_z: Any, blank_to: Any, token_to: Any,
    blank_from: Any, token_from: Any, runs: Any, seen: Any,
) -> Any:  # fmt: skip
    """The log-sum over every other token v, and every run of frames of v, in the place of token j, where repeats merge."""
    T, n = log_probs.shape[0], tokens.size
    before, after = tokens[j - 2] if j > 1 else -1, tokens[j] if j < n else -1
    most = -np.inf  # no run is left at a better price than this
    for t in range(1, T + 1):
        most = max(most, _leave(log_probs, blank, t, j, n, after, -1, blank_from, token_from))
    floor = log_z - most - _NEGLIGIBLE
    seen[:] = -1
    total = -np.inf
    for t in range(T):
        into_blank, into_token = blank_to[t, j - 1], token_to[t, j - 1]
        into = max(into_blank, into_token)
        leave = _leave(log_probs, blank, t + 1, j, n, after, -1, blank_from, token_from)
        for c in range(top.shape[1]):
            v = top[t, c]
            if v < 0:
                break
            going = runs[v] if seen[v] == t else -np.inf
            if v == tokens[j - 1] or max(into, going) + log_probs[t, v] < floor:
                continue
            run = _logaddexp(going, into_blank)
            if v != before:
                run = _logaddexp(run, into_token)
            runs[v], seen[v] = run + log_probs[t, v], t + 1
            out = leave if v != after else _leave(log_probs, blank, t + 1, j, n, after, v, blank_from, token_from)
            total = _logaddexp(total, runs[v] + out)
        if into + log_rest[t] >= floor:
            total = _logaddexp(total, _logaddexp(into_blank, into_token) + log_rest[t] + leave)
    return total


@jit
def _leave(
    log_probs: Any, blank: Any, t: Any, j: Any, n: Any, after: Any, v: Any, blank_from: Any, token_from: Any
) -> Any:
    """What follows from frame t on, if frame t - 1 was the last of token v in the place of token j."""
    if t == log_probs.shape[0]:
        return 0.0 if j == n else -np.inf
    result = log_probs[t, blank] + blank_from[t + 1, j]
    if j < n and after != v:
        result = _logaddexp(result, log_probs[t, after] + token_from[t + 1, j + 1])
    return result
