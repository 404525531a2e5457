"""Random numbers that depend on what they are for, and on nothing else."""

from __future__ import annotations

import hashlib

import torch


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator that is a pure function of `key`, for example (seed, epoch, id).

    It does not depend on order, worker, rank or what was drawn before. Draw on the CPU and move what was drawn, so that
    a CUDA run sees the same numbers.

    >>> a, b = generator(0, 3, "utt-7"), generator(0, 3, "utt-7")
    >>> torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))
    True
    """
    text = "\0".join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
