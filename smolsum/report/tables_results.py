"""Results in the study's tables: 10-13 with their output lengths (10a-13a), and 14."""

from __future__ import annotations

import math
from collections.abc import Sequence

from smolsum.configurations import (
    FINETUNED,
    INCLUDED,
    LENGTH_ONLY,
    PREFIX,
    REWARDS,
    STRATEGIES,
    model_argument,
    train_command,
)
from smolsum.evaluate.columns import PASS_RATE
from smolsum.report.gather import Evaluation, Study
from smolsum.report.page import Cell, Table, empty, mark_best, number, p_value, percent, plain, signed, words
from smolsum.report.results import Outcome, baseline_of, compare
from smolsum.stats.paired import ALPHA
from smolsum.tasks.criterion import COMPOSITE
from smolsum.tasks.lengths import PERCENTILES

CRITERIA = ("faithfulness", "coverage", "conciseness", "clarity")
"""the study's metrics (its Table 3), in its order"""
NOT_DONE = "-"
ALPHA_SIGN = "\N{GREEK SMALL LETTER ALPHA}"
BASELINE = "length-only (GRPO baseline)"
_TESTED = ("ΔAverage", "t", "p", "Sig", "p (Holm)", "95 % interval")
_LENGTHS = (
    ("Mean", "mean", plain(1)),
    ("Std", "std", plain(1)),
    ("Min", "min", plain(0)),
    *((f"P{p}", f"p{p}", plain(0)) for p in PERCENTILES),
    ("Max", "max", plain(0)),
)


def judge_command(evaluation: Evaluation) -> str:
    """The command that has an evaluation judged."""
    return f"{evaluation.again} --judge MODEL"


def result_tables(study: Study, outcomes: Sequence[Outcome]) -> list[Table]:
    """Returns a table of results and one of output lengths for each model and strategy."""
    tables: list[Table] = []
    for place, (model, strategy) in enumerate((m, s) for m in study.models for s in STRATEGIES):
        label = str(10 + place) if place < 4 else f"S{10 + place}"
        found = [one for one in outcomes if (one.model, one.strategy) == (model, strategy)]
        baseline = baseline_of(study, model)
        title = f"{model} - {STRATEGIES[strategy]}"
        tables += [
            _results(label, title, study, baseline, found, model, strategy),
            _lengths(f"{label}a", title, study, baseline, found, model, strategy),
        ]
    others = [one for one in outcomes if one.strategy not in STRATEGIES]
    if others:
        tables.append(_others(study, others))
    return tables


def strategies_table(study: Study, outcomes: Sequence[Outcome]) -> Table:
    """Returns Table 14: the best of each strategy, and the direct test between them."""
    rows = []
    for model in study.models:
        best = {}
        for strategy in STRATEGIES:
            judged = [o for o in outcomes if (o.model, o.strategy) == (model, strategy) and o.metric(COMPOSITE)]
            best[strategy] = max(judged, key=lambda o: o.metric(COMPOSITE) or 0.0, default=None)
        staged, joint = best[FINETUNED], best[INCLUDED]
        name = model_argument(study.path_of(model))
        cells = [_best_cell(best[s], name, s) for s in STRATEGIES]
        if staged is None or joint is None:
            blank = empty("smolsum report RUNS, with a judged run of both strategies")
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
                *_test_cells(result.t, result.p, None),
                _interval(result.ci_low, result.ci_high),
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


def _average(one: Outcome) -> float:
    """The composite of an outcome that was judged."""
    value = one.metric(COMPOSITE)
    assert value is not None
    return value


def _best_cell(one: Outcome | None, model: str, strategy: str) -> Cell:
    if one is None:
        return empty(train_command(model, strategy, "meteor"))
    value = _average(one)
    return Cell(f"{value:.3f} ({one.name})", value, one.evaluations[0].source(COMPOSITE))


def _results(
    label: str,
    title: str,
    study: Study,
    baseline: Outcome | None,
    found: Sequence[Outcome],
    model: str,
    strategy: str,
) -> Table:
    name = model_argument(study.path_of(model))
    rows: list[tuple[Cell, ...]] = []
    if baseline is None:
        blank = empty(train_command(name, LENGTH_ONLY, LENGTH_ONLY))
        rows.append((words(BASELINE), *[blank] * 6, *[words(NOT_DONE)] * 6))
    else:
        rows.append((words(BASELINE), *_judged(baseline), *[words(NOT_DONE)] * 6))
    rows += [(words(one.name), *_judged(one), *_compared(one, baseline)) for one in found]
    for reward in REWARDS:
        if reward not in {one.reward for one in found}:
            blank = empty(train_command(name, strategy, reward))
            rows.append((words(PREFIX[strategy] + reward), *[blank] * 12))
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
    if any(len(one.evaluations) > 1 for one in found):
        notes.append("xN: N seeds; their mean per example is compared, and t counts seeds and examples as samples.")
    columns = ("Reward Configuration", "Average", *map(str.title, CRITERIA), "Pass Rate", *_TESTED)
    return Table(label, title, columns, mark_best(rows, range(1, 7)), tuple(notes))


def _judged(one: Outcome) -> tuple[Cell, ...]:
    first = one.evaluations[0]
    command = judge_command(first)
    cells = [number(one.metric(key), plain(3), first.source(key), command=command) for key in (COMPOSITE, *CRITERIA)]
    return (*cells, number(one.metric(PASS_RATE), percent, first.source(PASS_RATE), command=command))


def _compared(one: Outcome, baseline: Outcome | None) -> tuple[Cell, ...]:
    if one.test is None:
        unjudged = baseline if baseline and baseline.metric(COMPOSITE) is None else one
        command = (
            judge_command(unjudged.evaluations[0])
            if baseline
            else train_command(model_argument(str(one.runs[0].config["model"]["path"])), LENGTH_ONLY, LENGTH_ONLY)
        )
        return (empty(command),) * 6
    result = one.test.result
    return (
        number(result.delta, signed(4)),
        *_test_cells(result.t, result.p, one.p_holm),
        _interval(result.ci_low, result.ci_high),
    )


def _test_cells(t: float, p: float, p_holm: float | None) -> tuple[Cell, ...]:
    if math.isnan(p):
        return (words(NOT_DONE),) * (3 if p_holm is None else 4)
    tested = words(NOT_DONE) if math.isnan(t) else number(t, plain(4))
    cells = (tested, number(p, p_value), Cell("✓" if p < ALPHA else "✗", "yes" if p < ALPHA else "no"))
    return cells if p_holm is None else (*cells, number(p_holm, p_value))


def _interval(low: float, high: float) -> Cell:
    if math.isnan(low):
        return words(NOT_DONE)
    show = signed(3)
    return words(f"[{show(low)}, {show(high)}]")


def _lengths(
    label: str,
    title: str,
    study: Study,
    baseline: Outcome | None,
    found: Sequence[Outcome],
    model: str,
    strategy: str,
) -> Table:
    name = model_argument(study.path_of(model))
    rows: list[tuple[Cell, ...]] = []
    # the study has the baseline's lengths beside the joint strategy only, where they are comparable
    if baseline is not None and strategy == INCLUDED:
        rows.append(_length_row("length-only (baseline)", baseline))
    rows += [_length_row(one.name, one) for one in found]
    for reward in REWARDS:
        if reward not in {one.reward for one in found}:
            blank = empty(train_command(name, strategy, reward))
            rows.append((words(PREFIX[strategy] + reward), *[blank] * (len(_LENGTHS) + 1)))
    target, tolerance = _target(study)
    columns = ("Reward Configuration", *(head for head, _, _ in _LENGTHS), f"Within ±{tolerance} of {target}")
    note = (
        f"Without the end-of-sequence token; within: {target - tolerance}-{target + tolerance}, per cent rounded down."
    )
    return Table(label, f"Output tokens, {title}", columns, tuple(rows), (note,))


def _length_row(name: str, one: Outcome) -> tuple[Cell, ...]:
    first = one.evaluations[0]
    again = first.again
    cells = [
        number(one.metric(key := f"completions/{of}_length"), show, first.source(key), command=again)
        for _, of, show in _LENGTHS
    ]
    share, n = one.metric("length/within_tol"), int(first.summary["n"])
    count = round((share or 0.0) * n)
    within = (
        empty(again)
        if share is None
        else Cell(f"{count}/{n} ({100 * count // n}%)", share, first.source("length/within_tol"))
    )
    return (words(name), *cells, within)


def _others(study: Study, others: Sequence[Outcome]) -> Table:
    rows = [
        (words(one.model), words(one.name), *_judged(one), *_compared(one, baseline_of(study, one.model)))
        for one in others
    ]
    columns = ("Model", "Configuration", "Average", *map(str.title, CRITERIA), "Pass Rate", *_TESTED)
    return Table("S1", "Strategies that the study does not have", columns, mark_best(rows, range(2, 8)))


def _target(study: Study) -> tuple[int, int]:
    tasks = [run.config["task"] for run in study.trained]
    tasks += [e.summary["task"] for e in study.baselines if e.summary.get("task")]
    return (tasks[0]["target_tokens"], tasks[0]["tolerance_tokens"]) if tasks else (64, 5)
