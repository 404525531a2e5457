"""Fine-tune a wav2vec 2.0 with transformers' Trainer on texts with holes: a * in a text is a hole.

    pip install starseq 'transformers[torch]' safetensors
    python examples/hf_trainer.py

To run in seconds, the model is tiny and random, and the sounds are made. With data of your own it is
AutoModelForCTC.from_pretrained(NAME, ctc_loss_reduction="mean", pad_token_id=processor.tokenizer.pad_token_id).
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Trainer,
    TrainingArguments,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from starseq.hf import STCCollator, STCTrainerMixin

RATE, WORDS = 1000, ["abe", "bad", "cab", "dab", "ebb", "fad", "gab"]


class STCTrainer(STCTrainerMixin, Trainer):
    pass


def sound(text: str) -> np.ndarray:
    """Every letter is a tone of 80 ms, and a space is silence."""
    time = np.arange(80) / RATE
    tones = [np.sin(2 * np.pi * 40 * (ord(letter) - 95) * time) if letter != " " else 0 * time for letter in text]
    return np.float32(np.concatenate(tones))


def row(chance: random.Random, processor: Wav2Vec2Processor) -> dict:
    words = [chance.choice(WORDS) for _ in range(5)]
    heard = processor(sound(" ".join(words)), sampling_rate=RATE).input_values[0]
    words[chance.randrange(5)] = "*"  # somebody did not hear it
    return {"input_values": heard, "labels": " ".join(words)}


def main(steps: int, folder: Path) -> list[float]:
    tokens = {token: i for i, token in enumerate(["<pad>", "<unk>", "|", *"abcdefg"])}
    (folder / "vocab.json").write_text(json.dumps(tokens))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), unk_token="<unk>", pad_token="<pad>")
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True)
    processor = Wav2Vec2Processor(feature_extractor=extractor, tokenizer=tokenizer)
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(tokenizer), pad_token_id=0, ctc_loss_reduction="mean", mask_time_prob=0.0, hidden_size=64,
        num_hidden_layers=1, num_attention_heads=4, intermediate_size=128, conv_dim=(64, 64), conv_stride=(5, 4),
        conv_kernel=(20, 8), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_extract_norm="layer",
    )  # fmt: skip
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=3e-3,
        logging_steps=20, save_steps=100, report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = STCTrainer(
        model=Wav2Vec2ForCTC(config), args=arguments, data_collator=STCCollator(processor),
        train_dataset=[row(random.Random(n), processor) for n in range(256)],
    )  # fmt: skip
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    with tempfile.TemporaryDirectory() as output:
        main(parser.parse_args().steps, Path(output))
