"""Alignment where tokens last: the best path is the best reading there is, and posteriors are shares of all."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from tests.brute_force import _counts

import starseq
from starseq.decode.align import Alignment, align, align_batch
from starseq.lattice import lasting_torch
from starseq.lattice.gaps import NONE, Gaps

BACKENDS = ["torch", "numba"]
HALF = math.log(0.5)
CLOSED = -math.inf

Run = tuple[int, int, int]  # a token, its first frame, the frame after its last


class Reading(NamedTuple):
    """An alignment and an embedding of the target in its collapse, with its log-weight."""

    log_weight: float
    labels: list[Run]
    skipped: list[list[Run]]  # of every gap


def readings(log_probs: torch.Tensor, target: list[int], penalties: list[float]) -> list[Reading]:
    """All alignments, each with every embedding that counts and has a weight."""
    x, is_open = log_probs.tolist(), [penalty > CLOSED for penalty in penalties]
    found = []
    for alignment in itertools.product(range(log_probs.shape[1]), repeat=len(x)):
        own = sum(x[t][v] for t, v in enumerate(alignment))
        runs = collapse(alignment)
        for matched in itertools.combinations(range(len(runs)), len(target)):
            if [runs[j][0] for j in matched] != target:
                continue
            bounds = itertools.pairwise((-1, *matched, len(runs)))
            skipped = [runs[before + 1 : after] for before, after in bounds]
            tokens = [[run[0] for run in gap] for gap in skipped]
            weight = own + sum(penalty for penalty, gap in zip(penalties, skipped, strict=True) for _ in gap)
            if weight > CLOSED and _counts(tokens, target, is_open):
                found.append(Reading(weight, [runs[j] for j in matched], skipped))
    return found


def collapse(alignment: tuple[int, ...]) -> list[Run]:
    """The tokens that CTC's collapse leaves, with their frames: repeats merge, then blanks (0) go."""
    runs = []
    for v, frames in itertools.groupby(range(len(alignment)), key=lambda t: alignment[t]):
        inside = list(frames)
        if v != 0:
            runs.append((v, inside[0], inside[-1] + 1))
    return runs


def check_against(result: Alignment, terms: list[Reading], log_probs: torch.Tensor) -> None:
    """Every number of an alignment against the same from all readings."""
    best = max(terms)
    z = math.fsum(math.exp(term.log_weight) for term in terms)

    def share(belongs: list[bool]) -> float:
        return math.fsum(math.exp(term.log_weight) for term, ours in zip(terms, belongs, strict=True) if ours) / z

    def stands(runs: list[Run], v: int, t: int) -> bool:
        return any(token == v and start <= t < end for token, start, end in runs)

    assert result.log_score == pytest.approx(best.log_weight, abs=1e-9)
    assert result.log_z == pytest.approx(math.log(z), abs=1e-9)
    assert [(label.token, label.start, label.end) for label in result.labels] == best.labels
    for l, label in enumerate(result.labels):
        frames = range(label.start, label.end)
        posteriors = [share([stands([term.labels[l]], label.token, t) for term in terms]) for t in frames]
        assert label.confidence == pytest.approx(sum(posteriors) / len(frames))
        assert label.probability == pytest.approx(log_probs[frames, label.token].exp().mean().item())
    filled = {span.gap: span for span in result.spans}
    assert set(filled) == {gap for gap, runs in enumerate(best.skipped) if runs}
    for gap, span in filled.items():
        runs = best.skipped[gap]
        assert [filling[:2] for filling in span.tokens] == [run[:2] for run in runs]
        assert (span.start, span.end) == (runs[0][1], runs[-1][2])
        assert span.missing == result.missing[gap]
        for v, t, confidence in span.tokens:
            assert confidence == pytest.approx(share([stands(term.skipped[gap], v, t) for term in terms]))
    for gap, missing in enumerate(result.missing):
        expected = math.fsum(math.exp(term.log_weight) * len(term.skipped[gap]) for term in terms) / z
        assert missing == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", range(24))
def test_against_all_readings_and_the_loss(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    T, V, U = 4 + seed % 2, 3 + seed // 2 % 2, seed % 4
    log_probs = (2 * torch.randn(T, V, generator=random, dtype=torch.float64)).log_softmax(1)
    target = torch.randint(1, V, (U,), generator=random).tolist()
    penalty = -2 * torch.rand(U + 1, generator=random, dtype=torch.float64)
    if seed % 3 == 0:
        penalty = penalty.masked_fill(torch.rand(U + 1, generator=random) < 0.4, CLOSED)
    terms = readings(log_probs, target, penalty.tolist())
    loss, inserted = starseq.stc_loss(
        log_probs, torch.tensor(target, dtype=torch.int64), (T,), (U,), penalty=penalty,
        return_inserted=True, reduction="sum",
    )  # fmt: skip
    if not terms:
        assert loss == math.inf
        with pytest.raises(ValueError, match="no alignment"):
            align(log_probs, target, log_penalty=penalty)
        return
    for backend in BACKENDS:
        result = align(log_probs, target, log_penalty=penalty, backend=backend)
        check_against(result, terms, log_probs)
        assert result.log_z == pytest.approx(-loss.item(), abs=1e-9)
        assert result.missing == pytest.approx(inserted.tolist(), abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_compiled_it_reads_what_the_readable_version_reads(seed: int) -> None:
    """Of a large vocabulary most tokens are no candidates, and have no states: the result is the same as with all."""
    random = torch.Generator().manual_seed(seed)
    T, V, U = 40, (300, 12)[seed % 2], 4
    logits = (1.0, 3.0, 8.0)[seed % 3] * torch.randn(T, V, generator=random)
    target = torch.randint(1, V, (U,), generator=random).tolist()
    is_open = [True] * (U + 1) if seed % 4 else (torch.rand(U + 1, generator=random) < 0.5).tolist()
    penalty = -4 * torch.rand(U + 1, generator=random, dtype=torch.float64)
    there = align(logits.double(), target, is_open, log_penalty=penalty, backend="torch")
    here = align(logits, target, is_open, log_penalty=penalty)
    assert [label[:3] for label in here.labels] == [label[:3] for label in there.labels]
    for ours, theirs in zip(here.labels, there.labels, strict=True):
        assert ours[3:] == pytest.approx(theirs[3:], abs=1e-4)
    assert [span[:3] for span in here.spans] == [span[:3] for span in there.spans]
    for ours, theirs in zip(here.spans, there.spans, strict=True):
        assert [filling[:2] for filling in ours.tokens] == [filling[:2] for filling in theirs.tokens]
        assert [one[2] for one in ours.tokens] == pytest.approx([one[2] for one in theirs.tokens], abs=1e-4)
    assert here.missing == pytest.approx(there.missing, abs=1e-3)
    assert here[3:] == pytest.approx(there[3:], rel=1e-5)


def test_numbers_too_far_apart_are_read_all_the_same() -> None:
    """What the first label weighs is far below float64: sums without logarithms cannot hold it beside the rest."""
    logits = planted([0, 1, 0, 2, 0, 0], V=4)
    logits[:, 3] = -2000.0
    here, there = (align(logits, [3, 1], log_penalty=HALF, backend=backend) for backend in ("numba", "torch"))
    assert here.log_score == pytest.approx(there.log_score)
    assert here.log_z == pytest.approx(there.log_z)
    assert [label[:3] for label in here.labels] == [label[:3] for label in there.labels]


def planted(path: list[int], V: int) -> torch.Tensor:
    return 9.0 * torch.nn.functional.one_hot(torch.tensor(path), V).double()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_that_lasts_is_filled_in_once(backend: str) -> None:
    #        0  1  2  3  4  5  6  7  8  9 10 11
    reads = [0, 1, 1, 3, 3, 3, 0, 2, 2, 2, 0, 1]
    result = align(planted(reads, V=4), [1, 2], backend=backend)
    assert [(label.start, label.end) for label in result.labels] == [(1, 3), (7, 10)]
    middle, end = result.spans
    assert (middle.gap, middle.start, middle.end, [filling[:2] for filling in middle.tokens]) == (1, 3, 6, [(3, 3)])
    assert (end.gap, end.start, end.end, [filling[:2] for filling in end.tokens]) == (2, 11, 12, [(1, 11)])
    assert result.missing == pytest.approx((0, 1, 1), abs=0.05)


def test_a_blank_parts_equal_tokens() -> None:
    """Of 1 1 _ 1, and of 3 3 _ 3, the second token is another one; without the blank there is none."""
    parted = align(planted([1, 1, 0, 1, 3, 3, 0, 3], V=4), [1])
    assert [(label.start, label.end) for label in parted.labels] == [(0, 2)]
    (span,) = parted.spans
    assert [filling[:2] for filling in span.tokens] == [(1, 3), (3, 4), (3, 7)]
    assert (span.start, span.end) == (3, 8)
    for log_penalty in (HALF, 0.0):
        whole = align(planted([1, 1, 1], V=4), [1], log_penalty=log_penalty)
        assert whole.spans == ()
        assert [(label.start, label.end) for label in whole.labels] == [(0, 3)]

    # Where there is no blank, a 1 that follows a 1 still is no other token: something else stands between.
    no_blank = planted([1, 1, 1, 1], V=4).index_fill(1, torch.tensor(0), CLOSED)
    result = align(no_blank, [1, 1], [False, True, False])
    first, second = result.labels
    (span,) = result.spans
    assert (first.end, second.start) == (span.start, span.end)
    assert 1 not in [filling.token for filling in span.tokens]


def test_of_equals_what_stands_still_is_best() -> None:
    logits = torch.zeros(3, 3)
    logits[2, [0, 2]] = CLOSED  # 1 at last; before it nothing tells a blank from 1
    (label,) = align(logits, [1], [False, False]).labels
    assert (label.start, label.end) == (0, 3)

    # At p = 1 the label may go on, or another 1 begin behind a blank; but none begins where the label stands.
    logits = torch.full((3, 3), CLOSED)
    logits[[0, 1, 1, 2], [1, 0, 1, 1]] = 0.0
    result = align(logits, [1], log_penalty=0.0)
    fillings = [filling[:2] for span in result.spans for filling in span.tokens]
    assert (result.labels[0].end, fillings) in [(3, []), (1, [(1, 2)])]


def test_a_padded_batch_equals_single_utterances() -> None:
    random = torch.Generator().manual_seed(5)
    frames, labels = [6, 4, 0, 1, 5], [[1, 3], [], [], [2], [2, 2, 1]]
    is_open = [[True, False, True], [True], [True], [False, True], [True] * 4]
    batch = torch.full((5, 6, 4), math.nan)  # nothing past the frames is read
    for b, T in enumerate(frames):
        batch[b, :T] = 2 * torch.randn(T, 4, generator=random)
    together = align_batch(batch, frames, labels, is_open)
    for b, T in enumerate(frames):
        alone = align(batch[b, :T], labels[b], is_open[b])
        assert together[b].labels == alone.labels
        assert together[b].spans == alone.spans
        assert together[b].missing == pytest.approx(alone.missing)
        assert together[b][3:] == pytest.approx(alone[3:])


def test_the_path_is_nothing_past_the_frames_and_where_there_is_none() -> None:
    gaps = Gaps(
        0, torch.tensor([1, 2, 0]), torch.tensor([[1, 2]] * 3), torch.full((3, 3), HALF), torch.full((3, 3), NONE)
    )
    x = torch.zeros(3, 3, 4).log_softmax(2)
    row, place, log_score = lasting_torch.viterbi(x, gaps, torch.tensor([2, 1, 0]))
    assert row.shape == place.shape == (3, 3)
    assert (row >= 0).tolist() == (place >= 0).tolist() == [[True, True, False], [False] * 3, [False] * 3]
    assert row[0, 1] == 1
    assert log_score.tolist() == pytest.approx([2 * math.log(1 / 4), CLOSED, 0])


@pytest.mark.parametrize(
    ("labels", "is_open", "sentence"),
    [
        ([1, 2, 1, 2], None, "no alignment: 4 labels need more than 3 frames"),
        ([1, 1, 2], None, "no alignment: 3 labels need more than 3 frames"),  # a frame between the two
        ([3], [False, False], "every alignment of the 1 labels with the 3 frames has probability 0 under stc"),
    ],
)
def test_without_an_alignment_a_sentence_says_why(labels: list[int], is_open: list[bool] | None, sentence: str) -> None:
    logits = torch.zeros(3, 4).index_fill(1, torch.tensor(3), CLOSED)
    with pytest.raises(ValueError, match=sentence):
        align(logits, labels, is_open)
    assert align(logits, [1, 1]).log_score > CLOSED
    with pytest.raises(ValueError, match="utterance 1: no alignment"):
        align_batch(torch.zeros(2, 3, 4), [3, 1], [[1, 1], [1, 1]])


def test_a_frame_in_which_nothing_is_possible() -> None:
    logits = torch.zeros(3, 4).index_fill(0, torch.tensor(1), CLOSED)
    with pytest.raises(ValueError, match="has probability 0"):
        align(logits, [1])
