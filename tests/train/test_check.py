"""What does not fit a recipe is one sentence, with the override that mends it; with the override it fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from starseq.config import build, load_recipe
from starseq.data import audio, images
from starseq.data.errors import DataError
from starseq.data.manifest import write_manifest
from starseq.jobs.train import build_loop
from starseq.train.loop import Hooks
from starseq.train.processes import start

HERE = ["trainer.accelerator=cpu", "data.workers=0", "trainer.tensorboard=false"]
SPEECH = ["model.width=8", "model.heads=2", "model.hidden=8", "model.layers=1"]
LINES = ["model.channels=2", "model.hidden=4", "model.layers=1"]


def speech(folder: Path, *, seconds: float = 1.0, rate: int = 16_000, text: str = "a fox") -> Path:
    (folder / "a.wav").write_bytes(audio.encode(0.1 * torch.randn(int(seconds * rate)), rate))
    row = {"path": "a.wav", "text": text, "duration": seconds}
    write_manifest(
        folder / "manifest.jsonl", [{**row, "id": f"{s}{i}", "split": s} for s in ("train", "dev") for i in range(4)]
    )
    return folder


def lines(folder: Path, *, width: int = 200, height: int = 64, text: str = "a fox", rows: int = 4) -> Path:
    (folder / "a.png").write_bytes(images.encode(np.full((height, width), 255, np.uint8)))
    row = {"path": "a.png", "text": text, "width": width, "height": height}
    write_manifest(
        folder / "manifest.jsonl", [{**row, "id": f"{s}{i}", "split": s} for s in ("train", "dev") for i in range(rows)]
    )
    return folder


def started(name: str, root: Path, *overrides: str) -> list[str]:
    """What a run says when it starts, line by line."""
    said: list[str] = []
    small = SPEECH if name == "speech" else LINES
    recipe = load_recipe(name, [f"data.root={root}", *HERE, *small, *overrides])
    build_loop(recipe, root / "run", start(accelerator="cpu"), Hooks(message=said.append))
    return "\n".join(said).splitlines()


def overrides_in(sentence: str) -> list[str]:
    return re.findall(r"(?:data|text|model)\.[\w.]+=[^\s:;,]+", sentence)


def test_what_fits_is_not_spoken_of(tmp_path: Path) -> None:
    for name, make in (("speech", speech), ("handwriting", lines)):
        folder = tmp_path / name
        folder.mkdir()
        said = started(name, make(folder))
        assert len(said) == 2, said
        assert said[0].startswith("4 rows to train on, 4 of dev, ")


def test_files_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        started("speech", lines(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/manifest.jsonl: its rows are images (a.png), and data.reader.name=audio reads audio: "
        "begin with the recipe handwriting, or give data.reader.name=line"
    )
    with pytest.raises(
        DataError,
        match=r"its rows are audio \(a\.wav\), and data\.reader\.name=line reads images: begin with the recipe speech",
    ):
        started("handwriting", speech(tmp_path))


@pytest.mark.parametrize("change", [{"path": "a"}, {"path": "a", "archive": "x.tar", "offset": 0, "nbytes": 9}])
def test_files_without_a_suffix_are_known_by_what_their_rows_say(change: dict[str, Any], tmp_path: Path) -> None:
    row = {"id": "a", "text": "x", "split": "train", "width": 9, "height": 9, **change}
    write_manifest(tmp_path / "manifest.jsonl", [row])
    with pytest.raises(DataError, match="its rows are images"):
        started("speech", tmp_path)


def test_features_of_other_bands(tmp_path: Path) -> None:
    key = build.reader(load_recipe("speech", ["data.reader.rate=8000", "data.reader.bands=40"])).key
    row = {"id": "a", "path": "a.npy", "text": "x", "split": "train", "size": 3.0, "features": key}
    write_manifest(tmp_path / "manifest.jsonl", [row, {**row, "id": "b", "split": "dev"}])
    with pytest.raises(DataError) as caught:
        started("speech", tmp_path)
    mend = overrides_in(str(caught.value))
    assert mend == ["data.reader.rate=8000", "data.reader.bands=40"]
    assert started("speech", tmp_path, *mend)
    with pytest.raises(DataError, match=r"its rows are audio .* begin with the recipe speech"):
        started("handwriting", tmp_path)


def test_audio_of_a_lower_rate(tmp_path: Path) -> None:
    said = started("speech", speech(tmp_path, rate=8_000))
    assert said[0].startswith("the audio has 8,000 Hz and is resampled to 16,000, which leaves the upper bands empty")
    assert not any("Hz" in line for line in started("speech", tmp_path, *overrides_in(said[0])))
    assert not any("Hz" in line for line in started("speech", speech(tmp_path, rate=44_100)))


@pytest.mark.parametrize(
    ("name", "make", "settings", "key"),
    [
        ("speech", speech, {"seconds": 1.0, "text": "the quick brown fox and the dog and me"}, "model.stride"),
        ("handwriting", lines, {"width": 120, "text": "the quick brown fox and the dog"}, "data.reader.height"),
    ],
)
def test_more_labels_than_frames(name: str, make: Any, settings: Mapping[str, Any], key: str, tmp_path: Path) -> None:
    """All rows: an error. A tenth of them: they are left out, with the same advice. With it they are in."""
    root = make(tmp_path, **settings)
    with pytest.raises(DataError, match="too little is left to train on; 4 of 4 rows \\(100 %\\) excluded") as caught:
        started(name, root)
    mend = overrides_in(str(caught.value))
    assert mend[0].startswith(f"{key}=")
    assert started(name, root, *mend)[0].startswith("4 rows to train on")
    write_some(root, ["a", *["b"] * 9], settings["text"])
    said = started(name, root)
    assert said[0].startswith("9 rows to train on")
    assert overrides_in(said[1]) == mend
    assert "1 of 10 rows (10 %) excluded, for they have more labels than frames: a0;" in said[1]
    assert started(name, root, *mend)[0].startswith("10 rows to train on")


def write_some(root: Path, kinds: Sequence[str], long: str) -> None:
    """Rows of the text that is too long for its file, "a", and of a short one."""
    row = next(iter(rows_of(root)))
    rows = [
        {**row, "id": f"{kind}{i}", "text": long if kind == "a" else long[:7], "split": "train"}
        for i, kind in enumerate(kinds)
    ]
    write_manifest(root / "manifest.jsonl", [*rows, {**row, "id": "d", "split": "dev"}])


def rows_of(root: Path) -> list[dict[str, Any]]:
    from starseq.data.manifest import read_manifest

    return [dict(row.fields) for row in read_manifest(root / "manifest.jsonl")]


def test_a_text_that_does_not_belong_to_its_file_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="do these texts belong to this audio"):
        started("speech", speech(tmp_path, seconds=0.2, text="x y" * 40))
    with pytest.raises(DataError, match="do these texts belong to these images"):
        started("handwriting", lines(tmp_path, width=20, text="x y" * 40))


def test_few_rows_change_no_setting(tmp_path: Path) -> None:
    text = "the quick brown fox and the dog"
    write_some(lines(tmp_path, width=120, text=text), ["a", *["b"] * 199], text)
    said = started("handwriting", tmp_path)
    assert said[1] == "1 of 200 rows (0.5 %) excluded, for they have more labels than frames: a0"


def test_lines_that_are_squeezed(tmp_path: Path) -> None:
    said = started("handwriting", lines(tmp_path, width=2_500))
    assert said[1] == (
        "100 % of the lines are wider than 1,600 pixels at this height, and squeezed: "
        "data.reader.max_width=2500 keeps the shape of their letters"
    )
    assert len(started("handwriting", tmp_path, *overrides_in(said[1]))) == 2


def test_characters_outside_of_the_vocabulary(tmp_path: Path) -> None:
    root = lines(tmp_path, text="Fußweg")
    (tmp_path / "tokens.txt").write_text("<blank>\n" + "".join(f"{c}\n" for c in "abcdefgFuw"))
    given = f"text.vocabulary={tmp_path}/tokens.txt"
    with pytest.raises(
        DataError, match=r"line 1: character 'ß', number 3 of the text, is not in the vocabulary: "
    ) as caught:
        started("handwriting", root, given, "text.unknown=raise")
    mend = overrides_in(str(caught.value))
    assert mend == ["text.vocabulary=null", "text.unknown=drop"]
    said = started("handwriting", root, given, "text.unknown=raise", mend[1])
    assert said[1].startswith("4 of 24 labels (17 %) are not in the vocabulary, most often 'ß': text.vocabulary=null")
    assert len(started("handwriting", root, given, mend[0])) == 2


def test_a_vocabulary_in_the_other_case(tmp_path: Path) -> None:
    root = speech(tmp_path, text="HOT")
    (tmp_path / "tokens.txt").write_text("<blank>\nH\nO\nT\n")
    given = f"text.vocabulary={tmp_path}/tokens.txt"
    with pytest.raises(DataError, match="no label is left to train on; 12 of 12 labels") as caught:
        started("speech", root, given)  # whose normaliser makes them small
    assert overrides_in(str(caught.value)) == ["text.normaliser.case=upper"]
    assert len(started("speech", root, given, *overrides_in(str(caught.value)))) == 2


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("data.splits.train=tran", "no row is left for the splits tran, data.splits.train (there are dev, train): "),
        ("data.splits.dev=deb", "data.splits.dev=NAME chooses others, and data.splits.dev=[] trains without"),
    ],
)
@pytest.mark.parametrize("vocabulary", [True, False])
def test_an_empty_split(override: str, sentence: str, vocabulary: bool, tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("<blank>\n" + "".join(f"{c}\n" for c in " afox"))
    given = [f"text.vocabulary={tmp_path}/tokens.txt"] if vocabulary else []
    with pytest.raises(DataError) as caught:
        started("handwriting", lines(tmp_path), override, *given)
    assert sentence in str(caught.value)


def test_rows_without_splits(tmp_path: Path) -> None:
    row = {"id": "a", "path": "a.png", "text": "x", "width": 9, "height": 9}
    write_manifest(tmp_path / "manifest.jsonl", [row])
    with pytest.raises(DataError, match="no row says its split; `starseq manifest split` writes one manifest for each"):
        started("handwriting", tmp_path)


def test_only_a_few_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, probed = speech(tmp_path), []
    real = audio.probe
    monkeypatch.setattr("starseq.train.check.audio.probe", lambda data, name: probed.append(name) or real(data))
    write_some(root, ["b"] * 100, "a fox and a dog")
    started("speech", root)
    assert 0 < len(probed) <= 8
