"""A folder of audio files or line images, each with its text in a file of the same name."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

from starseq.corpora._build import Report, building, split_by_share, split_of_folders
from starseq.corpora._media import SUFFIXES, describe, files
from starseq.data.errors import DataError
from starseq.data.manifest import Progress

_TEXTS = (".txt", ".gt.txt", ".lab")


def prepare(
    source: Annotated[str | os.PathLike[str], "Folder with a.wav and a.txt, b.png and b.txt (or b.gt.txt), and so on."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    dev: Annotated[float, "Share of files for dev, where no folder is called val or the like."] = 0.05,
    test: Annotated[float, "Share of files for test, where no folder is called test."] = 0.1,
    check: Annotated[bool, "Decode every file, not only its header."] = True,
    skip_bad: Annotated[bool, "Write bad files to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """Audio or images, a text file beside each.

    A `*` in the text marks a gap. A file without a text is a row that is nothing but a gap.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    split = split_by_share(dev, test)
    found = files(root)
    media = [path for path in found if path.suffix.lower() in SUFFIXES]
    of_stem = Counter(path.with_suffix("") for path in media)
    texts = {path for path in found if path.name.endswith(_TEXTS)}
    used: set[Path] = set()
    with building("folder", out, source=root, skip_bad=skip_bad) as build:
        untold = 0
        for done, path in enumerate(media, start=1):
            beside = [text for suffix in _TEXTS if (text := path.with_suffix(suffix)) in texts]
            used.update(beside)
            with build.trying(str(path), 1):
                if beside and of_stem[path.with_suffix("")] > 1:
                    raise DataError(f"{path}: not the only file that {beside[0].name} may belong to")
                relative = path.relative_to(root)
                id = relative.with_suffix("").as_posix() if beside else relative.as_posix()
                fields = {"id": id, "path": relative.as_posix(), "text": _read_text(_only(beside)) if beside else "*"}
                fields |= describe(path, str(path), check=check)
                # Without a text a row is good for nothing but to be filled in, and to learn from then.
                fields["split"] = split_of_folders(relative) or (split(id) if beside else "train")
                build.add(fields, str(beside[0] if beside else path), 1)
                untold += not beside
            if progress is not None:
                progress(done, len(media))
        if untold:
            build.report.notes.append(f"{untold:,} files have no text beside them: nothing of theirs is known")
        build.leave_out("text file without an audio file or image", len(texts - used))
    return build.report


def understands(source: Path) -> bool:
    """Whether some audio file or image in the folder has a text beside it."""
    if not source.is_dir():
        return False
    media = (path for path in files(source) if path.suffix.lower() in SUFFIXES)
    return any(path.with_suffix(suffix).is_file() for path in media for suffix in _TEXTS)


def _only(beside: list[Path]) -> Path:
    """The text of a file; of several, the first, if they say the same."""
    for other in beside[1:]:
        if _read_text(other) != _read_text(beside[0]):
            raise DataError(f"{other}: another text than {beside[0].name}")
    return beside[0]


def _read_text(path: Path) -> str:
    """The first line. Its spaces are labels in character mode, so they stay."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: the text is empty")
    if any(line.strip() for line in lines[1:]):
        raise DataError(f"{path}: more than one line of text")
    return lines[0]
