"""Run folders: what was saved comes back, what is damaged or foreign is said, emissions are those of the model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tests import tiny

from starseq import runs
from starseq.config import build
from starseq.data.dataset import ManifestDataset
from starseq.data.errors import DataError
from starseq.data.files import write_text
from starseq.data.manifest import ManifestError, read_manifest, write_manifest
from starseq.runs.folder import data_root, save_model
from starseq.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.corpus(tmp_path_factory.mktemp("digits"))


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """A run folder with an untrained model."""
    recipe, vocabulary = tiny.recipe(root), Vocabulary("012345678")
    torch.manual_seed(0)
    write_text(tmp_path / "run" / "recipe.yaml", recipe.to_yaml())
    write_text(tmp_path / "run" / "tokens.txt", vocabulary.to_lines())
    save_model(tmp_path / "run", build.network(recipe, vocabulary), step=7, log_penalty=math.log(0.25), dev_error=12.5)
    return tmp_path / "run"


def test_what_was_saved_comes_back(folder: Path, root: Path) -> None:
    run = runs.load(folder)
    torch.manual_seed(0)
    expected = build.network(run.recipe, run.tokeniser.vocabulary).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in run.model.state_dict().items())
    assert (run.step, run.dev_error, run.criterion, run.model.training) == (7, 12.5, "stc", False)
    assert run.log_penalty == math.log(0.25)
    assert (run.seconds_per_frame, run.stride) == (None, 4)
    assert run.manifest == root / "manifest.jsonl"


def test_time_of_a_frame(folder: Path) -> None:
    recipe = tiny.recipe(folder, "data.reader.name=audio", "model.stride=8")
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    save_model(folder, build.network(recipe, Vocabulary("012345678")), step=1, log_penalty=None, dev_error=None)
    run = runs.load(folder)
    assert run.seconds_per_frame == pytest.approx(0.08)
    assert (run.log_penalty, run.dev_error) == (None, None)


@pytest.mark.parametrize("file", ["recipe.yaml", "tokens.txt", "model.safetensors"])
def test_a_folder_that_lacks_something(file: str, folder: Path) -> None:
    (folder / file).unlink()
    with pytest.raises(DataError, match=f"lacks {file}"):
        runs.load(folder)


def test_folders_that_are_none(folder: Path) -> None:
    with pytest.raises(DataError, match="no such run folder"):
        runs.load(folder / "nowhere")
    with pytest.raises(
        DataError, match=r"not a run folder that can be used, for it lacks recipe\.yaml and tokens\.txt"
    ):
        runs.load(folder.parent)


@pytest.mark.parametrize("size", [0, 3, 400, -1])
def test_damaged_weights(size: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"model\.safetensors: the weights are damaged"):
        runs.load(folder)


def test_weights_of_another_vocabulary(folder: Path) -> None:
    write_text(folder / "tokens.txt", Vocabulary("0123").to_lines())
    with pytest.raises(DataError, match="weights of another model or vocabulary"):
        runs.load(folder)


def test_results_of_several_jobs_stand_beside_each_other(folder: Path) -> None:
    runs.update_results(folder, train={"steps": 3, "error": math.inf})
    assert runs.update_results(folder, test={"cer": 1.5})["test"] == {"cer": 1.5}
    assert runs.read_results(folder) == {"train": {"steps": 3, "error": None}, "test": {"cer": 1.5}}
    (folder / "results.json").write_text("{")
    with pytest.raises(DataError, match=r"results\.json: not JSON"):
        runs.read_results(folder)


def test_the_root_of_the_data(root: Path, tmp_path: Path) -> None:
    assert data_root(tiny.recipe(root), tmp_path) == root
    built_in = tiny.recipe(root, "data.root=null", "data.corpus={name: digits}")
    assert data_root(built_in, tmp_path) == tmp_path / "data"
    with pytest.raises(DataError, match=r"data\.root is not given: .* Add data\.root=FOLDER"):
        data_root(tiny.recipe(root, "data.root=null"), tmp_path)


def test_emissions_are_those_of_each_line_alone_in_order(folder: Path, root: Path) -> None:
    run = runs.load(folder)
    seen: list[tuple[int, int | None]] = []
    found = list(
        runs.emissions(run, root / "manifest.jsonl", split="dev", budget=500, progress=lambda d, t: seen.append((d, t)))
    )
    rows = [row for row in read_manifest(root / "manifest.jsonl") if row["split"] == "dev"]
    assert [emission.id for emission in found] == [row.id for row in rows]
    assert seen[-1] == (len(rows), len(rows))
    assert len(seen) > 1
    data = ManifestDataset(root / "manifest.jsonl", run.reader, split="dev")
    for i, (emission, row) in enumerate(zip(found, rows, strict=True)):
        x = data[i].x
        with torch.no_grad():
            logits, lengths = run.model(x[None], torch.tensor([len(x)]))
        torch.testing.assert_close(emission.log_probs, logits[0].log_softmax(1), rtol=1e-4, atol=1e-5)
        assert emission.log_probs.shape == (int(lengths[0]), 10)
        assert (emission.reference, emission.row.fields) == (row.text, row.fields)
        # The vocabulary lacks 9: it is left to its gap.
        assert run.tokeniser.decode(emission.labels.tolist()) == row.text.replace("9", "")
        assert emission.open.shape == (len(emission.labels) + 1,)


def test_emissions_of_rows_without_text_and_of_normalised_ones(folder: Path, root: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(root, "text.normaliser={replace: {x: '1'}, squeeze: true}")
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    first = next(iter(read_manifest(root / "manifest.jsonl"))).fields
    bare = {key: first[key] for key in ("path", "archive", "offset", "nbytes")}
    rows = [{**bare, "id": "none"}, {**bare, "id": "some", "text": "x * 2", "text_full": " x \\* 2 "}]
    (tmp_path / "m.jsonl").write_text(
        "".join(json.dumps({**row, "archive": f"{root}/lines.tar"}) + "\n" for row in rows)
    )
    none, some = runs.emissions(runs.load(folder), tmp_path / "m.jsonl", root="/")
    assert (none.reference, none.labels.tolist(), none.open.tolist()) == ("", [], [True])
    assert some.reference == "1 * 2"


def test_emissions_name_a_file_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [{"id": "a", "path": "a.png", "text": "1", "width": 9, "height": 32}])
    with pytest.raises(ManifestError, match=r"m\.jsonl, line 1: a\.png: no such file"):
        list(runs.emissions(runs.load(folder), tmp_path / "m.jsonl"))
