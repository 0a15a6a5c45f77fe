"""`smolsum report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import SmolsumError, UsageError

if TYPE_CHECKING:
    from smolsum.results.report.collect import ReportInputs

SHOWN = 20
"""lines that differ and are printed"""


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUNS", help="Runs and baselines, by name or path; runs/* for all.", show_default=False),
    ],
    form: Annotated[
        Literal["html", "md", "json", "latex", "csv", "parquet", "inspect", "every-eval-ever"],
        typer.Option(
            "--format",
            help="A report, its tables (csv, parquet), or the evaluations for inspect_ai or Every Eval Ever.",
        ),
    ] = "html",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the report.  [default: report/ in the run; for several runs, in the working directory]",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="The plan of `smolsum plan`: say what was planned, and what was looked at afterwards.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: say where the report that is there differs from its runs.")
    ] = False,
    texts: Annotated[
        bool,
        typer.Option(
            "--texts", help="Let texts of data, answers and the judge's reasons leave too, in logs of inspect_ai."
        ),
    ] = False,
    organization: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Who evaluated, for Every Eval Ever.  [default: not named]", show_default=False
        ),
    ] = "",
    runs_dir: RunsFlag = None,
) -> None:
    """Write the tables and figures of a study from its runs; print the file, or the folder of several.

    \b
    One self-contained page:
      smolsum report runs/*
    For a paper:
      smolsum report runs/* --format latex
    Whether each number of it is from these runs:
      smolsum report runs/* --format latex --check
    The evaluations for `inspect view`, without texts of data and answers:
      smolsum report runs/* --format inspect

    Runs that are damaged, unfinished or of another kind are left out with a warning. The same runs give the same bytes.
    """

    from smolsum.results.report.collect import gather

    if texts and form != "inspect":
        raise UsageError(f"--texts is for logs of inspect_ai, not for {form}", hint="--format inspect, or leave it out")
    if organization and form != "every-eval-ever":
        raise UsageError(f"{form} names no organization", hint="--format every-eval-ever, or leave --organization out")
    if plan and form in ("inspect", "every-eval-ever"):
        raise UsageError(f"a plan is part of a report, not of {form}", hint="leave --plan out, or --format html")
    inputs = gather(runs, runs_folder(runs_dir))
    alone = inputs.trained[0].paths.root if len(runs) == 1 and len(inputs.trained) == 1 else None
    folder = output or (alone / "report" if alone else Path("report"))
    if form == "inspect" or form == "every-eval-ever":
        from smolsum.results.exchange.files import exchange_files

        _say(inputs)
        files = exchange_files(inputs, folder, form, texts=texts, organization=organization, warn=console.warn)
        _finish(files, folder / form, check=check, several=True)
        return
    from smolsum.results.analysis_plan import read_plan
    from smolsum.results.report.build import build
    from smolsum.results.report.compatibility import comparable
    from smolsum.results.report.write import report_files

    planned = read_plan(plan) if plan else None
    inputs = comparable(inputs)
    _say(inputs)
    files = report_files(build(inputs, planned), folder, form)
    first, several = next(iter(files)), form in ("csv", "parquet")
    _finish(files, first.parent if several else first, check=check, several=several)


def _say(inputs: ReportInputs) -> None:
    """Warn about what is not in the files."""
    for one in inputs.left_out:
        console.warn(f"{one.name} is left out: {one.reason}" + (f" ({one.command})" if one.command else ""))
    for notice in inputs.notices:
        console.warn(notice)


def _finish(files: Mapping[Path, bytes], path: Path, *, check: bool, several: bool) -> None:
    """Write the files, or compare them with those that are there, and print the path: of the report, or of the folder
    of several. Raises SmolsumError where they differ."""
    from smolsum.results.report.write import differences, left_over, write

    others = (
        [f"{one} is not of these runs, or of an earlier state of them" for one in left_over(files, path)]
        if several
        else []
    )
    if not check:
        write(files)
        for text in others:
            console.warn(text)
        console.data(str(path))
        return
    found = differences(files) + others
    for text in found[:SHOWN]:
        console.narrate(text)
    if found:
        count = f"{len(found)} difference{'' if len(found) == 1 else 's'}"
        raise SmolsumError(f"{path} is not what these runs give: {count}", hint="write it again")
    console.data(str(path))
