"""The command: one sentence and exit code 2 for what the user can mend, 1 for a failed check, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.commands import Command

from starseq.data.manifest import read_manifest, write_manifest


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full.jsonl"
    rows = [{"id": f"u{i}", "path": "p", "text": "one two three", "split": ("dev", "train")[i > 9]} for i in range(100)]
    write_manifest(path, rows)
    return path


def test_drop_prints_what_is_left_and_draws_it(command: Command, full: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = command("drop", full, out, "--p-drop", 0.5, "--mark", "--keep-text", "--seed", 7)
    assert (done.code, done.err) == (0, "")
    rows = list(read_manifest(out))
    kept = sum(len(row.partial("word").labels) for row in rows)
    assert f"{len(rows)} samples, {100 - len(rows)} pruned" in done.out
    assert f"{kept} of 300 labels kept ({kept / 3:.1f}%)" in done.out
    assert " 95-100% █" in done.out
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert all(row["text_full"] == "one two three" and row["gaps"] == "marked" for row in rows)


@pytest.mark.parametrize("strategy", [("--sample-splits", "0.1,0.4,0.7"), ("--word-splits", "0,0.5,1")])
def test_drop_by_splits(command: Command, full: Path, tmp_path: Path, strategy: tuple[str, str]) -> None:
    assert command("drop", full, tmp_path / "out.jsonl", *strategy, "--unit", "char", "--no-plot").code == 0
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["drop", "none.jsonl", "out.jsonl", "--p-drop", "0.5"], "none.jsonl: no such file or directory"),
        (["drop", "{full}", "out.jsonl"], "give one of --p-drop, --sample-splits and --word-splits"),
        (["drop", "{full}", "out.jsonl", "--p-drop", ".5", "--word-splits", ".5"], "give one of --p-drop"),
        (["drop", "{full}", "out.jsonl", "--p-drop", "1.5"], "pDrop must lie between 0 and 1, and 1.5 does not"),
        (["drop", "{full}", "out.jsonl", "--word-splits", "a,b"], "--word-splits: 'a,b' is not a list of numbers"),
        (["drop", "{broken}", "out.jsonl", "--p-drop", "0.5"], "broken.jsonl, line 2: not JSON: "),
        (["drop", "{full}", "{folder}", "--p-drop", "0.5"], "not a regular file"),
        (["drop", "{folder}", "out.jsonl", "--p-drop", "0.5"], "is a directory"),
        (["manifest", "stats", "{empty}"], "empty.jsonl: the manifest is empty"),
        (["manifest", "stats", "{broken}"], "broken.jsonl, line 2: not JSON: "),
        (["manifest", "split", "{full}", "parts", "--parts", "train"], "--parts: 'train' does not read like"),
        (["manifest", "filter", "{full}", "out.jsonl", "--where", "what"], "condition 'what' does not read"),
        (
            ["manifest", "merge", "{full}", "{full}", "--out", "out.jsonl"],
            "full.jsonl, line 1: id 'u0' was used before",
        ),
        (["manifest", "validate", "{full}", "--tokens", "{empty}"], "empty.jsonl: line 1 must be <blank>"),
    ],
)
def test_errors_are_one_sentence(
    command: Command, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_bytes(full.read_bytes().splitlines(keepends=True)[0] + b"no\n")
    (tmp_path / "folder").mkdir()
    names = {name: tmp_path / f"{name}.jsonl" for name in ("full", "empty", "broken")} | {"folder": tmp_path / "folder"}
    done = command(*(argument.format(**names) for argument in arguments))
    assert done.code == 2
    assert done.err.startswith("starseq: ")
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["transcribe", "run", "full.jsonl", "bad.jsonl", "-o", "./bad.jsonl"],
        ["lm", "train", "bad.jsonl", "--out", "bad.jsonl"],
        ["lm", "train", "full.jsonl", "--limit-vocabulary", "bad.jsonl", "--out", "bad.jsonl"],
        ["lm", "mix", "full.jsonl", "bad.jsonl", "--weights", "1,1", "--out", "bad.jsonl"],
        ["manifest", "filter", "bad.jsonl", "out.jsonl", "--where", "split=dev", "--skip-bad"],
        ["manifest", "merge", "full.jsonl", "bad.jsonl", "--out", "out.jsonl", "--skip-bad"],
        ["manifest", "split", "bad.jsonl", ".", "--parts", "dev=1,train=1", "--skip-bad"],
        ["manifest", "split", "full.jsonl", ".", "--parts", "dev=1,full=1"],
        ["drop", "bad.jsonl", "out.jsonl", "--p-drop", "0.5", "--skip-bad"],
        ["drop", "bad.jsonl", "out.jsonl", "--p-drop", "0.5", "--plot", "bad.jsonl"],
        ["drop", "full.jsonl", "out.jsonl", "--p-drop", "0.5", "--plot", "out.foo"],
    ],
)
def test_what_is_read_is_not_replaced(
    command: Command, full: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(full.parent)
    (full.parent / "bad.jsonl").write_bytes(full.read_bytes())
    before = {path.name: path.read_bytes() for path in full.parent.iterdir()}
    done = command(*arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert any(words in done.err for words in ("that is read", "it is the one that is read", "pictures end in"))
    assert {path.name: path.read_bytes() for path in full.parent.iterdir()} == before


@pytest.mark.parametrize("text", ["my notes\n", "my,notes\n1,2\n", "case,shape\n1,2\n", "\x00\n", '"'])
@pytest.mark.parametrize("option", ["--save", "--targets"])
def test_bench_looks_at_its_files_before_it_measures(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, text: str
) -> None:
    monkeypatch.setattr("starseq.jobs.bench._measure", lambda *arguments: pytest.fail("it measured"))
    path = tmp_path / "notes.csv"
    path.write_text(text)
    done = command("bench", "--check", option, path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{path}: not " in done.err
    assert path.read_text() == text


def test_bench_needs_its_targets(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "targets.csv: no such file" in command("bench", "--check").err


def test_validate_fails_with_1_and_names_the_lines(command: Command, full: Path) -> None:
    assert command("manifest", "validate", full).code == 0
    full.write_bytes(full.read_bytes() + b'{"id": "x", "path": "p", "text": ""}\n' * 30)
    done = command("manifest", "validate", full)
    assert done.code == 1
    assert f"{full}, line 101: field 'text' is empty" in done.err
    assert "... and 10 more" in done.err
    assert "100 good rows, 30 bad" in done.out


def test_the_other_verbs_of_manifest(command: Command, full: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    done = command("manifest", "split", full, parts)
    assert f"{parts / 'dev'}.jsonl: 10 rows" in done.out
    assert f"{parts / 'train'}.jsonl: 90 rows" in done.out
    merged = tmp_path / "merged.jsonl"
    assert "100 rows" in command("manifest", "merge", parts / "dev.jsonl", parts / "train.jsonl", "-o", merged).out
    dev = tmp_path / "dev.jsonl"
    assert "10 rows, 90 left out" in command("manifest", "filter", merged, dev, "--where", "split=dev").out
    assert "dev 10" in command("manifest", "stats", dev).out
    assert "10 rows" in command("manifest", "split", dev, parts, "--parts", "all=1", "--by", "id").out


def test_skip_bad_says_where_the_bad_rows_are(command: Command, full: Path, tmp_path: Path) -> None:
    full.write_bytes(full.read_bytes() + b"caf\xe9\n")
    done = command("drop", full, tmp_path / "out.jsonl", "--p-drop", 0, "--no-plot", "--skip-bad")
    assert f"{tmp_path / 'bad.jsonl'}: 1 bad rows" in done.out
    bad = json.loads((tmp_path / "bad.jsonl").read_text())
    assert (bad["line"], bad["reason"]) == (101, "not UTF-8: byte 0xe9 in column 4")


def test_a_traceback_on_demand(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARSEQ_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        command("manifest", "stats", "none.jsonl")


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "run", "--workers", "-1"],
        ["evaluate", "run", "--examples", "-1"],
        ["prepare", "features", "m.jsonl", "out", "--workers", "-1"],
    ],
)
def test_counts_are_not_below_zero(command: Command, arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert "greater than or equal to 0" in done.err


def test_version_and_help(command: Command) -> None:
    from importlib.metadata import version

    assert command("--version").out == f"starseq {version('starseq')}\n"
    for verb in ([], ["drop"], ["manifest"], ["manifest", "split"]):
        done = command(*verb, "--help")
        assert done.code == 0
        assert "Usage: starseq" in done.out
    for verb in ([], ["lm"], ["manifest"], ["prepare"]):
        assert "..." not in command(*verb, "--help").out.partition("Commands:")[2]  # no description is cut off


def test_no_option_has_its_own_name_in_capitals_for_its_value() -> None:
    """typer 0.27 takes that for the option's name: --RECIPE."""
    import click
    import typer

    from starseq.cli import app

    def options(command: click.Command, name: str) -> list[tuple[str, click.Parameter]]:
        mine = [(name, parameter) for parameter in command.params if parameter.param_type_name == "option"]
        below = getattr(command, "commands", {}).items()
        return mine + [found for verb, child in below for found in options(child, f"{name} {verb}")]

    found = options(typer.main.get_command(app), "starseq")
    assert len(found) > 100
    for name, option in found:
        value = getattr(option, "metavar", None)
        assert value is None or value.lower() != option.name, f"{name}: {option.opts}"


def test_as_a_module_it_warns_of_nothing() -> None:
    run = [sys.executable, "-W", "error", "-m", "starseq", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stderr == ""


def test_with_the_loss_alone_the_command_says_what_is_missing() -> None:
    code = "import sys; sys.modules['typer'] = None; sys.argv = ['starseq', 'draw']; from starseq.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    sentence = "starseq: this needs the package 'typer', which is not installed: pip install 'starseq[cli]', "
    assert (done.returncode, done.stderr) == (2, f"{sentence}in a checkout -e '.[cli]'\n")


LIGHT = """
import importlib.util, sys, types
package = types.ModuleType("starseq")
package.__path__ = importlib.util.find_spec("starseq").submodule_search_locations
sys.modules["starseq"] = package
from starseq import cli
sys.argv = ["starseq", *sys.argv[1:]]
try:
    cli.main()
finally:
    print(*sorted({"torch", "numba", "lightning", "lhotse", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["drop", "{full}", "{out}", "--p-drop", "0.5", "--no-plot"]])
def test_help_and_drop_import_nothing_heavy(full: Path, tmp_path: Path, arguments: list[str]) -> None:
    # Past `starseq/__init__.py`, whose imports are its own affair.
    filled = [argument.format(full=full, out=tmp_path / "out.jsonl") for argument in arguments]
    done = subprocess.run([sys.executable, "-c", LIGHT, *filled], capture_output=True, text=True, check=True)
    assert done.stderr == "\n"


@pytest.mark.parametrize(
    ("job", "arguments", "says"),
    [
        ("pseudo.pseudo", ["pseudo", "run", "m.jsonl", "-o", "x.jsonl", "--kind", "plain"], "goes on"),
        ("complete.complete", ["complete", "run", "m.jsonl", "-o", "x.jsonl"], "goes on"),
        ("prepare.features", ["prepare", "features", "m.jsonl", "store"], "goes on"),
        ("prepare.prepare", ["prepare", "digits", "data"], "begins anew"),
        ("evaluate.evaluate", ["evaluate", "run"], "goes on"),
        ("align.align", ["align", "run", "m.jsonl", "-o", "out"], "goes on"),
        ("tune.tune", ["tune", "run", "--lm", "lm.arpa"], "goes on"),
        ("lm.train_ngram", ["lm", "train", "a.txt", "--out", "lm.arpa"], "begins anew"),
        ("lm.train_neural", ["lm", "train", "a.txt", "--out", "lm", "--neural"], "with --resume it goes on"),
        ("transcribe.transcribe", ["transcribe", "run", "a.wav"], "begins anew"),
    ],
)
def test_ctrl_c_is_one_sentence_that_says_what_the_same_command_does(
    job: str, arguments: list[str], says: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"starseq.jobs.{job}", stopped)
    done = command(*arguments)
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith("starseq: stopped; the same command ")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_ctrl_c_before_the_work_begins_is_one_sentence_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("starseq.jobs.report.report", stopped)
    assert command("report", "run") == (130, "", "starseq: stopped; the same command can be given again\n")
