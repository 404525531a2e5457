"""Manifests of NeMo: JSON Lines with audio_filepath, duration, text, perhaps offset; their audio in files or in tars."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_name
from starseq.corpora._recordings import (
    Member,
    Part,
    describe_member,
    describe_part,
    file_of,
    members,
    part_id,
    stem_of,
)
from starseq.data.errors import DataError
from starseq.data.files import resolve_inside
from starseq.data.manifest import Progress, foreign, parse_line

_SUFFIXES = (".json", ".jsonl")


def prepare(
    source: Annotated[str | os.PathLike[str], "A manifest, or a folder with train_manifest.json and the like."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    root: Annotated[
        str | os.PathLike[str] | None, "Folder that holds all audio; by default that of the manifest."
    ] = None,
    split: Annotated[str | None, "Split of all rows; by default what the manifest's name says."] = None,
    dev: Annotated[float, "Share of rows for dev, where no name says it."] = 0.05,
    test: Annotated[float, "Share of rows for test, where no name says it."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = False,
    skip_bad: Annotated[bool, "Write bad rows to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Manifests of NeMo, tarred ones too.

    A `*` in the text marks a gap. Rows with an offset stay where they are, in their recordings, and so do those in tars,
    which lie beside their manifest or a folder above.
    """
    top = Path(source)
    found = sorted(_manifests(top)) if top.is_dir() else [top]
    if not top.exists() or not found:
        raise DataError(f"{source}: " + ("no manifest of NeMo in it" if top.exists() else "no such file"))
    total, done = sum(path.stat().st_size for path in found), 0
    by_share = split_by_share(dev, test)
    with building("NeMo", out, source=top if top.is_dir() else top.parent, skip_bad=skip_bad) as build:
        for path in found:
            reader = _Reader(path, root, check)
            named = split_of_name(Path(path.name))
            for number, line in _lines(path):
                with build.trying(str(path), number, line.decode(errors="backslashreplace").rstrip()):
                    _add(build, reader, _fields(line), number, split, named, by_share)
                done += len(line)
                if progress is not None:
                    progress(done, total)
    return build.report


def understands(source: Path) -> bool:
    """Whether it is a manifest of NeMo, or a folder with one."""
    return next(_manifests(source), None) is not None if source.is_dir() else _is_manifest(source)


def _manifests(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if _is_manifest(path))


def _is_manifest(path: Path) -> bool:
    if not (path.suffix.lower() in _SUFFIXES and path.is_file()):
        return False
    with open(path, "rb") as file:
        return foreign(parse_line(file.readline(1 << 20))[0]) == "nemo"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _fields(line: bytes) -> dict[str, Any]:
    fields, problem = parse_line(line)
    if problem is None and not isinstance(fields, dict):
        problem = "not a JSON object"
    if problem is not None:
        raise DataError(problem)
    if "audio_file" in fields:
        fields["audio_filepath"] = fields.pop("audio_file")
    for name in ("audio_filepath", "text"):
        if not isinstance(fields.get(name, ""), str):
            raise DataError(f"field {name!r} must be text")
    if not fields.get("audio_filepath"):
        raise DataError("field 'audio_filepath' is missing")
    for name in ("offset", "duration"):
        if not isinstance(fields.get(name) or 0, (int, float)) or isinstance(fields.get(name), bool):
            raise DataError(f"field {name!r} must be seconds, not {fields[name]!r}")
    return fields  # type: ignore[no-any-return]


def _add(
    build: Builder,
    reader: _Reader,
    fields: dict[str, Any],
    number: int,
    split: str | None,
    named: str | None,
    by_share: Any,
) -> None:
    if not str(fields.get("text", "")).strip():
        build.leave_out("row without text")
        return
    name, text = fields.pop("audio_filepath"), fields.pop("text")
    media = reader.media(name, fields)
    stem = Path(name).stem if os.path.isabs(name) else Path(name).with_suffix("").as_posix()
    id = fields.pop("id", None) or part_id(stem, media)
    fields["split"] = split or fields.get("split") or named or by_share(str(fields.get("speaker") or id))
    build.add({"id": id, "path": name, "text": text, **fields, **media}, str(reader.manifest), number)


class _Reader:
    """Finds the audio of a manifest's rows."""

    def __init__(self, manifest: Path, root: str | os.PathLike[str] | None, check: bool) -> None:
        self.manifest, self.folder, self.root, self.check = manifest, manifest.parent.resolve(), root, check
        self._members: dict[Path, dict[str, Member]] = {}

    def media(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Where the audio is, and how long; takes the fields of NeMo that said it."""
        start, seconds = fields.pop("offset", None) or 0.0, fields.pop("duration", None)
        shard, tar = fields.pop("shard_id", None), fields.pop("tar", None)
        part = Part(start, None if seconds is None else start + seconds, fields.pop("channel", None), about=True)
        if tar is None and (shard is None or (self.folder / name).is_file()):
            file = file_of(name, self.folder, self.root)
            return {"path": str(file), **describe_part(file, part, name=name, check=self.check)}
        for place in self._tars(shard, tar):
            if (member := self._member(place, name)) is not None:
                return describe_member(place, member, part, name=name, check=self.check)
        raise DataError(f"{name}: in no tar {'of shard ' + str(shard) if tar is None else tar} beside the manifest")

    def _tars(self, shard: Any, tar: Any) -> Iterator[Path]:
        if tar is not None:
            yield resolve_inside(str(tar), self.folder, self.root)
            return
        for folder in (self.folder, self.folder.parent):
            for path in sorted(folder.glob("*.tar")):
                if re.search(r"\d+$", path.stem) and int(re.findall(r"\d+$", path.stem)[0]) == shard:
                    yield path

    def _member(self, tar: Path, name: str) -> Member | None:
        """NeMo finds members by their name without the suffix; utterances of one recording differ in -sub1, -sub2."""
        if tar not in self._members:
            self._members[tar] = {stem_of(member.name): member for member in members(tar)}
        found, stem = self._members[tar], stem_of(name)
        return found.get(stem) or found.get(re.sub(r"-sub\d+$", "", stem))
