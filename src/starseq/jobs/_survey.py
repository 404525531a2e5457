"""What the rows of a manifest hold that `starseq fit` has never seen: audio or images, gaps, words, splits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from starseq.data import audio, images
from starseq.data.errors import DataError
from starseq.data.manifest import Row, read_manifest
from starseq.text.gaps import has_gap, split_gaps

__all__ = ["DEV", "TRAIN", "Survey", "can_be_judged", "is_untold", "role_of", "survey"]

DENSER = 0.85
"""Labels are missing where training rows have less than this share of the characters of dev and test, for their size."""
DENSITY_ROWS = 20
"""rows on either side that such a comparison needs"""

Kind = Literal["audio", "images"]

TRAIN, DEV = "train", "dev"
_NAMES = {
    TRAIN: ("train", "tr", "training", "trainset"),
    DEV: ("dev", "val", "va", "valid", "validation", "development", "devel", "devset"),
    "test": ("test", "eval", "te", "testing", "evaluation", "testset"),
}
_MOST_TYPES = 5000


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
