"""Emissions on disk, so that a search can run again without the model: safetensors shards and an index."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from starseq.data.errors import DataError
from starseq.data.files import write_bytes, write_text

__all__ = ["EmissionCache"]

_INDEX = "index.json"


class EmissionCache:
    """The log-probabilities of a set of utterances, in order, with their references.

    With `keep`, only the best tokens of each frame are there (the blank always), the others come back as -inf: a search that
    looks at no more of them finds the same texts, and 50,001 words take megabytes in place of gigabytes.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> log_probs = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1]]).log()
    >>> cache = EmissionCache.write(folder, [("x", log_probs, "b")], key="model 1", keep=2)
    >>> [(id, found.exp()) for id, found in EmissionCache.open(folder, "model 1")]
    [('x', tensor([[0.1000, 0.0000, 0.7000],
            [0.5000, 0.4000, 0.0000]]))]
    >>> EmissionCache.open(folder, "model 2") is None
    True
    """

    def __init__(self, folder: Path, key: str, index: dict[str, list[str]]) -> None:
        self._folder, self.key = folder, key
        self.ids, self.references, self._shards = index["ids"], index["references"], index["shards"]

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], key: str) -> EmissionCache | None:
        """The cache in `folder` if it is complete and was made under this `key`, otherwise None."""
        try:
            index = json.loads(Path(folder, _INDEX).read_text())
        except (OSError, ValueError):
            return None
        return cls(Path(folder), key, index) if isinstance(index, dict) and index.get("key") == key else None

    @classmethod
    def write(
        cls, folder: str | os.PathLike[str], emissions: Iterable[tuple[str, Tensor, str]], *, key: str,
        keep: int | None = None, shard_bytes: int = 64 << 20,
    ) -> EmissionCache:  # fmt: skip
        """Stores (id, log_probs (T, V), reference) of each utterance. The index comes last: no index, no cache."""
        from safetensors.torch import save

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _INDEX).unlink(missing_ok=True)
        for old in folder.glob("emissions-*.safetensors"):
            old.unlink()
        index: dict[str, list[str]] = {"ids": [], "references": [], "shards": []}
        shard: dict[str, Tensor] = {}

        def flush() -> None:
            if shard:
                index["shards"].append(f"emissions-{len(index['shards']):05d}.safetensors")
                write_bytes(folder / index["shards"][-1], save(shard))
                shard.clear()

        for number, (id, log_probs, reference) in enumerate(emissions):
            log_probs = log_probs.detach().to("cpu", torch.float32)
            index["ids"].append(id)
            index["references"].append(reference)
            if keep is None or keep >= log_probs.shape[1]:
                shard[f"{number}.log_probs"] = log_probs.contiguous()
            else:
                values, tokens = _best(log_probs, keep)
                shard[f"{number}.log_probs"], shard[f"{number}.tokens"] = values, tokens
                shard[f"{number}.vocabulary"] = torch.tensor(log_probs.shape[1])
            if sum(tensor.nbytes for tensor in shard.values()) >= shard_bytes:
                flush()
        flush()
        write_text(folder / _INDEX, json.dumps({"key": key, **index}, ensure_ascii=False))
        return cls(folder, key, index)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.but(())

    def but(self, ids: Container[str]) -> Iterator[tuple[str, Tensor]]:
        """(id, log_probs (T, V)) of every utterance that is not among `ids`, in order."""
        from safetensors import SafetensorError, safe_open

        for name in self._shards:
            path = self._folder / name
            try:
                with safe_open(path, framework="pt") as file:
                    keys = set(file.keys())
                    for number in sorted({int(key.partition(".")[0]) for key in keys}):
                        if self.ids[number] in ids:
                            continue
                        log_probs = file.get_tensor(f"{number}.log_probs")
                        if f"{number}.tokens" in keys:
                            size = int(file.get_tensor(f"{number}.vocabulary"))
                            full = log_probs.new_full((len(log_probs), size), -math.inf)
                            log_probs = full.scatter_(1, file.get_tensor(f"{number}.tokens").long(), log_probs)
                        yield self.ids[number], log_probs
            except (SafetensorError, OSError) as error:
                raise DataError(f"{path}: cached emissions that cannot be read ({error}): delete the folder") from None


def _best(log_probs: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` best tokens of each frame, the blank among them: values and tokens, (T, keep)."""
    values, tokens = log_probs.topk(keep, dim=1)
    lacks = ~(tokens == 0).any(dim=1)
    values[lacks, -1], tokens[lacks, -1] = log_probs[lacks, 0], 0
    return values.contiguous(), tokens.to(torch.int32)
