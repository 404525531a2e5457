"""The IAM handwriting database, lines, with split lists that the user supplies (Aachen's, or those distributed)."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from starseq.corpora._build import Builder, Report, building
from starseq.corpora._media import describe, files
from starseq.corpora._xml import parse_xml
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress
from starseq.text.gaps import escape

CHARACTERS = 79  # of the published models, counted over all lines

# What the lists in use are called: Aachen's (tr, va, te), OrigamiNet's, and those of the distribution's own task.
_LISTS = {
    "train": ("tr", "train", "trainset", "training"),
    "dev": ("va", "val", "valid", "validation", "dev", "validationset1"),
    "dev2": ("validationset2",),
    "test": ("te", "test", "testset"),
}
_SPLIT_OF_LIST = {name: split for split, names in _LISTS.items() for name in names}
_AACHEN = {"train": 6482, "dev": 976, "test": 2915}


class Line(NamedTuple):
    """A line of the distribution. `segmentation` is ok or err: err says that its *words* were not found well."""

    id: str
    text: str
    segmentation: str
    file: str
    at: int


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with lines/ (or the line images) and xml/ or lines.txt."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    splits: Annotated[
        str | os.PathLike[str] | None, "Folder with the split lists (tr.lst, va.lst, te.lst or the like)."
    ] = None,
    ok_only: Annotated[bool, "Leave out lines that the distribution marks err."] = False,
    check: Annotated[bool, "Decode every image, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad lines to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """IAM lines, with the Aachen or other splits.

    Text comes from xml/ (natural spacing) or lines.txt, splits from lists of forms or lines. Lines marked err are kept,
    as the published splits do: the mark is about words, and the lines are whole.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    split_of = read_splits(Path(splits)) if splits is not None else None
    pictures = {path.stem: path for path in files(root) if path.suffix.lower() in (".png", ".tif", ".tiff", ".jpg")}
    with building("IAM", out, source=root, skip_bad=skip_bad) as build:
        lines = list(_lines(build, root))
        marks: Counter[str] = Counter()
        for done, line in enumerate(lines, start=1):
            split = "" if split_of is None else split_of.get(line.id) or split_of.get(line.id.rpartition("-")[0])
            if split is None:
                build.leave_out("line in none of the split lists")
            elif ok_only and line.segmentation != "ok":
                build.leave_out("line marked err")
            else:
                with build.trying(line.file, line.at, line._asdict()):
                    if line.id not in pictures:
                        raise DataError(f"no image of line {line.id!r}")
                    picture = pictures[line.id]
                    fields = {"id": line.id, "path": picture.relative_to(root).as_posix(), "text": escape(line.text)}
                    fields |= describe(picture, str(picture), check=check)
                    fields |= {"form": line.id.rpartition("-")[0], "segmentation": line.segmentation}
                    build.add(fields | ({"split": split} if split else {}), line.file, line.at)
                    marks[line.segmentation] += 1
            if progress is not None:
                progress(done, len(lines))
        _note(build.report, marks)
    return build.report


def _note(report: Report, marks: Counter[str]) -> None:
    report.notes.append(f"{marks['ok']:,} lines marked ok, {marks['err']:,} marked err")
    if len(report.charset) != CHARACTERS:
        report.notes.append(f"{len(report.charset)} characters here, {CHARACTERS} in the published alphabet")
    counts = {name: tally.rows for name, tally in report.splits.items()}
    if set(counts) == set(_AACHEN) and counts != _AACHEN:
        here, there = (" / ".join(f"{c[name]:,}" for name in _AACHEN) for c in (counts, _AACHEN))
        report.notes.append(f"{here} lines here, {there} in the Aachen splits")


def read_splits(folder: Path) -> dict[str, str]:
    """Form or line id to split, from the lists in `folder`; a list holds ids, or names of image files, one a line."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of split lists")
    split_of: dict[str, str] = {}
    for path in files(folder):
        split = _SPLIT_OF_LIST.get(path.name.split(".")[0].lower())
        if split is None or path.suffix.lower() not in (".lst", ".txt", ".uttlist", ".ln", ".list", ""):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if not line.strip():
                continue
            id = Path(line.split()[0]).name.removesuffix(".png").removesuffix(".tif")
            if split_of.setdefault(id, split) != split:
                raise ManifestError(path, number, f"{id!r} is in the list of {split_of[id]} too")
    if not split_of:
        names = ", ".join(sorted(_SPLIT_OF_LIST))
        raise DataError(
            f"{folder}: no split list (a file called one of {names}, ending in .lst, .txt, .ln or .uttlist)"
        )
    return split_of


def _lines(build: Builder, root: Path) -> Iterator[Line]:
    """From the XML files where there are any: lines.txt has a space before every full stop."""
    xmls = [path for path in files(root) if path.suffix.lower() == ".xml"]
    if xmls:
        for path in xmls:
            with build.trying(str(path), 1):
                yield from _xml_lines(path)
        return
    table = next((path for path in (root / "lines.txt", root / "ascii" / "lines.txt") if path.is_file()), None)
    if table is None:
        raise DataError(f"{root}: neither xml files nor lines.txt")
    for number, raw in enumerate(table.read_bytes().splitlines(), start=1):
        text = raw.decode("utf-8", "replace")
        if text.startswith("#") or not text.strip():
            continue
        parts = text.split(" ", 8)
        if len(parts) < 9 or parts[1] not in ("ok", "err"):
            build.bad(str(table), number, "not a line of IAM's lines.txt (id, ok or err, six numbers, text)", text)
            continue
        yield Line(parts[0], parts[8].replace("|", " "), parts[1], str(table), number)


def _xml_lines(path: Path) -> Iterator[Line]:
    for line in parse_xml(path.read_bytes(), str(path)).all("line"):
        # The distribution escapes twice: &amp;quot; is a quotation mark.
        text = html.unescape(line.get("text"))
        yield Line(line.get("id"), text, line.get("segmentation", "ok"), str(path), line.line)
