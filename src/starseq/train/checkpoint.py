"""The state of a stopped run: written whole or not at all, read without running anything that is in it."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from starseq.data.errors import DataError
from starseq.data.files import write_bytes

VERSION = 1


def save_checkpoint(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Writes `state`: tensors, numbers, texts, and dicts and lists of them."""
    buffer = io.BytesIO()
    torch.save({"starseq": VERSION, **state}, buffer)
    write_bytes(path, buffer.getvalue())


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU. A damaged or foreign file is a `DataError`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.filename is not None:  # not there, or not to be read
            raise
        raise _damaged(path) from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, zipfile.BadZipFile, KeyError, ValueError):
        raise _damaged(path) from None
    if not isinstance(state, dict) or state.get("starseq") != VERSION:
        raise DataError(f"{path}: not a checkpoint of this version of starseq")
    return state


def _damaged(path: str | os.PathLike[str]) -> DataError:
    return DataError(f"{os.fspath(path)}: the checkpoint is damaged: begin again, in another folder")


@contextmanager
def writing(folder: Path, saved_step: int | None) -> Iterator[None]:
    """What goes wrong while a run writes into its folder (a full disk), as one sentence that says where the run stands."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        stands = "nothing is saved yet" if saved_step is None else f"the checkpoint of step {saved_step:,} is whole"
        raise DataError(f"{folder}: cannot be written to ({reason}); {stands}: make room, then --resume") from None
