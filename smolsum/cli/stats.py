"""`smolsum stats`."""

from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import UsageError


def stats(
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="SCORES",
            help="A run, an evaluation's folder or JSON Lines with an id and numbers. NAME=A,B,C counts as one "
            "arm: seeds of a configuration, runs of a strategy.",
            show_default=False,
        ),
    ],
    paired: Annotated[bool, typer.Option("--paired", help="Compare A with B, the default for two: B - A.")] = False,
    vs_baseline: Annotated[
        str | None,
        typer.Option(metavar="A", help="Compare every SCORES with A; runs that differ only in their seed become one."),
    ] = None,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Pearson correlation of metrics, all SCORES pooled.")
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeatable.  [default: all]")
    ] = None,
    alternative: Annotated[
        Literal["two-sided", "greater", "less"],
        typer.Option(help="Alternative hypothesis: B differs, is greater, is less."),
    ] = "two-sided",
    matched: Annotated[bool, typer.Option("--matched", help="Pair the runs of both arms in the order given.")] = False,
    form: Annotated[Literal["table", "md", "csv", "json"], typer.Option("--format", help="Output format.")] = "table",
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of resampling.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="No colour.")] = False,
) -> None:
    """Compare evaluations example by example, and say how sure the difference is.

    \b
    Did training help?
      smolsum stats --paired runs/mine/eval/start-test runs/mine
    Which of many runs did?
      smolsum stats --vs-baseline runs/length runs/meteor runs/rouge
    One strategy against another, run by run:
      smolsum stats --matched joint=runs/j1,runs/j2 staged=runs/s1,runs/s2

    The exit code is 0 whatever the significance.
    """
    console.set_plain(plain)
    kinds = [
        flag
        for flag, given in {"--paired": paired, "--vs-baseline": vs_baseline, "--correlation": correlation}.items()
        if given
    ]
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} are different questions", hint="ask them one at a time")
    if correlation and (matched or alternative != "two-sided"):
        raise UsageError(
            "--correlation has no arms, so it takes no --matched and no --alternative", hint="leave them out"
        )
    if (not kinds or paired) and len(scores) != 2:
        raise UsageError(
            f"--paired compares two scores, not {len(scores)}",
            hint="name A and B, or --vs-baseline A for many, or join the runs of one arm with ','",
        )

    from smolsum.results.compare import TestOptions, against_baseline, compare_two, correlations
    from smolsum.results.comparison_text import show
    from smolsum.results.score_columns import combine_seeds, distinct, load_arm

    options = TestOptions(tuple(metric or ()), alternative, matched, seed)
    arms = [load_arm(argument) for argument in scores]
    if vs_baseline is not None:
        baseline = load_arm(vs_baseline)
        comparison = against_baseline(baseline, combine_seeds(distinct(arms, baseline=baseline)), options)
    elif correlation:
        comparison = correlations(distinct(arms), options)
    else:
        a, b = arms
        comparison = compare_two(a, b, options)
    show(comparison, form)
