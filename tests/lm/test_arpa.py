import gzip

import numpy as np
import pytest

from starseq.data.errors import DataError
from starseq.lm.arpa import ArpaReader
from starseq.lm.ngram import NGram

MODEL = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.5\t<unk>
0\t<s>\t-0.25
-0.5\t</s>
-0.75\tä\t-3e-1
-1.25\tb\t-0.125

\\2-grams:
-0.1\t<s> ä
-0.2\tä b
-.5\tb </s>

\\end\\
"""


def written(folder, text, name="lm.arpa"):
    path = folder / name
    path.write_bytes(text.encode() if name.endswith("arpa") else gzip.compress(text.encode()))
    return path


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.replace("\n", "\r\n"), lambda t: "a comment\n\n" + t])
def test_values_as_they_stand(tmp_path, name, change):
    with ArpaReader(written(tmp_path, change(MODEL), name)) as reader:
        assert reader.counts == (5, 3)
        rows = []
        for n, pieces in reader.sections():
            for words, log10_p, log10_backoff in pieces:
                assert words.shape == (len(log10_p), n)
                rows += zip(words.tolist(), log10_p, log10_backoff, strict=True)
        found = {tuple(reader.words[i] for i in row): (p, backoff) for row, p, backoff in rows}
    assert found == {
        ("<unk>",): (-1.5, 0), ("<s>",): (0, -0.25), ("</s>",): (-0.5, 0), ("ä",): (-0.75, -0.3), ("b",): (-1.25, -0.125),
        ("<s>", "ä"): (-0.1, 0), ("ä", "b"): (-0.2, 0), ("b", "</s>"): (-0.5, 0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("\\data\\", "data", "not an ARPA file"),
        ("ngram 2=3", "ngram 3=3", r"section \\data\\, line 3: ngram 2=COUNT"),
        ("ngram 1=5", "ngram 1=6", r"section \\1-grams, line 10: 5 n-grams, but the file announces 6"),
        ("ngram 1=5", "ngram 1=4", r"section \\1-grams, line 10: more than the 4 n-grams"),
        ("ngram 2=3", "ngram 2=4", r"section \\2-grams, line 15: 3 n-grams, but the file announces 4"),
        ("ngram 2=3", "ngram 2=2", r"section \\2-grams, line 15: more than the 2"),
        ("-0.2\tä b", "-0.2\tä", r"section \\2-grams, line 14: the line has fewer than 2 words"),
        ("-0.2\tä b", "-0.2\tä b c d", r"section \\2-grams, line 14: the line has more than 2 words"),
        ("-0.2\tä b", "-0.2\tä c", r"section \\2-grams, line 14: the line has a word that is not among the 1-grams"),
        ("-0.2\tä b", "-0.2\tb </s>", r"section \\2-grams: 'b </s>' comes twice"),
        ("-0.2\tä b", "x\tä b", r"section \\2-grams, line 14: the line does not begin with a number"),
        ("-0.2\tä b", "0.2\tä b", r"section \\2-grams, line 14: the line has a positive logarithm"),
        ("-1.25\tb", "-1.25\tä", r"section \\1-grams, .*the word 'ä' comes twice"),
        ("\\2-grams:", "\\3-grams:", r"section \\2-grams, line 12: .*should stand here"),
        ("\\end\\\n", "", r"section \\end\\, line \d+: the file ends here: it is cut"),
        ("</s>", "x", "</s> is not there"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, old, new, reason):
    assert old in MODEL
    with pytest.raises(DataError, match=reason):
        NGram.load(written(tmp_path, MODEL.replace(old, new)))


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
def test_a_cut_anywhere_is_an_error(tmp_path, name):
    whole = written(tmp_path, MODEL, name).read_bytes()
    for size in range(len(whole) - (2 if name.endswith("arpa") else 1)):
        (tmp_path / name).write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"section|not an ARPA file|cut or damaged"):
            NGram.load(tmp_path / name)


def test_lines_across_blocks(tmp_path, monkeypatch):
    """Many small reads give what one large one gives."""
    from starseq.lm import arpa

    whole = NGram.load(written(tmp_path, MODEL))
    monkeypatch.setattr(arpa, "_BUFFER", 7)
    monkeypatch.setattr(arpa, "_ROWS", 2)
    pieces = NGram.load(written(tmp_path, MODEL))
    assert np.array_equal(whole.log_probs([["ä", "b", "c"]])[0], pieces.log_probs([["ä", "b", "c"]])[0])
