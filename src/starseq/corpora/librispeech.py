"""LibriSpeech as it is distributed: SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac, transcripts beside them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from starseq.corpora._build import Builder, Report, building
from starseq.corpora._media import describe
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, Progress
from starseq.text.gaps import escape

_THREADS = 8  # reading headers waits for the disk, not for the CPU


def prepare(
    source: Annotated[str | os.PathLike[str], "The folder LibriSpeech, or one that holds it."],
    out: Annotated[str | os.PathLike[str], "Folder to write: manifest.jsonl, STATS.json."],
    *,
    subset: Annotated[tuple[str, ...], "Only this subset, such as train-clean-100; may be repeated."] = (),
    check: Annotated[bool, "Decode every file, not only its header (hours for all of LibriSpeech)."] = False,
    skip_bad: Annotated[bool, "Write bad utterances to bad.jsonl and go on."] = False,
    progress: Progress | None = None,
) -> Report:
    """LibriSpeech as distributed, all subsets.

    A row's split is its subset, such as train-clean-100.
    """
    root = Path(source).resolve()
    if not root.is_dir():
        raise DataError(f"{source}: no such folder")
    transcripts = sorted(root.rglob("*.trans.txt"))
    if subset:
        found = {_subset(path) for path in transcripts}
        if missing := sorted(set(subset) - found):
            raise DataError(f"{source}: no subset {missing[0]!r} (there are {', '.join(sorted(found)) or 'none'})")
        transcripts = [path for path in transcripts if _subset(path) in subset]
    genders = _genders(root)
    with (
        building("LibriSpeech", out, source=root, skip_bad=skip_bad) as build,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        waiting: deque[tuple[Path, int, dict[str, Any], Future[dict[str, Any]]]] = deque()
        for done, path in enumerate(transcripts, start=1):
            for line, fields, file in _utterances(build, path, root, genders):
                waiting.append((path, line, fields, pool.submit(describe, file, str(file), check=check)))
                if len(waiting) > 8 * _THREADS:
                    _finish(build, *waiting.popleft())
            if progress is not None:
                progress(done, len(transcripts))
        while waiting:
            _finish(build, *waiting.popleft())
    return build.report


def understands(source: Path) -> bool:
    """Whether the folder holds transcripts named as LibriSpeech's are."""
    return source.is_dir() and next(source.rglob("*.trans.txt"), None) is not None


def _subset(transcript: Path) -> str:
    return transcript.parents[2].name


def _utterances(
    build: Builder, transcript: Path, root: Path, genders: dict[str, str]
) -> Iterator[tuple[int, dict[str, Any], Path]]:
    """The rows of one chapter, without what the audio's header says."""
    name = str(transcript)
    audio_files = {path.stem: path for path in transcript.parent.iterdir() if path.suffix.lower() in audio.SUFFIXES}
    with build.trying(name, 1):
        try:
            lines = transcript.read_bytes().decode().splitlines()
        except UnicodeDecodeError as error:
            line = transcript.read_bytes()[: error.start].count(b"\n") + 1
            raise ManifestError(name, line, "not UTF-8") from None
        for number, text in enumerate(lines, start=1):
            id, _, words = text.strip().partition(" ")
            if not id:
                continue
            file = audio_files.pop(id, None)
            if not words or file is None:
                reason = "an utterance without words" if not words else f"no audio file for utterance {id!r}"
                build.bad(name, number, reason, text)
                continue
            speaker, chapter = transcript.parent.parent.name, transcript.parent.name
            fields = {
                "id": id,
                "path": file.relative_to(root).as_posix(),
                "text": escape(words),
                "speaker": speaker,
                "chapter": chapter,
                "split": _subset(transcript),
            }
            if speaker in genders:
                fields["gender"] = genders[speaker]
            yield number, fields, file
    build.leave_out("audio file without a transcript", len(audio_files))


def _finish(build: Builder, path: Path, line: int, fields: dict[str, Any], info: Future[dict[str, Any]]) -> None:
    with build.trying(str(path), line, fields):
        build.add({**fields, **info.result()}, str(path), line)


def _genders(root: Path) -> dict[str, str]:
    """Speaker to M or F, from SPEAKERS.TXT (``14 | F | train-clean-360 | ...``) where it is."""
    places = (folder / "SPEAKERS.TXT" for folder in (root, root / "LibriSpeech", root.parent))
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = (line.split("|") for line in lines if not line.startswith(";"))
    return {row[0].strip(): row[1].strip() for row in rows if len(row) > 1}
