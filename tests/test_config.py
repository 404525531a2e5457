"""Recipes: every key and type is checked, and what is wrong is said with the key's full path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from starseq import models, recipes
from starseq.config import Recipe, build, load_recipe, recipe_names
from starseq.config.tree import dump, parse
from starseq.data.augment import SpecAugment
from starseq.data.dataset import AudioReader, LineReader
from starseq.data.errors import DataError
from starseq.data.manifest import Row
from starseq.penalty import AdaptivePenalty, InsertionPenalty
from starseq.text.vocabulary import Vocabulary

WRONG = [
    ("optim.learning_rate=0.1", "optim.learning_rate is not a key of a recipe; the nearest is optim.lr"),
    ("lr=0.1", "lr is not a key of a recipe; the nearest is optim.lr"),
    ("optim.schedule.paitence=2", "optim.schedule.paitence is not a key of a recipe; the nearest is optim.schedule.patience"),
    ("penalty={name: schedule, p: 0.5}", "penalty.p is not a key of a recipe; the nearest is penalty.p0"),
    ("optim.max_steps=9", "optim.max_steps is not a key of a recipe; the nearest is trainer.max_steps"),
    ("optim.warm=9", "optim.warm is not a key of a recipe; the nearest is optim.warmup_steps"),
    ("model.widht=3", "model.widht is not a key of a recipe; the nearest is model.width"),
    ("data.reader.hieght=3", "data.reader.hieght is not a key of a recipe; the nearest is data.reader.height"),
    ("optim.lr=fast", "optim.lr: 'fast' is not a number"),
    ("optim.lr=true", "optim.lr: True is not a number"),
    ("optim.lr=", "optim.lr: '' is not a number"),
    ("model.width=1.5", "model.width: 1.5 is not a whole number"),
    ("data.cache=7", "data.cache: 7 is not true or false"),
    ("data.root=7", "data.root: 7 is not text"),
    ("data=3", "data: 3 is not a section with keys"),
    ("data.splits.train=[train, 3]", "data.splits.train[1]: 3 is not text"),
    ("model.name=crn", "model.name: 'crn' is none of conv_small, crnn, gated_conv, hf, transformer, transformer_small"),
    ("text.unit=wrd", "text.unit: 'wrd' is none of word, char, piece; did you mean word?"),
    ("criterion.name=cctc", "criterion.name: 'cctc' is none of ctc, selfless_ctc, stc; did you mean ctc?"),
    ("penalty={name: schedule, p0: 2, p_max: 0.9, half_life: 9}", "penalty: p0: 2.0 is not a probability in (0, 1]"),
    ("data.drop.p=1.5", "data.drop.p: pDrop must lie between 0 and 1, and 1.5 does not"),
    ("data.drop.p=[0.1, 0.4]", "data.drop.p: [0.1, 0.4] has parts, so data.drop.by is 'sample' or 'type'"),
    ("trainer.log_every=0", "trainer.log_every: 0 is not above 0"),
    ("model.layers=0", "model.layers: 0 is not above 0"),
    ("optim.lr=.inf", "optim.lr: inf is not a finite number"),
    ("model.width=-3", "model.width: -3 is not above 0"),
    ("data.reader.height=0", "data.reader.height: 0 is not above 0"),
    ("data.workers=-1", "data.workers: -1 is below 0"),
    ("optim.warmup_steps=-1", "optim.warmup_steps: -1 is below 0"),
    ("optim.betas=[1, 2]", "optim.betas: [1.0, 2.0] are not two numbers of at least 0 and below 1"),
    ("trainer.max_steps=null", "trainer.max_steps or trainer.max_epochs must be given"),
    ("data.max_items=null", "data.budget or data.max_items must be given"),
    ("text.unknown=letters", "text.unknown: 'letters' spells words, and text.unit is 'char'"),
    ("text={unit: word, missing: char}", "text.missing: gaps inside of words need text.unit=char, and it is 'word'"),
    ("nonsense", "override 'nonsense' is not of the form key=value"),
    ("optim.lr=[1", "not YAML"),
    ("optim={lr: 1, lr: 2}", "not YAML: a key comes twice"),
    ("optim.encoder_lr=-1", "optim.encoder_lr: -1.0 is below 0"),
]  # fmt: skip


@pytest.mark.parametrize(("override", "sentence"), WRONG, ids=[override for override, _ in WRONG])
def test_what_is_wrong_is_named(override: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        load_recipe("digits", [override])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_bytes(b"\xff\x00\xfe")
    with pytest.raises(DataError, match=r"model\.yaml: not a text file in UTF-8"):
        load_recipe(str(tmp_path / "model.yaml"))


def test_a_setting_of_another_criterion_is_no_key() -> None:
    with pytest.raises(DataError, match=r"criterion\.merge_repeats is not a key"):
        load_recipe("digits", ["criterion.name=ctc", "criterion.merge_repeats=false"])
    kept = load_recipe("digits", ["criterion.merge_repeats=false"])
    assert kept.criterion.settings["merge_repeats"] is False


def test_a_recipe_says_how_its_runs_are_read() -> None:
    said = [
        "criterion.merge_repeats=true",
        "criterion.merge_repeats=false",
        "criterion.name=ctc",
        "criterion.name=selfless_ctc",
    ]
    assert [load_recipe("digits", [key]).merges_repeats for key in said] == [True, False, True, False]


def test_another_name_starts_its_section_anew() -> None:
    old = load_recipe("digits", ["model.width=16"])
    new = load_recipe("digits", ["model.width=16", "model.name=conv_small"])
    assert old.model == new.model
    crnn = load_recipe("speech", ["model.name=crnn", "model.hidden=32"])  # `kernel` of the old one is gone
    assert crnn.model.settings == {
        "stride": 4,
        "channels": 32,
        "hidden": 32,
        "layers": 2,
        "dropout": 0.2,
        "init": None,
    }
    # The optimiser's other keys are no settings of its name.
    assert load_recipe("digits", ["optim.name=sgd"]).optim.warmup_steps == load_recipe("digits").optim.warmup_steps


def test_values_are_values() -> None:
    recipe = load_recipe(
        "digits", ["data.root=${oc.env:HOME}", "trainer.max_steps=1e3", "optim.lr=1e-3", "optim.clip=null"]
    )
    assert (recipe.data.root, recipe.trainer.max_steps, recipe.optim.lr) == ("${oc.env:HOME}", 1000, 0.001)
    assert recipe.optim.clip is None
    assert load_recipe("digits", ["data.splits.train=a"]).data.splits.train == ("a",)
    assert load_recipe("digits", ["trainer.precision=32"]).trainer.precision == "32"
    for text in (
        "1e3",
        "2020-01-01",
        "yes",
        ".5",
        "null",
    ):  # the writer puts quotes around what reads as something else
        assert parse(dump({"text": text}), "it") == {"text": text}


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_comes_back_from_its_yaml(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe
    assert recipe.differences(load_recipe(path)) == []


def test_the_published_losses() -> None:
    words, iam = load_recipe("librispeech-words"), load_recipe("iam")
    for recipe, p in ((words, (0.1, 0.3, 8000)), (iam, (0.5, 0.8, 10000))):
        assert (recipe.criterion.name, recipe.criterion.settings["merge_repeats"]) == ("stc", False)
        assert recipe.penalty.name == "schedule"
        assert recipe.penalty.settings == dict(zip(("p0", "p_max", "half_life"), p, strict=True))
        assert recipe.data.drop is None
    assert load_recipe("librispeech-letters").criterion.name == "ctc"


@pytest.mark.parametrize("name", ["digits", "handwriting", "speech"])
def test_tasks_have_the_default_loss_and_penalty(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.criterion.name, recipe.criterion.settings["merge_repeats"]) == ("stc", True)
    assert recipe.penalty.name == "adaptive"
    assert recipe.data.drop is None


def test_criterion_and_drop_rate_are_overrides() -> None:
    """CTC has the same data, model and optimiser."""
    stc = load_recipe("iam", ["data.drop.p=0.7", "penalty.p0=0.7", "penalty.p_max=0.9"])
    ctc = load_recipe("iam", ["data.drop.p=0.7", "penalty.p0=0.7", "penalty.p_max=0.9", "criterion.name=ctc"])
    assert {line.partition(":")[0].partition(".")[0] for line in stc.differences(ctc)} == {"criterion"}
    assert stc.data.drop is not None
    assert (stc.data.drop.p, stc.penalty.settings["p0"]) == ((0.7,), 0.7)
    words = load_recipe("speech", ["data.drop={p: [0.1, 0.4, 0.7], by: type, unit: word}"])
    assert words.data.drop is not None
    assert (words.data.drop.by, words.data.drop.unit) == ("type", "word")


def test_the_penalty_that_is_not_given(tmp_path: Path) -> None:
    """It is the adaptive one, written out; its settings may be given without its name."""
    mine = tmp_path / "mine.yaml"
    lines = load_recipe("digits").to_yaml().splitlines(keepends=True)
    begin = lines.index("penalty:\n")
    end = next(i for i in range(begin + 1, len(lines)) if not lines[i].startswith(" "))
    mine.write_text("".join(lines[:begin] + lines[end:]))
    assert "penalty" not in mine.read_text()
    assert load_recipe(mine) == load_recipe("digits")
    assert load_recipe(mine, ["penalty.p0=0.6"]).penalty.settings["p0"] == 0.6
    with pytest.raises(
        DataError, match=r"penalty\.half_life is not a key .* penalty\.name is adaptive, but .* schedule$"
    ):
        load_recipe(mine, ["penalty.half_life=9"])
    assert load_recipe(mine, ["penalty={name: schedule, p0: 0.1, p_max: 0.3, half_life: 9}"]).penalty.name == "schedule"


def test_every_recipe_says_what_it_is_for() -> None:
    for name in recipe_names():
        assert len(recipes.purpose(name)) > 80, name
        assert "  " not in recipes.purpose(name)
        assert f"{name}: {recipes.purpose(name)}" in recipes.listing()


def test_published_settings() -> None:
    words, letters, iam = load_recipe("librispeech-words"), load_recipe("librispeech-letters"), load_recipe("iam")
    assert build.augmentation(words) == SpecAugment()
    assert (words.optim.batches_per_step, letters.optim.batches_per_step) == (32, 64)
    assert (words.data.budget, iam.data.max_items, iam.optim.batches_per_step) == (240, 8, 8)
    assert iam.optim.schedule.gamma == pytest.approx(10 ** (-1 / 90_000), abs=1e-15)
    assert (words.text.size, iam.text.size, build.reader(words).bands, build.reader(iam).bands) == (50_000, 79, 80, 32)


def test_parts_are_built() -> None:
    recipe = load_recipe("digits", ["data.drop.p=0.5", "penalty={name: schedule, p0: 0.3, p_max: 0.9, half_life: 9}"])
    vocabulary = Vocabulary("0123456789")
    model, rule, dropper = build.network(recipe, vocabulary), build.insertion_penalty(recipe), build.dropper(recipe)
    assert isinstance(build.reader(recipe), LineReader)
    assert isinstance(rule, InsertionPenalty)
    assert rule.p0 == 0.3
    assert type(model) is type(models.load("conv_small")(32, vocabulary.tokens))
    assert dropper is not None
    assert dropper(Row({"id": "a", "path": "a", "text": "0123456789"})).kept < 10
    assert isinstance(build.reader(load_recipe("speech")), AudioReader)


def test_the_rules_of_the_penalty() -> None:
    rule = build.insertion_penalty(load_recipe("digits", ["penalty={name: adaptive, rate: 0.02}"]))
    assert isinstance(rule, AdaptivePenalty)
    assert rule.rate == 0.02
    with pytest.raises(DataError, match=r"penalty\.blank is not a key"):  # it is the vocabulary that says what blank is
        load_recipe("digits", ["penalty={name: adaptive, blank: 1}"])


def test_vocal_tracts_are_perturbed_for_the_bands_of_the_reader() -> None:
    augment = ["data.augment={name: spec_augment, tract: 0.1}"]
    built = build.augmentation(load_recipe("speech", augment))
    assert isinstance(built, SpecAugment)
    assert (built.tract, built.top) == (0.1, 7600)
    with pytest.raises(DataError, match=r"data\.augment\.top: the bands of data\.reader end at 3600 Hz, not at 7600"):
        load_recipe("speech", [*augment, "data.reader.rate=8000"])
    load_recipe("speech", [*augment, "data.reader.rate=8000", "data.augment.top=3600"])
    load_recipe("speech", ["data.reader.rate=8000"])
    with pytest.raises(
        DataError, match=r"data\.augment\.tract: it is for bands of sound, and data\.reader\.name is 'line'"
    ):
        load_recipe("handwriting", augment)


def test_what_a_resumed_run_may_change() -> None:
    one = load_recipe("digits")
    free = load_recipe("digits", ["data.workers=4", "data.root=x", "trainer.log_every=1", "trainer.accelerator=cpu"])
    assert one.differences(free) == []
    assert one.differences(load_recipe("digits", ["optim.lr=0.5", "seed=3"])) == [
        f"optim.lr: {one.optim.lr} -> 0.5",
        "seed: 0 -> 3",
    ]
    # The course of a cosine depends on its end; without one, a run may go on for longer.
    assert one.differences(load_recipe("digits", ["trainer.max_steps=99"])) == [
        f"trainer.max_steps: {one.trainer.max_steps} -> 99 (the cosine schedule depends on it)"
    ]
    flat = "optim.schedule.name=constant"
    assert load_recipe("digits", [flat]).differences(load_recipe("digits", [flat, "trainer.max_steps=99"])) == []


def test_files_and_bases(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: digits\nseed: 5\ndata: {drop: {p: 0.3}}\n")
    recipe = load_recipe(mine)
    assert (recipe.seed, recipe.data.drop) == (5, load_recipe("digits", ["data.drop.p=0.3"]).data.drop)
    assert recipe.model == load_recipe("digits").model
    mine.write_text(f"base: {mine}\n")
    with pytest.raises(DataError, match="leads back to it"):
        load_recipe(mine)


def test_a_base_is_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a@b"
    folder.mkdir()
    (folder / "mine.yaml").write_text("base: digits\nseed: 5\n")
    (folder / "child.yaml").write_text("base: mine.yaml\noptim: {lr: 1}\n")
    monkeypatch.chdir(tmp_path)
    child = load_recipe("a@b/child.yaml")
    assert (child.seed, child.optim.lr) == (5, 1)
    for base, said in (
        ("digitz", "did you mean digits"),
        ("0.5", "recipe '0.5' is none of"),
        ("../a@b/bad.yaml", "leads back"),
        ("digits@0.5", "recipe 'digits@0.5' is none of"),
    ):
        (folder / "bad.yaml").write_text(f"base: {base}\n")
        with pytest.raises(DataError, match=said):
            load_recipe("a@b/bad.yaml")
    (folder / "bad.yaml").write_text("base: digits\nvariants: {a: {seed: 1}}\n")
    with pytest.raises(DataError, match="variants is not a key of a recipe"):
        load_recipe("a@b/bad.yaml")


@pytest.mark.parametrize("text", ["", "- 1\n", "data: [", "data: !!python/object/apply:os.getcwd []\n", "seed: 1\n"])
def test_bad_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(DataError):
        load_recipe(path)


def test_names_of_recipes() -> None:
    with pytest.raises(DataError, match="did you mean digits"):
        load_recipe("digit")
    with pytest.raises(FileNotFoundError):
        load_recipe("nowhere/x.yaml")
    assert isinstance(load_recipe("digits"), Recipe)


def test_the_tokeniser_knows_that_only_words_can_be_missing() -> None:
    tokeniser = build.tokeniser(load_recipe("speech"), Vocabulary("ab "))
    assert tokeniser.encode("AB a").open == (True, False, False, True, True)


def test_the_published_penalties_are_in_the_docs() -> None:
    """As one table of overrides; every row of it is a recipe."""
    page = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    name, found = "", {}
    for row in re.findall(r"^\|(.*?)\|(.*?)\| `(data\.drop.*?)` \|$", page, re.MULTILINE):
        name = row[0].strip(" `") or name
        recipe = load_recipe(name, row[2].split())
        assert recipe.data.drop is not None
        found[name, recipe.data.drop.by, recipe.data.drop.p] = recipe.penalty.settings
    three = (0.1, 0.4, 0.7)
    words, iam = {"half_life": 8000}, {"half_life": 10000}
    assert found == {
        ("librispeech-words", "label", (0.1,)): {"p0": 0.1, "p_max": 0.3, **words},
        ("librispeech-words", "label", (0.4,)): {"p0": 0.4, "p_max": 0.7, **words},
        ("librispeech-words", "label", (0.7,)): {"p0": 0.5, "p_max": 0.9, **words},
        ("librispeech-words", "sample", three): {"p0": 0.3, "p_max": 0.6, **words},
        ("librispeech-words", "type", three): {"p0": 0.5, "p_max": 0.7, **words},
        ("iam", "label", (0.1,)): {"p0": 0.5, "p_max": 0.8, **iam},
        ("iam", "label", (0.3,)): {"p0": 0.5, "p_max": 0.9, **iam},
        ("iam", "label", (0.5,)): {"p0": 0.5, "p_max": 0.9, **iam},
        ("iam", "label", (0.7,)): {"p0": 0.7, "p_max": 0.9, **iam},
    }
