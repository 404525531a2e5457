"""From docs/results/cells.jsonl to the tables and plots of docs/RESULTS.md. `docs/build.py` calls it.

Only lines count whose commands are those of the tables in benchmarks/cells/ now; a cell that is missing is empty. Dev makes the
choices (which schedule is the best), test is what the tables show. What is behind every number stands below its table.
"""

from __future__ import annotations

import shlex
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.steps import FULL, TABLES, Record, Table
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
    tables = [Table.load(str(path)) for path in sorted(folder.glob("*.yaml"))]
    return [Results(table, current(table, lines)) for table in tables]


def reading(spec: Mapping[str, Any]) -> str:
    """How a method reads: greedily, by beam search, or rescored."""
    return "greedy" if "lm" not in spec else "rescored" if "rescore" in spec["lm"] else "beam"


# --- text -------------------------------------------------------------------------------------------------------------


def texts(results: Sequence[Results]) -> dict[str, str]:
    """What stands between the markers of the page: `table1` and so on, `summary` and `time`."""
    found = {f"table{r.table.name}": _text(r) for r in results}
    return {**found, "summary": _summary(results), "time": _time(results)}


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


def _text(results: Results) -> str:
    kinds = [m for m, spec in results.table.methods.items() if "pseudo" in spec]
    parts = [_main(results), _base(results)]
    if results.table.schedules and any("best" in block["methods"] for block in results.table.runs):
        parts.append(_schedules(results))
    if kinds:
        parts.append(_pseudo(results, kinds))
    parts.append(_searches(results))
    parts += [f"![{title}]({IMAGES}/{name})" for name, (title, _) in _plots_of(results).items()]
    parts.append(_how(results))
    return "\n\n".join(filter(None, parts))


def _main(results: Results) -> str:
    """Conditions by methods: test error, its multiple of the supervised one, and what was to be reached."""
    table, metric = results.table, results.table.metric.upper()
    used = {method for block in table.runs for method in block["methods"]}
    methods = [m for m, spec in table.methods.items() if m in used and not (spec.get("labels") or spec.get("tried"))]
    titles = [str(table.methods[method].get("title", method)) for method in methods]
    has_grid = "best" in used
    if has_grid:
        titles.insert(1, "STC, best schedule")
    conditions = [c for c in table.conditions if any(c in block["conditions"] for block in table.runs)]
    rows = []
    for condition in conditions:
        cells = [_cell(results, condition, method) for method in methods]
        if has_grid:
            best = results.best(condition)
            cells.insert(1, f"{_cell(results, condition, best)} ({_short(best)})" if best else "")
        rows.append([_condition(condition), *cells])
    return _markdown([f"labels dropped; test {metric} %", *titles], rows)


def _cell(results: Results, condition: str, method: str) -> str:
    errors, base = results.errors(condition, method), results.supervised
    if not errors:
        return ""
    text = _percent(errors)
    if base is None or not base or (condition == FULL and method == results.table.supervised):
        return text
    mean = statistics.fmean(errors)
    aims = results.table.targets.get(method, {})
    aim = aims.get(condition, aims.get("*")) if condition != FULL else None
    text += f", {mean / base:.2f} x"
    if aim is None:
        return text
    points = results.table.or_points
    reached = mean <= aim * base or (points is not None and mean <= base + points)
    either = "" if points is None else f" or + {points:g}"
    return f"{text} (aim {aim:g} x{either}: {'reached' if reached else 'missed'})"


def _base(results: Results) -> str:
    table, base = results.table, results.supervised
    notes = [table.note.strip()] if table.note else []
    if base is not None:
        model = table.methods[table.supervised].get("title", table.supervised)
        said = f"Ratios are to the supervised model, {model} on all labels: test {table.metric.upper()} {base:.2f} %"
        if table.base_at_most is not None:
            weak = "weaker than that, so read the ratios with care" if base > table.base_at_most else "met"
            said += f" (at most {table.base_at_most:g} % was asked of it: {weak})"
        notes.append(f"{said}.")
    sizes = {line["train"]["parameters"] for line in results.lines if "train" in line}
    if sizes:
        sized = " and ".join(f"{size:,}" for size in sorted(sizes))
        models = f"Every model has {sized} parameters" if len(sizes) == 1 else f"Models have {sized} parameters"
        notes.append(f"{models} and {table.steps:,} steps of training.")
    return " ".join(note[:1].upper() + note[1:] for note in notes)


def _schedules(results: Results) -> str:
    """Dev errors of the grid, which choose, and of rules that were tried; the best of the grid against the self-tuned penalty, by
    three seeds on test."""
    table, grid = results.table, list(results.table.grid())
    rules = _rules(table)
    conditions = [
        c for c in table.conditions if any(c in b["conditions"] and set(grid) & set(b["methods"]) for b in table.runs)
    ]
    tried = [
        method
        for method in rules
        if table.methods[method].get("tried") and any(results.errors(c, method, "dev") for c in conditions)
    ]
    rows = []
    for condition in conditions:
        best = results.best(condition)
        cells = [_percent(results.errors(condition, method, "dev")[:1]) for method in grid]
        cells = [f"**{cell}**" if cell and method == best else cell for method, cell in zip(grid, cells, strict=True)]
        own = [_percent(results.errors(condition, method, "dev")[:1]) for method in ("stc", *tried)]
        verdicts = [_verdict(results, condition, best, method, title) for method, title in rules.items()]
        rows.append([_condition(condition), *cells, *own, "; ".join(filter(None, verdicts))])
    head = [
        f"dev {table.metric.upper()} %, first seed",
        *(_short(method) for method in grid),
        "self-tuned",
        *(rules[method] for method in tried),
    ]
    return _markdown([*head, "self-tuned against the best schedule, test, three seeds"], rows)


def _rules(table: Table) -> dict[str, str]:
    """The methods in which the penalty tunes itself and the loss is that of the schedules, with their titles."""
    return {
        method: str(spec.get("title", method)).removeprefix("STC ")
        for method, spec in table.methods.items()
        if "from" not in spec
        and "penalty.name=adaptive" in spec.get("train", ())
        and all(setting == "criterion.name=stc" for setting in spec["train"] if setting.startswith("criterion."))
    }


def _verdict(results: Results, condition: str, best: str | None, method: str, title: str) -> str:
    own, other = results.errors(condition, method), results.errors(condition, best)
    if len(own) < 3 or len(other) < 3:
        return ""
    spread = max(statistics.stdev(own), statistics.stdev(other))
    ahead = statistics.fmean(other) - statistics.fmean(own)
    word = "better" if ahead > spread else "as good" if ahead >= -spread else "worse"
    return f"{title} {_percent(own)} against {_percent(other)}: {word}"


def _pseudo(results: Results, methods: Sequence[str]) -> str:
    """The pseudo-labels themselves, against the complete training texts, and what a student makes of them."""
    metric, rows = results.table.metric, []
    for condition in results.table.conditions:
        for method in methods:
            for line in results.cells.get((condition, method), [])[:1]:
                found = line["pseudo"]
                last = [c for m in line["made"] if m["stage"] == "pseudo" for c in m["commands"]][-1]
                words = shlex.split(last)
                options = dict(zip(words, words[1:], strict=False))
                kind = options["--kind"] + (", with a language model" if "--lm" in options else "")
                weights = [options[name] for name in ("--alpha", "--beta") if float(options.get(name, 0))]
                kind += f" at {' and '.join(weights)}" if weights else ""
                kind += ", repeats merged" if "--merge-repeats" in words else ""
                spec = results.table.methods[method]
                teachers = [str(spec["from"]), *(f"{name} of seed {seed}" for name, seed in spec.get("also", ()))]
                before, after = (found["errors"].get(name, {}).get(metric) for name in ("partial", "pseudo"))
                lost = found["rows"].get("failed", 0)
                share = _share(line, before) if _drops_labels(results.table) else None
                rows.append([
                    _condition(condition), kind, ", ".join(teachers), _number(before), _number(after), _number(share), f"{lost:,}",
                    *(_percent(results.errors(condition, method, split)[:1]) for split in ("dev", "test")),
                ])  # fmt: skip
    name = metric.upper()
    head = [
        "labels dropped",
        "pseudo-labels",
        "of",
        f"{name} % of the partial labels",
        f"{name} % of the pseudo-labels",
        "as many as % of the complete",
        "rows lost",
    ]
    return _markdown([*head, f"student, dev {name} %", f"student, test {name} %"], rows) if rows else ""


def _searches(results: Results) -> str:
    """What a search without a language model brings: a weight for the length, and how repeats are read, greedily as well."""
    table, metric, rows = results.table, results.table.metric, []
    searched = {m: spec for m, spec in table.methods.items() if "lm" in spec and "text" not in spec["lm"]}
    for condition in table.conditions:
        for method, spec in searched.items():
            for line in results.cells.get((condition, method), []):
                merged = "merged" if "--merge-repeats" in spec["lm"]["search"] else "by the criterion"
                found = [line["errors"]["test"][how][metric] for how in ("greedy", "beam")]
                rows.append([
                    _condition(condition), str(spec["from"]), str(line["seed"]), merged,
                    f"{line['weights']['beta']:g}", *map(_number, found),
                ])  # fmt: skip
    rows.sort(key=lambda row: row[1:3])
    rows.sort(key=lambda row: [_condition(condition) for condition in table.conditions].index(row[0]))
    name = metric.upper()
    head = ["labels dropped", "method", "seed", "repeats", "beta", f"test {name} %, greedy", f"test {name} %, search"]
    return _markdown(head, rows) if rows else ""


def _share(line: Record, partial: float | None) -> float | None:
    """How many pseudo-labels there are, in percent of the complete labels of these rows."""
    if "labels" not in line or partial is None or partial >= 100:
        return None
    complete = line["labels"]["kept"] / (1 - partial / 100)  # rows that lost everything are not among these
    return float(100 * (line["pseudo"]["labels"]["known"] + line["pseudo"]["labels"]["added"]) / complete)


def _drops_labels(table: Table) -> bool:
    """Whether what is dropped are labels, and not words where labels are letters."""
    return bool(load_recipe(table.recipe).text.unit == table.drop["unit"])


def _how(results: Results) -> str:
    """What every number comes from: command, seed, steps, time, machine."""
    rows, commands = [], []
    for line in results.lines:
        name = f"{line['condition']}/{line['method']}/{line['seed']}"
        train = line.get("train", {})
        for made in line["made"]:
            commands += [f"# {name}: {made['stage']}, {_spent(made)} on {_machine(made)}", *made["commands"]]
        if not train:
            continue
        how = reading(results.table.all_methods()[line["method"]])
        last = [made for made in line["made"] if made["stage"] == "train"][-1]
        weights = line.get("weights") if how != "greedy" else None
        read = how if weights is None else f"{how}, {weights['alpha']:g}, {weights['beta']:g}"
        rows.append([
            line["condition"], line["method"], str(line["seed"]), read,
            *(_number(line["errors"][split][how][rate]) for rate in ("wer", "cer") for split in ("dev", "test")),
            f"{train['steps']:,}", f"{train['best_step']:,}", _number(train["p"]), f"{train['seconds']:,.0f}",
            _machine(last), line["commit"], line["ended"].split()[0],
        ])  # fmt: skip
    if not rows and not commands:
        return ""
    head = [
        "labels dropped", "method", "seed", "read", "dev WER", "test WER", "dev CER", "test CER", "steps", "best at",
        "p at the end", "training, s", "machine", "commit", "day",
    ]  # fmt: skip
    table = _markdown(head, rows)
    listing = "\n".join(commands)
    many = f"{len(results.lines)} cells" if len(results.lines) != 1 else "1 cell"
    return (
        f"<details><summary>How each number was made ({many})</summary>\n\n{table}\n\n"
        f"The commands, in a work folder whose `data` holds the corpora:\n\n```\n{listing}\n```\n\n</details>"
    )


def _spent(made: Record) -> str:
    cpu = made.get("cpu_seconds")
    return f"{made['seconds']:,.0f} s" + (f" ({cpu:,.0f} s of CPU)" if cpu is not None else "")


def _machine(made: Record) -> str:
    return made["machine"] if made["jobs"] == 1 else f"{made['machine']}, {made['jobs']} side by side"


def _time(results: Sequence[Results]) -> str:
    """Steps per second with STC over CTC: cells of the same machine, with as many side by side."""
    rows = []
    for r in results:
        for condition in r.table.conditions:
            speeds: dict[str, dict[str, float]] = {"ctc": {}, "stc": {}}
            for (where, method), lines in r.cells.items():
                kind = method.split("-")[0]
                if where != condition or kind not in speeds:
                    continue
                for line in lines:
                    last = [made for made in line["made"] if made["stage"] == "train"][-1]
                    if line["train"]["steps_per_second"] is not None:
                        speeds[kind].setdefault(_machine(last), line["train"]["steps_per_second"])
            for machine in speeds["ctc"].keys() & speeds["stc"].keys():
                ctc, stc = speeds["ctc"][machine], speeds["stc"][machine]
                rows.append(
                    [r.table.corpus, _condition(condition), machine, f"{ctc:.2f}", f"{stc:.2f}", f"{stc / ctc:.2f}"]
                )
    return _markdown(["corpus", "labels dropped", "machine", "CTC, steps/s", "STC, steps/s", "STC over CTC"], rows)


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
        if not table.methods[method].get("tried")
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
    columns: dict[str, Any] = {
        str(spec.get("title", method)): lambda condition, method=method: method
        for method, spec in table.methods.items()
        if not (spec.get("labels") or spec.get("tried"))
    }
    if table.schedules:
        columns["STC, best schedule"] = results.best
    for title, method_at in columns.items():
        points = [
            (rate, statistics.fmean(errors))
            for condition in table.conditions
            if (rate := results.rate(condition)) is not None
            and (errors := results.errors(condition, method_at(condition)))
        ]
        if points:
            curves[title] = points
    return curves
