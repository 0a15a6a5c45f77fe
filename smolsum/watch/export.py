"""The chart under view as files: its raw values as CSV, and a picture of it as SVG."""

import csv
import io
import re
from pathlib import Path

from rich.box import ROUNDED
from rich.console import Console
from rich.panel import Panel
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from smolsum.runs.paths import free_name, safe_name
from smolsum.watch.charts import ChartSpec, chart
from smolsum.watch.model import Snapshot

SIZE = (110, 32)
"""Columns and lines of the picture, whatever the terminal has."""


def exported(snapshot: Snapshot, spec: ChartSpec, folder: Path, theme: TerminalTheme) -> str:
    """Write the chart into `folder` as SVG and CSV, and return a sentence with their names, or with what went wrong.
    Names that are taken get a number: no file is replaced."""
    stem = f"{safe_name(snapshot.run.paths.name)}-{safe_name(spec.title.replace('/', '-'))}"
    try:
        stem = free_name(stem, lambda name: any((folder / f"{name}{end}").exists() for end in (".svg", ".csv")))
        found = (folder / f"{stem}.svg", folder / f"{stem}.csv")
        for path, content in zip(found, (picture(snapshot, spec, theme), values(snapshot, spec)), strict=True):
            with path.open("x", encoding="utf-8", newline="") as file:
                file.write(content)
    except OSError as error:
        return f"cannot write to {folder}: {error.strerror}; start smolsum watch in a folder that you can write to"
    return f"written: {found[0].name} and {found[1].name} in {folder}"  # names first: a long path is cut


def values(snapshot: Snapshot, spec: ChartSpec) -> str:
    """Return the values of a chart's curves as CSV, as they were measured: a row for each step in view of each run, and
    a column for each metric; empty where a step has none."""
    (first, last), runs, text = snapshot.in_view, snapshot.runs, io.StringIO()
    curves = [curve.metric for run in runs for curve in spec.curves(run)]
    metrics = list(dict.fromkeys([*curves, *(spec.band or ())]))
    table = csv.DictWriter(text, ["run", "step", "stage", *metrics], restval="", lineterminator="\n")
    table.writeheader()
    for run in runs:
        rows: dict[int, dict[str, float]] = {}
        for name in set(metrics) & set(run.series):
            for step, value in zip(run.series[name].steps, run.series[name].values, strict=True):
                if first <= step <= last:
                    rows.setdefault(step, {})[name] = value
        began = sorted(run.stage_began.items(), key=lambda item: item[1])
        for step, row in sorted(rows.items()):
            stage = next((name for name, start in reversed(began) if start <= step), "")
            table.writerow({"run": run.paths.name, "step": step, "stage": stage, **row})
    return text.getvalue()


def picture(snapshot: Snapshot, spec: ChartSpec, theme: TerminalTheme) -> str:
    """Return a chart as SVG, in the colours of a theme."""
    width, height = SIZE
    drawn = chart(snapshot, width - 2, height - 2, spec)
    console = Console(width=width, file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor")
    frame = Panel(
        Text("\n", no_wrap=True).join(drawn.lines),
        box=ROUNDED,
        padding=0,
        title=Text(drawn.title),
        title_align="left",
        subtitle=Text.assemble(drawn.note),
        subtitle_align="right",
    )
    console.print(frame)
    return bare(console.export_svg(title=snapshot.run.paths.name, theme=theme))


def bare(drawing: str) -> str:
    """Return an SVG of Rich without fonts from the network, and without the comment that names the program."""
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawing, flags=re.DOTALL)
