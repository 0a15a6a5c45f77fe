"""What a report opens with: the finding in words, one figure and one table, each against the untrained model."""

import math
from collections.abc import Sequence

from smolsum.report import charts
from smolsum.report.collect import ReportInputs
from smolsum.report.document import (
    ARROWS,
    DASH,
    MINUS,
    Cell,
    Figure,
    Item,
    Table,
    empty,
    letter,
    number,
    p_value,
    percent,
    plain,
    signed,
    words,
)
from smolsum.report.outcomes import NO_DIFFERENCE, Change, Compared, Journey, Outcome, best_of, within_half
from smolsum.report.shell_commands import judge_command, untrained_command
from smolsum.stats.paired import ALPHA
from smolsum.tasks.base import Metric
from smolsum.types import COMPOSITE


def titled(metric: Metric) -> str:
    """Return a metric's title with an arrow towards its better values."""
    return f"{metric.title}{ARROWS[metric.better]}"


def show(metric: Metric, value: float) -> str:
    """Return a value as text; a share as a percentage with one decimal, as everywhere in a report."""
    return percent(value) if _is_share(metric) else metric.show(value).replace("-", MINUS)


def _is_share(metric: Metric) -> bool:
    return metric.form.endswith("%")


def _difference(metric: Metric, value: float) -> str:
    """A difference as text; that of two shares in percentage points."""
    return signed(1)(100 * value) if _is_share(metric) else signed(3)(value)


def verdict(inputs: ReportInputs, journeys: Sequence[Journey], metrics: Compared) -> str:
    """Return what was found, a line of a few sentences for each model."""
    lines = [_model_verdict(inputs, model, journeys, metrics) for model in inputs.models]
    return "\n".join(filter(None, [*lines, _partly_judged(metrics)]))


def _partly_judged(metrics: Compared) -> str:
    """A sentence on a judge who scored a part of what is compared; empty if it scored all or nothing."""
    if not metrics.judged or not metrics.unjudged:
        return ""
    count = metrics.judged + len(metrics.unjudged)
    return f"The judge has scored {metrics.judged} of {count} evaluations, so {metrics.quality.title} is compared."


def _model_verdict(inputs: ReportInputs, model: str, journeys: Sequence[Journey], metrics: Compared) -> str:
    mine = [one for one in journeys if one.model == model]
    best, quality, constraint = best_of(mine, metrics.quality), metrics.quality, metrics.constraint
    if not mine:
        values = [value for e in inputs.baselines if e.model == model and (value := e.metric(quality.name)) is not None]
        if model in inputs.trainable or not values:
            return f"{model}: no trained configuration yet." if model in inputs.trainable else ""
        value = (min if quality.better == "lower" else max)(values)
        return f"{model}: {show(quality, value)} in {_called(inputs, quality)}, without training."
    if best is None:
        return f"{model}: no trained configuration has {quality.title} yet."
    end = best.end.changes
    if len(mine) == 1:
        pair = [metric for metric in (quality, constraint) if metric is not None and metric.name in end]
        clauses = [_clause(_called(inputs, metric), end[metric.name]) for metric in pair]
        # elsewhere the one configuration is named by all its signals and weights
        name = f"{model}, {best.name}" if inputs.follows_study else model
        found = [f"{name}: {'; '.join(clauses)}."]
        found.append(_lost(best, constraint) if constraint is not None else "")
        return " ".join(filter(None, [*found, _price(best, metrics)]))
    known = sum(quality.name in one.end.changes for one in mine)
    among = f"{known} of {len(mine)}" if known < len(mine) else f"{known}"
    text = f"{model}: of {among} configurations {best.name} ends best in {_called(inputs, quality)}, "
    text += show(quality, end[quality.name].value)
    if constraint is not None and constraint.name in end:
        text += f", {constraint.title} in {show(constraint, end[constraint.name].value)} of the examples"
    found = [f"{text}; {_against(best, end[quality.name])}".removesuffix("; ") + "."]
    kept = [one for one in mine if constraint is not None and within_half(one, constraint)]
    if constraint is not None and best not in kept and (other := best_of(kept, quality)) is not None:
        ends = other.end.changes
        found.append(
            f"Of those with {constraint.title} in at {'most' if constraint.better == 'lower' else 'least'} half of the "
            f"examples {other.name} ends best, {show(quality, ends[quality.name].value)}, {constraint.title} in "
            f"{show(constraint, ends[constraint.name].value)}."
        )
    return " ".join(filter(None, [*found, _price(best, metrics)]))


def _called(inputs: ReportInputs, metric: Metric) -> str:
    """A metric's title; that of the composite says who judged."""
    if metric.name != COMPOSITE:
        return inputs.meaning_of(metric)
    judging = next((e.summary.judging for e in inputs.evaluations if e.judge and e.summary.judging), None)
    name = judging.model if judging and judging.model else inputs.judge
    return f"{metric.title} (of {len(inputs.criteria)}, by the judge {name})"


def _clause(title: str, change: Change) -> str:
    """A metric before and after training."""
    metric = change.metric
    after = show(metric, change.value)
    if not math.isfinite(change.before):
        return f"{title} {after}"
    sure = f" ({change.direction})" if change.direction else ""
    return f"{title} {show(metric, change.before)} before training, {after} after{sure}"


def _against(best: Journey, change: Change) -> str:
    """The best against the untrained model, or else against length alone."""
    one = best.configuration
    if math.isfinite(change.before):
        return f"{_than(change.direction)} the untrained model, {show(change.metric, change.before)}"
    if change.metric.name != COMPOSITE:
        return ""
    # the interval is undefined if all examples differ by the same amount
    if one.test is None or not math.isfinite((result := one.test.result).ci_low):
        return ""
    direction = ("better" if result.delta > 0 else "worse") if one.p_holm < ALPHA else NO_DIFFERENCE
    return (
        f"{_than(direction)} length alone, {result.mean_a:.3f} (Δ {signed(3)(result.delta)}, "
        f"95 % [{signed(3)(result.ci_low)}, {signed(3)(result.ci_high)}], p adjusted {p_value(one.p_holm)})"
    )


def _than(direction: str) -> str:
    return {NO_DIFFERENCE: f"{NO_DIFFERENCE} from", "": "against"}.get(direction, f"{direction} than")


def _lost(journey: Journey, constraint: Metric) -> str:
    """A sentence on a stage that kept the constraint much better than the last; empty without one."""
    values = {one.stage: one.changes[constraint.name].value for one in journey.stages if constraint.name in one.changes}
    if not values:
        return ""
    stage = (min if constraint.better == "lower" else max)(values, key=lambda name: values[name])
    end = journey.end.stage
    if stage == end or abs(values[stage] - values[end]) < 0.05:
        return ""
    return f"After the stage {stage} it was {constraint.title} {show(constraint, values[stage])}."


def _price(best: Journey, metrics: Compared) -> str:
    """What the best costs: time, and what became worse."""
    parts = [] if best.end.minutes is None else [f"{best.end.minutes:.1f} minutes of training"]
    parts += [_worse(change) for change in _worsened(best.end, metrics)]
    return f"Price: {', '.join(parts)}." if parts else ""


def _worsened(outcome: Outcome, metrics: Compared) -> list[Change]:
    changes = (outcome.changes[metric.name] for metric in metrics.others if metric.name in outcome.changes)
    return [change for change in changes if change.direction == "worse"]


def _worse(change: Change) -> str:
    return f"{change.metric.title} {show(change.metric, change.before)} → {show(change.metric, change.value)}"


def findings_items(
    inputs: ReportInputs, journeys: Sequence[Journey], metrics: Compared, *, advice: bool = True
) -> list[Item]:
    """Return Figure S1, quality against the constraint, and Table S0, each configuration from stage to stage; with
    `advice` its notes have the commands for what is missing."""
    if not journeys:
        return []
    return [*_figure(journeys, metrics), _table(inputs, journeys, metrics, advice=advice)]


def _figure(journeys: Sequence[Journey], metrics: Compared) -> list[Figure]:
    quality, constraint = metrics.quality, metrics.constraint
    models = list(dict.fromkeys(one.model for one in journeys))
    drawn: list[tuple[str, str, str]] = []
    most_ways, most_spots = 0, 0
    for model in models:
        ways = _ways([one for one in journeys if one.model == model], quality, constraint)
        if not ways:
            continue
        alt = _alt(model, ways, quality, constraint)
        named = f"{model}: {titled(quality)}" if len(models) > 1 else titled(quality)
        if constraint is None:
            spots = [(way.name if len(ways) > 1 else "", spot) for way in ways for spot in way.spots]
            names = [f"{name} {spot.name}".strip() for name, spot in spots]
            svg = charts.spans(
                list(dict.fromkeys(names)),
                [_span(spot) for spot in {n: s for n, (_, s) in zip(names, spots, strict=True)}.values()],
                alt=alt,
                x_title=titled(quality),
            )
        else:
            axes = (_axis(titled(constraint), constraint), _axis(named, quality))
            svg = charts.ways(ways, alt=alt, x_axis=axes[0], y_axis=axes[1], front=_front(ways, quality, constraint))
        drawn.append((model, svg, alt))
        most_ways = max(most_ways, len(ways))
        most_spots = max(most_spots, *(len(way.spots) for way in ways))
    if not drawn:
        return []
    title = quality.title if constraint is None else f"{quality.title} against {constraint.title}"
    note = "Crosses: 95 % intervals. Up and right is better."
    if most_spots > 1:
        note += " Arrows: from the untrained model, stage by stage."
    if most_ways > 1:
        note += " The ring marks the best; a broken line joins what nothing else beats in both."
    notes = (note,) if constraint is not None else ("Lines: 95 % intervals.",)
    found = []
    for place, (model, svg, alt) in enumerate(drawn):
        label = f"S1{letter(place)}" if len(drawn) > 1 else "S1"
        name = f"{title}, {model}" if len(drawn) > 1 else title
        found.append(Figure(label, name[:1].upper() + name[1:], svg, alt, notes if place == len(drawn) - 1 else ()))
    return found


def _axis(title: str, metric: Metric) -> charts.AxisText:
    text = charts.percent_text if _is_share(metric) else charts.tick_text
    return charts.AxisText(title, text, metric.better == "lower")


def _span(spot: charts.Spot) -> tuple[float, float, float]:
    low, high = spot.y_interval
    return (spot.y, low, high) if math.isfinite(low) else (spot.y, spot.y, spot.y)


def _ways(journeys: Sequence[Journey], quality: Metric, constraint: Metric | None) -> list[charts.Way]:
    """The way of each configuration whose end has both metrics."""
    best, found = best_of(journeys, quality), []
    needed = [quality.name, *([constraint.name] if constraint else [])]
    for one in journeys:
        if not set(needed) <= set(one.end.changes):
            continue
        spots = tuple(_spot(o, quality, constraint) for o in one.path if set(needed) <= set(o.changes))
        found.append(charts.Way(one.name, spots, best=one is best and len(journeys) > 1))
    return found


def _spot(outcome: Outcome, quality: Metric, constraint: Metric | None) -> charts.Spot:
    up = outcome.changes[quality.name]
    across = up if constraint is None else outcome.changes[constraint.name]
    return charts.Spot(outcome.stage, across.value, up.value, (across.low, across.high), (up.low, up.high))


def _alt(model: str, ways: Sequence[charts.Way], quality: Metric, constraint: Metric | None) -> str:
    """The figure of a model in words."""
    title = quality.title if constraint is None else f"{quality.title} against {constraint.title}"
    if len(ways) == 1:
        return f"{model}, {title}: {ways[0].name}, {', '.join(_said(s, quality, constraint) for s in ways[0].spots)}"
    ends = {way.name: way.spots[-1] for way in ways}
    text = f"{model}: {title}, {len(ways)} configurations"
    if constraint is not None:
        front = _front(ways, quality, constraint)
        text += f"; nothing beats {', '.join(name for name, spot in ends.items() if spot in front)} in both"
    return f"{text}; {', '.join(f'{name} {_said(spot, quality, constraint)}' for name, spot in ends.items())}"


def _said(spot: charts.Spot, quality: Metric, constraint: Metric | None) -> str:
    """A point in words."""
    at = "" if constraint is None else f" at {show(constraint, spot.x)}"
    return f"{spot.name} {show(quality, spot.y)}{at}"


def _front(ways: Sequence[charts.Way], quality: Metric, constraint: Metric) -> list[charts.Spot]:
    """The ends that no other beats in both metrics, by the constraint."""
    signs = [-1.0 if metric.better == "lower" else 1.0 for metric in (constraint, quality)]
    values = [(signs[0] * way.spots[-1].x, signs[1] * way.spots[-1].y, way.spots[-1]) for way in ways]
    front = [
        (x, y, spot) for x, y, spot in values if not any(a >= x and b >= y and (a, b) != (x, y) for a, b, _ in values)
    ]
    return [spot for _, _, spot in sorted(front, key=lambda one: one[:2])]


def _table(inputs: ReportInputs, journeys: Sequence[Journey], metrics: Compared, *, advice: bool) -> Table:
    """Table S0: the untrained model, then each configuration after each stage; the best end of each model first."""
    columns = ["Model", "Configuration", "After stage"]
    pair = [metrics.quality, *([metrics.constraint] if metrics.constraint else [])]
    for metric in pair:
        unit = ", points" if _is_share(metric) else ""
        columns += [titled(metric), f"against untrained{unit}"]
    rows: list[tuple[Cell, ...]] = []
    for model in dict.fromkeys(one.model for one in journeys):
        mine = [one for one in journeys if one.model == model]
        best = best_of(mine, metrics.quality)
        sign = -1.0 if metrics.quality.better == "higher" else 1.0
        mine.sort(key=lambda one: _rank(one, metrics.quality, sign))
        start = next((one.start for one in mine if one.start is not None), None)
        if start is None:
            blank = empty(untrained_command(inputs, model), "not evaluated")
            rows.append((words(model), words("untrained"), DASH, *[blank, DASH] * len(pair), DASH, DASH))
        else:
            values = [cell for metric in pair for cell in (_value(inputs, start, metric), DASH)]
            rows.append((words(model), words("untrained"), DASH, *values, DASH, DASH))
        seen: set[tuple[str, ...]] = set()
        for one in mine:
            for outcome in one.stages:
                if outcome.key in seen:
                    continue
                seen.add(outcome.key)
                others = [other for other in mine if outcome.key in [stage.key for stage in other.stages]]
                name = one.name if len(others) == 1 else f"the first stage of {len(others)}"
                cells = [
                    cell for metric in pair for cell in (_value(inputs, outcome, metric), _changed(outcome, metric))
                ]
                winner = one is best and outcome is one.end and len(mine) > 1
                row = (words(model), Cell(name, best=winner), words(outcome.stage), *cells)
                minutes = number(outcome.minutes, plain(1)) if outcome.minutes is not None else DASH
                worse = "; ".join(map(_worse, _worsened(outcome, metrics)))
                rows.append((*row, minutes, words(worse) if worse else DASH))
    if len({row[0].text for row in rows}) == 1:
        rows, columns = [row[1:] for row in rows], columns[1:]
    notes = [
        "Against untrained: the difference with its 95 % interval; better and worse where p, adjusted by Holm over the "
        f"rows, is below 0.05. {_arrows(pair)}",
        *_rewarded(inputs, metrics),
        *(_to_judge(inputs, metrics) if advice else ()),
        *([f"{metrics.unmeasured.title} cannot be measured on this data."] if metrics.unmeasured else []),
    ]
    return Table("S0", "What was found", (*columns, "Minutes", "Worse than untrained"), tuple(rows), tuple(notes))


def _arrows(pair: Sequence[Metric]) -> str:
    kinds = {"↓ lower is better" if metric.better == "lower" else "↑ higher is better" for metric in pair}
    return f"{', '.join(sorted(kinds))}."


def _rewarded(inputs: ReportInputs, metrics: Compared) -> list[str]:
    """A note if training rewards what is shown as quality."""
    names = {name for run in inputs.trained for stage in run.config["stages"].values() for name in stage["rewards"]}
    quality = metrics.quality
    if quality.name not in names and quality.column not in names:
        return []
    why = "" if metrics.judged else ": no judge has scored the quality"
    return [f"{quality.title} is also a reward of training here{why}."]


def _to_judge(inputs: ReportInputs, metrics: Compared) -> list[str]:
    """A note with the commands that judge the rest, if a judge scored a part of what is compared."""
    if not (sentence := _partly_judged(metrics)):
        return []
    commands = dict.fromkeys(judge_command(inputs, one) for one in metrics.unjudged)
    return [f"{sentence} To judge the rest: {'; '.join(commands)}."]


def _rank(one: Journey, quality: Metric, sign: float) -> float:
    change = one.end.changes.get(quality.name)
    return math.inf if change is None else sign * change.value


def _value(inputs: ReportInputs, outcome: Outcome, metric: Metric) -> Cell:
    """A metric of an outcome; without it the command that measures it."""
    first, change = outcome.evaluations[0], outcome.changes.get(metric.name)
    if change is None:
        return empty(judge_command(inputs, first) if metric.name == COMPOSITE else first.command, "not known")
    return number(change.value, lambda value: show(metric, value), first.source(metric.name))


def _changed(outcome: Outcome, metric: Metric) -> Cell:
    """The difference from the untrained model in words; its value is the difference."""
    change = outcome.changes.get(metric.name)
    if change is None or not math.isfinite(change.delta):
        return DASH
    text = _difference(metric, change.delta)
    if math.isfinite(change.delta_low):
        low, high = (_difference(metric, value) for value in (change.delta_low, change.delta_high))
        text += f" [{low}, {high}]"
    return Cell(f"{text} {change.direction}", change.delta)
