"""For a training script of your own with `transformers.Trainer`: a mixin that makes its loss STC, and a data collator.

    class STCTrainer(STCTrainerMixin, Trainer): ...

    trainer = STCTrainer(model=model, args=args, data_collator=STCCollator(processor), train_dataset=rows)

A `*` in a text is a hole and never a token. docs/loss.md shows how an example script of transformers becomes STC.
Nothing of transformers is imported here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from starseq.loss import STCLoss
from starseq.penalty import InsertionPenalty
from starseq.text.gaps import has_gap, parse, split_gaps

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

__all__ = ["STATE", "STCCollator", "STCTrainerMixin"]

STATE = "stc.safetensors"
"""beside the weights in a checkpoint: what the loss has learned of its star"""
_PADDING = -100
"""of labels, as everywhere in transformers"""
_WORD_BEGINS = ("▁", "Ġ")
"""how tokens of subword tokenisers show that a word begins"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class STCCollator:
    """Rows of audio and text to a batch with `labels` (B, U), padded with -100, and `open_gaps` (B, U+1): where some are missing.

    A row has what the processor's feature extractor made of the audio (`input_values` or `input_features`) and, as `labels`, the
    text itself. A `*` in the text is a hole; a backslash before it makes it a star. A text without holes may have lost whole
    words anywhere. With `marked` it is complete.

    Raises ValueError for labels that are no text, and for a text that the tokeniser cannot write.
    """

    processor: Any
    marked: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        extractor = self.processor.feature_extractor
        inputs = [{name: row[name] for name in extractor.model_input_names if name in row} for row in rows]
        batch = dict(extractor.pad(inputs, padding=True, return_tensors="pt"))
        encoded = [self._encode(row["labels"]) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        labels = [torch.tensor(ids, dtype=torch.int64) for ids, _ in encoded]
        batch["labels"] = pad(labels, batch_first=True, padding_value=_PADDING)
        batch["open_gaps"] = pad([torch.tensor(gaps) for _, gaps in encoded], batch_first=True)
        return batch

    def _encode(self, text: object) -> tuple[list[int], list[bool]]:
        """The tokens of a text, (U,), and its open gaps, (U+1,)."""
        if not isinstance(text, str):
            raise ValueError(
                f"labels: expected the text itself, which the collator tokenises, not {type(text).__name__}"
            )
        delimiter = getattr(self.processor.tokenizer, "word_delimiter_token", None)
        ids: list[int] = []
        gaps = [False]
        for number, piece in enumerate(split_gaps(text) if delimiter is not None else _whole_words(text)):
            gaps[-1] |= number > 0
            tokens = self._tokens(piece, text)
            ids += tokens
            gaps += [False] * len(tokens)
        if has_gap(text) or self.marked:
            return ids, gaps
        names = self.processor.tokenizer.convert_ids_to_tokens(ids)
        if delimiter is not None:
            inside = [name == delimiter for name in names[:-1]]
        else:
            inside = [name.startswith(_WORD_BEGINS) for name in names[1:]]
        return ids, [True, *inside, True] if ids else [True]

    def _tokens(self, piece: str, text: str) -> list[int]:
        tokenizer = self.processor.tokenizer
        ids: list[int] = tokenizer(piece, add_special_tokens=False).input_ids
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            alone = (c for c in piece if tokenizer.unk_token_id in tokenizer(c, add_special_tokens=False).input_ids)
            raise ValueError(
                f"labels: the tokeniser has no token for {next(alone, piece)!r} in {text!r}; leave it out, or write * in its place"
            )
        return ids


def _whole_words(text: str) -> list[str]:
    """What stands between the holes, for tokens that are parts of words: a word that a hole touches belongs to the hole.

    >>> _whole_words("the qu* fox jumps *")
    ['the', 'fox jumps', '']
    """
    if not has_gap(text):
        return split_gaps(text)
    partial = parse(text, "word")
    pieces: list[list[str]] = [[]]
    for gap, word in zip(partial.open, (*partial.labels, None), strict=True):
        if gap:
            pieces.append([])
        if word is not None:
            pieces[-1].append(word)
    return [" ".join(piece) for piece in pieces]


class STCTrainerMixin(_Trainer):  # type: ignore[misc]
    """Makes `transformers.Trainer` train an `AutoModelForCTC` with STC: `class STCTrainer(STCTrainerMixin, Trainer)`.

    The loss is `self.stc`, made by `make_loss`. Reduction and infinities follow the model's config, `ctc_loss_reduction` and
    `ctc_zero_infinity`; the blank is its `pad_token_id`. Batches come from `STCCollator`. Those of another collator
    have no `open_gaps`: labels may be missing everywhere.

    With gradient accumulation, loss and gradients are those of the whole batch at once, and the star moves once an optimiser step.
    Each checkpoint has the state of the star in `stc.safetensors`, and `resume_from_checkpoint` takes it from there.
    """

    loss_is_scaled_for_ga = True  # newer Trainers ask this; older ones ask model_accepts_loss_kwargs

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = True  # whatever the model says: compute_loss divides by the whole batch
        self.stc = self.make_loss()

    def make_loss(self) -> STCLoss:
        """The loss, of every utterance by itself. Override it for other settings of `STCLoss`."""
        config = _bare(self.model).config
        return STCLoss(
            blank=config.pad_token_id, reduction="none", zero_infinity=getattr(config, "ctc_zero_infinity", False),
            batch_first=True,
        )  # fmt: skip

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """The batches of an optimiser step, and how many utterances they have in all processes together."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        if not all("labels" in batch for batch in batches):
            raise ValueError(
                "labels: a batch has none; is the collator starseq.hf.STCCollator, and do the rows have labels?"
            )
        count = torch.tensor(sum(len(batch["labels"]) for batch in batches), device=self.args.device)
        return batches, self.accelerator.gather(count).sum() if self.args.world_size > 1 else count

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The STC loss of a batch: in training its share of that of an optimiser step with `num_items_in_batch` utterances."""
        inputs = dict(inputs)
        labels, open_gaps = inputs.pop("labels"), inputs.pop("open_gaps", None)
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        frames = _output_lengths(_bare(self.model), inputs).clamp(max=logits.shape[1])
        lengths = (labels >= 0).sum(dim=1)
        # All batches of an optimiser step are scored with one weight of the star. The last one moves it.
        is_last = self.accelerator.sync_gradients
        star = self.stc.penalty
        weight = None if is_last else star() if isinstance(star, nn.Module) else star
        losses = self.stc(logits, labels, frames, lengths, weight, open_gaps=open_gaps)
        if model.training and is_last and isinstance(star, InsertionPenalty):
            star.advance()
        if _bare(self.model).config.ctc_loss_reduction == "sum":
            loss = losses.sum()
        else:
            utterances = num_items_in_batch if model.training and num_items_in_batch is not None else len(losses)
            loss = (losses / lengths.clamp(min=1)).sum() / utterances
        # Gradients are averaged over the processes, and each has its share alone.
        if model.training and self.args.world_size > 1:
            loss = loss * self.args.world_size
        if not return_outputs:
            return loss
        return loss, outputs if isinstance(outputs, dict) else (loss, *outputs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Beside the loss also `star_weight`, the weight p of a token that the text lacks."""
        if "loss" in logs and self.stc.adapts:
            logs = {**logs, "star_weight": float(self.stc.penalty().exp())}
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the state of the loss, too."""
        from safetensors.torch import save

        from starseq.data.files import write_bytes

        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            state = {name: x.detach().cpu().contiguous() for name, x in self.stc.state_dict().items()}
            write_bytes(Path(output_dir or str(self.args.output_dir), STATE), save(state))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Takes the state of the loss from a checkpoint, too."""
        folder = resume_from_checkpoint
        if folder is True:
            from transformers.trainer_utils import get_last_checkpoint

            folder = get_last_checkpoint(str(self.args.output_dir))
        if isinstance(folder, str | os.PathLike):
            self._take_up(Path(folder) / STATE)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _take_up(self, path: Path) -> None:
        from safetensors.torch import load

        if path.is_file():
            self.stc.load_state_dict(load(path.read_bytes()))
        else:
            _log.warning("%s: no such file, so the weight of the star begins anew", path)


def _bare(model: Any) -> Any:
    """The model of transformers in what wraps it."""
    while True:
        if hasattr(model, "get_base_model"):  # of peft
            model = model.get_base_model()
        elif hasattr(model, "module"):
            model = model.module
        else:
            return model


def _output_lengths(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """The frames of each utterance after the model, (B,)."""
    mask, x = inputs.get("attention_mask"), inputs[model.main_input_name]
    lengths = torch.full((len(x),), x.shape[1], device=x.device) if mask is None else mask.sum(dim=1)
    for part in (model, model.base_model, getattr(model, "encoder", None)):
        for name in ("_get_feat_extract_output_lengths", "_get_subsampling_output_length"):
            if hasattr(part, name):
                frames: Tensor = getattr(part, name)(lengths)
                return frames.long()
    raise ValueError(
        f"{type(model).__name__} does not say how many frames it makes of an utterance: is it a model for CTC?"
    )
