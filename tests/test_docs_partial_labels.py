"""docs/partial-labels.md: its commands run, in order, and print what the page says; so do its Python examples."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "partial-labels.md"


def commands() -> list[tuple[str, str]]:
    """(command, what it prints) of every line that begins with `$`; a here-document belongs to its command."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            document = re.match(r".*<<'END'\n.*?^END\n", step, re.DOTALL | re.MULTILINE)
            command = document[0] if document else step.partition("\n")[0] + "\n"
            found.append((command, step.removeprefix(command)))
    return found


def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    assert len(commands()) > 5
    for command, expected in commands():
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT
        )
        assert (command, done.stdout) == (command, expected)


def test_the_examples_are_right() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


@pytest.mark.parametrize("option", ["--p-drop", "--sample-splits", "--word-splits", "--unit", "--mark", "--keep-text"])
def test_every_option_is_on_the_page(option: str) -> None:
    assert option in PAGE.read_text()
