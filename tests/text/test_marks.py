"""A transcriber's marks: what each becomes, what no rule knows, and what is left of the text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starseq.text.gaps import escape, split_gaps
from starseq.text.marks import SETS, UNKNOWN, Extent, Marks, Span, extent_of, suspects

EVERYWHERE = [
    ("a [...] b", "a * b"),
    ("a […] b [---] c [- - -]", "a * b * c *"),
    ("a [?] b [[?]] c(???) d", "a * b * c* d"),
    ("In[?]z, ad[…]", "In*z, ad*"),
    ("[illegible] [illisible] [2 mots illisibles] <unk> [inaudible]", "* * * * *"),
    ("Ste XXX et xxx, Chapitre XXXII, DXXXIV", "Ste * et *, Chapitre XXXII, DXXXIV"),
    ("a *** b #### c [] d [XXX]", "a * b * c * d *"),
    ("le [1600?] et [[véntre?]] [fustel ?],", "le 1600 et véntre fustel,"),
    ("a [3 letters] b [c. 5 words]", "a * b *"),
    ("plain text, (Ste Anne) & 2 + 3 = 5 a.b ...", "plain text, (Ste Anne) & 2 + 3 = 5 a.b ..."),
]
OF_ONE = [
    ("leiden", "ab[cd]e a(bc) f(g)", "ab*e a f"),
    ("leiden", "(Ste Anne) a [.3.] [-4-] [c. 5]", "(Ste Anne) a * * *"),
    ("leiden", "x [[gone]] y ⟦z⟧ {s}t <u> (vac. 3) v +++", "x * y * st * v *"),
    ("leiden", "begun] mid [open", "* mid *"),
    ("leiden", "word(?) next", "word next"),
    ("transkribus", "a >< b <> c >de< f < g > h", "a * b * c * f * h"),
    ("tei", 'a <gap reason="lost" extent="3 letters"/> b <unclear>c</unclear>', "a * b c"),
    ("tei", "<unclear>c <gap/> d</unclear> <del>e <gap/></del> <supplied>f</supplied>", "c * d * *"),
    ("tei", 'a <hi rend="sup">e</hi> m<ex>onsieu</ex>r <choice><sic>x</sic><corr>y</corr></choice>', "a e mr x"),
    ("tei", "a<lb/> b <choice><abbr>Mr</abbr><expan>Monsieur</expan></choice>", "a b Mr"),
    ("speech", "so [noise] yes (()) <unk> ((I think)) [laughter-no] <sil>", "so yes * * I think no"),
    ("speech", "[00:01:02] so {LG} [inaudible 00:12] *** xxx", "so * * *"),
]


@pytest.mark.parametrize(("text", "becomes"), EVERYWHERE)
@pytest.mark.parametrize("name", SETS)
def test_marks_that_all_conventions_share(name: str, text: str, becomes: str) -> None:
    marked = Marks(name)(escape(text))
    assert marked.text == becomes
    assert all(found.name != UNKNOWN for found in marked.found)


@pytest.mark.parametrize(("name", "text", "becomes"), OF_ONE)
def test_marks_of_one_convention(name: str, text: str, becomes: str) -> None:
    marked = Marks(name)(escape(text))
    assert marked.text == becomes
    assert all(found.name != UNKNOWN for found in marked.found)


def test_uncertain_text_may_be_a_gap() -> None:
    marked = Marks("transkribus", unclear="gap")("le 26. d'Aoust [1600?] ou [?]")
    assert marked.text == "le 26. d'Aoust * ou *"
    assert [gap.holds for gap in marked.gaps] == ["1600", ""]  # what a person read is not forgotten
    assert [found.action for found in marked.found] == ["unclear", "gap"]


@pytest.mark.parametrize("text", ["a [sic] b", "a ] b", "x > y", "{a}", r"2 \* 3", "se pXXXX"])
def test_what_has_no_rule_is_a_gap_and_named(text: str) -> None:
    for name in ("transkribus", "tei"):
        marked = Marks(name)(text)
        assert len(marked.gaps) == 1
        assert [found.name for found in marked.found] == [UNKNOWN]
        assert marked.gaps[0].holds
    assert suspects(text)
    assert [found.name for found in Marks("tei")("a <foo>bar</foo> b").found] == [UNKNOWN]


def test_gaps_know_where_they_come_from() -> None:
    text = r"a \* b* [3 letters] c >d< [?][...]"
    marked = Marks("transkribus", ["@@"])(text)
    source = "*".join(split_gaps(text))
    assert [source[gap.start : gap.end] for gap in marked.gaps] == ["*", "*", "[3 letters]", ">d<", "[?][...]"]
    assert [gap.mark for gap in marked.gaps] == ["*", "*", "[3 letters]", ">d<", "[?][...]"]
    assert [gap.holds for gap in marked.gaps] == ["*", "", "", "d", ""]
    assert [gap.extent for gap in marked.gaps] == [None, None, Extent(3, 3, "char"), None, None]


@pytest.mark.parametrize(
    ("mark", "extent"),
    [
        ("[3 letters]", (3, 3, "char")),
        ("[2-4 lettres illisibles]", (2, 4, "char")),
        ("[1 mot]", (1, 1, "word")),
        ("[zwei Wörter]", None),
        ("[c. 4 words]", (2, 8, "word")),
        ("[.3.]", (3, 3, "char")),
        ("[-12-]", (12, 12, "char")),
        ("[...]", None),
        ('<gap extent="3 letters"/>', (3, 3, "char")),
        ('<gap quantity="2" unit="word"/>', (2, 2, "word")),
        ('<gap atLeast="2" atMost="5" unit="character"/>', (2, 5, "char")),
        ('<gap quantity="2" unit="lines"/>', None),
        ("[5-2 letters]", None),
    ],
)
def test_extents(mark: str, extent: tuple[int, int, str] | None) -> None:
    assert extent_of(mark) == extent


def test_marks_with_nothing_between_are_one_gap() -> None:
    gaps = Marks("leiden")("a [2 letters][3-4 letters] b [?][2 letters]").gaps
    assert [gap.extent for gap in gaps] == [Extent(5, 6, "char"), None]


def test_rules_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text(
        "# ours\n\ngap @+\nkeep \\{(?P<text>[^}]*)\\}\ndrop ~\\w+\nkeep \\[sic\\]\ninclude transkribus\n",
        encoding="utf-8",
    )
    marked = Marks(file, gap=["%"])("a @@ {b} ~c d [sic] XXX %")
    assert marked.text == "a * b d [sic] * *"
    for line, message in (
        ("gone x", "line 2: 'gone x' is not a rule: gap, unclear, keep or drop"),
        ("gap", "line 2: 'gap' is not a rule"),
        ("gap (", "line 2: not a regular expression"),
        ("include x", "or include with one of leiden, tei"),
    ):
        file.write_text(f"\n{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=message.replace("(", r"\(")):
            Marks(file)


def test_bad_settings_are_one_sentence() -> None:
    with pytest.raises(ValueError, match="'none' is neither one of leiden, tei, transkribus, speech nor a file"):
        Marks("none")
    with pytest.raises(ValueError, match=r"--gap '\(': not a regular expression"):
        Marks(gap=["("])
    with pytest.raises(ValueError, match="U\\+FDD0"):
        Marks("tei")("\ufdd0")
    assert Marks(gap=["x*"])("abc").text == "abc"  # nothing is no mark


def test_marks_beside_the_text() -> None:
    spans = [Span(4, 7, "unclear", "tag unclear", "unclear"), Span(2, 2, "gap", "tag gap", "gap", holds=False)]
    marked = Marks("transkribus")("abc def [?]", spans)
    assert marked.text == "ab*c def *"
    assert [found.name for found in marked.found] == ["tag gap", "tag unclear", "[?]"]
    assert Marks("transkribus", unclear="gap")("abc def [?]", spans).text == "ab*c * *"
    inner = [Span(0, 7, "unclear", "tag unclear", "unclear"), Span(3, 3, "gap", "tag gap", "gap", holds=False)]
    assert Marks("transkribus")("abc def", inner).text == "abc* def"


@given(st.text("ab [].?<>*{}#⟦⟧\\", max_size=25), st.sampled_from(list(SETS)), st.sampled_from(["keep", "gap"]))
def test_no_bracket_is_left_and_no_known_text_changes(text: str, name: str, unclear: str) -> None:
    marked = Marks(name, unclear=unclear)(escape(text))  # type: ignore[arg-type]
    segments = split_gaps(marked.text)
    assert len(marked.gaps) == len(segments) - 1
    letters = iter(text)
    assert all(character in letters for segment in segments for character in segment)  # in their order
    assert not set("".join(segments)) & set("[]<>{}⟦⟧*")
    assert all(0 <= gap.start < gap.end <= len(text) for gap in marked.gaps)
    assert all(one.end <= other.start for one, other in zip(marked.gaps, marked.gaps[1:], strict=False))


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="[]()<>{}*#?+⟦⟧⟨⟩Xx\ufdd0"), max_size=30),
    st.sampled_from(list(SETS)),
)
def test_text_without_marks_stays(text: str, name: str) -> None:
    assert Marks(name)(text).text == text
