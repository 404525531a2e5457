"""What is logged while training: one row a logged step, as CSV and for TensorBoard."""

from __future__ import annotations

import csv
import io
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from starseq.data.errors import DataError
from starseq.data.files import write_text


@dataclass(frozen=True)
class Metrics:
    """One logged step. What it says about losses and gradients is the mean since the last one; None: not known."""

    step: int
    epoch: int
    loss: float
    """of an utterance"""
    loss_per_label: float
    blank_share: float
    """of the frames of this step's last batch, those whose best token is the blank"""
    inserted_per_label: float | None
    """expected insertions of that batch over its labels; None for a criterion without star"""
    p: float | None
    """the star's weight, exp(lambda)"""
    grad_norm: float
    """before clipping"""
    lr: float
    frames_per_second: float
    skipped: int
    """steps so far that were skipped, for a loss or gradient was not finite"""
    seconds: float
    """of training so far, all resumed parts together"""
    seconds_left: float
    dev_error: float | None = None
    """greedy, in percent, where this step was evaluated"""


COLUMNS = [field.name for field in fields(Metrics)]


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, float | None]]:
    """The rows of a metrics.csv. A last line that a kill cut off is left out; no file, no rows; another file is a `DataError`."""
    path = Path(path)
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = csv.DictReader(io.StringIO(whole, newline=""))
    try:
        found = [{name: float(value) if value else None for name, value in row.items() if name} for row in rows]
    except ValueError:
        raise DataError(f"{path}: not the metrics of a run") from None
    if any("step" not in row for row in found[:1]):
        raise DataError(f"{path}: not the metrics of a run, for it has no column `step`")
    return found


class Log:
    """Writes rows to metrics.csv and to TensorBoard's folder. Rows after `step`, left by a killed run, go first."""

    def __init__(self, path: str | os.PathLike[str], *, step: int = 0, tensorboard: Path | None = None) -> None:
        kept = [row for row in read_metrics(path) if (row["step"] or 0) <= step] if step else []
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([[_cell(row.get(name)) for name in COLUMNS] for row in kept])
        write_text(path, text.getvalue())
        self._file = Appended(path)
        self._board = None if tensorboard is None else _Board(tensorboard, purge_step=step + 1)

    def write(self, metrics: Metrics) -> None:
        values = {name: getattr(metrics, name) for name in COLUMNS}
        self._file.write((",".join(_cell(value) for value in values.values()) + "\n").encode())
        if self._board is not None:
            known = {name: value for name, value in values.items() if value is not None and name != "step"}
            self._board.write(known, metrics.step)

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


class Appended:
    """A file that keeps nothing back: what cannot be written is said at once, and not once more when it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        self._file.close()


class _Board:
    """Scalars for TensorBoard. Not its own writer: that writes in a thread, where a full disk is a traceback."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"
        )
        self._file = Appended(folder / name)
        self._records = RecordWriter(self._file)
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # Steps from here on are void, where a killed run wrote them.
        self._add(Event(wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def _add(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        self._file.close()


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else f"{value:.6g}"
