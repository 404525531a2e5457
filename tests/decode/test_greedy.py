"""Greedy reading against a plain loop over frames; frames, confidences, and what bad input gets."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from starseq.decode.greedy import Read, greedy, greedy_read


def by_hand(best: list[int], merge: bool, blank: int) -> list[int]:
    tokens = [token for token, _ in groupby(best)] if merge else best
    return [token for token in tokens if token != blank]


@given(
    seed=st.integers(0, 2**32), batch=st.integers(1, 4), frames=st.integers(0, 12), tokens=st.integers(2, 4),
    merge=st.booleans(), blank=st.integers(0, 1),
)  # fmt: skip
def test_like_a_plain_loop(seed: int, batch: int, frames: int, tokens: int, merge: bool, blank: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, frames, tokens, generator=generator)
    lengths = torch.randint(0, frames + 1, (batch,), generator=generator)
    best = logits.argmax(dim=2)
    for b, length in enumerate(lengths.tolist()):
        logits[b, length:] = torch.nan  # what lies there means nothing
    expected = [by_hand(best[b, :length].tolist(), merge, blank) for b, length in enumerate(lengths.tolist())]
    assert greedy(logits, lengths, merge_repeats=merge, blank=blank) == expected
    reads = greedy_read(logits, lengths, merge_repeats=merge, blank=blank)
    assert [[read.token for read in row] for row in reads] == expected
    probabilities = logits.softmax(dim=2)
    for b, row in enumerate(reads):
        for read in row:
            span = range(read.start, read.end)
            assert read.end <= lengths[b]
            assert all(best[b, t] == read.token for t in span)
            assert merge or len(span) == 1
            mean = sum(probabilities[b, t, read.token].item() for t in span) / len(span)
            assert read.confidence == pytest.approx(mean, abs=1e-6)


def test_a_blank_parts_equal_labels_and_stc_needs_none() -> None:
    logits = torch.eye(3)[torch.tensor([[1, 1, 0, 1, 2, 2]])] * 20
    lengths = torch.tensor([6])
    assert greedy(logits, lengths, merge_repeats=True) == [[1, 1, 2]]
    assert greedy(logits, lengths, merge_repeats=False) == [[1, 1, 1, 2, 2]]
    (row,) = greedy_read(logits, lengths, merge_repeats=True)
    assert [(read.token, read.start, read.end) for read in row] == [(1, 0, 2), (1, 3, 4), (2, 4, 6)]
    assert all(isinstance(read, Read) and read.confidence > 0.999 for read in row)


def test_half_precision_and_empty_batches() -> None:
    logits = (torch.eye(3)[torch.tensor([[1, 2]])] * 5).bfloat16()
    assert greedy(logits, torch.tensor([2]), merge_repeats=True) == [[1, 2]]
    assert greedy_read(logits, torch.tensor([2]), merge_repeats=True)[0][0].confidence == pytest.approx(
        0.98675, abs=1e-4
    )
    assert greedy(torch.zeros(0, 4, 3), torch.zeros(0, dtype=torch.int64), merge_repeats=True) == []


@pytest.mark.parametrize(
    ("shape", "lengths", "sentence"),
    [
        ((3, 4), [3, 3, 3], r"expected \(B, T, V\), got \(3, 4\)"),
        ((2, 3, 4), [3], r"lengths: 1 of them for 2 utterances"),
        ((2, 3, 4), [3, -1], r"lengths: -1 is outside 0\.\.3, the frames"),
        ((1, 3, 4), [4], r"lengths: 4 is outside 0\.\.3, the frames"),
    ],
)
def test_bad_shapes(shape: tuple[int, ...], lengths: list[int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        greedy(torch.zeros(shape), torch.tensor(lengths), merge_repeats=True)


def test_lengths_and_blank_are_those_of_the_losses() -> None:
    logits = torch.eye(3)[torch.tensor([[1, 0, 2, 2], [2, 1, 1, 0]])]
    for lengths in ((4, 2), [4, 2], torch.tensor([4, 2], dtype=torch.int32), np.array([4, 2])):
        assert greedy(logits, lengths, merge_repeats=True, blank=np.int64(2)) == [[1, 0], [1]]
        assert [len(row) for row in greedy_read(logits, lengths, merge_repeats=False)] == [3, 2]
    for blank in (3, -1):
        with pytest.raises(ValueError, match=rf"blank: {blank} is outside 0\.\.2"):
            greedy(logits, (4, 2), merge_repeats=True, blank=blank)
