"""What `starseq fit` makes of data that it has never seen: what the rows hold, and what follows for the training."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from starseq.config import Recipe, build, load_recipe, override_tree
from starseq.data import audio, images
from starseq.data.dataset import LineReader
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import Row, manifest_writer, read_manifest, rebaser
from starseq.data.split import DevChoice, choose_dev
from starseq.text.gaps import escape, has_gap, split_gaps

__all__ = ["Plan", "Survey", "bring_in", "make_plan", "survey"]

# --- the numbers to choose by measurement -----------------------------------------------------------------------------

PASSES = {"speech": 60, "handwriting": 30, "digits": 10}
"""How often a training sees its rows ..."""
FEWEST, MOST = 0.15, 2.0
"""... but no fewer and no more steps than so many times those of the recipe."""
EVALUATIONS = 10
"""of a training, at least"""
DENSER = 0.85
"""Labels are missing where training rows have less than this share of the characters of dev and test, for their size."""
FEW_MARKED = 0.01
"""Share of the rows: where fewer mark a gap, it is no habit to mark them"""
DENSITY_ROWS = 20
"""rows on either side that such a comparison needs"""
CLOSED_TYPES, CLOSED_TIMES = 200, 10
"""A closed vocabulary has no more word types, and each occurs so often on average."""
CLOSED = (
    "text.unit=word", "text.missing=null", "data.budget=120", "model.kernel=15", "model.stride=8", "model.width=144",
    "model.hidden=576", "model.layers=4", "model.letter_to_word=true",
)  # fmt: skip
"""What a closed vocabulary changes in the recipe `speech`: words are the labels, of a smaller model with longer frames"""

Kind = Literal["audio", "images"]

TRAIN, DEV = "train", "dev"
_NAMES = {
    TRAIN: ("train", "tr", "training", "trainset"),
    DEV: ("dev", "val", "va", "valid", "validation", "development", "devel", "devset"),
    "test": ("test", "eval", "te", "testing", "evaluation", "testset"),
}
_MOST_TYPES = 5000


# --- what there is ----------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """Counts of the rows that are to be trained on, or of those that are held out."""

    rows: int = 0
    untold: int = 0
    """without any label"""
    gaps: int = 0
    """that mark a gap"""
    lost: int = 0
    """without a mark, whose complete text is longer"""
    closed: int = 0
    """that say that nothing is missing"""
    judged: int = 0
    """with a complete text to compare with"""
    size: float = 0.0
    """seconds, or widths in heights, of the rows without a mark ..."""
    characters: int = 0
    """... and their characters"""
    sized: int = 0
    """... and how many they are"""

    @property
    def told(self) -> int:
        return self.rows - self.untold

    @property
    def density(self) -> float | None:
        return self.characters / self.size if self.sized >= DENSITY_ROWS and self.size else None


@dataclass
class Survey:
    """What the rows of a manifest hold."""

    manifest: Path
    kinds: Counter[Kind] = field(default_factory=Counter)
    has_train: bool = True
    """whether a split is called train, or some row has none"""
    train: Side = field(default_factory=Side)
    held_out: Side = field(default_factory=Side)
    splits: dict[str, Side] = field(default_factory=dict)
    """by the name in the manifest; "" for rows without one"""
    words: Counter[str] = field(default_factory=Counter)
    """of the training rows; counting stops at 5,000 types"""
    between: int = 0
    """gaps between words ..."""
    inside: int = 0
    """... and gaps that touch a letter"""
    words_lost: int = 0
    """rows that lost whole words without a mark ..."""
    chars_lost: int = 0
    """... and rows that lost less"""
    features: str | None = None
    """what stored features say that they are"""
    corpus: str | None = None
    """that STATS.json beside the data names"""
    total_size: float = 0.0
    """of the training rows: seconds, or widths in heights; 0 where some row does not say it"""

    @property
    def kind(self) -> Kind:
        if len(self.kinds) > 1:
            counts = " and ".join(f"{count:,} rows of {kind}" for kind, count in self.kinds.most_common())
            raise DataError(
                f"{self.manifest}: {counts}; one recogniser reads either: `starseq manifest filter` parts them"
            )
        return next(iter(self.kinds))

    def names(self, role: str) -> list[str]:
        return [name for name in self.splits if self.role(name) == role]

    def role(self, split: str) -> str:
        """What a split is for; where none is called train, the one whose name says nothing is trained on."""
        found = role_of(split)
        return TRAIN if found == "none" and not self.has_train else found

    @property
    def thinner(self) -> bool:
        """Whether the training rows have clearly fewer characters for their size than dev and test."""
        ours, theirs = self.train.density, self.held_out.density
        return ours is not None and theirs is not None and ours < DENSER * theirs

    @property
    def whole_words(self) -> bool | None:
        """Whether what is missing are whole words; None where no row tells."""
        words, characters = self.between + self.words_lost, self.inside + self.chars_lost
        return words > 10 * characters if words or characters else None


def role_of(split: str) -> str:
    """What a split is for, by its name; one without a meaning is for nothing.

    >>> [role_of(name) for name in ("", "train-clean-100", "validation", "test2", "notes")]
    ['train', 'train', 'dev', 'test', 'none']
    """
    if not split:
        return TRAIN
    first = split.lower().replace("_", "-").partition("-")[0].rstrip("0123456789")
    return next((role for role, names in _NAMES.items() if first in names), "none")


def survey(manifest: Path) -> Survey:
    """Reads a manifest once, and counts."""
    names = {str(row.get("split") or "") for row in read_manifest(manifest, labelled=False)}
    found = Survey(manifest, has_train=any(role_of(name) == TRAIN for name in names))
    unclear = sorted(name for name in names if role_of(name) == "none")
    if len(unclear) > 1 and not found.has_train:
        raise DataError(
            f"{manifest}: no split is called train, and each of {', '.join(unclear)} could be meant: call one of them train"
        )
    sized = True
    for row in read_manifest(manifest, labelled=False):
        if not any(found.kinds):
            found.corpus = _stated_corpus(manifest, row)
        found.kinds[_kind_of(manifest, row)] += 1
        found.features = found.features or row.features
        split = str(row.get("split") or "")
        role, size = found.role(split), _size_of(row)
        _count(found.splits.setdefault(split, Side()), row, size)
        if role == TRAIN:
            _count(found.train, row, size)
            _count_holes(found, row)
            sized = sized and size is not None
            found.total_size += size or 0.0
        elif role in (DEV, "test"):
            _count(found.held_out, row, size)
    found.total_size = found.total_size if sized else 0.0
    return found


def _kind_of(manifest: Path, row: Row) -> Kind:
    suffix = Path(row.path).suffix.lower()
    if suffix in images.SUFFIXES:
        return "images"
    if suffix in audio.SUFFIXES or row.features:
        return "audio"
    raise DataError(f"{manifest}, line {row.line}: {row.path}: neither audio nor an image by its name")


def _stated_corpus(manifest: Path, row: Row) -> str | None:
    """What STATS.json says beside the manifest, or beside the files."""
    name = row.get("archive") or row.path
    for folder in dict.fromkeys((manifest.parent, (manifest.parent / name).parent)):
        try:
            stated = json.loads((folder / "STATS.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(stated, dict) and isinstance(stated.get("corpus"), str):
            return str(stated["corpus"])
    return None


def _size_of(row: Row) -> float | None:
    """Seconds, or the width in heights."""
    if row.seconds is not None:
        return row.seconds
    width, height = row.get("width"), row.get("height")
    return None if width is None or height is None else width / height


def is_untold(row: Row) -> bool:
    """Whether no label of the row is known."""
    return not any(segment.strip() for segment in split_gaps(row.text))


def lost_labels(row: Row) -> bool:
    """Whether the complete text is longer; another of the same length is another spelling."""
    return len(row.text) < len(row.get("text_full") or "")


def can_be_judged(row: Row) -> bool:
    """Whether there is a text to compare with what is read, once `bring_in` has written the row."""
    return bool(row.get("text_full")) or (row.complete and not is_untold(row))


def _count(side: Side, row: Row, size: float | None) -> None:
    side.rows, side.judged = side.rows + 1, side.judged + can_be_judged(row)
    if is_untold(row):
        side.untold += 1
        return
    if has_gap(row.text):
        side.gaps += 1
        return
    side.lost += lost_labels(row)
    side.closed += row.get("gaps") == "marked"
    if size is not None:
        side.size, side.sized = side.size + size, side.sized + 1
        side.characters += len(row.text)


def _count_holes(found: Survey, row: Row) -> None:
    """Words, and whether what is missing are words."""
    segments, full = split_gaps(row.text), row.get("text_full")
    if len(found.words) < _MOST_TYPES:
        found.words.update(word.lower() for segment in segments for word in segment.split())
    if len(segments) > 1 and not is_untold(row):
        for before, after in zip(segments, segments[1:], strict=False):
            if (before and not before[-1].isspace()) or (after and not after[0].isspace()):
                found.inside += 1
            else:
                found.between += 1
    elif full and not has_gap(full) and lost_labels(row):
        left = iter("".join(split_gaps(full)).split())
        if all(word in left for word in segments[0].split()):
            found.words_lost += 1
        else:
            found.chars_lost += 1


# --- what follows -----------------------------------------------------------------------------------------------------


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
    if wanted == "word":
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


# --- the manifest of a fit --------------------------------------------------------------------------------------------


_LINE_SPACE = re.compile(r"[\t\r\n\v\f]+")
"""What is white space in a text, and no label"""
_OPENING, _CLOSING = tuple("([{«„“"), tuple(")]}»”.,;:!?")


def bring_in(found: Survey, plan: Plan, target: Path) -> None:
    """Writes the manifest that all parts read: every row has a split, and a row without text is one gap.

    Splits of training rows are called train, those of dev rows dev; others keep their name. Tabs and ends of lines become spaces.
    """
    rebase = rebaser(found.manifest, target)

    def rows() -> Iterator[Row]:
        for row in read_manifest(found.manifest, labelled=False):
            role = found.role(str(row.get("split") or ""))
            changes: dict[str, Any] = {
                name: _LINE_SPACE.sub(" ", row.fields[name]) for name in ("text", "text_full") if row.get(name)
            }
            if role == TRAIN:
                changes["split"] = DEV if plan.dev is not None and row in plan.dev else TRAIN
            elif role == DEV:
                changes["split"] = DEV
            if is_untold(row):
                changes |= {"text": "*", "gaps": "marked"}
            elif plan.closes and role == TRAIN:
                changes["gaps"] = "marked"
            yield rebase(row.replace(**changes))

    with manifest_writer(target, checked=True) as writer:
        for row in rows():
            writer.write(row)


def without_gaps(text: str) -> str:
    r"""A text whose marked gaps hold nothing; of the spaces around one, one stays, and none at the ends and inside brackets.

    >>> without_gaps("the * fox"), without_gaps("* fo*x"), without_gaps("*"), without_gaps(r"2 \* 3")
    ('the fox', 'fox', '', '2 \\* 3')
    >>> without_gaps("(Ste *) or (* Anne), a *."), without_gaps("so * !")
    ('(Ste) or (Anne), a.', 'so !')
    """
    closed, *after = split_gaps(text)
    for segment in after:
        if segment.startswith(_CLOSING):
            closed = closed.rstrip()
        elif not closed or closed[-1].isspace() or closed.endswith(_OPENING):
            segment = segment.lstrip()
        closed += segment
    if after and not after[-1].strip():
        closed = closed.rstrip()
    return escape(closed)


def root_of(manifest: Path, target: Path, allowed: Sequence[Path]) -> Path:
    """The deepest folder that holds `target` and every file of a manifest. A file in no `allowed` folder is a `DataError`."""
    folders = {os.path.realpath(target)}
    for row in read_manifest(manifest, labelled=False):
        path = row.get("archive") or row.path
        for number, folder in enumerate(allowed, start=1):
            try:
                folders.add(str(resolve_inside(path, manifest.parent, folder).parent))
                break
            except DataError:
                if number == len(allowed):
                    raise DataError(
                        f"{manifest}, line {row.line}: {path} lies outside of {folder}, so it is not read; "
                        "a manifest for `starseq fit` lies beside its files, or above them"
                    ) from None
    return Path(os.path.commonpath(folders))
