"""Measurements of `starseq bench`: the file that keeps them, their targets, and how they are shown."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from starseq.data.errors import DataError
from starseq.data.files import check_target, write_text

BASELINE, REPLAYED = "torch ctc", "CUDA graph"
"""what the others are compared with; what is replayed has the latter behind a comma"""
ONE_GRADIENT = "one gradient"
"""what memory is compared with: as many numbers as logits, of their type"""
GROWING = ("labels", "vocabulary")
"""the cases that show how cost grows"""
DECODE = "decode: "
"""begins the cases of `bench_decode`"""
TRAIN = "train-"
"""begins the cases of `bench_train`"""


@dataclass(frozen=True)
class Measurement:
    """One row of results.csv. `ratio` is over the baseline's median of the same run."""

    case: str
    shape: str
    dtype: str
    provider: str
    metric: str
    unit: str
    p20: float
    p50: float
    p80: float
    runs: int
    device: str
    torch: str
    starseq: str


def check(rows: Sequence[Measurement], targets: Path) -> list[str]:
    """One sentence for each ratio above its target; targets.csv has the columns device, case, provider, over, ratio.

    Steps of training cost about the same whatever the loss: one of them is above its target if it is so by more than twice its
    standard error, else chance would decide. See `undecided`.
    """
    failures = []
    for case, provider, over, target, ratio in _with_targets(rows, targets):
        if ratio is None:
            failures.append(f"{case}, {provider}: not measured")
        elif ratio.p50 - _doubt(ratio) > target:
            than = "" if over == BASELINE else f" over {over}"
            failures.append(f"{case}, {provider}: ratio {_with_error(ratio)}{than} is above {target:g}")
    return failures


def undecided(rows: Sequence[Measurement], targets: Path) -> list[str]:
    """One sentence for each ratio that is above its target by no more than chance explains."""
    return [
        f"{case}, {provider}: ratio {_with_error(ratio)} may be above {target:g} or not: more --seconds would tell"
        for case, provider, _, target, ratio in _with_targets(rows, targets)
        if ratio is not None and ratio.p50 - _doubt(ratio) <= target < ratio.p50
    ]


def _with_targets(rows: Sequence[Measurement], targets: Path) -> list[tuple[str, str, str, float, Measurement | None]]:
    """Case, provider, over, target and the ratio, for every target of a case that was measured. Steps that were not captured, and
    peers that are not there, are no failure."""
    kind = "cuda" if any("NVIDIA" in row.device for row in rows) else "cpu"
    cases = {row.case for row in rows}
    result = []
    for device, case, provider, over, target in read_targets(targets):
        ratio = _ratio(rows, case, provider, over)
        if device == kind and case in cases and not (ratio is None and (REPLAYED in provider or over != BASELINE)):
            result.append((case, provider, over, target, ratio))
    return result


def _ratio(rows: Sequence[Measurement], case: str, provider: str, over: str) -> Measurement | None:
    """What a provider takes at a case over what another one does, or its memory over that of one gradient."""
    found = {(row.provider, row.metric): row for row in rows if row.case == case}
    if over == BASELINE:
        return found.get((provider, "ratio"))
    one = found.get((provider, "memory" if over == ONE_GRADIENT else "time"))
    if over == ONE_GRADIENT and one is not None:
        B, T, V, _ = map(int, one.shape.split(", "))
        base = B * T * V * {"float64": 8, "float32": 4}.get(one.dtype, 2) / 2**20
    elif one is not None and (over, "time") in found:
        base = found[over, "time"].p50
    else:
        return None
    return replace(one, metric="ratio", p20=one.p20 / base, p50=one.p50 / base, p80=one.p80 / base)


def read_targets(path: Path) -> list[tuple[str, str, str, str, float]]:
    """Device, case, provider, over and ratio, from the columns of that name. A `DataError` says what is not there."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            columns = next(reader, [])
            places = [columns.index(name) for name in ("device", "case", "provider", "over", "ratio")]
            rows = [[row[place] for place in places] for row in reader]
        return [(device, case, provider, over, float(ratio)) for device, case, provider, over, ratio in rows]
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; starseq's own targets are benchmarks/targets.csv of its checkout"
        ) from None
    except (IndexError, ValueError, csv.Error):
        raise DataError(
            f"{path}: not targets: a CSV file with the columns device, case, provider, over, ratio"
        ) from None


def _doubt(ratio: Measurement) -> float:
    return 2 * _standard_error(ratio) if _is_step(ratio) else 0.0


def save(rows: Sequence[Measurement], path: Path) -> None:
    """Adds rows to a CSV file; measurements of the same case, provider, metric and device replace the older ones."""

    def key(row: Measurement) -> tuple[str, ...]:
        return (row.case, row.shape, row.dtype, row.provider, row.metric, row.device)

    fresh = {key(row) for row in rows}
    kept = [row for row in load(path) if key(row) not in fresh]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Measurement)], lineterminator="\n")
    writer.writeheader()
    for row in [*kept, *rows]:
        writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()})
    write_text(path, text.getvalue())


def load(path: Path) -> list[Measurement]:
    """The measurements of a file; none where there is no file, or an empty one. Any other file is a `DataError`."""
    check_target(path)
    if not path.exists() or not path.stat().st_size:
        return []
    numbers = {"p20": float, "p50": float, "p80": float, "runs": int}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            if reader.fieldnames != [field.name for field in fields(Measurement)]:
                raise ValueError(reader.fieldnames)
            return [Measurement(**{k: numbers.get(k, str)(v) for k, v in row.items()}) for row in reader]
    except (TypeError, ValueError, csv.Error):
        raise DataError(f"{path}: not a file of `starseq bench`, so nothing is added to it") from None


def table(rows: Sequence[Measurement]) -> str:
    """Rows as Markdown: a line for each case and provider, the machine above."""
    parts = []
    for machine in dict.fromkeys((row.device, row.torch, row.starseq) for row in rows):
        here = [row for row in rows if (row.device, row.torch, row.starseq) == machine]
        losses = [row for row in here if _is_loss(row)]
        steps = [row for row in here if _is_step(row)]
        others = [row for row in here if not _is_loss(row) and not _is_step(row)]
        lines = ["{}, torch {}, starseq {}:".format(*machine), ""]
        if losses:
            lines += _losses(losses)
        if steps:
            lines += ["", *_steps(steps)] if losses else _steps(steps)
        if others:
            lines += ["| what | of | measured |", "|---|---|---|"]
            lines += [f"| {row.case.removeprefix(DECODE)} | {row.shape} | {row.p50:.4g} {row.unit} |" for row in others]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "(not measured yet)"


def _is_loss(row: Measurement) -> bool:
    return row.provider.split(",")[0].endswith(("ctc", "stc", "STCLoss()")) and not _is_step(row)


def _is_step(row: Measurement) -> bool:
    """A row of `bench_train`."""
    return row.case.startswith(TRAIN)


def _standard_error(row: Measurement) -> float:
    """Of the median, as for normal noise: its deviation is (p80 - p20) / 1.683, and a median errs by 1.253 of a mean."""
    return 1.253 * (row.p80 - row.p20) / 1.683 / math.sqrt(row.runs)


def _with_error(ratio: Measurement) -> str:
    """Of a step, with its error, both to the second digit of that, but no further than files keep; else to four digits."""
    error = _standard_error(ratio)
    if not _is_step(ratio) or error == 0:
        return f"{ratio.p50:.4g}"
    decimals = min(4, max(2, 1 - math.floor(math.log10(error))))
    return f"{ratio.p50:.{decimals}f} ± {error:.{decimals}f}"


def _steps(rows: Sequence[Measurement]) -> list[str]:
    lines = [
        "| model | B, T, V, U | type | criterion | ms a step, median (20th to 80th percentile) "
        "| over the faster CTC, median ± standard error | utterances a second | peak memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {(row.case, row.shape, row.dtype, row.provider, row.metric): row for row in rows}
    for key in dict.fromkeys(key[:4] for key in found):
        spent, ratio, speed, memory = (found[(*key, metric)] for metric in ("time", "ratio", "speed", "memory"))
        times = f"{spent.p50:.4g} ({spent.p20:.4g} to {spent.p80:.4g})"
        over = _with_error(ratio) if ratio.p80 > ratio.p20 else f"{ratio.p50:.3f}"
        lines.append(f"| {' | '.join(key)} | {times} | {over} | {speed.p50:.4g} | {_mebibytes(memory)} |")
    return lines


def _losses(rows: Sequence[Measurement]) -> list[str]:
    lines = [
        "| case | B, T, V, U | type | what | ms, median (20th to 80th percentile) | over torch | peak memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    found = {(row.case, row.shape, row.dtype, row.provider, row.metric): row for row in rows}
    for key in dict.fromkeys(key[:4] for key in found):
        spent, ratio, memory = (found[(*key, metric)] for metric in ("time", "ratio", "memory"))
        times = f"{spent.p50:.3g} ({spent.p20:.3g} to {spent.p80:.3g})"
        lines.append(f"| {' | '.join(key)} | {times} | {ratio.p50:.2f} | {_mebibytes(memory)} |")
    return lines


def _mebibytes(memory: Measurement) -> str:
    """Empty where it is not known: what is replayed takes no memory of its own when it runs."""
    if math.isnan(memory.p50):
        return ""
    return f"{memory.p50:.4g}" if memory.p50 < 10_000 else f"{memory.p50:,.0f}"
