"""The manifests of a `starseq fit`: where its rows come from, how they are brought in, and what its student learns from."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from starseq import corpora
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import Progress, Row, manifest_writer, read_manifest, rebaser
from starseq.jobs._fill import gaps_in
from starseq.jobs._plan import Plan
from starseq.jobs._survey import DEV, TRAIN, Survey, is_untold
from starseq.jobs.prepare import prepare
from starseq.text.gaps import escape, split_gaps

__all__ = [
    "COMPLETED",
    "MANIFEST",
    "STUDENT",
    "Say",
    "allowed",
    "bring_in",
    "close",
    "root_of",
    "source_of",
    "without_gaps",
]

MANIFEST, COMPLETED, STUDENT = "manifest.jsonl", "completed.jsonl", "student.jsonl"

Say = Callable[[str], None]


def source_of(data: Path, out: Path, say: Say, progress: Progress) -> Path:
    """The manifest to begin with; a corpus is prepared into ``data`` first."""
    name = corpora.reader_of(data) if data.exists() else None
    if name is None and data.is_file() and data.suffix.lower() in (".jsonl", ".json"):
        return data
    if data.is_dir() and (data / MANIFEST).is_file():
        return data / MANIFEST
    made = out / "data" / MANIFEST
    if not data.exists():  # the word digits
        say(str(prepare("digits", made.parent, progress=progress)).splitlines()[0])
        return made
    if name is None:
        known = "audio or images with a text file beside each, or what `starseq prepare` reads"
        raise DataError(f"{data}: nothing to read there; `starseq fit` takes a manifest, or {known}")
    # What splits it has are kept; others are made here, by rows.
    options: dict[str, Any] = {"dev": 0.0, "test": 0.0, "skip_bad": True}
    takes = inspect.signature(corpora.load(name)).parameters
    done = prepare(
        name, data, made.parent, **{key: value for key, value in options.items() if key in takes}, progress=progress
    )  # fmt: skip
    say(f"{data}: read as {done.corpus}, {done.rows:,} rows")
    if done.unruled:
        say(done.about_unruled)
    for reason, count in sorted(done.left_out.items()):
        say(f"left out: {count:,} x {reason}")
    if done.bad:
        say(f"left out: {done.bad:,} bad rows, see {made.parent / 'bad.jsonl'}")
    return made


def allowed(data: Path, near: Path, out: Path, manifest: Path) -> list[Path]:
    """Where files may lie: beside the manifest or below it. One that was prepared here names those of DATA as well."""
    beside = manifest.parent
    if beside != out / "data" or not data.exists():
        return [beside]
    folders = [beside, data if data.is_dir() else data.parent]
    both = Path(os.path.commonpath(list(map(os.path.realpath, [near, folders[1]]))))
    return folders if both == both.parent else [both, beside]


def close(out: Path, say: Say) -> None:
    """What the student learns from: completed rows, without those that failed and those that are known to lack labels still.

    A gap in which nothing was read is empty.
    """
    completed = out / COMPLETED
    failed = {json.loads(line)["id"] for line in (out / "completed.failed.jsonl").read_bytes().splitlines()}
    counts: Counter[str] = Counter()
    with manifest_writer(out / STUDENT, checked=True) as writer:
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
        say(f"{counts['refused']:,} rows are left out: what was read in their gaps does not fit beside what is known")
    if counts["silent"]:
        say(f"{counts['silent']:,} rows without a text in which nothing was read are left out")
    if counts["closed"]:
        say(f"{counts['closed']:,} gaps in which nothing was read are taken for empty")


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
