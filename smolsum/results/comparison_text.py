"""A comparison as text: tables for a terminal, Markdown, CSV and JSON."""

import json
import math
import textwrap
from collections.abc import Callable
from typing import Any, Literal

import polars as pl

from smolsum import console
from smolsum.files import finite
from smolsum.results.compare import Comparison, ResultSection, Row
from smolsum.stats.paired import ALPHA

Format = Literal["table", "md", "csv", "json"]

SCHEMA_VERSION = 1
_NOTE_WIDTH = 80


def show(comparison: Comparison, form: Format) -> None:
    """Print a comparison to stdout; the notes of CSV go to stderr."""
    {"table": _table, "md": _markdown, "csv": _csv, "json": _json}[form](comparison)


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


def signed_figure(value: float | None) -> str:
    """Return `figure` with a plus sign for positive numbers."""
    text = figure(value)
    return f"+{text}" if value is not None and value > 0 else text


def percentage(value: float | None) -> str:
    """Return a share in percent, with one decimal; `-` for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def starred_p(value: float | None) -> str:
    """Return a p value, with a star where it is significant."""
    text = p_without_star(value)
    return f"{text} *" if value is not None and value < ALPHA else text


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
    "delta": ("b - a", signed_figure),
    "t": ("t", figure),
    "df": ("df", figure),
    "p": ("p", starred_p),
    "p_holm": ("p Holm", starred_p),
    "p_bh": ("p BH", starred_p),
    "d_z": ("d_z", signed_figure),
    "detectable": ("min", figure),
    "wilcoxon_p": ("Wilcoxon", starred_p),
    "sign_flip_p": ("sign flip", starred_p),
    "gained": ("gained", figure),
    "lost": ("lost", figure),
    "mcnemar_p": ("McNemar", starred_p),
    "run_sd_a": ("run sd a", figure),
    "run_sd_b": ("run sd b", figure),
    "run_sd_delta": ("run sd b - a", figure),
    "p_these_runs": ("p these runs", p_without_star),
    "iqm_a": ("IQM a", figure),
    "iqm_b": ("IQM b", figure),
    "improved": ("improved", figure),
    "share_p": ("p", starred_p),
    "p_margin": ("p margin", starred_p),
    "p_margin_holm": ("p Holm", starred_p),
    "source": ("source", str),
    "sd": ("sd", figure),
    "share": ("share", percentage),
    "seeds": ("seeds", figure),
    "examples": ("examples", figure),
    "rounds": ("rounds", figure),
    "judge_calls": ("judge calls", figure),
    "hours": ("hours", figure),
    "dollars": ("dollars", figure),
    "power": ("power", percentage),
    "r": ("r", signed_figure),
    "r_within": ("within", signed_figure),
}
_INTERVALS = {
    "interval": ("95 % interval", "ci_low", "ci_high"),
    "bootstrap": ("bootstrap 95 %", "bootstrap_low", "bootstrap_high"),
    "boot": ("b - a 95 %", "boot_low", "boot_high"),
    "iqm": ("IQM b - a 95 %", "iqm_low", "iqm_high"),
    "improvement": ("improved 95 %", "improved_low", "improved_high"),
    "exact_a": ("a exact 95 %", "exact_a_low", "exact_a_high"),
    "exact_b": ("b exact 95 %", "exact_b_low", "exact_b_high"),
    "share_delta": ("b - a 95 %", "share_low", "share_high"),
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


def _title(section: ResultSection) -> str:
    return section.title if section.baseline is None else f"{section.title}, baseline {figure(section.baseline)}"


def _heading(comparison: Comparison) -> list[str]:
    """The lines that say what was compared."""
    head = comparison.head
    if comparison.kind == "plan":
        return list(comparison.head["assumed"])
    if comparison.kind in ("correlations", "variances"):
        return [f"{len(head['files'])} evaluations: {', '.join(head['files'])}"]
    origin = "".join(f", {key} {head[key]}" for key in ("split", "judge") if isinstance(head[key], str))
    b = head["b"][0]["name"] if comparison.kind == "paired" else "each run"
    return [f"a = {head['a']['name']}", f"b = {b}", f"{head['examples']} examples{origin}"]


def _table(comparison: Comparison) -> None:
    for line in _heading(comparison):
        console.data(line)
    for section in comparison.sections:
        columns, rows = _cells(section)
        console.data(f"\n{_title(section)}")
        console.data_table(columns, rows)
    console.data("")
    for note in comparison.notes:
        console.data(textwrap.fill(note, _NOTE_WIDTH, subsequent_indent="  "))


def _markdown(comparison: Comparison) -> None:
    for line in _heading(comparison):
        console.data(f"- {_escape(line)}")
    for section in comparison.sections:
        columns, rows = _cells(section)
        console.data(f"\n**{_escape(_title(section))}**\n")
        for row in (columns, ["---"] * len(columns), *rows):
            console.data(f"| {' | '.join(_escape(cell) for cell in row)} |")
    console.data("")
    for note in comparison.notes:
        console.data(f"- {_escape(note)}")


def _escape(text: str) -> str:
    for mark in "\\|*_":
        text = text.replace(mark, f"\\{mark}")
    return text


def _csv(comparison: Comparison) -> None:
    frame = pl.DataFrame(finite(comparison.rows), infer_schema_length=None)
    console.data(frame.write_csv().rstrip("\n"))
    for line in (*_heading(comparison), *comparison.notes):
        console.narrate(line)


def _json(comparison: Comparison) -> None:
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": comparison.kind,
        **comparison.head,
        "results": finite(comparison.rows),
        "notes": comparison.notes,
    }
    console.data(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False))
