"""`smolsum plan`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import UsageError


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The plan's file.", show_default=False)],
    configurations: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=RUN,RUN",
            help="A configuration with the names of its runs, which may be still to come; the others are compared with "
            "the first.",
            show_default=False,
        ),
    ],
    metric: Annotated[list[str] | None, typer.Option(metavar="NAME", help="What is compared; repeatable.")] = None,
    alternative: Annotated[
        Literal["two-sided", "greater", "less"],
        typer.Option(help="Alternative hypothesis: the others differ from the first, are greater, are less."),
    ] = "two-sided",
    margin: Annotated[
        float | None,
        typer.Option(metavar="X", help="Show equivalence within X; with --alternative, non-inferiority by X."),
    ] = None,
    correction: Annotated[Literal["holm", "bh", "none"], typer.Option(help="Of p over all planned tests.")] = "holm",
    matched: Annotated[bool, typer.Option("--matched", help="Pair the runs in the order given.")] = False,
    cluster: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Examples with the same FIELD are one sample.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why the plan that is there is changed.")] = "",
) -> None:
    """Write down what will be compared before the runs; print its hash.

    \b
    Before the first run:
      smolsum plan plan.toml joint=j1,j2,j3 staged=s1,s2,s3 --metric meteor
    What was planned, and what was looked at afterwards:
      smolsum report runs/* --plan plan.toml

    A plan that is changed keeps its earlier versions, and the report says what changed after the first run.
    """
    from smolsum.results.analysis_plan import PlanVersion, write_plan

    named: dict[str, list[str]] = {}
    for text in configurations:
        name, _, runs = text.partition("=")
        if not name or not all(found := [Path(run).name for run in runs.split(",")]) or name in named:
            problem = "is there twice" if name in named else "has no name or no runs"
            raise UsageError(f"the configuration {text!r} {problem}", hint="joint=j1,j2,j3, names of runs to come")
        named[name] = found
    planned = PlanVersion(
        configurations=named,
        metrics=list(metric or ()),
        alternative=alternative,
        margin=margin,
        matched=matched,
        cluster=cluster,
        correction=correction,
        reason=reason,
    )
    written = write_plan(file, planned, now=datetime.now(UTC)).current
    console.narrate(f"{file}: {written.tests} tests are planned; commit the file, or publish this hash")
    console.data(written.hash)
