"""What training did: the score before and after it, examples rescued and regressed, curves by step, and the cost."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from smolsum.results.report import charts
from smolsum.results.report.collect import ReportInputs, TrainedRun
from smolsum.results.report.document import (
    ARROWS,
    DASH,
    Cell,
    CellSource,
    Figure,
    Table,
    empty,
    letter,
    number,
    percent,
    plain,
    sentence,
    signed,
    table,
)
from smolsum.results.report.results import (
    FLIPPED,
    METRICS,
    UNCOMMON,
    cells_of_test,
    compare,
    compare_each,
    flip_cells,
    tally,
    tally_note,
)
from smolsum.results.report.sections.scores import ERRORS
from smolsum.results.report.shell_commands import judge_command
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.stats.several import holm
from smolsum.types import COMPOSITE, PASSED

MAX_POINTS, MAX_PLOT_POINTS, MIN_POINTS = 120, 600, 30
"""points of a curve at most, of all curves in a plot together, and of a curve at least: a page stays small"""
UPDATES = (("loss", "loss"), ("grad_norm", "gradient norm before clipping"))
REWARDS = (("reward", "reward ↑"), ("reward_std", "reward std"))
"""metrics of which each stage has its own scale"""
SAMPLES = (
    ("advantages/mean", "advantage, mean"),
    ("advantages/std", "advantage, std"),
    ("completions/mean_length", "tokens, mean"),
    ("completions/min_length", "tokens, shortest"),
    ("completions/max_length", "tokens, longest"),
)
SPREAD = (("frac_reward_zero_std", "groups without spread"), ("entropy", "entropy"))
_SIGNAL = re.compile(r"rewards/(.+)/mean")
_VALIDATION = f"validation/{ERRORS}"


def change_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table S11, the score of each run before and after training; and S5, the examples that training rescued
    and regressed, where evaluations say which are right."""
    pairs = [(run, (run.start,) if run.start is not None else None, (run.last,)) for run in inputs.trained]
    tests = [None if before is None else compare(inputs.score, before, after) for _, before, after in pairs]
    adjusted = holm([math.nan if test is None else test.p for test in tests])
    judged_metrics = (*inputs.criteria, COMPOSITE) if inputs.criteria else ()
    each = [{} if before is None else compare_each(judged_metrics, before, after) for _, before, after in pairs]
    tallies = [[one] if judged_metrics else [] for one in tally(each)]
    rows = []
    for run, test, p, tallied in zip(inputs.trained, tests, adjusted, tallies, strict=True):
        if test is None:
            judged = run.start is not None and all(e.metric(inputs.score) is not None for e in (run.start, run.last))
            lack = empty(judge_command(inputs, run.last), UNCOMMON if judged else "not run")
            rows.append([run.model, run.name, *[lack] * (9 + len(tallied))])
            continue
        # where each score is right or wrong, t is undefined
        result = replace(test.result, t=math.nan, p=test.p) if test.flips else test.result
        source = None if run.last.metric(inputs.score) is None else run.last.source(inputs.score)
        means = (number(result.mean_a, plain(3)), number(result.mean_b, plain(3), source))
        rows.append([run.model, run.name, *means, number(result.delta, signed(3)), *cells_of_test(result, p, *tallied)])
    more = [METRICS] if judged_metrics else []
    columns = ("Model", "Run", "Before", "After", "Δ", "t", "p", "Sig", "p (Holm)", "95 % interval", *more, "Direction")
    names = {"McNemar's exact test" if test.flips else "paired t-test" for test in tests if test is not None}
    note = f"{inputs.score}, mean over the test examples; p, two-sided: {' or '.join(sorted(names)) or 'paired t-test'}"
    note += "; interval of the difference by Student's t."
    tallied_note = tally_note(judged_metrics, "from before training") if any(each) else ""
    higher = dict.fromkeys(("Before", "After"), "higher")
    passed = [(run, compare(PASSED, before, after)) for run, before, after in pairs if before is not None]
    changes = [[run.model, run.name, *flip_cells(one.flips)] for run, one in passed if one and one.flips]
    flip_columns = ("Model", "Run", "Rescued", "Regressed", "p (McNemar)")
    flip_note = "Rescued: right after training and not before; regressed: the reverse."
    return [
        table("S11", "What training did", columns, rows, note, tallied_note, better=higher),
        table("S5", "Rescued and regressed examples", flip_columns, changes, flip_note, better=FLIPPED),
    ]


def stage_results_table(inputs: ReportInputs) -> Table:
    """Return Table S14: each run at its start and after every stage, with the share of right examples, which of them
    the stages rescued and regressed since the start, and the errors. No rows for tasks without right and wrong."""
    runs = [run for run in inputs.trained if all(e.metric(PASSED) is not None for e in run.evaluations)]
    metrics = [one for run in runs for e in run.evaluations for one in e.summary.metrics.items()]
    errors = dict.fromkeys(key for key, value in metrics if key.startswith(ERRORS) and value is not None)
    rows = []
    for run in runs:
        start, *_ = run.evaluations
        for e in run.evaluations:
            test = None if e is start else compare(PASSED, [start], [e])
            counts = flip_cells(test.flips) if test and test.flips else [Cell("")] * 3
            shares = (e.cell(key, percent, e.command) for key in errors)
            rows.append([run.name, e.name, e.cell(PASSED, percent), *counts, *shares])
    titles = [sentence(key.removeprefix(ERRORS)) for key in errors]
    note = "Rescued: right now and not at the start; regressed: the reverse; p by McNemar's exact test, two-sided."
    columns = ("Run", "Evaluation", "Right", "Rescued", "Regressed", "p (McNemar)", *titles)
    better = {"Right": "higher", **FLIPPED, **dict.fromkeys(titles, "lower")}
    return table("S14", "From stage to stage", columns, rows, note, better=better)


def curve_figures(inputs: ReportInputs, watched: Sequence[tuple[str, str]] = ()) -> Iterator[Figure]:
    """Yield Figure 2, KL divergence and clip fraction, and the training dynamics of each model (Figures 3, 4, …), with
    the rewards of each stage by themselves, as they do not compare, and the mean of each signal. `watched` has metrics
    with their titles; without it they are what the task of the runs watches."""
    if not inputs.trained:
        return
    of_all = {"kl": "KL divergence", "clip_ratio/region_mean": "clip fraction"}
    plots = [_plot(inputs.trained, key, title) for key, title in of_all.items()]
    highest = {plot.title: max((y for s in plot.series for _, y in s.values), default=0.0) for plot in plots}
    alt = "KL divergence and clip fraction by step: " + ", ".join(f"{t} at most {v:.3g}" for t, v in highest.items())
    yield _curves("2", "KL divergence and clip fraction", plots, inputs.trained, alt, _kl_note(inputs.trained))
    for place, model in enumerate(inputs.models):
        if not (runs := inputs.runs_of(model)):
            continue
        plots = []
        seen = watched or _watched(runs)
        signals = [(key, title) for key, title in _signals(runs) if key not in dict(seen)]
        stages = dict.fromkeys(str(row.get("stage", "")) for run in runs for row in run.metrics)
        for key, title in (*UPDATES, *REWARDS, *signals, *SAMPLES, *seen, *SPREAD):
            if key in dict(REWARDS) and len(stages) > 1:
                plots += [_plot(runs, key, f"{title}, stage {name}", name) for name in stages]
            else:
                plots.append(_plot(runs, key, title))
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        alt = f"Training dynamics of {model}, {count}: {', '.join(plot.title for plot in plots)} by step"
        yield _curves(str(3 + place), f"Training dynamics, {model}", plots, runs, alt)


def _signals(runs: Sequence[TrainedRun]) -> list[tuple[str, str]]:
    """The mean of each signal of the runs, before its weight, with its title; none if all have the same single signal,
    which their reward shows."""
    keys = dict.fromkeys(key for run in runs for row in run.metrics for key in row)
    names = {key: found[1] for key in keys if (found := _SIGNAL.fullmatch(key))}
    penalties = {
        name
        for run in runs
        for stage in run.config["stages"].values()
        for name, weight in stage["rewards"].items()
        if weight < 0
    }
    if len(names) < 2:
        return []
    return [(key, f"{name}, mean{'' if name in penalties else ARROWS['higher']}") for key, name in names.items()]


def _watched(runs: Sequence[TrainedRun]) -> list[tuple[str, str]]:
    """The metrics of steps and validations that the task of the runs watches, with their titles."""
    known = {key for run in runs for row in run.metrics for key in row}
    watched = {name: keys for run in runs for name, keys in run.last.summary.watched.items()}
    found = []
    for prefix, suffix in (("", ""), ("validation/", ", validation")):
        for name, keys in watched.items():
            found += [(prefix + key, name + suffix) for key in keys if prefix + key in known][:1]
    return found


def error_figures(inputs: ReportInputs) -> list[Figure]:
    """Return Figures S4: for each model, the share of each error at every validation of its runs."""
    figures: list[Figure] = []
    for model in inputs.models:
        runs = inputs.runs_of(model)
        keys = dict.fromkeys(key for run in runs for row in run.metrics for key in row if key.startswith(_VALIDATION))
        plots = [_plot(runs, key, key.removeprefix(_VALIDATION)) for key in keys]
        plots = [plot for plot in plots if any(y for one in plot.series for _, y in one.values)]
        if plots:
            titles = ", ".join(plot.title for plot in plots)
            alt = f"Errors of {model} by step, in shares of the validation prompts: {titles}"
            label = f"S4{letter(len(figures))}"
            figures.append(_curves(label, f"Errors by step, {model}", plots, runs, alt))
    return figures


def _curves(
    label: str, title: str, plots: Sequence[charts.Plot], runs: Sequence[TrainedRun], alt: str, more: str = ""
) -> Figure:
    names = [run.name for run in runs]
    parted = any(series.ends for plot in plots for series in plot.series)
    notes = ("A dashed line is the end of a stage." if parted else "", more)
    drawing, parts = charts.curves(plots, names, alt=alt)
    return Figure(label, title, drawing, alt, tuple(filter(None, notes)), parts)


def _kl_note(runs: Sequence[TrainedRun]) -> str:
    """Return why the KL divergence of a run with several stages falls to 0 in between; empty where it does not."""
    several = [run for run in runs if len(run.config.get("stages", ())) > 1]
    fresh = any(run.config.get("grpo", {}).get("reference", "stage") == "stage" for run in several)
    return "Each stage measures KL from the policy that it began with." if fresh else ""


def _plot(runs: Sequence[TrainedRun], key: str, title: str, stage: str = "") -> charts.Plot:
    """A metric by step, one curve a run, thinned to what a page has room for; of one stage only if it is named."""
    series, most = [], min(MAX_POINTS, max(MIN_POINTS, MAX_PLOT_POINTS // len(runs)))
    for run in runs:
        values: dict[str, list[tuple[float, float]]] = {}
        for row in run.rows_with("step", key):
            values.setdefault(str(row.get("stage", "")), []).append((float(row["step"]), float(row[key])))
        kept = [values.get(stage, [])] if stage else list(values.values())
        stride = max(1, math.ceil(sum(map(len, kept)) / most))
        parts = [own[start : start + stride] for own in kept for start in range(0, len(own), stride)]
        if parts:
            # each point is the mean of its steps: a thinned curve would show the noise of single steps
            points = tuple((part[-1][0], math.fsum(y for _, y in part) / len(part)) for part in parts)
            series.append(charts.PlotSeries(run.name, points, tuple(own[-1][0] for own in kept[:-1])))
    return charts.Plot(title, tuple(series))


def cost_table(inputs: ReportInputs) -> Table:
    """Return Table S7: steps, time by part and memory of each run, and the calls of its judge."""
    rows = (
        [
            run.name,
            number(len(run.metrics), plain(0), CellSource(run.paths.metrics, "step")) if run.metrics else DASH,
            *(_over_steps(run, key, "sum", _minutes, 1) for key in ("perf/step_s", "perf/rollout_s", "perf/fwd_bwd_s")),
            _over_steps(run, "perf/peak_memory_gb", "max", max, 2),
            *(_judge_usage(inputs, run) if inputs.criteria else ()),
        ]
        for run in inputs.trained
    )
    columns = ("Run", "Steps", "Minutes", "Minutes sampling", "Minutes updating", "Peak GB")
    judged = ("Judge calls", "Tokens in", "Tokens out", "Dollars") if inputs.criteria else ()
    return table("S7", "Cost and time", (*columns, *judged), rows)


def _judge_usage(inputs: ReportInputs, run: TrainedRun) -> list[Cell]:
    usage = run.last.summary.judging.usage if run.last.summary.judging else {}
    command, source = judge_command(inputs, run.last), CellSource(run.last.folder / SUMMARY, "judging.usage")
    shown = {"calls": plain(0), "input_tokens": plain(0), "output_tokens": plain(0), "dollars": plain(2)}
    cells = [number(usage.get(key), show, source, command=command) for key, show in shown.items()]
    return [*cells[:-1], Cell("price unknown")] if usage and usage.get("dollars") is None else cells


def _over_steps(run: TrainedRun, key: str, name: str, of: Callable[[list[float]], float], digits: int) -> Cell:
    """One number of a metric's values in all steps; a dash if no step has it."""
    values = [float(row[key]) for row in run.rows_with(key)]
    return number(of(values), plain(digits), CellSource(run.paths.metrics, f"{name} of {key}")) if values else DASH


def _minutes(seconds: list[float]) -> float:
    return math.fsum(seconds) / 60
