"""What README.md, CONTRIBUTING.md and docs/ show is what happens: their Python runs, their output is what is printed, their
drawings and tables are what the commands make now, their links lead somewhere, and they stay short."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib.util
import io
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from docs import build, hooks, tables
from experiments.run import Table

from starseq.jobs.bench_results import Measurement

ALL = [*build.pages(), build.ROOT / "CONTRIBUTING.md", build.ROOT / "CHANGELOG.md"]
PAGES = [pytest.param(page, id=page.name) for page in ALL]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMAGES = build.ROOT / "docs" / "images"
MOST_BYTES, MOST_WORDS, LONGEST_SENTENCE = 150_000, 35_000, 30


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


@pytest.mark.parametrize("module", [build, hooks, tables])
def test_what_makes_the_pages_has_examples_that_are_right(module: Any) -> None:
    pytest.importorskip("latex2mathml")
    assert doctest.testmod(module).failed == 0


def test_drawings_are_what_the_commands_make_now(tmp_path: Path) -> None:
    for page in build.pages():
        for arguments, file in build.drawings(page.read_text(encoding="utf-8")):
            build.draw(arguments, tmp_path / "drawing.svg")
            assert (tmp_path / "drawing.svg").read_bytes() == (build.ROOT / file).read_bytes(), (
                f"{file}: run `make docs`"
            )


def test_tables_are_what_the_results_say() -> None:
    filling = tables.tables()
    for page in build.pages():
        text = page.read_text(encoding="utf-8")
        assert build.fill(text, filling) == text, f"{page.name}: run `make docs`"


def test_the_summary_has_what_was_run_at_the_front_row(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Table(
        "made", "Made up", "cer", rows={"none": None, "0.5": None}, columns={"ctc": None, "stc": None}, base="none/ctc",
        front="0.5", summary={"CTC": "ctc", "STC": "stc", "STC + student": "student"},
    )  # fmt: skip

    def line(row: str, column: str, rate: float) -> dict[str, Any]:
        return {"row": row, "column": column, "seed": 0, "errors": {"test": {"cer": rate}}}

    lines = [line("none", "ctc", 8.0), line("0.5", "stc", 11.0), line("none", "stc", 7.0)]
    monkeypatch.setattr(tables, "trained", lambda: [(made, lines)])
    assert tables.summary().splitlines() == [
        "| test error, % | CTC | STC | STC + student | CTC, all labels |",
        "|---|---|---|---|---|",
        "| Made up: 0.5 (CER) | not run | 11.0 | not run | 8.00 |",
    ]


def test_times_are_told_by_machine() -> None:
    def row(provider: str, metric: str, value: float, device: str = "NVIDIA H200") -> Measurement:
        numbers = {"p20": value, "p50": value, "p80": value, "runs": 3}
        return Measurement(
            "iam",
            "8, 150, 80, 22",
            "float32",
            provider,
            metric,
            "",
            device=device,
            torch="2.11",
            starseq="0",
            **numbers,
        )

    rows = [
        row("torch ctc", "time", 2),
        row("starseq stc", "time", 1),
        row("torch ctc", "ratio", 1),
        row("starseq stc", "ratio", 0.5),
    ]
    rows += [row("torch ctc", "ratio", 1, "Xeon"), row("starseq stc", "ratio", 0.25, "Xeon")]
    assert "| iam | 8, 150, 80, 22 | 2 | 1 |" in tables.times(rows)
    told = tables.speed(rows)
    assert "| H200: iam (8, 150, 80, 22) | 0.50 |" in told
    assert "| CPU: iam (8, 150, 80, 22) | 0.25 |" in told
    assert "torch ctc |" not in told


def test_the_house_is_drawn_as_it_is() -> None:
    pytest.importorskip("tomllib", reason="Python 3.11 has it")
    rooms = re.compile(r'font-weight="600">(\w+)<')
    drawn = (IMAGES / "house.svg").read_text(encoding="utf-8")
    assert rooms.findall(drawn) == rooms.findall(tables.house()), "run `make docs`"


def test_every_experiment_has_its_plot() -> None:
    for table, _ in tables.trained():
        assert (IMAGES / f"results-{table.name}.svg").exists(), "run `make docs`"


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
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", linked.read_text(encoding="utf-8")), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{page.name}: {target}"


def _anchor(heading: str) -> str:
    """As GitHub makes them: lower case, punctuation gone, spaces to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_picture_is_shown_and_small() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in ALL)
    for picture in IMAGES.iterdir():
        assert f"images/{picture.name})" in text or f"docs/images/{picture.name}" in text, (
            f"{picture.name} is on no page"
        )
        assert picture.stat().st_size < MOST_BYTES, picture.name


def test_every_page_is_on_the_site() -> None:
    site = (build.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (build.ROOT / "docs").glob("*.md"):
        assert f": {page.name}" in site, page.name


def test_pages_are_short() -> None:
    assert len((build.ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
    assert len((build.ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines()) <= 250
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in ALL) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "<")))
    for part in re.split(r"\n\s*\n|\n\s*[-*\d.]+\s", text):
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(part.split())):
            assert len(sentence.split()) <= LONGEST_SENTENCE, sentence


def test_fill_replaces_marked_regions_only() -> None:
    page = "a\n<!-- x:begin -->\nold \\1\n<!-- x:end -->\nb <!-- y:begin --><!-- y:end -->"
    filled = build.fill(page, {"x": "new \\1"})
    assert filled == "a\n<!-- x:begin -->\nnew \\1\n<!-- x:end -->\nb <!-- y:begin --><!-- y:end -->"
    assert build.fill(filled, {"x": "new \\1"}) == filled
