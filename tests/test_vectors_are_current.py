"""The brute force is right (by hand, by regular expression, by differences, against torch), and the vectors are its."""

from __future__ import annotations

import ast
import itertools
import math
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import brute_force
from tests.brute_force import HALF, INF, Result, ctc, distinct_readings, selfless_ctc

stc = partial(brute_force.stc, merge_repeats=False)  # as published

CLOSED = -INF


def random_log_probs(T: int, V: int, seed: int = 0) -> list[list[float]]:
    rng = random.Random(seed)
    return brute_force.log_softmax([[rng.uniform(-2, 2) for _ in range(V)] for _ in range(T)])


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> bool:
    """Equal in structure, numbers to the tolerance; a number does not pass for a string, nor a row for a longer one."""
    if isinstance(expected, dict):
        return list(actual) == list(expected) and all(close(actual[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(
            close(*pair, tolerance) for pair in zip(actual, expected, strict=True)
        )
    if isinstance(expected, float):
        return math.isclose(actual, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(actual == expected)


# --- the files --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vectors() -> dict[str, list[dict[str, Any]]]:
    return brute_force.vectors()


def test_every_file_is_there(vectors: dict[str, list[dict[str, Any]]]) -> None:
    assert sorted(vectors) == sorted(path.stem for path in brute_force.VECTORS.glob("*.json"))


@pytest.mark.parametrize("stem", ["ctc", "selfless_ctc", "stc", "stc_gaps", "stc_merged"])
def test_file_is_current(vectors: dict[str, list[dict[str, Any]]], stem: str) -> None:
    stored = brute_force.read_vectors(stem)
    assert [case["name"] for case in stored] == [case["name"] for case in vectors[stem]]
    assert len({case["name"] for case in stored}) == len(stored)
    stale = [old["name"] for old, new in zip(stored, vectors[stem], strict=True) if not close(old, new)]
    assert not stale, "run `python tests/brute_force.py`, and say why the truth has changed"


def test_writing_and_reading_is_exact(vectors: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    brute_force.write_vectors(tmp_path)
    for stem, cases in vectors.items():
        for read, case in zip(brute_force.read_vectors(stem, tmp_path), cases, strict=True):
            assert (read["loss"], read["grad_logits"]) == (case["loss"], case["grad_logits"])
            assert read["logits"] == case["logits"]


def test_root_of_the_ladder_stands_on_the_standard_library_alone() -> None:
    tree = ast.parse(Path(brute_force.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names


# --- by hand: tokens b (blank), 1, 2 at two frames; p = 0.5 -----------------------------------------------------------

B1, Y1, X1 = 0.5, 0.3, 0.2  # frame 1: P(b), P(1), P(2)
B2, Y2, X2 = 0.1, 0.6, 0.3  # frame 2
ONE_FRAME = [[math.log(B1), math.log(Y1), math.log(X1)]]
TWO_FRAMES = [*ONE_FRAME, [math.log(B2), math.log(Y2), math.log(X2)]]
P = 0.5


def likelihood(result: Result) -> float:
    return math.exp(-result.loss)


@pytest.mark.parametrize(
    ("log_probs", "target", "expected"),
    [
        ([], [], 1.0),
        (ONE_FRAME, [], B1 + P * (Y1 + X1)),  # 0.75
        (ONE_FRAME, [1], Y1),  # 0.3
        (TWO_FRAMES, [1, 2], Y1 * X2),  # 0.09
        (TWO_FRAMES, [1, 1], Y1 * Y2),  # 0.18: no blank is needed between them
        (TWO_FRAMES, [], (B1 + P * (Y1 + X1)) * (B2 + P * (Y2 + X2))),  # 0.75 * 0.55
        # 1b, 11, 12 match frame 1, and what follows is inserted; b1, 21 match frame 2. 0.165 + 0.36
        (TWO_FRAMES, [1], Y1 * (B2 + P * (Y2 + X2)) + (B1 + P * X1) * Y2),
    ],
)
def test_stc_by_hand(log_probs: list[list[float]], target: list[int], expected: float) -> None:
    assert likelihood(stc(log_probs, target, math.log(P))) == pytest.approx(expected, rel=1e-14)


def test_stc_posteriors_by_hand() -> None:
    # Z = 0.525: 1b .03, 11 .09, 12 .045, b1 .30, 21 .06; 11 and 12 insert after the label, 21 before it.
    result = stc(TWO_FRAMES, [1], math.log(P))
    minus_posterior = [[-0.30 / 0.525, -0.165 / 0.525, -0.06 / 0.525], [-0.03 / 0.525, -0.45 / 0.525, -0.045 / 0.525]]
    assert close(result.grad_log_probs, minus_posterior)
    assert close(result.inserted, [0.06 / 0.525, 0.135 / 0.525])


@pytest.mark.parametrize(
    ("log_penalty", "expected"),
    [
        ([HALF, CLOSED], (B1 + P * (Y1 + X1)) * Y2 + Y1 * B2),  # ends in 1: b1 and, inserted first, 11 and 21; or 1b
        ([CLOSED, HALF], Y1 * (B2 + P * (Y2 + X2)) + B1 * Y2),  # starts with 1
        ([CLOSED, CLOSED], Y1 * B2 + B1 * Y2),
    ],
)
def test_closed_gaps_by_hand(log_penalty: list[float], expected: float) -> None:
    assert likelihood(stc(TWO_FRAMES, [1], log_penalty)) == pytest.approx(expected, rel=1e-14)


def test_ctc_by_hand() -> None:
    assert likelihood(ctc(TWO_FRAMES, [1])) == pytest.approx(Y1 * Y2 + Y1 * B2 + B1 * Y2)  # 11 merges
    assert likelihood(selfless_ctc(TWO_FRAMES, [1])) == pytest.approx(Y1 * B2 + B1 * Y2)
    assert ctc(TWO_FRAMES, [1, 1]).loss == INF  # wants a blank between
    assert likelihood(selfless_ctc(TWO_FRAMES, [1, 1])) == pytest.approx(Y1 * Y2)


def test_count_of_alignments() -> None:
    # At p = 1 and P = 1/3 each of the 27 strings of b, 1, 2 weighs 1/27. Without any 1 are 2^3, so 19 hold one.
    uniform = [[-math.log(3)] * 3] * 3
    assert likelihood(stc(uniform, [1], 0.0)) == pytest.approx(19 / 27)


@pytest.mark.parametrize("target", [[1], [1, 2, 1], [1, 1, 1, 1]])
def test_infeasible_is_inf_with_zero_gradient(target: list[int]) -> None:
    T, V = len(target) - 1, 3
    log_probs = random_log_probs(T, V)
    zero = Result(INF, [[0.0] * V] * T, [0.0] * (len(target) + 1))
    assert ctc(log_probs, target) == selfless_ctc(log_probs, target) == zero
    assert stc(log_probs, target, HALF) == brute_force.stc(log_probs, target, HALF) == zero


# --- which readings count ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [[], [1], [1, 1], [2, 1], [1, 2, 1]])
def test_leftmost_matching_is_the_regular_expression(target: list[int]) -> None:
    """With all gaps open: ([^y1]*)y1([^y2]*)y2...(.*), every group a gap with its own penalty."""
    log_probs, penalties = random_log_probs(5, 3), [-0.3, -1.1, 0.0, -2.0][: len(target) + 1]
    pattern = re.compile("".join(f"([^{y}]*){y}" for y in brute_force.letters(target)) + "(.*)")
    z = []
    for alignment in itertools.product(range(3), repeat=5):
        if match := pattern.fullmatch(brute_force.letters([v for v in alignment if v != 0])):
            inserted = sum(x * len(gap) for x, gap in zip(penalties, match.groups(), strict=True))
            z.append(math.exp(sum(log_probs[t][v] for t, v in enumerate(alignment)) + inserted))
    assert likelihood(stc(log_probs, target, penalties)) == pytest.approx(math.fsum(z), rel=1e-13)


def has_inner_block(is_open: tuple[bool, ...]) -> bool:
    """Two or more labels in a row between two open gaps, with closed gaps between them."""
    opened = [l for l, open_ in enumerate(is_open) if open_]
    return any(after - before >= 2 for before, after in itertools.pairwise(opened))


@pytest.mark.parametrize("target", [[], [1], [1, 1], [1, 2], [1, 1, 1], [1, 1, 2], [1, 2, 1], [1, 2, 2]])
def test_every_reading_counts_once_but_for_inner_blocks(target: list[int]) -> None:
    log_probs = random_log_probs(6, 3)
    for is_open in itertools.product((False, True), repeat=len(target) + 1):
        penalties = [HALF if open_ else CLOSED for open_ in is_open]
        loss, once = stc(log_probs, target, penalties).loss, distinct_readings(log_probs, target, penalties)
        if has_inner_block(is_open):
            assert loss < once - 1e-6, f"gaps {is_open}: T = 6 has room for a block to fit twice"
        else:
            assert loss == pytest.approx(once, rel=1e-13), f"gaps {is_open}"


def test_inner_block_that_fits_twice_counts_twice() -> None:
    """The smallest witness, `* 1 1 *`: the token string 1 1 1 holds the block twice, each time with one insertion."""
    log_probs, penalties = [[math.log(0.4), math.log(0.6)]] * 3, [HALF, CLOSED, HALF]
    # b11, 1b1, 11b at 0.4 * 0.6^2; 111 at 0.6^3 * p.
    once, again = 3 * 0.4 * 0.36 + 0.216 * P, 0.216 * P
    assert math.exp(-distinct_readings(log_probs, [1, 1], penalties)) == pytest.approx(once)
    assert likelihood(stc(log_probs, [1, 1], penalties)) == pytest.approx(once + again)


def test_the_star_fox_reads_the_fox_fox() -> None:
    """`1 * 2` with both ends closed allows 1 2 2, which leftmost matching by itself would forbid."""
    certain = [[-INF if v != token else 0.0 for v in range(3)] for token in (1, 2, 2)]
    assert likelihood(stc(certain, [1, 2], [CLOSED, HALF, CLOSED])) == P
    assert stc(certain, [1, 2], [CLOSED, HALF, CLOSED]).inserted == [0.0, 1.0, 0.0]


def test_distinct_readings_want_one_penalty() -> None:
    with pytest.raises(ValueError, match="share one penalty"):
        distinct_readings(TWO_FRAMES, [1], [-0.1, -0.2])


def test_penalty_of_the_wrong_length() -> None:
    with pytest.raises(ValueError, match="one value or 2, one per gap; got 3"):
        stc(TWO_FRAMES, [1], [-0.1, -0.2, -0.3])


@pytest.mark.parametrize("target", [[], [1], [2, 2], [1, 2, 1]])
def test_all_gaps_closed_is_ctc(target: list[int]) -> None:
    log_probs = random_log_probs(5, 3)
    assert close(vars(stc(log_probs, target, CLOSED)), vars(selfless_ctc(log_probs, target)))
    assert close(vars(brute_force.stc(log_probs, target, CLOSED)), vars(ctc(log_probs, target)))


# --- gradients --------------------------------------------------------------------------------------------------------

CRITERIA: dict[str, Callable[[list[list[float]], list[int]], Result]] = {
    "ctc": ctc,
    "selfless_ctc": selfless_ctc,
    "stc": lambda log_probs, target: stc(log_probs, target, HALF),
    "stc_merged": lambda log_probs, target: brute_force.stc(log_probs, target, HALF),
    "stc_gaps": lambda log_probs, target: stc(log_probs, target, [-0.2, CLOSED, -1.5]),
}


def differences(loss: Callable[[list[list[float]]], float], frames: list[list[float]]) -> list[list[float]]:
    """The gradient of `loss` by central differences."""

    def moved(t: int, v: int, by: float) -> float:
        return loss([[x + by * ((s, w) == (t, v)) for w, x in enumerate(frame)] for s, frame in enumerate(frames)])

    step = 1e-5
    return [
        [(moved(t, v, step) - moved(t, v, -step)) / (2 * step) for v in range(len(frame))]
        for t, frame in enumerate(frames)
    ]


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("target", [[1, 2], [2, 2]])
def test_gradients_are_differences(name: str, target: list[int]) -> None:
    criterion, log_probs = CRITERIA[name], random_log_probs(4, 3)
    grad = criterion(log_probs, target).grad_log_probs
    assert close(differences(lambda x: criterion(x, target).loss, log_probs), grad, 1e-9)
    through_softmax = differences(lambda x: criterion(brute_force.log_softmax(x), target).loss, log_probs)
    assert close(through_softmax, brute_force.grad_logits(log_probs, grad), 1e-9)


@pytest.mark.parametrize("merge_repeats", [True, False])
@pytest.mark.parametrize("penalties", [[-0.2], [-0.2, -0.9], [-0.2, -0.9, -1.5], [-0.2, CLOSED, -1.5]])
def test_inserted_is_the_derivative_by_the_penalty(penalties: list[float], merge_repeats: bool) -> None:
    log_probs, target = random_log_probs(4, 3), [1, 1][: len(penalties) - 1]
    inserted = brute_force.stc(log_probs, target, penalties, merge_repeats=merge_repeats).inserted
    (by_penalty,) = differences(
        lambda x: -brute_force.stc(log_probs, target, x[0], merge_repeats=merge_repeats).loss, [penalties]
    )
    assert close(by_penalty, inserted, 1e-9)


# --- an independent library -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("target", [[], [1], [1, 1], [1, 3], [3, 1, 3], [3, 3, 3, 3]])
def test_ctc_is_that_of_torch(target: list[int], blank: int) -> None:
    logits = torch.tensor(random_log_probs(6, 4), dtype=torch.float64, requires_grad=True)
    labels, lengths = torch.tensor(target, dtype=torch.long), (torch.tensor(6), torch.tensor(len(target)))
    loss = torch.nn.functional.ctc_loss(logits.log_softmax(-1), labels, *lengths, blank=blank, reduction="sum")
    ours = ctc(logits.tolist(), target, blank)
    assert close(ours.loss, loss.item())
    if math.isfinite(ours.loss):
        (grad,) = torch.autograd.grad(loss, logits)
        assert close(brute_force.grad_logits(logits.tolist(), ours.grad_log_probs), grad.tolist())
