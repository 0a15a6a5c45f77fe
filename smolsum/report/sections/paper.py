"""What only the study has: its baselines (Tables 4-6), its grid of configurations (8, 10-14, S1), its correlations
(Figure 1), and what they add up to. Only reports of runs that follow the study have it."""

import math
from collections.abc import Callable, Sequence

from smolsum.config.run_labels import CRITERIA, FINETUNED, INCLUDED, LENGTH_ONLY, PREFIX, REWARD_SETS, STRATEGIES
from smolsum.report import charts
from smolsum.report.collect import EvaluationResult, ReportInputs
from smolsum.report.document import (
    DASH,
    Cell,
    CellSource,
    Figure,
    Table,
    direction_cell,
    empty,
    interval,
    letter,
    mark_best,
    number,
    p_value,
    percent,
    plain,
    signed,
    test_cells,
    words,
)
from smolsum.report.results import FLIPPED, ConfigurationResult, baseline_of, compare, flip_cells, paired_values
from smolsum.report.sections.scores import ERRORS
from smolsum.report.shell_commands import baseline_command, judge_all_command, judge_command, train_command
from smolsum.report.significance import METRICS, tally_note
from smolsum.rewards import FACTS
from smolsum.stats.correlation import correlate
from smolsum.stats.paired import ALPHA
from smolsum.stats.seeds import compare_runs
from smolsum.tasks.text_metrics import CLOSE, PERCENTILES
from smolsum.types import COMPOSITE, PASS_RATE, PASSED

ALL = "all"
"""the reward that stands for each of the study's"""
VARIANTS = ("50-words", "64-tokens")
"""the prompts of the study's baselines (Table 4)"""
ON_TARGET = "length/within_tol"
WATCHED = (ON_TARGET, "share on target ↑")
"""the metric that the study watches during training, with its title"""
LENGTHS = (
    ("Mean", "mean", plain(1)),
    ("Std", "std", plain(1)),
    ("Min", "min", plain(0)),
    *((f"P{p}", f"p{p}", plain(0)) for p in PERCENTILES),
    ("Max", "max", plain(0)),
)
"""title, name in the metrics, and format"""
_ALPHA_SIGN = "\N{GREEK SMALL LETTER ALPHA}"
_TESTED = ("ΔAverage", "t", "p", "Sig", "p (Holm)", "95 % interval", METRICS, "Direction")
_JUDGED = ("Average", *map(str.title, CRITERIA), "Pass Rate")
_HIGHER = dict.fromkeys(("Composite", *_JUDGED), "higher")
_OFF_TARGET = ("too long", "too short")


def baseline_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table 4, the untrained models with a length in the prompt, and a test between the two prompts (5, 6)."""
    rows: list[tuple[Cell, ...]] = []
    tests = []
    for place, model in enumerate(inputs.models):
        mine = {e.variant: e for e in inputs.baselines if e.model == model}
        for variant in dict.fromkeys((*VARIANTS, *sorted(mine))):
            name = f"baseline-{variant}" if variant in VARIANTS else variant
            blank = empty(baseline_command(inputs, model, variant))
            cells = _judged(inputs, mine[variant]) if variant in mine else (blank,) * len(_JUDGED)
            rows.append((words(model), words(name), *cells))
        # the study tests Qwen first
        label = str(6 - place if len(inputs.models) > 1 else 5) if place < 2 else f"6{letter(place - 2)}"
        tests.append(_prompts_table(label, model, inputs, *map(mine.get, VARIANTS)))
    columns = ("Model", "Prompt", "Composite", *map(str.title, CRITERIA), "Pass Rate")
    title = "Untrained models with the length in the prompt"
    table = Table("4", title, columns, mark_best(rows, range(2, 8)), better=_HIGHER)
    return [table, *sorted(tests, key=lambda one: one.number)]


def _prompts_table(
    label: str, model: str, inputs: ReportInputs, one: EvaluationResult | None, two: EvaluationResult | None
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for key in (*CRITERIA, COMPOSITE):
        pair = paired_values(key, [one], [two]) if one and two else None
        if one is None or two is None or pair is None:
            judged = one is not None and two is not None and all(e.metric(key) is not None for e in (one, two))
            why = ["no example has both scores"] if judged else []
            rows.append((words(key.title()), *[empty(baseline_command(inputs, model), *why)] * 7))
            continue
        result = compare_runs(*pair, alternative="two-sided").result
        rows.append(
            (
                words(key.title()),
                number(result.mean_a, plain(4), one.source(key)),
                number(result.mean_b, plain(4), two.source(key)),
                number(result.delta, signed(4)),
                DASH if result.note else number(result.t, plain(4)),
                DASH if result.note == "constant" else number(result.p, p_value),
                words("✓" if result.p < ALPHA else "✗"),
                direction_cell(result.delta, result.p, *(f"{variant} better" for variant in reversed(VARIANTS))),
            )
        )
    title = f"{model} - paired t-test, {VARIANTS[1]} minus {VARIANTS[0]}"
    columns = ("Metric", *VARIANTS, "Δ", "t", "p", "Sig", "Direction")
    return Table(label, title, columns, tuple(rows), better=dict.fromkeys(VARIANTS, "higher"))


def configurations_table(inputs: ReportInputs) -> Table:
    """Return Table 8: the study's reward configurations, each with its runs."""
    rows = []
    for reward, names in REWARD_SETS.items():
        cells = [words(reward), words(" + ".join(FACTS[name].title or name for name in names))]
        for strategy in STRATEGIES:
            runs = [run for run in inputs.trained if (run.strategy, run.reward) == (strategy, reward)]
            if runs:
                source = CellSource(runs[0].paths.config, "stages")
                cells.append(Cell(", ".join(run.name for run in runs), source=source))
            else:
                cells.append(_not_here(inputs, inputs.models, strategy, reward))
        rows.append(tuple(cells))
    columns = ("Configuration", "Signals", *(s.capitalize() for s in STRATEGIES.values()))
    return Table("8", "Reward configurations", columns, tuple(rows))


def result_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[Table]:
    """Return Tables 10-13 and 10a-13a, results and output lengths for each model and strategy (S16 and S16a, S17 … for
    a third model); Table 14, the best of each strategy; and S1, the configurations that the study lacks."""
    tables: list[Table] = []
    for place, (model, strategy) in enumerate((m, s) for m in inputs.models for s in STRATEGIES):
        label = str(10 + place) if place < 4 else f"S{12 + place}"  # S1 to S15 are other tables
        mine = [one for one in results if (one.model, one.strategy) == (model, strategy)]
        if not mine and strategy == FINETUNED and not inputs.has_references:
            continue
        tables.append(_results(label, inputs, model, strategy, mine))
        tables.append(_lengths(f"{label}a", inputs, model, strategy, mine))
    if others := [one for one in results if one.strategy not in STRATEGIES]:
        rows = [(words(one.model), words(one.name), *_judged(inputs, one), *_tested(inputs, one)) for one in others]
        columns = ("Model", "Configuration", *_JUDGED, *_TESTED)
        title = "Configurations that the study does not have"
        notes = tuple(_metrics_note(others))
        tables.append(Table("S1", title, columns, mark_best(rows, range(2, 8)), notes, better=_HIGHER))
    return [*tables, _strategies_table(inputs, results)] if inputs.has_references else tables


def _results(label: str, inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult]) -> Table:
    """The judged scores of a model's configurations of a strategy, each tested against the baseline."""
    baseline = baseline_of(inputs, model)
    columns = ("Reward Configuration", *_JUDGED, *_TESTED)
    name, untested = "length-only (GRPO baseline)", [DASH] * len(_TESTED)
    if baseline is None:
        blank = empty(train_command(inputs, model, LENGTH_ONLY))
        rows: list[tuple[Cell, ...]] = [(words(name), *[blank] * len(_JUDGED), *untested)]
    else:
        rows = [(words(name + baseline.seeds), *_judged(inputs, baseline), *untested)]
    rows += [(words(one.name), *_judged(inputs, one), *_tested(inputs, one)) for one in mine]
    rows += _not_run(inputs, model, strategy, mine, len(columns))
    notes = [
        f"Sig: two-sided paired t-test against the length-only baseline on the average, {_ALPHA_SIGN} = {ALPHA}; "
        "p (Holm) is adjusted over all comparisons with a baseline in this report.",
        *_metrics_note(mine),
    ]
    tests = [(one, one.test.result) for one in mine if one.test]
    if averages := {one.name: average for one, _ in tests if (average := one.metric(COMPOSITE)) is not None}:
        best = max(averages, key=lambda name: averages[name])
        deltas = [result.delta for _, result in tests if result.p < ALPHA]
        higher = sum(delta > 0 for delta in deltas)
        notes.insert(
            0,
            f"{len(deltas)} of {len(tests)} configurations differ significantly from the baseline, {higher} better and "
            f"{len(deltas) - higher} worse; the best is {best} (average {averages[best]:.3f}).",
        )
    if missing := [f"{one.name} {result.missing}" for one, result in tests if result.missing]:
        notes.append(f"Pairs left out because a score is missing: {', '.join(missing)}.")
    if any(one.seeds for one in [*mine, *([baseline] if baseline else [])]):
        notes.append("xN: N seeds; their mean per example is compared, and t counts seeds and examples as samples.")
    marked = mark_best(rows, range(1, 7))
    return Table(label, f"{model} - {STRATEGIES[strategy]}", columns, marked, tuple(notes), better=_HIGHER)


def _lengths(label: str, inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult]) -> Table:
    """The lengths of the completions of a model's configurations of a strategy."""
    baseline = baseline_of(inputs, model)
    target, tolerance = target_of(inputs)
    own = any(run.config["task"].get("targets") for run in inputs.trained)  # each prompt asks for its own length
    # older runs have no share within 1 and 2
    known = list(filter(None, [baseline, *mine]))
    close = [n for n in CLOSE if n != tolerance and any(one.metric(f"length/within_{n}") is not None for one in known)]
    shares = [ON_TARGET, *(f"length/within_{n}" for n in close)]
    columns = ("Reward Configuration", *(head for head, _, _ in LENGTHS), _within(target, tolerance, own=own))
    columns = (*columns, *(f"Within ±{n}" for n in close))
    rows = [_length_row(one.name, one, shares) for one in mine]
    # the study shows the baseline's lengths only with the joint strategy, where they are comparable
    if baseline is not None and strategy == INCLUDED:
        rows.insert(0, _length_row(f"length-only (baseline){baseline.seeds}", baseline, shares))
    rows += _not_run(inputs, model, strategy, mine, len(columns))
    within = "the tolerance of what was asked" if own else f"{target - tolerance}-{target + tolerance}"
    note = f"Without the end-of-sequence token; within: {within}, per cent rounded down."
    if any(one.seeds for one in known):
        note += " Of several seeds the counts are sums; mean, deviation and percentiles are means of the seeds' own."
    title, better = f"Output tokens, {model} - {STRATEGIES[strategy]}", dict.fromkeys(columns[-len(shares) :], "higher")
    return Table(label, title, columns, tuple(rows), (note,), better=better)


def _within(target: int, tolerance: int, *, own: bool) -> str:
    """The head of the column of completions on target."""
    return "On target" if own else f"Within ±{tolerance} of {target}"


def target_of(inputs: ReportInputs) -> tuple[int, int]:
    """The target length and its tolerance in tokens; the study's if no run states them."""
    tasks = [run.config["task"] for run in inputs.trained]
    tasks += [e.summary.task for e in inputs.baselines if e.summary.task]
    task = tasks[0] if tasks else {}
    return task.get("target_tokens", 64), task.get("tolerance_tokens", 5)


def _length_row(name: str, one: ConfigurationResult, shares: Sequence[str]) -> tuple[Cell, ...]:
    """The lengths of a configuration's completions, and how many are in each of the `shares`."""
    command = one.first.command
    cells = [_extreme(one, key, show, command) for _, key, show in LENGTHS]
    n = sum(evaluation.summary.n for evaluation in one.evaluations)
    for metric in shares:
        share = one.metric(metric)
        count = sum(round((each.metric(metric) or 0.0) * each.summary.n) for each in one.evaluations)
        known = Cell(f"{count}/{n} ({100 * count // n}%)", share, one.first.source(metric))
        cells.append(empty(command) if share is None else known)
    return (words(name), *cells)


def _extreme(one: ConfigurationResult, key: str, show: Callable[[float], str], command: str) -> Cell:
    """A length: of several seeds the least, the greatest, or else the mean."""
    name, chosen = f"completions/{key}_length", {"min": min, "max": max}.get(key)
    known = [(value, each) for each in one.evaluations if (value := each.metric(name)) is not None]
    if chosen is None or len(known) < len(one.evaluations):
        return one.cell(name, show, command)
    return chosen(known, key=lambda pair: pair[0])[1].cell(name, show, command)


def _judged(inputs: ReportInputs, one: ConfigurationResult | EvaluationResult) -> tuple[Cell, ...]:
    """The composite, the metrics and the pass rate."""
    command = judge_command(inputs, one if isinstance(one, EvaluationResult) else one.first)
    cells = [one.cell(key, plain(3), command) for key in (COMPOSITE, *CRITERIA)]
    return (*cells, one.cell(PASS_RATE, percent, command))


def _tested(inputs: ReportInputs, one: ConfigurationResult) -> tuple[Cell, ...]:
    """The test against the baseline; without one, the command for what it lacks."""
    if one.test is None:
        baseline = baseline_of(inputs, one.model)
        unjudged = baseline if baseline and baseline.metric(COMPOSITE) is None else one
        judge = judge_command(inputs, unjudged.first)
        return (empty(judge if baseline else train_command(inputs, one.model, LENGTH_ONLY)),) * len(_TESTED)
    result = one.test.result
    return (
        number(result.delta, signed(4)),
        *test_cells(result.t, result.p, one.p_holm),
        interval(result.ci_low, result.ci_high),
        one.tally.cell,
        direction_cell(result.delta, result.p),
    )


def _metrics_note(mine: Sequence[ConfigurationResult]) -> list[str]:
    """A note on the column of metrics; none where nothing is tested."""
    tested = dict.fromkeys(metric for one in mine for metric in one.tests)
    return [tally_note(list(tested), "from the baseline")] if tested else []


def _not_run(
    inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult], width: int
) -> list[tuple[Cell, ...]]:
    """A row for each of the study's rewards without a run, with the command that trains it; none without references,
    which these rewards need."""
    rows: list[tuple[Cell, ...]] = []
    if not inputs.has_references:
        return rows
    for reward in REWARD_SETS:
        if reward not in {one.reward for one in mine}:
            blank = _not_here(inputs, [model], strategy, reward)
            rest = blank if blank.command else DASH
            rows.append((words(PREFIX[strategy] + reward), blank, *[rest] * (width - 2)))
    return rows


def _not_here(inputs: ReportInputs, models: Sequence[str], strategy: str, reward: str) -> Cell:
    """A cell for a configuration without a run in the report: the command that trains it for the first of the models.
    If its run was left out for its judge alone, the command that judges it as the others; else the reason."""
    for one in inputs.left_out:
        if one.run and one.run.model in models and (one.run.strategy, one.run.reward) == (strategy, reward):
            other_judge = one.run.last.judge not in (None, inputs.judge)
            if other_judge and inputs.judge is not None and ": its judge " in one.reason:
                return empty(judge_command(inputs, one.run.last), "left out")
            return words(f"left out: {one.reason}")
    wider = train_command(inputs, models[0], strategy, ALL)
    return empty(train_command(inputs, models[0], strategy, reward), wider=wider)


def _strategies_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Table 14: the best of each strategy, and the direct test between them."""
    rows = []
    for model in inputs.models:
        best, cells = {}, []
        for strategy in STRATEGIES:
            mine = [one for one in results if (one.model, one.strategy) == (model, strategy)]
            judged = [one for one in mine if one.metric(COMPOSITE) is not None]
            best[strategy] = one = max(judged, key=_average, default=None)
            if one is None:
                cells.append(empty((judge_all_command if mine else train_command)(inputs, model, strategy)))
            else:
                cells.append(Cell(f"{_average(one):.3f} ({one.name})", _average(one), one.first.source(COMPOSITE)))
        staged, joint = best[FINETUNED], best[INCLUDED]
        if staged is None or joint is None:
            tested = [next(cell for cell in cells if cell.command)] * 6
        elif (test := compare(staged.evaluations, joint.evaluations, [COMPOSITE]).get(COMPOSITE)) is None:
            tested = [empty(judge_command(inputs, joint.first), "no example has both scores")] * 6
        else:
            result = test.result
            tested = [
                Cell(signed(3)(round(_average(joint), 3) - round(_average(staged), 3)), result.delta),
                *test_cells(result.t, result.p, None),
                interval(result.ci_low, result.ci_high),
                direction_cell(result.delta, result.p, "included better", "fine-tuned better"),
            ]
        rows.append((words(model), *cells, *tested))
    return Table(
        "14",
        "Best configuration per model and strategy",
        ("Model", "Best Fine-tuned", "Best Included", "Δ", "t", "p", "Sig", "95 % interval", "Direction"),
        tuple(rows),
        (
            "Δ: included minus fine-tuned; t, p, interval: two-sided paired t-test between the two over all examples.",
            "Δ is that of the averages as they are shown; the test and its interval are of unrounded scores.",
            "Both were chosen as the best of their strategy on these same examples, which flatters both.",
        ),
        better=dict.fromkeys(("Best Fine-tuned", "Best Included"), "higher"),
    )


def _average(one: ConfigurationResult) -> float:
    """The composite of a configuration that was judged."""
    value = one.metric(COMPOSITE)
    assert value is not None
    return value


def flips_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Return Table S5: the examples that training rescued and regressed, against the length-only baseline."""
    rows: list[tuple[Cell, ...]] = []
    for one in results:
        head = (words(one.model), words(one.name))
        baseline = baseline_of(inputs, one.model)
        if one.flips is None and any(other.seeds for other in (one, baseline) if other is not None):
            rows.append((*head, DASH, DASH, DASH, words("several seeds")))
            continue
        if one.flips is None:
            rows.append((*head, *[empty(judge_command(inputs, one.first))] * 4))
            continue
        assert baseline is not None
        pair = paired_values(PASSED, baseline.evaluations, one.evaluations)
        assert pair is not None
        ids = baseline.first.scores.frame["id"]
        changes = []
        for what, by in (("rescued", 1), ("regressed", -1)):
            names = [str(key) for key, was, now in zip(ids, pair[0][0], pair[1][0], strict=True) if now - was == by]
            if names:
                changes.append(f"{what} {', '.join(names[:3])}{'…' if len(names) > 3 else ''}")
        rows.append((*head, *flip_cells(one.flips), words("; ".join(changes)) if changes else DASH))
    columns = ("Model", "Configuration", "Rescued", "Regressed", "p (McNemar)", "Which")
    note = "Rescued: passes most rounds now and did not with the length-only baseline; regressed: the reverse."
    return Table("S5", "Rescued and regressed examples", columns, tuple(rows), (note,), better=FLIPPED)


def correlation_figures(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[Figure]:
    """Return Figure 1: a heat map of the judged metrics for each model and strategy."""
    figures: list[Figure] = []
    for model in inputs.models:
        for strategy, title in STRATEGIES.items():
            mine = [one for one in results if (one.model, one.strategy) == (model, strategy)]
            if mine and strategy == INCLUDED and (baseline := baseline_of(inputs, model)) is not None:
                mine.append(baseline)  # as in the study: 1,400 examples here, 1,200 of the other strategy
            frames = [e.scores.frame for one in mine for e in one.evaluations if set(CRITERIA) <= set(e.scores.metrics)]
            if not frames:
                continue
            found = {(pair.x, pair.y): pair for pair in correlate(frames, CRITERIA)}
            values = [[1.0 if x == y else (found.get((x, y)) or found[(y, x)]).r for y in CRITERIA] for x in CRITERIA]
            shown = ", ".join(f"{x} and {y} {pair.r:+.2f}" for (x, y), pair in found.items() if not math.isnan(pair.r))
            alt = f"Pearson correlations, {model}, {title}: {shown or 'none, as no metric varies'}"
            label, title = f"1{letter(len(figures))}", f"Correlation of judged metrics, {model}, {title}"
            n, files = next(iter(found.values())).n, len(frames)
            note = f"n = {n}: all examples of {files} evaluation{'s' * (files > 1)} pooled."
            figures.append(
                Figure(label, title, charts.heat(CRITERIA, CRITERIA, values, alt=alt, show=signed(2)), alt, (note,))
            )
    return figures


def length_figures(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> list[Figure]:
    """Return Figure S3: the share of summaries of each configuration that are too long or too short."""
    names, shares = [], []
    for one in (*filter(None, (baseline_of(inputs, model) for model in inputs.models)), *results):
        pair = [share for name in _OFF_TARGET if (share := one.metric(ERRORS + name)) is not None]
        if len(pair) == 2:
            names.append(f"{one.model} {one.name}")
            shares.append(pair)
    if not names:
        return []
    shown = [f"{name} {percent(long)} and {percent(short)}" for name, (long, short) in zip(names, shares, strict=True)]
    alt = f"Share of summaries too long and too short: {'; '.join(shown)}"
    return [Figure("S3", "Off target", charts.bars(names, _OFF_TARGET, shares, alt=alt), alt)]
