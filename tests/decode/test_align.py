"""Alignment with kept repeats, and of CTC: planted paths are found, the best path is the reference's, posteriors brute force's."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from tests.brute_force import _counts
from tests.interpreter import INSIDE, outside, run_again

from starseq import wfst
from starseq.decode.align import Alignment
from starseq.decode.align import align as align_any
from starseq.decode.align import align_batch as align_any_batch

BACKENDS = ("triton",) if INSIDE else ("torch", "numba")
HALF = math.log(0.5)
CLOSED = -math.inf
CRITERIA = ("stc", "ctc", "selfless_ctc")
align = partial(align_any, merge_repeats=False)  # STC as published
align_batch = partial(align_any_batch, merge_repeats=False)


@outside
def test_triton_in_the_interpreter() -> None:
    """The interpreter is chosen when kernels are defined, so the tests of this file run again in a process of their own."""
    pytest.importorskip("triton")
    run_again(__file__, "-k", "planted")


def planted(path: list[int], V: int, seed: int = 0) -> torch.Tensor:
    """Noise (T, V) in which one token of every frame stands out."""
    logits = torch.randn(len(path), V, generator=torch.Generator().manual_seed(seed))
    logits[torch.arange(len(path)), torch.tensor(path)] += 9.0
    return logits


def frames_of(alignment: Alignment) -> list[tuple[int, int, int]]:
    return [(label.token, label.start, label.end) for label in alignment.labels]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
def test_planted_path_is_found(backend: str) -> None:
    #        0  1  2  3  4  5  6  7  8  9
    path = [0, 5, 0, 3, 3, 0, 7, 2, 0, 4]
    logits = planted(path, V=9)
    whole = align(logits, [5, 3, 3, 7, 2, 4], criterion="selfless_ctc", backend=backend)
    assert frames_of(whole) == [(5, 1, 2), (3, 3, 4), (3, 4, 5), (7, 6, 7), (2, 7, 8), (4, 9, 10)]
    assert whole.spans == ()
    assert whole.missing == (0.0,) * 7
    assert all(label.confidence > 0.95 and label.probability > 0.95 for label in whole.labels)

    holes = align(logits, [5, 2], criterion="stc", backend=backend)
    assert frames_of(holes) == [(5, 1, 2), (2, 7, 8)]
    assert [(span.gap, span.start, span.end) for span in holes.spans] == [(1, 3, 7), (2, 9, 10)]
    assert [[(f.token, f.frame) for f in span.tokens] for span in holes.spans] == [[(3, 3), (3, 4), (7, 6)], [(4, 9)]]
    assert all(filling.confidence > 0.9 for span in holes.spans for filling in span.tokens)
    assert holes.missing == pytest.approx((0, 3, 1), abs=0.15)
    assert [span.missing for span in holes.spans] == [holes.missing[1], holes.missing[2]]

    merged = align(logits, [5, 3, 7, 2, 4], criterion="ctc", backend=backend)
    assert frames_of(merged) == [(5, 1, 2), (3, 3, 5), (7, 6, 7), (2, 7, 8), (4, 9, 10)]
    assert all(label.confidence > 0.95 for label in merged.labels)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_path_of_closed_gaps(backend: str) -> None:
    """`the * fox` with closed ends and "the fox fox" in the frames: the last fox is the label, the first one was missing."""
    logits = planted([1, 2, 0, 2], V=4)
    alignment = align(logits, [1, 2], [False, True, False], backend=backend)
    assert frames_of(alignment) == [(1, 0, 1), (2, 3, 4)]
    assert [[filling[:2] for filling in span.tokens] for span in alignment.spans] == [[(2, 1)]]
    assert alignment.missing[0] == alignment.missing[2] == 0
    everywhere = align(logits, [1, 2], backend=backend)
    assert frames_of(everywhere) == [(1, 0, 1), (2, 1, 2)]  # leftmost
    complete = align(planted([1, 0, 2], V=4), [1, 2], [False] * 3, backend=backend)
    assert complete.spans == ()
    assert complete.missing == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_planted_batch_equals_single(backend: str) -> None:
    paths = [[0, 5, 0, 3, 3, 0], [4, 4, 0, 0], [6]]
    labels = [[5, 3], [], [6]]
    batch = torch.full((3, 6, 9), math.nan)  # nothing past the lengths is read
    for b, path in enumerate(paths):
        batch[b, : len(path)] = planted(path, V=9, seed=b)
    together = align_batch(batch, [6, 4, 1], labels, backend=backend)
    for b, (path, label) in enumerate(zip(paths, labels, strict=True)):
        alone = align(batch[b, : len(path)], label, backend=backend)
        assert together[b].labels == alone.labels
        assert together[b].spans == alone.spans
        assert together[b].missing == pytest.approx(alone.missing)
    assert together[1].labels == ()
    assert [(f.token, f.frame) for f in together[1].spans[0].tokens] == [(4, 0), (4, 1)]


# --- against brute force and the reference ----------------------------------------------------------------------------


def small_cases() -> list[Any]:
    random = torch.Generator().manual_seed(7)
    cases = []
    for criterion in CRITERIA:
        for n in range(12):
            V, T = 3 + n % 2, 4
            U = int(torch.randint(0, 4, (), generator=random))
            labels = torch.randint(1, V, (U,), generator=random).tolist()
            logits = 2 * torch.randn(T, V, generator=random, dtype=torch.float64)
            penalty = -2 * torch.rand(U + 1, generator=random, dtype=torch.float64)
            is_open = (torch.rand(U + 1, generator=random) < (0.6 if n % 3 else 1.1)).tolist()
            cases.append(pytest.param(criterion, logits, labels, is_open, penalty, id=f"{criterion}-{n}"))
    return cases


def readings(criterion: str, pi: tuple[int, ...], labels: list[int], penalty: list[float]) -> Any:
    """The log-weight, the frames of each label, and the gap of each inserted frame, for every reading of an alignment."""
    if criterion == "ctc":
        runs, t = [], 0
        for token, group in itertools.groupby(pi):
            size = len(list(group))
            runs.append((token, range(t, t + size)))
            t += size
        runs = [run for run in runs if run[0] != 0]
        if [token for token, _ in runs] == labels:
            yield 0.0, [list(frames) for _, frames in runs], {}
        return
    places = [t for t, token in enumerate(pi) if token != 0]
    tokens = [pi[t] for t in places]
    is_open = [weight > CLOSED for weight in penalty]
    for matched in itertools.combinations(range(len(tokens)), len(labels)):
        if [tokens[j] for j in matched] != labels:
            continue
        gap_of = {places[j]: sum(k < j for k in matched) for j in range(len(tokens)) if j not in matched}
        skipped = [[pi[t] for t, gap in gap_of.items() if gap == l] for l in range(len(labels) + 1)]
        weight = sum(penalty[gap] for gap in gap_of.values())
        if weight > CLOSED and (criterion != "stc" or _counts(skipped, labels, is_open)):
            yield weight, [[places[j]] for j in matched], gap_of


@pytest.mark.skipif(INSIDE, reason="slow there")
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(("criterion", "logits", "labels", "is_open", "penalty"), small_cases())
def test_against_brute_force_and_wfst(
    criterion: str, logits: torch.Tensor, labels: list[int], is_open: list[bool], penalty: torch.Tensor, backend: str,
) -> None:  # fmt: skip
    T, V = logits.shape
    weights = penalty.masked_fill(~torch.tensor(is_open), CLOSED)
    log_probs = logits.log_softmax(1)
    inserting = weights.tolist() if criterion == "stc" else [CLOSED] * len(weights)
    terms = []
    for pi in itertools.product(range(V), repeat=T):
        own = sum(log_probs[t, v].item() for t, v in enumerate(pi))
        terms += [(own + w, pi, *rest) for w, *rest in readings(criterion, pi, labels, inserting)]

    def run() -> Alignment:
        return align(logits, labels, is_open, criterion=criterion, log_penalty=penalty, backend=backend)

    if not terms:
        with pytest.raises(ValueError, match="no alignment"):
            run()
        return
    result = run()
    best = max(terms, key=lambda term: term[0])
    z = math.fsum(math.exp(term[0]) for term in terms)
    assert result.log_score == pytest.approx(best[0])
    assert result.log_z == pytest.approx(math.log(z))
    assert [list(range(label.start, label.end)) for label in result.labels] == best[2]
    assert {f.frame: (f.token, span.gap) for span in result.spans for f in span.tokens} == {
        t: (best[1][t], gap) for t, gap in best[3].items()
    }
    for l, label in enumerate(result.labels):
        frames = range(label.start, label.end)
        belongs = [math.fsum(math.exp(w) for w, _, found, _ in terms if t in found[l]) / z for t in frames]
        assert label.confidence == pytest.approx(sum(belongs) / len(frames))
        assert label.probability == pytest.approx(log_probs[frames, label.token].exp().mean().item())
    for span in result.spans:
        for f in span.tokens:
            mass = math.fsum(
                math.exp(w) for w, pi, _, gaps in terms if pi[f.frame] == f.token and gaps.get(f.frame) == span.gap
            )
            assert f.confidence == pytest.approx(mass / z)
    for l, missing in enumerate(result.missing):
        expected = math.fsum(math.exp(w) * list(gaps.values()).count(l) for w, _, _, gaps in terms) / z
        assert missing == pytest.approx(expected)

    graphs = {"ctc": wfst.ctc_graph, "selfless_ctc": wfst.selfless_ctc_graph}
    graph = graphs[criterion](labels) if criterion in graphs else wfst.stc_graph(labels, 0, range(1, V), weights, False)
    path = wfst.viterbi_path(wfst.intersect(wfst.emission_graph(log_probs), graph))
    ours = [0] * T
    for label in result.labels:
        ours[label.start : label.end] = [label.token] * (label.end - label.start)
    for span in result.spans:
        for f in span.tokens:
            ours[f.frame] = f.token
    assert ours == path.outputs
    assert result.log_score == pytest.approx(path.score.item())


# --- edges and bad input ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(INSIDE, reason="the same there")
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_no_frames_and_no_labels(criterion: str, backend: str) -> None:
    nothing = align(torch.zeros(0, 4), [], criterion=criterion, backend=backend)
    assert nothing == Alignment((), (), (0.0,), 0.0, 0.0)
    blanks = align(planted([0, 0], V=4), [], criterion=criterion, backend=backend)
    assert blanks.labels == blanks.spans == ()


@pytest.mark.skipif(INSIDE, reason="the same there")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"labels": [1, 2, 3, 1]}, "no alignment: 4 labels need more than 3 frames"),
        ({"labels": [1, 1, 2], "criterion": "ctc"}, "no alignment: 3 labels need more than 3 frames"),
        ({"labels": [4]}, "targets: label 4 at .* is outside 0..3"),
        ({"labels": [0]}, "is the blank, which is no label"),
        ({"labels": [1], "open": [True]}, "open: 1 labels have 2 gaps, not 1"),
        ({"labels": [1], "blank": 9}, r"blank: 9 is outside 0..3, the vocabulary"),
        ({"labels": [1], "log_penalty": 0.5}, "penalty: 0.5 at .* is not a log-weight <= 0"),
        ({"labels": [1], "log_penalty": torch.zeros(3)}, r"log_penalty: expected a number or \(2,\)"),
        ({"labels": [1], "criterion": "cctc"}, "criterion: 'cctc' is none of"),
        ({"labels": [1], "backend": "wfst"}, "backend: 'wfst' is none of auto, torch, numba, triton"),
        ({"labels": [1], "logits": torch.zeros(3)}, r"logits: expected \(T, V\)"),
        ({"labels": [1], "logits": torch.zeros(3, 4).index_fill(0, torch.tensor([1]), math.nan)}, "NaN in frame 1"),
        ({"labels": [1], "logits": torch.tensor([[0.0, math.inf]])}, r"\+inf in frame 0"),
        (
            {"labels": [1], "logits": torch.tensor([[0.0, -math.inf]])},
            "every alignment of the 1 labels .* probability 0",
        ),
    ],
)
def test_bad_input(arguments: dict[str, Any], sentence: str) -> None:
    logits = arguments.pop("logits", torch.zeros(3, 4))
    with pytest.raises(ValueError, match=sentence):
        align(logits, arguments.pop("labels"), arguments.pop("open", None), **arguments)


@pytest.mark.skipif(INSIDE, reason="the same there")
def test_a_batch_says_which_utterance_is_infeasible() -> None:
    with pytest.raises(ValueError, match="utterance 1: no alignment"):
        align_batch(torch.zeros(2, 3, 4), [3, 1], [[1, 2], [1, 2]])
    with pytest.raises(ValueError, match="2 utterances of logits, 1 lengths"):
        align_batch(torch.zeros(2, 3, 4), [3], [[1, 2]])
