"""`smolsum stats`."""

from typing import Annotated, Literal

import typer

from smolsum import console
from smolsum.errors import UsageError


def stats(
    scores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCORES",
            help="A run, an evaluation's folder or JSON Lines with an id and numbers. NAME=A,B,C counts as one "
            "arm: seeds of a configuration, runs of a strategy.",
            show_default=False,
        ),
    ] = None,
    paired: Annotated[bool, typer.Option("--paired", help="Compare A with B, the default for two: B - A.")] = False,
    vs_baseline: Annotated[
        str | None,
        typer.Option(metavar="A", help="Compare every SCORES with A; runs that differ only in their seed become one."),
    ] = None,
    correlation: Annotated[
        bool, typer.Option("--correlation", help="Pearson correlation of metrics, all SCORES pooled.")
    ] = False,
    variance: Annotated[
        bool,
        typer.Option(
            "--variance", help="Seeds, decoding and judge: how much each varies. NAME=A,B: evaluations of one run."
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="How many seeds and examples find --effect, from a pilot A B or --assume.")
    ] = False,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this metric; repeatable.  [default: all]")
    ] = None,
    alternative: Annotated[
        Literal["two-sided", "greater", "less"],
        typer.Option(help="Alternative hypothesis: B differs, is greater, is less."),
    ] = "two-sided",
    matched: Annotated[bool, typer.Option("--matched", help="Pair the runs of both arms in the order given.")] = False,
    margin: Annotated[
        float | None,
        typer.Option(metavar="X", help="Test equivalence within X; with --alternative, non-inferiority by X."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Examples with the same FIELD, such as a document, are one sample."),
    ] = None,
    effect: Annotated[
        float | None, typer.Option(metavar="X", help="With --plan: the true difference that should be found.")
    ] = None,
    power: Annotated[float, typer.Option(metavar="P", help="With --plan: the probability to find it.")] = 0.8,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="With --plan: seeds an arm, to see what a design can find.")
    ] = None,
    examples: Annotated[int | None, typer.Option(metavar="N", help="With --plan: examples.")] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="With --plan: seed-sd, example-sd, noise-sd, judge-sd, share, rounds, criteria, comparisons, "
            "run-hours, hour-price or call-price; repeatable.",
        ),
    ] = None,
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
    How large should a study be that finds 0.05?
      smolsum stats --plan --effect 0.05 --metric meteor a=a1,a2,a3 b=b1,b2,b3

    The exit code is 0 whatever the significance.
    """
    console.set_plain(plain)
    asked = {"--paired": paired, "--vs-baseline": vs_baseline, "--correlation": correlation, "--variance": variance}
    kinds = [flag for flag, given in (asked | {"--plan": plan}).items() if given]
    if len(kinds) > 1:
        raise UsageError(f"{' and '.join(kinds)} are different questions", hint="ask them one at a time")
    if (correlation or variance) and (matched or alternative != "two-sided" or margin is not None or cluster):
        raise UsageError(
            f"{kinds[0]} has no arms, so it takes no --matched, --alternative, --margin and --cluster",
            hint="leave them out",
        )
    planning = {"--effect": effect, "--seeds": seeds, "--examples": examples, "--assume": assume}
    if not plan and (given := [flag for flag, value in planning.items() if value is not None]):
        raise UsageError(f"{' and '.join(given)} belongs to --plan", hint="add --plan")
    if plan and cluster:
        raise UsageError("--plan counts independent examples", hint="leave --cluster out, and count documents")
    names = scores or []
    if not plan and not names:
        raise UsageError("there are no scores to compare", hint="name runs, or files of scores")
    if (not kinds or paired or (plan and names)) and len(names) != 2:
        raise UsageError(
            f"{'--plan takes a pilot of' if plan else '--paired compares'} two scores, not {len(names)}",
            hint="name A and B, or --vs-baseline A for many, or join the runs of one arm with ','",
        )

    from smolsum.results.compare import TestOptions, against_baseline, compare_two, correlations, variances
    from smolsum.results.comparison_text import show
    from smolsum.results.score_columns import combine_seeds, distinct, load_arm

    options = TestOptions(tuple(metric or ()), alternative, matched, seed, margin, cluster)
    arms = [load_arm(argument) for argument in names]
    if plan:
        from smolsum.results.study_size import plan_size, read_assumptions

        comparison = plan_size(
            arms, read_assumptions(assume or ()), options, effect=effect, wanted=power, seeds=seeds, examples=examples
        )
    elif vs_baseline is not None:
        baseline = load_arm(vs_baseline)
        comparison = against_baseline(baseline, combine_seeds(distinct(arms, baseline=baseline)), options)
    elif correlation:
        comparison = correlations(distinct(arms), options)
    elif variance:
        comparison = variances(distinct(arms), options)
    else:
        a, b = arms
        comparison = compare_two(a, b, options)
    show(comparison, form)
