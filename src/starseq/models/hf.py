"""A pretrained model of Hugging Face: any with a class for CTC, or the encoder of Whisper. Needs the extra `hf`.

Its outputs are put in the order of our vocabularies, the blank first and special tokens left out, so that all that reads them need
not know where its own blank is.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starseq.models.padding import clear, real

__all__ = ["CTCModel", "WhisperCTC", "build"]

_HEADS = ("lm_head.", "ctc_head.", "encoder.out.")
"""how the names of output layers begin, by type of model"""
_WHISPER = "WhisperForCTC"
"""the architecture of Whisper's encoder with a head, as exported"""


def build(
    inputs: int,
    tokens: Sequence[str],
    *,
    path: str,
    head: Literal["auto", "new"] = "auto",
    freeze: tuple[str, ...] | None = None,
    layer_drop: float = 0.0,
    checkpointing: bool = False,
) -> nn.Module:
    """The model that `path`, a folder or an id, describes. Its weights are drawn; `load_pretrained` brings those of `path`.

    `head`: with ``auto`` the model's own outputs where it has some, with ``new`` one output for each of `tokens`. `freeze`: parts
    that are not trained, by their names in the model (``feature_extractor``, ``layers.0``); None: the convolutions that read
    samples, where there are some. `layer_drop` is the probability that a batch goes around a layer in training. With
    `checkpointing` activations are computed again in the backward pass, which takes less memory and more time.
    """
    from transformers import MODEL_FOR_CTC_MAPPING

    from starseq.pretrained import config_of, has_own_head, own_tokens

    config = config_of(path)
    if not 0 <= layer_drop < 1:
        raise ValueError(f"layer_drop is a probability below 1; got {layer_drop}")
    model: CTCModel | WhisperCTC
    if config.model_type == "whisper":
        model = WhisperCTC(config, len(tokens), new_head=head == "new" or not has_own_head(path))
    elif type(config) in MODEL_FOR_CTC_MAPPING:
        own = own_tokens(path)[0] if head == "auto" and has_own_head(path) else None
        if own is not None and len(tokens) != len(own) + 1:
            raise ValueError(
                f"the model's own labels are {len(own)}, and the vocabulary has {len(tokens) - 1}: model.head=new"
            )
        model = CTCModel(config, len(tokens), own)
    else:
        known = sorted(c.model_type for c in MODEL_FOR_CTC_MAPPING)
        raise ValueError(
            f"{path} is a model of type {config.model_type}, which is neither whisper nor one of {', '.join(known)}"
        )
    _freeze(model, freeze)
    for layer in _layers(model.network):
        if layer_drop:
            layer.register_forward_hook(_Dropped(layer_drop), with_kwargs=True)
    if checkpointing:
        options = {"use_reentrant": False}
        if hasattr(model.network, "activation_checkpointing_enable"):
            model.network.activation_checkpointing_enable(options)
        else:  # transformers before it was renamed
            model.network.gradient_checkpointing_enable(options)
    return model


class CTCModel(nn.Module):
    """One of the types that transformers has a class for CTC for: (B, T, F) -> (B, T', V)."""

    order: Tensor

    def __init__(self, config: Any, outputs: int, own: Sequence[int] | None = None) -> None:
        """`own`: the outputs of the model that are labels, in order; None: it gets new outputs."""
        super().__init__()
        from transformers import AutoModelForCTC

        new_head = own is None
        for part in (config, getattr(config, "encoder_config", None)):
            if part is None:
                continue
            if new_head and hasattr(part, "vocab_size"):
                part.vocab_size = outputs
            if hasattr(part, "layerdrop"):
                part.layerdrop = 0.0  # ours is for all types, and every parameter keeps a gradient
        if new_head:
            config.pad_token_id = 0
        self.new_head = new_head
        self.network: Any = AutoModelForCTC.from_config(config, dtype=torch.float32)
        self.config = self.network.config
        order = list(range(outputs)) if own is None else [config.pad_token_id, *own]
        self.register_buffer("order", torch.tensor(order), persistent=False)
        self._prepare()

    def _prepare(self) -> None:
        # Not used by every batch or at all, and processes wait for gradients.
        idle = ["masked_spec_embed"]
        if getattr(self.config, "position_embeddings_type", None) is not None:
            idle.append("pos_conv_embed")
        for name, parameter in self.network.named_parameters():
            if any(part in name for part in idle):
                parameter.requires_grad_(False)
        self.samples = self.network.main_input_name == "input_values"
        self._norms = _norms_over_time(self.network)
        leak = _SEES_PADDING.get(self.config.model_type)
        convs = ((n, m) for n, m in self.network.named_modules() if isinstance(m, nn.Conv1d))
        self._cleared = [_Cleared(conv) for name, conv in convs if leak is not None and leak in name]
        fewest = getattr(self.config, "squeeze_factor", 1)
        self.least = next(n for n in _growing() if int(self.output_lengths(torch.tensor([n]))[0]) >= fewest)

    @property
    def pretrained(self) -> frozenset[str]:
        """The parameters that `load_pretrained` brings."""
        head = tuple(f"network.{name}" for name in _HEADS)
        names = (name for name, _ in self.named_parameters())
        return frozenset(name for name in names if not (self.new_head and name.startswith(head)))

    def load_pretrained(self, path: str) -> None:
        """Puts the weights of `path` in place of those that were drawn."""
        needed = (".layers.",) if self.new_head else (".layers.", *_HEADS[:2])
        source = _weights_of(path, type(self.network), self.config, needed)
        weights = source.state_dict()
        names = {name for name in weights if not (self.new_head and name.startswith(_HEADS))}
        with torch.no_grad():
            for name, tensor in self.network.state_dict().items():
                if name in names:
                    tensor.copy_(weights[name])

    def save(self, folder: Path) -> None:
        """Writes settings and weights, for `AutoModelForCTC.from_pretrained`."""
        self.network.save_pretrained(folder)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The frames that come out where so many go in."""
        encoder = getattr(self.network, "encoder", None)
        for part in (self.network, encoder):
            for name in ("_get_feat_extract_output_lengths", "_get_subsampling_output_length"):
                if hasattr(part, name):
                    return cast(Tensor, getattr(part, name)(lengths)).clamp(min=0).to(lengths.dtype)
        return lengths

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, F), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        x = F.pad(clear(x, lengths), (0, 0, 0, max(0, self.least - x.shape[1])))
        mask = real(lengths.clamp(min=self.least), x.shape[1])
        frames = self.output_lengths(lengths)
        for norm in self._norms:
            norm.lengths = lengths
        for cleared in self._cleared:
            cleared.lengths = frames
        with _masks_of(self, frames):
            name = self.network.main_input_name
            logits = self.network(**{name: x.squeeze(2) if self.samples else x}, attention_mask=mask.long()).logits
        return logits.index_select(2, self.order), frames.clamp(max=logits.shape[1])


class WhisperCTC(nn.Module):
    """The encoder of Whisper and a new output layer, without the padding to 30 seconds: (B, T, F) -> (B, T', V).

    Audio that is longer than the model has positions is read in overlapping pieces; each frame is taken from the piece in whose
    middle it stands.
    """

    def __init__(self, config: Any, outputs: int, *, new_head: bool = True) -> None:
        super().__init__()
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config._attn_implementation = "sdpa"
        self.config, self.new_head = config, new_head
        self.network: Any = WhisperEncoder(config)
        self.head = nn.Linear(config.d_model, outputs)

    @property
    def pretrained(self) -> frozenset[str]:
        """The parameters that `load_pretrained` brings."""
        own = ("network.",) if self.new_head else ("network.", "head.")
        return frozenset(name for name, _ in self.named_parameters() if name.startswith(own))

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> WhisperCTC:
        """What `save` wrote, in eval mode: the class for folders that `starseq export --to hf` makes of Whisper's encoder.

        The tokeniser and the feature extractor beside it are `transformers.AutoProcessor`'s. The extractor is to be called with
        ``padding="do_not_pad"``; transposed, what it makes is `x`.
        """
        from starseq.pretrained import config_of

        config = config_of(os.fspath(folder))
        model = cls(config, config.vocab_size, new_head=False)
        model.load_pretrained(os.fspath(folder))
        return model.eval()

    def save(self, folder: Path) -> None:
        """Writes settings and weights, for `from_pretrained`."""
        from safetensors.torch import save

        config = copy.deepcopy(self.config)
        config.update({"architectures": [_WHISPER], "vocab_size": self.head.out_features, "pad_token_id": 0})
        config.save_pretrained(folder)
        encoder = {f"model.encoder.{name}": tensor for name, tensor in self.network.state_dict().items()}
        head = {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}
        (folder / "model.safetensors").write_bytes(save({**encoder, **head}, {"format": "pt"}))

    def load_pretrained(self, path: str) -> None:
        """Puts the encoder's weights of `path` in place of those that were drawn."""
        from transformers import WhisperModel

        config = copy.deepcopy(self.config)
        config.decoder_layers = 1  # which nobody needs
        source = _weights_of(path, WhisperModel, config, ("encoder.",))
        self.network.load_state_dict(source.encoder.state_dict())
        if not self.new_head:
            _load_head(self.head, path)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The frames that come out where so many go in: half of them."""
        return torch.div(lengths + 1, 2, rounding_mode="floor")

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, F), lengths (B,) -> logits (B, T', V), lengths' (B,)."""
        net, frames = self.network, self.output_lengths(lengths)
        x = F.pad(x, (0, 0, 0, max(0, 1 - x.shape[1])))
        y = F.gelu(net.conv1(clear(x, lengths).transpose(1, 2))).transpose(1, 2)
        y = F.gelu(net.conv2(clear(y, lengths).transpose(1, 2))).transpose(1, 2)
        size = net.embed_positions.weight.shape[0]
        y = self._layers(y, frames) if y.shape[1] <= size else self._in_pieces(y, frames, size)
        return self.head(y), frames

    def _layers(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x (B, T, width), T at most the positions."""
        net = self.network
        x = x + net.embed_positions.weight[: x.shape[1]]
        x = F.dropout(x, p=net.dropout, training=self.training)
        mask = real(lengths.clamp(min=1), x.shape[1])[:, None, None]
        for layer in net.layers:
            x = layer(x, mask)
        return cast(Tensor, net.layer_norm(x))

    def _in_pieces(self, x: Tensor, lengths: Tensor, size: int) -> Tensor:
        """x (B, T, width) in pieces of `size` frames that overlap by half; an utterance's own length decides which it has."""
        B, T, width = x.shape
        hop = max(1, size // 2)
        count = -(-(T - size) // hop) + 1
        padded = F.pad(x, (0, 0, 0, (count - 1) * hop + size - T))
        pieces = padded.unfold(1, size, hop).transpose(2, 3).reshape(B * count, size, width)
        starts = hop * torch.arange(count, device=x.device)
        read = self._layers(pieces, (lengths[:, None] - starts).clamp(0, size).flatten())
        last = torch.div((lengths - size).clamp(min=0) + hop - 1, hop, rounding_mode="floor")
        frame = torch.arange(T, device=x.device)
        piece = torch.div((frame - size // 4).clamp(min=0), hop, rounding_mode="floor").minimum(last[:, None])
        at = (frame - piece * hop).clamp(max=size - 1)  # beyond an utterance's end: anything
        index = (torch.arange(B, device=x.device)[:, None] * count + piece) * size + at
        return read.reshape(-1, width)[index]


def _weights_of(path: str, kind: Any, config: Any, needed: tuple[str, ...]) -> Any:
    """A model of class `kind` with the weights at `path`, float32. Where some with a `needed` part in their names are not
    there, or some but for an output layer that is not needed are of another size: ValueError."""
    from starseq.pretrained import SAFE, opened

    options = {
        **SAFE,
        "config": config,
        "dtype": torch.float32,
        "use_safetensors": True,
        "ignore_mismatched_sizes": True,
    }
    model, found = opened(path, "weights", lambda: kind.from_pretrained(path, output_loading_info=True, **options))
    lacking = [str(name) for name in found["missing_keys"] if any(part in str(name) for part in needed)]
    spare = tuple(head for head in _HEADS if head not in needed)
    resized = [str(name) for name, *_ in found["mismatched_keys"] if not str(name).startswith(spare)]
    if lacking or resized:
        name, what = (lacking[0], "not there") if lacking else (resized[0], "of another size")
        raise ValueError(f"{path}: its weights are of another model than its settings, for {name} is {what}")
    return model


def _load_head(head: nn.Linear, path: str) -> None:
    """The head that `WhisperCTC.save` wrote beside the encoder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(os.path.join(path, "model.safetensors"))
        head.load_state_dict({name: weights[f"head.{name}"] for name in ("weight", "bias")})
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: its head cannot be used ({error})") from None


def _freeze(model: CTCModel | WhisperCTC, parts: tuple[str, ...] | None) -> None:
    if parts is None:
        parts = (
            ("feature_extractor",) if any("feature_extractor." in name for name, _ in model.named_parameters()) else ()
        )
    for part in parts:
        found = [p for name, p in model.named_parameters() if f".{part}." in f".{name}."]
        if not found:
            there = {".".join(name.split(".")[:3]) for name, _ in model.named_parameters()}
            raise ValueError(f"freeze: the model has no part {part!r}; it has {', '.join(sorted(there))}")
        for parameter in found:
            parameter.requires_grad_(False)


def _layers(network: nn.Module) -> list[nn.Module]:
    """The layers of the encoder: of its lists of modules the one with the most parameters."""
    lists: list[nn.Module] = [m for m in network.modules() if isinstance(m, nn.ModuleList) and len(m)]
    return list(max(lists, key=lambda m: sum(p.numel() for p in m.parameters())).children())


class _Dropped:
    """A layer's output or, with probability `p` in training, its input. Every parameter keeps a gradient, if 0."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not layer.training:
            return output
        x = args[0] if args else kwargs["hidden_states"]
        y = output[0] if isinstance(output, tuple) else output
        y = x + (y - x) * (torch.rand((), device=x.device) >= self.p)
        return (y, *output[1:]) if isinstance(output, tuple) else y


def _growing() -> Iterator[int]:
    n = 1
    while n < 1 << 24:
        yield n
        n = max(n + 1, math.ceil(n * 1.02))
    raise ValueError("the model makes no frame of any input")


# --- convolutions that would see the padding --------------------------------------------------------------------------------


_SEES_PADDING = {"data2vec-audio": "pos_conv_embed.layers.", "wav2vec2-conformer": "conv_module.depthwise_conv"}
"""by type of model, convolutions over frames that transformers gives the padding to see"""


class _Cleared:
    """Zeros in place of the padding of what a convolution is given, (B, C, T). `lengths`: (B,) frames."""

    def __init__(self, conv: nn.Module) -> None:
        self.lengths: Tensor | None = None
        conv.register_forward_pre_hook(self)

    def __call__(self, conv: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.lengths is None:
            return args
        return (args[0] * real(self.lengths.clamp(min=1), args[0].shape[2])[:, None], *args[1:])


# --- convolutions over samples, normalised over time ----------------------------------------------------------------------


def _norms_over_time(network: nn.Module) -> list[_NormOverTime]:
    """The norms of the network that look at all frames, made to look at those of each utterance."""
    found: list[_NormOverTime] = []
    for module in network.modules():
        norm, conv = getattr(module, "layer_norm", None), getattr(module, "conv", None)
        if type(norm) is nn.GroupNorm and isinstance(conv, nn.Conv1d) and norm.num_groups == norm.num_channels:
            norm.__class__ = _NormOverTime
            found.append(cast(_NormOverTime, cast(Any, norm)))
            found[-1].kernel, found[-1].stride = conv.kernel_size[0], conv.stride[0]
    return found


class _NormOverTime(nn.GroupNorm):
    """(B, C, T): each channel to mean 0 and variance 1 over the utterance's own frames. `lengths`: the samples of each.

    These models were trained one utterance at a time or with zeros behind it; without this, what a batch's longest utterance is
    would change what is read of the others.
    """

    lengths: Tensor | None = None
    kernel: int = 1
    stride: int = 1

    def forward(self, x: Tensor) -> Tensor:
        if self.lengths is None:
            return super().forward(x)
        frames = torch.div(self.lengths - self.kernel, self.stride, rounding_mode="floor") + 1
        mask = real(frames.clamp(min=1, max=x.shape[2]), x.shape[2])[:, None]
        wide = x.float()
        count = mask.sum(2, keepdim=True)
        mean = (wide * mask).sum(2, keepdim=True) / count
        centred = (wide - mean) * mask
        scale = (centred.square().sum(2, keepdim=True) / count + self.eps).rsqrt()
        return (centred * scale * self.weight[:, None] + self.bias[:, None]).to(x.dtype)


# --- masks that transformers draws ------------------------------------------------------------------------------------------


@contextmanager
def _masks_of(model: CTCModel, frames: Tensor) -> Iterator[None]:
    """transformers masks frames in training by numbers of numpy: here they follow from torch's, as dropout does.

    It has no masks for batches that are shorter than one of them.
    """
    if not model.training:
        yield
        return
    config, before = model.config, np.random.get_state()  # noqa: NPY002
    wanted = getattr(config, "apply_spec_augment", False)
    if wanted and int(frames.max()) <= config.mask_time_length:
        config.apply_spec_augment = False
    np.random.seed(int(torch.randint(1 << 31, ())))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
        if wanted:
            config.apply_spec_augment = True
