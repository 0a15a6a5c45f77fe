"""Results in the study's tables: 10-13, and 14.

How long completions are, in the rows of the study's Tables 10a-13a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from smolsum.config.study import FINETUNED, INCLUDED, LENGTH_ONLY, PREFIX, REWARDS, STRATEGIES
from smolsum.evaluate.tables import PASS_RATE
from smolsum.report.commands import judge_all_command, judge_command, train_command
from smolsum.report.document import Cell, Table, empty, mark_best, number, p_value, percent, plain, signed, words
from smolsum.report.results import ConfigurationResult, baseline_of, compare
from smolsum.report.study import CRITERIA, Study
from smolsum.stats.paired import ALPHA
from smolsum.tasks.text_metrics import PERCENTILES
from smolsum.types import COMPOSITE

LENGTHS = (
    ("Mean", "mean", plain(1)),
    ("Std", "std", plain(1)),
    ("Min", "min", plain(0)),
    *((f"P{p}", f"p{p}", plain(0)) for p in PERCENTILES),
    ("Max", "max", plain(0)),
)
"""title, name in the metrics, and how it is shown"""


def length_row(name: str, one: ConfigurationResult) -> tuple[Cell, ...]:
    """The lengths of an outcome's completions, and how many are on target."""
    first = one.evaluations[0]
    again = first.again
    cells = [
        number(one.metric(key := f"completions/{of}_length"), show, first.source(key), command=again)
        for _, of, show in LENGTHS
    ]
    share, n = one.metric("length/within_tol"), int(first.summary["n"])
    count = round((share or 0.0) * n)
    within = (
        empty(again)
        if share is None
        else Cell(f"{count}/{n} ({100 * count // n}%)", share, first.source("length/within_tol"))
    )
    return (words(name), *cells, within)


def target_of(study: Study) -> tuple[int, int]:
    """The target length and its tolerance in tokens; the study's where no run says."""
    tasks = [run.config["task"] for run in study.trained]
    tasks += [e.summary["task"] for e in study.baselines if e.summary.get("task")]
    told = tasks[0] if tasks else {}
    return told.get("target_tokens", 64), told.get("tolerance_tokens", 5)


NOT_DONE = "-"
ALPHA_SIGN = "\N{GREEK SMALL LETTER ALPHA}"
BASELINE = "length-only (GRPO baseline)"
TESTED = ("ΔAverage", "t", "p", "Sig", "p (Holm)", "95 % interval")
JUDGED = ("Average", *map(str.title, CRITERIA), "Pass Rate")


def result_tables(study: Study, outcomes: Sequence[ConfigurationResult]) -> list[Table]:
    """Returns a table of results and one of output lengths for each model and strategy of the study, then one of the
    others."""
    tables: list[Table] = []
    for place, (model, strategy) in enumerate((m, s) for m in study.models for s in STRATEGIES if study.repeats):
        label = str(10 + place) if place < 4 else f"S{10 + place}"
        found = [one for one in outcomes if (one.model, one.strategy) == (model, strategy)]
        baseline = baseline_of(study, model)
        title = f"{model} - {STRATEGIES[strategy]}"
        tables += [
            _results(label, title, study, baseline, found, model, strategy),
            _lengths(f"{label}a", title, study, baseline, found, model, strategy),
        ]
    others = [one for one in outcomes if one.strategy not in STRATEGIES]
    if others and study.repeats:
        tables.append(_others(study, others))
    return tables


def strategies_table(study: Study, outcomes: Sequence[ConfigurationResult]) -> Table:
    """Returns Table 14: the best of each strategy, and the direct test between them."""
    rows = []
    for model in study.models:
        best, cells = {}, []
        for strategy in STRATEGIES:
            mine = [o for o in outcomes if (o.model, o.strategy) == (model, strategy)]
            judged = [o for o in mine if o.metric(COMPOSITE)]
            best[strategy] = max(judged, key=lambda o: o.metric(COMPOSITE) or 0.0, default=None)
            fill = judge_all_command if mine else train_command
            cells.append(_best_cell(best[strategy], fill(study, model, strategy)))
        staged, joint = best[FINETUNED], best[INCLUDED]
        if staged is None or joint is None:
            blank = next(cell for cell in cells if cell.command)
            rows.append((words(model), *cells, *[blank] * 5))
            continue
        test = compare(staged, joint)
        assert test is not None
        result = test.result
        rows.append(
            (
                words(model),
                *cells,
                Cell(signed(3)(round(_average(joint), 3) - round(_average(staged), 3)), result.delta),
                *test_cells(result.t, result.p, None),
                interval(result.ci_low, result.ci_high),
            )
        )
    return Table(
        "14",
        "Best configuration per model and strategy",
        ("Model", "Best Fine-tuned", "Best Included", "Δ", "t", "p", "Sig", "95 % interval"),
        tuple(rows),
        (
            "Δ: included minus fine-tuned; t, p, interval: two-sided paired t-test between the two over all examples.",
            "Δ is that of the averages as they are shown; the test and its interval are of unrounded scores.",
            "Both were chosen as the best of their strategy on these same examples, which flatters both.",
        ),
    )


def _average(one: ConfigurationResult) -> float:
    """The composite of an outcome that was judged."""
    value = one.metric(COMPOSITE)
    assert value is not None
    return value


def _best_cell(one: ConfigurationResult | None, command: str) -> Cell:
    if one is None:
        return empty(command)
    value = _average(one)
    return Cell(f"{value:.3f} ({one.name})", value, one.evaluations[0].source(COMPOSITE))


def _not_run(
    study: Study, model: str, strategy: str, found: Sequence[ConfigurationResult], width: int
) -> list[tuple[Cell, ...]]:
    """A row for each of the study's rewards that no run has, with the command that trains it."""
    missing = [reward for reward in REWARDS if reward not in {one.reward for one in found}]
    blanks = {reward: not_here(study, [model], strategy, reward) for reward in missing}
    rest = {reward: blank if blank.command else words(NOT_DONE) for reward, blank in blanks.items()}
    return [(words(PREFIX[strategy] + reward), blanks[reward], *[rest[reward]] * (width - 2)) for reward in missing]


def not_here(study: Study, models: Sequence[str], strategy: str, reward: str) -> Cell:
    """A cell for a configuration without a run in the report: the command that trains it for the first of the models;
    of a run that is left out the evaluation by this report's judge, if only that is wrong, or else why it is."""
    for one in study.left_out:
        if one.run and one.run.model in models and (one.run.strategy, one.run.reward) == (strategy, reward):
            other_judge = one.run.last.judge not in (None, study.judge)
            refits = other_judge and study.judge is not None and ": its judge " in one.reason
            return empty(judge_command(study, one.run.last), "left out") if refits else words(f"left out: {one.reason}")
    return empty(train_command(study, models[0], strategy, reward))


def _results(
    label: str,
    title: str,
    study: Study,
    baseline: ConfigurationResult | None,
    found: Sequence[ConfigurationResult],
    model: str,
    strategy: str,
) -> Table:
    columns = ("Reward Configuration", *JUDGED, *TESTED)
    untested = [words(NOT_DONE)] * len(TESTED)
    if baseline is None:
        blank = empty(train_command(study, model, LENGTH_ONLY))
        rows: list[tuple[Cell, ...]] = [(words(BASELINE), *[blank] * len(JUDGED), *untested)]
    else:
        rows = [(words(BASELINE + _seeds(baseline)), *_judged(study, baseline), *untested)]
    rows += [(words(one.name), *_judged(study, one), *_compared(study, one, baseline)) for one in found]
    rows += _not_run(study, model, strategy, found, len(columns))
    significant = [one for one in found if one.test and one.test.result.p < ALPHA]
    judged = [one for one in found if one.test]
    notes = [
        f"Sig: two-sided paired t-test against the length-only baseline on the average, {ALPHA_SIGN} = {ALPHA}; "
        "p (Holm) is adjusted over all comparisons with a baseline in this report."
    ]
    if judged:
        best = max(judged, key=lambda one: one.metric(COMPOSITE) or 0.0)
        average = best.metric(COMPOSITE)
        notes.insert(
            0,
            f"{len(significant)} of {len(judged)} configurations differ significantly from the baseline; the best is "
            f"{best.name} (average {average:.3f}).",
        )
    if missing := [f"{one.name} {one.test.result.missing}" for one in judged if one.test and one.test.result.missing]:
        notes.append(f"Pairs left out for want of a score: {', '.join(missing)}.")
    if any(len(one.evaluations) > 1 for one in [*found, *([baseline] if baseline else [])]):
        notes.append("xN: N seeds; their mean per example is compared, and t counts seeds and examples as samples.")
    return Table(label, title, columns, mark_best(rows, range(1, 7)), tuple(notes))


def _seeds(one: ConfigurationResult) -> str:
    """What a name says of several seeds."""
    return f" x{len(one.evaluations)}" if len(one.evaluations) > 1 else ""


def _judged(study: Study, one: ConfigurationResult) -> tuple[Cell, ...]:
    first = one.evaluations[0]
    command = judge_command(study, first)
    cells = [number(one.metric(key), plain(3), first.source(key), command=command) for key in (COMPOSITE, *CRITERIA)]
    return (*cells, number(one.metric(PASS_RATE), percent, first.source(PASS_RATE), command=command))


def _compared(study: Study, one: ConfigurationResult, baseline: ConfigurationResult | None) -> tuple[Cell, ...]:
    if one.test is None:
        unjudged = baseline if baseline and baseline.metric(COMPOSITE) is None else one
        ask = judge_command(study, unjudged.evaluations[0])
        return (empty(ask if baseline else train_command(study, one.model, LENGTH_ONLY)),) * len(TESTED)
    result = one.test.result
    return (
        number(result.delta, signed(4)),
        *test_cells(result.t, result.p, one.p_holm),
        interval(result.ci_low, result.ci_high),
    )


def test_cells(t: float, p: float, p_holm: float | None) -> tuple[Cell, ...]:
    if math.isnan(p):
        return (words(NOT_DONE),) * (3 if p_holm is None else 4)
    tested = words(NOT_DONE) if math.isnan(t) else number(t, plain(4))
    cells = (tested, number(p, p_value), Cell("✓" if p < ALPHA else "✗", "yes" if p < ALPHA else "no"))
    return cells if p_holm is None else (*cells, number(p_holm, p_value))


def interval(low: float, high: float) -> Cell:
    if math.isnan(low):
        return words(NOT_DONE)
    show = signed(3)
    return words(f"[{show(low)}, {show(high)}]")


def _lengths(
    label: str,
    title: str,
    study: Study,
    baseline: ConfigurationResult | None,
    found: Sequence[ConfigurationResult],
    model: str,
    strategy: str,
) -> Table:
    target, tolerance = target_of(study)
    columns = ("Reward Configuration", *(head for head, _, _ in LENGTHS), f"Within ±{tolerance} of {target}")
    # the study has the baseline's lengths beside the joint strategy only, where they are comparable
    shown = (
        [(f"length-only (baseline){_seeds(baseline)}", baseline)]
        if baseline is not None and strategy == INCLUDED
        else []
    )
    rows = [length_row(name, one) for name, one in [*shown, *((one.name, one) for one in found)]]
    rows += _not_run(study, model, strategy, found, len(columns))
    note = (
        f"Without the end-of-sequence token; within: {target - tolerance}-{target + tolerance}, per cent rounded down."
    )
    return Table(label, f"Output tokens, {title}", columns, tuple(rows), (note,))


def _others(study: Study, others: Sequence[ConfigurationResult]) -> Table:
    rows = [
        (words(one.model), words(one.name), *_judged(study, one), *_compared(study, one, baseline_of(study, one.model)))
        for one in others
    ]
    columns = ("Model", "Configuration", *JUDGED, *TESTED)
    return Table("S1", "Configurations that the study does not have", columns, mark_best(rows, range(2, 8)))
