r"""Runs the experiments of docs/RESULTS.md, cell by cell, over days and machines.

    python benchmarks/tables.py list 2                                      what is done, what is missing
    python benchmarks/tables.py run 2 --jobs 2 --machine "two CPU cores"    the missing cells, in the table's order
    python benchmarks/tables.py run 1 --dry-run                             the commands alone
    python benchmarks/tables.py unpack back.tar                             what another machine packed

A table is a file of benchmarks/cells/: one recipe, equal steps, conditions (which labels are dropped), methods, and the order
in which cells are wanted. A *cell* is one condition, method and seed; it is a chain of *steps*, each of them `starseq`
commands that run in the work folder. A step is named by a hash of its commands, which name the steps that they build on: what
cells share, such as a teacher, is made once, and a table that changes finds its old steps no more. What a step found is kept in
steps/KEY.json; a cell whose steps are all done is one more line of docs/results/cells.jsonl, and is not run again.

Stages, the kinds of steps, can be run on different machines: `--stages drop,train,greedy` where the GPU is, the rest where
flashlight-text is. `--pack back.tar` writes what others need to go on, in pieces of a bounded size, models that the next
cells need first; `--unpack` begins with such a pack. On a machine that is lent for minutes, from nothing to a file to carry home:

    python benchmarks/tables.py run 1 --cell '0.[357]/*/0' --device cuda --jobs 8 --mps --minutes 9 --machine "one H200" \
        --stages drop,train,greedy,pseudo --data scratch --work /tmp/work --unpack before.tar --pack $OUT/back.tar

A training that `--minutes` cuts goes on from its last checkpoint, where the work folder or a pack still has it. Needs
PyYAML (which omegaconf brings) and, for the commands, starseq; imports neither torch nor starseq.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `benchmarks`, when this is run as a program

from benchmarks.steps import ROOT, STAGES, Cell, Mistake, Record, Step, Table
from benchmarks.work import RESULTS, Work, append, facts, identity, pack, read_lines, unpack

WRITING = ("greedy", "tune", "beam")
"""stages that add to the files of a run that is trained"""

# --- running ----------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A step that is running."""

    step: Step
    cell: Cell
    commands: list[list[str]]
    log: Path
    started: float
    process: subprocess.Popen[bytes] | None = None
    at: int = 0
    offset: int = 0
    """where this attempt begins in the log"""
    cpu: float = 0.0
    """seconds, of all its processes: what a busy machine does not change"""


@dataclass
class Runner:
    """Runs the missing steps of cells, `jobs` side by side."""

    work: Work
    results: Path
    data: Path
    starseq: Sequence[str]
    jobs: int = 1
    device: str = "cpu"
    machine: str = ""
    commit: str = ""
    minutes: float | None = None
    stages: Sequence[str] = STAGES
    threads: int = 1
    free: Sequence[str] = ()
    """overrides of every training that decide no result"""
    workers: int | None = None
    """processes of a search; by default 2, and none where several jobs are side by side"""

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._running: dict[str, Job] = {}
        self._failed: set[str] = set()
        self._late: set[str] = set()
        """steps for which too little time is left"""
        self._history = [*self.work.records()]
        self._history += [made for line in read_lines(self.results) for made in line["made"]]

    def run(self, tables: Sequence[Table], extra: Sequence[str] = (), patterns: Sequence[str] = ()) -> bool:
        """Whether nothing failed. Ends when all that may be run is done, or the time is over."""
        self.work.settle()
        try:
            while not self._is_over():
                lines = read_lines(self.results)
                cells = [(table, cell) for table in tables for cell in missing(table, lines, extra, patterns)]
                if self._write_finished([cell for _, cell in cells]):
                    continue  # which may tell which schedule is the best, and so which cells there are
                for table, cell in cells:
                    self._start_next(table, cell)
                if not self._running:
                    break
                self._wait()
        finally:
            self._cut()
        return not self._failed

    def _is_over(self) -> bool:
        return self._left() <= 0

    def _left(self) -> float:
        passed = time.monotonic() - self._began
        return float("inf") if self.minutes is None else 60 * self.minutes - passed

    def _write_finished(self, cells: Sequence[Cell]) -> bool:
        """Whether a cell was finished."""
        finished = [cell for cell in cells if not self.work.todo(cell)]
        for cell in finished:
            line = self._line(cell)
            append(self.results, [line])
            say(f"{_name(cell)}: finished, {summary(line)}")
        return bool(finished)

    def _line(self, cell: Cell) -> Record:
        made = [record for step in cell.steps if (record := self.work.record(step)) is not None]
        found: Record = {}
        for record in made:  # what a student found stands for the cell, not what its teacher did
            found |= record["facts"]
        return {
            "table": cell.table, "corpus": cell.corpus, "condition": cell.condition, "method": cell.method,
            "seed": cell.seed, "key": cell.key, "metric": cell.metric, **found,
            "seconds": round(sum(record["seconds"] for record in made), 1), "machine": made[-1]["machine"],
            "version": _version(), "commit": self.commit, "ended": made[-1]["ended"],
            "made": [{name: value for name, value in record.items() if name != "facts"} for record in made],
        }  # fmt: skip

    def _start_next(self, table: Table, cell: Cell) -> None:
        """The cell's next step, if there is room, nobody runs it, and it can end in time."""
        if len(self._running) >= self.jobs:
            return
        todo = self.work.todo(cell)
        if not todo:
            return
        step = todo[0]
        if step.key in self._running or step.key in self._failed or step.key in self._late:
            return
        beside = [job.step for job in self._running.values() if job.step.run == step.run]
        if step.stage in WRITING and any(other.stage in WRITING for other in beside):
            return  # both would write into the run's results.json
        if step.stage not in self.stages:
            return
        expected = self.expected(step, table.steps)
        if expected is not None and expected > self._left():
            self._late.add(step.key)
            say(
                f"{_name(cell)}: {step.stage} not started, for it takes about {expected:.0f} s, and {self._left():.0f} are left"
            )
            return
        about = "" if expected is None else f", about {expected:.0f} s"
        goes_on = self.work.part_done(step, table.steps)
        say(f"{_name(cell)}: {step.stage} {'goes on' if goes_on else 'begins'}{about}")
        self.work.provide(step, cell.corpus, self.data)
        log = self.work.folder / "logs" / f"{step.key}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        offset = log.stat().st_size if log.exists() else 0
        job = Job(
            step,
            cell,
            [self._placed(command, step, cell) for command in step.commands],
            log,
            time.monotonic(),
            offset=offset,
        )
        self._running[step.key] = job
        self._launch(job)

    def expected(self, step: Step, steps: int) -> float | None:
        """Seconds, as like steps took on this machine (where there are some, with as many side by side); None: not known."""
        like = [
            r
            for r in self._history
            if r["like"] == step.like and (r["machine"], r["device"]) == (self.machine, self.device)
        ]
        beside = [record for record in like if record["jobs"] == self.jobs]
        if not like:
            return None
        longest = max(record["seconds"] for record in beside or like)
        return float(longest * (1 - self.work.part_done(step, steps)))

    def _placed(self, command: Sequence[str], step: Step, cell: Cell) -> list[str]:
        """The command with what depends on the machine and decides no result, and the weights that the cell's own tuning found."""
        if step.stage == "train" and command[0] == "train":
            return [*command, f"trainer.accelerator={self.device}", *self.free]
        if command[0] == "lm" and "--neural" in command:
            begun = self.work.folder / command[command.index("--out") + 1] / "last.ckpt"
            return [*command, "--device", self.device, *(["--resume"] if begun.exists() else [])]
        if command[0] in ("evaluate", "tune", "pseudo"):
            workers = self.workers if self.workers is not None else 0 if self.jobs > 1 else 2
            if step.stage == "greedy":
                return [*command, "--device", self.device]
            return [*command, *self._weights(step, cell), "--device", self.device, "--workers", str(workers)]
        return list(command)

    def _weights(self, step: Step, cell: Cell) -> list[str]:
        """Given as options, for other cells may tune the same run meanwhile."""
        greedy = "plain" in step.commands[-1] and step.option("--lm") is None and step.option("--beam") is None
        if step.stage not in ("beam", "pseudo") or greedy:
            return []
        before = [earlier for earlier in cell.steps[: cell.steps.index(step)] if earlier.stage == "tune"]
        same = [tuned for tuned in before if _how_read(tuned) == _how_read(step)]
        record = self.work.record(same[-1]) if same else None
        found = {"alpha": 0, "beta": 0} if record is None else record["facts"]["weights"]
        names = ("alpha", "beta") if step.option("--lm") else ("beta",)
        return [word for name in names if step.option(f"--{name}") is None for word in (f"--{name}", str(found[name]))]

    def _launch(self, job: Job) -> None:
        threads = str(self.threads)
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **os.environ, "PYTHONPATH": path}
        with open(job.log, "ab") as log:
            log.write(f"$ starseq {shlex.join(job.commands[job.at])}\n".encode())
            log.flush()
            job.process = subprocess.Popen(
                [*self.starseq, *job.commands[job.at]], cwd=self.work.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _wait(self) -> None:
        """Until something ends, or the time is over."""
        while not self._is_over():
            for key, job in list(self._running.items()):
                assert job.process is not None
                pid, status, used = os.wait4(job.process.pid, os.WNOHANG)
                if pid == 0:
                    continue
                job.process.returncode = code = os.waitstatus_to_exitcode(status)
                job.cpu += used.ru_utime + used.ru_stime
                if code == 0 and job.at + 1 < len(job.commands):
                    job.at += 1
                    self._launch(job)
                    continue
                del self._running[key]
                self._ended(job, code)
                return
            time.sleep(0.1)

    def _ended(self, job: Job, code: int) -> None:
        step, output = job.step, job.log.read_bytes()[job.offset :].decode(errors="replace")
        seconds = time.monotonic() - job.started
        name = f"{_name(job.cell)}: {step.stage}"
        if code != 0:
            self._failed.add(step.key)
            said = output.rstrip().splitlines()[-1]
            say(f"{name} failed with exit code {code} after {seconds:.0f} s: {said} (see {job.log})")
            return
        try:
            found = facts(step, self.work.folder, output)
        except (OSError, KeyError, ValueError, Mistake) as error:
            self._failed.add(step.key)
            say(f"{name} ended, but not with the files that it is to leave: {error!r} (see {job.log})")
            return
        if step.stage == "train":
            seconds = max(seconds, found["train"]["seconds"])  # with the parts before it was cut
        record = {
            "key": step.key, "stage": step.stage, "like": step.like, "run": step.run, "seconds": round(seconds, 1),
            "cpu_seconds": round(job.cpu, 1), "machine": self.machine, "device": self.device, "jobs": self.jobs,
            "commit": self.commit,
            "ended": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "commands": [f"starseq {shlex.join(command)}" for command in job.commands], "facts": found,
        }  # fmt: skip
        self.work.save(step, record)
        self._history.append(record)
        say(f"{name} done in {seconds:.0f} s")

    def _cut(self) -> None:
        """Ends what is running. Each job is a process group of its own."""
        for job in self._running.values():
            assert job.process is not None
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGTERM)
        for job in self._running.values():
            assert job.process is not None
            try:
                job.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
            kept = (self.work.folder / str(job.step.run) / "last.ckpt").exists() and job.step.stage == "train"
            say(
                f"{_name(job.cell)}: {job.step.stage} cut; {'goes on from its checkpoint' if kept else 'begins anew'} next time"
            )
        self._running.clear()


def chosen(
    table: Table, lines: Sequence[Record], extra: Sequence[str] = (), patterns: Sequence[str] = ()
) -> list[Cell]:
    """The cells that match one of the patterns, or all where there is none, in their order."""
    cells = table.cells(lines, extra)
    return [cell for cell in cells if not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)]


def missing(
    table: Table, lines: Sequence[Record], extra: Sequence[str] = (), patterns: Sequence[str] = ()
) -> list[Cell]:
    """Those of them that are not among the lines."""
    there = {identity(line) for line in lines}
    cells = chosen(table, lines, extra, patterns)
    return [c for c in cells if (c.table, c.condition, c.method, c.seed, c.key) not in there]


def summary(line: Record) -> str:
    """The main numbers of a line."""
    parts = []
    for split, methods in line.get("errors", {}).items():
        parts += [
            f"{split} {line['metric'].upper()} {rates[line['metric']]:.2f} % {how}" for how, rates in methods.items()
        ]
    train = line.get("train", {})
    if train.get("p") is not None:
        parts.append(f"p {train['p']:.2f}")
    if "labels" in line and not parts:
        parts.append(f"{line['labels']['kept']:,} of {line['labels']['labels']:,} labels kept")
    return ", ".join(parts) or "no numbers"


def _how_read(step: Step) -> tuple[str | None, str | None, bool]:
    """The run, the language model, and whether repeats are merged: what weights belong to."""
    return step.run, step.option("--lm"), "--merge-repeats" in step.commands[-1]


def say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {sentence}", flush=True)


def _name(cell: Cell) -> str:
    return f"table {cell.table}, {cell.name}"


def _version() -> str:
    found = re.search(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    return found[1] if found else "unknown"


def _commit() -> str:
    """The commit that is checked out; with a plus where the package differs from it."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout
        changed = subprocess.run(
            [*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("+" if changed.strip() else "")


@contextmanager
def mps(wanted: bool) -> Iterator[None]:
    """NVIDIA's MPS, so that the kernels of several processes share the GPU at once rather than in turns."""
    if wanted:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
    try:
        yield
    finally:
        if wanted:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)


# --- the command ------------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    lines, work = read_lines(args.results), Work(args.work)
    for name in args.tables:
        table = Table.load(name)
        cells = chosen(table, lines, args.set, args.cell)
        there = {identity(line): line for line in lines}
        found = [there.get((c.table, c.condition, c.method, c.seed, c.key)) for c in cells]
        print(f"table {table.name}, {table.title}: {sum(line is not None for line in found)} of {len(cells)} cells")
        for cell, line in zip(cells, found, strict=True):
            print(f"  {cell.name:32} {summary(line) if line else _state(cell, work)}")
    return 0


def _state(cell: Cell, work: Work) -> str:
    """Of a cell that is not among the results."""
    todo = work.todo(cell)
    if not todo:
        return "done in the work folder, not among the results: `run` adds it"
    return "missing" if len(todo) == len(cell.steps) else f"to do: {todo[0].stage}, ..."


def _run(args: argparse.Namespace) -> int:
    stages = args.stages.split(",")
    wrong = [stage for stage in stages if stage not in STAGES]
    if wrong:
        raise Mistake(f"--stages: {wrong[0]!r} is none of {', '.join(STAGES)}")
    tables = [Table.load(name) for name in args.tables]
    program, *words = shlex.split(args.starseq) or [""]
    found = shutil.which(program)
    if found is None:
        raise Mistake(f"--starseq: {program!r} is not a program that can be found")
    work, cores = Work(args.work), os.cpu_count() or 1
    with work.locked():
        if args.unpack:
            unpack(work.folder, args.results, args.unpack)
        if args.dry_run:
            for table in tables:
                for cell in missing(table, read_lines(args.results), args.set, args.cell):
                    print(f"# {_name(cell)}")
                    for step in work.todo(cell):
                        print("\n".join(f"starseq {shlex.join(command)}" for command in step.commands))
            return 0
        runner = Runner(
            work, args.results, args.data, [os.path.abspath(found), *words], args.jobs, args.device,
            args.machine or f"{os.uname().machine}, {cores} cores", args.commit or _commit(), args.minutes, stages,
            max(1, cores // args.jobs), args.free, args.workers,
        )  # fmt: skip
        # Ended from outside, such as by `timeout`, it still ends what it started, and packs.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            with mps(args.mps):
                good = runner.run(tables, args.set, args.cell)
        finally:
            if args.pack is not None:
                rest = [cell for table in tables for cell in missing(table, read_lines(args.results), args.set)]
                wanted = list(dict.fromkeys(run for cell in rest for run in work.needs(cell)))
                size = {"mib": args.pack_mib, "parts": args.pack_parts}
                files, left_out = pack(work.folder, args.results, args.pack, wanted=wanted, **size)
                for path in files:
                    say(f"packed {path}, {path.stat().st_size / 2**20:.1f} MiB")
                for name in left_out:
                    say(f"left out of the pack: {name}")
        for table in tables:
            left = missing(table, read_lines(args.results), args.set, args.cell)
            say(f"table {table.name}: {len(left)} cells are missing")
    return 0 if good else 1


def _unpack(args: argparse.Namespace) -> int:
    work = Work(args.work)
    with work.locked():
        added = unpack(work.folder, args.results, args.packs)
    print(f"{args.results}: {added} new cells")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The experiments of docs/RESULTS.md, cell by cell.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument("--work", type=Path, default=Path("runs/tables"), help="work folder (default: %(default)s)")
    places.add_argument(
        "--results", type=Path, default=RESULTS, help="file of finished cells (default: docs/results/cells.jsonl)"
    )
    which = argparse.ArgumentParser(add_help=False, parents=[places])
    which.add_argument("tables", nargs="+", metavar="TABLE", help="number of a table, or a YAML file")
    which.add_argument("--cell", action="append", default=[], metavar="GLOB",
                       help="only CONDITION/METHOD/SEED that match, such as '0.4/stc*/0'; may be given several times")  # fmt: skip
    which.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                       help="a further override of every training; such cells have lines of their own")  # fmt: skip
    listing = verbs.add_parser("list", parents=[which], help="the cells, done with their numbers, and missing")
    listing.set_defaults(call=_list)
    running = verbs.add_parser("run", parents=[which], help="run the missing cells in the table's order")
    running.set_defaults(call=_run)
    add = running.add_argument
    add("--jobs", type=int, default=1, help="steps side by side")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--free", action="append", default=[], metavar="KEY=VALUE",
        help="a further override that decides no result, such as data.workers=2: the cell stays the same")  # fmt: skip
    add("--workers", type=int, help="processes of each search (default: 2; with several jobs none)")
    add("--minutes", type=float, help="start nothing that takes longer than what is left of them; then cut what runs")
    add("--stages", default=",".join(STAGES), help="kinds of steps that this machine can run (default: %(default)s)")
    add(
        "--data", type=Path, default=ROOT / ".." / "shared" / "data", help="folder of corpora (default: ../shared/data)"
    )
    add("--machine", help="its name for the page, such as 'one H200'")
    add("--commit", help="of starseq, where git cannot tell")
    add(
        "--starseq",
        default=f"{shlex.quote(sys.executable)} -m starseq",
        help="the command (default: of this Python)",
    )
    add("--mps", action="store_true", help="start NVIDIA's MPS, for trainings side by side on one GPU")
    add(
        "--unpack", type=Path, nargs="+", default=[], metavar="TAR", help="packs to begin with, the first piece of each"
    )
    add("--pack", type=Path, metavar="TAR", help="write what another machine needs to go on")
    add("--pack-mib", type=float, default=15, help="size of a piece of the pack (default: %(default)s)")
    add("--pack-parts", type=int, default=4, help="pieces at most: TAR, TAR.1, ... (default: %(default)s)")
    add("--dry-run", action="store_true", help="print the commands of the missing cells")
    unpacking = verbs.add_parser("unpack", parents=[places], help="take over what another machine packed")
    unpacking.add_argument("packs", nargs="+", type=Path, metavar="TAR")
    unpacking.set_defaults(call=_unpack)
    args = parser.parse_args(argv)
    try:
        return int(args.call(args))
    except (Mistake, OSError) as error:
        print(f"tables.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
