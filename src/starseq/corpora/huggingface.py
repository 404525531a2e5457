"""Datasets of Hugging Face on disk: parquet, what save_to_disk wrote, audiofolder and imagefolder.

All of them are read by pyarrow: `datasets` decodes audio with a package of its own, even where nothing is to be decoded.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_name
from starseq.corpora._cells import USUAL, part_of, rows_of
from starseq.corpora._media import describe, files
from starseq.corpora._recordings import describe_part, file_of
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress, foreign, parse_line

if TYPE_CHECKING:
    import pyarrow

_METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_NOT_KEPT = {"path", "archive", "offset", "nbytes", "features", "width", "height", "duration"}
_ROWS = 64
"""read at a time: they hold audio"""


def prepare(
    source: Annotated[
        str | os.PathLike[str],
        "Folder of save_to_disk, with parquet files, or with metadata.jsonl or .csv that names files; or a parquet file.",
    ],
    out: Annotated[
        str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json; of bytes in the data, lines.tar."
    ],
    *,
    text_column: Annotated[str | None, "Column with the text; by default found by its usual names."] = None,
    media_column: Annotated[str | None, "Column with audio or images; by default the first that holds some."] = None,
    root: Annotated[str | os.PathLike[str] | None, "Folder that paths may not leave; by default SOURCE."] = None,
    dev: Annotated[float, "Share of rows for dev, where no name tells the split."] = 0.05,
    test: Annotated[float, "Share of rows for test, where no name tells the split."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = False,
    skip_bad: Annotated[bool, "Write bad rows to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Datasets of Hugging Face on disk.

    A `*` in the text marks a gap. Numbers and texts of other columns are kept.
    """
    top = Path(source)
    found = _parts(top)
    if not found:
        raise DataError(
            f"{source}: " + ("no dataset of Hugging Face in it" if top.exists() else "no such file or folder")
        )
    by_share = split_by_share(dev, test)
    names: Counter[str] = Counter()
    inside = top if top.is_dir() else top.parent
    with building(
        "Hugging Face", out, source=inside, skip_bad=skip_bad, archive=any(p.has_bytes for p in found)
    ) as build:
        for done, part in enumerate(found, start=1):
            reader = _Reader(part, inside.resolve() if root is None else Path(root), text_column, media_column, check)
            for number, row in part.rows():
                name = part.split or "row"
                names[name] += 1
                with build.trying(str(part.file), number):
                    reader.add(build, row, number, f"{name}-{names[name]:07d}", by_share)
            if progress is not None:
                progress(done, len(found))
    return build.report


def understands(source: Path) -> bool:
    """Whether it is a parquet file, or a folder in one of these forms."""
    return bool(_parts(source))


class _Part(NamedTuple):
    """A file of rows."""

    file: Path
    split: str | None

    @property
    def has_bytes(self) -> bool:
        return self.file.name not in _METADATA

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows, each with its number in the file, or its line."""
        if self.file.suffix == ".csv":
            lines = rows_of(self.file)
            _, header = next(lines, (1, []))
            for number, cells in lines:
                yield number, dict(zip(header, cells, strict=False))
        elif self.file.suffix == ".jsonl":
            with open(self.file, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        fields, problem = parse_line(line)
                        if problem is not None or not isinstance(fields, dict):
                            raise ManifestError(self.file, number, problem or "not a JSON object")
                        yield number, fields
        else:
            number = 0
            with _named(self.file):
                for batch in _batches(self.file):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row


def _batches(file: Path) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    from pyarrow import parquet

    if file.suffix == ".parquet":
        with parquet.ParquetFile(file) as opened:
            yield from opened.iter_batches(batch_size=_ROWS)
        return
    with pyarrow.memory_map(str(file)) as opened, pyarrow.ipc.open_stream(opened) as reader:
        for batch in reader:
            for start in range(0, batch.num_rows, _ROWS):
                yield batch.slice(start, _ROWS)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """What Arrow cannot read is one sentence."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read ({' '.join(str(error).split())[:200]})") from None


def _parts(source: Path) -> list[_Part]:
    """The files of a dataset, in one of the forms that there are."""
    if source.is_file():
        return [_Part(source, split_of_name(Path(source.name)))] if source.suffix.lower() == ".parquet" else []
    if not source.is_dir():
        return []
    if (source / "dataset_dict.json").is_file():
        return [
            part
            for split in _listed(source / "dataset_dict.json", "splits")
            for part in _saved(source / Path(str(split)).name, split)
        ]
    if (source / "state.json").is_file():
        return _saved(source, None)
    below = files(source)
    tables = [path for path in below if path.name in _METADATA and _names_files(path)]
    tables = tables or [path for path in below if path.suffix.lower() == ".parquet"]
    return [_Part(path, split_of_name(path.relative_to(source))) for path in tables]


def _saved(folder: Path, split: str | None) -> list[_Part]:
    """What save_to_disk wrote of a split, whose name is kept where it is no usual one."""
    where = None if split is None else split_of_name(Path(f"{split}.arrow")) or str(split)
    found = _listed(folder / "state.json", "_data_files")
    names = [str(entry.get("filename")) for entry in found if isinstance(entry, dict)]
    return [_Part(folder / Path(name).name, where) for name in names]


def _listed(path: Path, name: str) -> list[Any]:
    """A list in a file of settings; nothing where the file is of another kind."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not JSON that can be read ({error})") from None
    listed = found.get(name) if isinstance(found, dict) else None
    return listed if isinstance(listed, list) else []


def _names_files(path: Path) -> bool:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with _named(path):
            return "file_name" in parquet.read_schema(path).names
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    return b"file_name" in line if path.suffix == ".csv" else foreign(parse_line(line)[0]) == "huggingface"


class _Reader:
    """Makes rows of the rows of a file."""

    def __init__(self, part: _Part, root: Path, text_column: str | None, media_column: str | None, check: bool) -> None:
        self.part, self.root, self.check = part, root, check
        self.given = {"text": text_column, "media": media_column}

    def add(self, build: Builder, row: dict[str, Any], number: int, id: str, by_share: Callable[[str], str]) -> None:
        media = self._column(row, "media", lambda name: name.endswith("file_name") or _may_hold_media(row[name]))
        text = self._column(
            row, "text", lambda name: name.lower() in USUAL["text"] and not isinstance(row[name], (dict, list))
        )
        known = {
            meaning: str(row.pop(name))
            for meaning in ("id", "split", "speaker", "start", "end", "channel")
            for name in [
                next((name for name in row if name.lower() in USUAL[meaning] and name not in (media, text)), "")
            ]
            if row.get(name) not in (None, "")
        }
        id = known.get("id", id)
        value, words = row.pop(media), row.pop(text)
        if not isinstance(words, str) or not words.strip():
            build.leave_out("row without text")
            return
        place, member = self._media(value, known, id)
        kept = {
            name: value for name, value in row.items() if isinstance(value, (str, int, float)) and name not in _NOT_KEPT
        }
        fields: dict[str, Any] = {"id": id, "text": words, **place}
        if "speaker" in known:
            fields["speaker"] = known["speaker"]
        fields["split"] = self.part.split or known.get("split") or by_share(known.get("speaker") or id)
        build.add({**kept, **fields}, str(self.part.file), number, member=member)

    def _column(self, row: dict[str, Any], what: str, fits: Callable[[str], bool]) -> str:
        name = self.given[what]
        if name is None:
            name = next((name for name in row if fits(name)), None)
            if name is None:
                raise DataError(f"no column of {what} (there are {', '.join(row)}): name it with --{what}-column")
        if name not in row:
            raise DataError(f"no column {name!r} (there are {', '.join(row)})")
        return name

    def _media(self, value: Any, known: dict[str, str], id: str) -> tuple[dict[str, Any], bytes | None]:
        """`path` and what a file is, and its bytes where they are in the data."""
        value = {"path": value} if isinstance(value, str) else value
        if not _is_media(value):
            raise DataError("no audio and no image")
        path, data = value.get("path"), value.get("bytes")
        if data is not None:
            suffix = Path(path or "").suffix.lower() or _suffix(data)
            name = f"{id}{suffix}"
            return {"path": name, **describe(data, name, check=self.check)}, data
        file = file_of(path, self.part.file.parent.resolve(), self.root)
        if file.suffix.lower() in images.SUFFIXES:
            return {"path": str(file), **describe(file, path, check=self.check)}, None
        return {"path": str(file), **describe_part(file, part_of(known), name=path, check=self.check)}, None


def _may_hold_media(value: Any) -> bool:
    return isinstance(value, dict) and {"bytes", "path"} <= value.keys()


def _is_media(value: Any) -> bool:
    return isinstance(value, dict) and (isinstance(value.get("bytes"), bytes) or isinstance(value.get("path"), str))


def _suffix(data: bytes) -> str:
    """Of bytes without a name, by how they begin."""
    begins = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg"}
    return next((suffix for begin, suffix in begins.items() if data.startswith(begin)), ".mp3")
