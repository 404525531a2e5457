"""IAM with its split lists, and the built-in digit lines."""

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from starseq.corpora import load
from starseq.corpora.digits import digit_pools
from starseq.data import images
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_bytes, read_manifest

LINES = """#--- lines.txt ---
# a01-000u-00 ok 154 19 408 746 1661 89 A|MOVE
a01-000u-00 ok 154 19 408 746 1661 89 A|MOVE|to|stop|Mr.|Gaitskell|from
a01-000u-01 err 156 19 395 932 1850 105 nominating|2|*|3|.
a01-003-00 ok 182 18 380 733 1680 110 Though|they|may|gather|some|Left-wing
b01-000-00 ok 182 18 380 733 1680 110 no|list|has|it
"""
XML = """<?xml version="1.0" encoding="ISO-8859-1"?>
<form id="a01-000u"><handwritten-part>
 <line id="a01-000u-00" segmentation="ok" text="&amp;quot;A MOVE, to stop"/>
 <line id="a01-000u-01" segmentation="err" text="nominating it."/>
</handwritten-part></form>"""


def iam(root: Path) -> Path:
    for id in ("a01-000u-00", "a01-000u-01", "a01-003-00", "b01-000-00"):
        folder = root / "lines" / id[:3] / id.rpartition("-")[0]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{id}.png").write_bytes(images.encode(np.full((40, 300), 255, np.uint8)))
    (root / "ascii").mkdir()
    (root / "ascii" / "lines.txt").write_text(LINES)
    splits = root.parent / "splits"
    splits.mkdir()
    (splits / "tr.lst").write_text("a01-000u\n")  # forms, as in Aachen's lists
    (splits / "va.lst").write_text("a01-003-00.png\n")  # lines, as in other lists
    (splits / "README.txt").write_text("not a list")
    return root


def rows(out: Path) -> dict[str, dict]:
    return {row.id: row.fields for row in read_manifest(out / "manifest.jsonl")}


def test_lines_txt_and_splits(tmp_path):
    report = load("iam")(iam(tmp_path / "iam"), tmp_path / "out", splits=tmp_path / "splits")
    found = rows(tmp_path / "out")
    assert {id: row["split"] for id, row in found.items()} == {
        "a01-000u-00": "train",
        "a01-000u-01": "train",
        "a01-003-00": "dev",
    }
    assert found["a01-000u-00"]["text"] == "A MOVE to stop Mr. Gaitskell from"
    assert found["a01-000u-01"]["text"] == r"nominating 2 \* 3 ."  # IAM's star is a character, not a gap
    assert (found["a01-003-00"]["width"], found["a01-003-00"]["height"]) == (300, 40)
    assert report.left_out == {"line in none of the split lists": 1}
    assert "2 lines marked ok, 1 marked err" in report.notes[0]
    assert "79 in the published alphabet" in report.notes[1]


def test_xml_is_preferred_for_its_spacing(tmp_path):
    root = iam(tmp_path / "iam")
    (root / "xml").mkdir()
    (root / "xml" / "a01-000u.xml").write_text(XML, encoding="latin-1")
    load("iam")(root, tmp_path / "out")
    found = rows(tmp_path / "out")
    assert found["a01-000u-00"]["text"] == '"A MOVE, to stop'
    assert "split" not in found["a01-000u-00"]
    report = load("iam")(root, tmp_path / "ok", ok_only=True)
    assert report.rows == 1
    assert report.left_out == {"line marked err": 1}


def test_iam_bad_input(tmp_path):
    root = iam(tmp_path / "iam")
    (root / "lines" / "a01" / "a01-003" / "a01-003-00.png").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"lines\.txt, line 5: .*a01-003-00\.png: the file is empty"):
        load("iam")(root, tmp_path / "out")
    assert load("iam")(root, tmp_path / "out", skip_bad=True).bad == 1
    (tmp_path / "splits" / "te.lst").write_text("b01-000\n\na01-000u\n")
    with pytest.raises(ManifestError, match=r"tr\.lst, line 1: 'a01-000u' is in the list of test too"):
        load("iam")(root, tmp_path / "out", splits=tmp_path / "splits")
    with pytest.raises(DataError, match="no split list"):
        load("iam")(root, tmp_path / "out", splits=root)
    (root / "ascii" / "lines.txt").write_text("a01-000u-00 ok 154\n")
    with pytest.raises(ManifestError, match=r"lines\.txt, line 1: not a line of IAM's lines\.txt"):
        load("iam")(root, tmp_path / "out")
    (root / "ascii" / "lines.txt").unlink()
    with pytest.raises(DataError, match=r"neither xml files nor lines\.txt"):
        load("iam")(root, tmp_path / "out")


def test_digit_lines(tmp_path):
    report = load("digits")(tmp_path, train=60, dev=10, test=10)
    assert {name: tally.rows for name, tally in report.splits.items()} == {"train": 60, "dev": 10, "test": 10}
    assert set(report.charset) == set("0123456789")
    lengths = set()
    for row in read_manifest(tmp_path / "manifest.jsonl"):
        pixels = np.asarray(Image.open(io.BytesIO(read_bytes(row, tmp_path))))
        assert pixels.shape == (32, row["width"])
        assert pixels.min() < 60 < 200 < pixels.max()  # dark ink on light paper
        assert 0.05 < (pixels < 128).mean() < 0.5
        lengths.add(len(row.text))
        assert 3 <= len(row.text) <= 10
    assert lengths == set(range(3, 11))


def test_digit_lines_are_deterministic_and_their_splits_disjoint(tmp_path):
    digests = set()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        load("digits")(tmp_path / name, train=8, dev=2, test=2, seed=seed)
        tar = hashlib.sha256((tmp_path / name / "lines.tar").read_bytes()).hexdigest()
        digests.add((tar, (tmp_path / name / "manifest.jsonl").read_text()))
    assert len(digests) == 2
    # A longer corpus begins with the shorter one.
    load("digits")(tmp_path / "d", train=9, dev=2, test=2)
    texts = [[row.text for row in read_manifest(tmp_path / n / "manifest.jsonl")] for n in ("a", "d")]
    assert texts[1][:8] == texts[0][:8]
    pools = digit_pools()
    assert sum(len(images) for pool in pools.values() for images in pool.values()) == 1797
    seen = {split: {image.tobytes() for same in pool.values() for image in same} for split, pool in pools.items()}
    assert not seen["train"] & seen["dev"]
    assert not seen["train"] & seen["test"]
    assert not seen["dev"] & seen["test"]
    with pytest.raises(ValueError, match="not negative"):
        load("digits")(tmp_path, train=-1)


def test_report_is_text_and_json(tmp_path):
    report = load("digits")(tmp_path, train=2, dev=1, test=1)
    assert str(report).splitlines()[0] == f"digits: 4 rows -> {tmp_path / 'manifest.jsonl'}"
    stats = json.loads((tmp_path / "STATS.json").read_text())
    assert stats["splits"]["train"]["rows"] == 2
    assert stats["charset"] == len(report.charset)
