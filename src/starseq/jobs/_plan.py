"""What `starseq fit` decides: recipe, criterion, labels, splits and steps, by what the rows hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starseq.config import Recipe, build, load_recipe, override_tree
from starseq.data.dataset import LineReader
from starseq.data.errors import DataError
from starseq.data.manifest import read_manifest
from starseq.data.split import DevChoice, choose_dev
from starseq.jobs._survey import DEV, TRAIN, Survey, can_be_judged

__all__ = ["Plan", "asked", "check_overrides", "make_plan", "recipe_for_steps", "steps_for"]

# --- the numbers to choose by measurement -----------------------------------------------------------------------------

PASSES = {"speech": 60, "handwriting": 30, "digits": 10}
"""How often a training sees its rows ..."""
FEWEST, MOST = 0.15, 2.0
"""... but no fewer and no more steps than so many times those of the recipe."""
EVALUATIONS = 10
"""of a training, at least"""
FEW_MARKED = 0.01
"""Share of the rows: where fewer mark a gap, it is no habit to mark them"""
CLOSED_TYPES, CLOSED_TIMES = 200, 10
"""A closed vocabulary has no more word types, and each occurs so often on average."""
CLOSED = (
    "text.unit=word", "text.missing=null", "data.budget=120", "model.kernel=15", "model.stride=8", "model.width=144",
    "model.hidden=576", "model.layers=4", "model.letter_to_word=true",
)  # fmt: skip
"""What a closed vocabulary changes in the recipe `speech`: words are the labels, of a smaller model with longer frames"""


@dataclass
class Plan:
    """What will be done with the rows, and why, one line for each decision."""

    recipe: str
    teacher: bool
    """whether rows are completed by a teacher first"""
    criterion: str
    """of the first training"""
    changes: list[str] = field(default_factory=list)
    """overrides of the recipe, for every training"""
    why: list[str] = field(default_factory=list)
    dev: DevChoice | None = None
    """rows of train that become dev"""
    closes: bool = False
    """whether texts without a mark are taken for complete"""
    silent: bool = False
    """whether no text can be known to be complete, for labels are missing without a mark"""
    judged: list[str] = field(default_factory=list)
    """splits to evaluate on; the first is dev, where there is one"""
    tests: list[str] = field(default_factory=list)
    drops: bool = False
    """whether the recipe drops labels of the training rows on the fly"""

    @property
    def has_dev(self) -> bool:
        return DEV in self.judged


def make_plan(found: Survey, overrides: Sequence[str]) -> Plan:
    """The decisions. Rows that nothing can be learned from are a `DataError`."""
    train = found.train
    names = [name or "(none)" for name in found.splits]
    if not train.rows:
        raise DataError(
            f"{found.manifest}: no row to train on, for none is of a split called train (there are {', '.join(names)})"
        )
    if not train.told:
        raise DataError(
            f"{found.manifest}: no row has a text to learn from: `starseq fit` needs some transcripts, with holes or without"
        )
    plan = Plan(_recipe_for(found), teacher=False, criterion="ctc")
    say = plan.why.append
    what = "hold audio" if found.kind == "audio" else "are images"
    built_in = ", of built-in digits" if plan.recipe == "digits" else ""
    say(f"recipe {plan.recipe}: {train.rows:,} rows to train on {what}{built_in}")
    plan.drops = asked(overrides, "data.drop") is not None
    _decide_criterion(plan, found, asked(overrides, "criterion.name"))
    plan.changes += [f"criterion.name={plan.criterion}"]
    if found.features:
        say("the rows are stored features")
    _decide_unit(plan, found, asked(overrides, "text.unit"), own_model=asked(overrides, "model.name") is not None)
    unnamed = found.names("none")
    if unnamed:
        rows = sum(found.splits[name].rows for name in unnamed)
        say(f"not used: {rows:,} rows of {', '.join(unnamed)}, for these are no names of train, dev or test")
    _decide_splits(plan, found)
    return plan


def _recipe_for(found: Survey) -> str:
    if found.corpus == "digits" and found.kind == "images":
        return "digits"
    return "speech" if found.kind == "audio" else "handwriting"


def _decide_criterion(plan: Plan, found: Survey, wanted: str | None) -> None:
    train, say = found.train, plan.why.append
    reasons = []
    if train.gaps:
        reasons.append(f"{train.gaps:,} of them mark a gap")
    if train.lost:
        reasons.append(f"{train.lost:,} have lost labels of their text_full")
    if plan.drops:
        reasons.append("data.drop drops labels")
    if found.thinner:
        ours, theirs = found.train.density, found.held_out.density
        unit = "a second" if found.kind == "audio" else "a line height"
        reasons.append(f"they have {ours:.2f} characters {unit}, and those of dev and test {theirs:.2f}")
    if wanted == "stc" and not reasons:
        reasons.append("criterion.name=stc asks for it")
    plain = train.told - train.gaps - train.closed - train.lost
    if plain and train.gaps and not (train.lost or found.thinner or plan.drops or wanted == "stc"):
        plan.closes = True
    plan.silent = bool(reasons) and not (plan.closes or train.lost or plan.drops or not plain)
    if reasons and wanted in (None, "stc"):
        plan.criterion, plan.teacher = "stc", True
        say(
            f"labels are missing in the training rows ({'; '.join(reasons)}): STC trains a teacher, which completes them"
        )
    elif reasons:
        plan.criterion, plan.teacher = str(wanted), True
        say(
            f"labels are missing ({'; '.join(reasons)}), and criterion.name={wanted} was asked for: that trains the teacher"
        )
    elif train.untold:
        plan.closes = plan.teacher = True
        plan.criterion = wanted or "ctc"
        say("no text says that labels are missing: CTC trains a teacher on the rows that have a text")
    else:
        plan.criterion = wanted or "ctc"
        say(
            "no row marks a gap, and nothing else says that labels are missing: CTC will do. "
            "If they are missing without a mark, add criterion.name=stc"
        )
    if plan.closes and train.gaps:
        few = f"warning: only {train.gaps:,} rows mark a gap; " if train.gaps < FEW_MARKED * train.told else ""
        say(
            f"{few}{plain:,} rows mark no gap, and are taken for complete, as others mark theirs; "
            "add criterion.name=stc if they are not"
        )
    if train.untold:
        say(f"{train.untold:,} rows without text are read by the teacher, and the student learns from them too")


def _decide_unit(plan: Plan, found: Survey, wanted: str | None, *, own_model: bool = False) -> None:
    types, total = len(found.words), sum(found.words.values())
    closed = types <= CLOSED_TYPES and total >= CLOSED_TIMES * types and found.whole_words is not False
    if wanted == "piece":
        plan.changes.append("text.missing=null")
        plan.why.append("labels are pieces of words, as text.unit asks for")
    elif wanted == "word":
        plan.changes.append("text.missing=null")
        plan.why.append("labels are words, as text.unit asks for")
    elif plan.recipe == "speech" and closed and wanted is None and not own_model:
        plan.changes += CLOSED
        plan.why.append(f"labels are words: there are {types:,}, each {total / types:,.0f} times on average")
    elif plan.criterion == "stc" and found.whole_words is not None:
        plan.changes.append(f"text.missing={'word' if found.whole_words else 'null'}")
        plan.why.append(
            "labels are characters; what is missing are "
            + ("whole words" if found.whole_words else "characters, also inside words")
        )
    else:
        plan.why.append("labels are characters")


def _decide_splits(plan: Plan, found: Survey) -> None:
    say = plan.why.append
    plan.tests = found.names("test")
    given = found.names(DEV)
    rows, judged = (sum(getattr(found.splits[name], count) for name in given) for count in ("rows", "judged"))
    if judged:
        left = f"; {rows - judged:,} without a complete text are left out" if judged < rows else ""
        say(f"dev: {judged:,} rows of {', '.join(given)}{left}")
        plan.judged = [DEV]
    else:
        none = f"none of the {rows:,} rows of {', '.join(given)} has a complete text" if given else "there is none"
        trained = (
            row
            for row in read_manifest(found.manifest, labelled=False)
            if found.role(str(row.get("split") or "")) == TRAIN
        )
        plan.dev = choose_dev(
            (row, can_be_judged(row) and (not plan.silent or "text_full" in row.fields)) for row in trained
        )
        if plan.dev is None:
            say(
                f"dev: {none}, and fewer than two training rows have a text that is known to be complete, "
                "so nothing is judged on dev"
            )
        else:
            by = "rows" if plan.dev.by == "id" else f"rows of {len(plan.dev.values):,} of the field {plan.dev.by}"
            taken = f"{plan.dev.rows:,} {by} are taken from train, always the same"
            say(f"dev: {none}, so {taken}; {plan.dev.judged:,} can be judged")
            plan.judged = [DEV]
    for name in plan.tests:
        side = found.splits[name]
        if side.judged:
            plan.judged.append(name)
            left = (
                f"; {side.rows - side.judged:,} without a complete text are left out" if side.judged < side.rows else ""
            )
            say(f"test: {side.judged:,} rows of {name}{left}")
        else:
            say(f"test: none of the {side.rows:,} rows of {name} has a complete text, so nothing is judged on them")
    if not plan.judged:
        say("no error rate will be known: no row of dev or test has a complete text")


def asked(overrides: Sequence[str], key: str) -> Any:
    """What overrides say of a key, however they are written; None if they say nothing.

    >>> asked(["data.drop={p: 0.5}"], "data.drop.p"), asked(["data.drop.p=0.5"], "data.drop"), asked([], "seed")
    (0.5, {'p': 0.5}, None)
    """
    found: Any = override_tree(overrides)
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises `DataError` for what a fit decides by itself."""
    for key in ("data.corpus", "data.manifest", "data.root", "data.splits"):
        if asked(overrides, key) is not None:
            raise DataError(f"{key}: `starseq fit` takes files and splits from DATA, so leave this out")


def steps_for(recipe: Recipe, found: Survey) -> int:
    """Optimiser steps for the training rows: so many passes, within bounds that the recipe gives."""
    data, own = recipe.data, recipe.trainer.max_steps or 1
    rows = found.train.rows
    batches = [rows / data.max_items] if data.max_items else []
    if data.budget and found.total_size:
        reader = build.reader(recipe)
        height = reader.height if isinstance(reader, LineReader) else 1
        batches.append(found.total_size * height / data.budget)
    if not batches:
        return own
    name = _recipe_for(found)
    steps = PASSES[name] * max(batches) / recipe.optim.batches_per_step
    return max(1, round(min(max(steps, FEWEST * own), MOST * own)))


def recipe_for_steps(name: str, changes: Sequence[str], steps: int, overrides: Sequence[str]) -> Recipe:
    """The recipe of a training with so many steps, evaluated and saved often enough. `overrides` have the last word."""
    own = load_recipe(name, [*changes, *overrides])
    often = max(1, min(own.trainer.eval_every, steps // EVALUATIONS))
    lengths = [
        f"trainer.max_steps={steps}", f"trainer.eval_every={often}", f"trainer.checkpoint_every={often}",
        f"optim.warmup_steps={min(own.optim.warmup_steps, steps // 10)}",
        f"optim.head_steps={min(own.optim.head_steps, steps // 10)}",
    ]  # fmt: skip
    return load_recipe(name, [*changes, *lengths, *overrides])
