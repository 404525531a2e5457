"""A hook of mkdocs: pages that are made rather than written, formulas as MathML, and links that lead to both.

The first page is README.md, so that there is one text of it. The command reference comes from the commands, the page of
examples from examples/. Pages are written for GitHub as well: formulas between dollars, links to files of the repository.
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""pages of the repository's root, and what they are called on the site"""
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
MATH = re.compile(r"^```math\n(.*?)^```$|\$`([^`]+)`\$", re.DOTALL | re.MULTILINE)


# --- what mkdocs calls ------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made = {name: (ROOT / source).read_text(encoding="utf-8") for source, name in OUTSIDE.items()}
    made |= {"examples.md": examples(), "commands.md": commands()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for name in ("LICENSE", "CITATION.cff"):
        files.append(File.generated(config, f"{name}.txt", content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    at_root = page.file.src_uri in OUTSIDE.values()
    return formulas(links(markdown, at_root=at_root))


# --- what they do -----------------------------------------------------------------------------------------------------


def links(page: str, *, at_root: bool) -> str:
    """Links between files of the repository, as links between pages of the site.

    >>> links("[a](docs/loss.md#x) [b](examples/plain_loop.py) [c](LICENSE)", at_root=True)
    '[a](loss.md#x) [b](examples.md#plain_loop) [c](LICENSE.txt)'
    >>> links("[a](loss.md) [b](../examples/plain_loop.py) [c](../README.md)", at_root=False)
    '[a](loss.md) [b](examples.md#plain_loop) [c](index.md)'
    """

    def leads(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        inside = target if at_root else target.removeprefix("../")
        if not at_root and inside == target:
            return found[0]
        if at_root and inside.startswith("docs/"):
            return f"]({inside.removeprefix('docs/')}{anchor})"
        if inside.startswith("examples/"):
            return f"](examples.md#{Path(inside).stem})"
        if inside in ("LICENSE", "CITATION.cff"):
            return f"]({inside}.txt)"
        return f"]({OUTSIDE.get(inside, inside)}{anchor})"

    return re.sub(r"\]\(((?!https?://|#)[^)#\s]+)(#[^)\s]+)?\)", leads, page)


def formulas(page: str) -> str:
    """Formulas between $` and `$, and in blocks of ```math, as MathML, which browsers draw without a script.

    >>> formulas("$`p`$")
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>p</mi></mrow></math>'
    """
    from latex2mathml.converter import convert

    def drawn(found: re.Match[str]) -> str:
        block = found[1] is not None
        made: str = convert((found[1] or found[2]).strip(), display="block" if block else "inline")
        made = re.sub(r"[_*|\\]", lambda mark: f"&#{ord(mark[0])};", made)  # marks of Markdown
        return f"\n<div>{made}</div>\n" if block else made

    return MATH.sub(drawn, page)


def examples() -> str:
    """The page of examples: every script, under its docstring's first line."""
    text = ["# Examples", "", "Each script runs as it stands, on data that it makes, and is run by a test."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        title = source.removeprefix('"""').partition("\n")[0].rstrip(".")
        text += [
            "",
            f"## {title} {{#{path.stem}}}",
            "",
            f"`examples/{path.name}`",
            "",
            "~~~python",
            source.rstrip(),
            "~~~",
        ]
    return "\n".join(text) + "\n"


def commands() -> str:
    """The command reference, from the commands themselves."""
    import typer

    from starseq import cli

    root = typer.main.get_command(cli.app)
    text = ["# Commands", "", "Made from the commands themselves: `starseq COMMAND --help` says the same."]
    for name in _walk(root, "starseq"):
        text += ["", *_command(root, name)]
    return "\n".join(text) + "\n"


def _walk(command: Any, name: str) -> Iterator[str]:
    """The commands under this one, by name, each group before its own."""
    if hasattr(command, "list_commands"):
        for part in sorted(command.list_commands(None)):
            yield f"{name} {part}"
            yield from _walk(command.get_command(None, part), f"{name} {part}")


def _command(root: Any, name: str) -> list[str]:
    """What `--help` says: sentences as text, arguments and options as they stand."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        root.main([*name.split()[1:], "--help"], prog_name="starseq", standalone_mode=False)
    usage, _, rest = printed.getvalue().strip().partition("\n\n")
    said, *lists = re.split(r"^(?=(?:Arguments|Options|Commands):$)", rest, flags=re.MULTILINE)
    text = [f"{'#' * len(name.split())} {name}", "", escape(textwrap.dedent(said).strip(), quote=False), ""]
    return [*text, "```text", usage.removeprefix("Usage: "), "", "".join(lists).rstrip(), "```"]
