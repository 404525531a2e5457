"""The tables and plots of docs/RESULTS.md and docs/results/, from lines that are written by hand."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import page
from benchmarks.steps import Mistake, Table

from starseq.config import load_recipe

TABLE = """
title: by hand
corpus: corpus
metric: cer
recipe: digits
steps: 1000
drop: {unit: char, seed: 0}
conditions: {"0": {}, "0.3": {p-drop: 0.3}, "0.7": {p-drop: 0.7}}
schedules: {grid: [[0.03, 0.1], [0.3, 0.7]], half_life: 100}
methods:
  ctc: {title: CTC, train: [criterion.name=ctc]}
  stc: {title: STC self-tuned, train: [criterion.name=stc, penalty.name=adaptive]}
  stc+beam: {title: + beam, from: stc, lm: {text: pseudo}}
  stc+pseudo: {title: + pseudo, from: stc, pseudo: [--kind, keep-known], train: [criterion.name=ctc]}
  labels: {labels: true}
runs:
  - {conditions: ["0", "0.3", "0.7"], methods: [ctc, stc], seeds: [0]}
  - {conditions: ["0.3", "0.7"], methods: [stc-0.03-0.1, stc-0.3-0.7, stc+beam, stc+pseudo, labels], seeds: [0]}
  - {conditions: ["0.3", "0.7"], methods: [stc, best], seeds: [1, 2]}
columns: {ctc: CTC, best: "STC, best schedule", stc: STC self-tuned, stc+beam: + beam, stc+pseudo: + pseudo}
base_at_most: 20
targets: {stc: {"0.3": 1.15, "0.7": 2.5}}
"""


class Lines:
    """Writes cells.jsonl."""

    def __init__(self, folder: Path) -> None:
        (folder / "tables").mkdir()
        self.tables, self.results = folder / "tables", folder / "cells.jsonl"
        self.write_table(TABLE)

    def write_table(self, text: str) -> None:
        (self.tables / "1.yaml").write_text(text)
        self.table = Table.load(str(self.tables / "1.yaml"))

    def add(
        self,
        condition: str,
        method: str,
        test: float,
        *,
        dev: float | None = None,
        seed: int = 0,
        trained: str = "2026-11-16 03:00",
        **more: Any,
    ) -> None:
        cell = self.table.cell(condition, method, seed)
        made = [
            {"stage": step.stage, "seconds": 180.0, "machine": "one H200", "jobs": 4, "commit": "abc1234", "ended": trained,
             "commands": ["starseq " + " ".join(command) for command in step.commands]}
            for step in cell.steps
        ]  # fmt: skip
        errors = {
            split: {how: {"cer": value, "wer": 2 * value} for how in ("greedy", "beam")}
            for split, value in (("dev", test if dev is None else dev), ("test", test))
        }
        train = {
            "steps": 1000,
            "best_step": 900,
            "p": None,
            "seconds": 55.0,
            "parameters": 1234,
            "steps_per_second": 20.0,
        }
        line = {
            "table": "1", "condition": condition, "method": method, "seed": seed, "key": cell.key, "metric": "cer",
            "errors": errors, "made": made, "commit": "0ther12", "ended": "2026-11-16 04:00",
            "train": train | more.pop("train", {}),
        }  # fmt: skip
        with open(self.results, "a") as file:
            none = ("train", "errors") if method == "labels" else ()
            file.write(json.dumps({name: value for name, value in (line | more).items() if name not in none}) + "\n")

    def page(self) -> dict[str, str]:
        return page.texts(page.load(self.results, self.tables))

    def rows(self, name: str = "table1") -> list[list[str]]:
        """The cells of every row of every table."""
        lines = self.page()[name].splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


def first(rows: Sequence[Sequence[str]], condition: str) -> Sequence[str]:
    return next(row for row in rows if row[0] == condition)


def test_without_any_result_the_frame_stands(lines: Lines) -> None:
    rows = lines.rows()
    assert rows[0] == [
        "labels dropped; test CER %",
        "CTC",
        "STC, best schedule",
        "STC self-tuned",
        "+ beam",
        "+ pseudo",
    ]
    assert rows[2] == ["none", "", "", "", "", ""]
    assert rows[4] == ["0.7", "", "", "", "", ""]
    assert "supervised" not in lines.page()["table1"]
    assert lines.rows("table1-all")[2:] == lines.rows("table1-runs")[2:] == []
    assert lines.page()["table1-rules"] == ""
    assert lines.rows("time")[2:] == []
    assert page.plots(page.load(lines.results, lines.tables)) == {}


def test_ratios_and_targets_good_and_bad(lines: Lines) -> None:
    lines.add("0", "ctc", 20.0)
    lines.add("0.3", "ctc", 44.0)
    lines.add("0.3", "stc", 23.0)
    lines.add("0.7", "stc", 60.0)
    lines.add("0.3", "stc+beam", 21.0)
    rows = lines.rows()
    assert first(rows, "none")[1] == "20.0"
    assert first(rows, "0.3")[1:] == ["44.0, 2.20 x", "", "**23.0, 1.15 x**", "21.0, 1.05 x", ""]
    assert first(rows, "0.7")[3] == "*60.0, 3.00 x*"
    text = lines.page()["table1"]
    assert "CTC on all labels: test CER 20.00 % (set in advance: at most 20 %; met)." in text
    assert "Every model has 1,234 parameters and 1,000 steps of training." in text
    assert text.endswith("bold: reached, italics: missed.\n\n- 1.15 x at 0.3, 2.5 x at 0.7: STC self-tuned")


def test_large_ratios_have_no_decimals(lines: Lines) -> None:
    lines.add("0", "ctc", 0.5)
    lines.add("0.3", "ctc", 4.99)
    lines.add("0.7", "ctc", 5.0)
    assert [first(lines.rows(), condition)[1] for condition in ("0.3", "0.7")] == ["4.99, 9.98 x", "5.00, 10 x"]


def test_all_methods_stand_together(lines: Lines) -> None:
    lines.add("0.3", "stc-0.03-0.1", 30.0)
    lines.add("0.7", "stc", 60.0)
    lines.add("0.7", "stc", 62.0, seed=1)
    assert lines.rows("table1-all") == [
        ["method", "test CER %", "none", "0.3", "0.7"],
        ["---"] * 5,
        ["`stc`", "STC self-tuned", "", "", "61.0 ± 1.41"],
        ["`stc-0.03-0.1`", "STC p 0.03 to 0.1", "", "30.0", ""],
    ]


def test_a_little_too_much_is_missed(lines: Lines) -> None:
    lines.add("0", "ctc", 20.0)
    lines.add("0.3", "stc", 23.1)
    assert first(lines.rows(), "0.3")[3] == "*23.1, 1.16 x*"


def test_a_weak_base_is_called_weak_and_points_count_too(lines: Lines) -> None:
    lines.write_table(TABLE + "or_points: 1\n")
    lines.add("0", "ctc", 21.0)
    lines.add("0.3", "stc", 21.9)
    lines.write_table((TABLE + "or_points: 1\n").replace('"0.3": 1.15', '"0.3": 1.01'))
    assert "weaker than that, so read the ratios with care" in lines.page()["table1"]
    assert first(lines.rows(), "0.3")[3] == "**21.9, 1.04 x**"
    assert "- 1.01 x at 0.3, 2.5 x at 0.7, or 1 point more than the supervised model: STC" in lines.page()["table1"]


def test_dev_chooses_the_schedule_and_three_seeds_judge(lines: Lines) -> None:
    lines.add("0", "ctc", 20.0)
    lines.add("0.3", "stc-0.03-0.1", 30.0, dev=25.0)
    assert first(lines.rows(), "0.3")[2] == ""  # half of the grid chooses nothing
    lines.add("0.3", "stc-0.3-0.7", 29.0, dev=26.0)
    for seed, own, other in ((0, 31.0, None), (1, 30.5, 30.4), (2, 30.3, 30.2)):
        lines.add("0.3", "stc", own, dev=24.0, seed=seed)
        if other is not None:
            lines.add("0.3", "stc-0.03-0.1", other, seed=seed)
    assert first(lines.rows(), "0.3")[2] == "30.2 ± 0.20, 1.51 x (.03 to .1)"
    assert lines.rows("table1-schedules") == [
        ["dev CER %, first seed", "0.3"],
        ["---", "---"],
        ["p from .03 to .1", "**25.0**"],
        ["p from .3 to .7", "26.0"],
        ["STC self-tuned", "24.0"],
    ]
    assert lines.rows("table1-rules") == [
        ["test CER %, three seeds or more", "0.3"],
        ["---", "---"],
        ["best schedule", "30.2 ± 0.20 (.03 to .1)"],
        ["STC self-tuned", "30.6 ± 0.36, worse"],
    ]


def test_what_is_shown_first_is_chosen(lines: Lines) -> None:
    power = "  stc2: {title: power 2, train: [criterion.name=stc, penalty.name=adaptive, penalty.power=2]}\n"
    masks = "  stcm: {title: masks, train: [criterion.name=stc, penalty.name=adaptive, data.augment.masks=5]}\n"
    lines.write_table(TABLE.replace("  stc+beam:", f"{power}{masks}  stc+beam:"))
    lines.add("0", "stc2", 70.0, train={"p": 0.9})
    lines.add("0.3", "stc2", 80.0, dev=77.0, train={"p": 0.9})
    lines.add("0.3", "stcm", 50.0, dev=47.0)
    lines.add("0.3", "stc-0.3-0.7", 50.0, dev=48.0)
    assert "power 2" not in lines.page()["table1"]
    assert [row[1] for row in lines.rows("table1-all")[2:]] == ["power 2", "masks", "STC p 0.3 to 0.7"]
    # Beside the schedules stands what differs from them in p alone.
    assert [row[0] for row in lines.rows("table1-schedules")[2:]] == ["p from .3 to .7", "power 2"]
    drawn = page.plots(page.load(lines.results, lines.tables))
    assert list(drawn) == ["table1-p.svg"]
    assert "power 2" in drawn["table1-p.svg"]


def test_without_columns_all_methods_are_shown(lines: Lines) -> None:
    columns = next(line for line in TABLE.splitlines() if line.startswith("columns:"))
    lines.write_table(TABLE.replace(columns, ""))
    assert lines.rows()[0][1:] == ["CTC", "STC self-tuned", "+ beam", "+ pseudo"]
    with pytest.raises(Mistake, match="columns: 'cctc' is none of the methods ctc, stc, "):
        lines.write_table(TABLE.replace("columns: {ctc", "columns: {cctc"))


@pytest.mark.parametrize(
    ("own", "word"), [((29.0, 29.1, 29.2), "better"), ((30.2, 30.4, 30.3), "as good"), ((31.0, 31.1, 31.2), "worse")]
)
def test_as_good_is_within_one_standard_deviation(lines: Lines, own: Sequence[float], word: str) -> None:
    lines.add("0.3", "stc-0.3-0.7", 50.0)
    for seed in range(3):
        lines.add("0.3", "stc-0.03-0.1", 30.0 + 0.2 * seed, seed=seed)
        lines.add("0.3", "stc", own[seed], seed=seed)
    assert lines.rows("table1-rules")[3][1].endswith(f", {word}")


@pytest.mark.parametrize("other", ["criterion.name=lasting_stc", "criterion.name=stc, criterion.matching=all"])
def test_a_rule_for_p_is_compared_under_the_loss_of_the_schedules(lines: Lines, other: str) -> None:
    lines.write_table(TABLE.replace("train: [criterion.name=stc, penalty", f"train: [{other}, penalty"))
    lines.add("0.3", "stc-0.3-0.7", 50.0)
    for seed in range(3):
        lines.add("0.3", "stc-0.03-0.1", 30.0 + 0.2 * seed, seed=seed)
        lines.add("0.3", "stc", 29.0, seed=seed)
    assert [row[0] for row in lines.rows("table1-rules")[2:]] == ["best schedule"]


def test_pseudo_labels_and_what_they_are_worth(lines: Lines) -> None:
    found = {
        "rows": {"in": 10, "out": 8, "failed": 2},
        "errors": {"partial": {"cer": 30.5}, "pseudo": {"cer": 4.25, "wer": 12.0}},
        "labels": {"known": 70, "added": 20},
    }
    kept = {"labels": 500, "kept": 139}  # of 500 with the rows that lost everything; 200 in the others
    lines.add("0.3", "stc+pseudo", 21.0, pseudo=found, labels=kept)
    lines.add("0.7", "stc+pseudo", 22.0, pseudo=found)
    assert [
        "0.3",
        "keep-known",
        "STC self-tuned",
        "30.5",
        "4.25",
        "45.0",
        "2",
        "21.0",
        "21.0",
        "12.0",
        "42.0",
    ] in lines.rows("table1-pseudo")
    assert [
        "0.7",
        "keep-known",
        "STC self-tuned",
        "30.5",
        "4.25",
        "",
        "2",
        "22.0",
        "22.0",
        "12.0",
        "44.0",
    ] in lines.rows("table1-pseudo")
    lines.write_table(TABLE.replace("unit: char", "unit: word"))  # while labels are characters
    lines.add("0.3", "stc+pseudo", 23.0, pseudo=found, labels=kept)
    assert [
        "0.3",
        "keep-known",
        "STC self-tuned",
        "30.5",
        "4.25",
        "",
        "2",
        "23.0",
        "23.0",
        "12.0",
        "46.0",
    ] in lines.rows("table1-pseudo")
    lines.write_table(TABLE.replace("from: stc, pseudo:", "from: stc, also: [[stc, 1]], pseudo:"))
    lines.add("0.3", "stc+pseudo", 24.0, pseudo=found, labels=kept)
    both = "STC self-tuned and STC self-tuned of seed 1"
    assert ["0.3", "keep-known", both, "30.5", "4.25", "45.0", "2", "24.0", "24.0", "12.0", "48.0"] in lines.rows(
        "table1-pseudo"
    )


def test_all_corpora_at_one_look(lines: Lines) -> None:
    head = ["test error", "labels dropped", "CTC", "STC", "CTC student of labels that STC completed"]
    assert lines.rows("summary")[2:] == []  # a table that names no methods for it
    columns = "{title: lines, ctc: ctc, stc: stc, student: stc+pseudo, read: stc+beam, full: stc-0.3-0.7}"
    lines.write_table(TABLE + f"summary: {columns}\n")
    lines.add("0", "ctc", 10.0)
    lines.add("0", "stc", 99.0)  # with all labels the base alone counts
    lines.add("0", "stc-0.3-0.7", 9.0)
    lines.add("0.3", "stc", 23.0)
    lines.add("0.3", "stc", 25.0, seed=1)
    lines.add("0.3", "stc+beam", 21.0)
    lines.add("0.7", "ctc", 90.0)  # without STC there is nothing to show
    rows = lines.rows("summary")
    assert rows[0] == [*head, "read with a language model"]
    assert rows[2:] == [["lines; CER %", "none", "10.0", "", "", "9.00"], ["", "0.3", "", "24.0 ± 1.41", "", "21.0"]]


def test_tables_of_a_corpus_stand_together_at_one_look(lines: Lines) -> None:
    for name, corpus in (("1", "corpus"), ("2", "other"), ("3", "corpus")):
        text = TABLE.replace("corpus: corpus", f"corpus: {corpus}") + f"summary: {{title: table {name}, ctc: ctc}}\n"
        (lines.tables / f"{name}.yaml").write_text(text)
    titles = [row[0] for row in lines.rows("summary")[2:]]
    assert titles == ["table 1; CER %", "table 3; CER %", "table 2; CER %"]


def test_searches_without_a_language_model_stand_together(lines: Lines) -> None:
    methods = (
        "  stc+merged: {from: stc, lm: {search: [--beam, 7, --merge-repeats]}}\n"
        "  stc+kept: {from: stc, lm: {search: [--beam, 7]}}\n"
    )
    lines.write_table(
        TABLE.replace("  labels: {", methods + "  labels: {").replace(
            "stc+beam, stc+pseudo", "stc+merged, stc+kept, stc+beam, stc+pseudo"
        )
    )
    for method, error, beta in (("stc+kept", 20.0, -0.5), ("stc+merged", 19.0, 2.0)):
        lines.add("0.3", method, error, weights={"alpha": 0.0, "beta": beta})
    assert lines.rows("table1-searches") == [
        [
            "labels dropped",
            "method",
            "seed",
            "repeats",
            "weight a token (beta)",
            "test CER %, greedy",
            "test CER %, search",
        ],
        ["---"] * 7,
        ["0.3", "STC self-tuned", "0", "merged", "2", "19.0", "19.0"],
        ["0.3", "STC self-tuned", "0", "kept", "-0.5", "20.0", "20.0"],
    ]


def test_each_number_says_how_it_was_made(lines: Lines) -> None:
    lines.add("0.3", "stc", 23.0, train={"p": 0.2712})
    lines.add("0.3", "stc+beam", 21.0, weights={"alpha": 0.5, "beta": 1.25})
    row = "| 0.3 | stc | 0 | greedy | 46.0 | 46.0 | 23.0 | 23.0 | 1,000 | 900 | 0.27 | 55 | one H200, 4 side by side | abc1234 |"
    assert row in lines.page()["table1-runs"]
    assert "| 0.3 | stc+beam | 0 | beam, 0.5, 1.25 | 42.0 |" in lines.page()["table1-runs"]
    commands = lines.page()["table1-commands"]
    first_step = "# 0.3/stc/0: train, 180 s on one H200, 4 side by side\nstarseq train digits data.root=data/corpus data.drop.p=0.3"
    assert commands.startswith(f"```\n{first_step}")
    assert commands.count("starseq train digits") == 1  # what is shared stands once
    assert "# 0.3/stc+beam/0: beam, 180 s" in commands


def test_time_is_compared_of_trainings_that_ran_beside_one_another(lines: Lines) -> None:
    lasting = "{title: lasting, train: [criterion.name=lasting_stc, penalty.name=adaptive]}"
    masks = "{title: masks, train: [criterion.name=stc, penalty.name=adaptive, data.augment.masks=5]}"
    lines.write_table(TABLE.replace("  stc+beam:", f"  last: {lasting}\n  stcm: {masks}\n  stc+beam:"))
    lines.add("0", "ctc", 20.0, train={"steps_per_second": 24.0}, trained="2026-11-16 04:10")
    lines.add("0.3", "ctc", 40.0, train={"steps_per_second": 20.0}, trained="2026-11-16 04:00")
    lines.add("0.7", "ctc", 40.0, train={"steps_per_second": None})
    lines.add("0.3", "stc", 23.0, train={"steps_per_second": 19.0}, trained="2026-11-16 04:01")
    lines.add("0.3", "stc", 23.0, train={"steps_per_second": 17.0}, seed=1, trained="2026-11-16 04:01")
    lines.add("0.3", "stc", 23.0, train={"steps_per_second": 9.0}, seed=2, trained="2026-11-16 04:07")  # alone
    lines.add(
        "0.3", "stcm", 23.0, train={"steps_per_second": 1.0}, trained="2026-11-16 04:00"
    )  # differs in masks as well
    lines.add("0.7", "stc", 23.0)
    lines.add("0.7", "last", 23.0, train={"steps_per_second": 12.0}, trained="2026-11-16 04:10")
    where = ["one H200, 4 side by side", "abc1234"]
    assert lines.rows("time")[2:] == [
        ["1", "corpus", "0.3", "STC", *where, "20.00", "18.00", "0.90"],
        ["1", "corpus", "0.7", "lasting STC", *where, "24.00 (on all labels)", "12.00", "0.50"],
    ]


def test_lines_of_another_setting_are_history(lines: Lines) -> None:
    lines.add("0", "ctc", 20.0)
    lines.write_table(TABLE.replace("steps: 1000", "steps: 2000"))
    assert first(lines.rows(), "none")[1] == ""


def test_plots_where_there_are_numbers(lines: Lines) -> None:
    lines.add("0", "stc", 20.0, train={"p": 0.05})
    lines.add("0.3", "stc", 23.0, train={"p": 0.3})
    lines.add("0.3", "labels", 0.0, labels={"histogram": [0] * 10 + [5] * 10})
    drawn = page.plots(page.load(lines.results, lines.tables))
    assert sorted(drawn) == ["table1-error.svg", "table1-labels.svg", "table1-p.svg"]
    for svg in drawn.values():
        ElementTree.fromstring(svg)
    assert "STC self-tuned" in drawn["table1-error.svg"]
    assert "p = pDrop" in drawn["table1-p.svg"]
    assert drawn == page.plots(page.load(lines.results, lines.tables))


def test_the_recipe_that_the_guide_names_is_what_was_measured() -> None:
    table = Table.load("11")
    training = [*table.overrides, *table.methods["cube"]["train"], f"trainer.max_steps={table.steps}"]
    assert load_recipe("hooker-en@self-tuned").differences(load_recipe(table.recipe, training)) == []
