"""The losses that users call: STC, CTC and selfless CTC, as functions and as modules in the manner of torch.nn.CTCLoss."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from starseq import wfst
from starseq.arguments import (
    BACKENDS,
    REDUCTIONS,
    Lengths,
    backend_for,
    check_blank,
    check_logits,
    check_values,
    lengths_of,
    one_of,
    padded_targets,
    per_gap_penalty,
    whole,
)  # fmt: skip
from starseq.op import Batch, Options, reduce, score
from starseq.op.options import loss_dtype, turned
from starseq.penalty import AdaptivePenalty

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ModuleKeywords(TypedDict, total=False):
    """What all modules take by name alone: see stc_loss."""

    batch_first: bool
    normalized: bool
    max_target_length: int | None
    validate: bool
    backend: str


class Keywords(ModuleKeywords, total=False):
    """The keywords that all losses have: see stc_loss. `starseq.op.Options` has their defaults."""

    blank: int
    reduction: str
    zero_infinity: bool


def stc_loss(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    *,
    penalty: float | Tensor,
    merge_repeats: bool = True,
    return_inserted: bool = False,
    **options: Unpack[Keywords],
) -> Any:
    r"""Star Temporal Classification: -log of the summed weight of all alignments that contain the labels in order.

    An alignment takes one token a frame. It is read as CTC reads: its repeats are merged, then its blanks are removed. It weighs
    prod_t P_t(token) times p = exp(penalty) for every token of what is left that is not one of the labels. So a token may last for
    several frames, and an inserted one pays once. Two equal labels need a frame between them. With every gap closed this is
    ctc_loss.

    With `merge_repeats=False`, the loss as published, repeats are not merged:

        stay(t, l) = P_t(blank) + p_l * P_t(star \ y_{l+1});    alpha(t+1, l) = alpha(t, l) stay(t, l) + alpha(t, l-1) P_t(y_l)

    That is faster, for a gap need not remember the token that stands: see docs/performance.md.

    Args:
        logits: (T, B, V), (B, T, V) with `batch_first`, or (T, V): logits or log-probabilities. float64, float32, bfloat16 or
            float16; any strides.
        targets: (B, U) padded, or the labels of all utterances one after the other, (sum of lengths,). Any integer type.
        input_lengths, target_lengths: (B,) tensors on any device, or sequences of ints.
        penalty: lambda = log p <= 0: a number, or a tensor () or (B,) or, a value for each gap, (B, U+1). Gap l lies after
            label l; -inf closes it. Differentiable.
        merge_repeats: whether repeats are merged, as in CTC, or each frame is a token of its own.
        return_inserted: also returns the expected number of inserted tokens for each gap, (B, U+1).
        blank: the token that means nothing (0).
        reduction: "none" gives (B,), "sum" their sum, "mean", the default, the mean over the batch of loss / max(target length, 1).
        zero_infinity: an utterance without any alignment (fewer frames than its labels need) has loss 0 instead of inf (False).
            Its gradient is 0 either way.
        batch_first: the logits are (B, T, V) (False).
        normalized: applies a log-softmax first, which changes nothing on log-probabilities (True); False takes scores as they are.
        max_target_length: saves the one host sync that concatenated targets need on a GPU.
        validate: checks values on a GPU too, which waits for the device (False). On the CPU they are always checked.
        backend: "auto", the default, is triton on CUDA, numba on the CPU, torch elsewhere; or "torch", "numba", "triton", "wfst".

    Returns the loss, float32 (float64 for float64), or (loss, inserted).

    Raises ValueError naming the argument, the offending value and its place.

        >>> logits = torch.tensor([[[0.2, 0.3, 0.5]], [[0.2, 0.5, 0.3]]]).log()      # T=2 frames, B=1, V=3 with blank
        >>> loss = stc_loss(logits, torch.tensor([[1]]), (2,), (1,), penalty=math.log(0.5))
        >>> label_second = (0.2 + 0.5 * 0.5) * 0.5                                   # after a blank, after an inserted 2
        >>> label_first = 0.3 * (0.5 + 0.2 + 0.5 * 0.3)                              # it lasts; a blank; 2 is inserted
        >>> abs(loss.item() + math.log(label_second + label_first)) < 1e-6
        True
        >>> published = stc_loss(logits, torch.tensor([[1]]), (2,), (1,), penalty=math.log(0.5), merge_repeats=False)
        >>> label_first = 0.3 * (0.2 + 0.5 * (0.5 + 0.3))                            # a blank; 1 or 2 is inserted
        >>> abs(published.item() + math.log(label_second + label_first)) < 1e-6
        True
    """
    return _loss(
        _options("stc_loss", options, merge_repeats=merge_repeats, inserted=return_inserted),
        logits, targets, input_lengths, target_lengths, penalty,
    )  # fmt: skip


def ctc_loss(
    logits: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, **options: Unpack[Keywords]
) -> Tensor:
    """Connectionist Temporal Classification, as torch.nn.functional.ctc_loss, but from logits. Arguments as in stc_loss.

    options: blank, reduction, zero_infinity, batch_first, normalized, max_target_length, validate and backend, as in stc_loss.

    >>> logits = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    >>> arguments = (torch.tensor([[1, 1], [2, 3]]), (5, 4), (2, 1))
    >>> ours, theirs = ctc_loss(logits, *arguments), torch.nn.functional.ctc_loss(logits.log_softmax(2), *arguments)
    >>> torch.allclose(ours, theirs)
    True
    """
    loss: Tensor = _loss(_options("ctc_loss", options), logits, targets, input_lengths, target_lengths)
    return loss


def selfless_ctc_loss(
    logits: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, **options: Unpack[Keywords]
) -> Tensor:
    """CTC whose collapse removes blanks only, so that labels have no self-loops: published STC with all gaps closed.

    Arguments as in ctc_loss.

    >>> logits = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    >>> arguments = (torch.tensor([[1, 1], [2, 3]]), (5, 4), (2, 1))
    >>> closed = stc_loss(logits, *arguments, penalty=-math.inf, merge_repeats=False)
    >>> torch.allclose(selfless_ctc_loss(logits, *arguments), closed)
    True
    """
    loss: Tensor = _loss(_options("selfless_ctc_loss", options), logits, targets, input_lengths, target_lengths)
    return loss


class _Loss(nn.Module):
    """Keeps the keywords of a loss function and shows them. The first three come in the order of torch.nn.CTCLoss."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False, **options: Unpack[ModuleKeywords]
    ) -> None:
        super().__init__()
        self.options: Keywords = {
            "blank": whole("blank", blank), "reduction": reduction, "zero_infinity": zero_infinity, **options,
        }  # fmt: skip
        asked = _options(type(self).__name__, self.options)
        one_of("reduction", asked.reduction, REDUCTIONS)
        one_of("backend", asked.backend, BACKENDS)

    @property
    def blank(self) -> int:
        return self.options["blank"]

    @property
    def reduction(self) -> str:
        return self.options["reduction"]

    @property
    def zero_infinity(self) -> bool:
        return self.options["zero_infinity"]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class CTCLoss(_Loss):
    """ctc_loss as a module, in place of log_softmax and torch.nn.CTCLoss.

    >>> CTCLoss()(torch.zeros(4, 1, 3), torch.tensor([[1, 2]]), (4,), (2,)).shape
    torch.Size([])
    """

    function = staticmethod(ctc_loss)

    def forward(self, logits: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        """See ctc_loss."""
        return self.function(logits, targets, input_lengths, target_lengths, **self.options)


class SelflessCTCLoss(CTCLoss):
    """selfless_ctc_loss as a module.

    >>> SelflessCTCLoss()(torch.zeros(4, 1, 3), torch.tensor([[1, 2]]), (4,), (2,)).shape
    torch.Size([])
    """

    function = staticmethod(selfless_ctc_loss)


class STCLoss(_Loss):
    """stc_loss as a module, in place of log_softmax and torch.nn.CTCLoss: the same settings and the same call.

    It tunes the star's weight while it trains: on calls in training mode whose logits have a gradient. So `eval()` and
    `torch.no_grad()` leave the weight as it is. The weight is part of `state_dict`: save the criterion with the model, and
    a resumed training goes on. Under `torch.distributed` all processes have the same weight, and must call the criterion
    equally often.

    Args:
        penalty: "adaptive", the default: the module owns an `AdaptivePenalty`, the submodule `penalty`, and tunes it by what it
            scores. A number or a tensor is fixed. Another module is called without arguments; it moves by itself, if at all.
        merge_repeats, return_inserted, options: as in stc_loss.

    >>> criterion = STCLoss(blank=0)
    >>> logits = torch.zeros(4, 1, 3, requires_grad=True)
    >>> loss = criterion(logits, torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2]))
    >>> loss.backward()
    >>> logits.grad.shape
    torch.Size([4, 1, 3])
    """

    penalty: Any

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        penalty: str | float | Tensor | nn.Module = "adaptive",
        merge_repeats: bool = True,
        return_inserted: bool = False,
        **options: Unpack[ModuleKeywords],
    ) -> None:
        super().__init__(blank, reduction, zero_infinity, **options)
        self.merge_repeats, self.return_inserted = merge_repeats, return_inserted
        if isinstance(penalty, str):
            one_of("penalty", penalty, ("adaptive",))
            penalty = AdaptivePenalty(blank=self.blank)
        self.adapts = isinstance(penalty, AdaptivePenalty)
        if isinstance(penalty, AdaptivePenalty) and penalty.blank != self.blank:
            raise ValueError(f"blank: the loss has {self.blank} and its penalty {penalty.blank}")
        if isinstance(penalty, Tensor) and not isinstance(penalty, nn.Parameter):
            self.register_buffer("penalty", penalty)
        else:
            self.penalty = penalty

    def forward(
        self,
        logits: Tensor,
        targets: Tensor,
        input_lengths: Lengths,
        target_lengths: Lengths,
        penalty: float | Tensor | None = None,
        *,
        open_gaps: Tensor | None = None,
    ) -> Any:
        """The loss, or (loss, inserted): see stc_loss.

        penalty: takes the place of the module's own. open_gaps: (B, U+1), the gaps in which labels may be missing, where that is
        known; the others are closed. Gap l lies after label l.
        """
        own = penalty is None
        if penalty is None:
            penalty = self.penalty() if isinstance(self.penalty, nn.Module) else self.penalty
        if open_gaps is not None:
            penalty = _where_open(open_gaps, penalty, logits)
        result = stc_loss(
            logits, targets, input_lengths, target_lengths, penalty=penalty, merge_repeats=self.merge_repeats,
            return_inserted=self.return_inserted, **self.options,
        )  # fmt: skip
        # Not without gradients: validation must not move p where somebody left the criterion in training mode.
        if own and self.adapts and self.training and torch.is_grad_enabled() and logits.requires_grad:
            self.penalty.observe(
                logits, targets, input_lengths, target_lengths, batch_first=self.options.get("batch_first", False),
                max_target_length=self.options.get("max_target_length"), open_gaps=open_gaps,
            )  # fmt: skip
        return result

    def extra_repr(self) -> str:
        own = [f"merge_repeats={self.merge_repeats}", f"return_inserted={self.return_inserted}"]
        if not isinstance(self.penalty, nn.Module):
            own.insert(0, f"penalty={self.penalty!r}")
        return ", ".join([super().extra_repr(), *own])


def _where_open(open_gaps: Tensor, penalty: float | Tensor, logits: Tensor) -> Tensor:
    """The penalty, and -inf where a gap is closed."""
    if not isinstance(open_gaps, Tensor) or open_gaps.dtype != torch.bool:
        found = open_gaps.dtype if isinstance(open_gaps, Tensor) else type(open_gaps).__name__
        raise ValueError(f"open_gaps: expected a tensor of bools, (B, U+1), got {found}")
    penalty = torch.as_tensor(penalty, dtype=loss_dtype(logits)).to(logits.device)
    if penalty.dim() == 1 and open_gaps.dim() == 2:
        penalty = penalty[:, None]
    return torch.where(open_gaps.to(logits.device), penalty, -math.inf)


def _options(name: str, keywords: Keywords, **star: Any) -> Options:
    """name: of a loss function, or of the module that asks whether its keywords are good."""
    try:
        return Options(name.removesuffix("_loss"), **star, **keywords)
    except TypeError:
        unknown = next(key for key in keywords if key not in Keywords.__annotations__)
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown!r}") from None


def _loss(
    options: Options, logits: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths,
    penalty: float | Tensor | None = None,
) -> Any:  # fmt: skip
    """Brings every form of input to one, runs the criterion, reduces. penalty: None for a criterion without stars."""
    one_of("reduction", options.reduction, REDUCTIONS)
    shape, device = check_logits(logits), logits.device
    batched, batch_first = len(shape) == 3, options.batch_first
    if not batched:
        logits, batch_first, shape = logits[None], True, (1, *shape)
    size = shape[0 if batch_first else 1]
    wanted = options._replace(
        blank=check_blank(options.blank, shape[2]), backend=backend_for(options.backend, device), batch_first=batch_first,
        validate=options.validate or logits.is_cpu,
    )  # fmt: skip
    input_lengths = lengths_of("input_lengths", input_lengths, size, device)
    target_lengths = lengths_of("target_lengths", target_lengths, size, device)
    targets = padded_targets(targets, target_lengths, batched, options.max_target_length, device)
    log_penalty = None
    if options.criterion == "stc":
        log_penalty = per_gap_penalty(penalty, size, targets.shape[1], batched, logits)
    batch = (logits, targets, input_lengths, target_lengths, log_penalty)
    loss, inserted = (_score_by_wfst if wanted.backend == "wfst" else score)(batch, wanted)
    if not batched:
        loss, inserted = loss if loss.dim() == 0 else loss[0], None if inserted is None else inserted[0]
    return (loss, inserted) if options.inserted else loss


def _score_by_wfst(batch: Batch, options: Options) -> tuple[Tensor, Tensor | None]:
    """As op.score, one utterance after the other through the reference, in float64."""
    logits, targets, input_lengths, target_lengths, log_penalty = batch
    logits, dtype = turned(logits, options.batch_first), loss_dtype(logits)
    if options.validate:
        check_values(targets, input_lengths, target_lengths, log_penalty, logits.shape, options.blank)
    reference = getattr(wfst, options.criterion)
    losses, insertions = [], []
    for b, (frames, length) in enumerate(zip(input_lengths.tolist(), target_lengths.tolist(), strict=True)):
        log_probs = logits[b, :frames].double()
        if options.normalized:  # a frame without any mass stays as it is: its softmax is undefined
            empty = (log_probs == -math.inf).all(dim=1, keepdim=True)
            log_probs = torch.where(empty, log_probs, log_probs.masked_fill(empty, 0).log_softmax(dim=1))
        score_one = functools.partial(reference, target=targets[b, :length].tolist(), blank=options.blank)
        if log_penalty is None:
            losses.append(score_one(log_probs))
            continue
        score_one = functools.partial(score_one, merge_repeats=options.merge_repeats)
        gaps = log_penalty[b, : length + 1].double()
        losses.append(score_one(log_probs, log_penalty=gaps))
        if options.inserted:
            gaps = gaps.detach().requires_grad_()
            with torch.enable_grad():
                loss = score_one(log_probs.detach(), log_penalty=gaps)
            (slope,) = torch.autograd.grad(loss, gaps)
            insertions.append(nn.functional.pad(-slope, (0, targets.shape[1] - length)))
    together = torch.stack(losses) if losses else logits.sum(dim=(1, 2))  # of no utterances: (0,), differentiable
    loss = reduce(together.to(dtype), target_lengths, options)
    if not options.inserted:
        return loss, None
    return loss, torch.stack(insertions).to(dtype) if insertions else loss.new_empty(0, targets.shape[1] + 1)
