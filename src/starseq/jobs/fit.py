"""`starseq fit`: from transcripts with holes to a finished recogniser. The order of the other jobs, and nothing else."""

from __future__ import annotations

import inspect
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from starseq import corpora, runs
from starseq.config import Recipe, load_recipe
from starseq.data.errors import DataError
from starseq.data.files import locked, write_text
from starseq.data.manifest import manifest_writer, read_manifest, write_manifest
from starseq.jobs._fill import MOST_ERRORS, gaps_in
from starseq.jobs._plan import (
    DEV,
    TRAIN,
    Plan,
    Survey,
    asked,
    bring_in,
    check_overrides,
    make_plan,
    recipe_for_steps,
    root_of,
    steps_for,
    survey,
    without_gaps,
)
from starseq.jobs._search import Search, read_tuned
from starseq.jobs._where import PathLike, Where
from starseq.jobs.evaluate import evaluate
from starseq.jobs.lm import mix_ngrams, text_settings, train_ngram
from starseq.jobs.manifest import Condition, filter_manifest
from starseq.jobs.prepare import prepare
from starseq.jobs.pseudo import pseudo
from starseq.jobs.report import report
from starseq.jobs.train import Metrics, train
from starseq.jobs.tune import tune
from starseq.lm.text import read_texts

__all__ = ["FitResult", "Moment", "fit"]

ORDER = {"char": 6, "word": 3}
"""of the n-gram model, by what a label is"""
PRUNE = {"char": (0, 0, 0, 1, 2, 3), "word": (0, 0, 1)}
"""of the n-grams of a text that is given"""
BEAM, BEAM_TOKENS = 60, 20
"""of the search that is tuned and evaluated"""
TRAINING_SHARE = 0.75
"""of the time that `minutes` allows; the rest is for completion, search and evaluation"""
SHARES = {"length": 0.1, "complete": 0.15, "lm": 0.02, "tune": 0.15, "evaluate": 0.1, "report": 0.02}
"""What a part takes, in times of a training, until it has begun: for the time left alone"""
MEASURED_SECONDS, FIRST_MINUTE = 10.0, 60.0

_STATE, _MANIFEST, _LM, _REPORT = "fit.json", "manifest.jsonl", "lm.arpa", "report.html"
_COMPLETED, _CLOSED = "completed.jsonl", "student.jsonl"
_TITLES = {
    "data": "data", "teacher": "training the teacher", "length": "tuning the teacher", "complete": "completing",
    "student": "training", "lm": "language model", "tune": "tuning", "evaluate": "evaluating", "report": "report",
}  # fmt: skip

Say = Callable[[str], None]


class Moment(NamedTuple):
    """How far a fit is."""

    part: str
    """what is done now, in words"""
    done: int
    total: int | None
    """of this part"""
    share: float
    """of the whole, from 0 to 1"""
    seconds_left: float | None
    """None: not known yet"""


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


def fit(
    data: PathLike,
    out: PathLike,
    *,
    text: PathLike | None = None,
    overrides: Sequence[str] = (),
    minutes: float | None = None,
    progress: Callable[[Moment], None] | None = None,
    say: Say | None = None,
) -> FitResult:
    """Makes a recogniser of `data`: a manifest, a folder or table that some corpus of `starseq.corpora` reads, or ``digits``.

    Chooses a recipe, a dev split and the steps by what the rows hold, and says so. Where labels are missing, STC trains a teacher,
    which completes the training rows, and CTC trains a student on those; where none are, CTC trains at once. An n-gram model of
    the training texts, mixed with one of the file `text`, is tuned on dev. All is evaluated, and shown in ``report.html``.

    `overrides` of recipe keys go to the trainings. `minutes` shortens them, as well as their first steps tell. `progress` gets a
    `Moment`, `say` a sentence for each decision.

    A fit that was stopped at any point goes on when it is called with the same arguments, and ends with the same result.

    Raises `DataError` with one sentence for data that nothing can be learned from, and for a folder that holds something else.
    """
    out = Path(out)
    _check(data, out, text, overrides, minutes)
    wanted = {
        "data": _name(data), "text": None if text is None else os.path.realpath(text), "overrides": list(overrides),
        "minutes": minutes,
    }  # fmt: skip
    with locked(out, out / ".lock"):
        state = _State.read(out, wanted)
        job = _Fit(
            data, out, text, overrides, minutes, state, progress or (lambda moment: None), say or (lambda line: None)
        )
        job.do("data")
        for part in job.parts():
            job.do(part)
        return job.result()


def plan(
    data: PathLike,
    out: PathLike | None = None,
    *,
    text: PathLike | None = None,
    overrides: Sequence[str] = (),
    minutes: float | None = None,
) -> list[str]:
    """What `fit` would decide, and what to expect on this machine, measured by some steps of training. Leaves nothing behind.

    `out` is where `fit` would write; files may lie between there and `data`. By default it is the current folder.
    """
    _check(data, None, text, overrides, minutes)
    with tempfile.TemporaryDirectory(prefix="starseq-fit-") as folder:
        lines: list[str] = []
        here = Path(folder, "fit")
        job = _Fit(data, here, text, overrides, minutes, _State(here, {}, {}), lambda moment: None, lines.append)
        job.near = Path.cwd() if out is None else Path(out)
        job.do("data")
        seconds = job.seconds_per_step()
        lines += [
            _expected(job.trainings, job.steps, seconds),
            "parts: " + ", ".join(_TITLES[part] for part in job.parts()),
        ]
        return lines


def _check(
    data: PathLike, out: Path | None, text: PathLike | None, overrides: Sequence[str], minutes: float | None
) -> None:
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"minutes: {minutes:g} is not a number above 0")
    check_overrides(overrides)
    if text is not None and not Path(text).is_file():
        raise DataError(f"{os.fspath(text)}: no such file")
    if text is not None and not sum(bool(line.strip()) for line in read_texts([text])):
        raise DataError(f"{os.fspath(text)}: no line has a text")
    if not Path(data).exists() and os.fspath(data) != "digits":
        raise DataError(f"{os.fspath(data)}: no such file or folder")
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: not a folder, so no recogniser can be in it")
    if out.is_dir() and not (out / _STATE).exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise DataError(f"{out}: holds something else; choose a new folder for --out")


def _name(data: PathLike) -> str:
    return os.path.realpath(data) if Path(data).exists() else os.fspath(data)


def _expected(trainings: int, steps: int, seconds: float) -> str:
    minutes = trainings * steps * seconds / 60
    each = f"{trainings} trainings of {steps:,} steps" if trainings > 1 else f"a training of {steps:,} steps"
    return f"expect {_span(minutes)} for {each} here, at {seconds:.3g} s a step; completing, tuning and evaluating come on top"


def _span(minutes: float) -> str:
    if minutes >= 120:
        return f"{minutes / 60:.1f} hours"
    return f"{minutes:.{1 if minutes < 10 else 0}f} minutes"


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

    def __init__(
        self, data: PathLike, out: Path, text: PathLike | None, overrides: Sequence[str], minutes: float | None, state: _State,
        progress: Callable[[Moment], None], say: Say,
    ) -> None:  # fmt: skip
        self.data, self.out, self.text, self.overrides, self.minutes = data, out, text, list(overrides), minutes
        self.state, self.progress, self.say = state, progress, say
        self.clock = _Clock(state.done)
        self.near = out
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
        manifest = self._source()
        found = survey(manifest)
        plan = make_plan(found, self.overrides)
        for line in plan.why:
            self.say(line)
        target = self.out / _MANIFEST
        root = root_of(manifest, self.out, self._allowed(manifest))
        bring_in(found, plan, target)
        self.state.plan = {
            "recipe": plan.recipe, "criterion": plan.criterion, "teacher": plan.teacher, "changes": plan.changes,
            "judged": plan.judged, "tests": plan.tests, "root": str(root), "steps": 0,
        }  # fmt: skip
        self._decide_steps(plan, found)

    def _allowed(self, manifest: Path) -> list[Path]:
        """Where files may lie: beside the manifest or below it. One that was prepared here names those of DATA as well."""
        data, beside = Path(self.data), manifest.parent
        if beside != self.out / "data" or not data.exists():
            return [beside]
        folders = [beside, data if data.is_dir() else data.parent]
        both = Path(os.path.commonpath(list(map(os.path.realpath, [self.near, folders[1]]))))
        return folders if both == both.parent else [both, beside]

    def _source(self) -> Path:
        """The manifest to begin with; a corpus is prepared into ``data`` first."""
        data = Path(self.data)
        name = corpora.reader_of(data) if data.exists() else None
        if name is None and data.is_file() and data.suffix.lower() in (".jsonl", ".json"):
            return data
        if data.is_dir() and (data / _MANIFEST).is_file():
            return data / _MANIFEST
        made = self.out / "data" / _MANIFEST
        if not data.exists():  # the word digits
            self.say(str(prepare("digits", made.parent, progress=self._step("data"))).splitlines()[0])
            return made
        if name is None:
            known = "audio or images with a text file beside each, or what `starseq prepare` reads"
            raise DataError(f"{data}: nothing to read there; `starseq fit` takes a manifest, or {known}")
        # What splits it has are kept; others are made here, by rows.
        options: dict[str, Any] = {"dev": 0.0, "test": 0.0, "skip_bad": True}
        takes = inspect.signature(corpora.load(name)).parameters
        done = prepare(
            name, data, made.parent, **{key: value for key, value in options.items() if key in takes}, progress=self._step("data")
        )  # fmt: skip
        self.say(f"{data}: read as {done.corpus}, {done.rows:,} rows")
        if done.unruled:
            self.say(done.about_unruled)
        for reason, count in sorted(done.left_out.items()):
            self.say(f"left out: {count:,} x {reason}")
        if done.bad:
            self.say(f"left out: {done.bad:,} bad rows, see {made.parent / 'bad.jsonl'}")
        return made

    def _decide_steps(self, plan: Plan, found: Survey) -> None:
        recipe = load_recipe(plan.recipe, [*plan.changes, *self.overrides])
        given = asked(self.overrides, "trainer.max_steps") is not None
        steps = (recipe.trainer.max_steps or 1) if given else steps_for(recipe, found)
        self.plan["steps"] = steps
        if self.minutes is None or given:
            self.say(f"each training has {steps:,} steps")
            return
        seconds = self.seconds_per_step()
        allowed = max(1, int(TRAINING_SHARE * 60 * self.minutes / (self.trainings * seconds)))
        if allowed >= steps:
            self.say(
                f"each training has {steps:,} steps: {self.minutes:g} minutes are enough, at {seconds:.3g} s a step"
            )
            return
        self.plan["steps"] = allowed
        self.say(
            f"each training has {allowed:,} steps, for {self.minutes:g} minutes and {seconds:.3g} s a step; "
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
        error = runs.load(teacher).dev_error
        if error is not None and error > MOST_ERRORS:
            self.say(
                f"the teacher's error on dev is {error:.0f} %: what it fills in is mostly guesses; more training or more known "
                "text would help"
            )
        summary = pseudo(
            teacher, self.out / _MANIFEST, self.out / _COMPLETED, kind="keep-known", splits=[TRAIN], force=True,
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
            self._close()
        self._train("student", self._recipe("last"))

    def _close(self) -> None:
        """What the student learns from: completed rows, without those that failed and those that are known to lack labels still.

        A gap in which nothing was read is empty.
        """
        completed = self.out / _COMPLETED
        failed = {json.loads(line)["id"] for line in (self.out / "completed.failed.jsonl").read_bytes().splitlines()}
        counts: Counter[str] = Counter()
        with manifest_writer(self.out / _CLOSED, checked=True) as writer:
            for row in read_manifest(completed, labelled=False):
                if row.get("split") != TRAIN:
                    writer.write(row)
                    continue
                text = without_gaps(row.text)
                if row.id in failed:
                    continue
                if row.get("refused"):
                    counts["refused"] += 1
                elif not text:
                    counts["silent"] += 1
                else:
                    counts["closed"] += gaps_in(row.text)
                    counts["rows"] += 1
                    writer.write(row.replace(text=text, gaps="marked"))
            if not counts["rows"]:
                raise DataError(
                    f"{completed}: no training row was completed, so nothing is there to learn from; more training of the teacher "
                    "or more known text would help"
                )
        if counts["refused"]:
            self.say(
                f"{counts['refused']:,} rows are left out: what was read in their gaps does not fit beside what is known"
            )
        if counts["silent"]:
            self.say(f"{counts['silent']:,} rows without a text in which nothing was read are left out")
        if counts["closed"]:
            self.say(f"{counts['closed']:,} gaps in which nothing was read are taken for empty")

    def _lm(self) -> None:
        """Of the training texts, and of the file that was given, mixed so that dev is likeliest."""
        student, manifest = self.out / "student", self._labelled()
        unit, normaliser = text_settings(student, None)
        step, kept = self._step("lm"), self.out / "lm"
        texts, target = kept / "train.jsonl", self.out / _LM
        others = {str(row.get("split")) for row in read_manifest(manifest)} - {TRAIN}
        filter_manifest(manifest, texts, [Condition("split", "!=", name) for name in sorted(others)])
        settings: dict[str, Any] = {
            "order": ORDER[unit], "vocabulary": student / "tokens.txt", "unit": unit, "normaliser": normaliser, "progress": step,
        }  # fmt: skip
        if self.text is None:
            found = train_ngram([texts], target, **settings)
            self.say(f"{target}: {ORDER[unit]}-grams of {found.sentences:,} training texts")
            return
        own, given, dev = kept / "own.arpa", kept / "text.arpa", kept / "dev.jsonl"
        train_ngram([texts], own, **settings)
        train_ngram([self.text], given, prune=PRUNE[unit], **settings)
        weighed: dict[str, Any] = {"weights": (0.5, 0.5)}
        if DEV in self.plan["judged"]:
            rows = (row for row in read_manifest(manifest) if row.get("split") == DEV and row.complete)
            write_manifest(dev, (row.replace(text=row.get("text_full") or row.text) for row in rows))
            weighed = {"dev": [dev]}
        mixed = mix_ngrams([own, given], target, unit=unit, normaliser=normaliser, progress=step, **weighed)
        self.say(f"{target}: {mixed.weights[0]:.0%} training texts, {mixed.weights[1]:.0%} {self.text}")

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
            completed=self.out / _COMPLETED if self.plan["teacher"] else None,
        )  # fmt: skip

    # What the parts share.

    def _runs(self) -> list[str]:
        return ["teacher", "student"] if self.plan["teacher"] else ["student"]

    def _labelled(self) -> Path:
        """The manifest that the last training reads."""
        return self.out / (_CLOSED if self.plan["teacher"] else _MANIFEST)

    def _recipe(self, which: str) -> Recipe:
        """Of the first training, and of the last, which is the first where there is no teacher."""
        student = which == "last" and self.plan["teacher"]  # learns from complete rows
        root = Path(self.plan["root"])
        manifest = os.path.relpath(
            os.path.realpath(self._labelled() if which == "last" else self.out / _MANIFEST), root
        )
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
                self.say(_expected(self.trainings, self.steps, (now - first[1]) / (done - first[0])))
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
            return _measured(self._recipe("first"), Path(folder, "run"))

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


class _Enough(Exception):
    """The steps that were measured are enough."""


def _measured(recipe: Recipe, folder: Path) -> float:
    """Seconds of a step, from a training that is stopped after some."""
    seen: list[tuple[int, float]] = []

    def metrics(now: Metrics) -> None:
        seen.append((now.step, now.seconds))
        if len(seen) > 2 and seen[-1][1] - seen[0][1] > MEASURED_SECONDS:
            raise _Enough

    quick = replace(recipe.trainer, log_every=5, eval_every=10**9, checkpoint_every=10**9, tensorboard=False)
    with suppress(_Enough):
        train(replace(recipe, trainer=quick), folder, on_metrics=metrics)
    (first, begun), (last, ended) = (seen[0] if len(seen) > 1 else (0, 0.0)), seen[-1]
    return (ended - begun) / (last - first)


def _workers() -> int:
    """Processes that search: one a core, where there are several."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 16) if cores > 1 else 0


# --- the time left ----------------------------------------------------------------------------------------------------


class _Clock:
    """How far the whole is: what is done by its time, what is to come in times of a training."""

    def __init__(self, done: dict[str, float]) -> None:
        self.done = done
        self.begun, self.share = 0.0, 0.0
        self._first: tuple[int, float] | None = None

    def begin(self) -> None:
        self.begun, self._first = time.monotonic(), None

    def end(self) -> float:
        return round(time.monotonic() - self.begun, 1)

    def at(self, part: str, parts: Sequence[str], done: int, total: int | None) -> tuple[float, float | None]:
        """The share of the whole that is done, and the seconds left, None where nothing tells yet."""
        now = time.monotonic()
        if self._first is None or done < self._first[0]:
            self._first = (done, now)
        weight = {name: 1.0 if name in ("teacher", "student") else SHARES.get(name, 0.0) for name in parts}
        within = min(1.0, done / total) if total else 0.0
        before = sum(weight[name] for name in parts[: parts.index(part)])
        # A part that goes over its rows several times begins to count anew.
        self.share = max(self.share, (before + within * weight[part]) / (sum(weight.values()) or 1.0))
        ahead = sum(weight[name] for name in parts[parts.index(part) + 1 :])
        training = max((self.done[name] for name in ("teacher", "student") if name in self.done), default=None)
        rate = (now - self._first[1]) / (done - self._first[0]) if done > self._first[0] else None
        left = None if rate is None or not total else rate * (total - done)
        if part in ("teacher", "student"):
            training = training if rate is None or not total else rate * total
        elif training is not None:
            left = max(left or 0.0, training * weight[part] - (now - self.begun))
        return self.share, None if left is None or training is None else left + ahead * training
