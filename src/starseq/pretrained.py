"""Models of Hugging Face, by folder or id: their settings, feature extractor and tokeniser.

Needs the extra `hf`. An id is fetched, kept and reported on by transformers itself. Code that comes with a model is not run, and
weights are read from safetensors alone. What cannot be used is a `ValueError` of one sentence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["SAFE", "config_of", "copy_settings", "extractor_of", "opened", "own_tokens", "save_labels", "tokeniser_of"]

SAFE: dict[str, Any] = {"trust_remote_code": False}
"""what every `from_pretrained` is called with"""
CONFIG = "config.json"
BEGINS = "▁"
"""how a piece of a word begins that begins a word; alone, it begins one as well"""
_TOKENISER_FILES = ("tokenizer_config.json", "vocab.json", "tokenizer.json", "tokenizer.model")


def opened(path: str, what: str, open_it: Callable[[], Any]) -> Any:
    """What `open_it` returns; what goes wrong in it is one sentence about `what` of the model at `path`."""
    from transformers import logging

    if not os.path.isdir(path) and (path.count("/") > 1 or path.startswith((".", "~", "/"))):
        raise ValueError(f"{path}: no such folder")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return open_it()
    except Exception as error:  # what a strange folder makes of code that is not ours has no bounds
        raise _unusable(path, what, error) from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _unusable(path: str, what: str, error: Exception) -> ValueError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].strip()
    if os.path.isdir(path):
        return ValueError(f"{path}: its {what} cannot be used ({reason})")
    if "connect" in reason or "offline" in reason.lower() or "LocalEntryNotFound" in type(error).__name__:
        return ValueError(
            f"{path}: no folder of that name is here, and Hugging Face cannot be reached to fetch its {what}"
        )
    return ValueError(f"{path}: no folder of that name is here, and Hugging Face gives no {what} for it ({reason})")


def config_of(path: str) -> Any:
    """The model's settings."""
    from transformers import AutoConfig

    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, CONFIG)):
        raise ValueError(f"{path}: no model of Hugging Face, for it has no {CONFIG}")
    return opened(path, "settings", lambda: AutoConfig.from_pretrained(path, **SAFE))


def extractor_of(path: str) -> Any:
    """The model's feature extractor."""
    from transformers import AutoFeatureExtractor

    return opened(path, "feature extractor", lambda: AutoFeatureExtractor.from_pretrained(path, **SAFE))


def tokeniser_of(path: str) -> Any:
    """The model's tokeniser; None where a folder has none."""
    from transformers import AutoTokenizer

    if os.path.isdir(path) and not any(os.path.isfile(os.path.join(path, name)) for name in _TOKENISER_FILES):
        return None
    return opened(path, "tokeniser", lambda: AutoTokenizer.from_pretrained(path, **SAFE))


def has_own_head(path: str) -> bool:
    """Whether the model at `path` was made for CTC, and says what its tokens are."""
    architectures = getattr(config_of(path), "architectures", None) or [""]
    return str(architectures[0]).endswith("ForCTC") and tokeniser_of(path) is not None


def copy_settings(path: str, folder: Path) -> None:
    """Writes settings, feature extractor and tokeniser to `folder`: all that the model needs besides its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tokeniser = config_of(path), tokeniser_of(path)
    extractor_of(path).save_pretrained(folder)
    if tokeniser is not None:
        tokeniser.save_pretrained(folder)
    config.save_pretrained(folder)


def save_labels(folder: Path, labels: Sequence[str]) -> None:
    """Writes a tokeniser of these labels, characters all of them, behind a blank that is token 0; with the feature extractor that
    lies there it makes a processor."""
    from transformers import Wav2Vec2CTCTokenizer, Wav2Vec2Processor

    delimiter = next(mark for mark in "|▁␣¦" if mark not in labels)
    tokens = ["<blank>", *(delimiter if label == " " else label for label in labels)]
    for name in _TOKENISER_FILES:
        (folder / name).unlink(missing_ok=True)
    vocab = folder / "vocab.json"
    vocab.write_text(
        json.dumps({token: index for index, token in enumerate(tokens)}, ensure_ascii=False), encoding="utf-8"
    )
    tokeniser = Wav2Vec2CTCTokenizer(
        str(vocab),
        unk_token="<blank>",
        pad_token="<blank>",
        bos_token=None,
        eos_token=None,
        word_delimiter_token=delimiter,
    )
    Wav2Vec2Processor(feature_extractor=extractor_of(str(folder)), tokenizer=tokeniser).save_pretrained(folder)
    # Beside the processor, for those who load it alone.
    extractor_of(str(folder)).save_pretrained(folder)


def own_tokens(path: str) -> tuple[list[int], list[str]]:
    """The model's own labels: the numbers of their outputs, and their names. The blank and special tokens are no labels.

    The word delimiter becomes the space.
    """
    config, tokeniser = config_of(path), tokeniser_of(path)
    size, blank = int(config.vocab_size), config.pad_token_id
    names: dict[int, str] = {index: token for token, index in tokeniser.get_vocab().items()}
    if blank is None or not 0 <= blank < size:
        raise ValueError(f"{path}: its settings name no blank, pad_token_id, among its {size} outputs")
    delimiter = getattr(tokeniser, "word_delimiter_token", None)
    special = set(tokeniser.all_special_tokens) - {delimiter}
    labels: dict[str, int] = {}
    for index, name in sorted(names.items()):
        if index == blank or index >= size or name in special:
            continue
        if name == delimiter:
            name = " "
        if name and "\n" not in name and name not in ("<blank>", "<space>"):
            labels.setdefault(name, index)
    if not labels:
        raise ValueError(f"{path}: its tokeniser has no label for the {size} outputs of the model")
    return list(labels.values()), list(labels)


def is_of_pieces(tokeniser: Any) -> bool:
    """Whether its tokens are pieces of words, which begin with ``▁`` where a word begins."""
    return any(token.startswith(BEGINS) and len(token) > 1 for token in tokeniser.get_vocab())
