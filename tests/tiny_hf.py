"""Models of every type that transformers has a class for CTC for, and Whisper, so small that they are made in a moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

LETTERS = "abcdefgh"
WITH_SAMPLES = (
    "data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer", "wavlm",
)  # fmt: skip
WITH_FEATURES = ("granite_speech5_ctc", "lasr_ctc", "parakeet_ctc", "wav2vec2-bert")
_LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_HEAD = {"vocab_size": 12, "pad_token_id": 3}


def config(kind: str, **settings: Any) -> Any:
    """Settings of a tiny model of a type; its blank is token 3 of 12."""
    from transformers import AutoConfig

    if kind == "whisper":
        tiny = {
            "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_layers": 1,
            "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "num_mel_bins": 80, "max_source_positions": 40, "vocab_size": 32,
            "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0,
        }  # fmt: skip
        return AutoConfig.for_model(kind, **{**tiny, **settings})
    if kind in WITH_SAMPLES:
        tiny = {
            **_LAYERS, **_HEAD, "conv_dim": (8, 8, 8), "conv_kernel": (10, 3, 2), "conv_stride": (5, 4, 4),
            "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2,
        }  # fmt: skip
        return AutoConfig.for_model(kind, **{**tiny, **settings})
    if kind == "wav2vec2-bert":
        tiny = {
            **_LAYERS,
            **_HEAD,
            "feature_projection_input_dim": 160,
            "conv_depthwise_kernel_size": 3,
            "mask_time_length": 2,
        }
        return AutoConfig.for_model(kind, **{**tiny, **settings})
    encoder: dict[str, Any] = {**_LAYERS, "num_mel_bins": 80, "num_key_value_heads": 2}
    if kind == "granite_speech5_ctc":
        encoder |= {"head_dim": 8, "vocab_size": 12, "context_size": 8, "num_hidden_layers": 3}
    else:
        encoder |= {"subsampling_conv_channels": 8, "conv_kernel_size": 3}
    return AutoConfig.for_model(kind, encoder_config=encoder, **_HEAD, **settings)


def extractor(kind: str) -> Any:
    """The feature extractor of a type; that of Granite needs torchaudio."""
    import transformers

    if kind in WITH_SAMPLES:
        return transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    return {
        "whisper": transformers.WhisperFeatureExtractor,
        "wav2vec2-bert": transformers.SeamlessM4TFeatureExtractor,
        "parakeet_ctc": transformers.ParakeetFeatureExtractor,
        "lasr_ctc": lambda: transformers.LasrFeatureExtractor(feature_size=80),
    }[kind]()


def _pieces() -> Any:
    """A tokeniser of pieces of words, as Parakeet's; the blank is none of them."""
    import tokenizers
    import transformers

    pieces = ["<unk>", "▁a", "▁b", "<s>", "▁cab", "ad", "d", "▁", "fe", "e", "ab", "c"]
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", pad_token="<s>")


def save(folder: Path, kind: str, *, letters: Sequence[str] = LETTERS, seed: int = 0, **settings: Any) -> Path:
    """A folder as transformers writes it: settings, weights, extractor and, for a type with a CTC class, letters as tokens."""
    import transformers

    torch.manual_seed(seed)
    made = config(kind, **settings)
    whisper = kind == "whisper"
    model = transformers.WhisperModel(made) if whisper else transformers.AutoModelForCTC.from_config(made)
    model.save_pretrained(folder)
    extractor(kind).save_pretrained(folder)
    if kind == "parakeet_ctc":
        _pieces().save_pretrained(folder)
    elif not whisper:
        tokens = ["<s>", "</s>", "<unk>", "<pad>", "|", *letters]
        vocab = folder / "vocab.json"
        vocab.write_text(json.dumps({token: i for i, token in enumerate(tokens[: made.vocab_size])}))
        transformers.Wav2Vec2CTCTokenizer(str(vocab)).save_pretrained(folder)
    return folder
