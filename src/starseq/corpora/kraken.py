"""Sets of lines of kraken: Arrow files as `ketos compile` writes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from starseq.corpora._build import Builder, Report, building, split_by_share, split_of_name
from starseq.corpora._media import describe
from starseq.data.errors import DataError
from starseq.data.manifest import Progress
from starseq.text.gaps import escape

if TYPE_CHECKING:
    import pyarrow

_FLAGS = {"train": "train", "validation": "dev", "test": "test"}
_SUFFIXES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"II*\0": "tif", b"MM\0*": "tif"}


def prepare(
    source: Annotated[str | os.PathLike[str], "An .arrow file of `ketos compile`, or a folder with some."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, lines.tar, STATS.json."],
    *,
    dev: Annotated[float, "Share of lines for dev, where the file has no splits."] = 0.05,
    test: Annotated[float, "Share of lines for test, where the file has no splits."] = 0.1,
    check: Annotated[bool, "Decode every image, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad lines to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Lines compiled for kraken.

    A line's split is the one that the file, or its name, says. The number in a message is that of the line in its file.
    """
    top = Path(source)
    found = _files(top)
    if not found:
        raise DataError(f"{source}: " + ("no lines of kraken in it" if top.exists() else "no such file or folder"))
    by_share = split_by_share(dev, test)
    with building("kraken", out, source=top if top.is_dir() else top.parent, skip_bad=skip_bad, archive=True) as build:
        for done, path in enumerate(found, start=1):
            stem = path.relative_to(top).with_suffix("").as_posix() if top.is_dir() else path.stem
            for number, line in enumerate(_lines(path), start=1):
                with build.trying(str(path), number):
                    _add(build, path, number, line, stem, by_share, check)
            if progress is not None:
                progress(done, len(found))
    return build.report


def understands(source: Path) -> bool:
    """Whether it is such a file, or a folder with one."""
    return bool(_files(source))


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        return [path for path in sorted(source.glob("*.arrow")) if _is_lines(path)]
    return [source] if source.suffix.lower() == ".arrow" and source.is_file() and _is_lines(source) else []


def _is_lines(path: Path) -> bool:
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file:
            schema = pyarrow.ipc.open_file(file).schema
    except (pyarrow.ArrowException, OSError):
        return False
    names = schema.names
    return "lines" in names and {"text", "im"} <= {field.name for field in _struct(schema.field("lines").type)}


def _struct(type: Any) -> Iterator[Any]:
    return (type.field(i) for i in range(type.num_fields))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, batch by batch. Arrow's own columns hold data alone, so nothing is unpickled."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.open_file(file)
            for i in range(reader.num_record_batches):
                batch: pyarrow.RecordBatch = reader.get_batch(i)
                batch.validate(full=True)
                for j in range(batch.num_rows):
                    yield {name: batch.column(name)[j].as_py() for name in batch.schema.names}
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: damaged ({' '.join(str(error).split())})") from None


def _add(build: Builder, path: Path, number: int, line: dict[str, Any], stem: str, by_share: Any, check: bool) -> None:
    text, data = (line["lines"] or {}).get("text"), (line["lines"] or {}).get("im")
    if not text:
        build.leave_out("line without text")
        return
    if not isinstance(data, bytes):
        raise DataError("no image")
    id = f"{stem}-{number:06d}"
    suffix = next((suffix for begin, suffix in _SUFFIXES.items() if data.startswith(begin)), "png")
    flag = next((split for name, split in _FLAGS.items() if line.get(name)), None)
    split = flag or split_of_name(Path(path.name)) or by_share(id)
    name = f"{id}.{suffix}"
    fields = {"id": id, "path": name, "text": escape(text), "split": split, **describe(data, name, check=check)}
    build.add(fields, str(path), number, member=data)
