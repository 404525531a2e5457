"""What users may pass, brought to one form, and refused with one sentence where it cannot be."""

from __future__ import annotations

import importlib.util
import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Lengths = Tensor | Sequence[int] | npt.NDArray[np.integer[Any]]

BACKENDS = ("auto", "torch", "numba", "triton", "wfst")
REDUCTIONS = ("none", "sum", "mean")
_CPU, _AUTO = torch.device("cpu"), {"cuda": "triton"}


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """`value`, if it is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return value


def check_logits(logits: Tensor) -> Sequence[int]:
    """Their shape. Raises unless these are floating point numbers in 2 or 3 dimensions, the last not empty."""
    if not isinstance(logits, Tensor):
        raise ValueError(f"logits: expected a tensor, got {type(logits).__name__}")
    shape = logits.shape
    if not logits.is_floating_point() or len(shape) not in (2, 3) or shape[-1] == 0:
        raise ValueError(
            f"logits: expected floating point in 2 or 3 dimensions, the last not empty, got {logits.dtype} of shape "
            f"{tuple(shape)}"
        )
    return shape


def check_blank(blank: SupportsIndex, vocabulary: int) -> int:
    """The blank, if it is one of the vocabulary."""
    index = whole("blank", blank)
    if not 0 <= index < vocabulary:
        raise ValueError(f"blank: {index} is outside 0..{vocabulary - 1}, the vocabulary")
    return index


def whole(name: str, value: SupportsIndex) -> int:
    """The value as an int, if it is a whole number of any library."""
    if type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: expected a whole number, got {value!r}") from None


def batch_of(logits: Tensor, batch_first: bool) -> Tensor:
    """The logits as (B, T, V), from (T, B, V), (B, T, V) or (T, V)."""
    check_logits(logits)
    if logits.dim() == 2:
        return logits[None]
    return logits if batch_first else logits.transpose(0, 1)


def lengths_of(name: str, lengths: Lengths, batch: int, device: torch.device) -> Tensor:
    """The lengths as an int64 tensor (B,) on the device."""
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(_whole_numbers(name, lengths), dtype=torch.int64)
    # The usual case first: each question to torch costs as much as the rest of this function.
    if lengths.dtype == torch.int64 and lengths.shape == (batch,) and lengths.device == device:
        return lengths
    if lengths.is_floating_point() or lengths.dtype == torch.bool or lengths.numel() != batch:
        raise ValueError(
            f"{name}: expected {batch} integers, got {lengths.dtype} of shape {tuple(lengths.shape)}; "
            "logits are (T, B, V), or (B, T, V) with batch_first=True"
        )
    return lengths.reshape(batch).to(device, torch.int64, non_blocking=True)


def _whole_numbers(name: str, values: object) -> Any:
    """The values, if they are a sequence of integers."""
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, str):
        raise ValueError(f"{name}: expected a tensor or a sequence of integers, got {type(values).__name__}")
    for value in values:
        if not isinstance(value, (int, np.integer, Tensor)) or isinstance(value, bool):
            raise ValueError(f"{name}: expected integers, got {value!r}")
    return values


def padded_targets(
    targets: Tensor, target_lengths: Tensor, batched: bool, longest: int | None, device: torch.device
) -> Tensor:
    """The labels as (B, U), from (B, U), from all of them one after the other, or from (U,) without a batch.

    target_lengths: (B,) on the device. `longest`, if given, is the width U; else concatenated targets need a host sync.
    """
    if not isinstance(targets, Tensor):
        kind = type(targets).__name__
        raise ValueError(
            f"targets: expected a tensor of integers, (B, U) padded or all rows joined by torch.cat, got {kind}"
        )
    batch = target_lengths.shape[0]
    # The usual case first, as in lengths_of.
    usual = targets.dtype == torch.int64 and longest is None and targets.device == device and batched
    if usual and targets.dim() == 2 and targets.shape[0] == batch:
        return targets
    if targets.is_floating_point() or targets.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"targets: expected integers, got {targets.dtype}")
    if targets.device != device:
        targets = targets.to(device, non_blocking=True)
    if not batched:
        targets = targets.reshape(1, -1) if targets.dim() < 2 else targets
    if targets.dim() == 2:
        if targets.shape[0] != batch:
            raise ValueError(f"targets: expected {batch} rows, got shape {tuple(targets.shape)}")
        return targets if longest is None else targets[:, :longest]
    if targets.dim() != 1:
        raise ValueError(f"targets: expected (B, U) or one dimension, got shape {tuple(targets.shape)}")
    if device.type == "cpu" and not torch.compiler.is_compiling():
        given, needed = len(targets), int(target_lengths.clamp(min=0).sum())
        if given != needed:
            raise ValueError(f"targets: {given} concatenated labels, but target_lengths come to {needed}")
    if longest is None:
        longest = max(0, int(target_lengths.max())) if batch else 0
    place = torch.arange(longest, device=device)
    if len(targets) == 0:
        return targets.new_zeros(batch, longest)
    index = (target_lengths.cumsum(0) - target_lengths)[:, None] + place
    return targets[index.clamp(0, len(targets) - 1)]


def per_gap_penalty(penalty: float | Tensor | None, batch: int, width: int, batched: bool, logits: Tensor) -> Tensor:
    """lambda as (B, U+1), from a number, (), (B,), or (B, U+1) ((U+1,) without a batch)."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    if not isinstance(penalty, Tensor):
        if not isinstance(penalty, (float, int, np.number)):
            raise ValueError(f"penalty: expected a number or a tensor, got {type(penalty).__name__}")
        if torch.compiler.is_compiling():  # added, a number that changes is no constant of the graph
            return (torch.zeros((), dtype=dtype, device=logits.device) + penalty).expand(batch, width + 1)
        return _filled((batch, width + 1), float(penalty), dtype, logits.device, logits.is_cuda)
    if not penalty.is_floating_point():
        penalty = penalty.to(dtype)
    penalty = penalty.to(logits.device, torch.promote_types(penalty.dtype, dtype), non_blocking=True)
    shape = tuple(penalty.shape)
    if not batched and penalty.dim() == 1:
        penalty = penalty[None]
    elif penalty.dim() == 1:
        penalty = penalty[:, None]
    if penalty.dim() > 2 or (penalty.dim() == 2 and penalty.shape not in ((batch, 1), (batch, width + 1))):
        raise ValueError(f"penalty: expected (), ({batch},) or ({batch}, {width + 1}), got shape {shape}")
    return penalty.expand(batch, width + 1)


_FILLED: dict[tuple[tuple[int, int], float, torch.dtype, torch.device, int], Tensor] = {}


def _filled(shape: tuple[int, int], value: float, dtype: torch.dtype, device: torch.device, on_gpu: bool) -> Tensor:
    """One number, expanded: a tensor that nobody writes to, kept, for making it costs as much as a small kernel."""
    # A graph that is being captured keeps what is its own, and nothing else.
    if on_gpu and torch.cuda.is_current_stream_capturing():
        return torch.full((), value, dtype=dtype, device=device).expand(shape)
    # One for each stream: on another it might be read before it is written.
    key = (shape, value, dtype, device, torch._C._cuda_getCurrentRawStream(device.index) if on_gpu else 0)
    filled = _FILLED.get(key)
    if filled is None:
        with torch.inference_mode(False):  # or it could be saved for no backward
            filled = torch.full((), value, dtype=dtype, device=device).expand(shape)
        if type(filled) is Tensor:  # and not what only stands for one
            if len(_FILLED) >= 100:  # a schedule has another number at every step
                _FILLED.clear()
            _FILLED[key] = filled
    return filled


def backend_for(name: str, device: torch.device) -> str:
    """The backend by name; "auto" chooses by device. One that cannot run here raises: nothing falls back silently."""
    if name == "auto":
        # Asking a device for its type makes a string: the usual case first.
        return "numba" if device == _CPU else _AUTO.get(device.type, "torch")
    one_of("backend", name, BACKENDS)
    if name == "numba" and device.type != "cpu":
        raise ValueError(f"backend: 'numba' runs on the CPU, the logits are on {device}")
    if name == "triton":
        if importlib.util.find_spec("triton") is None:
            raise ValueError("backend: 'triton' is not installed")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ValueError(f"backend: 'triton' runs on CUDA, the logits are on {device}")
    return name


def check_values(
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    log_penalty: Tensor | None,
    shape: torch.Size,
    blank: int,
) -> None:
    """Raises ValueError with the argument's name, the first bad value and its place. Waits for the device, if there is one.

    targets: (B, U). log_penalty: (B, U+1) or None. shape: that of the logits, (B, T, V).
    """
    _, frames, vocabulary = shape
    check_blank(blank, vocabulary)
    # In numpy: a third of torch's price for small arrays.
    labels, inputs, lengths = (x.detach().cpu().numpy() for x in (targets, input_lengths, target_lengths))
    width = labels.shape[1]
    _refuse(
        (inputs < 0) | (inputs > frames), inputs,
        f"input_lengths: {{value}} for utterance {{place}} is outside 0..{frames}, the frames of the logits",
    )  # fmt: skip
    _refuse(
        (lengths < 0) | (lengths > width), lengths,
        f"target_lengths: {{value}} for utterance {{place}} is outside 0..{width}, the width of the targets",
    )  # fmt: skip
    place = np.arange(width + 1)
    inside = place[:width] < lengths[:, None]
    _refuse(
        inside & ((labels < 0) | (labels >= vocabulary)), labels,
        f"targets: label {{value}} at (utterance, position) {{place}} is outside 0..{vocabulary - 1}, the vocabulary",
    )  # fmt: skip
    _refuse(
        inside & (labels == blank), labels,
        "targets: label {value} at (utterance, position) {place} is the blank, which is no label",
    )  # fmt: skip
    if log_penalty is not None:
        weights = log_penalty.detach().cpu().numpy()
        _refuse(
            (place <= lengths[:, None]) & ~(weights <= 0), weights,
            "penalty: {value} at (utterance, gap) {place} is not a log-weight <= 0, such as math.log(0.5)",
        )  # fmt: skip


def _refuse(bad: Any, values: Any, message: str) -> None:
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(message.format(value=values[place], place=place if len(place) > 1 else place[0]))
