"""Tuning and reading with a beam, on a run whose emissions are made: what is right is known."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from starseq.data.errors import DataError
from starseq.data.manifest import Row
from starseq.decode.beam import Beam
from starseq.jobs import _search, tune
from starseq.jobs._search import Search
from starseq.jobs._where import Where
from starseq.text.tokeniser import Tokeniser
from starseq.text.vocabulary import Vocabulary

WORDS = ["RED", "BREAD", "READ", "A", "BOOK"]
TEXTS = ["READ A BOOK", "RED BREAD", "A RED BOOK", "READ A RED BOOK"] * 3
# A model that has read these sentences: what it likes is right.
ARPA = "\n\\data\\\nngram 1=8\nngram 2=9\n\n\\1-grams:\n-3\t<unk>\n-99\t<s>\t-0.5\n-1\t</s>\n" + "".join(
    f"-1.2\t{word}\t-0.6\n" for word in WORDS
) + "\n\\2-grams:\n" + "".join(
    f"-0.2\t{pair}\n" for pair in
    ("<s> READ", "<s> RED", "<s> A", "READ A", "A BOOK", "A RED", "RED BREAD", "RED BOOK", "BOOK </s>")
) + "\n\\end\\\n"  # fmt: skip


@dataclass
class MadeRun:
    """As much of a run as a search touches."""

    folder: Path
    trained_here = True
    tokeniser: Tokeniser
    criterion: str = "stc"
    recipe: object = None
    merges_repeats: bool = False

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.jsonl"

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeRun:
    """Emissions in which RED and READ, and A and nothing, are told apart badly."""
    made = MadeRun(tmp_path / "run", Tokeniser(Vocabulary(WORDS), "word"))
    made.folder.mkdir()
    (made.folder / "model.safetensors").write_bytes(b"weights")
    made.manifest.write_text("")
    (tmp_path / "lm.arpa").write_text(ARPA)
    asked = []

    def emissions(run, manifest, *, split, device, root, progress):
        asked.append(split)
        for number, text in enumerate(TEXTS):
            generator = torch.Generator().manual_seed(number)
            logits = torch.randn(8, len(WORDS) + 1, generator=generator)
            logits[:, 0] += 4
            for place, word in enumerate(text.split()):
                logits[2 * place, 0] -= 3
                logits[2 * place, made.tokeniser.vocabulary.index(word)] += 2.5
            row = Row({"id": f"u{number}", "path": "p", "text": text})
            yield SimpleNamespace(id=row.id, log_probs=logits.log_softmax(1), reference=text, row=row)
        row = Row({"id": "hole", "path": "p", "text": "a * b"})  # no text to compare with
        yield SimpleNamespace(id="hole", log_probs=logits.log_softmax(1), reference="a b", row=row)

    monkeypatch.setattr(tune.runs, "load", lambda folder, **options: made)
    monkeypatch.setattr(tune, "data_root", lambda recipe, folder: None)
    monkeypatch.setattr(tune.runs, "emissions", emissions)
    made.asked = asked
    return made


def texts_of(run: MadeRun, search: Search, method: str) -> list[str]:
    """What a search reads in the rows that have a complete text."""
    with _search.reading(run, search, Where("cpu")) as begin:
        emitted = tune.runs.emissions(run, run.manifest, split=None, device="cpu", root=None, progress=None)
        found = [begin(one.id, one.log_probs)()[method].text for one in emitted if one.row.complete]
    run.asked.pop()
    return found


def test_the_weights_found_read_better_and_are_kept(run: MadeRun, tmp_path: Path) -> None:
    lm = tmp_path / "lm.arpa"
    found = tune.tune(run.folder, search=Search(lm, beam=20))
    assert found.metric == "WER"
    assert found.beam.percent < found.greedy
    assert found.beam.percent == min(point.percent for point in found.rounds)
    assert found.rounds[0].alpha == 0.5
    record = json.loads((run.folder / "tuned.json").read_text())
    assert (record["beam"]["alpha"], record["beam"]["percent"]) == (found.beam.alpha, found.beam.percent)
    assert json.loads((run.folder / "results.json").read_text())["tune"] == record
    assert (run.folder / "plots" / "tune-beam.png").read_bytes().startswith(b"\x89PNG")
    assert [line.split()[0] for line in found.report().splitlines()] == ["alpha", "greedy", "beam"]

    # A search with these weights gives that very error rate, and `evaluate` would take them from the run.
    assert tune.wer(TEXTS, texts_of(run, Search(lm, beam=20), "beam")).percent == pytest.approx(found.beam.percent)
    assert run.asked == ["dev"]  # the model ran once


def test_weights_with_and_without_a_language_model_are_kept_side_by_side(run: MadeRun, tmp_path: Path) -> None:
    lm = tmp_path / "lm.arpa"
    path = run.folder / "tuned.json"
    path.write_text(json.dumps({"alone": {"alpha": 0.0, "beta": 2.0, "lm": None}}))
    tune.tune(run.folder, search=Search(lm, rescore=lm, beam=20))
    record = json.loads(path.read_text())
    assert record["alone"] == {"alpha": 0.0, "beta": 2.0, "lm": None}
    with_lm = Search(lm=lm, rescore=lm)
    assert with_lm.weights(run) == (record["beam"]["alpha"], record["beam"]["beta"])
    rescored = record["beam"]["rescore"]
    assert with_lm.rescore_weights(run) == (rescored["alpha"], rescored["beta"])
    assert Search().weights(run) == (0.0, 2.0)
    assert Search(beta=-1.0).weights(run) == (0.0, -1.0)
    tune.tune(run.folder, search=Search(rescore=lm, beam=20))
    both = json.loads(path.read_text())
    assert both["beam"] == record["beam"]
    assert both["alone"]["rescore"]["lm"] == str(lm)
    assert Search(rescore=lm).rescore_weights(run)[0] == both["alone"]["rescore"]["alpha"]
    tune.tune(run.folder, search=Search(lm, beam=20))
    assert list(json.loads(path.read_text())) == ["alone", "beam"]
    with pytest.raises(DataError, match="weights of rescore are not tuned"):  # on the n best of this search
        with_lm.rescore_weights(run)
    path.write_text("{")
    tune.tune(run.folder, search=Search(beam=20))
    assert list(json.loads(path.read_text())) == ["alone"]
    assert (run.folder / "plots" / "tune-alone.png").exists()


def test_too_few_rounds(run: MadeRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rounds: 1 is too few"):
        tune.tune(run.folder, search=Search(tmp_path / "lm.arpa"), rounds=1)


def test_weights_belong_to_a_lexicon(run: MadeRun, tmp_path: Path) -> None:
    lm, words = tmp_path / "lm.arpa", str(tmp_path / "words.txt")
    weights = {"alpha": 1.0, "beta": 2.0, "lexicon": words}
    tuned = {"alone": weights | {"lm": None}, "beam": weights | {"lm": str(lm)}}
    (run.folder / "tuned.json").write_text(json.dumps(tuned))
    assert Search(lexicon=words).weights(run) == (0.0, 2.0)
    assert Search(lm=lm, lexicon=words).weights(run) == (1.0, 2.0)
    assert Search().weights(run) == (0.0, 0.0)
    with pytest.raises(
        DataError, match=r"tuned with .*lm\.arpa and the lexicon .*words\.txt: run `starseq tune` with .*lm\.arpa, or"
    ):
        Search(lm=lm).weights(run)
    with pytest.raises(DataError, match=r"run `starseq tune` with .*lm\.arpa and the lexicon other\.txt, or"):
        Search(lm=lm, lexicon="other.txt").weights(run)


@pytest.mark.parametrize(
    "text", ["{", "7", '{"alone": null}', '{"beam": {"alpha": 1}}', '{"beam": {"alpha": 1, "beta": "x"}}']
)
def test_a_damaged_file_is_a_sentence(run: MadeRun, text: str) -> None:
    (run.folder / "tuned.json").write_text(text)
    with pytest.raises(DataError, match=r"tuned\.json: damaged; run `starseq tune` again"):
        _search.read_tuned(run.folder)


def test_rescoring_has_weights_of_its_own(run: MadeRun, tmp_path: Path) -> None:
    lm = tmp_path / "lm.arpa"
    found = tune.tune(run.folder, search=Search(rescore=lm, beam=20))
    assert found.beam.alpha == 0
    assert found.rescore is not None
    assert found.rescore.percent < found.beam.percent
    assert found.rescore.alpha > 0
    assert (run.folder / "plots" / "tune-rescore.png").exists()
    texts = texts_of(run, Search(rescore=lm, beam=20), "rescored")
    assert tune.wer(TEXTS, texts).percent == pytest.approx(found.rescore.percent)


def test_a_stopped_search_goes_on(run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    real = tune.search_all

    def stopping(search, emissions, **options):
        for nbest in real(search, emissions, **options):
            if len(searched) == 5:
                searched.append("stop")
                raise KeyboardInterrupt
            searched.append(nbest.id)
            yield nbest

    monkeypatch.setattr(tune, "search_all", stopping)
    cache = tune.cached_emissions(run, run.manifest, "dev", Beam(), Where("cpu"))
    search = Search(tmp_path / "lm.arpa").on(run, (0.5, 0.0))
    with pytest.raises(KeyboardInterrupt):
        tune.nbest_lists(search, cache, run.folder, Where("cpu"))
    seen: list[tuple[int, int | None]] = []
    lists = tune.nbest_lists(
        search, cache, run.folder, Where("cpu", progress=lambda done, total: seen.append((done, total)))
    )
    assert [nbest.id for nbest in lists] == cache.ids
    assert [id for id in searched if id != "stop"] == cache.ids  # none twice
    assert seen[-1] == (len(TEXTS), len(TEXTS))
    before = len(searched)
    assert tune.nbest_lists(search, cache, run.folder, Where("cpu")) == lists
    assert len(searched) == before
    assert len(tune.nbest_lists(search.at(0.6, 0.0), cache, run.folder, Where("cpu"))) == len(TEXTS)
    assert len(searched) > before


def test_a_changed_model_is_read_anew(run: MadeRun) -> None:
    for _ in range(2):
        tune.cached_emissions(run, run.manifest, "dev", Beam(), Where("cpu"))
    (run.folder / "model.safetensors").write_bytes(b"other weights")
    tune.cached_emissions(run, run.manifest, "dev", Beam(), Where("cpu"))
    assert run.asked == ["dev", "dev"]


def test_missing_weights_are_a_sentence(run: MadeRun, tmp_path: Path) -> None:
    lm = tmp_path / "lm.arpa"
    reader = Search(lm=lm)
    with pytest.raises(DataError, match="weights of beam are not tuned: run `starseq tune`"):
        reader.weights(run)
    (run.folder / "tuned.json").write_text(json.dumps({"beam": {"alpha": 1.0, "beta": 0.0, "lm": "other.arpa"}}))
    with pytest.raises(DataError, match=r"were tuned with other\.arpa"):
        reader.weights(run)
    (run.folder / "tuned.json").write_text(json.dumps({"beam": {"alpha": 0.0, "beta": 0.7, "lm": None}}))
    with pytest.raises(DataError, match="were tuned with no language model"):
        reader.weights(run)
    assert Search(lm=lm, alpha=0.5, beta=0.0).weights(run) == (0.5, 0.0)
    (run.folder / "tuned.json").write_text("{")
    with pytest.raises(DataError, match=r"tuned\.json: damaged"):
        reader.weights(run)
    assert not Search().asked
    assert Search(beam=500).asked
    with pytest.raises(ValueError, match="alpha: a weight of 2 needs a language model, and none was given"):
        Search(alpha=2.0)
    with pytest.raises(ValueError, match="needs a language model to rescore with"):
        Search(lm=lm, rescore_alpha=2.0)


def test_an_empty_split_is_a_sentence(run: MadeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tune.runs, "emissions", lambda *_, **__: iter(()))
    with pytest.raises(DataError, match="no row of split 'dev' has a complete text to tune on"):
        tune.tune(run.folder, search=Search(tmp_path / "lm.arpa"))
