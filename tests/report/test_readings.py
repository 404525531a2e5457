"""Readings: kept and found again, chosen the same way every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from starseq.data.errors import DataError
from starseq.report.readings import Reading, choose, read_readings, write_readings

READINGS = [Reading(f"u{i}", "abcd", {"greedy": "abcd"[: i % 5] + "\u2028"}) for i in range(20)]


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    write_readings(tmp_path, "../other: test", READINGS)
    assert read_readings(tmp_path, "../other: test") == READINGS
    assert [path.parent.name for path in tmp_path.rglob("*.jsonl")] == ["readings"]


def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    write_readings(tmp_path, "test", READINGS[:1])
    file = tmp_path / "readings" / "test.jsonl"
    file.write_text(file.read_text() + '{"id": 3}\n')
    with pytest.raises(DataError, match=r"test\.jsonl, line 2: not a reading that `starseq evaluate` wrote"):
        read_readings(tmp_path, "test")


def test_the_worst_and_some_others() -> None:
    chosen = choose(READINGS, "greedy", "char", 4, 3)
    assert [reading.id for reading in chosen["worst"]] == ["u0", "u10", "u15", "u5"]
    assert len(chosen["at random"]) == 3
    assert not {*map(id, chosen["worst"])} & {*map(id, chosen["at random"])}
    assert choose(READINGS, "greedy", "char", 4, 3) == chosen
    assert choose(READINGS, "greedy", "char", 4, 3, seed=1)["at random"] != chosen["at random"]
    right = [Reading("u", "a", {"greedy": "a"})]
    assert choose(right, "greedy", "char", 3, 3) == {"worst": [], "at random": right}
