"""The comparisons of `smolsum stats`: reports of rows, as tables, Markdown, CSV and JSON."""

import json
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

import polars as pl

from smolsum import console
from smolsum.files import finite
from smolsum.results.score_columns import Arm, check_comparable, shared_metrics
from smolsum.stats.paired import (
    ALPHA,
    CONFIDENCE,
    POWER,
    Alternative,
    CrossChecks,
    compare_runs,
    cross_checks,
    mcnemar,
    smallest_detectable,
)
from smolsum.stats.several import benjamini_hochberg, correlate, count_tests, holm

Format = Literal["table", "md", "csv", "json"]
Row: TypeAlias = dict[str, Any]

SCHEMA_VERSION = 1
_NOTE_WIDTH = 80
_RESULT_COLUMNS = ("n", "missing", "mean_a", "mean_b", "delta", "ci_low", "ci_high", "t", "df", "p", "sd", "se", "d_z")
_NOTE_TEXTS = {
    "identical": "a and b are equal in every pair",
    "constant": "every pair differs by the same amount",
    "too few": "fewer than two pairs are complete",
}


@dataclass(frozen=True)
class Options:
    """Options of every test of a report."""

    metrics: tuple[str, ...] = ()
    """empty for all metrics that every file has"""
    alternative: Alternative = "two-sided"
    matched: bool = False
    seed: int = 0
    """of random flips and resamples"""


@dataclass(frozen=True)
class ResultSection:
    """Some columns of some rows, as one table."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Report:
    """Rows of unrounded numbers, with the sections that show them."""

    kind: str
    head: dict[str, Any]
    """what was compared and how"""
    sections: Sequence[ResultSection]
    rows: Sequence[Row]
    notes: Sequence[str]


def compare_two(a: Arm, b: Arm, options: Options) -> Report:
    """Return b - a in every metric: the t-test and its checks."""
    check_comparable([a, b])
    metrics = shared_metrics([a, b], options.metrics)
    rows = _adjusted([{"metric": metric, **_tests(metric, a, b, options, checked=True)} for metric in metrics])
    several = len(a.members) + len(b.members) > 2
    ranks = () if several else ("wilcoxon_p", "sign_flip_p")
    changes = () if several else ("bootstrap", "gained", "lost", "mcnemar_p")
    sections = [
        ResultSection("difference", ("metric", "mean_a", "mean_b", "delta", "interval", "t", "p"), rows),
        ResultSection("strength", ("metric", "d_z", "p_holm", "p_bh", *ranks, "detectable"), rows),
        ResultSection("pairs", ("metric", "n", "missing", *changes), rows),
        *([_runs_section("metric", rows, options)] if several else []),
    ]
    checks = "Wilcoxon, sign flip: p of the same question by ranks and by random signs; bootstrap: 95 % interval (BCa)"
    notes = [*_notes(options, rows, several), *([] if several else [checks]), *_asides(rows, "metric")]
    return Report("paired", _head([a, b], options, rows), sections, rows, notes)


def against_baseline(baseline: Arm, arms: Sequence[Arm], options: Options) -> Report:
    """Return each arm minus the baseline in every metric, p values adjusted over all of them."""
    everyone = [baseline, *arms]
    check_comparable(everyone)
    metrics = shared_metrics(everyone, options.metrics)
    rows = _adjusted(
        [
            {"metric": metric, "run": arm.name, **_tests(metric, baseline, arm, options)}
            for metric in metrics
            for arm in arms
        ]
    )
    several = any(len(arm.members) > 1 for arm in everyone)
    sections = []
    for metric in metrics:
        of_metric = [row for row in rows if row["metric"] == metric]
        # left-out pairs change the baseline's mean from row to row
        gaps = any(row["missing"] for row in of_metric)
        columns = ("run", *(("mean_a",) if gaps else ()), "mean_b", "delta", "t", "p", "p_holm", "p_bh", "d_z")
        title = metric if gaps else f"{metric}, baseline {figure(of_metric[0]['mean_a'])}"
        sections.append(ResultSection(title, (*columns, "interval", "n", "missing"), of_metric))
        if any(row["gained"] is not None for row in of_metric):
            sections.append(ResultSection(f"{metric}, changes", ("run", "gained", "lost", "mcnemar_p"), of_metric))
        if several:
            sections.append(_runs_section("run", of_metric, options))
    notes = [*_notes(options, rows, several), *_asides(rows, "run", "metric")]
    return Report("vs-baseline", _head(everyone, options, rows), sections, rows, notes)


def correlations(arms: Sequence[Arm], options: Options) -> Report:
    """Return Pearson's r of every two metrics over all examples of all evaluations."""
    members = [member for arm in arms for member in arm.members]
    metrics = shared_metrics(arms, options.metrics)
    rows = [asdict(pair) for pair in correlate([member.frame for member in members], metrics)]
    sections = [ResultSection("Pearson correlation", ("x", "y", "n", "missing", "r", "r_within"), rows)]
    return Report(
        "correlations",
        {"files": [str(member.path) for member in members]},
        sections,
        rows,
        [
            f"r: all examples of all {len(members)} evaluations pooled, as in the study's Figure 1",
            "pooled rows repeat the same examples and mix differences between evaluations with those between examples, "
            "so they are not independent and r has no p value here",
            "within: the same after each evaluation's own mean is taken off, so only examples differ",
            "a metric that does not vary has no correlation (-)",
        ],
    )


def _tests(metric: str, a: Arm, b: Arm, options: Options, *, checked: bool = False) -> Row:
    """The tests of b - a in a metric, with the cross-checks if `checked`.

    Cross-checks and McNemar's test count examples only: they are None where an arm has several runs, which vary too.
    """
    values_a, values_b = (arm.values(metric, a.ids) for arm in (a, b))
    found = compare_runs(values_a, values_b, alternative=options.alternative, matched=options.matched)
    means = values_a.mean(axis=0), values_b.mean(axis=0)
    several = len(a.members) + len(b.members) > 2
    flips = None if several else mcnemar(*means, alternative=options.alternative)
    checks: Row = {}
    if checked and several:
        checks = dict.fromkeys(field.name for field in fields(CrossChecks))
    elif checked:
        checks = asdict(cross_checks(*means, alternative=options.alternative, seed=options.seed))
    result = found.result
    return {
        **{name: getattr(result, name) for name in _RESULT_COLUMNS},
        "detectable": smallest_detectable(result.se, result.df, alternative=result.alternative),
        "p_these_runs": found.these_runs.p,
        "run_sd_a": found.run_sd_a,
        "run_sd_b": found.run_sd_b,
        "run_sd_delta": found.run_sd_delta,
        "note": result.note,
        **checks,
        "gained": flips.gained if flips else None,
        "lost": flips.lost if flips else None,
        "mcnemar_p": flips.p if flips else None,
    }


def _adjusted(rows: list[Row]) -> list[Row]:
    """The rows with p values adjusted over all of them."""
    p_values = [row["p"] for row in rows]
    adjusted = zip(rows, holm(p_values), benjamini_hochberg(p_values), strict=True)
    return [row | {"p_holm": by_holm, "p_bh": by_bh} for row, by_holm, by_bh in adjusted]


def _head(arms: Sequence[Arm], options: Options, rows: Sequence[Row]) -> dict[str, Any]:
    """What was compared and how, for the head of a report. Of split, data and judge what all evaluations state."""
    members = [member for arm in arms for member in arm.members]
    first = members[0]
    common = {
        key: first.origin.get(key) if all(member.origin.get(key) is not None for member in members) else None
        for key in ("split", "data", "judge")
    }
    a, *b = [{"name": arm.name, "files": [str(member.path) for member in arm.members]} for arm in arms]
    return {
        "a": a,
        "b": b,
        "direction": "b - a",
        "examples": first.frame.height,
        **common,
        "alternative": options.alternative,
        "matched": options.matched,
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
        "power": POWER,
        "tests": count_tests([row["p"] for row in rows]),
        "seed": options.seed,
    }


def _runs_section(key: str, rows: Sequence[Row], options: Options) -> ResultSection:
    spread = ("run_sd_delta",) if options.matched else ()
    return ResultSection("between runs", (key, "run_sd_a", "run_sd_b", *spread, "df", "p_these_runs"), rows)


def _notes(options: Options, rows: Sequence[Row], several: bool) -> list[str]:
    meant = {"two-sided": "b differs from a", "greater": "b is greater than a", "less": "b is less than a"}
    tests = count_tests([row["p"] for row in rows])
    notes = [
        f"* p < {ALPHA}; {options.alternative} paired t-test: {meant[options.alternative]}; interval: 95 %"
        + ("" if options.alternative == "two-sided" else ", one-sided like the test"),
        f"Holm, BH: p adjusted for all {tests} tests here; BH holds the share of false finds",
        "d_z: difference / sd of differences; min: the true difference found with 80 % power at 5 %",
    ]
    if any(row["missing"] for row in rows):
        notes.append("missing: pairs left out of that metric alone, as an arm has no finite value")
    if several:
        notes.append(
            "an arm of several runs is its mean per example; t, p and the interval count runs and examples as samples; "
            "'these runs' counts examples only, says nothing about other runs, and so has no star. An arm of one run "
            "cannot show how much its training varies"
        )
    return notes


def _asides(rows: Sequence[Row], *keys: str) -> list[str]:
    """Notes on metrics that are 0 or 1, and on tests that are undefined."""
    flips = "gained, lost: no to yes, yes to no, with McNemar's exact p, for metrics that are 0 or 1"
    found = [flips] if any(row["gained"] is not None for row in rows) else []
    return found + [f"{', '.join(row[key] for key in keys)}: {_NOTE_TEXTS[row['note']]}" for row in rows if row["note"]]


def show(report: Report, form: Format) -> None:
    """Print a report to stdout; the notes of CSV go to stderr."""
    {"table": _table, "md": _markdown, "csv": _csv, "json": _json}[form](report)


def figure(value: float | int | None) -> str:
    """Return a number with at most four decimals; `-` for None and NaN."""
    if value is None or math.isnan(value):
        return "-"
    if isinstance(value, int) or math.isinf(value):
        return str(value)
    size = abs(value)
    if 0 < size < 0.0001 or size >= 1e6:
        return f"{value:.1e}"
    return f"{value:.{max(0, 4 - max(0, len(str(int(size))) - 1))}f}"


def signed(value: float | None) -> str:
    """Return `figure` with a plus sign for positive numbers."""
    text = figure(value)
    return f"+{text}" if value is not None and value > 0 else text


def p_value(value: float | None) -> str:
    """Return a p value, with a star below 0.05."""
    text = p_without_star(value)
    return f"{text} *" if value is not None and value < 0.05 else text


def p_without_star(value: float | None) -> str:
    """Return a p value that decides nothing."""
    return f"{value:.1e}" if value is not None and 0 < value < 0.0001 else figure(value)


def _interval(row: Row, low: str, high: str) -> str:
    if row[low] is None or math.isnan(row[low]):
        return "-"
    return f"{figure(row[low])}, {figure(row[high])}"


_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "metric": ("metric", str),
    "run": ("run", str),
    "x": ("metric", str),
    "y": ("and", str),
    "n": ("n", figure),
    "missing": ("missing", figure),
    "mean_a": ("a", figure),
    "mean_b": ("b", figure),
    "delta": ("b - a", signed),
    "t": ("t", figure),
    "df": ("df", figure),
    "p": ("p", p_value),
    "p_holm": ("p Holm", p_value),
    "p_bh": ("p BH", p_value),
    "d_z": ("d_z", signed),
    "detectable": ("min", figure),
    "wilcoxon_p": ("Wilcoxon", p_value),
    "sign_flip_p": ("sign flip", p_value),
    "gained": ("gained", figure),
    "lost": ("lost", figure),
    "mcnemar_p": ("McNemar", p_value),
    "run_sd_a": ("run sd a", figure),
    "run_sd_b": ("run sd b", figure),
    "run_sd_delta": ("run sd b - a", figure),
    "p_these_runs": ("p these runs", p_without_star),
    "r": ("r", signed),
    "r_within": ("within", signed),
}
_INTERVALS = {
    "interval": ("95 % interval", "ci_low", "ci_high"),
    "bootstrap": ("bootstrap 95 %", "bootstrap_low", "bootstrap_high"),
}


def _cells(section: ResultSection) -> tuple[list[str], list[list[str]]]:
    """A section's column titles and rows of text, without optional columns that are empty."""
    titles, columns = [], []
    for key in section.columns:
        if key in _INTERVALS:
            title, low, high = _INTERVALS[key]
            cells = [_interval(row, low, high) for row in section.rows]
        else:
            title, text = _COLUMNS[key]
            cells = [text(row[key]) for row in section.rows]
        if all(cell == "-" for cell in cells) and key in ("gained", "lost", "mcnemar_p", "run_sd_a", "run_sd_b"):
            continue
        titles.append(title)
        columns.append(cells)
    return titles, [list(row) for row in zip(*columns, strict=True)]


def _heading(report: Report) -> list[str]:
    """The lines that say what was compared."""
    head = report.head
    if report.kind == "correlations":
        return [f"{len(head['files'])} evaluations: {', '.join(head['files'])}"]
    origin = "".join(f", {key} {head[key]}" for key in ("split", "judge") if isinstance(head[key], str))
    b = head["b"][0]["name"] if report.kind == "paired" else "each run"
    return [f"a = {head['a']['name']}", f"b = {b}", f"{head['examples']} examples{origin}"]


def _table(report: Report) -> None:
    for line in _heading(report):
        console.data(line)
    for section in report.sections:
        columns, rows = _cells(section)
        console.data(f"\n{section.title}")
        console.data_table(columns, rows)
    console.data("")
    for note in report.notes:
        console.data(textwrap.fill(note, _NOTE_WIDTH, subsequent_indent="  "))


def _markdown(report: Report) -> None:
    for line in _heading(report):
        console.data(f"- {_escape(line)}")
    for section in report.sections:
        columns, rows = _cells(section)
        console.data(f"\n**{_escape(section.title)}**\n")
        for row in (columns, ["---"] * len(columns), *rows):
            console.data(f"| {' | '.join(_escape(cell) for cell in row)} |")
    console.data("")
    for note in report.notes:
        console.data(f"- {_escape(note)}")


def _escape(text: str) -> str:
    for mark in "\\|*_":
        text = text.replace(mark, f"\\{mark}")
    return text


def _csv(report: Report) -> None:
    frame = pl.DataFrame(finite(report.rows), infer_schema_length=None)
    console.data(frame.write_csv().rstrip("\n"))
    for line in (*_heading(report), *report.notes):
        console.narrate(line)


def _json(report: Report) -> None:
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": report.kind,
        **report.head,
        "results": finite(report.rows),
        "notes": report.notes,
    }
    console.data(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))
