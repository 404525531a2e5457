"""The root of the ladder of truth: every criterion by enumerating all V^T alignments, straight from its definition.

No recursion over states, no log-sum-exp, nothing but the standard library: what it checks cannot be wrong in the same
way. Every sum runs over non-negative terms (`math.fsum`), so nothing cancels. For small T and V only: time is V^T, and
probabilities are multiplied as they are (T log-probabilities together must stay above -700).

    python tests/brute_force.py        rewrites tests/vectors/*.json
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Frames = Sequence[Sequence[float]]  # (T, V)
Alignment = tuple[int, ...]  # (T,): a token, or the blank, for every frame
Reading = tuple[float, Sequence[int]]  # a weight, and the number of tokens inserted in each gap (U+1,)
Collapse = Callable[[int, Alignment], list[int]]  # of the blank and an alignment: the tokens that it means

VECTORS = Path(__file__).parent / "vectors"
INF = math.inf


@dataclass(frozen=True)
class Result:
    """Loss -log Z, its gradient, and the expected number of unmatched tokens in each gap, d log Z / d lambda_l."""

    loss: float
    grad_log_probs: list[list[float]]  # (T, V): minus the posterior of token v at frame t
    inserted: list[float]  # (U+1,)


# --- the criteria -----------------------------------------------------------------------------------------------------


def stc(
    log_probs: Frames,
    target: Sequence[int],
    log_penalty: float | Sequence[float],
    blank: int = 0,
    merge_repeats: bool = True,
) -> Result:
    """Star Temporal Classification: -log of the sum, over alignments and over the embeddings of `target` that count, of

        prod_t P_t(pi_t)  *  prod_l p_l ^ (number of tokens skipped in gap l),        p_l = exp(log_penalty_l).

    The tokens of an alignment are what is left when repeats are merged, and then blanks removed; without `merge_repeats`,
    as published, when blanks are removed. An embedding j_1 < ... < j_U has tokens[j_l] = target_l; what lies between j_l
    and j_{l+1} is skipped in gap l, l = 0..U. Which ones count: see `_counts`. `log_penalty` is one value, or one per gap;
    -inf closes a gap.

    Two frames of b, 1, 2 with equal probabilities, p = 1/2: of 1b b1 11 12 21, which weigh 2 2 2 1 1 eighteenths, one
    inserts before the label and one after it. With kept repeats 11 weighs 1, and inserts after the label too.

    >>> frames = [[math.log(1 / 3)] * 3] * 2
    >>> result = stc(frames, target=[1], log_penalty=math.log(1 / 2))
    >>> round(math.exp(-result.loss) * 18, 9), [round(x * 8, 9) for x in result.inserted]
    (8.0, [1.0, 1.0])
    >>> result = stc(frames, target=[1], log_penalty=math.log(1 / 2), merge_repeats=False)
    >>> round(math.exp(-result.loss) * 18, 9), [round(x * 7, 9) for x in result.inserted]
    (7.0, [1.0, 2.0])
    """
    penalties = _per_gap(log_penalty, target)
    collapse = merged if merge_repeats else _without

    def readings(alignment: Alignment) -> Iterator[Reading]:
        return readings_of(collapse(blank, alignment), target, penalties)

    return _enumerate(log_probs, readings, gaps=len(penalties))


def ctc(log_probs: Frames, target: Sequence[int], blank: int = 0) -> Result:
    """CTC: the alignments that give `target` when repeats are merged and then blanks removed."""
    return _collapsing(merged, log_probs, target, blank)


def selfless_ctc(log_probs: Frames, target: Sequence[int], blank: int = 0) -> Result:
    """CTC without self-loops: the alignments that give `target` when blanks are removed."""
    return _collapsing(_without, log_probs, target, blank)


# --- what the criteria are compared with ------------------------------------------------------------------------------


def distinct_readings(
    log_probs: Frames, target: Sequence[int], log_penalty: float | Sequence[float], blank: int = 0
) -> float:
    """The loss if every alignment that has some reading counted exactly once, whatever the gaps.

    A reading is a match of the regular expression that has `.*` at the open gaps. These must share one penalty: then
    every reading of n tokens weighs p^(n-U), and counting once is well defined.
    """
    penalties = _per_gap(log_penalty, target)
    shared = {x for x in penalties if x > -INF} or {0.0}
    if len(shared) > 1:
        raise ValueError(f"the open gaps must share one penalty, got {sorted(shared)}")
    (p,) = (math.exp(x) for x in shared)
    stars = [".*" if x > -INF else "" for x in penalties]
    pattern = re.compile("".join(label + star for label, star in zip(["", *letters(target)], stars, strict=True)))

    def readings(alignment: Alignment) -> Iterator[Reading]:
        tokens = _without(blank, alignment)
        if pattern.fullmatch(letters(tokens)):
            yield p ** (len(tokens) - len(target)), ()

    return _enumerate(log_probs, readings, gaps=0).loss


def letters(tokens: Sequence[int]) -> str:
    """Tokens as text for regular expressions: 0 is a, 1 is b, ..."""
    return "".join(chr(ord("a") + token) for token in tokens)


# --- from logits ------------------------------------------------------------------------------------------------------


def log_softmax(logits: Frames) -> list[list[float]]:
    """log P_t(v) = logits_tv - log sum_w exp(logits_tw). A frame of all -inf stays one: no alignment passes it.

    >>> log_softmax([[0.0, -INF]])
    [[0.0, -inf]]
    """
    frames = []
    for frame in logits:
        top = max(frame)
        shift = top + math.log(math.fsum(math.exp(x - top) for x in frame)) if top > -INF else 0.0
        frames.append([x - shift for x in frame])
    return frames


def grad_logits(log_probs: Frames, grad_log_probs: Frames) -> list[list[float]]:
    """The gradient with respect to logits whose log-softmax is `log_probs`: g_v - P_v * sum_w g_w."""
    return [
        [g - math.exp(log_p) * math.fsum(grads) for log_p, g in zip(frame, grads, strict=True)]
        for frame, grads in zip(log_probs, grad_log_probs, strict=True)
    ]


# --- the definitions underneath ---------------------------------------------------------------------------------------


def _embeddings(tokens: Sequence[int], target: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Every way to find `target` as a subsequence of `tokens`, leftmost first, as the tokens skipped in gaps 0..U."""
    for matched in itertools.combinations(range(len(tokens)), len(target)):
        if all(tokens[j] == label for j, label in zip(matched, target, strict=True)):
            bounds = itertools.pairwise((-1, *matched, len(tokens)))
            yield [tokens[before + 1 : after] for before, after in bounds]


def _counts(skipped: Sequence[Sequence[int]], target: Sequence[int], is_open: Sequence[bool]) -> bool:
    """Whether an embedding counts, given the tokens it skips in each gap.

    Every skipped token must lie in an open gap; that needs no test here, as p_l = 0 sees to it. And label l+1 is not skipped
    in gap l if gap l+1, right behind that label, is open, for to match it at once leaves the rest to gap l+1. If gap l+1 is
    closed there is no such choice, and it may be skipped.

    With all gaps open exactly one embedding counts, the leftmost. A closed block (labels with closed gaps between them)
    has one place if it has one label or touches a closed end; an inner one of two or more labels counts at each place.
    """
    return not any(is_open[l + 1] and label in skipped[l] for l, label in enumerate(target))


def readings_of(
    tokens: Sequence[int], target: Sequence[int], log_penalty: float | Sequence[float]
) -> Iterator[Reading]:
    """What each embedding of `target` in `tokens` that counts weighs, and how many tokens it inserts in each gap.

    >>> list(readings_of([2, 1, 1], target=[1], log_penalty=math.log(1 / 2)))
    [(0.25, [1, 1])]
    """
    penalties = _per_gap(log_penalty, target)
    for skipped in _embeddings(tokens, target):
        if _counts(skipped, target, [x > -INF for x in penalties]):
            inserted = [len(gap) for gap in skipped]
            yield math.prod(math.exp(x) ** n for x, n in zip(penalties, inserted, strict=True)), inserted


def _collapsing(collapse: Collapse, log_probs: Frames, target: Sequence[int], blank: int) -> Result:
    """The alignments that `collapse` to exactly `target`, each once; nothing is inserted."""
    nothing = [0] * (len(target) + 1)

    def readings(alignment: Alignment) -> list[Reading]:
        return [(1.0, nothing)] if collapse(blank, alignment) == list(target) else []

    return _enumerate(log_probs, readings, gaps=len(nothing))


def _enumerate(log_probs: Frames, readings: Callable[[Alignment], Iterable[Reading]], gaps: int) -> Result:
    """Sums over every alignment and each of its readings: Z = sum of weight * prod_t P_t(pi_t)."""
    T = len(log_probs)
    V = len(log_probs[0]) if T else 0
    probs = [[math.exp(log_p) for log_p in frame] for frame in log_probs]
    terms = [
        (weight * math.prod(probs[t][v] for t, v in enumerate(alignment)), alignment, inserted)
        for alignment in itertools.product(range(V), repeat=T)
        for weight, inserted in readings(alignment)
    ]
    z = math.fsum(term for term, _, _ in terms)
    if z == 0:
        return Result(INF, [[0.0] * V for _ in range(T)], [0.0] * gaps)
    return Result(
        loss=0.0 - math.log(z),
        grad_log_probs=[
            [0.0 - math.fsum(term for term, alignment, _ in terms if alignment[t] == v) / z for v in range(V)]
            for t in range(T)
        ],
        inserted=[math.fsum(term * inserted[l] for term, _, inserted in terms) / z for l in range(gaps)],
    )


def _without(blank: int, alignment: Sequence[int]) -> list[int]:
    return [token for token in alignment if token != blank]


def merged(blank: int, alignment: Sequence[int]) -> list[int]:
    return _without(blank, [token for token, _ in itertools.groupby(alignment)])


def _per_gap(log_penalty: float | Sequence[float], target: Sequence[int]) -> list[float]:
    gaps = len(target) + 1
    penalties = [float(log_penalty)] * gaps if isinstance(log_penalty, float | int) else list(log_penalty)
    if len(penalties) != gaps:
        raise ValueError(f"log_penalty must be one value or {gaps}, one per gap; got {len(penalties)}")
    return penalties


# --- the test vectors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """Uniform random logits in (-spread, spread), seeded by the name, but for those `given` as {(frame, token): logit}.

    So a new input leaves the others as they are, and only `random.random` (the same in every Python) is relied on.
    """

    name: str
    shape: tuple[int, int]  # T, V
    target: tuple[int, ...]
    blank: int = 0
    spread: float = 2.0
    given: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def logits(self) -> list[list[float]]:
        uniform = random.Random(self.name).random
        T, V = self.shape
        noise = [[round((2 * uniform() - 1) * self.spread, 3) for _ in range(V)] for _ in range(T)]
        return [[self.given.get((t, v), x) for v, x in enumerate(frame)] for t, frame in enumerate(noise)]


def _column(v: int, logit: float, frames: Iterable[int]) -> dict[tuple[int, int], float]:
    return {(t, v): logit for t in frames}


HALF, TENTH = math.log(0.5), math.log(0.1)

INPUTS = [
    Input("no frames, no labels", (0, 3), ()),
    Input("no frames, one label", (0, 3), (1,)),
    Input("one frame, no labels", (1, 3), ()),
    Input("one frame, one label", (1, 3), (2,)),
    Input("two frames, one label", (2, 3), (1,)),
    Input("no labels", (5, 3), ()),
    Input("as many labels as frames", (3, 3), (1, 2, 1)),
    Input("more labels than frames", (2, 3), (1, 2, 1)),
    Input("three labels", (5, 4), (3, 1, 2)),
    Input("two labels, many frames", (6, 4), (2, 3)),
    Input("a repeat", (4, 3), (1, 1)),
    Input("a repeat and no room for a blank", (2, 3), (2, 2)),  # feasible but for CTC
    Input("a label that comes back", (6, 3), (1, 2, 1)),
    Input("a vocabulary of one token", (6, 2), (1, 1, 1)),  # star without the label is empty
    Input("the blank is last", (5, 3), (0, 1), blank=2),
    Input("the blank is in the middle", (4, 4), (3, 0, 0), blank=1),
    Input("peaked frames", (5, 4), (1, 3), spread=15.0),
    Input("a label is almost certain in one frame", (4, 3), (1, 2), given={(1, 1): 60.0}),
    Input("a label is almost certain in every frame", (4, 4), (1, 2), given=_column(1, 60.0, range(4))),
    Input("a token that is no label is almost certain", (4, 4), (1, 2), given=_column(3, 60.0, range(4))),
    Input("the blank is almost certain", (4, 3), (1, 2), given=_column(0, 60.0, range(4))),
    Input("a label is certain in one frame", (4, 3), (1, 2), given={(1, 0): -INF, (1, 2): -INF}),
    Input("a label is impossible in one frame", (4, 3), (1, 2), given={(0, 1): -INF}),
    Input("a label is impossible", (4, 3), (1, 2), given=_column(2, -INF, range(4))),
    Input("the blank is impossible", (4, 3), (1, 2), given=_column(0, -INF, range(4))),
    Input("everything is impossible in one frame", (3, 3), (1,), given=dict.fromkeys([(1, 0), (1, 1), (1, 2)], -INF)),
]

OTHER_PENALTIES = {"p = 1": 0.0, "p = 0": -INF, "p = 0.1": TENTH}
SEEN_AT_OTHER_PENALTIES = {"no labels", "three labels", "a repeat", "a label is almost certain in every frame"}

GAPS: list[tuple[Input, tuple[float, ...]]] = [
    (Input("no labels, open", (3, 3), ()), (TENTH,)),
    (Input("no labels, closed", (3, 3), ()), (-INF,)),
    (Input("one label, a penalty for each side", (4, 3), (1,)), (TENTH, HALF)),
    (Input("one label, start closed", (4, 3), (1,)), (-INF, HALF)),
    (Input("one label, end closed", (4, 3), (1,)), (HALF, -INF)),
    (Input("one label, closed", (4, 3), (1,)), (-INF, -INF)),
    (Input("two labels, a penalty for each gap", (5, 4), (3, 1)), (0.0, TENTH, HALF)),
    (Input("two labels, ends closed: the * fox", (5, 3), (1, 2)), (-INF, HALF, -INF)),
    (Input("two labels, ends open: an inner block", (5, 3), (1, 2)), (HALF, -INF, HALF)),
    (Input("two labels, start closed", (5, 3), (2, 1)), (-INF, HALF, HALF)),
    (Input("two labels, end closed", (5, 3), (2, 1)), (HALF, HALF, -INF)),
    (Input("two labels, only the end open", (5, 3), (2, 1)), (-INF, -INF, HALF)),
    (Input("two labels, only the start open", (5, 3), (2, 1)), (HALF, -INF, -INF)),
    (Input("two labels, closed", (5, 3), (2, 1)), (-INF, -INF, -INF)),
    (Input("a repeat, a penalty for each gap", (5, 3), (1, 1)), (HALF, TENTH, 0.0)),
    (Input("a repeat, ends closed", (5, 3), (1, 1)), (-INF, HALF, -INF)),
    (Input("a repeat, ends open: an inner block", (5, 3), (1, 1)), (HALF, -INF, TENTH)),
    (Input("three labels, an inner block and a single", (6, 3), (1, 2, 1)), (HALF, -INF, TENTH, HALF)),
    (Input("three labels, a single and a block at the end", (6, 3), (2, 1, 1)), (HALF, TENTH, -INF, -INF)),
    (Input("three labels, an inner block of three", (6, 2), (1, 1, 1)), (HALF, -INF, -INF, HALF)),
    (Input("as many labels as frames, closed and open", (3, 4), (3, 2, 1)), (HALF, -INF, HALF, -INF)),
    (Input("more labels than frames, open", (2, 3), (1, 2, 1)), (HALF, HALF, -INF, HALF)),
    (Input("no blank, and nowhere to insert", (3, 3), (1,), given=_column(0, -INF, range(3))), (-INF, -INF)),
    (Input("no blank, and one gap to insert", (3, 3), (1,), given=_column(0, -INF, range(3))), (-INF, HALF)),
    (Input("the blank is last, ends closed", (4, 4), (1, 0), blank=3), (-INF, HALF, -INF)),
    # Star without label 1 has e^-40 of the label's mass, yet half of the posterior of frame 1 goes through it.
    (
        Input(
            "a label that is almost certain is left unmatched",
            (4, 4),
            (1, 2),
            given=_column(1, 40.0, range(2)) | _column(0, -INF, range(4)),
        ),
        (0.0, -40.0, -40.0),
    ),
]

# Beside those of STC: no frames, p = 1, and tokens that are certain for several frames, so that they last.
NOT_BLANK, ONLY_1, ONLY_2 = ({(t, v): -INF for t in range(3) for v in tokens} for tokens in ((0,), (0, 2), (0, 1)))
MERGED: list[tuple[Input, tuple[float, ...]]] = [
    (Input("no frames, no labels", (0, 3), ()), (HALF,)),
    (Input("no frames, one label", (0, 3), (1,)), (HALF, HALF)),
    (Input("one frame, one label", (1, 3), (2,)), (HALF, HALF)),
    (Input("no labels, p = 1", (5, 3), ()), (0.0,)),
    (Input("the blank is last, p = 1", (4, 4), (1, 0), blank=3), (0.0, 0.0, 0.0)),
    (Input("a repeat and no room between", (2, 3), (2, 2)), (HALF, HALF, HALF)),  # feasible for STC
    (Input("a token that is no label is certain", (4, 3), (1,), given=ONLY_2), (HALF, HALF)),
    (Input("a label is certain", (4, 3), (1,), given=ONLY_1), (HALF, HALF)),
    (Input("a label is almost certain in every frame", (4, 4), (1, 2), given=_column(1, 60.0, range(4))), (HALF,) * 3),
    (Input("a token that is no label is almost certain", (4, 4), (1, 2), given=_column(3, 60.0, range(4))), (HALF,) * 3),
    (Input("a token lasts behind the label", (4, 3), (1,), given={(0, 1): 40.0} | _column(2, 40.0, range(1, 4))), (-INF, HALF)),
    # Between the 1s a 2 must stand: it has e^-40 of the mass, and all of the weight.
    (Input("a repeat, another token between", (3, 3), (1, 1), given=NOT_BLANK | _column(1, 40.0, range(3))), (-INF, HALF, -INF)),
]  # fmt: skip


def _case(criterion: Callable[..., Result], name: str, x: Input, **star: Any) -> dict[str, Any]:
    log_probs = log_softmax(x.logits)
    result = criterion(log_probs, x.target, blank=x.blank, **star)
    return {
        "name": name,
        "shape": x.shape,
        "logits": x.logits,
        "target": x.target,
        "blank": x.blank,
        **star,
        "loss": result.loss,
        "grad_logits": grad_logits(log_probs, result.grad_log_probs),
        **({"inserted": result.inserted} if star else {}),
    }


def vectors() -> dict[str, list[dict[str, Any]]]:
    """The test vectors, a list of cases for each criterion, with the keys of tests/vectors/README.md."""
    return {
        "ctc": [_case(ctc, x.name, x) for x in INPUTS],
        "selfless_ctc": [_case(selfless_ctc, x.name, x) for x in INPUTS],
        "stc": [
            _case(stc, f"{x.name}; {p}", x, log_penalty=log_penalty, merge_repeats=False)
            for x, p, log_penalty in _at_one_penalty()
        ],
        "stc_gaps": [_case(stc, x.name, x, log_penalty=log_penalty, merge_repeats=False) for x, log_penalty in GAPS],
        "stc_merged": [
            _case(stc, x.name, x, log_penalty=log_penalty, merge_repeats=True) for x, log_penalty in GAPS + MERGED
        ],
    }


def _at_one_penalty() -> list[tuple[Input, str, float]]:
    return [(x, "p = 0.5", HALF) for x in INPUTS] + [
        (x, p, log_penalty)
        for x in INPUTS
        if x.name in SEEN_AT_OTHER_PENALTIES
        for p, log_penalty in OTHER_PENALTIES.items()
    ]


def write_vectors(folder: Path = VECTORS) -> None:
    """One key a line, so that a change reads well in a diff."""
    for stem, cases in vectors().items():
        blocks = (",\n".join(f'  "{key}": {json.dumps(_encoded(x))}' for key, x in case.items()) for case in cases)
        text = "[\n" + ",\n".join(f"{{\n{block}\n}}" for block in blocks) + "\n]\n"
        (folder / f"{stem}.json").write_text(text, encoding="utf-8")


def read_vectors(stem: str, folder: Path = VECTORS) -> list[dict[str, Any]]:
    """The cases of one file, with its infinities as floats again."""
    return [_decoded(case) for case in json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))]


def _encoded(value: Any) -> Any:
    """JSON has no infinities: they become the strings "inf" and "-inf"."""
    if isinstance(value, list | tuple):
        return [_encoded(x) for x in value]
    return str(value) if value in (INF, -INF) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decoded(x) for key, x in value.items()}
    if isinstance(value, list):
        return [_decoded(x) for x in value]
    return float(value) if value in ("inf", "-inf") else value


if __name__ == "__main__":
    write_vectors()
