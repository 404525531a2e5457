import gzip
import json
import lzma

import pytest

from starseq.data.errors import DataError
from starseq.lm.text import read_texts
from starseq.text.normalise import LETTERS, Normaliser


@pytest.mark.parametrize(("name", "pack"), [("t.txt", bytes), ("t.txt.gz", gzip.compress), ("t.txt.xz", lzma.compress)])
def test_lines(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack("\ufeffIt\u2019s 2 * 3\r\n\nlast".encode()))
    assert list(read_texts([tmp_path / name])) == ["It\u2019s 2 * 3", "", "last"]
    letters = Normaliser(case="lower", replace={"\u2019": "'"}, keep=LETTERS, squeeze=True)
    assert list(read_texts([tmp_path / name], normaliser=letters)) == ["it's", "", "last"]


def test_manifests_and_progress(tmp_path):
    rows = [{"id": "a", "path": "a", "text": r"2 \* 3"}, {"id": "b", "path": "b", "text": "x"}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "t.txt").write_text("y\n")
    seen = []
    texts = read_texts(
        [tmp_path / "m.jsonl", tmp_path / "t.txt"], progress=lambda done, total: seen.append((done, total))
    )
    assert list(texts) == ["2 * 3", "x", "y"]
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("t.txt", b"ok\n\xff\n", "t.txt, line 2: not UTF-8 at byte 0"),
        ("t.txt", b"ok\na\0b\n", "t.txt, line 2: holds a NUL"),
        ("t.gz", gzip.compress(b"ok\n" * 9999, mtime=0)[:-20], "t.gz: cut or damaged after line"),
        ("t.gz", b"ok\n", "t.gz: cut or damaged"),
        ("t.xz", lzma.compress(b"ok\n" * 9999)[:-20], "t.xz: cut or damaged after line"),
        ("m.jsonl", b'{"id": "a", "path": "a", "text": "the * fox"}\n', "m.jsonl, line 1: .*has a gap"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, name, data, reason):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=reason):
        list(read_texts([tmp_path / name]))
