"""`smolsum plan`."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import UsageError

SEED = re.compile(r"(.+)-seed([0-9]+)")
"""the name of a run of `smolsum train --seeds`"""


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
        configurations=_by_configuration(configurations, matched=matched),
        metrics=list(metric or ()),
        alternative=alternative,
        margin=margin,
        matched=matched,
        cluster=cluster,
        correction=correction,
        reason=reason,
    )
    written = write_plan(file, planned, now=datetime.now(UTC)).current
    for number, (name, runs) in enumerate(written.configurations.items()):
        console.narrate(f"{name}{', which the others are compared with' if not number else ''}: {', '.join(runs)}")
    tests = "1 test is" if written.tests == 1 else f"{written.tests} tests are"
    console.narrate(f"{file}: {tests} planned; commit the file, or publish this hash")
    console.data(written.hash)


def _by_configuration(texts: Sequence[str], *, matched: bool) -> dict[str, list[str]]:
    """Return the runs of each configuration, from NAME=RUN,RUN or from the names of runs alone, by their seeds. Raises
    UsageError for a configuration that is there twice, and for names whose seeds cannot be matched."""
    found: dict[str, dict[str, int | None]] = {}
    """runs with their seeds, as far as names tell them"""
    named: set[str] = set()
    for text in texts:
        before, equals, after = text.partition("=")
        runs = [Path(run).name for run in (after if equals else text).split(",")]
        if not all(runs) or (not before if equals else len(runs) > 1):
            raise UsageError(
                f"the configuration {text!r} has no name or no runs", hint="joint=j1,j2,j3, or names alone"
            )
        seed = None if equals else SEED.fullmatch(runs[0])
        name = before if equals else seed[1] if seed else runs[0]
        own = found.setdefault(name, {})
        if name in named or (equals and own) or any(run in own for run in runs):
            raise UsageError(f"{text!r}: the configuration {name} is there twice", hint="give each run once")
        if equals:
            named.add(name)
        own |= {run: int(seed[2]) if seed else None for run in runs}
    seeds = {name: sorted(seed for seed in runs.values() if seed is not None) for name, runs in found.items()}
    first = next(iter(seeds))
    if matched and all(seeds.values()) and (other := next((one for one in seeds if seeds[one] != seeds[first]), None)):
        lists = [f"{name} has the seeds {', '.join(map(str, seeds[name]))}" for name in (first, other)]
        raise UsageError(
            f"--matched pairs equal seeds, and {', '.join(lists)}", hint="plan the same seeds of each, or leave it out"
        )
    # sorting is stable: runs without a seed in their names stay in their order
    return {name: sorted(runs, key=lambda run: runs[run] or 0) for name, runs in found.items()}
