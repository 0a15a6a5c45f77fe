"""`smolsum plan`."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import UsageError

SEED = re.compile(r"-seed\d+$")
"""what the name of a run with --seeds ends with"""


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The plan's file.", show_default=False)],
    configurations: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=RUN,RUN|RUN",
            help="A configuration with the names of its runs, which may be still to come; or the names alone, of which "
            "those that differ only in -seedN at their end are one. The others are compared with the first.",
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
    A grid with --seeds 5 --seed 101, whose runs are named after what they train:
      smolsum plan plan.toml tiny-{length,included-rouge}-seed{101..105} --metric meteor --matched
    What was planned, and what was looked at afterwards:
      smolsum report runs/* --plan plan.toml

    A plan that is changed keeps its earlier versions, and the report says what changed after the first run.
    """
    from smolsum.results.analysis_plan import PlanVersion, write_plan

    planned = PlanVersion(
        configurations=_by_configuration(configurations),
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


def _by_configuration(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the runs of each configuration, from NAME=RUN,RUN or from the names of runs alone."""
    found: dict[str, list[str]] = {}
    named: set[str] = set()
    for text in texts:
        before, equals, after = text.partition("=")
        runs = [Path(run).name for run in (after.split(",") if equals else [text])]
        name = before if equals else SEED.sub("", runs[0])
        twice = name in (found if equals else named)
        if twice or not name or not all(runs) or any("," in run for run in runs):
            problem = "is there twice" if twice else "has no name or no runs"
            raise UsageError(f"the configuration {text!r} {problem}", hint="joint=j1,j2,j3, names of runs to come")
        named |= {name} if equals else set()
        found.setdefault(name, []).extend(runs)
    return found
