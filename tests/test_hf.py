"""starseq.hf: what a text becomes, what the loss is; accumulating and resuming change nothing, whatever the model gives out."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from safetensors.torch import load_file  # noqa: E402
from transformers import (  # noqa: E402
    ParakeetCTCConfig,
    ParakeetForCTC,
    Trainer,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from starseq import InsertionPenalty, STCLoss, stc_loss  # noqa: E402
from starseq.hf import STATE, STCCollator, STCTrainerMixin  # noqa: E402

LETTERS = ["<pad>", "<unk>", "|", *"abcdefx"]
TEXTS = ["ab * c", "a", "dead beef", "* x", "fade", "ab ab * ab", "c a b"]


class STCTrainer(STCTrainerMixin, Trainer):
    pass


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    vocabulary = tmp_path_factory.mktemp("tokens") / "vocab.json"
    vocabulary.write_text(json.dumps({token: index for index, token in enumerate([*LETTERS, "*"])}))
    tokenizer = Wav2Vec2CTCTokenizer(
        str(vocabulary), unk_token="<unk>", pad_token="<pad>", bos_token=None, eos_token=None
    )
    return Wav2Vec2Processor(
        feature_extractor=Wav2Vec2FeatureExtractor(sampling_rate=100, return_attention_mask=True), tokenizer=tokenizer
    )


def wav2vec2(**options: Any) -> Any:
    torch.manual_seed(1)
    off = dict.fromkeys(("hidden_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout", "layerdrop"), 0.0)
    return Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=len(LETTERS) + 1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 8), num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, mask_time_prob=0.0, feat_extract_norm="layer", do_stable_layer_norm=True,
            activation_dropout=0.0, **{"ctc_loss_reduction": "mean", **off, **options},
        )
    )  # fmt: skip


class Tuples(Wav2Vec2ForCTC):
    """`return_dict=False` in the config breaks some releases of transformers; in the call it does not."""

    def forward(self, input_values: Any, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        return super().forward(input_values, attention_mask, labels, **kwargs, return_dict=False)


def parakeet(**options: Any) -> Any:
    torch.manual_seed(1)
    encoder = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "num_mel_bins": 16,
        "subsampling_conv_channels": 8, "conv_kernel_size": 3, "dropout": 0.0, "dropout_positions": 0.0, "layerdrop": 0.0,
        "activation_dropout": 0.0, "attention_dropout": 0.0, "subsampling_factor": 4,
    }  # fmt: skip
    options = {"ctc_loss_reduction": "mean", **options}
    return ParakeetForCTC(
        ParakeetCTCConfig(vocab_size=len(LETTERS) + 1, pad_token_id=0, encoder_config=encoder, **options)
    )


def rows(texts: list[str] = TEXTS) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(2)
    return [
        {"input_values": torch.randn(500 + 60 * n, generator=random).numpy(), "labels": text}
        for n, text in enumerate(texts)
    ]


def spectrograms(texts: list[str] = TEXTS) -> list[dict[str, Any]]:
    random = torch.Generator().manual_seed(2)
    return [
        {"input_features": torch.randn(150 + 9 * n, 16, generator=random).numpy(), "labels": text}
        for n, text in enumerate(texts)
    ]


def collator_of(model: Any, processor: Any, **options: Any) -> STCCollator:
    if model.main_input_name == "input_values":
        return STCCollator(processor, **options)
    extractor = transformers.SeamlessM4TFeatureExtractor(feature_size=16, num_mel_bins=16, stride=1)
    return STCCollator(SimpleNamespace(feature_extractor=extractor, tokenizer=processor.tokenizer), **options)


def trainer_of(
    model: Any, processor: Any, folder: Path, data: Any = None, cls: Any = STCTrainer, **options: Any
) -> Any:
    settings = {
        "per_device_train_batch_size": 7, "per_device_eval_batch_size": 4, "max_steps": 1, "learning_rate": 0.1, "optim": "sgd",
        "max_grad_norm": 1e9, "lr_scheduler_type": "constant", "logging_steps": 1, "save_strategy": "no", "use_cpu": True,
        "report_to": [], "disable_tqdm": True, "seed": 3, "eval_strategy": "no",
    }  # fmt: skip
    data = data or (rows() if model.main_input_name == "input_values" else spectrograms())
    return cls(
        model=model, args=TrainingArguments(str(folder), **{**settings, **options}), train_dataset=data, eval_dataset=data,
        data_collator=collator_of(model, processor),
    )  # fmt: skip


def encoded(processor: Any, *texts: str, **options: Any) -> list[tuple[str, list[int]]]:
    """The labels of each text as letters, and its open gaps as numbers."""
    batch = STCCollator(processor, **options)(rows(list(texts)))
    assert batch["open_gaps"].shape == (len(texts), batch["labels"].shape[1] + 1)
    return [
        ("".join(LETTERS[i] for i in labels if i >= 0), gaps.nonzero().flatten().tolist())
        for labels, gaps in zip(batch["labels"].tolist(), batch["open_gaps"], strict=True)
    ]


def test_a_star_is_a_hole_and_never_a_token(processor: Any) -> None:
    # The tokeniser knows "*", as one would that was made from all letters of such texts.
    assert encoded(processor, "ab * c", "* x", "*", "a*b") == [
        ("ab||c", [3]), ("|x", [0]), ("", [0]), ("ab", [1]),
    ]  # fmt: skip
    assert encoded(processor, "dead beef", "a", "") == [("dead|beef", [0, 5, 9]), ("a", [0, 1]), ("", [0])]
    assert encoded(processor, "dead beef", "a * b", marked=True) == [("dead|beef", []), ("a||b", [2])]
    batch = STCCollator(processor)(rows([r"a\*b"]))
    assert batch["labels"].tolist() == [[3, len(LETTERS), 4]]
    assert batch["labels"][0].ne(-100).all()


def test_tokens_that_are_parts_of_words(processor: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pieces = {token: index for index, token in enumerate(["<unk>", "▁the", "▁f", "ox", "▁qu", "▁jum", "ps"])}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(pieces, unk_token="<unk>", continuing_subword_prefix="")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    collator = STCCollator(SimpleNamespace(feature_extractor=processor.feature_extractor, tokenizer=fast))
    batch = collator(rows(["the qu* fox jumps *", "the fox jumps"]))
    assert batch["labels"].tolist() == [[1, 2, 3, 5, 6], [1, 2, 3, 5, 6]]
    assert [gaps.nonzero().flatten().tolist() for gaps in batch["open_gaps"]] == [[1, 5], [0, 1, 3, 5]]


def test_what_cannot_be_a_label(processor: Any) -> None:
    with pytest.raises(ValueError, match="the tokeniser has no token for 'G' in 'aGb'; leave it out, or write"):
        encoded(processor, "aGb")
    with pytest.raises(ValueError, match="labels: expected the text itself, which the collator tokenises, not list"):
        STCCollator(processor)([{**rows()[0], "labels": [3, 4]}])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("make", [wav2vec2, parakeet])
def test_without_holes_it_is_the_ctc_of_the_model(make: Any, reduction: str, processor: Any, tmp_path: Path) -> None:
    model = make(ctc_loss_reduction=reduction).eval()
    trainer = trainer_of(model, processor, tmp_path)
    batch = collator_of(model, processor, marked=True)(
        [row for row in trainer.train_dataset if "*" not in row["labels"]]
    )
    ours = trainer.compute_loss(model, batch)
    del batch["open_gaps"]
    assert ours.item() == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def test_with_holes_it_is_stc(processor: Any, tmp_path: Path) -> None:
    model = wav2vec2().eval()
    trainer = trainer_of(model, processor, tmp_path)
    batch = STCCollator(processor)(rows())
    frames = torch.tensor([(((500 + 60 * n - 10) // 5 + 1) - 8) // 4 + 1 for n in range(len(TEXTS))])
    logits = model(batch["input_values"], attention_mask=batch["attention_mask"]).logits
    penalty = torch.where(batch["open_gaps"], math.log(0.94), -math.inf)
    lengths = (batch["labels"] >= 0).sum(1)
    expected = stc_loss(logits, batch["labels"], frames, lengths, penalty=penalty, batch_first=True)
    assert trainer.compute_loss(model, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def trained(
    model: Any, processor: Any, folder: Path, batch: int, steps: int, **options: Any
) -> tuple[Any, list[float]]:
    trainer = trainer_of(
        model, processor, folder, per_device_train_batch_size=batch, gradient_accumulation_steps=steps, **options
    )
    trainer.train()
    return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_accumulation_changes_nothing(reduction: str, processor: Any, tmp_path: Path) -> None:
    # Seven utterances: 4 + 3, and 2 + 2 + 2 + 1. Their mean is not that of the means of the batches.
    rate = {"learning_rate": 0.1 if reduction == "mean" else 0.01}
    whole, losses = trained(wav2vec2(ctc_loss_reduction=reduction), processor, tmp_path, 7, 1, **rate)
    start = dict(wav2vec2().named_parameters())
    for batch, steps in ((4, 2), (2, 4)):
        model = wav2vec2(ctc_loss_reduction=reduction)
        trainer, parts = trained(model, processor, tmp_path, batch, steps, **rate)
        assert parts == pytest.approx(losses, rel=1e-4)
        assert trainer.state.global_step == 1
        moved = 0.0
        for (name, ours), theirs in zip(model.named_parameters(), whole.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4, msg=name)
            moved = max(moved, float((ours - start[name]).detach().abs().max()))
        assert moved > 1e-3


def test_the_star_moves_once_an_optimiser_step(processor: Any, tmp_path: Path) -> None:
    class Published(STCTrainer):
        def make_loss(self) -> STCLoss:
            return STCLoss(penalty=InsertionPenalty(0.5, 0.9, 10), reduction="none", batch_first=True)

    trainer, _ = trained(wav2vec2(), processor, tmp_path, 2, 4, max_steps=3, cls=Published)
    assert trainer.stc.penalty.step.item() == 3
    trainer, _ = trained(wav2vec2(), processor, tmp_path, 2, 4, max_steps=3)
    assert trainer.stc.penalty.get_extra_state().item() == 3
    trainer.evaluate()
    assert trainer.stc.penalty.get_extra_state().item() == 3


@pytest.mark.parametrize(("cls", "hidden"), [(Wav2Vec2ForCTC, True), (Tuples, True)])
def test_whatever_the_model_gives_out(cls: Any, hidden: bool, processor: Any, tmp_path: Path) -> None:
    trainer, plain = trained(wav2vec2(), processor, tmp_path, 4, 2)
    model = wav2vec2(output_hidden_states=hidden)
    model.__class__ = cls
    other, losses = trained(model, processor, tmp_path, 4, 2)
    assert losses == plain
    evaluated = other.evaluate()["eval_loss"]
    assert evaluated == pytest.approx(trainer.evaluate()["eval_loss"])
    predicted = other.predict(rows())
    logits = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    assert logits.shape[0] == predicted.label_ids.shape[0] == len(TEXTS)
    assert logits.shape[2] == len(LETTERS) + 1


def test_half_precision(processor: Any, tmp_path: Path) -> None:
    _, plain = trained(wav2vec2(), processor, tmp_path, 4, 2)
    _, half = trained(wav2vec2(), processor, tmp_path, 4, 2, bf16=True)
    assert half == pytest.approx(plain, rel=0.02)
    assert half != plain


def test_resume_goes_on_with_the_same_star(processor: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def make(folder: str = "", **options: Any) -> Any:
        return trainer_of(
            wav2vec2(), processor, tmp_path / folder, per_device_train_batch_size=3, gradient_accumulation_steps=2,
            max_steps=6, save_strategy="steps", save_steps=3, **options,
        )  # fmt: skip

    whole = make()
    whole.stc.penalty.record[0], whole.stc.penalty.log_odds = 0.3, torch.tensor(0.5, dtype=torch.float64)  # as later
    whole.train()
    logged = [entry["star_weight"] for entry in whole.state.log_history if "star_weight" in entry]
    assert len(set(logged)) > 1

    for checkpoint in (str(tmp_path / "checkpoint-3"), True):
        resumed = make()
        if checkpoint is True:
            resumed.args.max_steps = 7  # the last checkpoint is of the whole
        resumed.train(resume_from_checkpoint=checkpoint)
        if checkpoint is not True:
            for name, x in whole.stc.state_dict().items():
                assert torch.equal(resumed.stc.state_dict()[name], x), name
            for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
                assert torch.equal(ours, theirs)
    saved = load_file(tmp_path / "checkpoint-6" / STATE)
    assert saved.keys() == whole.stc.state_dict().keys()

    # The model itself is the model as it was: no weights are added to it.
    _, info = Wav2Vec2ForCTC.from_pretrained(tmp_path / "checkpoint-6", output_loading_info=True)
    assert not info["unexpected_keys"]
    assert not info["missing_keys"]

    (tmp_path / "checkpoint-3" / STATE).unlink()
    with caplog.at_level(logging.WARNING):
        make().train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert "so the weight of the star begins anew" in caplog.text


def test_a_batch_without_labels_is_a_sentence(processor: Any, tmp_path: Path) -> None:
    trainer = trainer_of(wav2vec2(), processor, tmp_path)
    trainer.data_collator = lambda batch: {"input_values": torch.zeros(len(batch), 500)}
    with pytest.raises(ValueError, match=r"a batch has none; is the collator starseq.hf.STCCollator"):
        trainer.train()
