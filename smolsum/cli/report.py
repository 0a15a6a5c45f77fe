"""`smolsum report`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.cli.options import RunsFlag, runs_folder
from smolsum.errors import SmolsumError

SHOWN = 20
"""lines that differ and are printed"""


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUNS", help="Runs and baselines, by name or path; runs/* for all.", show_default=False),
    ],
    form: Annotated[Literal["html", "md", "json", "latex"], typer.Option("--format", help="Output format.")] = "html",
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
    runs_dir: RunsFlag = None,
) -> None:
    """Write the tables and figures of a study from its runs; print the file.

    \b
    One self-contained page:
      smolsum report runs/*
    For a paper:
      smolsum report runs/* --format latex
    Whether each number of it is from these runs:
      smolsum report runs/* --format latex --check

    Runs that are damaged, unfinished or of another kind are left out with a warning. The same runs give the same bytes.
    """

    from smolsum.results.analysis_plan import read_plan
    from smolsum.results.report.build import build
    from smolsum.results.report.collect import gather
    from smolsum.results.report.compatibility import comparable
    from smolsum.results.report.write import differences, write

    planned = read_plan(plan) if plan else None
    inputs = comparable(gather(runs, runs_folder(runs_dir)))
    for one in inputs.left_out:
        console.warn(f"{one.name} is left out: {one.reason}" + (f" ({one.command})" if one.command else ""))
    for notice in inputs.notices:
        console.warn(notice)
    alone = inputs.trained[0].paths.root if len(runs) == 1 and len(inputs.trained) == 1 else None
    folder = output or (alone / "report" if alone else Path("report"))
    page = build(inputs, planned)
    if not check:
        console.data(str(write(page, folder, form)))
        return
    path, found = differences(page, folder, form)
    for text in found[:SHOWN]:
        console.narrate(text)
    if found:
        raise SmolsumError(f"{path} is not what these runs give: {len(found)} lines differ", hint="write it again")
    console.data(str(path))
