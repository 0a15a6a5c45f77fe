"""What a report opens with: the finding in words, one figure and one table, each against the untrained model. And what
the constraint costs in quality: both over the steps of each run, the area that they cover, and the multipliers."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from smolsum.config.constraints import parse_constraints
from smolsum.errors import UsageError
from smolsum.results.report import charts
from smolsum.results.report.collect import ReportInputs, TrainedRun
from smolsum.results.report.document import (
    DASH,
    Cell,
    CellSource,
    Figure,
    Item,
    Table,
    empty,
    letter,
    number,
    p_value,
    plain,
    sentence,
    signed,
    table,
)
from smolsum.results.report.outcomes import (
    NO_DIFFERENCE,
    Change,
    ComparedMetrics,
    Outcome,
    StageOutcomes,
    best_configuration,
    difference,
    is_share,
    keeps_constraint,
    show,
    titled,
)
from smolsum.results.report.shell_commands import judge_command, untrained_command
from smolsum.stats.paired import ALPHA
from smolsum.stats.several import Point, hypervolume, pareto_front
from smolsum.tasks.base import Metric
from smolsum.types import COMPOSITE

LAST = 20
"""steps at the end of a run that a constraint's numbers are the mean of"""


def verdict(inputs: ReportInputs, configurations: Sequence[StageOutcomes], metrics: ComparedMetrics) -> str:
    """Return what was found, a line of a few sentences for each model."""
    lines = [_model_verdict(inputs, model, configurations, metrics) for model in inputs.models]
    return "\n".join(filter(None, [*lines, _partly_judged(metrics)]))


def _partly_judged(metrics: ComparedMetrics) -> str:
    """A sentence on a judge who scored a part of what is compared; empty if it scored all or nothing."""
    if not metrics.judged or not metrics.unjudged:
        return ""
    count = metrics.judged + len(metrics.unjudged)
    return f"The judge has scored {metrics.judged} of {count} evaluations, so {metrics.quality.title} is compared."


def _model_verdict(
    inputs: ReportInputs, model: str, configurations: Sequence[StageOutcomes], metrics: ComparedMetrics
) -> str:
    mine = [one for one in configurations if one.model == model]
    quality, constraint = metrics.quality, metrics.constraint
    if not mine:
        values = [value for e in inputs.baselines if e.model == model and (value := e.metric(quality.name)) is not None]
        if model in inputs.trainable or not values:
            return f"{model}: no trained configuration yet." if model in inputs.trainable else ""
        value = (min if quality.better == "lower" else max)(values)
        return f"{model}: {show(quality, value)} in {_called(inputs, quality)}, without training."
    if (best := best_configuration(mine, quality)) is None:
        return f"{model}: no trained configuration has {quality.title} yet."
    end = best.end.changes
    kept = end.get(constraint.name) if constraint is not None else None
    if len(mine) == 1:
        seeds = len(best.end.evaluations)
        changes = [one for one in (end[quality.name], kept) if one is not None]
        clauses = [_clause(_called(inputs, one.metric), one, seeds) for one in changes]
        # elsewhere the one configuration is named by all its signals and weights
        name = f"{model}, {best.name}" if inputs.follows_study else model
        found = [f"{name}: {'; '.join(clauses)}.", _lost(best, constraint)]
    else:
        known = sum(quality.name in one.end.changes for one in mine)
        among = f"{known} of {len(mine)}" if known < len(mine) else f"{known}"
        text = f"{model}: of {among} configurations {best.name} ends best in {_called(inputs, quality)}, "
        text += end[quality.name].text
        if kept is not None:
            text += f", {kept.metric.title} in {kept.text} of the examples"
        against = _against(best, end[quality.name])
        found = [f"{text}; {against}." if against else f"{text}.", _best_within(best, mine, metrics)]
    return " ".join(filter(None, [*found, _price(best, metrics)]))


def _best_within(best: StageOutcomes, mine: Sequence[StageOutcomes], metrics: ComparedMetrics) -> str:
    """A sentence on the best of those that keep the constraint in half of the examples, if the best does not."""
    quality, constraint = metrics.quality, metrics.constraint
    within = [one for one in mine if constraint is not None and keeps_constraint(one, constraint)]
    if constraint is None or best in within or (other := best_configuration(within, quality)) is None:
        return ""
    return (
        f"Of those with {constraint.title} in at {'most' if constraint.better == 'lower' else 'least'} half of the "
        f"examples {other.name} ends best, {other.end.changes[quality.name].text}, {constraint.title} in "
        f"{other.end.changes[constraint.name].text}."
    )


def _called(inputs: ReportInputs, metric: Metric) -> str:
    """A metric's title; that of the composite says who judged."""
    if metric.name != COMPOSITE:
        return inputs.meaning_of(metric)
    judging = next((e.summary.judging for e in inputs.evaluations if e.judge and e.summary.judging), None)
    name = judging.model if judging and judging.model else inputs.judge
    return f"{metric.title} (of {len(inputs.criteria)}, by the judge {name})"


def _clause(title: str, change: Change, seeds: int) -> str:
    """A metric before and after training, of so many seeds."""
    if not math.isfinite(change.before):
        return f"{title} {change.text}"
    sure = f" ({change.direction}{_of_two(change.direction, seeds)})" if change.direction else ""
    return f"{title} {show(change.metric, change.before)} before training, {change.text} after{sure}"


def _against(best: StageOutcomes, change: Change) -> str:
    """The best against the untrained model, or else against length alone."""
    one = best.configuration
    if math.isfinite(change.before):
        against = f"{_than(change.direction)} the untrained model{_of_two(change.direction, len(best.end.evaluations))}"
        return f"{against}, {show(change.metric, change.before)}"
    if change.metric.name != COMPOSITE:
        return ""
    # the interval is undefined if all examples differ by the same amount
    if (result := one.test) is None or not math.isfinite(result.ci_low):
        return ""
    direction = ("better" if result.delta > 0 else "worse") if one.p_holm < ALPHA else NO_DIFFERENCE
    return (
        f"{_than(direction)} length alone, {result.mean_a:.3f} (Δ {signed(3)(result.delta)}, "
        f"95 % [{signed(3)(result.ci_low)}, {signed(3)(result.ci_high)}], p adjusted {p_value(one.p_holm)})"
    )


def _of_two(direction: str, seeds: int) -> str:
    """What a test that found nothing has to say of its two seeds, which leave it one degree of freedom."""
    return " with 2 seeds" if seeds == 2 and direction == NO_DIFFERENCE else ""


def _than(direction: str) -> str:
    return {NO_DIFFERENCE: f"{NO_DIFFERENCE} from", "": "against"}.get(direction, f"{direction} than")


def _lost(trained: StageOutcomes, constraint: Metric | None) -> str:
    """A sentence on a stage that kept the constraint much better than the last; empty without one."""
    if constraint is None:
        return ""
    kept = {one.stage: one.changes[constraint.name] for one in trained.stages if constraint.name in one.changes}
    best = (min if constraint.better == "lower" else max)(kept, key=lambda name: kept[name].value, default="")
    end = trained.end.stage
    if best in ("", end) or end not in kept or abs(kept[best].value - kept[end].value) < 0.05:
        return ""
    return f"After the stage {best} it was {constraint.title} {kept[best].text}."


def _price(best: StageOutcomes, metrics: ComparedMetrics) -> str:
    """What the best costs: time, and what became worse."""
    parts = [] if best.end.minutes is None else [f"{best.end.minutes:.1f} minutes of training"]
    parts += [_worse(change) for change in _worsened(best.end, metrics)]
    return f"Price: {', '.join(parts)}." if parts else ""


def _worsened(outcome: Outcome, metrics: ComparedMetrics) -> list[Change]:
    changes = (outcome.changes[metric.name] for metric in metrics.others if metric.name in outcome.changes)
    return [change for change in changes if change.direction == "worse"]


def _worse(change: Change) -> str:
    return f"{change.metric.title} {show(change.metric, change.before)} → {change.text}"


def findings_items(
    inputs: ReportInputs, configurations: Sequence[StageOutcomes], metrics: ComparedMetrics, *, advice: bool = True
) -> Iterator[Item]:
    """Yield Figure S1, quality against the constraint, and Table S0, each configuration from stage to stage; with
    `advice` its notes have the commands for what is missing."""
    if configurations:
        yield from _figures(configurations, metrics)
        yield _table(inputs, configurations, metrics, advice=advice)


def _figures(configurations: Sequence[StageOutcomes], metrics: ComparedMetrics) -> Iterator[Figure]:
    """A figure for each model that has points; the last has the notes."""
    quality, constraint = metrics.quality, metrics.constraint
    models = list(dict.fromkeys(one.model for one in configurations))
    found = {model: _trajectories([one for one in configurations if one.model == model], metrics) for model in models}
    drawn = {model: trajectories for model, trajectories in found.items() if trajectories}
    notes = "Lines: 95 % intervals." if constraint is None else "Crosses: 95 % intervals. Up and right is better."
    if constraint is not None and any(len(one.spots) > 1 for trajectories in drawn.values() for one in trajectories):
        notes += " Arrows: from the untrained model, stage by stage."
    if constraint is not None and any(len(trajectories) > 1 for trajectories in drawn.values()):
        notes += " The ring marks the best; a broken line joins what nothing else beats in both."
    for place, (model, trajectories) in enumerate(drawn.items()):
        label, title = "S1", sentence(_pair_title(metrics))
        if len(drawn) > 1:
            label, title = f"S1{letter(place)}", f"{title}, {model}"
        alt = _alt(model, trajectories, metrics)
        named = f"{model}: {titled(quality)}" if len(models) > 1 else titled(quality)
        if constraint is None:
            spots = {
                f"{one.name if len(trajectories) > 1 else ''} {s.name}".strip(): s
                for one in trajectories
                for s in one.spots
            }
            values = [(s.y, *(s.y_interval if math.isfinite(s.y_interval[0]) else (s.y, s.y))) for s in spots.values()]
            svg = charts.spans(list(spots), values, alt=alt, x_title=titled(quality))
        else:
            axes = (_axis(titled(constraint), constraint), _axis(named, quality))
            svg = charts.trajectory_plot(
                trajectories, alt=alt, x_axis=axes[0], y_axis=axes[1], front=_front(trajectories, quality, constraint)
            )
        yield Figure(label, title, svg, alt, (notes,) if place == len(drawn) - 1 else ())


def _pair_title(metrics: ComparedMetrics) -> str:
    against = "" if metrics.constraint is None else f" against {metrics.constraint.title}"
    return metrics.quality.title + against


def _axis(title: str, metric: Metric) -> charts.AxisText:
    text = charts.percent_text if is_share(metric) else charts.tick_text
    return charts.AxisText(title, text, metric.better == "lower")


def _trajectories(configurations: Sequence[StageOutcomes], metrics: ComparedMetrics) -> list[charts.Trajectory]:
    """Each configuration whose end has both metrics, stage by stage; without a constraint x is the quality too."""
    best = best_configuration(configurations, metrics.quality)
    up, across = metrics.quality.name, (metrics.constraint or metrics.quality).name
    found = []
    for one in configurations:
        spots = [
            charts.Spot(after.stage, x.value, y.value, (x.low, x.high), (y.low, y.high))
            for after in one.path
            if (y := after.changes.get(up)) and (x := after.changes.get(across))
        ]
        if {up, across} <= set(one.end.changes):
            found.append(charts.Trajectory(one.name, tuple(spots), best=one is best and len(configurations) > 1))
    return found


def _alt(model: str, trajectories: Sequence[charts.Trajectory], metrics: ComparedMetrics) -> str:
    """The figure of a model in words."""
    if len(trajectories) == 1:
        said = ", ".join(_said(spot, metrics) for spot in trajectories[0].spots)
        return f"{model}, {_pair_title(metrics)}: {trajectories[0].name}, {said}"
    ends = {one.name: one.spots[-1] for one in trajectories}
    text = f"{model}: {_pair_title(metrics)}, {len(trajectories)} configurations"
    if metrics.constraint is not None:
        front = _front(trajectories, metrics.quality, metrics.constraint)
        text += f"; nothing beats {', '.join(name for name, spot in ends.items() if spot in front)} in both"
    return f"{text}; {', '.join(f'{name} {_said(spot, metrics)}' for name, spot in ends.items())}"


def _said(spot: charts.Spot, metrics: ComparedMetrics) -> str:
    """A point in words."""
    at = "" if metrics.constraint is None else f" at {show(metrics.constraint, spot.x)}"
    return f"{spot.name} {show(metrics.quality, spot.y)}{at}"


def _front(trajectories: Sequence[charts.Trajectory], quality: Metric, constraint: Metric) -> list[charts.Spot]:
    """The ends that no other beats in both metrics, by the constraint."""
    x_sign, y_sign = (-1.0 if metric.better == "lower" else 1.0 for metric in (constraint, quality))
    ends = [((x_sign * spot.x, y_sign * spot.y), spot) for spot in (one.spots[-1] for one in trajectories)]
    front = pareto_front(point for point, _ in ends)
    return [spot for point, spot in sorted(ends, key=lambda end: end[0]) if point in front]


def _table(
    inputs: ReportInputs, configurations: Sequence[StageOutcomes], metrics: ComparedMetrics, *, advice: bool
) -> Table:
    """Table S0: the untrained model, then each configuration after each stage; the best end of each model first."""
    quality = metrics.quality
    pair = [quality, *([metrics.constraint] if metrics.constraint else [])]
    measured = [
        title for metric in pair for title in (titled(metric), f"against untrained{', points' * is_share(metric)}")
    ]
    rows = []
    models = list(dict.fromkeys(one.model for one in configurations))
    for model in models:
        mine = [configuration for configuration in configurations if configuration.model == model]
        best = best_configuration(mine, quality)
        mine.sort(key=lambda configuration: _rank(configuration, quality))
        start = next((one.start for one in mine if one.start is not None), None)
        blank = empty(untrained_command(inputs, model), "not evaluated") if start is None else DASH
        values = [blank if start is None else _value(inputs, start, metric) for metric in pair]
        rows.append([model, "untrained", DASH, *(cell for value in values for cell in (value, DASH)), DASH, DASH])
        seen: set[tuple[str, ...]] = set()
        for configuration in mine:
            for outcome in configuration.stages:
                if outcome.key in seen:
                    continue
                seen.add(outcome.key)
                sharing = sum(outcome.key in [stage.key for stage in other.stages] for other in mine)
                name = configuration.name if sharing == 1 else f"the first stage of {sharing}"
                winner = configuration is best and outcome is configuration.end and len(mine) > 1
                cells = [c for metric in pair for c in (_value(inputs, outcome, metric), _changed(outcome, metric))]
                minutes = number(outcome.minutes, plain(1))
                worse = "; ".join(map(_worse, _worsened(outcome, metrics))) or DASH.text
                rows.append([model, Cell(name, best=winner), outcome.stage, *cells, minutes, worse])
    columns = ["Model", "Configuration", "After stage", *measured, "Minutes", "Worse than untrained"]
    first = 1 if len(models) == 1 else 0
    kinds = {"↓ lower is better" if metric.better == "lower" else "↑ higher is better" for metric in pair}
    return table(
        "S0",
        "What was found",
        columns[first:],
        [row[first:] for row in rows],
        "Against untrained: the difference with its 95 % interval; better and worse where p, adjusted by Holm over the "
        f"rows, is below 0.05. {', '.join(sorted(kinds))}.",
        _two_seeds(configurations),
        _rewarded(inputs, metrics),
        _to_judge(inputs, metrics) if advice else "",
        f"{metrics.unmeasured.title} cannot be measured on this data." if metrics.unmeasured else "",
    )


def _two_seeds(configurations: Sequence[StageOutcomes]) -> str:
    """A note if a test of two seeds found no difference."""
    pairs = [outcome for one in configurations for outcome in one.stages if len(outcome.evaluations) == 2]
    found = {change.direction for outcome in pairs for change in outcome.changes.values()}
    if NO_DIFFERENCE not in found:
        return ""
    return "With two seeds hardly any difference can be significant, as they are a sample, too; a third helps much."


def _rewarded(inputs: ReportInputs, metrics: ComparedMetrics) -> str:
    """A note if training rewards what is shown as quality."""
    names = {name for run in inputs.trained for stage in run.config["stages"].values() for name in stage["rewards"]}
    quality = metrics.quality
    if not {quality.name, quality.column} & names:
        return ""
    why = "" if metrics.judged else ": no judge has scored the quality"
    return f"{quality.title} is also a reward of training here{why}."


def _to_judge(inputs: ReportInputs, metrics: ComparedMetrics) -> str:
    """A note with the commands that judge the rest, if a judge scored a part of what is compared."""
    commands = dict.fromkeys(judge_command(inputs, one) for one in metrics.unjudged)
    return f"{said} To judge the rest: {'; '.join(commands)}." if (said := _partly_judged(metrics)) else ""


def _rank(one: StageOutcomes, quality: Metric) -> float:
    """The place of a configuration in the table: the best first, those without the quality last."""
    change, sign = one.end.changes.get(quality.name), -1.0 if quality.better == "higher" else 1.0
    return math.inf if change is None else sign * change.value


def _value(inputs: ReportInputs, outcome: Outcome, metric: Metric) -> Cell:
    """A metric of an outcome; without it the command that measures it."""
    first, change = outcome.evaluations[0], outcome.changes.get(metric.name)
    if change is None:
        return empty(judge_command(inputs, first) if metric.name == COMPOSITE else first.command, "not known")
    return Cell(change.text, change.value, first.source(metric.name))


def _changed(outcome: Outcome, metric: Metric) -> Cell:
    """The difference from the untrained model in words; its value is the difference."""
    change = outcome.changes.get(metric.name)
    if change is None or not math.isfinite(change.delta):
        return DASH
    text = difference(metric, change.delta)
    if math.isfinite(change.delta_low):
        text += f" [{difference(metric, change.delta_low)}, {difference(metric, change.delta_high)}]"
    return Cell(f"{text} {change.direction}", change.delta)


def trade_off_items(inputs: ReportInputs, metrics: ComparedMetrics) -> Iterator[Item]:
    """Yield Table S18 and Figure S5: the constraint against the quality at every validation. Nothing where the task has
    no constraint, where higher is not better in both, and where no run has validations with both or constraints."""
    quality, constraint = metrics.quality, metrics.constraint
    if constraint is None or {quality.better, constraint.better} != {"higher"}:
        return
    keys = (f"validation/{constraint.name}", f"validation/{quality.name}")
    points: dict[str, list[Point]] = {
        run.name: [(float(row[keys[0]]), float(row[keys[1]])) for row in run.rows_with(*keys)] for run in inputs.trained
    }
    if not any(points.values()) and not any(map(_constraints, inputs.trained)):
        return
    rows = []
    for run in inputs.trained:
        ends = [run.last.metric(metric.name) for metric in (constraint, quality)]
        x, y = ends
        rows.append(
            [
                run.name,
                run.last.cell(constraint.name, lambda value: show(constraint, value)),
                run.last.cell(quality.name, lambda value: show(quality, value)),
                DASH if x is None or y is None else number(hypervolume([(float(x), float(y))]), plain(3)),
                number(hypervolume(own) if (own := points[run.name]) else None, plain(3)),
                _last_cost(run),
                _constraints(run) or DASH,
            ]
        )
    yield table(
        "S18",
        "Constraint and quality",
        (
            *("Run", titled(constraint), titled(quality), "Hypervolume, end", "Hypervolume, steps"),
            *("Cost in reward", "Constraints"),
        ),
        rows,
        f"Hypervolume: the area between 0 and what nothing beats in both {constraint.title} and {quality.title}, for "
        "the test split at the end, and for all validations. Cost: the best reward of a group of rollouts less the "
        f"best that meets the constraints. Constraints: mean of the last {LAST} steps, with the multiplier.",
        better={"Hypervolume, end": "higher", "Hypervolume, steps": "higher", "Cost in reward": "lower"},
    )
    if series := [charts.PlotSeries(name, tuple(own)) for name, own in points.items() if own]:
        ends_said = (f"{one.name} ends at {one.values[-1][1]:.3f} and {one.values[-1][0]:.1%}" for one in series)
        title = f"{_pair_title(metrics)}, at every validation"
        alt = f"{_pair_title(metrics)} at every validation: {', '.join(ends_said)}"
        svg = charts.scatter(series, alt=alt, x_title=titled(constraint), y_title=titled(quality))
        yield Figure("S5", sentence(title), svg, alt)


def _last_cost(run: TrainedRun) -> Cell:
    values = _last(run, "constraint/cost")
    source = CellSource(run.paths.metrics, "mean of the last constraint/cost")
    return number(fmean(values), plain(4), source) if values else DASH


def _last(run: TrainedRun, key: str) -> list[float]:
    return [float(row[key]) for row in run.rows_with(key, last=LAST)]


def _constraints(run: TrainedRun) -> str:
    """How the constraints of the last stage stood at its end, in words; empty without any."""
    stage = list(run.config["stages"].values())[-1]
    try:
        constraints = parse_constraints(str(stage.get("constraints", "")))
    except UsageError:
        return ""
    parts = []
    for one in constraints:
        found = _last(run, f"constraint/{one.slug}/{'mean' if one.level is None else 'share'}")
        weights = _last(run, f"constraint/{one.slug}/multiplier")
        if found:
            value = f"{fmean(found):.3g}" if one.level is None else f"{fmean(found):.1%} of {one.level:.0%}"
            bound = _last(run, f"constraint/{one.slug}/bound")
            text = f"{one.text} ({bound[-1]:.3g})" if bound else one.text
            parts.append(f"{text}: {value}" + (f" (x {fmean(weights):.2f})" if weights else ""))
    return "; ".join(parts)
