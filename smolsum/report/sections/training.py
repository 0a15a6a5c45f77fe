"""What training did: the score before and after it, examples rescued and regressed, curves by step, and the cost."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from smolsum.report import charts
from smolsum.report.collect import ReportInputs, TrainedRun
from smolsum.report.document import (
    ARROWS,
    DASH,
    Cell,
    CellSource,
    Figure,
    Table,
    direction_cell,
    empty,
    interval,
    letter,
    number,
    percent,
    plain,
    sentence,
    signed,
    test_cells,
    words,
)
from smolsum.report.results import FLIPPED, compare, count_flips, flip_cells, paired_values
from smolsum.report.sections.scores import ERRORS
from smolsum.report.shell_commands import judge_command
from smolsum.report.significance import METRICS, tally, tally_note
from smolsum.runs.evaluation_records import SUMMARY
from smolsum.stats.multiple_testing import holm
from smolsum.stats.paired import mcnemar
from smolsum.stats.seeds import MixedResult, compare_runs
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
    tests = [_before_and_after(run, inputs.score) for run in inputs.trained]
    adjusted = holm([math.nan if test is None else test.result.p for test in tests])
    names = {_test_name(test) for test in tests if test is not None} or {"paired t-test"}
    judged_metrics = (*inputs.criteria, COMPOSITE) if inputs.criteria else ()
    each = [compare([run.first], [run.last], judged_metrics) if run.first else {} for run in inputs.trained]
    counted = [(one.cell,) if judged_metrics else () for one in tally(each)]
    rows: list[tuple[Cell, ...]] = []
    changes: list[tuple[Cell, ...]] = []
    for run, test, p, metrics in zip(inputs.trained, tests, adjusted, counted, strict=True):
        head = (words(run.model), words(run.name))
        if run.first is not None and (flips := count_flips(PASSED, run.first, run.last)) is not None:
            changes.append((*head, *flip_cells(flips)))
        if test is None:
            judged = run.first is not None and all(e.metric(inputs.score) is not None for e in (run.first, run.last))
            why = ["no example has both scores"] if judged else []
            rows.append((*head, *[empty(judge_command(inputs, run.last), *why)] * (9 + len(metrics))))
            continue
        result = test.result
        source = None if run.last.metric(inputs.score) is None else run.last.source(inputs.score)
        rows.append(
            (
                *head,
                number(result.mean_a, plain(3)),
                number(result.mean_b, plain(3), source),
                number(result.delta, signed(3)),
                *test_cells(result.t, result.p, p),
                interval(result.ci_low, result.ci_high),
                *metrics,
                direction_cell(result.delta, result.p),
            )
        )
    more = (METRICS,) if judged_metrics else ()
    columns = ("Model", "Run", "Before", "After", "Δ", "t", "p", "Sig", "p (Holm)", "95 % interval", *more, "Direction")
    note = f"{inputs.score}, mean over the test examples; p, two-sided: {' or '.join(sorted(names))}"
    note += "; interval of the difference by Student's t."
    notes = (note, *([tally_note(judged_metrics, "from before training")] if any(each) else []))
    higher = dict.fromkeys(("Before", "After"), "higher")
    tables = [Table("S11", "What training did", columns, tuple(rows), notes, better=higher)] if rows else []
    if changes:
        counts = ("Model", "Run", "Rescued", "Regressed", "p (McNemar)")
        note = "Rescued: right after training and not before; regressed: the reverse."
        tables.append(Table("S5", "Rescued and regressed examples", counts, tuple(changes), (note,), better=FLIPPED))
    return tables


def _before_and_after(run: TrainedRun, score: str) -> MixedResult | None:
    """The last evaluation against the one before training; None if one of them lacks the score or no example has both.
    If every score is 0 or 1, p is McNemar's, which is exact, and t is undefined."""
    if run.first is None or (pair := paired_values(score, [run.first], [run.last])) is None:
        return None
    found = compare_runs(*pair, alternative="two-sided")
    flips = mcnemar(pair[0][0], pair[1][0], alternative="two-sided")
    return found if flips is None else replace(found, result=replace(found.result, t=math.nan, p=flips.p, note=""))


def _test_name(test: MixedResult) -> str:
    """The test that the p of `_before_and_after` comes from."""
    return "McNemar's exact test" if math.isnan(test.result.t) and not test.result.note else "paired t-test"


def stage_results_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table S14: each run at its start and after every stage, with the share of right examples, which of them
    the stages rescued and regressed since the start, and the errors. Nothing for tasks without right and wrong."""
    runs = [run for run in inputs.trained if all(e.metric(PASSED) is not None for e in run.evaluations)]
    if not runs:
        return []
    evaluations = [(run, e) for run in runs for e in run.evaluations]
    errors = dict.fromkeys(
        key
        for _, e in evaluations
        for key, value in e.summary.metrics.items()
        if key.startswith(ERRORS) and value is not None
    )
    rows = []
    for run, e in evaluations:
        flips = None if e is run.evaluations[0] else count_flips(PASSED, run.evaluations[0], e)
        counts = flip_cells(flips) if flips else (words(""),) * 3
        shares = (e.cell(key, percent, e.command) for key in errors)
        rows.append((words(run.name), words(e.folder.name), e.cell(PASSED, percent), *counts, *shares))
    titles = [sentence(key.removeprefix(ERRORS)) for key in errors]
    note = "Rescued: right now and not at the start; regressed: the reverse; p by McNemar's exact test, two-sided."
    columns = ("Run", "Evaluation", "Right", "Rescued", "Regressed", "p (McNemar)", *titles)
    better = {"Right": "higher", **FLIPPED, **dict.fromkeys(titles, "lower")}
    return [Table("S14", "From stage to stage", columns, tuple(rows), (note,), better=better)]


def curve_figures(inputs: ReportInputs, watched: Sequence[tuple[str, str]] = ()) -> list[Figure]:
    """Return Figure 2, KL divergence and clip fraction, and the training dynamics of each model (Figures 3, 4, …), with
    the rewards of each stage by themselves, as they do not compare, and the mean of each signal. `watched` has metrics
    with their titles; without it they are what the task of the runs watches."""
    if not inputs.trained:
        return []
    plots = [_plot(inputs.trained, "kl", "KL divergence")]
    plots.append(_plot(inputs.trained, "clip_ratio/region_mean", "clip fraction"))
    highest = {plot.title: max((y for s in plot.series for _, y in s.values), default=0.0) for plot in plots}
    alt = "KL divergence and clip fraction by step: " + ", ".join(f"{t} at most {v:.3g}" for t, v in highest.items())
    figures = [_curves("2", "KL divergence and clip fraction", plots, inputs.trained, alt, _kl_note(inputs.trained))]
    for place, model in enumerate(inputs.models):
        runs = [run for run in inputs.trained if run.model == model]
        if not runs:
            continue
        plots = []
        seen = watched or _watched(runs)
        signals = [(key, title) for key, title in _signals(runs) if key not in dict(seen)]
        for key, title in (*UPDATES, *REWARDS, *signals, *SAMPLES, *seen, *SPREAD):
            names = _stage_names(runs) if key in dict(REWARDS) else []
            each = [_plot(runs, key, f"{title}, stage {name}", name) for name in names]
            plots += each if len(each) > 1 else [_plot(runs, key, title)]
        count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
        alt = f"Training dynamics of {model}, {count}: {', '.join(plot.title for plot in plots)} by step"
        figures.append(_curves(str(3 + place), f"Training dynamics, {model}", plots, runs, alt))
    return figures


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
        runs = [run for run in inputs.trained if run.model == model]
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
    label: str, title: str, plots: Sequence[charts.Plot], runs: Sequence[TrainedRun], alt: str, *more: str
) -> Figure:
    names = [run.name for run in runs]
    parted = any(series.ends for plot in plots for series in plot.series)
    notes = ("A dashed line is the end of a stage.",) if parted else ()
    drawing = charts.lines(plots, names, alt=alt)
    return Figure(label, title, drawing, alt, (*notes, *filter(None, more)), charts.panels(plots, names))


def _kl_note(runs: Sequence[TrainedRun]) -> str:
    """Return why the KL divergence of a run with several stages falls to 0 in between; empty where it does not."""
    several = [run for run in runs if len(run.config.get("stages", ())) > 1]
    fresh = any(run.config.get("grpo", {}).get("reference", "stage") == "stage" for run in several)
    return "Each stage measures KL from the policy that it began with." if fresh else ""


def _stage_names(runs: Sequence[TrainedRun]) -> list[str]:
    return list(dict.fromkeys(str(row.get("stage", "")) for run in runs for row in run.metrics))


def _plot(runs: Sequence[TrainedRun], key: str, title: str, stage: str = "") -> charts.Plot:
    """A metric by step, one curve a run, thinned to what a page has room for; of one stage only if it is named."""
    series, most = [], min(MAX_POINTS, max(MIN_POINTS, MAX_PLOT_POINTS // len(runs)))
    for run in runs:
        values: dict[str, list[tuple[float, float]]] = {}
        for row in run.metrics:
            if isinstance(row.get(key), int | float) and isinstance(row.get("step"), int):
                values.setdefault(str(row.get("stage", "")), []).append((float(row["step"]), float(row[key])))
        kept = [values.get(stage, [])] if stage else list(values.values())
        stride = max(1, math.ceil(sum(map(len, kept)) / most))
        # each point is the mean of its steps: a thinned curve would show the noise of single steps
        thinned = [_mean(own[start : start + stride]) for own in kept for start in range(0, len(own), stride)]
        if thinned:
            ends = tuple(own[-1][0] for own in kept[:-1])
            series.append(charts.PlotSeries(run.name, tuple(thinned), ends))
    return charts.Plot(title, tuple(series))


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return points[-1][0], math.fsum(y for _, y in points) / len(points)


def cost_table(inputs: ReportInputs) -> Table:
    """Return Table S7: steps, time by part and memory of each run, and the calls of its judge."""
    rows = [
        (
            words(run.name),
            number(len(run.metrics), plain(0), CellSource(run.paths.metrics, "step")) if run.metrics else DASH,
            *(_over_steps(run, key, "sum", _minutes, 1) for key in ("perf/step_s", "perf/rollout_s", "perf/fwd_bwd_s")),
            _over_steps(run, "perf/peak_memory_gb", "max", max, 2),
            *(_judge_usage(inputs, run) if inputs.criteria else ()),
        )
        for run in inputs.trained
    ]
    columns = ("Run", "Steps", "Minutes", "Minutes sampling", "Minutes updating", "Peak GB")
    judged = ("Judge calls", "Tokens in", "Tokens out", "Dollars") if inputs.criteria else ()
    return Table("S7", "Cost and time", (*columns, *judged), tuple(rows))


def _judge_usage(inputs: ReportInputs, run: TrainedRun) -> tuple[Cell, ...]:
    usage = run.last.summary.judging.usage if run.last.summary.judging else {}
    command, source = judge_command(inputs, run.last), CellSource(run.last.folder / SUMMARY, "judging.usage")
    counts = [
        number(usage.get(key), plain(0), source, command=command) for key in ("calls", "input_tokens", "output_tokens")
    ]
    if usage and usage.get("dollars") is None:
        return (*counts, words("price unknown"))
    return (*counts, number(usage.get("dollars"), plain(2), source, command=command))


def _over_steps(run: TrainedRun, key: str, name: str, of: Callable[[list[float]], float], digits: int) -> Cell:
    """One number of a metric's values in all steps; a dash if no step has it."""
    values = [float(row[key]) for row in run.metrics if isinstance(row.get(key), int | float)]
    return number(of(values), plain(digits), CellSource(run.paths.metrics, f"{name} of {key}")) if values else DASH


def _minutes(seconds: list[float]) -> float:
    return math.fsum(seconds) / 60
