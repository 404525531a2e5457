"""Fine-tune a pretrained speech encoder on transcripts in which words are missing: a * says where.

    pip install 'starseq[all,hf]'
    python examples/fine_tune_encoder.py --encoder FOLDER_OR_ID --corpus FOLDER

To run in seconds without either, the encoder is a tiny random Whisper, and the speech is noise. The corpus is a folder with
manifest.jsonl, as `starseq prepare` writes it. `starseq fit CORPUS model.name=hf model.path=ENCODER` does this and more.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import transformers

from starseq.config import load_recipe
from starseq.data import audio
from starseq.data.manifest import write_manifest
from starseq.jobs.evaluate import evaluate
from starseq.jobs.train import train

TEXTS = ["the quick fox", "the * fox", "a lazy dog", "* lazy dog"]


def tiny_encoder(folder: Path) -> Path:
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=32, decoder_layers=1, num_mel_bins=80,
        decoder_attention_heads=2, decoder_ffn_dim=16, max_source_positions=100, vocab_size=32, pad_token_id=0,
        bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    transformers.WhisperModel(config).save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    return folder


def made_corpus(folder: Path) -> Path:
    rows = []
    for number in range(24):
        split, text = ("dev", "the quick fox") if number < 2 else ("train", TEXTS[number % len(TEXTS)])
        path = folder / f"{number}.wav"
        path.write_bytes(audio.encode(0.1 * torch.randn(16_000 + 800 * number), 16_000))
        rows.append({"id": path.stem, "path": path.name, "text": text, "gaps": "marked", "split": split})
    write_manifest(folder / "manifest.jsonl", rows)
    return folder


def main(encoder: Path, corpus: Path, steps: int, out: Path) -> None:
    recipe = load_recipe(
        "speech",
        [
            "model.name=hf", f"model.path={encoder}", f"data.root={corpus}", f"trainer.max_steps={steps}",
            f"trainer.eval_every={max(1, steps // 10)}",
            f"optim.head_steps={steps // 10}",  # so long the new output layer learns alone
            f"optim.warmup_steps={steps // 10}",
            "data.budget=60",  # seconds of audio in a batch
            "data.workers=0", "trainer.tensorboard=false",
        ],
    )  # fmt: skip
    train(recipe, out, on_message=print)
    print(evaluate(out, splits=["dev"]).table())
    print(f"read with: starseq transcribe {out} FILE")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        for name in ("encoder", "corpus"):
            Path(made, name).mkdir()
        encoder = args.encoder or tiny_encoder(Path(made, "encoder"))
        main(encoder, args.corpus or made_corpus(Path(made, "corpus")), args.steps, args.out or Path(made, "run"))
