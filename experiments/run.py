"""Runs the cells of an experiment side by side, and makes its table.

    python experiments/run.py handwriting --jobs 6 --device cuda --minutes 25 --machine "one H200, 16 cores"
    python experiments/run.py handwriting --cell "0.5/stc/*" --dry-run
    python experiments/run.py handwriting --add back.jsonl           # lines that another machine wrote
    python experiments/run.py handwriting --table

A table is a file NAME.yaml beside this one. Its keys:

    title, about   text for the page
    metric         the error rate that is shown: cer or wer
    base           ROW/COLUMN, of whose error the others are shown as a multiple
    seeds          one run each; 0 where a table has none
    commands       `starseq` commands of a cell, in order
    rows           by name, words that stand for {row}
    columns        by name: `title`; `set`, words that stand for {set}; `from`, a column whose run this one reads, as {from};
                   its own `commands`, `rows` and `seeds`, where they differ; `read`, which reading counts: greedy, beam or
                   rescored (by default the last of these that there is)
    front          the row that README.md shows, if it shows one ...
    summary        ... and its columns, by heading

In commands {run} is the cell's run folder, {data} the folder of corpora, {here} this folder. On one GPU, several trainings run
at once rather than in turns after `nvidia-cuda-mps-control -d`.

A cell that is done is a line of NAME.jsonl: result, commands, seed, commit, version, machine. It is not run again, unless its
commands or its recipe change. A training that was stopped goes on from its last checkpoint. When --minutes are over, what runs
is ended, and a line marked `partial` says how far it came. Needs PyYAML and, for the commands, starseq; no network.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
END_SECONDS = 20.0  # between asking a command to end and killing it

Line = dict[str, Any]


class Mistake(Exception):
    """What the user can mend, as one sentence."""


# --- tables and cells -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One row, column and seed of a table."""

    table: str
    row: str
    column: str
    seed: int
    commands: tuple[tuple[str, ...], ...]  # with {run}, {from}, {data}, {here} and {device} still in them
    before: Cell | None = None  # whose run this one reads
    read: str | None = None  # the reading that counts

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}/{self.seed}"

    @property
    def key(self) -> str:
        """Of the commands, and of the recipes beside this file that they name."""
        words = [word for command in self.commands for word in command]
        recipes = [Path(word.replace("{here}", str(HERE))) for word in words if word.endswith(".yaml")]
        texts = [recipe.read_text(encoding="utf-8") for recipe in recipes]
        return blake2b(
            repr((self.commands, texts, self.before and self.before.key)).encode(), digest_size=6
        ).hexdigest()

    @property
    def run(self) -> str:
        """Its run folder, under the work folder."""
        return f"{self.table}/{self.name}".replace(" ", "-")

    @property
    def reads(self) -> str:
        """The run folder that its last command, `evaluate FOLDER`, names: nobody else may write there meanwhile."""
        places = {"run": self.run, **({} if self.before is None else {"from": self.before.run})}
        return _filled(self.commands[-1][1], places)

    def words(self, work: str, data: str, device: str, here: str) -> list[list[str]]:
        places = {"run": f"{work}/{self.run}", "data": data, "device": device, "here": here}
        if self.before is not None:
            places["from"] = f"{work}/{self.before.run}"
        return [[_filled(word, places) for word in command] for command in self.commands]


def _filled(word: str, places: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), word)


@dataclass(frozen=True)
class Table:
    """A YAML file; see above."""

    name: str
    title: str
    metric: str
    rows: Mapping[str, Any]
    columns: Mapping[str, Any]
    commands: Sequence[str] = ()
    about: str = ""
    base: str = ""
    seeds: Sequence[int] = (0,)
    front: str = ""
    summary: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, name: str, folder: Path = HERE) -> Table:
        path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
        if not path.is_file():
            known = ", ".join(sorted(other.stem for other in folder.glob("*.yaml")))
            raise Mistake(f"{name}: no such table; there are {known}")
        try:
            keys = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise Mistake(f"{path.name}: not YAML: {' '.join(str(error).split())}") from None
        lacks = [key for key in ("title", "metric", "rows", "columns") if not (isinstance(keys, dict) and key in keys)]
        if lacks:
            raise Mistake(f"{path.name}: {lacks[0]!r} is missing")
        _only(path.name, keys, [f.name for f in fields(cls) if f.name != "name"])
        for column, what in keys["columns"].items():
            _only(f"{path.name}: {column}", what or {}, ["title", "set", "from", "commands", "rows", "seeds", "read"])
        return cls(path.stem, **{**keys, "rows": {str(row): words for row, words in keys["rows"].items()}})

    def cells(self) -> list[Cell]:
        """All of them: seed by seed, row by row."""
        seeds = dict.fromkeys(seed for column in self.columns for seed in self._of(column, "seeds", self.seeds))
        return [
            self.cell(row, column, seed)
            for seed in seeds
            for row in self.rows
            for column in self.columns
            if seed in self._of(column, "seeds", self.seeds) and row in map(str, self._of(column, "rows", self.rows))
        ]

    def cell(self, row: str, column: str, seed: int) -> Cell:
        what = {"row": _words(self.rows[row]), "set": _words(self._of(column, "set", None))}
        commands = [
            [part for word in shlex.split(command) for part in what.get(word.strip("{}"), [word])]
            for command in self._of(column, "commands", self.commands)
        ]
        if not commands:
            raise Mistake(f"{self.name}: {column} has no commands")
        source = self._of(column, "from", None)
        before = None if source is None else self.cell(row, source, seed)
        filled = tuple(tuple(word.replace("{seed}", str(seed)) for word in command) for command in commands)
        return Cell(self.name, row, column, seed, filled, before, self._of(column, "read", None))

    def _of(self, column: str, key: str, default: Any) -> Any:
        return (self.columns[column] or {}).get(key, default)


def _only(where: str, keys: Mapping[str, Any], known: Sequence[str]) -> None:
    wrong = [key for key in keys if key not in known]
    if wrong:
        raise Mistake(f"{where}: {wrong[0]!r} is none of {', '.join(known)}")


def _words(value: Any) -> list[str]:
    return [] if value is None else shlex.split(value) if isinstance(value, str) else [str(word) for word in value]


# --- results ----------------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[Line]:
    """Lines of a results file. The last may be cut short, by a machine that went away."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def append(path: Path, lines: Iterable[Line]) -> int:
    """Adds those that are not there; how many."""
    there = [_identity(line) for line in read_lines(path)]
    new = [line for line in lines if _identity(line) not in there]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        file.seek(0)
        text = file.read()
        file.write(b"\n" if text and not text.endswith(b"\n") else b"")  # after a line that was cut short
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in new).encode())
    return len(new)


def _identity(line: Line) -> tuple[Any, ...]:
    return tuple(str(line.get(name)) for name in ("table", "row", "column", "seed", "key", "partial"))


def result(run: Path, metric: str, read: str | None = None) -> Line:
    """What a run folder says of a cell that is done: error rates of each split by one reading, and its training."""
    found = json.loads((run / "results.json").read_text(encoding="utf-8"))
    errors = {}
    for split, ways in found.get("evaluate", {}).items():
        how = read or list(ways)[-1]  # greedy, beam, rescored: in this order
        errors[split] = {"read": how, **{rate: ways[how][rate] for rate in ("cer", "wer")}}
    if not any(metric in rates for rates in errors.values()):
        raise Mistake(f"{run}: its results.json has no {metric}; the last command is to be `evaluate`")
    train = {name: found.get("train", {}).get(name) for name in ("steps", "seconds", "rows", "labels", "labels_kept")}
    return {"errors": errors, "train": {**train, "p": _last(run, "p")}}


def so_far(run: Path) -> Line:
    """What a training that was ended had reached."""
    return {name: _last(run, name) for name in ("step", "dev_error", "p")}


def _last(run: Path, column: str) -> float | None:
    try:
        with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
            values = [row[column] for row in csv.DictReader(file) if row.get(column)]
    except OSError:
        return None
    return float(values[-1]) if values else None


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A cell that is running."""

    cell: Cell
    commands: list[list[str]]
    at: int  # which of them runs
    started: float
    process: subprocess.Popen[bytes]


@dataclass
class Runner:
    """Runs cells, `jobs` side by side, and appends a line for each to `results`."""

    results: Path
    work: Path
    data: Path
    metric: str
    facts: Line  # machine, commit, version and device: they stand in each line
    jobs: int = 1
    device: str = "cpu"
    minutes: float = math.inf
    starseq: Sequence[str] = (sys.executable, "-m", "starseq")

    def run(self, cells: Sequence[Cell]) -> bool:
        """Whether all of them are done. What fails is said, and the others go on."""
        ends = time.monotonic() + 60 * self.minutes
        todo, running, failed = self.missing(cells), list[Job](), set[str]()
        try:
            while (todo or running) and time.monotonic() < ends:
                for cell in list(todo):
                    if len(running) < self.jobs and self._may_start(cell, todo, running):
                        todo.remove(cell)
                        running.append(self._start(cell))
                for job in list(running):
                    code = job.process.poll()
                    if code == 0 and job.at + 1 < len(job.commands):
                        job.at += 1
                        job.process = self._launch(job.cell, job.commands[job.at])
                    elif code is not None:
                        running.remove(job)
                        if code != 0 or not self._finish(job):
                            failed.add(job.cell.run)
                            say(job.cell, f"failed, exit code {code}: {self._said(job)} (see {self._log(job.cell)})")
                lost = [cell for cell in todo if cell.before is not None and cell.before.run in failed]
                failed.update(cell.run for cell in lost)
                todo = [cell for cell in todo if cell not in lost]
                time.sleep(0.05)
        finally:
            self._end(running)
        for cell in todo:
            say(cell, "not started, for the time is over")
        return not (todo or running or failed)

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        """Those without a line, and before them the cells whose runs they read."""
        whole = [line for line in read_lines(self.results) if not line.get("partial")]
        done = {(line["row"], line["column"], line["seed"], line["key"]) for line in whole}
        wanted: dict[str, Cell] = {}

        def want(cell: Cell, for_its_run: bool = False) -> None:
            there = (cell.row, cell.column, cell.seed, cell.key) in done
            if there and not (for_its_run and not (self.work / cell.reads / "model.safetensors").exists()):
                return
            if cell.before is not None:
                want(cell.before, for_its_run=True)
            wanted.setdefault(cell.run, cell)

        for cell in cells:
            want(cell)
        return list(wanted.values())

    def _may_start(self, cell: Cell, todo: Sequence[Cell], running: Sequence[Job]) -> bool:
        waits = {other.run for other in todo} | {job.cell.run for job in running}
        if cell.before is not None and cell.before.run in waits:
            return False
        return all(cell.reads != job.cell.reads for job in running)

    def _start(self, cell: Cell) -> Job:
        commands = cell.words(str(self.work.resolve()), str(self.data.resolve()), self.device, str(HERE))
        run = self.work / cell.run
        say(cell, "goes on" if (run / "last.ckpt").exists() else "begins")
        return Job(cell, commands, 0, time.monotonic(), self._launch(cell, commands[0]))

    def _launch(self, cell: Cell, command: Sequence[str]) -> subprocess.Popen[bytes]:
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **os.environ, "PYTHONPATH": path}
        self._log(cell).parent.mkdir(parents=True, exist_ok=True)
        with open(self._log(cell), "ab") as log:
            log.write(f"$ starseq {shlex.join(command)}\n".encode())
            log.flush()
            return subprocess.Popen(
                [*self.starseq, *command], cwd=self.work, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _finish(self, job: Job) -> bool:
        try:
            found = result(self.work / job.cell.reads, self.metric, job.cell.read)
        except (OSError, KeyError, ValueError, Mistake) as error:
            say(job.cell, f"ended, but not with a result: {error}")
            return False
        self._write(job, found)
        errors = ", ".join(f"{split} {rates[self.metric]:.2f} %" for split, rates in found["errors"].items())
        say(job.cell, f"done: {self.metric.upper()} {errors}")
        return True

    def _write(self, job: Job, found: Line) -> None:
        cell = job.cell
        commands = [
            f"starseq {shlex.join(words)}" for words in cell.words("runs", "../shared/data", self.device, "experiments")
        ]
        append(self.results, [{
            "table": cell.table, "row": cell.row, "column": cell.column, "seed": cell.seed, "key": cell.key, **found,
            "seconds": round(time.monotonic() - job.started, 1), "jobs": self.jobs, **self.facts,
            "ended": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "commands": commands,
        }])  # fmt: skip

    def _end(self, running: Sequence[Job]) -> None:
        """Ends what runs, each a process group of its own, and writes down how far it came."""
        for job in running:
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGTERM)
        ends = time.monotonic() + END_SECONDS
        for job in running:
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(timeout=max(0.1, ends - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)  # what did not end, and what it left behind
            job.process.wait()
            reached = so_far(self.work / job.cell.run)
            if reached["step"] is not None:
                self._write(job, {"partial": reached})
            at = "" if reached["step"] is None else f" at step {reached['step']:,.0f}"
            say(job.cell, f"ended{at}; the same command goes on from what is saved")

    def _log(self, cell: Cell) -> Path:
        return self.work / "logs" / f"{cell.run.replace('/', '-')}.log"

    def _said(self, job: Job) -> str:
        lines = self._log(job.cell).read_text(encoding="utf-8", errors="replace").split("\n$ ")[-1].strip().splitlines()
        return lines[-1] if lines else "nothing"


def say(cell: Cell, sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {cell.table} {cell.name}: {sentence}", flush=True)


# --- pages ------------------------------------------------------------------------------------------------------------


def shown(table: Table, lines: Sequence[Line], row: str, column: str, base: float | None = None) -> str:
    """A cell of the page: mean and standard deviation over seeds, on test, and the multiple of the base. What was ended
    before its time is in italics, with dev error; where nothing was run it is empty."""
    here = [line for line in lines if (line["row"], line["column"]) == (row, column)]
    newest = {line["seed"]: line for line in here if not line.get("partial")}
    if newest:
        rates = [line["errors"]["test"][table.metric] for line in newest.values()]
        text = _number(statistics.fmean(rates)) + (f" ± {_number(statistics.stdev(rates))}" if len(rates) > 1 else "")
        return text + (f", {statistics.fmean(rates) / base:.2f} x" if base else "")
    if here:
        reached = here[-1]["partial"]
        error = "" if reached["dev_error"] is None else f"dev {_number(reached['dev_error'])} "
        return f"*{error}at step {reached['step']:,.0f}*"
    return ""


def _number(rate: float) -> str:
    return f"{rate:.2f}" if rate < 10 else f"{rate:.1f}"


def rows_run(table: Table, lines: Sequence[Line]) -> list[str]:
    """The rows of which something was run."""
    return [row for row in table.rows if any(line["row"] == row for line in lines)]


def page(table: Table, lines: Sequence[Line]) -> str:
    """A table in Markdown, with what it says of itself."""
    row, _, column = table.base.partition("/")
    of_base = [line for line in lines if (line["row"], line["column"]) == (row, column) and "errors" in line]
    newest = {line["seed"]: line["errors"]["test"][table.metric] for line in of_base}
    base = statistics.fmean(newest.values()) if newest else None
    text = [f"### {table.title}", "", *([table.about.strip(), ""] if table.about else [])]
    columns = {name: what for name, what in table.columns.items() if any(line["column"] == name for line in lines)}
    titles = [(what or {}).get("title", name) for name, what in columns.items()]
    text += [f"| test {table.metric.upper()} % | {' | '.join(titles)} |", "|---" * (1 + len(titles)) + "|"]
    for row in rows_run(table, lines):
        cells = [shown(table, lines, row, column, base) for column in columns]
        text.append(f"| {row} | {' | '.join(cells)} |")
    where = sorted({f"{line['machine']}, commit {line['commit']}" for line in lines})
    source = f"[{table.name}.jsonl](../experiments/{table.name}.jsonl)"
    text += ["", f"The command of every cell is in {source}. Run on {'; '.join(where)}."]
    return "\n".join(text)


# --- the command ------------------------------------------------------------------------------------------------------


def _facts(args: argparse.Namespace) -> Line:
    def said(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    changed = "+" if said("git", "status", "--porcelain", "src") else ""
    version = re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    gpu = said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines() if args.device != "cpu" else []
    return {
        "machine": args.machine or ", ".join([*gpu[:1], f"{os.cpu_count()} CPU cores"]),
        "commit": args.commit or (said("git", "rev-parse", "--short", "HEAD") + changed) or "unknown",
        "version": version[1] if version else "unknown", "device": args.device,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs the cells of an experiment side by side, and makes its table.")
    add = parser.add_argument
    add("table", help="a table beside this file, or a YAML file")
    add(
        "--cell", action="append", default=[], metavar="GLOB", help="only these, such as '0.5/stc*/0' (ROW/COLUMN/SEED)"
    )
    add("--jobs", type=int, default=1, help="cells side by side")
    add("--minutes", type=float, default=math.inf, help="end what runs after so many, and keep what is done")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--data", type=Path, help="folder of corpora (default: ../shared/data, or shared/data)")
    add("--work", type=Path, default=Path("runs/experiments"), help="folder of runs and logs (default: %(default)s)")
    add("--results", type=Path, help="file of results (default: TABLE.jsonl beside the table)")
    add("--machine", help="its name for the page, such as 'one H200'")
    add("--commit", help="of starseq, where git cannot tell")
    add("--dry-run", action="store_true", help="print the commands of the missing cells")
    add("--table", dest="page", action="store_true", help="print the table")
    add("--add", type=Path, nargs="+", default=[], metavar="JSONL", help="add the lines of other machines")
    args = parser.parse_args(argv)
    try:
        table = Table.load(args.table)
        results = args.results or HERE / f"{table.name}.jsonl"
        for path in args.add:
            added = append(results, [line for line in read_lines(path) if line["table"] == table.name])
            print(f"{results}: {added} new lines")
        cells = [c for c in table.cells() if not args.cell or any(fnmatchcase(c.name, glob) for glob in args.cell)]
        beside, below = ROOT.parent / "shared" / "data", ROOT / "shared" / "data"
        data = args.data or (below if below.is_dir() else beside)
        args.work.mkdir(parents=True, exist_ok=True)
        runner = Runner(results, args.work, data, table.metric, _facts(args), args.jobs, args.device, args.minutes)
        missing = runner.missing(cells)
        if args.dry_run:
            for cell in missing:
                for command in cell.words("runs", str(data), args.device, "experiments"):
                    print(f"starseq {shlex.join(command)}")
        elif args.page:
            print(page(table, read_lines(results)))
        elif not args.add:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` ends it, too, as --minutes do
            return 0 if runner.run(cells) else 1
    except (Mistake, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
