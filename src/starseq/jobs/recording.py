"""`starseq align` of one long recording with its text. The model hears it in pieces, so memory does not grow with its length."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from starseq import runs
from starseq.data import audio
from starseq.data.errors import DataError
from starseq.data.files import check_target, locked, write_text
from starseq.data.manifest import Row
from starseq.decode.alignment_formats import STAR, Interval, to_ctm, to_srt, to_textgrid, to_vtt
from starseq.decode.recording import FIRST_LABEL, Heard, Recording, align_recording, heard
from starseq.jobs._stream import state_of
from starseq.jobs._where import PathLike, Where
from starseq.text.gaps import escape, split_gaps
from starseq.text.known import known_text

__all__ = ["CONTEXT", "PIECE", "SUFFIXES", "Aligned", "align_file"]

PIECE = 30.0
"""seconds that the model hears at a time"""
CONTEXT = 3.0
"""seconds at the ends of a piece of which nothing is kept, but at the ends of the recording: the neighbouring piece has them"""


@dataclass(frozen=True)
class Aligned:
    """What `align_file` found. Times are seconds. Each word has its number in the text, from 0 on."""

    audio: str
    end: float
    words: tuple[dict[str, Any], ...]
    """number, word, start, end, confidence"""
    words_without_audio: tuple[dict[str, Any], ...]
    """the same; start and end are those of the place between its neighbours"""
    audio_without_text: tuple[dict[str, Any], ...]
    """after (how many words), start, end, text (what the model reads), confidence"""
    outside_vocabulary: tuple[dict[str, Any], ...]
    """number, word: words of which the model can write nothing; they have no place"""


def align_file(
    folder: PathLike,
    recording: PathLike,
    transcript: PathLike,
    targets: Sequence[PathLike],
    *,
    where: Where = Where(),
) -> Aligned:
    """Aligns an audio file with a text file, UTF-8, by the model in `folder`, and writes what was found to `targets`.

    The suffix of a target says its format: one of `SUFFIXES`. Words may be missing anywhere in the text, and it may have words
    that are not in the audio. A `*` in it is no word. What the model says of each piece goes to a hidden file beside the first
    target; a job that was stopped goes on behind the last piece. ``where.progress`` counts seconds of audio. A file that cannot be
    read, a text without words and a model that does not hear raise `DataError`; a suffix that is none of these ValueError.
    """
    target, source = Path(targets[0]), Path(recording)
    for path in map(Path, targets):
        check_target(path, recording, transcript)
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"{path}: its suffix says no format; it is one of {', '.join(SUFFIXES)}")
    where.ranks.begin()
    where.ranks.finish()  # of several processes the first one does it
    run = runs.load(folder)
    if run.seconds_per_frame is None:
        raise DataError(f"{os.fspath(folder)}: it reads images; only audio can be aligned as one recording")
    words = _words_of(transcript)
    spelled = _spelled(run, words)
    tokens = sorted({token for word in spelled for token in word})
    vocabulary = run.tokeniser.vocabulary
    space = vocabulary.index(" ") if " " in vocabulary else None
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, wanted, lock = (target.with_name(f".{target.name}.{part}") for part in ("partial", "settings", "lock"))
    with locked(target, lock):
        weights = [state_of(path) for path in sorted(run.folder.glob("*.safetensors"))]
        key = json.dumps([weights, state_of(source), tokens, space, run.seconds_per_frame, PIECE, CONTEXT])
        if not (partial.exists() and wanted.exists() and wanted.read_text() == key):
            partial.unlink(missing_ok=True)  # first: killed in between, what is old must not pass for new
            write_text(wanted, key)
        rows = np.dtype([("best", "<i4"), ("scores", "<f2", (FIRST_LABEL + len(tokens),))])
        _hear(run, source, partial, rows, tokens, space, where)
        kept = np.memmap(partial, dtype=rows, mode="r")
        found = align_recording(Heard(np.array(kept["best"]), kept["scores"]), tokens, spelled, space=space)
        result = _result(run, source, words, spelled, found, len(kept))
        del kept
        for path in map(Path, targets):
            write_text(path, SUFFIXES[path.suffix.lower()](result))
        partial.unlink()
        wanted.unlink()
    return result


def _words_of(transcript: PathLike) -> list[str]:
    try:
        text = Path(transcript).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{os.fspath(transcript)}: not UTF-8 at byte {error.start}") from None
    words = [word for piece in split_gaps(text) for word in piece.split()]
    if not words:
        raise DataError(f"{os.fspath(transcript)}: it has no words")
    return words


def _spelled(run: runs.Run, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The tokens of each word, as far as the model has them."""
    known: dict[str, tuple[int, ...]] = {}
    for word in words:
        if word not in known:
            known[word] = known_text(run.tokeniser, escape(word), marked=True).labels
    return [known[word] for word in words]


def _hear(
    run: runs.Run,
    source: Path,
    partial: Path,
    rows: np.dtype[Any],
    tokens: Sequence[int],
    space: int | None,
    where: Where,
) -> None:
    """Appends to `partial` what the model says of the pieces that are not there yet."""
    assert run.seconds_per_frame is not None
    scale, seconds = run.seconds_per_frame, audio.probe(source).seconds
    hop, context = round((PIECE - 2 * CONTEXT) / scale), round(CONTEXT / scale)
    pieces = 1 + max(0, math.ceil((seconds - PIECE) / (hop * scale)))  # the last one is longer than what it leaves out
    # The first piece keeps its beginning, too.
    sizes = [(hop + context if piece == 0 else hop) * rows.itemsize for piece in range(pieces - 1)]
    there = partial.stat().st_size if partial.exists() else 0
    done = length = 0
    while done < len(sizes) and length + sizes[done] <= there:
        length += sizes[done]
        done += 1
    with open(partial, "ab") as file:
        file.truncate(length)
        for piece in range(done, pieces):
            start, is_last = piece * hop * scale, piece == pieces - 1
            data = audio.part(source, start, None if is_last else start + PIECE)
            x = run.reader(Row({"id": source.name, "path": str(source)}), data)
            log_probs = runs.listen(run, x, where.torch_device).numpy()
            log_probs = log_probs[context if piece else 0 : None if is_last else context + hop]
            found = heard(log_probs, tokens, space)
            block = np.empty(len(log_probs), dtype=rows)
            block["best"], block["scores"] = found
            file.write(block.tobytes())
            file.flush()
            os.fsync(file.fileno())
            where.step(round(min(start + PIECE, seconds)), round(seconds))


# --- what is written --------------------------------------------------------------------------------------------------


def _result(
    run: runs.Run, source: Path, words: Sequence[str], spelled: Sequence[Sequence[int]], found: Recording, frames: int
) -> Aligned:
    scale = run.seconds_per_frame
    assert scale is not None

    def record(start: int, end: int, confidence: float, **fields: Any) -> dict[str, Any]:
        return {
            **fields, "start": round(start * scale, 3), "end": round(end * scale, 3), "confidence": round(confidence, 4),
        }  # fmt: skip

    def placed(has_audio: bool) -> Iterator[dict[str, Any]]:
        for one in found.words:
            if one.has_audio == has_audio:
                yield record(one.start, one.end, one.confidence, number=one.word, word=words[one.word])

    stretches = (
        record(one.start, one.end, one.confidence, after=one.after, text=run.tokeniser.decode(one.tokens))
        for one in found.stretches
    )
    outside = ({"number": n, "word": words[n]} for n, tokens in enumerate(spelled) if not tokens)
    return Aligned(
        source.name,
        round(frames * scale, 3),
        tuple(placed(True)),
        tuple(placed(False)),
        tuple(stretches),
        tuple(outside),
    )


def _json(found: Aligned) -> str:
    return json.dumps({"unit": "seconds", **vars(found)}, ensure_ascii=False, indent=1) + "\n"


def _intervals(found: Aligned) -> list[Interval]:
    """Words, and a `*` for audio without text, in the order of their times."""
    words = [Interval(word["start"], word["end"], word["word"], word["confidence"]) for word in found.words]
    stars = [Interval(one["start"], one["end"], STAR, one["confidence"]) for one in found.audio_without_text]
    return sorted([*words, *stars], key=lambda interval: interval[:2])


def _absent(found: Aligned) -> list[Interval]:
    """The words without audio, those of one place together; the confidence is that of the least sure one."""
    intervals = []
    for (start, end), group in groupby(found.words_without_audio, key=lambda word: (word["start"], word["end"])):
        several = list(group)
        text = " ".join(word["word"] for word in several)
        intervals.append(Interval(start, end, text, min(word["confidence"] for word in several)))
    return intervals


def _ctm(found: Aligned) -> str:
    notes = "".join(f";; no audio: {_note(one)}\n" for one in _absent(found))
    return to_ctm(Path(found.audio).stem, _intervals(found)) + notes


def _textgrid(found: Aligned) -> str:
    words = [Interval(word["start"], word["end"], word["word"]) for word in found.words]
    stars = [Interval(one["start"], one["end"], one["text"].strip() or STAR) for one in found.audio_without_text]
    # Praat has no intervals without length.
    absent = [one._replace(end=max(one.end, one.start + 0.001)) for one in _absent(found)]
    tiers = {"words": words, "audio without text": stars, "words without audio": absent}
    return to_textgrid(max([found.end, *(one.end for one in absent)]), tiers)


def _srt(found: Aligned) -> str:
    return to_srt(_intervals(found))


def _vtt(found: Aligned) -> str:
    return to_vtt(_intervals(found), [f"no audio: {_note(one)}" for one in _absent(found)])


def _note(one: Interval) -> str:
    return f"{one.text} ({one.start:.3f} to {one.end:.3f}, confidence {one.confidence:.3f})"


SUFFIXES: dict[str, Callable[[Aligned], str]] = {
    ".json": _json, ".ctm": _ctm, ".textgrid": _textgrid, ".srt": _srt, ".vtt": _vtt,
}  # fmt: skip
"""of targets, in lower case, and what writes them"""
