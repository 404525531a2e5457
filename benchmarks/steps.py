"""What the experiments are: tables, their cells, and the steps that make a cell.

A table is a file of benchmarks/cells/. A step is named by a hash of its commands, which name the steps that they build on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "benchmarks" / "cells"

STAGES = ("drop", "train", "greedy", "pseudo", "lm", "tune", "beam")
FULL = "0"
"""the condition in which no label is dropped: CTC there is the supervised model"""
BEST = "best"
"""in `runs`: the hand-set schedule with the lowest dev error of the first seed"""
SUMMARY = ("ctc", "stc", "student", "read", "full")
"""columns of the table of all corpora; `read` is the student with a language model, `full` CTC so where no label is dropped"""

Record = dict[str, Any]


class Mistake(Exception):
    """What the user can mend, as one sentence."""


@dataclass(frozen=True)
class Step:
    """`starseq` commands that belong together. Paths in them are relative to the work folder."""

    key: str
    stage: str
    commands: tuple[tuple[str, ...], ...]
    makes: tuple[str, ...]
    """files that are there when it is done and that later steps read"""
    like: str
    """steps of the same kind take about the same time"""

    @property
    def text(self) -> str:
        return "\n".join(map("\n".join, self.commands))

    @property
    def run(self) -> str | None:
        """The run folder that it makes or reads."""
        found = re.search(r"runs/[0-9a-f]+", self.text)
        return found[0] if found else None

    def option(self, name: str) -> str | None:
        """The value of an option of its last command."""
        command = self.commands[-1]
        return command[command.index(name) + 1] if name in command else None

    def feeds(self, later: Step) -> bool:
        """Whether a later step reads what this one makes: it names this one; or, of a tuned run, the run."""
        return self.key in later.text or (self.stage == "tune" and str(self.run) in later.text)


@dataclass(frozen=True)
class Cell:
    """One condition, method and seed of a table."""

    table: str
    corpus: str
    condition: str
    method: str
    seed: int
    metric: str
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"{self.condition}/{self.method}/{self.seed}"

    @property
    def key(self) -> str:
        """Of all that decides its result."""
        return self.steps[-1].key


def in_order(path: Path) -> tuple[int, str]:
    """Sorts files by number: 2 before 10."""
    return len(path.stem), path.stem


@dataclass(frozen=True)
class Table:
    """A file of benchmarks/cells/. `base` names another table, whose keys hold where a file has none of its own."""

    name: str
    title: str
    corpus: str
    metric: str
    """the error rate that counts: cer or wer"""
    recipe: str
    steps: int
    """of every training"""
    drop: Mapping[str, Any]
    """`unit` of labels that are dropped, and `seed`, the same for every cell"""
    conditions: Mapping[str, Mapping[str, Any]]
    """by name, options of `starseq drop`: p-drop, sample-splits, word-splits; none for full labels"""
    methods: Mapping[str, Mapping[str, Any]]
    """by name, `train` (overrides of the recipe), or `from`, a method whose run goes on: to `pseudo` (options) and a student,
    with its `train`, where `also` are pairs of a method and a seed whose runs label together with it; to a beam search with
    `lm`, which may be one without a language model. Pseudo-labels from a method with `lm` are read with what it has of language
    model and weights. `labels: true` only drops labels. `title` is for the pages."""
    runs: Sequence[Mapping[str, Any]]
    """blocks of conditions, methods and seeds, in the order in which they are wanted"""
    overrides: Sequence[str] = ()
    """of the recipe, for every training"""
    schedules: Mapping[str, Any] = field(default_factory=dict)
    """the grid of hand-set schedules: `grid` of (p0, p_max), `half_life`, and maybe `train`, further overrides; each is a
    method `stc-P0-PMAX`"""
    supervised: str = "ctc"
    """the method that is the base of ratios, at full labels"""
    base_at_most: float | None = None
    """the supervised error, in percent, above which ratios say little"""
    targets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """by method and condition (`*`: any), the multiple of the supervised error to reach"""
    or_points: float | None = None
    """... or so many points above the supervised error"""
    columns: Mapping[str, str] = field(default_factory=dict)
    """of the table that is shown first: methods, or `best`, and their titles there; all methods where there are none"""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """for the table of all corpora: `title`, and which method stands in a column"""
    revision: int = 1
    """to be raised when something changed that the commands don't show, such as a recipe: then all is run anew"""
    note: str = ""

    @classmethod
    def load(cls, name: str) -> Table:
        """By its number, or by the path of a file."""
        path = Path(name) if name.endswith(".yaml") else TABLES / f"{name}.yaml"
        if not path.is_file():
            there = ", ".join(path.stem for path in sorted(TABLES.glob("*.yaml"), key=in_order))
            raise Mistake(f"table {name!r} is none of {there}, and not a .yaml file")
        try:
            tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise Mistake(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        base = tree.pop("base", None)
        if base is not None:
            below = cls.load(str(base) if not str(base).endswith(".yaml") else str(path.parent / base))
            tree = {**{f.name: getattr(below, f.name) for f in fields(cls) if f.name != "name"}, **tree}
        known = {f.name for f in fields(cls)}
        wrong = sorted(set(tree) - known)
        if wrong:
            raise Mistake(f"{path}: {wrong[0]!r} is not a key of a table; there are {', '.join(sorted(known))}")
        try:
            table = cls(**{**tree, "name": path.stem})
        except TypeError as error:
            raise Mistake(f"{path}: {str(error).removeprefix('Table.__init__() ')}") from None
        for block in table.runs:
            for kind, names in (("conditions", [*table.conditions]), ("methods", [*table.all_methods(), BEST])):
                missing = [name for name in block[kind] if name not in names]
                if missing:
                    raise Mistake(f"{path}: runs: {missing[0]!r} is none of the {kind} {', '.join(names)}")
        for method in table.columns:
            if method not in (*table.all_methods(), BEST):
                raise Mistake(f"{path}: columns: {method!r} is none of the methods {', '.join(table.all_methods())}")
        if not isinstance(table.summary, Mapping) or not all(isinstance(text, str) for text in table.summary.values()):
            raise Mistake(f"{path}: summary: expected names of methods by column, got {table.summary!r}")
        for column, method in table.summary.items():
            if column not in ("title", *SUMMARY):
                raise Mistake(f"{path}: summary: {column!r} is none of title, {', '.join(SUMMARY)}")
            if column != "title" and method not in table.all_methods():
                raise Mistake(f"{path}: summary: {method!r} is none of the methods {', '.join(table.all_methods())}")
        return table

    def grid(self) -> dict[str, Mapping[str, Any]]:
        """The hand-set schedules as methods."""
        return {
            f"stc-{p0:g}-{p_max:g}": {
                "title": f"STC p {p0:g} to {p_max:g}",
                "train": [
                    "criterion.name=stc", "penalty.name=schedule", f"penalty.p0={p0:g}", f"penalty.p_max={p_max:g}",
                    f"penalty.half_life={self.schedules['half_life']}", *self.schedules.get("train", ()),
                ],
            }
            for p0, p_max in self.schedules.get("grid", ())
        }  # fmt: skip

    def all_methods(self) -> dict[str, Mapping[str, Any]]:
        return {**self.methods, **self.grid()}

    def shown(self) -> Mapping[str, str]:
        """The methods of the table that is shown first, with their titles there."""
        named = {
            method: str(spec.get("title", method)) for method, spec in self.methods.items() if not spec.get("labels")
        }
        return self.columns or named

    def cell(self, condition: str, method: str, seed: int, extra: Sequence[str] = ()) -> Cell:
        """`extra` are further overrides of every training."""
        steps = _Chain(self, condition, seed, extra).steps(method)
        return Cell(self.name, self.corpus, condition, method, seed, self.metric, tuple(steps))

    def cells(self, lines: Sequence[Record] = (), extra: Sequence[str] = ()) -> list[Cell]:
        """In the order in which they are wanted. `lines` decide which schedule is the best; where that is open, its cells are
        not among them yet."""
        found: dict[str, Cell] = {}
        for block in self.runs:
            for seed in block["seeds"]:
                for condition in block["conditions"]:
                    for method in block["methods"]:
                        chosen = self.best_schedule(condition, lines, extra) if method == BEST else method
                        if chosen is not None:
                            cell = self.cell(condition, chosen, seed, extra)
                            found.setdefault(cell.name, cell)
        return list(found.values())

    def best_schedule(self, condition: str, lines: Sequence[Record], extra: Sequence[str] = ()) -> str | None:
        """The method of the grid with the lowest dev error at the lowest seed; None until all of them are there."""
        seed = min(seed for block in self.runs for seed in block["seeds"])
        by_key = {line["key"]: line for line in lines}
        found = {method: by_key.get(self.cell(condition, method, seed, extra).key) for method in self.grid()}
        errors = {name: line["errors"]["dev"]["greedy"][self.metric] for name, line in found.items() if line}
        return min(errors, key=lambda name: errors[name]) if errors and len(errors) == len(found) else None


@dataclass(frozen=True)
class _Chain:
    """From a method's description to its steps."""

    table: Table
    condition: str
    seed: int
    extra: Sequence[str]

    def steps(self, method: str) -> list[Step]:
        table, spec = self.table, self.table.all_methods()[method]
        wrong = set(spec) - {"title", "train", "from", "also", "pseudo", "lm", "labels"}
        if wrong:
            raise Mistake(f"table {table.name}, method {method}: {wrong.pop()!r} is not a key of a method")
        if "also" in spec and "pseudo" not in spec:
            raise Mistake(f"table {table.name}, method {method}: `also` is for pseudo-labels, and it has no `pseudo`")
        if spec.get("labels"):
            return [self._drop()]
        before = self.steps(spec["from"]) if "from" in spec else []
        if "lm" in spec:
            return [*before, *self._beam(before, spec["lm"])]
        manifest = None
        if "pseudo" in spec:
            before, lm = self._to_read_with(spec["from"], before, spec["pseudo"])
            partial = [self._drop()] if self.condition != FULL else []
            others = [self._trained(*other) for other in spec.get("also", ())]
            also = [word for steps in others for word in ("--also", _last_run(steps))]
            pseudo = self._pseudo(before, partial, [*also, *lm, *spec["pseudo"]])
            before = list(dict.fromkeys([*(step for steps in others for step in steps), *before]))
            before, manifest = [*before, *partial, pseudo], Path(pseudo.makes[0]).name
        train = self._train(spec["train"], manifest, before)
        return [*before, train, self._evaluate("greedy", train, before)]

    def _trained(self, method: str, seed: int) -> list[Step]:
        """The steps up to the training of a method with a seed of its own."""
        steps = _Chain(self.table, self.condition, seed, self.extra).steps(method)
        return steps[: 1 + max(i for i, step in enumerate(steps) if step.stage == "train")]

    def _to_read_with(
        self, method: str, before: Sequence[Step], options: Sequence[str]
    ) -> tuple[list[Step], list[str]]:
        """The steps of a method that pseudo-labels need, and options that say how to read: with the language model of the
        method's beam search, or, where it has none, with that very search. Its evaluation is not needed, nor its tuning where
        the weights are given."""
        lm = self.table.all_methods()[method].get("lm")
        if lm is None:
            return list(before), []
        if "rescore" in lm or "lexicon" in lm:
            raise Mistake(f"table {self.table.name}: pseudo-labels of {method} would need its `rescore` or `lexicon`")
        given = {"--alpha", "--beta"} if "text" in lm else {"--beta"}
        less = {"beam", "tune"} if given <= set(options) else {"beam"}
        trained = max(i for i, step in enumerate(before) if step.stage == "train")
        kept = [step for i, step in enumerate(before) if i < trained or step.stage not in less]
        if "text" not in lm:
            return kept, list(map(str, lm["search"]))
        return kept, ["--lm", next(step.makes[0] for step in reversed(kept) if step.stage == "lm")]

    @property
    def corpus(self) -> str:
        return f"data/{self.table.corpus}"

    def _train(self, overrides: Sequence[str], manifest: str | None, before: Sequence[Step]) -> Step:
        table = self.table
        # A student has complete labels; a teacher loses them on the fly, which is what `starseq drop` would write (the choice
        # depends on seed, id and position alone), and leaves dev, test and the vocabulary as they are.
        labels = self._dropped() if manifest is None else [f"data.manifest={manifest}"]
        command = [
            "train", table.recipe, f"data.root={self.corpus}", *labels, *table.overrides, *overrides, *self.extra,
            f"trainer.max_steps={table.steps}", f"seed={self.seed}", "--out", "runs/{key}", "--resume",
        ]  # fmt: skip
        return self._step("train", [command], ["runs/{key}/model.safetensors"], before)

    def _dropped(self) -> list[str]:
        """The condition as keys of a recipe."""
        names = {"p-drop": "label", "sample-splits": "sample", "word-splits": "type"}
        found = [
            [f"data.drop.p={json.dumps(value)}".replace(" ", ""), f"data.drop.by={names[option]}"]
            for option, value in self._conditions().items()
        ]
        if not found:
            return []
        return [*found[0], f"data.drop.unit={self.table.drop['unit']}", f"data.drop.seed={self.table.drop['seed']}"]

    def _conditions(self) -> Mapping[str, Any]:
        options = self.table.conditions[self.condition]
        if set(options) - {"p-drop", "sample-splits", "word-splits"} or len(options) > 1:
            raise Mistake(
                f"table {self.table.name}, condition {self.condition}: one of p-drop, sample-splits, word-splits; got {options}"
            )
        return options

    def _drop(self) -> Step:
        """The same labels as a manifest, for pseudo-labels to go on from, beside the corpus's own."""
        name, folder = "{key}", self.corpus
        options = self._conditions() or {"p-drop": 0}
        ((option, value),) = options.items()
        rates = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        split = ["manifest", "split", f"{folder}/manifest.jsonl", f"{folder}/splits"]
        # Only training rows: those of dev and test that lose every label would be pruned.
        drop = [
            "drop", f"{folder}/splits/train.jsonl", f"{folder}/splits/{name}.jsonl", f"--{option}", rates,
            "--unit", self.table.drop["unit"], "--seed", str(self.table.drop["seed"]), "--keep-text", "--no-plot",
        ]  # fmt: skip
        parts = [f"{folder}/splits/{part}.jsonl" for part in (name, "dev", "test")]
        merge = ["manifest", "merge", *parts, "--out", f"{folder}/partial-{name}.jsonl"]
        return self._step("drop", [split, drop, merge], [f"{folder}/partial-{{key}}.jsonl"], [])

    def _pseudo(self, before: Sequence[Step], partial: Sequence[Step], options: Sequence[str]) -> Step:
        manifest = partial[0].makes[0] if partial else f"{self.corpus}/manifest.jsonl"
        out = f"{self.corpus}/pseudo-{{key}}.jsonl"
        command = ["pseudo", _last_run(before), manifest, "--out", out, *map(str, options)]
        return self._step("pseudo", [command], [out], before)

    def _evaluate(self, stage: str, train: Step, before: Sequence[Step], *options: str) -> Step:
        command = ["evaluate", str(train.run), "--split", "dev", "--split", "test", "--examples", "0", *options]
        return self._step(stage, [command], [], [*before, train])

    def _beam(self, before: Sequence[Step], lm: Mapping[str, Any]) -> list[Step]:
        """A beam search, with options `search` and weights that are tuned on dev: that of the length, and that of a language model
        where `lm` names a `text`."""
        known = ("search", "text", "options", "pseudo", "mix", "lexicon", "rescore") if "text" in lm else ("search",)
        wrong = [key for key in lm if key not in known]
        if wrong:
            raise Mistake(
                f"table {self.table.name}: {wrong[0]!r} is not a key of `lm`{'' if 'text' in lm else ' without `text`'}"
            )
        run, search = _last_run(before), list(map(str, lm.get("search", ())))
        if "text" not in lm and "--beam" not in search:
            raise Mistake(f"table {self.table.name}: `lm` without `text` needs a `search` with --beam")
        made, use = self._language_models(before, lm, search) if "text" in lm else ([], search)
        tune = self._step("tune", [["tune", run, *use]], [f"{run}/tuned.json"], before)
        trained = next(step for step in reversed(before) if step.stage == "train")
        return [*made, tune, self._evaluate("beam", trained, [*before, tune], *use)]

    def _language_models(
        self, before: Sequence[Step], lm: Mapping[str, Any], search: Sequence[str]
    ) -> tuple[list[Step], list[str]]:
        """A language model of `text`, made with `options`; and the options of a search with it. `text: pseudo` is the training
        rows as the run's pseudo-labels complete them (a teacher makes some for this), so that nothing is used that was
        dropped; else it is a file under the folder of data. `mix` is another model, of such a file, normalised as `recipe`
        does; how much of it, the texts of dev decide. `lexicon: true` holds letters to the model's words, `rescore` are the
        options of a Transformer on the same text that reorders the n best."""
        made, text, select = list[Step](), f"data/{lm['text']}", list[list[str]]()
        if lm["text"] == "pseudo":
            written = [step for step in before if step.stage == "pseudo"]
            if self.condition != FULL and not written:
                made = [self._drop()]
                made.append(self._pseudo(before, made, lm.get("pseudo", ["--kind", "keep-known"])))
                written = made[1:]
            source = written[-1].makes[0] if written else f"{self.corpus}/manifest.jsonl"
            text = "lm/{key}.jsonl"
            select = [["manifest", "filter", source, text, "--where", "split=train"]]
        options, rescore = (list(map(str, lm.get(name, ()))) for name in ("options", "rescore"))
        train = ["lm", "train", text, "--recipe", self.table.recipe]
        ngram = self._step(
            "lm", [*select, [*train, "--out", "lm/{key}.arpa", *options]], ["lm/{key}.arpa", "lm/{key}.words"], before
        )
        made.append(ngram)
        if "mix" in lm:
            made += self._mixed(ngram, lm["mix"])
            ngram = made[-1]
        use = ["--lm", ngram.makes[0], *(["--lexicon", ngram.makes[1]] if lm.get("lexicon") else []), *search]
        if rescore:
            neural = [*select, [*train, "--neural", "--out", "lm/{key}", *rescore]]
            made.append(self._step("lm", neural, ["lm/{key}/model.safetensors"], [*before, *made]))
            use += ["--rescore", str(Path(made[-1].makes[0]).parent)]
        return made, use

    def _mixed(self, ngram: Step, other: Mapping[str, Any]) -> list[Step]:
        """Another n-gram model, of a file under the folder of data, and the mixture."""
        if not {"text", "recipe"} <= set(other) <= {"text", "recipe", "options"}:
            raise Mistake(f"table {self.table.name}: `mix` has text, recipe and maybe options; got {', '.join(other)}")
        arpa, words = "lm/{key}.arpa", "lm/{key}.words"
        train = ["lm", "train", f"data/{other['text']}", "--recipe", other["recipe"], "--out", arpa]
        second = self._step("lm", [[*train, *map(str, other.get("options", ()))]], [arpa, words], [])
        dev = "lm/{key}.dev.jsonl"
        filtered = ["manifest", "filter", f"{self.corpus}/manifest.jsonl", dev, "--where", "split=dev"]
        mix = ["lm", "mix", ngram.makes[0], second.makes[0], "--dev", dev, "--recipe", self.table.recipe, "--out", arpa]
        return [second, self._step("lm", [filtered, mix], [arpa, words], [])]

    def _step(
        self, stage: str, commands: Sequence[Sequence[str]], makes: Sequence[str], before: Sequence[Step]
    ) -> Step:
        identity = json.dumps([self.table.revision, stage, commands])
        key = blake2b(identity.encode(), digest_size=6).hexdigest()
        # The second training of a chain is that of a student, which may be another model.
        number = sum(step.stage == "train" for step in before)
        return Step(
            key, stage, tuple(tuple(part.replace("{key}", key) for part in command) for command in commands),
            tuple(part.replace("{key}", key) for part in makes), f"{self.table.corpus}/{number}/{stage}",
        )  # fmt: skip


def _last_run(steps: Sequence[Step]) -> str:
    return next(str(step.run) for step in reversed(steps) if step.stage == "train")
