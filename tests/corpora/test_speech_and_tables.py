"""LibriSpeech, folders, tables, archives: what becomes a row, what is left out, what is bad and where."""

import json
import math
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from starseq import corpora
from starseq.corpora import load
from starseq.data import audio, images
from starseq.data.dataset import AudioReader, ManifestDataset
from starseq.data.errors import DataError
from starseq.data.manifest import ManifestError, read_manifest
from starseq.jobs.manifest import validate

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def sound(path: Path, seconds: float = 0.5, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.1 * torch.randn(int(16_000 * seconds), generator=torch.Generator().manual_seed(1))
    kinds = {".flac": "FLAC", ".mp3": "MP3", ".ogg": "OGG"}
    path.write_bytes(audio.encode(wave, 16_000, format=kinds.get(path.suffix, "WAV"), **options))


def rows(out: Path) -> list[dict]:
    return [row.fields for row in read_manifest(out / "manifest.jsonl")]


def bad_rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "bad.jsonl").read_text().splitlines()]


def test_every_corpus_is_found_by_being_there():
    names = corpora.names()
    assert {"librispeech", "kaldi", "iam", "pagexml", "alto", "folder", "table", "digits", "archive"} <= set(names)
    assert all(callable(load(name)) and load(name).__doc__ for name in names)
    with pytest.raises(ValueError, match="corpus 'nope' is not one of alto"):
        load("nope")


# --- LibriSpeech ------------------------------------------------------------------------------------------------------


def librispeech(root: Path) -> Path:
    tree = root / "LibriSpeech"
    for subset, speaker, chapter in (("dev-clean", "84", "121123"), ("train-clean-100", "19", "198")):
        folder = tree / subset / speaker / chapter
        lines = []
        for i in range(3):
            sound(folder / f"{speaker}-{chapter}-{i:04d}.flac", 0.3 + 0.1 * i)
            lines.append(f"{speaker}-{chapter}-{i:04d} GO DO YOU HEAR {'AGAIN ' * i}".strip())
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("\n".join(lines) + "\n")
    (tree / "SPEAKERS.TXT").write_text("; comment\n84 | F | dev-clean | 8 | Name\n")
    return tree


@pytest.mark.parametrize("check", [False, True])
def test_librispeech_tree(tmp_path, check):
    librispeech(tmp_path)
    report = load("librispeech")(tmp_path, tmp_path / "out", check=check)
    assert {name: tally.rows for name, tally in report.splits.items()} == {"dev-clean": 3, "train-clean-100": 3}
    assert report.seconds == pytest.approx(2.4)
    first = rows(tmp_path / "out")[0]
    assert first["id"] == "84-121123-0000"
    assert first["text"] == "GO DO YOU HEAR"
    assert (first["duration"], first["samples"], first["sampling_rate"]) == (0.3, 4800, 16_000)
    assert (first["speaker"], first["chapter"], first["gender"]) == ("84", "121123", "F")
    assert "read the manifest with --root " in str(report)
    data = ManifestDataset(tmp_path / "out" / "manifest.jsonl", AudioReader(), root=tmp_path)
    assert data[0].x.shape == (30, 80)
    assert json.loads((tmp_path / "out" / "STATS.json").read_text())["rows"] == 6


def test_librispeech_subset_and_what_is_missing(tmp_path):
    tree = librispeech(tmp_path)
    assert load("librispeech")(tree, tmp_path / "one", subset=("dev-clean",)).rows == 3
    with pytest.raises(DataError, match=r"no subset 'dev-other' \(there are dev-clean, train-clean-100\)"):
        load("librispeech")(tree, tmp_path / "two", subset=("dev-other",))
    chapter = tree / "dev-clean" / "84" / "121123"
    (chapter / "84-121123-0001.flac").rename(chapter / "84-121123-0009.flac")
    (chapter / "84-121123-0002.flac").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"trans\.txt, line 2: no audio file for utterance '84-121123-0001'"):
        load("librispeech")(tree, tmp_path / "three")
    assert not (tmp_path / "three" / "manifest.jsonl").exists()
    report = load("librispeech")(tree, tmp_path / "three", skip_bad=True)
    assert (report.rows, report.bad) == (4, 2)
    assert report.left_out == {"audio file without a transcript": 1}
    assert [(row["line"], row["reason"].rpartition(": ")[2]) for row in bad_rows(tmp_path / "three")] == [
        (2, "no audio file for utterance '84-121123-0001'"),
        (3, "the file is empty"),
    ]


def test_librispeech_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load("librispeech")(tmp_path / "none", tmp_path / "out")
    with pytest.raises(DataError, match="found nothing to put into a manifest"):
        load("librispeech")(tmp_path, tmp_path / "out")


# --- folder -----------------------------------------------------------------------------------------------------------


def test_folder_of_audio_and_images(tmp_path):
    source = tmp_path / "src"
    sound(source / "train" / "a.wav")
    (source / "train" / "a.txt").write_text("HELLO * THERE\n")
    sound(source / "b.mp3")
    (source / "b.txt").write_bytes(b"\xef\xbb\xbf  two  spaces\r\n")
    (source / "test").mkdir()
    (source / "test" / "c.png").write_bytes(images.encode(np.zeros((20, 50), np.uint8)))
    (source / "test" / "c.gt.txt").write_text("line")
    sound(source / "lonely.wav")
    (source / "orphan.txt").write_text("x")
    (source / ".hidden.wav").write_bytes(b"")
    report = load("folder")(source, source, dev=0.0, test=0.0)
    assert report.left_out == {"text file without an audio file or image": 1}
    found = {row["id"]: row for row in rows(source)}
    assert found["train/a"]["text"] == "HELLO * THERE"
    assert found["b"]["text"] == "  two  spaces"  # spaces are labels
    assert (found["test/c"]["width"], found["test/c"]["height"], found["test/c"]["split"]) == (50, 20, "test")
    assert found["b"]["path"] == "b.mp3"
    assert (found["lonely.wav"]["text"], found["lonely.wav"]["split"]) == ("*", "train")  # all of it is a gap
    assert report.notes == ["1 files have no text beside them: nothing of theirs is known"]
    assert report.only_gaps == 1


def test_two_texts_of_a_file_and_two_files_of_a_text(tmp_path):
    source = tmp_path / "src"
    for name in ("same.wav", "a.wav", "b.wav", "b.flac"):
        sound(source / name)
    for name, text in (("same.txt", "x"), ("same.gt.txt", "x\n"), ("a.txt", "x"), ("a.gt.txt", "y"), ("b.txt", "z")):
        (source / name).write_text(text)
    report = load("folder")(source, tmp_path / "out", skip_bad=True)
    assert [row["id"] for row in rows(tmp_path / "out")] == ["same"]
    assert (report.bad, report.left_out) == (3, {})
    reasons = [row["reason"] for row in bad_rows(tmp_path / "out")]
    assert sum("a.gt.txt: another text than a.txt" in reason for reason in reasons) == 1
    assert sum("not the only file that b.txt may belong to" in reason for reason in reasons) == 2


@pytest.mark.parametrize(
    ("name", "content", "text", "reason"),
    [
        ("a.wav", b"", b"x", "the file is empty"),
        ("a.wav", b"RIFFgarbage", b"x", "not audio that can be decoded"),
        ("a.wav", "nan", b"x", "sample 3 is nan, not a finite number"),
        ("a.wav", "rate", b"x", "the sampling rate is 0 Hz"),
        ("a.png", b"\x89PNG\r\n", b"x", "not an image that can be decoded"),
        ("a.wav", "good", b"", "the text is empty"),
        ("a.wav", "good", b" \n", "the text is empty"),
        ("a.wav", "good", b"\xff\xfe", "not UTF-8 at byte 0"),
        ("a.wav", "good", b"x\ny", "more than one line of text"),
    ],
)
def test_bad_files_of_a_folder(tmp_path, name, content, text, reason):
    source = tmp_path / "src"
    sound(source / "good.wav")
    (source / "good.txt").write_text("fine")
    sound(source / name)
    if content == "nan":
        wave = torch.tensor([0.0, 0, 0, math.nan])
        (source / name).write_bytes(audio.encode(wave, 16_000, subtype="FLOAT"))
    elif content == "rate":
        data = bytearray((source / name).read_bytes())
        data[24:28] = bytes(4)
        (source / name).write_bytes(data)
    elif content != "good":
        (source / name).write_bytes(content)
    (source / "a.txt").write_bytes(text)
    with pytest.raises(ManifestError) as caught:
        load("folder")(source, tmp_path / "out")
    assert reason in str(caught.value)
    assert "line 1" in str(caught.value)
    assert not (tmp_path / "out" / "manifest.jsonl").exists()
    report = load("folder")(source, tmp_path / "out", skip_bad=True)
    assert (report.rows, report.bad) == (1, 1)
    (bad,) = bad_rows(tmp_path / "out")
    assert reason in bad["reason"]


# --- tables -----------------------------------------------------------------------------------------------------------


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    for i in range(3):
        sound(folder / "clips" / f"{i}.wav", 0.2)
    (folder / name).write_bytes(text.encode())
    return folder / name


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_table(tmp_path, delimiter):
    lines = [
        "path,text,speaker,split",
        "clips/0.wav,one,ann,train",
        "",
        'clips/1.wav,"two\nlines",bob,dev',
        "clips/2.wav,th*,,",
    ]
    source = table(tmp_path, "\n".join(lines).replace(",", delimiter))
    report = load("table")(source, tmp_path / "out")
    found = rows(tmp_path / "out")
    assert [row["id"] for row in found] == ["clips/0", "clips/1", "clips/2"]
    assert [row["text"] for row in found] == ["one", "two\nlines", "th*"]
    assert [row["speaker"] for row in found] == ["ann", "bob", ""]
    assert [row["duration"] for row in found] == [0.2] * 3
    assert found[0]["path"] == "../clips/0.wav"
    assert sum(tally.rows for tally in report.splits.values()) == 3


def test_table_with_other_columns(tmp_path):
    source = table(tmp_path, "where\twords\tkey\nclips/0.wav\thi\tu1\n", "t.tsv")
    load("table")(source, tmp_path / "out", path_column="where", text_column="words", id_column="key")
    assert rows(tmp_path / "out")[0]["id"] == "u1"


def test_common_voice(tmp_path):
    """Its columns, its quotes, its folder of clips, and a split a table; validated.tsv has the rows of the others again."""
    head = "client_id\tpath\tsentence_id\tsentence\tup_votes\tlocale\n"
    for name, number, text in (("train", 0, '"Ho," said * "fox".'), ("test", 1, "deux"), ("validated", 2, "trois")):
        table(tmp_path, f"{head}ann\t{number}.wav\tx\t{text}\t2\tfr\n", f"{name}.tsv")
    assert corpora.reader_of(tmp_path) == "table"
    report = load("table")(tmp_path, tmp_path / "out")
    found = {row["id"]: row for row in rows(tmp_path / "out")}
    assert {id: row["split"] for id, row in found.items()} == {"0": "train", "1": "test"}
    assert found["0"]["text"] == '"Ho," said * "fox".'
    assert (found["0"]["path"], found["0"]["speaker"], found["0"]["locale"]) == ("../clips/0.wav", "ann", "fr")
    assert report.notes == [report.notes[-1]]
    assert report.notes[0].startswith("the files lie outside")


def test_parts_of_files_in_a_table(tmp_path):
    sound(tmp_path / "hour.wav", 4.0)
    text = (
        "file_name,Transcription,start,end,offset2\nhour.wav,one,0.5,1.25,x\nhour.wav,two,3.5,4.02,\nhour.wav,all,,,\n"
    )
    load("table")(table(tmp_path, text), tmp_path / "out")
    found = {row["text"]: row for row in rows(tmp_path / "out")}
    assert [found["one"][name] for name in ("id", "start", "end", "duration")] == [
        "hour-0000500-0001250",
        0.5,
        1.25,
        0.75,
    ]
    assert (found["two"]["start"], found["two"]["end"], found["one"]["offset2"]) == (3.5, 4.0, "x")
    assert not {"start", "end"} & found["all"].keys()
    load("table")(table(tmp_path, "audio,text,begin,duration\nhour.wav,one,0.5,1\n"), tmp_path / "out")
    assert [rows(tmp_path / "out")[0][name] for name in ("start", "end", "duration")] == [0.5, 1.5, 1.0]
    with pytest.raises(ManifestError, match="line 2: start 'x' is not a number"):
        load("table")(table(tmp_path, "audio,text,begin,duration\nhour.wav,one,x,1\n"), tmp_path / "out")


def test_files_elsewhere_and_the_root_that_reads_them(tmp_path):
    source = table(tmp_path / "tables", "path,text\nclips/0.wav,one\n")
    sound(tmp_path / "store" / "far.wav", 0.2)
    source.write_text(source.read_text() + f"{tmp_path}/store/far.wav,two\n")
    out = tmp_path / "tables" / "out"
    report = load("table")(source, out, root=tmp_path)
    assert [row["path"] for row in rows(out)] == ["../clips/0.wav", "../../store/far.wav"]
    root, told = os.path.realpath(tmp_path), report.notes[-1]
    assert told.endswith(f"--root {root}, in a recipe data.root={root} data.manifest=tables/out/manifest.jsonl")
    good = validate(out / "manifest.jsonl", files=True, root=root)
    assert (good.rows, good.bad) == (2, 0)


def test_the_root_of_folders_with_spaces_can_be_pasted(tmp_path):
    sound(tmp_path / "my files" / "a b" / "a.wav")
    (tmp_path / "my files" / "a b" / "a.txt").write_text("x")
    note = load("folder")(tmp_path / "my files" / "a b", tmp_path / "my files" / "the out").notes[-1]
    words = shlex.split(note.partition("read the manifest with ")[2])
    top = os.path.realpath(tmp_path / "my files")
    assert words[:2] == ["--root", f"{top},"]
    assert words[-2:] == [f"data.root={top}", "data.manifest=the out/manifest.jsonl"]


def test_the_split_of_a_table(tmp_path):
    source = table(tmp_path, "path,text,mine\nclips/0.wav,one,mine\nclips/1.wav,two,\n")
    assert "no column 'split': a hash of the id decides" in load("table")(source, tmp_path / "out").notes[0]
    for number in range(10):
        sound(tmp_path / "clips" / f"{number}.wav")
    lines = "".join(f"clips/{n}.wav,one,{'ann' if n < 5 else 'ben'}\n" for n in range(10))
    speakers = table(tmp_path, "path,text,speaker\n" + lines)
    assert "a hash of the speaker decides" in load("table")(speakers, tmp_path / "out", dev=0.45, test=0.45).notes[0]
    splits = [row["split"] for row in rows(tmp_path / "out")]
    assert len(set(splits[:5])) == len(set(splits[5:])) == 1
    source = table(tmp_path, "path,text,part\nclips/0.wav,one,mine\nclips/1.wav,two,\n")
    report = load("table")(source, tmp_path / "out", split="dev")
    assert list(report.splits) == ["dev"]
    assert not any("hash" in note for note in report.notes)
    named = table(tmp_path, "path,text,split\nclips/0.wav,one,mine\n")
    assert not any("hash" in note for note in load("table")(named, tmp_path / "out").notes)
    assert list(load("table")(named, tmp_path / "out", split="dev").splits) == ["dev"]  # the option wins
    source = table(tmp_path, "path,text,part\nclips/0.wav,one,mine\nclips/1.wav,two,\n")
    load("table")(source, tmp_path / "out", split_column="part")
    assert rows(tmp_path / "out")[0]["split"] == "mine"
    for wrong in ("split_column", "id_column"):
        with pytest.raises(ManifestError, match=r"line 1: no column 'subst' \(there are path, text, part\)"):
            load("table")(source, tmp_path / "out", **{wrong: "subst"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("clips/1.wav", "1 cells, but the header has 2"),
        ("clips/1.wav,", "field 'text' is empty"),
        ("clips/9.wav,x", "clips/9.wav: no such file"),
        ("../../etc/passwd.wav,x", "path '../../etc/passwd.wav' leads out of the root"),
        ("/etc/passwd.wav,x", "path '/etc/passwd.wav' leads out of the root"),
        ("t.csv,x", "t.csv: neither audio nor an image by its name"),
        ("clips/0.wav,again", "id 'clips/0' was used before"),
    ],
)
def test_bad_rows_of_a_table(tmp_path, line, reason):
    source = table(tmp_path, f"path,text\nclips/0.wav,fine\n{line}\n")
    with pytest.raises(ManifestError) as caught:
        load("table")(source, tmp_path / "out")
    assert str(caught.value).startswith(f"{source}, line 3: {reason}")
    report = load("table")(source, tmp_path / "out", skip_bad=True)
    assert (report.rows, report.bad) == (1, 1)
    assert bad_rows(tmp_path / "out")[0]["line"] == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"path,text\nclips/0.wav,\xff\n", "line 2: not UTF-8"),
        (b"where,text\n", "line 1: no column is called path (there are where, text): name it with --path-column"),
        (b"path,words\n", "line 1: no column is called text (there are path, words): name it with --text-column"),
        (b"", "line 1: no column is called path (there are none)"),
        (b'path,text\nclips/0.wav,"open\n', "line 2: not CSV: unexpected end of data"),
        (b"path,text\n", "found nothing to put into a manifest"),
    ],
)
def test_bad_tables(tmp_path, data, message):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError) as caught:
        load("table")(tmp_path / "t.csv", tmp_path / "out")
    assert message in str(caught.value)


# --- archives ---------------------------------------------------------------------------------------------------------


def test_archive_is_read_back_and_compared(tmp_path):
    load("digits")(tmp_path / "src", train=4, dev=1, test=1)
    manifest = tmp_path / "src" / "manifest.jsonl"
    report = load("archive")(tmp_path / "src", tmp_path / "out", split=("train",))
    assert report.rows == 4
    assert report.left_out == {"row of split 'dev'": 1, "row of split 'test'": 1}
    assert rows(tmp_path / "out")[0]["archive"] == "../src/lines.tar"
    lines = manifest.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"width": 7})
    lines[2] = json.dumps(json.loads(lines[2]) | {"offset": 10**9})
    lines[3] = lines[3][:30]
    manifest.write_text("\n".join(lines) + "\n")
    with pytest.raises(ManifestError, match=r"line 2: train-000001\.png: width is \d+, but the row states 7"):
        load("archive")(manifest, tmp_path / "out2")
    report = load("archive")(manifest, tmp_path / "out2", skip_bad=True)
    assert (report.rows, report.bad) == (3, 3)
    assert [row["line"] for row in bad_rows(tmp_path / "out2")] == [2, 3, 4]
    with pytest.raises(DataError, match="would replace the manifest that is read"):
        load("archive")(manifest, tmp_path / "src")
    with pytest.raises(DataError, match="no such manifest"):
        load("archive")(tmp_path / "none", tmp_path / "out3")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hooker-en", "librispeech-7h", "audiomnist-strings"])
def test_archives_of_shared_data(tmp_path, name):
    if not (SHARED / name).is_dir():
        pytest.skip(f"shared/data/{name} is not here")
    stats = json.loads((SHARED / name / "STATS.json").read_text())
    report = load("archive")(SHARED / name, tmp_path / "out")
    key = "lines" if name == "hooker-en" else "utterances"
    assert report.rows == stats[key]
    assert {split: tally.rows for split, tally in report.splits.items()} == {
        split: counts[key] for split, counts in stats["splits"].items()
    }
    if name == "hooker-en":
        assert len(report.charset) == stats["charset"]
    else:
        assert report.seconds / 3600 == pytest.approx(stats["hours"], abs=2e-3)


def test_a_reader_is_found_by_what_is_there(tmp_path: Path) -> None:
    def made(name: str, *files: tuple[str, str]) -> Path:
        folder = tmp_path / name
        for file, text in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        return folder

    page, alto = '<PcGts xmlns="urn:p"><Page/></PcGts>', "<alto><Layout/></alto>"
    mets = ("mets.xml", "<mets/>")
    for name, files in {
        "folder": [("a.png", "x"), ("a.gt.txt", "x")],
        "pagexml": [mets, ("a.png", "x"), ("a.txt", "x"), ("page/a.xml", page)],
        "alto": [mets, ("a.xml", alto)],
        "kaldi": [("train/wav.scp", "a a.wav"), ("train/text", "a x")],
        "librispeech": [("1/2/1-2.trans.txt", "1-2-0000 X")],
        "table": [("index.tsv", "path\ttext\na.png\tx\n"), ("a.png", "x")],
    }.items():
        assert corpora.reader_of(made(name, *files)) == name
    assert corpora.reader_of(tmp_path / "table" / "index.tsv") == "table"
    assert corpora.reader_of(made("other", ("index.csv", "a,b\n"), ("a.png", "x"), ("b.txt", "x"), mets)) is None
    assert corpora.reader_of(tmp_path / "none") is None
