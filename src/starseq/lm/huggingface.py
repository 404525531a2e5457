"""Any causal language model in a folder of Hugging Face's, as a scorer. Needs the extra `hf`; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from starseq.data.errors import DataError
from starseq.lm.text import literal
from starseq.lm.transformer import batched_scores
from starseq.text.normalise import Normaliser

__all__ = ["HuggingFaceLM"]

_LOGITS_AT_ONCE = 1 << 26


class HuggingFaceLM:
    """log P of texts by a model and tokeniser saved with `save_pretrained`.

    A sentence begins with the tokeniser's bos and ends with its eos, each standing in for the other where a tokeniser has but
    one (GPT-2). Weights are read from safetensors only, and code in the folder is not run. A folder without a model or a tokeniser,
    or whose tokeniser has neither bos nor eos, is a `DataError`; so is a text that is longer than the model can read.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, normaliser: Normaliser | None = None, device: str = "cpu"
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.tokeniser: Any = AutoTokenizer.from_pretrained(os.fspath(folder), **where)
            model: Any = AutoModelForCausalLM.from_pretrained(os.fspath(folder), use_safetensors=True, **where)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{os.fspath(folder)}: no causal language model of Hugging Face ({reason})") from None
        self.model = model.to(device).eval()
        self._normalise = literal(normaliser)
        begin, end = self.tokeniser.bos_token_id, self.tokeniser.eos_token_id
        if begin is None and end is None:
            raise DataError(f"{os.fspath(folder)}: the tokeniser has neither bos nor eos, so a sentence has no end")
        self._begin, self._end = (begin if begin is not None else end), (end if end is not None else begin)
        self._longest = getattr(self.model.config, "max_position_embeddings", None)

    def score(self, texts: Sequence[str]) -> Tensor:
        """(N,) float32 on the CPU: log P of each text, the end included; texts of like length go together."""
        encode = self.tokeniser.encode
        sentences = [[self._begin, *encode(self._normalise(t), add_special_tokens=False), self._end] for t in texts]
        for text, sentence in zip(texts, sentences, strict=True):
            if self._longest is not None and len(sentence) - 1 > self._longest:
                raise DataError(
                    f"a text of {len(sentence) - 1} tokens is longer than the model reads, {self._longest}: {text[:40]!r}"
                )
        budget = max(1, _LOGITS_AT_ONCE // int(self.model.config.vocab_size))
        return batched_scores(
            [len(s) - 1 for s in sentences], lambda items: self._batch([sentences[i] for i in items]), budget=budget
        )

    def _batch(self, sentences: list[list[int]]) -> Tensor:
        device = self.model.device
        rows = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(s) for s in sentences], batch_first=True, padding_value=-100
        )
        inputs, targets = rows[:, :-1].clamp(min=0).to(device), rows[:, 1:].to(device)
        # Padding comes last, where a causal model does not see it; the mask is for models that count positions by it.
        logits = self.model(input_ids=inputs, attention_mask=(rows[:, :-1] >= 0).long().to(device)).logits.float()
        return -F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none").sum(dim=1)
