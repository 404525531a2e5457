"""Manifests of lhotse: CutSets, recordings with supervisions, and Shar; read by lhotse, a line at a time."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_name
from starseq.corpora._recordings import Member, Part, describe_member, describe_stored, members
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress, foreign, parse_line

_SUFFIXES = (".jsonl", ".jsonl.gz")
_SHARD = re.compile(r"cuts\.(\d+)\.jsonl(\.gz)?$")


def prepare(
    source: Annotated[
        str | os.PathLike[str],
        "A .jsonl or .jsonl.gz of cuts, or a folder with some, with recordings and supervisions, or in the format Shar.",
    ],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    root: Annotated[
        str | os.PathLike[str] | None,
        "Folder that holds all audio, where relative paths begin; by default that of the manifest.",
    ] = None,
    split: Annotated[str | None, "Split of all rows; by default what the manifest's name says."] = None,
    dev: Annotated[float, "Share of rows for dev, where no name says it."] = 0.05,
    test: Annotated[float, "Share of rows for test, where no name says it."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = False,
    skip_bad: Annotated[bool, "Write bad cuts to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Manifests of lhotse: cuts, supervisions, Shar.

    A `*` in the text marks a gap. Of a cut with several supervisions each is a row. Nothing is cut or copied.
    """
    top = Path(source)
    if not top.exists():
        raise DataError(f"{source}: no such file or folder")
    folder = top if top.is_dir() else top.parent
    files = _files(top)
    if not files:
        raise DataError(f"{source}: no cuts, and no supervisions, of lhotse in it")
    by_share = split_by_share(dev, test)
    with building("lhotse", out, source=folder, skip_bad=skip_bad) as build:
        for done, path in enumerate(files, start=1):
            reader = _Reader(path, (folder if root is None else Path(root)).resolve(), check)
            named = split_of_name(path.relative_to(folder))
            for number, line in _lines(path):
                with build.trying(str(path), number, line.decode(errors="backslashreplace").rstrip()):
                    for fields in reader.rows(build, line):
                        key = str(fields.get("speaker") or fields["id"])
                        fields["split"] = split or fields.get("split") or named or by_share(key)
                        build.add(fields, str(path), number)
            if progress is not None:
                progress(done, len(files))
    return build.report


def understands(source: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    return bool(_files(source))


def _files(source: Path) -> list[Path]:
    """The files to read: cuts, or else supervisions."""
    if not source.is_dir():
        return [source] if _kind(source) in ("cuts", "supervisions") else []
    found = sorted(path for path in source.iterdir() if path.name.endswith(_SUFFIXES))
    kinds = {path: _kind(path) for path in found}
    return next((some for kind in ("cuts", "supervisions") if (some := [p for p in found if kinds[p] == kind])), [])


def _kind(path: Path) -> str | None:
    """What a file holds, by its first line."""
    if not (path.name.endswith(_SUFFIXES) and path.is_file()):
        return None
    try:
        fields, _ = parse_line(next(_lines(path))[1])
    except (DataError, StopIteration):
        return None
    if foreign(fields) != "lhotse":
        return None
    return "cuts" if "type" in fields else "recordings" if "sources" in fields else "supervisions"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for line in file:
                number += 1
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ManifestError(path, number + 1, "not gzip, or damaged") from None


class _Reader:
    """Makes rows of the lines of a file."""

    def __init__(self, path: Path, root: Path, check: bool) -> None:
        self.path, self.root, self.check = path, root, check
        self._recordings: dict[str, Any] | None = None
        self._members: dict[Path, dict[str, Member]] = {}

    def rows(self, build: Builder, line: bytes) -> list[dict[str, Any]]:
        """The rows of a cut or a supervision."""
        from lhotse import MonoCut, SupervisionSegment
        from lhotse.cut import MultiCut

        item = _item(line)
        if isinstance(item, SupervisionSegment):
            if not (item.text or "").strip():
                build.leave_out("supervision without text")
                return []
            return [
                self._row(
                    item.id, item, self._recording(item), Part(item.start, item.end, _channel(item.channel), about=True)
                )
            ]
        if not isinstance(item, (MonoCut, MultiCut)):
            raise DataError(f"a {type(item).__name__}, not a cut of one recording")
        if not item.has_recording:
            raise DataError("no recording, so there is no audio")
        told = [one for one in item.supervisions if (one.text or "").strip()]
        if not told:
            build.leave_out("cut without text")
        if len(item.supervisions) == 1:
            spans = [(item.id, one, item.start, item.end) for one in told]
        else:  # their times are those of the cut, and they may reach out of it
            spans = [
                (one.id, one, item.start + max(0.0, one.start), item.start + min(item.duration, one.end))
                for one in told
            ]
        return [
            self._row(id, one, item.recording, Part(start, end, _channel(item.channel), about=True), cut=item.id)
            for id, one, start, end in spans
        ]

    def _row(self, id: str, supervision: Any, recording: Any, part: Part, cut: str = "") -> dict[str, Any]:
        row = {"id": id, "text": supervision.text}
        for name in ("speaker", "language"):
            if getattr(supervision, name):
                row[name] = getattr(supervision, name)
        custom = supervision.custom or {}
        plain = {name: value for name, value in custom.items() if isinstance(value, (str, int, float, list, dict))}
        return {**plain, **row, **self._media(recording, part, cut, custom)}

    def _media(self, recording: Any, part: Part, cut: str, custom: dict[str, Any]) -> dict[str, Any]:
        if recording is None:
            if isinstance(custom.get("path"), str):  # as `starseq` writes them
                part = part._replace(channel=_channel(custom.get("channel")))  # which a supervision cannot leave out
                return describe_stored(custom, self.path.parent.resolve(), self.root, part, check=self.check)
            raise DataError("no recording, so there is no audio")
        if recording.transforms:
            raise DataError(
                f"recording {recording.id!r}: changed on the fly, which only lhotse does: save its audio first"
            )
        if len(recording.sources) != 1:
            raise DataError(f"recording {recording.id!r}: {len(recording.sources)} sources, not one file")
        (source,) = recording.sources
        if part.channel in source.channels:  # it has a number of its own, which need not be its place in the file
            part = part._replace(channel=source.channels.index(part.channel))
        if source.type == "file":
            return describe_stored({"path": source.source}, self.root, self.root, part, check=self.check)
        if source.type != "shar":
            raise DataError(f"recording {recording.id!r}: its source is a {source.type}, not a file")
        tar, member = self._member(cut)
        return describe_member(tar, member, part, name=member.name, check=self.check)

    def _member(self, cut: str) -> tuple[Path, Member]:
        """The audio of a cut, in the tar of its shard."""
        shard = _SHARD.search(self.path.name)
        tar = self.path.with_name(f"recording.{shard[1]}.tar") if shard else self.path
        if shard is None or not tar.is_file():
            raise DataError(f"{tar}: no such tar of Shar, which holds the audio")
        if tar not in self._members:
            found = (member for member in members(tar) if not member.name.endswith((".json", ".nodata", ".nometa")))
            self._members[tar] = {_key(member.name): member for member in found}
        if cut not in self._members[tar]:
            raise DataError(f"cut {cut!r} is not in {tar.name}")
        return tar, self._members[tar][cut]

    def _recording(self, supervision: Any) -> Any:
        """The recording of a supervision, from the file beside; None where there is no such file."""
        if self._recordings is None:
            beside = self.path.with_name(self.path.name.replace("supervisions", "recordings"))
            found = [_item(line) for _, line in _lines(beside)] if beside != self.path and beside.is_file() else []
            self._recordings = {recording.id: recording for recording in found}
        if self._recordings and supervision.recording_id not in self._recordings:
            raise DataError(f"no recording {supervision.recording_id!r} beside {self.path.name}")
        return self._recordings.get(supervision.recording_id)


def _item(line: bytes) -> Any:
    """What lhotse makes of a line."""
    from lhotse.serialization import deserialize_item

    fields, problem = parse_line(line)
    if problem is None and not isinstance(fields, dict):
        problem = "not a JSON object"
    if problem is not None:
        raise DataError(problem)
    try:
        return deserialize_item(fields)
    except (TypeError, KeyError, ValueError, AttributeError, AssertionError) as error:
        raise DataError(f"not what lhotse reads ({type(error).__name__}: {error})") from None


def _channel(channel: Any) -> int | None:
    if isinstance(channel, list):
        return channel[0] if len(channel) == 1 else None
    return channel if isinstance(channel, int) else None


def _key(name: str) -> str:
    """The cut of a member: its name without the suffix. Ids may hold slashes."""
    return re.sub(r"\.[^./]*$", "", name)
