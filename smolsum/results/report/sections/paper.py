"""What only the study has: its baselines (Tables 4-6), its grid of configurations (8, 10-14, S1), its correlations
(Figure 1), what they add up to, and what it published next to what was measured here (S19). Only reports of runs that
follow the study have it."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files

from smolsum.config.run_labels import CRITERIA, FINETUNED, INCLUDED, LENGTH_ONLY, PREFIX, REWARD_SETS, STRATEGIES
from smolsum.results.report import charts
from smolsum.results.report.collect import EvaluationResult, ReportInputs
from smolsum.results.report.document import (
    DASH,
    Cell,
    CellSource,
    Figure,
    Table,
    empty,
    letter,
    mark_best,
    number,
    p_value,
    percent,
    plain,
    signed,
    table,
)
from smolsum.results.report.results import (
    FLIPPED,
    METRICS,
    UNCOMMON,
    ConfigurationResult,
    baseline_of,
    cells_of_test,
    compare,
    direction_cell,
    flip_cells,
    paired_values,
    tally_note,
)
from smolsum.results.report.sections.scores import ERRORS
from smolsum.results.report.shell_commands import baseline_command, judge_all_command, judge_command, train_command
from smolsum.rewards import FACTS
from smolsum.stats.paired import ALPHA
from smolsum.stats.several import correlate
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
BASELINE = "baseline"
"""the strategy of an untrained model in `published.csv`; its reward is the prompt"""
STUDY_TARGET = 64, 5
"""target and tolerance in tokens"""
PUBLISHED: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("Within ±5 of 64 tokens", "within_5", ON_TARGET, percent),
    ("Mean length in tokens", "mean_length", "completions/mean_length", plain(1)),
    ("Average of the judge", "composite", COMPOSITE, plain(3)),
    ("Pass rate", "pass_rate", PASS_RATE, percent),
)
"""title, column of `published.csv`, metric of an evaluation, format"""
_PUBLISHED_NOTE = (
    "Published: the study's Tables 4, 10-13 and 10a-13a (200 posts of mlabonne/smoltldr; gpt-5-mini, five rounds, its "
    "own criteria). Here: the runs of this report. Data, judge, prompts and numerics differ, so a difference between "
    "the two is not the effect of anything."
)


def baseline_tables(inputs: ReportInputs) -> list[Table]:
    """Return Table 4, the untrained models with a length in the prompt, and a test between the two prompts (5, 6)."""
    rows = []
    tests = []
    for place, model in enumerate(inputs.models):
        mine = {e.variant: e for e in inputs.baselines if e.model == model}
        for variant in dict.fromkeys((*VARIANTS, *sorted(mine))):
            name = f"baseline-{variant}" if variant in VARIANTS else variant
            blank = empty(baseline_command(inputs, model, variant))
            cells = _judged(inputs, mine[variant]) if variant in mine else [blank] * len(_JUDGED)
            rows.append([model, name, *cells])
        # the study tests Qwen first
        label = str(6 - place if len(inputs.models) > 1 else 5) if place < 2 else f"6{letter(place - 2)}"
        tests.append(_prompts_table(label, model, inputs, [mine[one] for one in VARIANTS if one in mine]))
    columns = ("Model", "Prompt", "Composite", *map(str.title, CRITERIA), "Pass Rate")
    title = "Untrained models with the length in the prompt"
    return [
        table("4", title, columns, mark_best(rows, range(2, 8)), better=_HIGHER),
        *sorted(tests, key=lambda one: one.number),
    ]


def _prompts_table(label: str, model: str, inputs: ReportInputs, both: Sequence[EvaluationResult]) -> Table:
    rows = []
    better = f"{VARIANTS[1]} better", f"{VARIANTS[0]} better"
    for key in (*CRITERIA, COMPOSITE):
        test = compare(key, both[:1], both[1:]) if len(both) == 2 else None
        if test is None:
            judged = len(both) == 2 and all(e.metric(key) is not None for e in both)
            lack = empty(baseline_command(inputs, model), UNCOMMON if judged else "not run")
            rows.append([key.title(), *[lack] * 7])
            continue
        result = test.result
        rows.append(
            [
                key.title(),
                number(result.mean_a, plain(4), both[0].source(key)),
                number(result.mean_b, plain(4), both[1].source(key)),
                number(result.delta, signed(4)),
                number(result.t, plain(4)),
                number(result.p, p_value),
                "✓" if result.p < ALPHA else "✗",
                direction_cell(result, better),
            ]
        )
    title = f"{model} - paired t-test, {VARIANTS[1]} minus {VARIANTS[0]}"
    columns = ("Metric", *VARIANTS, "Δ", "t", "p", "Sig", "Direction")
    return table(label, title, columns, rows, better=dict.fromkeys(VARIANTS, "higher"))


def configurations_table(inputs: ReportInputs) -> Table:
    """Return Table 8: the study's reward configurations, each with its runs."""
    rows = []
    for reward, names in REWARD_SETS.items():
        cells = []
        for strategy in STRATEGIES:
            runs = [run for run in inputs.trained if (run.strategy, run.reward) == (strategy, reward)]
            named = ", ".join(run.name for run in runs)
            known = runs and Cell(named, source=CellSource(runs[0].paths.config, "stages"))
            cells.append(known or _not_here(inputs, inputs.models, strategy, reward))
        rows.append([reward, " + ".join(FACTS[name].title or name for name in names), *cells])
    columns = ("Configuration", "Signals", *(s.capitalize() for s in STRATEGIES.values()))
    return table("8", "Reward configurations", columns, rows)


def result_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Iterator[Table]:
    """Yield Tables 10-13 and 10a-13a, results and output lengths for each model and strategy (S16 and S16a, S17 … for
    a third model, S20 … for more); Table 14, the best of each strategy; and S1, the configurations that the study
    lacks."""
    for place, (model, strategy) in enumerate((m, s) for m in inputs.models for s in STRATEGIES):
        # S1 to S15, S18 and S19 are other tables
        label = str(10 + place) if place < 4 else f"S{12 + place}" if place < 6 else f"S{14 + place}"
        mine = [one for one in results if (one.model, one.strategy) == (model, strategy)]
        if mine or strategy != FINETUNED or inputs.has_references:
            yield _results(label, inputs, model, strategy, mine)
            yield _lengths(f"{label}a", inputs, model, strategy, mine)
    if others := [one for one in results if one.strategy not in STRATEGIES]:
        rows = ([one.model, one.name, *_judged(inputs, one), *_tested(inputs, one)] for one in others)
        columns = ("Model", "Configuration", *_JUDGED, *_TESTED)
        title, marked = "Configurations that the study does not have", mark_best(rows, range(2, 8))
        yield table("S1", title, columns, marked, _metrics_note(others), better=_HIGHER)
    if inputs.has_references:
        yield _strategies_table(inputs, results)


def _results(label: str, inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult]) -> Table:
    """The judged scores of a model's configurations of a strategy, each tested against the baseline."""
    baseline = baseline_of(inputs, model)
    columns, untested = ("Reward Configuration", *_JUDGED, *_TESTED), [DASH] * len(_TESTED)
    if baseline is None:
        judged, seeds = [empty(train_command(inputs, model, LENGTH_ONLY))] * len(_JUDGED), ""
    else:
        judged, seeds = _judged(inputs, baseline), baseline.seeds
    rows = [[f"length-only (GRPO baseline){seeds}", *judged, *untested]]
    rows += [[one.name, *_judged(inputs, one), *_tested(inputs, one)] for one in mine]
    rows += _not_run(inputs, model, strategy, mine, len(columns))
    tests = [(one, one.test) for one in mine if one.test]
    counts = ""
    if averages := {one.name: average for one, _ in tests if (average := one.metric(COMPOSITE)) is not None}:
        best = max(averages, key=lambda name: averages[name])
        deltas = [test.delta for _, test in tests if test.p < ALPHA]
        higher = sum(delta > 0 for delta in deltas)
        counts = (
            f"{len(deltas)} of {len(tests)} configurations differ significantly from the baseline, {higher} better and "
            f"{len(deltas) - higher} worse; the best is {best} (average {averages[best]:.3f})."
        )
    missing = ", ".join(f"{one.name} {test.missing}" for one, test in tests if test.missing)
    several = seeds or any(one.seeds for one in mine)
    return table(
        label,
        f"{model} - {STRATEGIES[strategy]}",
        columns,
        mark_best(rows, range(1, 7)),
        counts,
        f"Sig: two-sided paired t-test against the length-only baseline on the average, {_ALPHA_SIGN} = {ALPHA}; "
        "p (Holm) is adjusted over all comparisons with a baseline in this report.",
        _metrics_note(mine),
        f"Pairs left out because a score is missing: {missing}." if missing else "",
        "xN: N seeds; their mean per example is compared, and t counts seeds and examples as samples." * bool(several),
        better=_HIGHER,
    )


def _lengths(label: str, inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult]) -> Table:
    """The lengths of the completions of a model's configurations of a strategy."""
    baseline = baseline_of(inputs, model)
    target, tolerance = target_of(inputs)
    own = any(run.task.get("targets") for run in inputs.trained)  # each prompt asks for its own length
    # older runs have no share within 1 and 2
    known = list(filter(None, [baseline, *mine]))
    close = [n for n in CLOSE if n != tolerance and any(one.metric(f"length/within_{n}") is not None for one in known)]
    shares = {ON_TARGET: "On target" if own else f"Within ±{tolerance} of {target}"}
    shares |= {f"length/within_{n}": f"Within ±{n}" for n in close}
    columns = ("Reward Configuration", *(head for head, _, _ in LENGTHS), *shares.values())
    rows = [_length_row(one.name, one, shares) for one in mine]
    # the study shows the baseline's lengths only with the joint strategy, where they are comparable
    if baseline is not None and strategy == INCLUDED:
        rows.insert(0, _length_row(f"length-only (baseline){baseline.seeds}", baseline, shares))
    rows += _not_run(inputs, model, strategy, mine, len(columns))
    within = "the tolerance of what was asked" if own else f"{target - tolerance}-{target + tolerance}"
    note = f"Without the end-of-sequence token; within: {within}, per cent rounded down."
    if any(one.seeds for one in known):
        note += " Of several seeds the counts are sums; mean, deviation and percentiles are means of the seeds' own."
    title = f"Output tokens, {model} - {STRATEGIES[strategy]}"
    return table(label, title, columns, rows, note, better=dict.fromkeys(shares.values(), "higher"))


def target_of(inputs: ReportInputs) -> tuple[int, int]:
    """Return the target length and its tolerance in tokens; the study's if no run states them."""
    task = next((one.task for one in inputs.entries if one.task), {})
    return task.get("target_tokens", STUDY_TARGET[0]), task.get("tolerance_tokens", STUDY_TARGET[1])


def _length_row(name: str, one: ConfigurationResult, shares: Mapping[str, str]) -> list[object]:
    """The lengths of a configuration's completions, and how many are in each of the `shares`."""
    command = one.first.command
    row: list[object] = [name, *(_extreme(one, key, show, command) for _, key, show in LENGTHS)]
    n = sum(evaluation.summary.n for evaluation in one.evaluations)
    for metric in shares:
        share = one.metric(metric)
        count = sum(round((each.metric(metric) or 0.0) * each.summary.n) for each in one.evaluations)
        known = Cell(f"{count}/{n} ({100 * count // n}%)", share, one.first.source(metric))
        row.append(empty(command) if share is None else known)
    return row


def _extreme(one: ConfigurationResult, key: str, show: Callable[[float], str], command: str) -> Cell:
    """A length: of several seeds the least, the greatest, or else the mean."""
    name, chosen = f"completions/{key}_length", {"min": min, "max": max}.get(key)
    known = [(value, each) for each in one.evaluations if (value := each.metric(name)) is not None]
    if chosen is None or len(known) < len(one.evaluations):
        return one.cell(name, show, command)
    return chosen(known, key=lambda pair: pair[0])[1].cell(name, show, command)


def _judged(inputs: ReportInputs, one: ConfigurationResult | EvaluationResult) -> list[Cell]:
    """The composite, the metrics and the pass rate."""
    command = judge_command(inputs, one if isinstance(one, EvaluationResult) else one.first)
    cells = [one.cell(key, plain(3), command) for key in (COMPOSITE, *CRITERIA)]
    return [*cells, one.cell(PASS_RATE, percent, command)]


def _tested(inputs: ReportInputs, one: ConfigurationResult) -> list[Cell]:
    """The test against the baseline; without one, the command for what it lacks."""
    if one.test is not None:
        return [number(one.test.delta, signed(4)), *cells_of_test(one.test, one.p_holm, one.tally)]
    if (baseline := baseline_of(inputs, one.model)) is None:
        return [empty(train_command(inputs, one.model, LENGTH_ONLY))] * len(_TESTED)
    unjudged = baseline if baseline.metric(COMPOSITE) is None else one
    return [empty(judge_command(inputs, unjudged.first))] * len(_TESTED)


def _metrics_note(mine: Sequence[ConfigurationResult]) -> str:
    """A note on the column of metrics; empty where nothing is tested."""
    tested = dict.fromkeys(metric for one in mine for metric in one.tests)
    return tally_note(list(tested), "from the baseline") if tested else ""


def _not_run(
    inputs: ReportInputs, model: str, strategy: str, mine: Sequence[ConfigurationResult], width: int
) -> Iterator[list[object]]:
    """A row for each of the study's rewards without a run, with the command that trains it; none without references,
    which these rewards need."""
    for reward in REWARD_SETS if inputs.has_references else ():
        if reward not in {one.reward for one in mine}:
            blank = _not_here(inputs, [model], strategy, reward)
            yield [PREFIX[strategy] + reward, blank, *[blank if blank.command else DASH] * (width - 2)]


def _not_here(inputs: ReportInputs, models: Sequence[str], strategy: str, reward: str) -> Cell:
    """A cell for a configuration without a run in the report: the command that trains it for the first of the models.
    If its run was left out for its judge alone, the command that judges it as the others; else the reason."""
    for one in inputs.left_out:
        if one.run and one.run.model in models and (one.run.strategy, one.run.reward) == (strategy, reward):
            other_judge = one.run.last.judge not in (None, inputs.judge)
            if other_judge and inputs.judge is not None and ": its judge " in one.reason:
                return empty(judge_command(inputs, one.run.last), "left out")
            return Cell(f"left out: {one.reason}")
    wider = train_command(inputs, models[0], strategy, ALL)
    return empty(train_command(inputs, models[0], strategy, reward), wider=wider)


def _strategies_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Table 14: the best of each strategy, and the direct test between them."""
    rows = []
    for model in inputs.models:
        best: list[tuple[float, ConfigurationResult]] = []
        cells = []
        for strategy in STRATEGIES:
            mine = [one for one in results if (one.model, one.strategy) == (model, strategy)]
            judged = [(average, one) for one in mine if (average := one.metric(COMPOSITE)) is not None]
            if judged:
                average, one = max(judged, key=lambda pair: pair[0])
                best.append((average, one))
                cells.append(Cell(f"{average:.3f} ({one.name})", average, one.first.source(COMPOSITE)))
            else:
                cells.append(empty((judge_all_command if mine else train_command)(inputs, model, strategy)))
        if len(best) < 2:
            tested = [next(cell for cell in cells if cell.command)] * 6
        else:
            (staged_average, staged), (joint_average, joint) = best
            if (test := compare(COMPOSITE, staged.evaluations, joint.evaluations)) is None:
                tested = [empty(judge_command(inputs, joint.first), UNCOMMON)] * 6
            else:
                shown = signed(3)(round(joint_average, 3) - round(staged_average, 3))
                labels = ("included better", "fine-tuned better")
                tested = [Cell(shown, test.result.delta), *cells_of_test(test.result, None, labels=labels)]
        rows.append([model, *cells, *tested])
    return table(
        "14",
        "Best configuration per model and strategy",
        ("Model", "Best Fine-tuned", "Best Included", "Δ", "t", "p", "Sig", "95 % interval", "Direction"),
        rows,
        "Δ: included minus fine-tuned; t, p, interval: two-sided paired t-test between the two over all examples.",
        "Δ is that of the averages as they are shown; the test and its interval are of unrounded scores.",
        "Both were chosen as the best of their strategy on these same examples, which flatters both.",
        better=dict.fromkeys(("Best Fine-tuned", "Best Included"), "higher"),
    )


def flips_table(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Table:
    """Return Table S5: the examples that training rescued and regressed, against the length-only baseline."""
    rows = []
    for one in results:
        baseline = baseline_of(inputs, one.model)
        pair = paired_values(PASSED, baseline.evaluations, one.evaluations) if baseline and one.flips else None
        if baseline is not None and one.flips is not None and pair is not None:
            (was,), (now,) = pair
            ids, changes = baseline.first.scores.frame["id"], []
            for what, by in (("rescued", 1), ("regressed", -1)):
                names = [str(key) for key, change in zip(ids, now - was, strict=True) if change == by]
                if names:
                    changes.append(f"{what} {', '.join(names[:3])}{'…' if len(names) > 3 else ''}")
            cells: list[object] = [*flip_cells(one.flips), "; ".join(changes) or DASH]
        elif any(other.seeds for other in (one, baseline) if other is not None):
            cells = [DASH, DASH, DASH, "several seeds"]
        else:
            cells = [empty(judge_command(inputs, one.first))] * 4
        rows.append([one.model, one.name, *cells])
    columns = ("Model", "Configuration", "Rescued", "Regressed", "p (McNemar)", "Which")
    note = "Rescued: passes most rounds now and did not with the length-only baseline; regressed: the reverse."
    return table("S5", "Rescued and regressed examples", columns, rows, note, better=FLIPPED)


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
            shown = ", ".join(f"{x} and {y} {pair.r:+z.2f}" for (x, y), pair in found.items() if not math.isnan(pair.r))
            alt = f"Pearson correlations, {model}, {title}: {shown or 'none, as no metric varies'}"
            label, title = f"1{letter(len(figures))}", f"Correlation of judged metrics, {model}, {title}"
            n, files = next(iter(found.values())).n, len(frames)
            note = f"n = {n}: all examples of {files} evaluation{'s' * (files > 1)} pooled."
            svg = charts.heat(CRITERIA, CRITERIA, values, alt=alt, show=signed(2))
            figures.append(Figure(label, title, svg, alt, (note,)))
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


def published_tables(inputs: ReportInputs, results: Sequence[ConfigurationResult]) -> Iterator[Table]:
    """Yield Tables S19a, S19b …, one for each measure that the study and these runs have, for the configurations that
    both have; none where summaries have another target than the study's."""
    if target_of(inputs) != STUDY_TARGET or any(run.task.get("targets") for run in inputs.trained):
        return
    text = files("smolsum.results.report").joinpath("published.csv").read_text()
    theirs = {(row["model"], row["strategy"], row["reward"]): row for row in csv.DictReader(text.splitlines())}
    models = list(dict.fromkeys(model for model, _, _ in theirs))
    columns = ("Configuration", *(f"{one}, published" for one in models), *(f"{one}, here" for one in inputs.models))
    ours: dict[tuple[str, str, str], ConfigurationResult | EvaluationResult] = {
        (one.model, BASELINE, one.variant): one for one in inputs.baselines if one.variant in VARIANTS
    }
    baselines = filter(None, (baseline_of(inputs, model) for model in inputs.models))
    ours |= {(one.model, one.strategy, one.reward): one for one in (*results, *baselines)}
    place = 0
    for title, column, metric, show in PUBLISHED:
        rows = []
        for strategy, reward in dict.fromkeys((strategy, reward) for _, strategy, reward in theirs):
            printed = [theirs.get((model, strategy, reward), {}).get(column) for model in models]
            found = [ours.get((model, strategy, reward)) for model in inputs.models]
            there = [number(float(one) if one else None, show) for one in printed]
            here = [one.cell(metric, show) if one else DASH for one in found]
            if {*there} != {DASH} and {*here} != {DASH}:
                name = reward if strategy == LENGTH_ONLY else PREFIX.get(strategy, f"{strategy}-") + reward
                rows.append([name, *there, *here])
        if rows:
            label, place = f"S19{letter(place)}", place + 1
            yield table(label, f"{title}, published and here", columns, rows, _PUBLISHED_NOTE)
