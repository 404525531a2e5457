"""What is kept of the experiments: the file of finished cells, the work folder, and packs to carry it elsewhere."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import shutil
import statistics
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.steps import ROOT, Cell, Mistake, Record, Step, Table

RESULTS = ROOT / "docs" / "results" / "cells.jsonl"


# --- the file of results ----------------------------------------------------------------------------------------------


def read_lines(path: Path = RESULTS) -> list[Record]:
    """The finished cells. A last line that was cut off is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def append(path: Path, lines: Iterable[Record]) -> int:
    """Adds those lines that are not there yet (by table, cell and key), each whole or not at all; how many they were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        before = file.read()
        whole = before.rfind(b"\n") + 1
        if whole < len(before):  # a power cut left half a line
            file.truncate(whole)
        known = {identity(json.loads(line)) for line in before[:whole].splitlines()}
        fresh = [line for line in lines if identity(line) not in known]
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in fresh).encode())
        file.flush()
        os.fsync(file.fileno())
    return len(fresh)


def identity(line: Record) -> tuple[object, ...]:
    """What a line is about: with another key, it is history."""
    return tuple(line[name] for name in ("table", "condition", "method", "seed", "key"))


def current(table: Table, lines: Sequence[Record]) -> list[Record]:
    """The lines of a table as its file stands now: those of other settings are history."""
    keys = {}
    for line in lines:
        name = (line["condition"], line["method"], line["seed"])
        if line["table"] == table.name and name[0] in table.conditions and name[1] in table.all_methods():
            keys[name] = table.cell(*name).key
    # Another table may have the same cell, by the same key.
    mine = [line for line in lines if line["table"] == table.name]
    return [line for line in mine if line["key"] == keys.get((line["condition"], line["method"], line["seed"]))]


# --- what a step found ------------------------------------------------------------------------------------------------


def facts(step: Step, work: Path, output: str) -> Record:
    """What is worth keeping of a step that is done, read from its files and from what it printed."""
    if step.stage == "train":
        return _train_facts(work / str(step.run))
    if step.stage in ("greedy", "beam"):
        found = json.loads((work / str(step.run) / "results.json").read_text())["evaluate"]
        return {
            "errors": {
                split: {how: {rate: scores[rate] for rate in ("wer", "cer")} for how, scores in found[split].items()}
                for split in ("dev", "test")
            }
        }
    if step.stage == "drop":
        return {"labels": _histogram(output)}
    if step.stage == "lm" and step.makes[0].endswith(".arpa"):
        return {"lm_words": _write_words(*(work / path for path in step.makes))}
    if step.stage == "tune":
        beam = json.loads((work / step.makes[0]).read_text())["beam" if "--lm" in step.commands[0] else "alone"]
        return {"weights": {name: beam[name] for name in ("alpha", "beta")}}
    if step.stage == "pseudo":
        found = json.loads((work / step.makes[0]).with_suffix(".summary.json").read_text())
        errors = {name: {rate: scores[rate] for rate in ("wer", "cer")} for name, scores in found["errors"].items()}
        return {"pseudo": {"rows": found["rows"], "labels": found["labels"], "errors": errors}}
    return {}


def _train_facts(run: Path) -> Record:
    results = json.loads((run / "results.json").read_text())["train"]
    with open(run / "metrics.csv", newline="") as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    last = rows[-1] if rows else {}
    # The run knows how long what is left will take: without evaluations, and in the first passes with decoding of the data.
    speeds = [(results["steps"] - row["step"]) / row["seconds_left"] for row in rows if row.get("seconds_left")]
    inserted = [row["inserted_per_label"] for row in rows[-10:] if "inserted_per_label" in row]
    return {
        "train": {
            "steps": results["steps"],
            "seconds": results["seconds"],
            "best_step": results["best_dev"]["step"],
            "parameters": _parameters(run / "model.safetensors"),
            "rows": results["rows"],
            "labels_kept": results["labels_kept"],
            "steps_per_second": round(statistics.median(speeds[len(speeds) // 3 :]), 3) if speeds else None,
            "p": last.get("p"),
            "inserted_per_label": round(statistics.fmean(inserted), 4) if inserted else None,
        }
    }


def _parameters(path: Path) -> int:
    """Counted in the header of a safetensors file: eight bytes of length, then JSON."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for extent in tensor["shape"]:
                size *= extent
            total += size
    return total


def _write_words(arpa: Path, target: Path) -> int:
    """The words of an ARPA file, one a line, for a beam search that is held to them; how many there are."""
    words, inside = [], False
    with open(arpa, encoding="utf-8") as file:
        for line in file:
            if line.startswith("\\"):
                if inside:
                    break
                inside = line.strip() == "\\1-grams:"
            elif inside and line.strip():
                words.append(line.split("\t")[1].strip())
    words = [word for word in words if word not in ("<s>", "</s>", "<unk>")]
    _write(target, "".join(f"{word}\n" for word in words))
    return len(words)


def _histogram(output: str) -> Record:
    """What `starseq drop` prints."""
    kept = re.search(r"([\d,]+) of ([\d,]+) labels kept", output)
    pruned = re.search(r"([\d,]+) samples, ([\d,]+) pruned", output)
    bins = re.findall(r"^ *\d+-\d+% +█* ?(\d+)$", output, re.MULTILINE)
    if kept is None or pruned is None or not bins:
        raise Mistake("`starseq drop` printed something else than it used to: its histogram is not found")
    number = [int(text.replace(",", "")) for text in (*kept.groups(), *pruned.groups())]
    return {
        "kept": number[0],
        "labels": number[1],
        "rows": number[2],
        "pruned": number[3],
        "histogram": list(map(int, bins)),
    }


# --- the work folder --------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """Folders data, runs, lm, steps and logs. It may be deleted at any time: what is not in cells.jsonl is then made again."""

    folder: Path

    def record(self, step: Step) -> Record | None:
        path = self.folder / "steps" / f"{step.key}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def save(self, step: Step, record: Record) -> None:
        _write(self.folder / "steps" / f"{step.key}.json", json.dumps(record, ensure_ascii=False, indent=1) + "\n")

    def records(self) -> list[Record]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "steps").glob("*.json"))]

    def todo(self, cell: Cell) -> list[Step]:
        """Its steps that are not done, and those whose files are gone that these need."""
        without = [step for step in cell.steps if self.record(step) is None]
        if not without:
            return []
        wanted: list[Step] = []
        for step in reversed(cell.steps):
            gone = not all((self.folder / path).exists() for path in step.makes)
            if step in without or (gone and any(step.feeds(later) for later in wanted)):
                wanted.insert(0, step)
        return wanted

    def needs(self, cell: Cell) -> list[str]:
        """The run folders of finished trainings that the rest of the cell goes on from."""
        todo = self.todo(cell)
        before = [step for step in cell.steps if step not in todo and step.stage == "train"]
        return [str(step.run) for step in before if any(step.feeds(later) for later in todo)]

    def part_done(self, step: Step, steps: int) -> float:
        """The share of a training that its last checkpoint holds, at most."""
        run = self.folder / str(step.run)
        if step.stage != "train" or not (run / "last.ckpt").exists():
            return 0.0
        rows = (run / "metrics.csv").read_text().splitlines() if (run / "metrics.csv").exists() else []
        reached = [int(row.partition(",")[0]) for row in rows[1:] if row.partition(",")[0].isdigit()]
        return min(1.0, max(reached, default=0) / steps)

    def provide(self, step: Step, corpus: str, data: Path) -> None:
        """The cell's corpus, and those that a step names, in the work folder: the manifests that are made lie beside them
        there, so that every path in a command is the same on all machines."""
        for name in {corpus, *re.findall(r"(?:^|=|\s)data/([\w.-]+)", step.text)}:
            if not (data / name).is_dir():
                raise Mistake(f"{data / name}: no such corpus; --data is the folder of corpora")
            for source in sorted(path for path in (data / name).iterdir() if path.is_file()):
                target = self.folder / "data" / name / source.name
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    try:
                        os.link(source, target)
                    except OSError:  # another file system
                        partial = target.with_name(f".{target.name}.part")
                        shutil.copyfile(source, partial)
                        os.replace(partial, target)

    def settle(self) -> None:
        """Runs that were made elsewhere learn where their data is here."""
        for path in sorted(self.folder.glob("runs/*/recipe.yaml")):
            text = path.read_text(encoding="utf-8")
            here = re.sub(
                r"(?m)^  root: (?!null$).*?([\w.-]+)['\"]?$",
                lambda found: f"  root: {self._root(found[1])}",
                text,
                count=1,
            )
            if here != text:
                _write(path, here)

    def _root(self, corpus: str) -> str:
        return json.dumps(str(self.folder.resolve() / "data" / corpus))

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Mistake(f"{self.folder}: another runner is at work here; give another --work") from None
            yield


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


# --- packs ------------------------------------------------------------------------------------------------------------

SMALL = ("recipe.yaml", "tokens.txt", "results.json", "metrics.csv", "tuned.json")


def pack(
    work: Path, results: Path, target: Path, *, wanted: Sequence[str] = (), mib: float = 15, parts: int = 4
) -> tuple[list[Path], list[str]]:
    """What later cells need, as one tar file in pieces of `mib` MiB: `target`, `target`.1, ..., at most `parts` of them.

    First what is small (results, records of steps, metrics), then manifests, neural language models, the models of the run
    folders `wanted`, n-gram models, which are soon made again, the other models, and checkpoints of runs that are not over.
    Returns the pieces, and what found no room."""
    done = {record["run"] for record in Work(work).records() if record["stage"] == "train"}
    models = {str(path.parent.relative_to(work)): path for path in work.glob("runs/*/model.safetensors")}
    needed = [models.pop(run) for run in wanted if run in models]
    groups: list[list[Path]] = [
        sorted(work.glob("steps/*.json")),
        [path for path in sorted(work.glob("runs/*/*")) if path.name in SMALL],
        sorted((*work.glob("data/*/partial-*"), *work.glob("data/*/pseudo-*"))),
        sorted(work.glob("lm/*/*")),
        needed,
        sorted(work.glob("lm/*")),
        sorted(models.values(), key=lambda path: path.stat().st_size),
        [path for path in sorted(work.glob("runs/*/last.ckpt")) if str(path.parent.relative_to(work)) not in done],
    ]
    files = [(str(path.relative_to(work)), path) for group in groups for path in group if path.is_file()]
    if results.exists():
        files.insert(0, ("cells.jsonl", results))
    piece = int(mib * 2**20)
    room, left_out = parts * piece - tarfile.RECORDSIZE, list[str]()
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = target.with_name(f".{target.name}.tmp")
    with tarfile.open(whole, "w") as tar:
        for name, path in files:
            size = 2048 + -(-path.stat().st_size // 512) * 512  # with its headers
            if size <= room:
                room -= size
                tar.add(path, name)
            else:
                left_out.append(f"{name}, {size / 2**20:.1f} MiB")
    written = [path for path in _pieces(target) if path != target]
    for path in written:  # of a pack that was here before
        path.unlink()
    written = []
    with open(whole, "rb") as file:
        while content := file.read(piece):
            written.append(target if not written else target.with_name(f"{target.name}.{len(written)}"))
            written[-1].write_bytes(content)
    whole.unlink()
    return written, left_out


def _pieces(target: Path) -> list[Path]:
    """The files of a pack that are there."""
    found = [target]
    while (path := target.with_name(f"{target.name}.{len(found)}")).exists():
        found.append(path)
    return found


def unpack(work: Path, results: Path, packs: Sequence[Path]) -> int:
    """Adds what is newer than here to the work folder, and lines to the results; how many lines those were. Of each pack the
    first piece is named."""
    added = 0
    work.mkdir(parents=True, exist_ok=True)
    for target in packs:
        with tempfile.TemporaryFile(dir=work) as whole:
            for path in _pieces(target):
                with open(path, "rb") as file:
                    shutil.copyfileobj(file, whole)
            whole.seek(0)
            try:
                added += _extract(whole, work, results)
            except tarfile.TarError as error:
                raise Mistake(f"{target}: not a pack, or not all of it ({error})") from None
    Work(work).settle()
    return added


def _extract(pack: IO[bytes], work: Path, results: Path) -> int:
    added = 0
    with tarfile.open(fileobj=pack) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member) if member.isfile() else None
            if file is None:
                continue
            if member.name == "cells.jsonl":
                added += append(results, [json.loads(line) for line in file.read().decode().splitlines()])
                continue
            here = work / member.name
            if not here.exists() or here.stat().st_mtime < member.mtime:
                tar.extract(member, work, filter="data")
    return added
