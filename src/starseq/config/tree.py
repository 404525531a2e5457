"""Recipes as plain dicts, lists and values: read from YAML and written to it, merged, flattened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from starseq.data.errors import DataError

__all__ = ["dump", "leaves", "merged", "parse", "put", "tree_of"]

_TIME, _FLOAT = "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float"
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
COMPONENTS = {"model", "criterion", "penalty", "data.reader", "data.corpus", "data.augment"}
"""sections whose `name` says which other keys they have"""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML whose numbers are those of everybody else (1e-3 is one), without dates, and without a key that comes twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(made) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key comes twice", node.start_mark)
        return made


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Puts into quotes what `_Loader` would take for a number."""


for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag not in (_TIME, _FLOAT)]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _kind.add_implicit_resolver(
        _FLOAT, re.compile(f"^({_NUMBER.pattern})$"), list("-+.0123456789")
    )  # after whole numbers


def parse(text: str, name: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; `name` is how an error calls it."""
    try:
        tree = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(f"recipe {name}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise DataError(f"recipe {name}: not a mapping of keys to values")
    return tree


def dump(tree: Mapping[str, Any]) -> str:
    text: str = yaml.dump(tree, Dumper=_Dumper, allow_unicode=True, sort_keys=False)
    return text


def put(tree: dict[str, Any], keys: list[str], value: Any) -> None:
    """Sets a value; sections on the way are made."""
    for key in keys[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[keys[-1]] = value


def merged(base: Any, update: Any, path: str = "") -> Any:
    """`base` with the keys of `update`. A component that gets another name loses the settings of the old one."""
    if not (isinstance(base, dict) and isinstance(update, dict)):
        return update
    if path in COMPONENTS and update.get("name", base.get("name")) != base.get("name"):
        return update
    below = {key: merged(base.get(key), value, f"{path}.{key}".lstrip(".")) for key, value in update.items()}
    return {**base, **below}


def tree_of(value: Any) -> Any:
    """Dataclasses as trees. The settings of a component stand beside its name."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {f.name: tree_of(getattr(value, f.name)) for f in fields(value)}
        return found | found.pop("settings", {})
    if isinstance(value, Mapping):
        return {key: tree_of(v) for key, v in value.items()}
    return [tree_of(v) for v in value] if isinstance(value, (list, tuple)) else value


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) for whatever is not a section."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, tree
