"""`starseq fit`: from transcripts with holes to a finished recogniser. The order of the other jobs, and nothing else."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starseq import runs
from starseq.config import Recipe, load_recipe
from starseq.data.errors import DataError
from starseq.data.files import locked, write_text
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs._clock import Clock, Moment, expected, seconds_of_step
from starseq.jobs._fill import reads_little
from starseq.jobs._material import COMPLETED, MANIFEST, STUDENT, Say, allowed, bring_in, close, root_of, source_of
from starseq.jobs._plan import Plan, asked, check_overrides, make_plan, recipe_for_steps, steps_for
from starseq.jobs._search import Search, read_tuned
from starseq.jobs._survey import DEV, TRAIN, Survey, survey
from starseq.jobs._where import PathLike, Where
from starseq.jobs.evaluate import evaluate
from starseq.jobs.lm import mix_ngrams, text_settings, train_ngram
from starseq.jobs.manifest import Condition, filter_manifest
from starseq.jobs.pseudo import pseudo
from starseq.jobs.report import report
from starseq.jobs.train import Metrics, train
from starseq.jobs.tune import tune
from starseq.lm.text import read_texts
from starseq.text.pieces import Spelled

__all__ = ["FitResult", "Moment", "Request", "fit", "plan"]

ORDER = {"char": 6, "word": 3}
"""of the n-gram model, by what a label is"""
PRUNE = {"char": (0, 0, 0, 1, 2, 3), "word": (0, 0, 1)}
"""of the n-grams of a text that is given"""
BEAM, BEAM_TOKENS = 60, 20
"""of the search that is tuned and evaluated"""
TRAINING_SHARE = 0.75
"""of the time that `minutes` allows; the rest is for completion, search and evaluation"""
_STATE, _LM, _REPORT = "fit.json", "lm.arpa", "report.html"
_TITLES = {
    "data": "data", "teacher": "training the teacher", "length": "tuning the teacher", "complete": "completing",
    "student": "training", "lm": "language model", "tune": "tuning", "evaluate": "evaluating", "report": "report",
}  # fmt: skip

FIRST_MINUTE = 60.0


@dataclass(frozen=True)
class FitResult:
    """What `fit` leaves: the recogniser, its page, and the error rates of dev and test in percent."""

    out: Path
    run: Path
    """the run folder to read with"""
    lm: Path | None
    """the language model that made dev better, if it did"""
    page: Path
    tables: dict[str, str]
    """the table of `starseq evaluate`, by the name of the run; empty where nothing can be judged"""

    def __str__(self) -> str:
        lines = [line for name, table in self.tables.items() for line in (f"{name}:", table, "")]
        if not self.tables:
            lines.append("no error rate is known, for no row of dev or test has a complete text\n")
        search = "" if self.lm is None else f" --lm {self.lm}"
        return "\n".join(
            [*lines, f"{self.page}: the page", f"read with: starseq transcribe {self.run} FILE...{search}"]
        )


@dataclass(frozen=True)
class Request:
    """What a fit is asked for. What nobody can do is a `DataError` with one sentence."""

    data: PathLike
    """a manifest, a folder or table that some corpus of `starseq.corpora` reads, or ``digits``"""
    text: PathLike | None = None
    """more text for the language model"""
    overrides: Sequence[str] = ()
    """of recipe keys, for the trainings"""
    minutes: float | None = None
    """what the trainings are shortened to, as well as their first steps tell"""

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes: {self.minutes:g} is not a number above 0")
        check_overrides(self.overrides)
        if self.text is not None and not Path(self.text).is_file():
            raise DataError(f"{os.fspath(self.text)}: no such file")
        if self.text is not None and not any(line.strip() for line in read_texts([self.text])):
            raise DataError(f"{os.fspath(self.text)}: no line has a text")
        if not Path(self.data).exists() and os.fspath(self.data) != "digits":
            raise DataError(f"{os.fspath(self.data)}: no such file or folder")

    @property
    def key(self) -> dict[str, Any]:
        """What has to be the same for a fit to go on."""
        data = os.path.realpath(self.data) if Path(self.data).exists() else os.fspath(self.data)
        text = None if self.text is None else os.path.realpath(self.text)
        return {"data": data, "text": text, "overrides": list(self.overrides), "minutes": self.minutes}


def fit(
    request: Request, out: PathLike, *, progress: Callable[[Moment], None] | None = None, say: Say | None = None
) -> FitResult:
    """Makes a recogniser as the `request` says.

    Chooses a recipe, a dev split and the steps by what the rows hold, and says so. Where labels are missing, STC trains a teacher,
    which completes the training rows, and CTC trains a student on those; where none are, CTC trains at once. An n-gram model of
    the training texts, mixed with one of the text that is given, is tuned on dev. All is evaluated, and shown in ``report.html``.

    `progress` gets a `Moment`, `say` a sentence for each decision. A fit that was stopped at any point goes on when it is called
    with the same arguments, and ends with the same result.

    Raises `DataError` with one sentence for data that nothing can be learned from, and for a folder that holds something else.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: not a folder, so no recogniser can be in it")
    if out.is_dir() and not (out / _STATE).exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise DataError(f"{out}: holds something else; choose a new folder for --out")
    with locked(out, out / ".lock"):
        job = _Fit(
            request, _State.read(out, request.key), progress or (lambda moment: None), say or (lambda line: None)
        )
        job.do("data")
        for part in job.parts():
            job.do(part)
        return job.result()


def plan(request: Request, out: PathLike | None = None) -> list[str]:
    """What `fit` would decide, and what to expect on this machine, measured by some steps of training. Leaves nothing behind.

    `out` is where `fit` would write; files may lie between there and the data. By default it is the current folder.
    """
    with tempfile.TemporaryDirectory(prefix="starseq-fit-") as folder:
        lines: list[str] = []
        job = _Fit(request, _State(Path(folder, "fit"), {}, {}), lambda moment: None, lines.append)
        job.near = Path.cwd() if out is None else Path(out)
        job.do("data")
        lines += [
            expected(job.trainings, job.steps, job.seconds_per_step()),
            "parts: " + ", ".join(_TITLES[part] for part in job.parts()),
        ]
        return lines


# --- what is done -----------------------------------------------------------------------------------------------------


@dataclass
class _State:
    """``fit.json``: the command, what was decided, and which parts are done."""

    out: Path
    wanted: dict[str, Any]
    done: dict[str, float]
    """seconds by part"""
    plan: dict[str, Any] | None = None

    @classmethod
    def read(cls, out: Path, wanted: dict[str, Any]) -> _State:
        path = out / _STATE
        fresh = cls(out, wanted, {})
        if path.exists():
            try:
                record = json.loads(path.read_text())
                state = cls(out, record["wanted"], dict(record["done"]), record["plan"])
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}: damaged; choose another --out, or delete that folder") from None
            if state.done:
                for name, value in wanted.items():
                    if state.wanted.get(name) != value:
                        raise DataError(
                            f"{out}: began with {name} {state.wanted.get(name)!r}, and now it is {value!r}; "
                            "choose another --out, or delete that folder"
                        )
                return state
        fresh.write()
        return fresh

    def write(self) -> None:
        record = {"wanted": self.wanted, "plan": self.plan, "done": self.done}
        write_text(self.out / _STATE, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


class _Fit:
    """A fit on its way. A part is a method; what it leaves are files, so that the next one needs nothing else."""

    def __init__(self, request: Request, state: _State, progress: Callable[[Moment], None], say: Say) -> None:
        self.request, self.state, self.progress, self.say = request, state, progress, say
        self.out, self.overrides = state.out, list(request.overrides)
        self.clock = Clock(state.done)
        self.near = state.out
        """where the result is wanted; a plan works elsewhere"""

    # What was decided.

    @property
    def plan(self) -> dict[str, Any]:
        assert self.state.plan is not None
        return self.state.plan

    @property
    def steps(self) -> int:
        return int(self.plan["steps"])

    @property
    def trainings(self) -> int:
        return 2 if self.plan["teacher"] else 1

    def parts(self) -> list[str]:
        """The parts of this fit, in their order, once the first has decided on them."""
        has_dev, judged = DEV in self.plan["judged"], self.plan["judged"]
        teacher = ["teacher", *(["length"] if has_dev else []), "complete"] if self.plan["teacher"] else []
        return [
            "data",
            *teacher,
            "student",
            "lm",
            *(["tune"] if has_dev else []),
            *(["evaluate"] if judged else []),
            "report",
        ]

    def do(self, part: str) -> None:
        """Does a part, unless it is done, and writes down that it is."""
        if part in self.state.done:
            return
        self.clock.begin()
        getattr(self, f"_{part}")()
        self.state.done[part] = self.clock.end()
        self.state.write()

    def _step(self, part: str) -> Callable[[int, int | None], None]:
        """The `progress` of a part's job."""

        def step(done: int, total: int | None) -> None:
            parts = self.parts() if self.state.plan is not None else ["data"]
            share, left = self.clock.at(part, parts, done, total)
            self.progress(Moment(_TITLES[part], done, total, share, left))

        return step

    # The parts.

    def _data(self) -> None:
        data = Path(self.request.data)
        manifest = source_of(data, self.out, self.say, self._step("data"))
        found = survey(manifest)
        plan = make_plan(found, self.overrides)
        for line in plan.why:
            self.say(line)
        target = self.out / MANIFEST
        root = root_of(manifest, self.out, allowed(data, self.near, self.out, manifest))
        bring_in(found, plan, target)
        self.state.plan = {
            "recipe": plan.recipe, "criterion": plan.criterion, "teacher": plan.teacher, "changes": plan.changes,
            "judged": plan.judged, "tests": plan.tests, "root": str(root), "steps": 0,
        }  # fmt: skip
        self._decide_steps(plan, found)

    def _decide_steps(self, plan: Plan, found: Survey) -> None:
        recipe = load_recipe(plan.recipe, [*plan.changes, *self.overrides])
        given = asked(self.overrides, "trainer.max_steps") is not None
        steps = (recipe.trainer.max_steps or 1) if given else steps_for(recipe, found)
        self.plan["steps"] = steps
        if self.request.minutes is None or given:
            self.say(f"each training has {steps:,} steps")
            return
        seconds = self.seconds_per_step()
        possible = max(1, int(TRAINING_SHARE * 60 * self.request.minutes / (self.trainings * seconds)))
        if possible >= steps:
            self.say(
                f"each training has {steps:,} steps: {self.request.minutes:g} minutes are enough, at {seconds:.3g} s a step"
            )
            return
        self.plan["steps"] = possible
        self.say(
            f"each training has {possible:,} steps, for {self.request.minutes:g} minutes and {seconds:.3g} s a step; "
            f"the data would have {steps:,}, so expect more errors"
        )

    def _teacher(self) -> None:
        self._train("teacher", self._recipe("first"))

    def _length(self) -> None:
        """What a teacher leaves out again and again, its student learns to leave out."""
        found = tune(self.out / "teacher", search=self._search(lm=None), split=DEV, where=self._where("length"))
        weight = f"with {found.beam.beta:+.2f} for each label"
        self.say(f"teacher on dev: {found.metric} {found.greedy:.2f} % greedy, {found.beam.percent:.2f} % {weight}")

    def _complete(self) -> None:
        teacher = self.out / "teacher"
        run = runs.load(teacher)
        if reads_little(run):
            self.say(
                f"the teacher's error on dev is {run.dev_error:.0f} %: what it fills in is mostly guesses; more training or "
                "more known text would help"
            )
        summary = pseudo(
            teacher, self.out / MANIFEST, self.out / COMPLETED, kind="keep-known", splits=[TRAIN], force=True,
            where=replace(self._where("complete"), root=self.plan["root"], skip_bad=True),
        )  # fmt: skip
        for line in summary.report().splitlines():
            self.say(line)
        if summary.failed:
            self.say(
                f"{summary.failed:,} rows that have more labels than frames, or that cannot be opened, are left out, "
                f"see {self.out / 'completed.failed.jsonl'}"
            )

    def _student(self) -> None:
        if self.plan["teacher"]:
            close(self.out, self.say)
        self._train("student", self._recipe("last"))

    def _lm(self) -> None:
        """Of the training texts, and of the file that was given, mixed so that dev is likeliest."""
        student, manifest = self.out / "student", self._labelled()
        unit, normaliser = text_settings(student, None)
        cut = "char" if isinstance(normaliser, Spelled) else unit
        order = ORDER[cut]
        step, kept = self._step("lm"), self.out / "lm"
        texts, target = kept / "train.jsonl", self.out / _LM
        others = {str(row.get("split")) for row in read_manifest(manifest)} - {TRAIN}
        filter_manifest(manifest, texts, [Condition("split", "!=", name) for name in sorted(others)])
        settings: dict[str, Any] = {
            "order": order, "vocabulary": student / "tokens.txt", "unit": unit, "normaliser": normaliser, "progress": step,
        }  # fmt: skip
        if self.request.text is None:
            found = train_ngram([texts], target, **settings)
            self.say(f"{target}: {order}-grams of {found.sentences:,} training texts")
            return
        own, given, dev = kept / "own.arpa", kept / "text.arpa", kept / "dev.jsonl"
        train_ngram([texts], own, **settings)
        train_ngram([self.request.text], given, prune=PRUNE[cut], **settings)
        weighed: dict[str, Any] = {"weights": (0.5, 0.5)}
        if DEV in self.plan["judged"]:
            rows = (row for row in read_manifest(manifest) if row.get("split") == DEV and row.complete)
            write_manifest(dev, (row.replace(text=row.get("text_full") or row.text) for row in rows))
            weighed = {"dev": [dev]}
        mixed = mix_ngrams([own, given], target, unit=unit, normaliser=normaliser, progress=step, **weighed)
        self.say(f"{target}: {mixed.weights[0]:.0%} training texts, {mixed.weights[1]:.0%} {self.request.text}")

    def _tune(self) -> None:
        found = tune(self.out / "student", search=self._search(self.out / _LM), split=DEV, where=self._where("tune"))
        self.say(
            f"tuned on dev: {found.metric} {found.greedy:.2f} % greedy, {found.beam.percent:.2f} % with the language model"
        )

    def _evaluate(self) -> None:
        """Keeps the tables, so that a fit that is over shows them again."""
        tables = {}
        for name in self._runs():
            lm = self.out / _LM if name == "student" else None
            search = self._search(lm) if DEV in self.plan["judged"] else Search()
            found = evaluate(self.out / name, splits=self.plan["judged"], search=search, where=self._where("evaluate"))
            tables[name] = found.table()
        self.plan["tables"] = tables

    def _report(self) -> None:
        names = self._runs()
        shown = {"teacher": f"teacher ({self._recipe('first').criterion.name.upper()})", "student": "student (CTC)"}
        if not self.plan["teacher"]:
            shown["student"] = self._recipe("last").criterion.name.upper()
        report(
            [self.out / name for name in names], self.out / _REPORT, names=[shown[name] for name in names],
            split=self.plan["judged"][-1] if self.plan["judged"] else None, title="A recogniser from transcripts with holes"
            if self.plan["teacher"] else "A recogniser", intro=self._intro(),
            completed=self.out / COMPLETED if self.plan["teacher"] else None,
        )  # fmt: skip

    # What the parts share.

    def _runs(self) -> list[str]:
        return ["teacher", "student"] if self.plan["teacher"] else ["student"]

    def _labelled(self) -> Path:
        """The manifest that the last training reads."""
        return self.out / (STUDENT if self.plan["teacher"] else MANIFEST)

    def _recipe(self, which: str) -> Recipe:
        """Of the first training, and of the last, which is the first where there is no teacher."""
        student = which == "last" and self.plan["teacher"]  # learns from complete rows
        root = Path(self.plan["root"])
        manifest = os.path.relpath(os.path.realpath(self._labelled() if which == "last" else self.out / MANIFEST), root)
        dev = [DEV] if DEV in self.plan["judged"] else []
        changes = [
            *self.plan["changes"], "data.corpus=null", f"data.root={json.dumps(str(root))}",
            f"data.manifest={json.dumps(Path(manifest).as_posix())}", f"data.splits.train=[{TRAIN}]",
            f"data.splits.dev={json.dumps(dev)}", f"data.splits.test={json.dumps(self.plan['tests'])}",
        ]  # fmt: skip
        overrides = self.overrides
        if student:
            overrides = [one for one in overrides if not one.strip().startswith(("criterion", "penalty", "data.drop"))]
            overrides = [*overrides, "criterion.name=ctc", "data.drop=null"]
        return recipe_for_steps(self.plan["recipe"], changes, self.steps, overrides)

    def _train(self, name: str, recipe: Recipe) -> None:
        step, begun = self._step(name), time.monotonic()
        told = name in self.state.done or (name == "student" and "teacher" in self.state.done)
        first: tuple[int, float] | None = None

        def progress(done: int, total: int | None) -> None:
            nonlocal told, first
            now = time.monotonic()
            first = first or (done, now)
            if not told and now - begun > FIRST_MINUTE and done > first[0]:
                told = True
                self.say(expected(self.trainings, self.steps, (now - first[1]) / (done - first[0])))
            step(done, total)

        def message(lines: str) -> None:
            for line in lines.splitlines():
                self.say(f"{name}: {line}")

        def metrics(now: Metrics) -> None:
            if now.dev_error is not None:
                self.say(
                    f"{name}: step {now.step:,}, loss {now.loss_per_label:.2f} a label, dev error {now.dev_error:.2f} %"
                )

        ended = train(recipe, self.out / name, resume=True, progress=progress, on_metrics=metrics, on_message=message)
        self.say(str(ended))

    @staticmethod
    def _search(lm: Path | None) -> Search:
        return Search(lm=lm, beam=BEAM, beam_tokens=BEAM_TOKENS)

    def _where(self, part: str) -> Where:
        device = "cpu" if self._recipe("first").trainer.accelerator == "cpu" else "auto"
        return Where(device, workers=_workers(), progress=self._step(part))

    def seconds_per_step(self) -> float:
        """Of the first training, from its first steps, which are not kept."""
        with tempfile.TemporaryDirectory(prefix="starseq-fit-") as folder:
            return seconds_of_step(self._recipe("first"), Path(folder, "run"))

    def _intro(self) -> list[str]:
        if not self.plan["teacher"]:
            return ["No label is known to be missing, so CTC was trained on the texts as they are."]
        criterion = self._recipe("first").criterion.name.upper()
        labels = json.loads((self.out / "completed.summary.json").read_text())["labels"]
        return [
            f"{criterion} trained the teacher on transcripts with holes. It filled in {labels['added']:,} labels beside the "
            f"{labels['known']:,} that were known. The student was trained on the result with CTC."
        ]

    def result(self) -> FitResult:
        student, lm = self.out / "student", self.out / _LM
        best = None
        if DEV in self.plan["judged"]:
            scores = runs.read_results(student)["evaluate"][DEV]
            rate = str(read_tuned(student)["beam"].get("metric", "CER")).lower()
            best = lm if scores["beam"][rate] < scores["greedy"][rate] else None
        return FitResult(self.out, student, best, self.out / _REPORT, self.plan.get("tables", {}))


def _workers() -> int:
    """Processes that search: one a core, where there are several."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16) if cores > 1 else 0
