"""What is declared is imported, and what is imported is declared: extra by extra."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from starseq.extras import missing

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "starseq"
IMPORTED_AS = {
    "pillow": "PIL", "scikit-learn": "sklearn", "flashlight-text": "flashlight", "lightning-fabric": "lightning_fabric",
    "pyyaml": "yaml",
}  # fmt: skip
WITH_TORCH = {"triton", "typing_extensions"}
"""triton where there is one; the other names a type for mypy"""
UNDECLARED = {"urllib3"}
"""what lhotse imports without declaring it"""


def declared() -> dict[str, set[str]]:
    """The import names of each extra, and of what is always installed (under no name)."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {extra: [re.split(r"[<>=;\[ ]", text)[0] for text in texts] for extra, texts in lists.items()}
    return {extra: {IMPORTED_AS.get(name, name) for name in found} for extra, found in names.items()}


def imported() -> dict[str, set[str]]:
    """The files of src that import each package."""
    found = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for module in modules:
                found[module.partition(".")[0]].add(path.relative_to(SOURCE).as_posix())
    return {name: files for name, files in found.items() if name not in {*sys.stdlib_module_names, "starseq"}}


def test_what_an_extra_declares_is_imported() -> None:
    for extra, names in declared().items():
        if extra not in ("dev", "docs", "all"):
            assert names <= set(imported()) | UNDECLARED, f"the extra {extra!r} declares what src does not import"


def test_what_is_imported_is_declared() -> None:
    extras = declared()
    known = set().union(*(names for extra, names in extras.items() if extra not in ("dev", "docs", "all")))
    for name, files in imported().items():
        assert name in known | WITH_TORCH, f"{sorted(files)} import {name}, which no extra declares"
    rest = re.findall(r"\w+", (ROOT / "pyproject.toml").read_text().partition('all = ["starseq[')[2].partition("]")[0])
    assert {*rest, "", "all", "dev", "docs", "hf", "onnx"} == set(extras)


def test_a_missing_package_names_its_extra() -> None:
    for extra, names in declared().items():
        for name in names if extra not in ("", "dev", "docs", "all") else ():
            named = re.search(r"starseq\[(\w+)\]", missing(f"{name}.part"))
            assert named is not None
            assert name in declared()[named[1]], name
    assert "starseq[all]" in missing("something")
