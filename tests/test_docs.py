"""What README.md and docs/ show is what happens: their Python runs, their output is what is printed, their drawings and
tables are what the commands make now, and their links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib.util
import io
import re
import shlex
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from docs import build

from starseq import cli

PAGES = [pytest.param(page, id=page.name) for page in build.pages()]
NEEDS_A_CORPUS = {"data.md"}  # on disk: its blocks are read, not run
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block, the line it begins on, and the block of ```text that follows at once, if one does."""

    language: str
    source: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    result = []
    for match, following in zip_longest(found, found[1:]):
        adjacent = (
            following is not None and following[1] == "text" and not text[match.end() : following.start()].strip()
        )
        output = following[2] if following is not None and adjacent else None
        result.append(Block(match[1], match[2], text[: match.start()].count("\n") + 2, output))
    return result


def absent(source: str) -> list[str]:
    """The packages that a block imports and that are not installed."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name.partition(".")[0]
        for node in imports
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore")
def test_python_runs_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS_A_CORPUS:
        pytest.skip("needs a corpus on disk")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks(page):
            if block.language != "python" or block.source.startswith(">>>") or absent(block.source):
                continue
            # Padded with empty lines, so that a traceback names the line of the page.
            code = compile("\n" * (block.line - 1) + block.source, str(page), "exec")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            if block.output is not None:
                assert printed.getvalue() == block.output, f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", PAGES)
def test_interpreter_sessions_print_what_is_shown(page: Path) -> None:
    namespace: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "python" and block.source.startswith(">>>"):
            session = doctest.DocTestParser().get_doctest(block.source, namespace, page.name, str(page), block.line - 1)
            runner = doctest.DocTestRunner()
            runner.run(session, clear_globs=False)
            assert runner.failures == 0, f"{page.name}, line {block.line}"
            namespace = session.globs


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_is_shown(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page):
        if block.language == "sh" and block.output is not None:
            (command,) = block.source.splitlines()
            program, *arguments = shlex.split(command)
            assert program == "starseq"
            typer.main.get_command(cli.app).main(arguments, prog_name="starseq", standalone_mode=False)
            assert capsys.readouterr().out == block.output, f"{page.name}, line {block.line}"


def test_drawings_are_what_the_commands_make_now(tmp_path: Path) -> None:
    made = set()
    for page in build.pages():
        for arguments, file in build.drawings(page.read_text(encoding="utf-8")):
            build.draw(arguments, tmp_path / "drawing.svg")
            assert (tmp_path / "drawing.svg").read_bytes() == (build.ROOT / file).read_bytes(), (
                f"{file}: run `make docs`"
            )
            made.add(build.ROOT / file)
    # The plot's bytes depend on matplotlib's version, so it is only known to be there.
    assert made | {build.PLOT} == set((build.ROOT / "docs" / "images").iterdir())


def test_tables_are_what_the_results_say() -> None:
    tables = build.tables()
    for page in build.pages():
        text = page.read_text(encoding="utf-8")
        assert build.fill(text, tables) == text, f"{page.name}: run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{page.name}: {target}"


def _anchor(heading: str) -> str:
    """As GitHub makes them: lower case, punctuation gone, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_fill_replaces_marked_regions_only() -> None:
    page = "a\n<!-- x:begin -->\nold \\1\n<!-- x:end -->\nb <!-- y:begin --><!-- y:end -->"
    filled = build.fill(page, {"x": "new \\1"})
    assert filled == "a\n<!-- x:begin -->\nnew \\1\n<!-- x:end -->\nb <!-- y:begin --><!-- y:end -->"
    assert build.fill(filled, {"x": "new \\1"}) == filled
