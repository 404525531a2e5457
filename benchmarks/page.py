"""From docs/results/cells.jsonl to the tables and plots of docs/RESULTS.md and docs/results/. `docs/build.py` calls it.

Only lines count whose commands are those of the tables in benchmarks/cells/ now; a cell that is missing is empty. Dev makes the
choices (which schedule is the best), test is what the tables show.
"""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.steps import BEST, FULL, TABLES, Record, Table, in_order
from benchmarks.work import current, read_lines

from starseq.config import load_recipe
from starseq.report.plots import histograms_svg, series_svg

IMAGES = "images"
"""folder of the plots, beside the page"""


@dataclass(frozen=True)
class Results:
    """A table and its finished cells."""

    table: Table
    lines: Sequence[Record]

    @cached_property
    def cells(self) -> dict[tuple[str, str], list[Record]]:
        """Lines by condition and method, one for every seed."""
        found: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for line in sorted(self.lines, key=lambda line: int(line["seed"])):
            found[line["condition"], line["method"]].append(line)
        return dict(found)

    def errors(self, condition: str, method: str | None, split: str = "test") -> list[float]:
        """Of every seed, in percent, by the method's own way of reading."""
        if method is None:
            return []
        how = reading(self.table.all_methods()[method])
        return [line["errors"][split][how][self.table.metric] for line in self.cells.get((condition, method), [])]

    @cached_property
    def supervised(self) -> float | None:
        found = self.errors(FULL, self.table.supervised)
        return statistics.fmean(found) if found else None

    def best(self, condition: str) -> str | None:
        return self.table.best_schedule(condition, self.lines) if self.table.schedules else None

    def rate(self, condition: str) -> float | None:
        """pDrop, where the condition has one for all labels."""
        return 0.0 if condition == FULL else self.table.conditions[condition].get("p-drop")


def load(results: Path | None = None, folder: Path = TABLES) -> list[Results]:
    lines = read_lines() if results is None else read_lines(results)
    tables = [Table.load(str(path)) for path in sorted(folder.glob("*.yaml"), key=in_order)]
    return [Results(table, current(table, lines)) for table in tables]


def reading(spec: Mapping[str, Any]) -> str:
    """How a method reads: greedily, by beam search, or rescored."""
    return "greedy" if "lm" not in spec else "rescored" if "rescore" in spec["lm"] else "beam"


# --- text -------------------------------------------------------------------------------------------------------------


def texts(results: Sequence[Results]) -> dict[str, str]:
    """What stands between the markers of the pages: `summary`, `time`, and the parts of each table, `table1`, `table1-runs`, ..."""
    found = {f"table{r.table.name}{part}": text for r in results for part, text in _parts(r).items()}
    return {**found, "summary": _summary(results), "time": _time(results)}


def _parts(results: Results) -> dict[str, str]:
    return {
        "": "\n\n".join(filter(None, (_main(results), _base(results), _aims(results)))),
        "-all": _all(results),
        "-schedules": _schedules(results),
        "-rules": _rules_against_schedules(results),
        "-pseudo": _pseudo(results),
        "-searches": _searches(results),
        "-runs": _runs(results),
        "-commands": _commands(results),
    }


def _summary(results: Sequence[Results]) -> str:
    """All corpora at one look: test errors of the methods that stand for what a user would do."""
    rows = []
    corpora = list(dict.fromkeys(r.table.corpus for r in results))
    for r in sorted(results, key=lambda r: corpora.index(r.table.corpus)):  # tables of a corpus stand together
        spec, title = dict(r.table.summary), f"{r.table.summary.get('title', '')}; {r.table.metric.upper()} %"
        for condition in r.table.conditions if spec else ():
            columns = ["ctc", "", "", "full"] if condition == FULL else ["ctc", "stc", "student", "read"]
            cells = [_percent(r.errors(condition, spec.get(column))) for column in columns]
            if condition == FULL or cells[1]:
                rows.append([title, _condition(condition), *cells])
                title = ""
    student = "CTC student of labels that STC completed"
    head = ["test error", "labels dropped", "CTC", "STC", student, "read with a language model"]
    return _markdown(head, rows)


def _main(results: Results) -> str:
    """Conditions by the methods of `columns`: test error, its multiple of the supervised one, and what was to be reached."""
    table = results.table
    rows = []
    for condition in _conditions(table):
        cells = []
        for method in table.shown():
            chosen = results.best(condition) if method == BEST else method
            cell = _cell(results, condition, chosen) if chosen else ""
            cells.append(f"{cell} ({_short(chosen)})" if cell and chosen and method == BEST else cell)
        rows.append([_condition(condition), *cells])
    return _markdown([f"labels dropped; test {table.metric.upper()} %", *table.shown().values()], rows)


def _all(results: Results) -> str:
    """Every method that was run, by conditions: test errors."""
    table = results.table
    conditions = _conditions(table)
    rows = []
    for method, spec in table.all_methods().items():
        if spec.get("labels"):
            continue
        cells = [_percent(results.errors(condition, method)) for condition in conditions]
        if any(cells):
            rows.append([f"`{method}`", str(spec.get("title", method)), *cells])
    return _markdown(["method", f"test {table.metric.upper()} %", *map(_condition, conditions)], rows)


def _conditions(table: Table) -> list[str]:
    """Those that are to be run, in the table's order."""
    return [c for c in table.conditions if any(c in block["conditions"] for block in table.runs)]


def _cell(results: Results, condition: str, method: str) -> str:
    """An error and its ratio; bold where the aim is reached, in italics where it is missed."""
    errors, base = results.errors(condition, method), results.supervised
    if not errors:
        return ""
    text = _percent(errors)
    if not base or (condition == FULL and method == results.table.supervised):
        return text
    mean = statistics.fmean(errors)
    ratio = mean / base
    text += f", {ratio:.0f} x" if ratio >= 10 else f", {ratio:.2f} x"
    aims = results.table.targets.get(method, {})
    aim = aims.get(condition, aims.get("*")) if condition != FULL else None
    if aim is None:
        return text
    points = results.table.or_points
    reached = mean <= aim * base or (points is not None and mean <= base + points)
    return f"**{text}**" if reached else f"*{text}*"


def _aims(results: Results) -> str:
    """What was to be reached, by the columns that have an aim."""
    table, columns = results.table, dict[str, list[str]]()
    for method, title in table.shown().items():
        said = [
            f"{aim:g} x{'' if place == '*' else f' at {place}'}" for place, aim in table.targets.get(method, {}).items()
        ]
        if said:
            points = "" if table.or_points is None else f", or {table.or_points:g} point more than the supervised model"
            columns.setdefault(", ".join(said) + points, []).append(title)
    if not columns:
        return ""
    lines = [f"- {aim}: {'; '.join(titles)}" for aim, titles in columns.items()]
    return "\n".join(["Aims, set in advance; bold: reached, italics: missed.", "", *lines])


def _base(results: Results) -> str:
    table, base = results.table, results.supervised
    notes = [table.note.strip()] if table.note else []
    if base is not None:
        model = table.methods[table.supervised].get("title", table.supervised)
        said = f"Ratios are to the supervised model, {model} on all labels: test {table.metric.upper()} {base:.2f} %"
        if table.base_at_most is not None:
            weak = "weaker than that, so read the ratios with care" if base > table.base_at_most else "met"
            said += f" (set in advance: at most {table.base_at_most:g} %; {weak})"
        notes.append(f"{said}.")
    sizes = {line["train"]["parameters"] for line in results.lines if "train" in line}
    if sizes:
        least, most = min(sizes), max(sizes)
        models = (
            f"Every model has {most:,} parameters" if least == most else f"Models have {least:,} to {most:,} parameters"
        )
        notes.append(f"{models} and {table.steps:,} steps of training.")
    return " ".join(note[:1].upper() + note[1:] for note in notes)


def _schedules(results: Results) -> str:
    """Dev errors of the hand-set schedules, of which the lowest is chosen, and of the rules that tune p: one seed."""
    table = results.table
    conditions = [c for c in _conditions(table) if any(results.errors(c, method, "dev") for method in table.grid())]
    rows = []
    for method, title in {**{m: f"p from {_short(m)}" for m in table.grid()}, **_rules(table)}.items():
        cells = [_percent(results.errors(condition, method, "dev")[:1]) for condition in conditions]
        chosen = [bool(cell) and method == results.best(c) for c, cell in zip(conditions, cells, strict=True)]
        if any(cells):
            marked = [f"**{cell}**" if best else cell for cell, best in zip(cells, chosen, strict=True)]
            rows.append([title, *marked])
    return _markdown([f"dev {table.metric.upper()} %, first seed", *map(_condition, conditions)], rows)


def _rules_against_schedules(results: Results) -> str:
    """The best schedule of the grid and the rules that tune p, test, where both have three seeds or more."""
    table = results.table
    best = {c: method for c in _conditions(table) if (method := results.best(c)) and len(results.errors(c, method)) > 2}
    if not best:
        return ""
    schedules = [f"{_percent(results.errors(c, method))} ({_short(method)})" for c, method in best.items()]
    rows = [["best schedule", *schedules]]
    for rule, title in _rules(table).items():
        cells = [_verdict(results.errors(c, rule), results.errors(c, method)) for c, method in best.items()]
        if any(cells):
            rows.append([title, *cells])
    return _markdown([f"test {table.metric.upper()} %, three seeds or more", *map(_condition, best)], rows)


def _verdict(own: Sequence[float], other: Sequence[float]) -> str:
    """As good is what differs by no more than the larger standard deviation."""
    if len(own) < 3:
        return ""
    spread = max(statistics.stdev(own), statistics.stdev(other))
    ahead = statistics.fmean(other) - statistics.fmean(own)
    return f"{_percent(own)}, {'better' if ahead > spread else 'as good' if ahead >= -spread else 'worse'}"


def _rules(table: Table) -> dict[str, str]:
    """The methods that differ from the schedules in how p is tuned alone, with their titles."""
    alike = {"criterion.name=stc", *table.schedules.get("train", ())}
    return {
        method: str(spec.get("title", method)).removeprefix("STC, p ")
        for method, spec in table.methods.items()
        if "from" not in spec
        and "penalty.name=adaptive" in spec.get("train", ())
        and all(setting in alike or setting.startswith("penalty.") for setting in spec["train"])
    }


def _pseudo(results: Results) -> str:
    """The pseudo-labels themselves, against the complete training texts, and what a student makes of them."""
    table, metric, rows = results.table, results.table.metric, []
    other = "wer" if metric == "cer" else "cer"
    methods = [method for method, spec in table.methods.items() if "pseudo" in spec]
    for condition in table.conditions:
        for method in methods:
            for line in results.cells.get((condition, method), [])[:1]:
                found = line["pseudo"]
                last = [c for m in line["made"] if m["stage"] == "pseudo" for c in m["commands"]][-1]
                words = shlex.split(last)
                options = dict(zip(words, words[1:], strict=False))
                kind = options["--kind"] + (", with a language model" if "--lm" in options else "")
                weights = [
                    f"{name} {options[f'--{name}']}" for name in ("alpha", "beta") if float(options.get(f"--{name}", 0))
                ]
                kind += "".join(f", {weight}" for weight in weights)
                kind += ", repeats merged" if "--merge-repeats" in words else ""
                spec = table.methods[method]
                teachers = [_title(table, spec["from"])]
                teachers += [f"{_title(table, name)} of seed {seed}" for name, seed in spec.get("also", ())]
                before, after = (found["errors"].get(name, {}).get(metric) for name in ("partial", "pseudo"))
                lost = found["rows"].get("failed", 0)
                share = _share(line, before) if _drops_labels(table) else None
                student = line["errors"]["test"][reading(spec)][other]
                rows.append([
                    _condition(condition), kind, " and ".join(teachers), *map(_number, (before, after, share)), f"{lost:,}",
                    *(_percent(results.errors(condition, method, split)[:1]) for split in ("dev", "test")),
                    _number(found["errors"].get("pseudo", {}).get(other)), _number(student),
                ])  # fmt: skip
    name = metric.upper()
    head = [
        "labels dropped",
        "pseudo-labels",
        "teacher",
        f"{name} % of the partial labels",
        f"{name} % of the pseudo-labels",
        "labels, % of the true number",
        "rows lost",
    ]
    head += [f"student, dev {name} %", f"student, test {name} %"]
    head += [f"{other.upper()} % of the pseudo-labels", f"student, test {other.upper()} %"]
    return _markdown(head, rows) if rows else ""


def _title(table: Table, method: str) -> str:
    return str(table.all_methods()[method].get("title", method))


def _searches(results: Results) -> str:
    """What a search without a language model brings: a weight for the length, and how repeats are read, greedily as well."""
    table, metric, rows = results.table, results.table.metric, []
    searched = {m: spec for m, spec in table.methods.items() if "lm" in spec and "text" not in spec["lm"]}
    for condition in table.conditions:
        for method, spec in sorted(searched.items(), key=lambda item: str(item[1]["from"])):
            for line in results.cells.get((condition, method), []):
                merged = "merged" if "--merge-repeats" in spec["lm"]["search"] else _repeats(table, spec["from"])
                found = [line["errors"]["test"][how][metric] for how in ("greedy", "beam")]
                rows.append([
                    _condition(condition), _title(table, spec["from"]), str(line["seed"]), merged,
                    f"{line['weights']['beta']:g}", *map(_number, found),
                ])  # fmt: skip
    name = metric.upper()
    head = [
        "labels dropped",
        "method",
        "seed",
        "repeats",
        "weight a token (beta)",
        f"test {name} %, greedy",
        f"test {name} %, search",
    ]
    return _markdown(head, rows) if rows else ""


def _repeats(table: Table, method: str) -> str:
    """How the criterion of a method has them."""
    train = table.all_methods()[method].get("train", ())
    return "kept" if _criterion(train) in ("stc", "selfless_ctc") else "as in CTC"


def _share(line: Record, partial: float | None) -> float | None:
    """How many pseudo-labels there are, in percent of the complete labels of these rows."""
    if "labels" not in line or partial is None or partial >= 100:
        return None
    complete = line["labels"]["kept"] / (1 - partial / 100)  # rows that lost everything are not among these
    return float(100 * (line["pseudo"]["labels"]["known"] + line["pseudo"]["labels"]["added"]) / complete)


def _drops_labels(table: Table) -> bool:
    """Whether what is dropped are labels, and not words where labels are letters."""
    return bool(load_recipe(table.recipe).text.unit == table.drop["unit"])


def _runs(results: Results) -> str:
    """What every number is of: seed, steps, weights, time, machine, commit."""
    rows = []
    for line in results.lines:
        if "train" not in line:
            continue
        train, how = line["train"], reading(results.table.all_methods()[line["method"]])
        made = _made(line)
        weights = line.get("weights") if how != "greedy" else None
        read = how if weights is None else f"{how}, {weights['alpha']:g}, {weights['beta']:g}"
        rows.append([
            line["condition"], line["method"], str(line["seed"]), read,
            *(_number(line["errors"][split][how][rate]) for rate in ("wer", "cer") for split in ("dev", "test")),
            f"{train['steps']:,}", f"{train['best_step']:,}", _number(train["p"]), f"{train['seconds']:,.0f}",
            _machine(made), made["commit"], made["ended"].split()[0],
        ])  # fmt: skip
    head = [
        "labels dropped", "method", "seed", "read", "dev WER", "test WER", "dev CER", "test CER", "steps", "best at",
        "p at the end", "training, s", "machine", "commit", "day",
    ]  # fmt: skip
    return _markdown(head, rows)


def _commands(results: Results) -> str:
    """What every number was made by; a step that cells share stands once."""
    steps = dict[str, str]()
    for line in results.lines:
        name = f"{line['condition']}/{line['method']}/{line['seed']}"
        for made in line["made"]:
            commands = "\n".join(made["commands"])
            steps.setdefault(commands, f"# {name}: {made['stage']}, {_spent(made)} on {_machine(made)}")
    return "\n".join(["```", *(f"{title}\n{commands}" for commands, title in steps.items()), "```"])


def _spent(made: Record) -> str:
    cpu = made.get("cpu_seconds")
    return f"{made['seconds']:,.0f} s" + (f" ({cpu:,.0f} s of CPU)" if cpu is not None else "")


def _machine(made: Record) -> str:
    return made["machine"] if made["jobs"] == 1 else f"{made['machine']}, {made['jobs']} side by side"


def _time(results: Sequence[Results]) -> str:
    """Steps per second with STC, plain and lasting, over CTC: means of trainings that ran beside one another."""
    rows = []
    for r in results:
        for condition in r.table.conditions:
            for kind, title in {"stc": "STC", "lasting_stc": "lasting STC"}.items():
                for base, own, ctc in _side_by_side(r, condition, kind):
                    before, after = (
                        statistics.fmean(line["train"]["steps_per_second"] for line in lines) for lines in (ctc, own)
                    )
                    labels = "" if base == condition else " (on all labels)"
                    made = _made(own[0])
                    rows.append([
                        r.table.name, r.table.corpus, _condition(condition), title, _machine(made), made["commit"],
                        f"{before:.2f}{labels}", f"{after:.2f}", f"{after / before:.2f}",
                    ])  # fmt: skip
    head = [
        "table",
        "corpus",
        "labels dropped",
        "criterion",
        "machine",
        "commit",
        "CTC, steps/s",
        "its own",
        "its own over CTC",
    ]
    return _markdown(head, rows)


def _side_by_side(results: Results, condition: str, kind: str) -> list[tuple[str, list[Record], list[Record]]]:
    """The trainings with a criterion, and those of CTC that they ran beside, with the condition of the latter: the same or, where
    there are none, all labels."""
    found: dict[tuple[str, ...], tuple[str, list[Record], list[Record]]] = {}
    for line in _timed(results, condition, kind):
        for base in dict.fromkeys((condition, FULL)):
            ctc = [other for other in _timed(results, base, "ctc") if _at_once(line, other)]
            if ctc:
                found.setdefault((base, *(other["key"] for other in ctc)), (base, [], ctc))[1].append(line)
                break
    return list(found.values())


def _timed(results: Results, condition: str, kind: str) -> list[Record]:
    """Trainings with a criterion that differ from those of CTC in it and its penalty alone."""
    methods = results.table.all_methods()
    base = _rest(methods[results.table.supervised]["train"])
    return [
        line
        for (where, method), lines in results.cells.items()
        if where == condition and "from" not in methods[method] and "train" in methods[method]
        if _criterion(train := methods[method]["train"]) == kind and _rest(train) == base
        for line in lines
        if line["train"]["steps_per_second"] is not None
    ]


def _rest(train: Sequence[str]) -> set[str]:
    return {setting for setting in train if not setting.startswith(("criterion.name=", "penalty."))}


def _criterion(train: Sequence[str]) -> str:
    return [setting.partition("=")[2] for setting in train if setting.startswith("criterion.name=")][-1]


def _at_once(one: Record, other: Record) -> bool:
    """Whether two trainings ran on one machine, beside one another for nine tenths of the shorter one."""
    first, second = _made(one), _made(other)
    if (_machine(first), first["commit"]) != (_machine(second), second["commit"]):
        return False
    ends = [datetime.fromisoformat(made["ended"]) for made in (first, second)]
    begins = [end - timedelta(seconds=made["seconds"]) for end, made in zip(ends, (first, second), strict=True)]
    together = (min(ends) - max(begins)).total_seconds()
    return together >= 0.9 * min(first["seconds"], second["seconds"]) - _ROUNDED


_ROUNDED = 60
"""Seconds: the end of a training is kept to the minute."""


def _made(line: Record) -> Record:
    """The step that trained what a line is of."""
    return [made for made in line["made"] if made["stage"] == "train"][-1]


def _percent(errors: Sequence[float]) -> str:
    if not errors:
        return ""
    mean = statistics.fmean(errors)
    return _number(mean) if len(errors) == 1 else f"{_number(mean)} ± {_number(statistics.stdev(errors))}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _condition(condition: str) -> str:
    return "none" if condition == FULL else condition.replace("-", " ")


def _short(method: str) -> str:
    p0, p_max = method.split("-")[1:]
    return f"{p0.removeprefix('0')} to {p_max.removeprefix('0')}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- plots ------------------------------------------------------------------------------------------------------------


def plots(results: Sequence[Results]) -> dict[str, str]:
    """By file name, the SVG of every plot that there are numbers for."""
    return {name: draw() for r in results for name, (_, draw) in _plots_of(r).items()}


def _plots_of(results: Results) -> dict[str, tuple[str, Any]]:
    """By file name: what it shows, and the function that draws it."""
    table, found = results.table, dict[str, tuple[str, Any]]()
    if not any(results.rate(condition) for condition in table.conditions):
        return {}
    curves = _curves(results)
    if any(len(points) > 1 for points in curves.values()):
        metric = f"test {table.metric.upper()}, %"
        title = f"{table.corpus}: error against the share of labels that was dropped"
        found[f"table{table.name}-error.svg"] = (title, lambda: series_svg(curves, x="pDrop", y=metric, log=True))
    learned = {
        title: sorted(
            (rate, statistics.fmean(known))
            for (condition, tuned), lines in results.cells.items()
            if tuned == method and (rate := results.rate(condition)) is not None
            if (known := [line["train"]["p"] for line in lines if line["train"]["p"] is not None])
        )
        for method, title in _rules(table).items()
    }
    learned = {title: points for title, points in learned.items() if len(points) > 1}
    if learned:
        name, title = (
            f"table{table.name}-p.svg",
            f"{table.corpus}: the weight p that was learned against the true share",
        )
        found[name] = (
            title,
            lambda: series_svg(learned, x="pDrop", y="p at the end of training", diagonal="p = pDrop"),
        )
    kept = {
        _condition(condition) if results.rate(condition) is None else f"pDrop {condition}": lines[0]["labels"][
            "histogram"
        ]
        for condition in table.conditions
        if (lines := results.cells.get((condition, "labels")))
    }
    if kept:
        title = f"{table.corpus}: share of labels kept per sample"
        found[f"table{table.name}-labels.svg"] = (title, lambda: histograms_svg(kept, x="labels kept, %", y="samples"))
    return found


def _curves(results: Results) -> dict[str, list[tuple[float, float]]]:
    table, curves = results.table, dict[str, list[tuple[float, float]]]()
    for method, title in table.shown().items():
        points = [
            (rate, statistics.fmean(errors))
            for condition in table.conditions
            if (rate := results.rate(condition)) is not None
            and (errors := results.errors(condition, results.best(condition) if method == BEST else method))
        ]
        if points:
            curves[title] = points
    return curves
