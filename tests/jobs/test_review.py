"""What a person decides on a sheet becomes the manifest: known text stays to the byte, all else is one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import chromium
from tests.commands import Command
from tests.run_folder import CPU, make_run

from starseq.data import audio
from starseq.data.dataset import AudioReader
from starseq.data.drop import Dropper, FixedDrop
from starseq.data.errors import DataError
from starseq.data.files import hash_of
from starseq.data.manifest import read_manifest, write_manifest
from starseq.jobs import review as job
from starseq.jobs.complete import complete
from starseq.jobs.drop import drop
from starseq.text.gaps import escape, join_gaps, split_gaps

EVIL = "<script>alert('x')</script>\"&"


class Sheet(HTMLParser):
    """The gaps of a sheet as its script sees them."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.gaps: list[dict[str, Any]] = []
        self.facts: dict[str, str | None] = {}
        self.pictures = self.frames = 0
        self.line = 0
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        names = (found.get("class") or "").split()
        if found.get("id") == "sheet":
            self.facts = found
        if tag == "article":
            self.line = int(found["data-line"] or 0)
        self.pictures += tag == "img"
        self.frames += "where" in names
        if "gap" in names:
            self.gaps.append({"line": self.line, "position": int(found["data-position"] or 0), "guesses": []})
        if "guess" in names:
            self.gaps[-1]["guesses"].append(found["data-text"])


def save(path: Path, manifest: Path, decisions: list[dict[str, Any]]) -> Path:
    """What the sheet saves."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for one in decisions:
        rows.setdefault(one["line"], []).append({name: one[name] for name in ("position", "decision", "text")})
    record = {"manifest": hash_of(manifest), "rows": [{"line": line, "gaps": gaps} for line, gaps in rows.items()]}
    path.write_text(json.dumps(record))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"), lines=8)
    (full,) = (folder / "data").glob("*.jsonl")
    for mark in (False, True):
        drop(full, folder / "data" / f"partial{mark:d}.json", Dropper(FixedDrop(0.5), unit="char", mark=mark))
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["open everywhere", "marked"])
def completed(run: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By a run that was never trained, of which the threshold leaves about half of the fillings out."""
    out = tmp_path_factory.mktemp("completed") / "out.jsonl"
    complete(run, run / "data" / f"partial{request.param:d}.json", out, where=CPU, force=True, threshold=0.13)
    return out


def test_the_round_trip(run: Path, completed: Path, tmp_path: Path) -> None:
    """Every gap is on the sheet, and every decision is in the manifest, and nothing else."""
    assert job.write_sheet(run, completed, tmp_path / "sheet.html", root=run)[0] > 10
    sheet = Sheet(tmp_path / "sheet.html")
    before = {row.line: row for row in read_manifest(completed)}
    assert sheet.facts["data-manifest"] == hash_of(completed)
    assert sheet.pictures == len({gap["line"] for gap in sheet.gaps})
    assert sheet.frames > 10
    places = {(row.line, place) for row in before.values() for place, letter in enumerate(row.text) if letter == "*"}
    places |= {(row.line, one["position"]) for row in before.values() for one in row.get("added", ())}
    assert {(gap["line"], gap["position"]) for gap in sheet.gaps} == places
    decisions = []
    for number, gap in enumerate(sheet.gaps):
        guesses = gap["guesses"]
        decision = ("accept", "correct", "open", "correct", None)[number % 5]
        if decision == "accept" and not guesses:
            decision = "open"
        text = {"accept": guesses[number % len(guesses)] if guesses else "", "correct": ("2*\\* <b>", "")[number % 2]}
        if decision is not None and gap["line"] != 1:
            decisions.append({**gap, "decision": decision, "text": text.get(decision, "")})
    out = tmp_path / "deep" / "reviewed.jsonl"
    done = job.apply_review(completed, save(tmp_path / "review.json", completed, decisions), out)
    kinds = [one["decision"] for one in decisions]
    assert (done.rows, done.undecided) == (len(before), len(sheet.gaps) - len(decisions))
    assert (done.accepted, done.corrected, done.opened) == tuple(map(kinds.count, ("accept", "correct", "open")))
    assert min(done.accepted, done.corrected, done.opened, done.undecided) > 0
    for row in read_manifest(out):
        old, mine = before[row.line], [one for one in decisions if one["line"] == row.line]
        if not mine:
            assert {**row.fields, "archive": ""} == {**old.fields, "archive": ""}
            continue
        text = old.text  # digits and marks: positions are those of Python
        for one in sorted(mine, key=lambda one: -one["position"]):
            fillings = {one["position"]: one["text"] for one in old.get("added", ())}
            end = one["position"] + len(fillings.get(one["position"], "*"))
            new = {"open": "*", "accept": one["text"], "correct": escape(one["text"])}[one["decision"]]
            text = text[: one["position"]] + new + text[end:]
        assert row.text == text
        assert (row["gaps"], row["text_partial"]) == ("marked", old.get("text_partial", old.text))
        flat = "*".join(split_gaps(row.text))
        assert all(flat[one["position"] :].startswith("*".join(split_gaps(one["text"]))) for one in row["added"])
        seen = [one["reviewed"] for one in row["added"] if "reviewed" in one]
        assert seen.count("accepted") == sum(one["decision"] == "accept" for one in mine)
        assert seen.count("corrected") == sum(one["decision"] == "correct" for one in mine)
        assert all(("confidence" in one) != (one.get("reviewed") == "corrected") for one in row["added"])


LITERALS = st.text("ab *\\\u0301\u00df\n", max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(LITERALS, min_size=1, max_size=5),
    st.lists(
        st.tuples(st.text("xy*\\", min_size=1, max_size=3) | st.none(), LITERALS | st.none()), min_size=5, max_size=5
    ),
)
def test_known_text_is_kept(tmp_path: Path, known: list[str], gaps: list[tuple[str | None, str | None]]) -> None:
    """Whatever stands in the gaps and whatever a person writes: a gap is (its filling, what is written there)."""
    gaps = gaps[: len(known) - 1]

    def text(fillings: list[str | None]) -> tuple[str, list[dict[str, Any]]]:
        segments, places, length = [known[0]], [], len(known[0])
        for filling, after in zip(fillings, known[1:], strict=True):
            places.append({"text": escape(filling or ""), "confidence": 0.5, "position": length})
            length += (1 if filling is None else len(filling)) + len(after)
            if filling is None:
                segments.append(after)
            else:
                segments[-1] += filling + after
        return join_gaps(segments), places

    manifest, out = tmp_path / "out.jsonl", tmp_path / "reviewed.jsonl"
    before, places = text([filling for filling, _ in gaps])
    added = [place for place, (filling, _) in zip(places, gaps, strict=True) if filling is not None]
    write_manifest(manifest, [{"id": "a", "path": "p", "text": before, "added": added}], labelled=False)
    decisions = [
        {"line": 1, "position": place["position"], "decision": "open" if new is None else "correct", "text": new or ""}
        for place, (_, new) in zip(places, gaps, strict=True)
    ]
    job.apply_review(manifest, save(tmp_path / "review.json", manifest, decisions), out)
    (row,) = read_manifest(out, labelled=False)
    assert row.text == text([new for _, new in gaps])[0]


def test_what_is_said_of_a_mark_goes_with_it(tmp_path: Path) -> None:
    """A filling has the `mark` that it stands for, and `gap_marks` those that are left; what was found empty stays so."""
    marks = [{"start": number, "end": number + 1} for number in range(5)]
    added = [
        {"text": "b", "confidence": 0.9, "mark": marks[0], "position": 1},
        {"text": "", "reviewed": "corrected", "mark": marks[2], "position": 4},
        {"text": "d", "confidence": 0.9, "mark": marks[3], "position": 5},
    ]
    manifest, out = tmp_path / "out.jsonl", tmp_path / "reviewed.jsonl"
    row = {
        "id": "a",
        "path": "p",
        "text": "ab*cxd*",
        "gaps": "marked",
        "added": added,
        "gap_marks": [marks[1], marks[4]],
    }
    write_manifest(manifest, [row])

    def decided(*decisions: tuple[int, str, str]) -> tuple[str, list[Any], list[Any]]:
        made = [{"line": 1, "position": at, "decision": decision, "text": text} for at, decision, text in decisions]
        job.apply_review(manifest, save(tmp_path / "review.json", manifest, made), out)
        (after,) = read_manifest(out)
        return after.text, [(one["text"], one["mark"], one["position"]) for one in after["added"]], after["gap_marks"]

    assert decided((1, "open", ""), (2, "correct", "*"), (6, "correct", "")) == (
        r"a*\*cxd",
        [("\\*", marks[1], 2), ("", marks[2], 4), ("d", marks[3], 5), ("", marks[4], 6)],
        [marks[0]],
    )
    kept = [("b", marks[0], 1), ("", marks[2], 4), ("d", marks[3], 5)]
    assert decided((2, "open", "")) == (row["text"], kept, row["gap_marks"])
    with pytest.raises(DataError, match="no gap at 4"):
        decided((4, "open", ""))


def test_what_is_wrong_is_one_sentence(completed: Path, tmp_path: Path) -> None:
    review, out = tmp_path / "review.json", tmp_path / "reviewed.jsonl"
    row = next(row for row in read_manifest(completed) if "added" in row.fields)
    good = {"line": row.line, "position": row["added"][0]["position"], "decision": "open", "text": ""}

    def saved(*decisions: dict[str, Any], **changes: Any) -> str:
        record = json.loads(save(review, completed, list(decisions)).read_text())
        return json.dumps({**record, **changes})

    strange = "not what a sheet of `starseq complete --review` saves"
    other = "it is about another manifest than"
    for text, sentence in {
        "": strange,
        "[]": strange,
        "[" * 10**5: strange,
        saved(rows=3): strange,
        saved({**good, "decision": "perhaps"}): strange,
        saved({**good, "position": "2"}): strange,
        saved({**good, "text": 7}): strange,
        saved({**good, "text": "\ud800"}): strange,
        saved(good, good): strange,
        saved(good, manifest="0" * 64): other,
        saved({**good, "line": 999}): "has no row in line 999",
        saved({**good, "position": 99}): f"row {row.id!r} has no gap at 99",
    }.items():
        review.write_text(text)
        with pytest.raises(DataError) as error:
            job.apply_review(completed, review, out)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
        assert not out.exists()
    save(review, completed, [good])
    with pytest.raises(DataError, match="this is the file that is read"):
        job.apply_review(completed, review, review)
    for added in (7, [7], [{}], [{"text": "9", "position": 90}], {"a": 1}):
        broken = tmp_path / "broken.jsonl"
        write_manifest(broken, [{"id": "a", "path": "p", "text": "12", "added": added}])
        with pytest.raises(DataError, match="row 'a': field 'added' does not say what was filled in where"):
            job.apply_review(broken, save(review, broken, []), out)


def test_the_commands(run: Path, tmp_path: Path, command: Command) -> None:
    manifest, out, sheet = run / "data" / "partial1.json", tmp_path / "out.jsonl", tmp_path / "sheet.html"
    options = ("complete", run, manifest, "-o", out, "--device", "cpu", "--force", "--threshold", 0, "--root", run)
    code, printed, _ = command(*options, "--review", sheet)
    assert code == 0
    assert f"starseq complete {run} {out} --out REVIEWED.jsonl --reviewed out.review.json" in printed
    gaps = Sheet(sheet).gaps
    save(tmp_path / "r.json", out, [{**gaps[0], "decision": "open", "text": ""}])
    final = tmp_path / "final.jsonl"
    code, printed, _ = command("complete", run, out, "-o", final, "--reviewed", tmp_path / "r.json")
    rows = sum(1 for _ in read_manifest(out))
    assert (code, printed) == (
        0, f"{final}: {rows} rows; 0 gaps accepted, 0 corrected, 1 left open, {len(gaps) - 1} as they were\n"
    )  # fmt: skip
    for wrong, sentence in {
        ("--review", manifest): "this is the file that is read",
        ("--review", out): "this is the file that is read",
        ("--review", sheet, "--reviewed", tmp_path / "r.json"): "give one of --review and --reviewed",
        ("--reviewed", tmp_path / "none.json"): "none.json: no such file",
        ("--reviewed", tmp_path / "r.json"): "r.json: it is about another manifest than",
    }.items():
        code, _, err = command(*options, *wrong)
        assert (code, sentence in err, err.count("\n")) == (2, True, 1), err


def test_a_report_shows_the_most_doubtful_first(run: Path, completed: Path, tmp_path: Path, command: Command) -> None:
    page = tmp_path / "page.html"
    shown = ("--out", page, "--examples", 4, "--alignments", 0, "--root", run)
    assert command("report", run, "--completed", completed, *shown).code == 0
    html = page.read_text()
    assert html.count('<article class="filled"') == 4
    assert html.count("data:image/jpeg") == 4
    assert "<script" not in html
    rows, total = job.doubtful_rows(SimpleNamespace(), completed, 10**6, root=tmp_path / "none")  # type: ignore[arg-type]
    sure = [row.confidence for row in rows]
    assert sure == sorted(sure)
    assert len(rows) == total > 4
    assert not any(row.picture for row in rows)  # they are not there
    left = [json.loads(line) for line in completed.with_name("out.left.jsonl").read_text().splitlines()]
    others = [one["others"] for one in left if "others" in one]
    others += [one["others"] for row in read_manifest(completed) for one in row.get("added", ()) if "others" in one]
    assert len(others) > 10
    for guesses in others:
        shares = [guess["confidence"] for guess in guesses]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) < 1.001
        assert len({guess["text"] for guess in guesses}) == len(guesses) <= 3


def fake_run(**changes: Any) -> Any:
    """What pictures need of a run that hears."""
    recipe = SimpleNamespace(data=SimpleNamespace(root=None, corpus=None))
    return SimpleNamespace(
        **{"reader": AudioReader(), "seconds_per_frame": 0.04, "stride": 4, "recipe": recipe, **changes}
    )


def test_sound_can_be_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.wav").write_bytes(audio.encode(torch.rand(32_000) - 0.5, 16_000))
    added = [{"text": "<b>", "confidence": 0.5, "position": 2, "start": 0.5, "end": 1.0}]
    fields = {"path": "a.wav", "text": "a <b> c*", "added": added}
    write_manifest(tmp_path / "m.jsonl", [{"id": EVIL, **fields}, {**fields, "id": "b", "path": "none.wav"}])
    shown, absent = job.doubtful_rows(fake_run(), tmp_path / "m.jsonl", 9)[0]
    assert shown.sound.startswith("data:audio/")
    assert len(shown.sound) < 20_000
    assert shown.gaps[0].span == pytest.approx((0.25, 0.5))
    assert (absent.picture, absent.sound) == (None, "")
    monkeypatch.setattr(job, "MOST_MEDIA", 1)
    write_manifest(tmp_path / "m.jsonl", [{**fields, "id": name} for name in "abc"])
    rows, _ = job.doubtful_rows(fake_run(), tmp_path / "m.jsonl", 9)
    assert [bool(row.picture) for row in rows] == [True, False, False]  # the page stays small


@pytest.fixture
def by_hand(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: dict[str, Any]) -> Path:
        write_manifest(tmp_path / "out.jsonl", [{"path": "p", **row} for row in rows])
        return tmp_path / "out.jsonl"

    return write


def test_nothing_of_a_text_gets_through(by_hand: Callable[..., Path], tmp_path: Path) -> None:
    others = [{"text": EVIL + "2", "confidence": 0.1}]
    added = [{"text": EVIL, "confidence": 0.5, "position": len(EVIL), "others": others}]
    manifest = by_hand({"id": EVIL, "text": f"{EVIL}{EVIL}*{EVIL}", "added": added})
    manifest.with_name("out.left.jsonl").write_text(
        json.dumps({"id": EVIL, "guess": EVIL, "reason": EVIL, "position": 2 * len(EVIL)}) + "\n"
    )
    rows, _ = job.doubtful_rows(fake_run(), manifest, 9)
    html = job.sheet(rows, total=9, manifest=EVIL, key="")
    (tmp_path / "sheet.html").write_text(html)
    body, _, script = html.partition("<script>")
    assert (html.count("<script"), html.count("</script"), "<script" in body) == (1, 1, False)
    assert script.startswith('"use strict"')
    assert "default-src 'none'" in html
    assert "script-src 'sha256-" in html
    assert "http" not in html.replace("http-equiv", "")
    assert not any(word in script for word in ("innerHTML", "eval(", "fetch(", "XMLHttpRequest", "insertAdjacent"))
    assert Sheet(tmp_path / "sheet.html").gaps[0]["guesses"] == [EVIL, EVIL + "2"]


@pytest.mark.skipif(chromium.PATH is None, reason="needs chromium")
def test_a_person_ticks_it(by_hand: Callable[..., Path], tmp_path: Path) -> None:
    """With keys alone, and a mouse; a reload loses nothing; what is saved is read; nothing is fetched."""
    (tmp_path / "p").write_bytes(audio.encode(torch.rand(16_000) - 0.5, 16_000))
    others = [{"text": "Anna", "confidence": 0.2}]
    one = [{"text": "Anne", "confidence": 0.6, "position": 5, "others": others, "start": 0.2, "end": 0.4}]
    rows = [{"id": f"{EVIL}{n}", "text": "(Ste Anne) <b>*</b>", "added": one} for n in range(3)]
    manifest, sheet, out = by_hand(*rows), tmp_path / "sheet.html", tmp_path / "reviewed.jsonl"
    shown, total = job.doubtful_rows(fake_run(), manifest, 9)
    sheet.write_text(job.sheet(shown, total=total, manifest=manifest.name, key=hash_of(manifest)))
    with chromium.Chromium() as page:

        def status() -> str:
            return str(page.evaluate("document.getElementById('done').textContent"))

        def lines() -> list[str]:
            return list(page.evaluate("[...document.querySelectorAll('.line')].map(line => line.textContent)"))

        page.open(sheet)
        assert status() == "0 of 6 decided"
        page.press("Enter", "c")  # accepts, and goes to the next gap
        page.type(f"*{EVIL}")
        page.press("Enter", "2", "x", "u", "j", "n")
        assert status() == "4 of 6 decided"
        page.press("k", "c")
        page.type("not meant")
        page.press("Escape", "p")
        page.evaluate("document.querySelectorAll('.leave')[5].click()")
        read = [f"(Ste Anne) <b>*{EVIL}</b>", "(Ste Anna) <b>*</b>", "(Ste ) <b>*</b>"]
        assert (lines(), status()) == (read, "5 of 6 decided")
        page.reload()
        assert (lines(), status()) == (read, "5 of 6 decided")
        page.press("s")
        while page.wait("Browser.downloadProgress")["params"]["state"] != "completed":
            pass
        (saved,) = page.downloads.iterdir()
        assert saved.name == "out.review.json"
        done = job.apply_review(manifest, saved, out)
        assert (done.accepted, done.corrected, done.opened, done.undecided) == (2, 2, 1, 1)
        assert ["*".join(split_gaps(row.text)) for row in read_manifest(out)] == read
        page.evaluate("localStorage.clear()")
        page.reload()
        assert status() == "0 of 6 decided"
        page.choose("#open", saved)
        page.evaluate("new Promise(done => setTimeout(done, 200))")
        assert (lines(), status()) == (read, "5 of 6 decided")
        page.choose("#open", manifest)
        page.evaluate("new Promise(done => setTimeout(done, 200))")
        assert status() == "out.jsonl: it was not saved by this sheet"
        asked = [
            event["params"]["request"]["url"] for event in page.events if event["method"] == "Network.requestWillBeSent"
        ]
        assert {url.partition(":")[0] for url in asked} <= {"file", "data", "blob"}
        assert not [event for event in page.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        for width in (1280, 390):  # nothing is wider than the window
            page.size(width, 800)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
