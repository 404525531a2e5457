"""Recipes: what they hold (`schema`), how YAML and `key=value` become one (`load`), and the parts that one names, built (`build`).

A section with a `name` is a component: the name is that of a module (a model, a criterion, a penalty, a reader, ...), the
other keys are its keyword arguments, checked against its signature. What is built gets plain values: no class below this
folder knows what a recipe is.
"""

from starseq.config import build
from starseq.config.load import load_recipe, override_tree, recipe_names
from starseq.config.schema import HF, Component, Data, Drop, Optim, Recipe, Schedule, Splits, Text, Trainer

__all__ = [
    "HF", "Component", "Data", "Drop", "Optim", "Recipe", "Schedule", "Splits", "Text", "Trainer", "build",
    "load_recipe", "override_tree", "recipe_names",
]  # fmt: skip
