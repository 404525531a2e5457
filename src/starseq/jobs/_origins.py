"""Where the gaps of a row come from, by its field `gap_marks`: what a transcriber's marks say of the extent bounds the fillings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starseq.data.manifest import Row
from starseq.text.gaps import split_gaps
from starseq.text.known import Known
from starseq.text.marks import Extent

__all__ = ["Origins", "gap_marks_of"]


def gap_marks_of(row: Row) -> list[dict[str, Any]] | None:
    """The field `gap_marks` of a row. None where it has none, or not one for each gap."""
    marks = row.get("gap_marks")
    if not isinstance(marks, list) or len(marks) != len(split_gaps(row.text)) - 1:
        return None
    if not all(
        isinstance(mark, dict) and all(isinstance(mark.get(name), int) for name in ("start", "end")) for mark in marks
    ):
        return None
    return marks


class Origins:
    """The marks behind the gaps of a text; `marks` is None for a row that does not have them."""

    def __init__(self, known: Known, marks: Sequence[dict[str, Any]] | None) -> None:
        self._known, self._marks = known, marks
        self._extents = {gap: _extent(self._of(gap)) for gap in range(len(known.open))}
        self._kept = 0

    def _of(self, gap: int) -> list[dict[str, Any]]:
        return [] if self._marks is None else [self._marks[number] for number in self._known.marks_in(gap)]

    @property
    def bounded(self) -> int:
        """How many gaps have marks that say how much is missing."""
        return sum(extent is not None for extent in self._extents.values())

    @property
    def outside(self) -> int:
        """How many of these have no filling that is as long, as far as they were asked for."""
        return self.bounded - self._kept

    def problem(self, gap: int, text: str) -> str | None:
        """What is wrong with the length of a filling."""
        extent = self._extents[gap]
        if extent is None:
            return None
        literal, words = "".join(split_gaps(text)), extent.unit == "word"
        length = len(literal.split()) if words else sum(not character.isspace() for character in literal)
        if extent.least <= length <= extent.most:
            self._kept += 1
            return None
        span = f"{extent.least}" if extent.least == extent.most else f"{extent.least} to {extent.most}"
        what = ("word" if words else "character") + "s" * (length != 1)
        return f"it has {length} {what}, and the mark of the gap says {span}"

    def of_filling(self, gap: int) -> dict[str, Any]:
        """What the record of a filling says of its mark."""
        marks = self._of(gap)
        return {"mark": {**marks[0], "end": marks[-1]["end"]}} if marks else {}

    def remaining(self, items: Mapping[int, Sequence[str | None]]) -> list[dict[str, Any]] | None:
        """The marks of the gaps that are left. One that was filled in part says nothing of the extent of what is left of it."""
        if self._marks is None:
            return None
        filled = {number: gap for gap, texts in items.items() if any(texts) for number in self._known.marks_in(gap)}
        remaining = list[dict[str, Any]]()
        for number, mark in enumerate(self._marks):
            if number not in filled:
                remaining.append(mark)
            elif number == self._known.marks_in(filled[number])[0]:
                texts = items[filled[number]]
                parts = sum(text is None and (not at or texts[at - 1] is not None) for at, text in enumerate(texts))
                remaining += parts * [{name: value for name, value in mark.items() if name not in Extent._fields}]
        return remaining


def _extent(marks: Sequence[dict[str, Any]]) -> Extent | None:
    """How much is missing behind marks with nothing between them, if all say it."""
    if not marks or not all(
        mark.get("unit") in ("char", "word") and mark["unit"] == marks[0]["unit"]
        and all(isinstance(mark.get(name), int) for name in ("least", "most"))
        for mark in marks
    ):  # fmt: skip
        return None
    return Extent(sum(mark["least"] for mark in marks), sum(mark["most"] for mark in marks), marks[0]["unit"])
