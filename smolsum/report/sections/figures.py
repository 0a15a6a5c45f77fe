"""The study's figures, and three that it lacks, drawn from a study's runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smolsum.config.study import INCLUDED, STRATEGIES
from smolsum.report import charts
from smolsum.report.document import Figure, letter, percent
from smolsum.report.results import ConfigurationResult, baseline_of
from smolsum.report.sections.task import ERRORS
from smolsum.report.study import CRITERIA, Study, Trained
from smolsum.stats.correlation import correlate
from smolsum.types import COMPOSITE

POINTS, CURVE_POINTS, FEWEST = 120, 600, 30
"""of a curve, and of all curves in a plot together, at most, so that a page stays small; of a curve at least, all the
same"""
CLOUD, CLOUD_POINTS = 200, 800
"""of one configuration's scatter at most, and of all in a plot together"""
DYNAMICS = (
    ("loss", "loss"),
    ("grad_norm", "gradient norm before clipping"),
    ("reward", "reward"),
    ("reward_std", "reward std within a group"),
    ("advantages/mean", "advantage, mean"),
    ("advantages/std", "advantage, std"),
    ("completions/mean_length", "tokens, mean"),
    ("completions/min_length", "tokens, shortest"),
    ("completions/max_length", "tokens, longest"),
)
SPREAD = (
    ("frac_reward_zero_std", "groups without spread"),
    ("entropy", "entropy"),
)
ON_TARGET = ("length/within_tol", "share on target")
OVERLAP = ("rouge", "meteor", "bleu")
OFF_TARGET = ("too long", "too short")


def correlation_figures(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[Figure]:
    """Returns Figure 1: a heat map of the judged metrics for each model and strategy."""
    figures: list[Figure] = []
    for model in study.models:
        for strategy, title in STRATEGIES.items():
            mine = [one for one in outcomes if (one.model, one.strategy) == (model, strategy)]
            if mine and strategy == INCLUDED and (baseline := baseline_of(study, model)) is not None:
                mine.append(baseline)  # as in the study: 1,400 examples there, 1,200 of the other strategy
            frames = [e.scores.frame for one in mine for e in one.evaluations if set(CRITERIA) <= set(e.scores.metrics)]
            if not frames:
                continue
            found = {(pair.x, pair.y): pair for pair in correlate(frames, CRITERIA)}
            values = [[1.0 if x == y else (found.get((x, y)) or found[(y, x)]).r for y in CRITERIA] for x in CRITERIA]
            told = ", ".join(f"{x} and {y} {pair.r:+.2f}" for (x, y), pair in found.items() if not math.isnan(pair.r))
            alt = f"Pearson correlations, {model}, {title}: {told or 'none, as no metric varies'}"
            n = next(iter(found.values())).n
            figures.append(
                Figure(
                    f"1{letter(len(figures))}",
                    f"Correlation of judged metrics, {model}, {title}",
                    charts.heat(CRITERIA, values, alt=alt),
                    alt,
                    (f"n = {n}: all examples of {len(frames)} evaluation{'s' * (len(frames) > 1)} pooled.",),
                )
            )
    return figures


def curve_figures(study: Study) -> list[Figure]:
    """Returns Figure 2, KL and clip fraction, and the training dynamics of each model (Figures 3 and 4)."""
    if not study.trained:
        return []
    names = [run.paths.name for run in study.trained]
    panels = [
        panel(study.trained, "kl", "KL divergence"),
        panel(study.trained, "clip_ratio/region_mean", "clip fraction"),
    ]
    highest = {p.title: max((y for s in p.series for _, y in s.values), default=0.0) for p in panels}
    alt = "KL divergence and clip fraction by step: " + ", ".join(f"{t} at most {v:.3g}" for t, v in highest.items())
    figures = [curves("2", "KL divergence and clip fraction", panels, names, alt)]
    for place, model in enumerate(study.models):
        runs = [run for run in study.trained if run.model == model]
        if not runs:
            continue
        own = [ON_TARGET] if study.repeats else _watched(runs)
        panels = [panel(runs, key, title) for key, title in (*DYNAMICS, *own, *SPREAD)]
        names = [run.paths.name for run in runs]
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        alt = f"Training dynamics of {model}, {count}: {', '.join(p.title for p in panels)} by step"
        figures.append(curves(str(3 + place), f"Training dynamics, {model}", panels, names, alt))
    return figures


def _watched(runs: Sequence[Trained]) -> list[tuple[str, str]]:
    """What the task of the runs shows of their steps and validations, as key and title."""
    there = {key for run in runs for row in run.metrics for key in row}
    told = {name: keys for run in runs for name, keys in run.last.summary.get("watched", {}).items()}
    found = []
    for before, after in (("", ""), ("validation/", ", validation")):
        for name, keys in told.items():
            found += [(before + key, name + after) for key in keys if before + key in there][:1]
    return found


def curves(label: str, title: str, panels: Sequence[charts.Plot], names: Sequence[str], alt: str) -> Figure:
    """Returns panels of curves as a figure, in pieces where a page is narrow."""
    return Figure(label, title, charts.lines(panels, names, alt=alt), alt, parts=charts.panels(panels, names))


def panel(runs: Sequence[Trained], key: str, title: str) -> charts.Plot:
    """Returns a metric of each run's steps as a panel of curves, thinned to what a page has room for."""
    series, most = [], min(POINTS, max(FEWEST, CURVE_POINTS // len(runs)))
    for run in runs:
        values = [
            (float(row["step"]), float(row[key]))
            for row in run.metrics
            if isinstance(row.get(key), int | float) and isinstance(row.get("step"), int)
        ]
        stride = max(1, math.ceil(len(values) / most))
        # each point is the mean of its steps: a thinned curve would show a step's noise
        thinned = [_mean(values[start : start + stride]) for start in range(0, len(values), stride)]
        if thinned:
            series.append(charts.PlotSeries(run.paths.name, tuple(thinned)))
    return charts.Plot(title, tuple(series))


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return points[-1][0], math.fsum(y for _, y in points) / len(points)


def pareto_figures(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[Figure]:
    """Returns, for each model, the composite against the share on target, with the front that nothing beats in both."""
    found = [(model, _pareto_points(study, outcomes, model)) for model in study.models]
    judged = [(model, points) for model, points in found if points]
    figures = []
    for place, (model, points) in enumerate(judged):
        front = sorted(
            (x, y) for _, x, y in points if not any(a >= x and b >= y and (a, b) != (x, y) for _, a, b in points)
        )
        best = ", ".join(name for name, x, y in points if (x, y) in front)
        alt = f"{model}: composite against share on target, {len(points)} configurations; nothing beats {best} in both"
        series = [charts.PlotSeries(name, ((x, y),)) for name, x, y in points]
        svg = charts.scatter(series, alt=alt, x_title="share on target", y_title="composite", front=front)
        label = f"S1{letter(place)}" if len(judged) > 1 else "S1"
        note = "The line joins what nothing else beats in both."
        figures.append(Figure(label, f"Quality against length, {model}", svg, alt, (note,)))
    return figures


def _pareto_points(study: Study, outcomes: Sequence[ConfigurationResult], model: str) -> list[tuple[str, float, float]]:
    """Name, share on target and composite of what has both."""
    mine = [*filter(None, [baseline_of(study, model)]), *(one for one in outcomes if one.model == model)]
    return [
        (one.name, on, composite)
        for one in mine
        if (on := one.metric("length/within_tol")) is not None and (composite := one.metric(COMPOSITE)) is not None
    ]


def reward_figures(outcomes: Sequence[ConfigurationResult]) -> list[Figure]:
    """Returns each overlap signal of an example against what the judge gave it."""
    figures: list[Figure] = []
    judged = [one for one in outcomes if COMPOSITE in one.evaluations[0].scores.metrics]
    for signal in OVERLAP:
        mine = [one for one in judged if signal in one.evaluations[0].scores.metrics]
        if not mine:
            continue
        (pair,) = correlate([one.evaluations[0].scores.frame for one in mine], (signal, COMPOSITE))
        most = min(CLOUD, max(1, CLOUD_POINTS // len(mine)))
        series = []
        for one in mine:
            rows = one.evaluations[0].scores.frame.select(signal, COMPOSITE).drop_nulls().rows()
            stride = max(1, math.ceil(len(rows) / most))
            series.append(charts.PlotSeries(f"{one.model} {one.name}", tuple((x, y) for x, y in rows[::stride])))
        r = "no correlation, as one does not vary" if math.isnan(pair.r) else f"r = {pair.r:+.2f}"
        alt = f"Composite against {signal} of {pair.n} summaries: {r}"
        svg = charts.scatter(series, alt=alt, x_title=signal, y_title="composite")
        figures.append(
            Figure(f"S2{letter(len(figures))}", f"Reward against judge, {signal}", svg, alt, (f"{r}, n = {pair.n}.",))
        )
    return figures


def errors_figure(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[Figure]:
    """Returns how many summaries of each configuration are too long or too short."""
    every = [*filter(None, (baseline_of(study, model) for model in study.models)), *outcomes]
    found = [(f"{one.model} {one.name}", [one.metric(ERRORS + name) for name in OFF_TARGET]) for one in every]
    known = [(name, [share for share in pair if share is not None]) for name, pair in found]
    known = [(name, pair) for name, pair in known if len(pair) == 2]
    if not known:
        return []
    names, shares = [name for name, _ in known], [pair for _, pair in known]
    told = "; ".join(
        f"{name} {percent(long)} and {percent(short)}" for name, (long, short) in zip(names, shares, strict=True)
    )
    alt = f"Share of summaries too long and too short: {told}"
    svg = charts.bars(names, OFF_TARGET, shares, alt=alt)
    return [Figure("S3", "Off target", svg, alt)]
