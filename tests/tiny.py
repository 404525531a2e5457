"""A corpus and a recipe so small that a whole training run takes a second or two."""

from __future__ import annotations

from pathlib import Path

from starseq.config import Recipe, load_recipe
from starseq.corpora import digits

STEPS = 24
SETTINGS = (
    "data.corpus=null", "data.drop.p=0.3", "data.max_items=4", "data.buckets=3", "data.cache=true",
    "model.width=8", "model.layers=1", "model.dropout=0.2",
    "penalty={name: schedule, p0: 0.5, p_max: 0.5, half_life: 9}", "optim.lr=0.01", "optim.warmup_steps=4",
    f"trainer.max_steps={STEPS}", "trainer.eval_every=8", "trainer.checkpoint_every=6", "trainer.log_every=3",
    "trainer.tensorboard=false", "trainer.accelerator=cpu", "trainer.threads=1",
)  # fmt: skip


def corpus(folder: Path, *, train: int = 30, dev: int = 6, test: int = 4) -> Path:
    """Lines of digits in `folder`, unless they are there."""
    if not (folder / "manifest.jsonl").exists():
        digits.prepare(folder, train=train, dev=dev, test=test)
    return folder


def recipe(root: Path, *overrides: str) -> Recipe:
    return load_recipe("digits", (*SETTINGS, f"data.root={root}", *overrides))
