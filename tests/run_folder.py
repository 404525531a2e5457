"""A run folder without training: digit lines, and a small model with the weights it was born with."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from starseq.config import build, load_recipe
from starseq.corpora import digits
from starseq.data.files import write_text
from starseq.jobs._search import Search
from starseq.jobs._where import Where
from starseq.runs.folder import METRICS, save_model, update_results
from starseq.text.vocabulary import Vocabulary

CPU = Where("cpu")

METRICS_CSV = (
    "step,epoch,loss,loss_per_label,blank_share,inserted_per_label,p,dev_error,mood\n"
    "10,0,9,3.1,0.9,0.5,0.5,,7\n20,0,8,2.5,0.8,,0.5,61.5,7\n"
)


def make_run(folder: Path, *overrides: str, recipe: str = "digits", lines: int = 4, seed: int = 0) -> Path:
    """A folder that `starseq.runs.load` takes; its data, of so many lines for each split, is inside."""
    sizes = [f"data.corpus.{split}={lines}" for split in ("train", "dev", "test")]
    small = ["model.width=16", "model.layers=1", "data.drop.p=0.5"]
    made = load_recipe(recipe, [*sizes, *small, *overrides])
    digits.prepare(folder / "data", train=lines, dev=lines, test=lines)
    vocabulary = Vocabulary("0123456789")
    torch.manual_seed(seed)
    model = build.network(made, vocabulary)
    star = made.criterion.name == "stc"
    save_model(folder, model, step=20, log_penalty=-0.6931 if star else None, dev_error=61.5)
    write_text(folder / "tokens.txt", vocabulary.to_lines())
    write_text(folder / "recipe.yaml", made.to_yaml())
    write_text(folder / METRICS, METRICS_CSV)
    update_results(folder, train={"steps": 20, "labels": 26, "labels_kept": 13})
    return folder


def grouped(**options: Any) -> dict[str, Any]:
    """Options as a command has them, as its job takes them: those of the search, and of where it runs, as one object each."""
    for name, kind in (("search", Search), ("where", Where)):
        own = {field.name for field in fields(kind)} & options.keys()
        options[name] = kind(**{key: options.pop(key) for key in own})
    return options
