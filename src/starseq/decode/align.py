"""Alignment: where the known labels lie, where labels are missing, and what the model would put there.

The best path of a label graph is the one alignment, a token or blank for every frame, that weighs most among those that mean
the (partial) label. Posteriors are shares of the weight of *all* of these alignments: see docs/filling-holes.md.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from starseq import criteria, emissions
from starseq.arguments import MATCHINGS, backend_for, check_values, one_of
from starseq.criteria.graph import LabelGraph
from starseq.emissions.lasting_torch import begins_and_lasts
from starseq.emissions.tokens import NONE, Scores
from starseq.lattice.banded_torch import outside

__all__ = ["AlignedLabel", "Alignment", "Filling", "StarSpan", "align", "align_batch", "check_finite", "label_frames"]


class AlignedLabel(NamedTuple):
    """A known label on the best path: its frames are start .. end - 1, one of them where repeats do not merge.

    confidence: the posterior, given the whole label, that a frame belongs to *this* label, as the mean over its frames. It says
        how sure the place is.
    probability: what the model by itself gives this token there, knowing no label, as the mean over its frames. It says how sure
        the label is: a wrong one is placed somewhere too, perhaps with confidence.
    """

    token: int
    start: int
    end: int
    confidence: float
    probability: float


class Filling(NamedTuple):
    """A token that the best path inserts, and its posterior: that this token is inserted in this gap at this frame. Where tokens
    last, frame and posterior are those of its first frame; and one may begin that equals the label in the frame before it."""

    token: int
    frame: int
    confidence: float


class StarSpan(NamedTuple):
    """A gap in which the best path inserts at least one token.

    gap: 0..U, it lies after label `gap`. start, end: frames from the first inserted token to after the last; blanks between them
    count, blanks around them do not. missing: the expected number of tokens missing in this gap.
    """

    gap: int
    start: int
    end: int
    tokens: tuple[Filling, ...]
    missing: float


class Alignment(NamedTuple):
    """The best path of a label graph.

    labels: (U,). spans: the gaps where something is missing on the best path. missing: (U+1,), for every gap the expected number of
    tokens inserted there, d log Z / d lambda (0 without stars). log_score: the log-weight of the best path. log_z: that of all.
    """

    labels: tuple[AlignedLabel, ...]
    spans: tuple[StarSpan, ...]
    missing: tuple[float, ...]
    log_score: float
    log_z: float


def align(
    logits: Tensor,
    labels: Sequence[int] | Tensor,
    open: Sequence[bool] | Tensor | None = None,
    *,
    criterion: str = "stc",
    log_penalty: float | Tensor = math.log(0.5),
    matching: str = "leftmost",
    blank: int = 0,
    backend: str = "auto",
) -> Alignment:
    """The best alignment of one utterance with its partial label.

    Args:
        logits: (T, V), logits or log-probabilities.
        labels: (U,) integers.
        open: (U+1,) bool, whether tokens may be missing in gap l, after label l. None: everywhere.
        criterion: a name of `starseq.criteria.names()`. One without stars knows no gaps, and ignores what concerns them.
        log_penalty: lambda <= 0, the log-weight of a missing token: a number or (U+1,).
        matching: "leftmost" or "all", as in the loss.
        blank: the token that means nothing.
        backend: "torch", "numba", "triton", or "auto" by the device.

    Raises ValueError, in one sentence, for arguments out of range, NaN, and labels that no alignment can mean.

        >>> probs = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
        >>> result = align(probs.log(), [1])
        >>> (label,) = result.labels
        >>> label.start, label.end, round(label.probability, 6), round(label.confidence, 2)
        (1, 2, 0.8, 0.88)
        >>> (span,) = result.spans
        >>> span.gap, span.start, span.end, [token for token, *_ in span.tokens]
        (1, 2, 3, [2])
    """
    if logits.dim() != 2:
        raise ValueError(f"logits: expected (T, V), got shape {tuple(logits.shape)}")
    (result,) = align_batch(
        logits[None], [logits.shape[0]], [labels], None if open is None else [open], criterion=criterion,
        log_penalty=log_penalty, matching=matching, blank=blank, backend=backend,
    )  # fmt: skip
    return result


def align_batch(
    logits: Tensor,
    lengths: Sequence[int] | Tensor,
    labels: Sequence[Sequence[int] | Tensor],
    open: Sequence[Sequence[bool] | Tensor] | None = None,
    *,
    criterion: str = "stc",
    log_penalty: float | Tensor = math.log(0.5),
    matching: str = "leftmost",
    blank: int = 0,
    backend: str = "auto",
) -> list[Alignment]:
    """`align` for logits (B, T, V) of which utterance b has lengths[b] frames. One that cannot be aligned raises for all.

    >>> logits = torch.tensor([[[0, 9, 0], [0, 9, 0], [9, 0, 0], [0, 0, 9]]]).expand(2, 4, 3).float()
    >>> batch = align_batch(logits, [4, 1], [[1, 2], []], criterion="ctc")
    >>> [[(label.start, label.end) for label in one.labels] for one in batch]
    [[(0, 2), (3, 4)], []]
    """
    name = backend_for(one_of("backend", backend, ("auto", "torch", "numba", "triton")), logits.device)
    one_of("matching", matching, MATCHINGS)
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ValueError(
            f"logits: expected floating point (B, T, V), got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    logits = logits.detach()
    frames = torch.as_tensor(lengths, dtype=torch.int64).cpu()
    targets = [torch.as_tensor(label, dtype=torch.int64).reshape(-1).cpu() for label in labels]
    if not len(logits) == len(frames) == len(targets):
        raise ValueError(f"{len(logits)} utterances of logits, {len(frames)} lengths and {len(targets)} labels differ")
    target_lengths = torch.tensor([len(target) for target in targets], dtype=torch.int64)
    padded = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=NONE)
    penalty = _penalty(log_penalty, targets, open, padded.shape[1] + 1) if criteria.has_star(criterion) else None
    check_values(padded, frames, target_lengths, penalty, logits.shape, blank)
    check_finite(logits, frames)

    device = logits.device
    options: dict[str, Any] = {}
    if penalty is not None:
        options = {"log_penalty": penalty.to(device), "matching": matching}
    graph = criteria.load(criterion)(padded.to(device), target_lengths.to(device), blank=blank, **options)
    result = _paths(logits, frames.to(device), graph, name)
    numbers = zip(frames.tolist(), target_lengths.tolist(), strict=True)
    return [_read(graph, result, b, T, U, criterion, len(logits) > 1) for b, (T, U) in enumerate(numbers)]


class _Paths(NamedTuple):
    """The best paths of a batch and the posteriors of its arcs, on the CPU. All (B, T, S) but the first three."""

    path: Tensor  # (B, T), the state after each frame
    log_score: Tensor  # (B,)
    log_z: Tensor  # (B,)
    enter: Tensor  # posterior of entering a state, of staying in it
    stay: Tensor
    star: Tensor  # posterior of an insertion (empty without stars)
    filling: Tensor  # the token that the best way to stay inserts, NONE where it inserts nothing, and its posterior
    filling_posterior: Tensor
    entering: Tensor  # the same of the best way to enter
    entering_posterior: Tensor
    probability: Tensor  # of the tokens that enter


def _paths(logits: Tensor, lengths: Tensor, graph: LabelGraph, backend: str) -> _Paths:
    lattice = importlib.import_module(f"starseq.lattice.banded_{backend}")
    topology, tokens = graph
    has_star = tokens.star_weight is not None
    arcs: Scores = emissions.load(backend, tokens.lasting).scores(
        logits, tokens, topology, lengths, normalized=True, star=has_star
    )
    log_alpha, log_beta, log_z = lattice.forward_backward(arcs.stay, arcs.enter, topology, lengths)
    outside_stay, outside_enter = outside(log_alpha, log_beta, log_z, topology)
    nothing = torch.full_like(arcs.stay, NONE, dtype=torch.int64)
    stay, enter = _Best(nothing, arcs.stay, arcs.stay), _Best(nothing, arcs.enter, arcs.enter)
    star = arcs.star
    if has_star:
        # Sums over a star's tokens give its posterior; the best alignment takes one of them, and no blank besides.
        stay, enter = _best_arcs(logits, graph, arcs)
        star = (outside_stay + arcs.star).exp()
        if tokens.lasting:
            star = star + (outside_enter + arcs.star).exp()
    path, log_score = lattice.viterbi(stay.score, enter.score, topology, lengths)
    result = _Paths(
        path, log_score, log_z,
        enter=(outside_enter + arcs.enter).exp(),
        stay=(outside_stay + arcs.stay).exp(),
        star=star,
        filling=stay.filling,
        filling_posterior=(outside_stay + stay.of_filling).exp(),
        entering=enter.filling,
        entering_posterior=(outside_enter + enter.of_filling).exp(),
        probability=arcs.enter.exp(),
    )  # fmt: skip
    return _Paths(*(x.cpu() for x in result))


class _Best(NamedTuple):
    """The best way of every arc, all (B, T, S): the token it inserts (NONE: nothing), its log-score, and that of an insertion."""

    filling: Tensor
    score: Tensor
    of_filling: Tensor


def _best_arcs(logits: Tensor, graph: LabelGraph, arcs: Scores) -> tuple[_Best, _Best]:
    """The best ways to stay in each state and to enter it, where there are stars."""
    tokens = graph.tokens
    assert tokens.star_weight is not None
    x = logits.to(arcs.norm.dtype) - arcs.norm[:, :, None]
    weight = tokens.star_weight.to(x.dtype)[:, None]
    log_blank = x[:, :, tokens.blank, None].expand_as(arcs.stay)
    if not tokens.lasting:
        return _best_of([(log_blank, None), _best_of_star(x, graph, weight)]), _best_of([(arcs.enter, None)])
    begins, lasts = begins_and_lasts(x)
    begin = _best_of_star(begins, graph, weight)
    last = _best_of_star(lasts, graph, torch.where(weight == -torch.inf, weight, 0.0))
    # A label's own token stands beside no star, so that its score is all of its arc's.
    is_gap = (tokens.enter == tokens.blank)[:, None]
    enter = torch.where(is_gap, log_blank, arcs.enter)
    return _best_of([(torch.where(is_gap, log_blank, arcs.stay), None), begin, last]), _best_of([(enter, None), begin])


def _best_of(ways: Sequence[tuple[Tensor, Tensor | None]]) -> _Best:
    """Of log-scores (B, T, S) and the tokens they insert, None for nothing; of equals the first."""
    score, of_filling = ways[0][0], torch.full_like(ways[0][0], -torch.inf)
    filling = torch.full_like(score, NONE, dtype=torch.int64)
    for weighs, token in ways[1:]:
        assert token is not None
        better = weighs > score
        score, filling = torch.where(better, weighs, score), torch.where(better, token, filling)
        of_filling = torch.where(better, weighs, of_filling)
    return _Best(filling, score.contiguous(), of_filling)


def _best_of_star(x: Tensor, graph: LabelGraph, weight: Tensor) -> tuple[Tensor, Tensor]:
    """For every frame and state the log-weight of the best token of its star, of scores x (B, T, V), and that token: (B, T, S)."""
    topology, tokens = graph
    # Of the three largest at most one is blank and at most one left out.
    values, indices = x.topk(min(3, x.shape[2]), dim=2)
    states = torch.arange(tokens.enter.shape[1], device=x.device)
    left_out = torch.full_like(tokens.enter, NONE) if tokens.star_except is None else tokens.star_except
    left_out = left_out.masked_fill(states >= topology.num_states[:, None] - 1, NONE)
    allowed = (indices != tokens.blank)[:, :, None] & (indices[:, :, None] != left_out[:, None, :, None])
    best, place = values[:, :, None].masked_fill(~allowed, -torch.inf).max(dim=3)
    return best + weight, indices[:, :, None].expand_as(allowed).gather(3, place[..., None])[..., 0]


def _read(graph: LabelGraph, paths: _Paths, b: int, T: int, U: int, criterion: str, batched: bool) -> Alignment:
    """Utterance b's best path, frame by frame."""
    log_z, log_score = float(paths.log_z[b]), float(paths.log_score[b])
    if log_score == -math.inf:
        where = f"utterance {b}: " if batched else ""
        raise ValueError(
            f"{where}no alignment: " + (f"{U} labels need more than {T} frames" if _too_short(graph, b, T) else
            f"every alignment of the {U} labels with the {T} frames has probability 0 under {criterion}")
        )  # fmt: skip
    blank, states = graph.tokens.blank, int(graph.topology.num_states[b])
    enters = graph.tokens.enter[b, :states].tolist()
    stays = [blank] * states if graph.tokens.stay is None else graph.tokens.stay[b, :states].tolist()
    gap_of = torch.tensor([token not in (blank, NONE) for token in enters]).cumsum(0)
    missing = torch.zeros(U + 1, dtype=torch.float64)
    if paths.star.numel():
        missing.index_add_(0, gap_of, paths.star[b, :T, :states].sum(dim=0).to(missing.dtype))

    path = paths.path[b, :T]
    gaps, states_after = gap_of[path].tolist(), path.tolist()

    def along(x: Tensor) -> list[Any]:
        result: list[Any] = x[b, torch.arange(T), path].tolist()
        return result

    entered, stayed, probability = along(paths.enter), along(paths.stay), along(paths.probability)
    stays_by = list(zip(along(paths.filling), along(paths.filling_posterior), strict=True))
    enters_by = list(zip(along(paths.entering), along(paths.entering_posterior), strict=True))
    found: list[list[int]] = [[] for _ in range(U)]
    fillings: list[list[Filling]] = [[] for _ in range(U + 1)]
    ends = [0] * (U + 1)
    last = NONE
    for t, (gap, state, before) in enumerate(zip(gaps, states_after, [0, *states_after], strict=False)):
        token, posterior = (stays_by if state == before else enters_by)[t]
        if token != NONE:
            if not (graph.tokens.lasting and token == last):
                fillings[gap].append(Filling(token, t, min(posterior, 1.0)))
            ends[gap] = t + 1
        elif (stays if state == before else enters)[state] not in (blank, NONE):
            found[gap - 1].append(t)
        last = token
    labels = []
    for frames in found:
        state = states_after[frames[0]]
        lasts = stays[state] == enters[state]  # the label may go on for several frames
        shares = [entered[t] + lasts * stayed[t] for t in frames]
        labels.append(
            AlignedLabel(
                enters[state],
                frames[0],
                frames[-1] + 1,
                confidence=min(sum(shares) / len(frames), 1.0),  # rounding may lead a little past 1
                probability=sum(probability[t] for t in frames) / len(frames),
            )
        )
    spans = tuple(
        StarSpan(gap, tokens[0].frame, ends[gap], tuple(tokens), float(missing[gap]))
        for gap, tokens in enumerate(fillings)
        if tokens
    )
    return Alignment(tuple(labels), spans, tuple(missing.tolist()), log_score, log_z)


def label_frames(graph: LabelGraph, b: int, path: Sequence[int]) -> list[tuple[int, int]]:
    """The frames (start, end) of each label on a path, the states after each frame, that takes no star."""
    blank, enters = graph.tokens.blank, graph.tokens.enter[b].tolist()
    stays = [blank] * len(enters) if graph.tokens.stay is None else graph.tokens.stay[b].tolist()
    frames: list[tuple[int, int]] = []
    for t, (state, before) in enumerate(zip(path, [0, *path], strict=False)):
        if state != before and enters[state] not in (blank, NONE):
            frames.append((t, t + 1))
        elif state == before and stays[state] not in (blank, NONE):
            frames[-1] = (frames[-1][0], t + 1)
    return frames


def _too_short(graph: LabelGraph, b: int, T: int) -> bool:
    """Whether the utterance's graph has no path of T frames at all, whatever their scores."""
    topology = graph.topology
    states = int(topology.num_states[b])
    need = [0] * states  # frames to reach each state
    for s in range(1, states):
        skips = topology.skip is not None and s > 1 and bool(topology.skip[b, s])
        need[s] = 1 + need[s - 2 if skips else s - 1]
    return min(need[max(states - topology.ends, 0) :]) > T


def _penalty(
    log_penalty: float | Tensor, targets: Sequence[Tensor], open: Sequence[Sequence[bool] | Tensor] | None, width: int
) -> Tensor:
    """lambda for every gap, (B, U+1), -inf where it is closed."""
    penalty = torch.as_tensor(log_penalty, dtype=torch.float64).cpu()
    if penalty.dim() > 1 or (penalty.dim() == 1 and (len(targets) != 1 or len(penalty) != width)):
        raise ValueError(f"log_penalty: expected a number or ({width},), got shape {tuple(penalty.shape)}")
    result = penalty.expand(len(targets), width).clone()
    if open is None:
        return result
    if len(open) != len(targets):
        raise ValueError(f"open: expected gaps of {len(targets)} utterances, got {len(open)}")
    for b, (target, gaps) in enumerate(zip(targets, open, strict=True)):
        if len(gaps) != len(target) + 1:
            raise ValueError(f"open: {len(target)} labels have {len(target) + 1} gaps, not {len(gaps)}")
        closed = ~torch.as_tensor(gaps, dtype=torch.bool).cpu()
        result[b, : len(gaps)].masked_fill_(closed, -torch.inf)
    return result


def check_finite(logits: Tensor, lengths: Tensor) -> None:
    """NaN has no best path. +inf has none either: it is no log-probability, and softmax makes it NaN.

    logits: (B, T, V). lengths: (B,). Raises ValueError with the frame.
    """
    if logits.numel() == 0:
        return
    largest = logits.amax(dim=2).cpu()  # one pass: NaN is larger than all
    bad = ~(largest < torch.inf) & (torch.arange(logits.shape[1]) < lengths[:, None])
    if bad.any():
        b, t = bad.nonzero()[0].tolist()
        value = "NaN" if largest[b, t].isnan() else "+inf"
        raise ValueError(
            f"logits: {value} in frame {t} of utterance {b}" if len(logits) > 1 else f"logits: {value} in frame {t}"
        )
