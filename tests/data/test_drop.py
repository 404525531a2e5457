"""Dropping: what the choice depends on, and what marks say afterwards."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.data.drop import Dropper, FixedDrop, SampleSplit, Strategy, TypeSplit, drop_labels
from starseq.data.errors import DataError
from starseq.data.manifest import Row
from starseq.text.gaps import Partial, Unit, parse, render

STRATEGIES: list[Strategy] = [FixedDrop(0.4), SampleSplit((0.1, 0.4, 0.7)), TypeSplit((0.1, 0.4, 0.7))]
UNITS: list[Unit] = ["word", "char"]
TEXTS = st.text(alphabet="*\\ ab", min_size=1, max_size=20)
FROZEN = {
    "fixed": "* brown fox * lazy *",
    "sample": "* fox * lazy *",
    "type": "* brown fox * lazy *",
    "char": "*e *c* b*own f*x*j*mps*v*r * l*zy dog",
}
PLAIN = st.text(alphabet=" abc\n", min_size=1, max_size=20)


def row(text: str, id: str = "u1", **fields: str) -> Row:
    return Row({"id": id, "path": "p", "text": text, **fields})


def sentences(count: int, words: int = 20) -> list[Row]:
    return [row(" ".join(f"w{(i * 7 + j) % 50}" for j in range(words)), id=f"u{i}") for i in range(count)]


# --- what the choice depends on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("unit", UNITS)
@given(data=st.data())
def test_order_sharding_and_reruns_change_nothing(strategy: Strategy, unit: Unit, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=6))
    rows = [row(data.draw(TEXTS), id) for id in ids]

    def run(part: list[Row]) -> dict[str, str]:
        dropper = Dropper(strategy, unit=unit, seed=3, mark=True)
        return {dropped.row.id: dropped.row.text for dropped in map(dropper, part)}

    whole = run(rows)
    assert run(data.draw(st.permutations(rows))) == whole
    cut = data.draw(st.integers(0, len(rows)))
    assert {**run(rows[:cut]), **run(rows[cut:])} == whole


@given(st.integers(1, 30), st.integers(1, 30))
def test_a_position_does_not_depend_on_what_follows(short: int, long: int) -> None:
    short, long = sorted((short, long))
    dropper = Dropper(FixedDrop(0.5))
    kept = [Dropper(FixedDrop(0.5))(row(" ".join(map(str, range(n))))).row.text.split() for n in (short, long)]
    assert kept[0] == [word for word in kept[1] if int(word) < short]
    assert dropper(row("a b c")) == dropper(row("a b c"))


def test_another_seed_or_id_is_another_choice() -> None:
    text = " ".join(map(str, range(64)))
    texts = {Dropper(FixedDrop(0.5), seed=seed)(row(text, id)).row.text for seed in range(3) for id in ("a", "b", "c")}
    assert len(texts) == 9


def test_a_larger_rate_loses_all_that_a_smaller_one_loses() -> None:
    text = " ".join(map(str, range(200)))
    kept = [set(Dropper(FixedDrop(p))(row(text)).row.text.split()) for p in (0.0, 0.1, 0.4, 0.7, 1.0)]
    assert all(fewer <= more for more, fewer in pairwise(kept))
    assert (len(kept[0]), len(kept[-1])) == (200, 0)


def test_the_choice_is_the_same_in_every_release() -> None:
    # A published split must stay what it was: a change here is a change of everybody's data.
    text = "the quick brown fox jumps over the lazy dog"
    assert Dropper(FixedDrop(0.4), mark=True)(row(text)).row.text == FROZEN["fixed"]
    assert Dropper(STRATEGIES[1], mark=True)(row(text)).row.text == FROZEN["sample"]
    assert Dropper(STRATEGIES[2], mark=True)(row(text)).row.text == FROZEN["type"]
    assert Dropper(FixedDrop(0.4), unit="char", mark=True)(row(text)).row.text == FROZEN["char"]


# --- how much is dropped ----------------------------------------------------------------------------------------------


def kept_share(strategy: Strategy, rows: list[Row]) -> list[float]:
    return [dropped.kept / dropped.labels for dropped in map(Dropper(strategy), rows)]


def test_a_fixed_rate_is_met() -> None:
    shares = kept_share(FixedDrop(0.4), sentences(2000))
    # 40,000 draws: five standard deviations.
    assert sum(shares) / 2000 == pytest.approx(0.6, abs=5 * math.sqrt(0.24 / 40_000))


def test_samples_fall_into_parts_with_a_rate_each() -> None:
    shares = kept_share(SampleSplit((0.0, 0.5, 1.0)), sentences(3000))
    assert shares.count(1.0) / 3000 == pytest.approx(1 / 3, abs=0.05)
    assert shares.count(0.0) / 3000 == pytest.approx(1 / 3, abs=0.05)


def test_word_types_fall_into_parts_with_a_rate_each() -> None:
    kept, lost = set(), set()
    dropper = Dropper(TypeSplit((0.0, 1.0)))
    for sentence in sentences(200):
        left = set(dropper(sentence).row.text.split())
        kept |= left
        lost |= set(sentence.text.split()) - left
    # By type: what was kept anywhere was lost nowhere.
    assert not kept & lost
    assert 10 < len(kept) < 40
    assert len(kept) + len(lost) == 50


def test_character_types_too() -> None:
    text = "abcdefghij" * 20
    left = Dropper(TypeSplit((0.0, 1.0)), unit="char")(row(text)).row.text
    assert 0 < len(left) < len(text)
    assert all(left.count(character) in (0, 20) for character in "abcdefghij")


def test_0_and_1_are_certain_even_at_the_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("starseq.data.drop._draws", lambda seed, id, count: (0, 2**32 - 1))
    assert Dropper(FixedDrop(0.0))(row("a b")).kept == 2
    assert Dropper(FixedDrop(1.0))(row("a b")).kept == 0


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_rates_out_of_range(p: float) -> None:
    for make in (lambda: FixedDrop(p), lambda: SampleSplit((0.5, p)), lambda: TypeSplit((p,))):
        with pytest.raises(DataError, match=f"pDrop must lie between 0 and 1, and {p} does not"):
            make()
    with pytest.raises(DataError, match="at least one part"):
        SampleSplit(())


def test_an_unknown_unit() -> None:
    with pytest.raises(DataError, match="unit must be 'word' or 'char', not 'letter'"):
        Dropper(FixedDrop(0.5), unit="letter")  # type: ignore[arg-type]


# --- what is left -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mark", [False, True])
@given(text=PLAIN, id=st.text(max_size=3))
def test_the_short_way_for_plain_texts_is_the_long_way(unit: Unit, mark: bool, text: str, id: str) -> None:
    dropper = Dropper(FixedDrop(0.5), unit=unit, mark=mark)
    assert dropper._drop_plain(id, text, mark) == dropper._drop(id, text, mark)


@pytest.mark.parametrize("unit", UNITS)
@given(text=TEXTS, id=st.text(max_size=3))
def test_marks_stand_exactly_where_labels_are_missing(unit: Unit, text: str, id: str) -> None:
    before = parse(text, unit, marked=True)
    dropper = Dropper(FixedDrop(0.5), unit=unit, mark=True)
    dropped = dropper(row(text, id))
    expected = drop_labels(before, dropper._choose(id, before.labels))
    assert dropped.row.partial(unit) == expected
    assert (dropped.labels, dropped.kept) == (len(before.labels), len(expected.labels))
    assert dropped.row["gaps"] == "marked"


@given(text=TEXTS)
def test_dropping_nothing_in_character_mode_changes_nothing(text: str) -> None:
    dropped = Dropper(FixedDrop(0.0), unit="char", mark=True)(row(text)).row
    assert dropped.partial("char") == parse(text, "char", marked=True)


def test_leading_and_double_spaces_survive() -> None:
    text = "  a  b c   "
    assert Dropper(FixedDrop(0.0), unit="char")(row(text)).row.text == text
    kept = Dropper(FixedDrop(0.3), unit="char", seed=2)(row(text))
    assert kept.row.text.count(" ") > 2
    assert len(kept.row.text) == kept.kept
    assert Dropper(FixedDrop(0.0), unit="word")(row(text)).row.text == "a b c"


def test_adjacent_marks_merge() -> None:
    kept = [False, False, True, False, False]
    assert drop_labels(Partial(tuple("abcde"), (False,) * 6), kept) == Partial(("c",), (True, True))
    assert Dropper(FixedDrop(1.0), mark=True)(row("a * b")).row.text == "*"
    assert Dropper(FixedDrop(1.0), unit="char", mark=True)(row("a*b")).row.text == "*"


def test_a_row_with_gaps_keeps_them_and_is_marked_on() -> None:
    assert Dropper(FixedDrop(0.0))(row("a * b")).row.text == "a * b"
    for fields in ({"text": "a * b"}, {"text": "a b", "gaps": "marked"}):
        dropped = Dropper(FixedDrop(1.0))(row(**fields)).row
        assert (dropped.text, dropped["gaps"]) == ("*", "marked")


def test_literal_stars_stay_literal() -> None:
    assert Dropper(FixedDrop(0.0), mark=True)(row(r"2\*3 x")).row.text == r"2\*3 x"
    # The words go, and the mark comes to stand behind a literal backslash.
    kept = drop_labels(parse(r"\b", "char", marked=True), [True, False])
    assert render(kept.labels, "char", kept.open) == r"\\*"


def test_without_marks_the_row_stays_open_everywhere() -> None:
    dropped = Dropper(FixedDrop(0.5), seed=5)(row("the quick brown fox")).row
    assert dropped.text == "the quick fox"
    assert "gaps" not in dropped.fields


def test_the_full_text_is_kept_through_two_drops() -> None:
    once = Dropper(FixedDrop(0.5), seed=5, mark=True, keep_text=True)(row("the quick brown fox")).row
    twice = Dropper(FixedDrop(1.0), keep_text=True)(once).row
    assert (once["text_full"], twice["text_full"]) == ("the quick brown fox",) * 2


def test_marks_cannot_be_made_up_afterwards() -> None:
    once = Dropper(FixedDrop(0.5), seed=5, keep_text=True)(row("the quick brown fox")).row
    with pytest.raises(DataError, match="row 'u1' lost labels before without marks"):
        Dropper(FixedDrop(0.5), mark=True)(once)
    assert Dropper(FixedDrop(0.5))(once).row["text_full"] == "the quick brown fox"


def test_other_fields_stay_in_their_order() -> None:
    fields = {"id": "u1", "path": "p", "z": [1, {"y": None}], "text": "a b", "a": 2.5}
    dropped = Dropper(FixedDrop(0.0), mark=True, keep_text=True)(Row(fields, 7)).row
    assert list(dropped.fields) == ["id", "path", "z", "text", "a", "gaps", "text_full"]
    assert (dropped["z"], dropped.line) == ([1, {"y": None}], 7)
