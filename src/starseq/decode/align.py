"""Alignment: where the known labels lie, where labels are missing, and what the model would put there.

The best path of a label graph is the one alignment, a token or blank for every frame, that weighs most among those that mean
the (partial) label. Posteriors are shares of the weight of *all* of these alignments: see docs/align.md.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from starseq import criteria, op
from starseq.arguments import backend_for, check_values, one_of
from starseq.criteria.graph import LabelGraph, gaps_of
from starseq.emissions.tokens import NONE, Scores
from starseq.emissions.vocabulary_torch import log_scores
from starseq.lattice import lasting_torch
from starseq.lattice.banded_torch import outside
from starseq.lattice.gaps import Gaps

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
    """A token that the best path inserts, and its posterior: that this token is inserted in this gap at this frame.

    Where repeats merge it may stand for several frames and is one token still: frame and posterior are those of the first.
    """

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
    merge_repeats: bool = True,
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
        merge_repeats: as in the loss.
        blank: the token that means nothing.
        backend: "torch", "numba", "triton", or "auto" by the device. STC with merged repeats is aligned on the CPU, but for
            "torch".

    Raises ValueError, in one sentence, for arguments out of range, NaN, and labels that no alignment can mean.

        >>> probs = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
        >>> result = align(probs.log(), [1])
        >>> (label,) = result.labels
        >>> label.start, label.end, round(label.probability, 6), round(label.confidence, 2)
        (1, 2, 0.8, 0.93)
        >>> (span,) = result.spans
        >>> span.gap, span.start, span.end, [token for token, *_ in span.tokens]
        (1, 2, 3, [2])
    """
    if logits.dim() != 2:
        raise ValueError(f"logits: expected (T, V), got shape {tuple(logits.shape)}")
    (result,) = align_batch(
        logits[None], [logits.shape[0]], [labels], None if open is None else [open], criterion=criterion,
        log_penalty=log_penalty, merge_repeats=merge_repeats, blank=blank, backend=backend,
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
    merge_repeats: bool = True,
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
    penalty = _penalty(log_penalty, targets, open, padded.shape[1] + 1) if criteria.form(criterion).stars else None
    check_values(padded, frames, target_lengths, penalty, logits.shape, blank)
    check_finite(logits, frames)

    device = logits.device
    options = op.Options(criterion, merge_repeats, blank, batch_first=True, backend=name, inserted=penalty is not None)
    of_each = padded.to(device), frames.to(device), target_lengths.to(device)
    batch = (logits, *of_each, None if penalty is None else penalty.to(device))
    graph = op.label_graph(batch, options)
    reading = (_read_lasting if graph.tokens.lasting else _read_banded)(batch, graph, options)
    reading = _Reading(*(x.cpu() for x in reading))
    result = []
    for b, (T, U) in enumerate(zip(frames.tolist(), target_lengths.tolist(), strict=True)):
        if reading.log_score[b] == -torch.inf:
            where = f"utterance {b}: " if len(logits) > 1 else ""
            raise ValueError(f"{where}no alignment: {_why_none(graph, b, T, U, criterion)}")
        result.append(_alignment(reading, b, T, U))
    return result


class _Reading(NamedTuple):
    """What the best paths of a batch consume. All (B, T) but the last three."""

    gap: Tensor  # of the frame: it lies after label `gap`, or is that label
    token: Tensor  # NONE for blank
    is_label: Tensor  # whether the token is label `gap`, not an inserted one
    begins: Tensor  # whether an inserted token begins, and did not stand before
    confidence: Tensor  # the posterior of this label, or of this token in this gap
    probability: Tensor  # of the token by itself (read of labels alone)
    missing: Tensor  # (B, U+1), or more: the rest is not read
    log_score: Tensor  # (B,)
    log_z: Tensor  # (B,)


def _read_lasting(batch: op.Batch, graph: LabelGraph, options: op.Options) -> _Reading:
    logits, lengths, gaps, label = batch[0], batch[2], gaps_of(graph), batch[0].shape[2]
    if options.backend == "torch":
        row, place, confidence, probability, missing, log_score, log_z = _lasting_by_torch(logits, lengths, gaps)
    else:
        # On the CPU for a GPU as well: a path is one step after the other.
        logits, lengths = logits.cpu(), lengths.cpu()
        gaps = Gaps(gaps.blank, *(x.cpu() for x in gaps[1:]))
        found = tuple(
            map(torch.from_numpy, importlib.import_module("starseq.decode.align_numba").read(logits, lengths, gaps))
        )
        for b in found[-1].isnan().nonzero()[:, 0].tolist():
            one = Gaps(gaps.blank, *(x[b, None] for x in gaps[1:]))
            for whole, part in zip(found, _lasting_by_torch(logits[b, None], lengths[b, None], one), strict=True):
                whole[b] = part[0]
        row, place, confidence, probability, missing, log_score, log_z = found
    is_label = place == label
    labels = torch.nn.functional.pad(gaps.labels.long(), (1, 0), value=NONE).gather(1, row)
    token = torch.where(is_label, labels, place).masked_fill(place == gaps.blank, NONE)
    return _Reading(
        row, token, is_label,
        begins=place != torch.nn.functional.pad(place, (1, 0), value=NONE)[:, :-1],  # labels lie between rows
        confidence=confidence, probability=probability, missing=missing.clamp(min=0), log_score=log_score, log_z=log_z,
    )  # fmt: skip


def _lasting_by_torch(logits: Tensor, lengths: Tensor, gaps: Gaps) -> tuple[Tensor, ...]:
    """As align_numba.read, on any device."""
    x, _ = log_scores(logits, lengths, normalized=True)
    row, place, log_score = lasting_torch.viterbi(x, gaps, lengths)
    row, place = row.clamp(min=0), place.clamp(min=0)
    log_alpha, log_beta, log_z = lasting_torch.forward_backward(x, gaps, lengths)
    log_after = log_beta[:, 1:] - log_z[:, None, None, None]
    stands = (log_alpha[:, 1:] + log_after).exp()
    # A token begins where it stands and does not go on; rounding may lead a little below 0.
    goes_on = (log_alpha[:, :-1, :, :-1] + x[:, :, None] + log_after[..., :-1]).exp()
    begins = stands[..., :-1] - goes_on
    begins[..., gaps.blank] = 0
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    labels = torch.nn.functional.pad(gaps.labels.long(), (1, 0)).gather(1, row).clamp(min=0)
    missing = begins.sum(dim=3).masked_fill(~inside[:, :, None], 0).sum(dim=1)
    state = row * stands.shape[3] + place
    return row, place, _at(stands.flatten(2), state), _at(x, labels).exp(), missing, log_score, log_z


def _read_banded(batch: op.Batch, graph: LabelGraph, options: op.Options) -> _Reading:
    lattice = importlib.import_module(f"starseq.lattice.banded_{options.backend}")
    (logits, _, lengths, _, _), (topology, tokens) = batch, graph
    arcs = op.scores(batch, graph, options)
    log_alpha, log_beta, log_z = lattice.forward_backward(arcs.stay, arcs.enter, topology, lengths)
    outside_stay, outside_enter = outside(log_alpha, log_beta, log_z, topology)
    filling, best_stay = _best_stay(logits, graph, arcs)
    path, log_score = lattice.viterbi(best_stay, arcs.enter, topology, lengths)

    path = path.long().clamp(min=0)
    stays = path == torch.nn.functional.pad(path, (1, 0))[:, :-1]
    enter_token = tokens.enter.gather(1, path)
    stay_token = torch.full_like(enter_token, tokens.blank) if tokens.stay is None else tokens.stay.gather(1, path)
    inserted = _at(filling, path).masked_fill(~stays, NONE)
    inserts, consumed = inserted != NONE, torch.where(stays, stay_token, enter_token)
    token = torch.where(inserts, inserted, consumed.masked_fill(consumed == tokens.blank, NONE))
    of_filling = _at(outside_stay + best_stay, path).exp()
    of_label = _at(outside_enter + arcs.enter, path).exp()
    staying = _at(outside_stay + arcs.stay, path).exp()
    of_label = of_label + staying.masked_fill(stay_token != enter_token, 0)  # it may go on for several frames
    gap_of = ((tokens.enter != tokens.blank) & (tokens.enter != NONE)).cumsum(1)
    star = (outside_stay + arcs.star).exp() if options.inserted else torch.zeros_like(arcs.stay)
    return _Reading(
        gap_of.gather(1, path), token,
        is_label=~inserts & (token != NONE),
        begins=inserts,
        confidence=torch.where(inserts, of_filling, of_label),
        probability=_at(arcs.enter, path).exp(),
        missing=_missing(star, gap_of, graph, lengths),
        log_score=log_score, log_z=log_z,
    )  # fmt: skip


def _at(x: Tensor, path: Tensor) -> Tensor:
    """x (B, T, S) along a path (B, T)."""
    return x.gather(2, path[:, :, None])[..., 0]


def _missing(star: Tensor, gap_of: Tensor, graph: LabelGraph, lengths: Tensor) -> Tensor:
    """The sum of posteriors (B, T, S) of insertions over the frames and states of every gap, (B, S), of which U+1 are gaps."""
    frames, states = (torch.arange(n, device=star.device) for n in star.shape[1:])
    exists = (frames < lengths[:, None])[:, :, None] & (states < graph.topology.num_states[:, None])[:, None]
    inserted = star.double().masked_fill(~exists, 0).sum(dim=1)
    return torch.zeros_like(inserted).scatter_add_(1, gap_of, inserted)


def _best_stay(logits: Tensor, graph: LabelGraph, arcs: Scores) -> tuple[Tensor, Tensor]:
    """The best way to stay in each state: the token it inserts, NONE where it inserts nothing, and its log-score. Two (B, T, S).

    Sums over a star's tokens give its posterior; the best alignment takes one of them, and no blank besides.
    """
    topology, tokens = graph
    if tokens.star_weight is None:
        return torch.full_like(arcs.stay, NONE, dtype=torch.int64), arcs.stay
    # Of the three largest at most one is blank and at most one left out.
    top = logits.topk(min(3, logits.shape[2]), dim=2)
    values, indices = top.values.to(arcs.norm.dtype) - arcs.norm[:, :, None], top.indices
    states = torch.arange(tokens.enter.shape[1], device=logits.device)
    assert tokens.star_except is not None
    left_out = tokens.star_except.masked_fill(states >= topology.num_states[:, None] - 1, NONE)
    allowed = (indices != tokens.blank)[:, :, None] & (indices[:, :, None] != left_out[:, None, :, None])
    best, place = values[:, :, None].masked_fill(~allowed, -torch.inf).max(dim=3)
    token = indices[:, :, None].expand_as(allowed).gather(3, place[..., None])[..., 0]
    log_star = best + tokens.star_weight.to(best.dtype)[:, None]
    log_blank = (logits[:, :, tokens.blank].to(arcs.norm.dtype) - arcs.norm)[:, :, None]
    return token.masked_fill(log_star <= log_blank, NONE), torch.maximum(log_star, log_blank)


class _Frame(NamedTuple):
    """A frame of `_Reading`, and which it is."""

    t: int
    gap: int
    token: int
    is_label: bool
    begins: bool
    confidence: float
    probability: float


def _alignment(reading: _Reading, b: int, T: int, U: int) -> Alignment:
    """Utterance b's best path, label by label and gap by gap."""
    missing = reading.missing[b, : U + 1].tolist()
    columns = (column[b, :T].tolist() for column in reading[:6])
    frames = [_Frame(*frame) for frame in zip(range(T), *columns, strict=True)]
    read = [frame for frame in frames if frame.token != NONE]
    labels, spans = [], []
    for (gap, is_label), group in itertools.groupby(read, key=lambda frame: (frame.gap, frame.is_label)):
        if is_label:
            labels.append(_label(list(group)))
        else:
            spans.append(_span(gap, list(group), missing[gap]))
    return Alignment(tuple(labels), tuple(spans), tuple(missing), float(reading.log_score[b]), float(reading.log_z[b]))


def _label(frames: Sequence[_Frame]) -> AlignedLabel:
    confidence, probability = (sum(x) / len(frames) for x in zip(*(frame[-2:] for frame in frames), strict=True))
    # Rounding may lead a little past 1.
    return AlignedLabel(frames[0].token, frames[0].t, frames[-1].t + 1, min(confidence, 1.0), probability)


def _span(gap: int, frames: Sequence[_Frame], missing: float) -> StarSpan:
    fillings = (Filling(frame.token, frame.t, min(frame.confidence, 1.0)) for frame in frames if frame.begins)
    return StarSpan(gap, frames[0].t, frames[-1].t + 1, tuple(fillings), missing)


def _why_none(graph: LabelGraph, b: int, T: int, U: int, criterion: str) -> str:
    if _too_short(graph, b, T):
        return f"{U} labels need more than {T} frames"
    return f"every alignment of the {U} labels with the {T} frames has probability 0 under {criterion}"


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
