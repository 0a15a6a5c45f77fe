"""What was planned, and what was looked at afterwards (`smolsum report --plan`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from smolsum.results.analysis_plan import AnalysisPlan, PlanVersion
from smolsum.results.compare import Row, TestOptions, against_baseline
from smolsum.results.report.collect import EvaluationResult, ReportInputs
from smolsum.results.report.document import DASH, Cell, Table, number, p_value, plain, signed, table
from smolsum.results.score_columns import Arm
from smolsum.stats.paired import ALPHA
from smolsum.stats.several import benjamini_hochberg, holm

CORRECTIONS = {"holm": "Holm", "bh": "Benjamini and Hochberg", "none": "none"}
ADJUST: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg, "none": list}


def plan_text(inputs: ReportInputs, plan: AnalysisPlan) -> list[str]:
    """Return what the plan says, whether it was kept, and what in this report was not planned, in sentences."""
    current = plan.current
    claim = _claim(current)
    found = [
        f"Planned on {plan.versions[0].created} (version {len(plan.versions)}, hash {current.hash[:16]}): "
        f"{current.tests} tests of {claim}, in {', '.join(current.metrics)}; correction: "
        f"{CORRECTIONS[current.correction]}."
    ]
    planned_runs = [run for run in inputs.trained if run.name in current.runs]
    started = [time for run in planned_runs if (time := _start(run.info.created)) is not None]
    problems = plan.problems(started)
    if not started:
        problems.append("No run of the plan says when it began, so it is not known whether the plan came first.")
    found += problems or ["It was written before the first of its runs, and has not been changed since."]
    evaluations = dict(inputs.named_evaluations)
    if missing := [run for run in current.runs if run not in evaluations]:
        found.append(f"Planned, and not in this report: {', '.join(missing)}.")
    others = [name for name in evaluations if name not in current.runs]
    metrics = dict.fromkeys(metric for e in evaluations.values() for metric in e.scores.metrics)
    unplanned = [metric for metric in metrics if metric not in current.metrics]
    what = [f"the metrics {', '.join(unplanned)}"] * bool(unplanned)
    what += [f"the runs {', '.join(others)}"] * bool(others)
    looked = " and ".join(what) or "nothing"
    found.append(
        f"Looked at afterwards, in the other tables: {looked}. Their p is adjusted within a table, and not for having "
        "been chosen when the scores were known: take it as a reason for a new study."
    )
    return found


def _start(created: str) -> datetime | None:
    """When a run began, in UTC; None if it does not say so."""
    try:
        return datetime.fromisoformat(created).astimezone(UTC)
    except ValueError:
        return None


def _claim(plan: PlanVersion) -> str:
    if plan.margin is None:
        words = {"two-sided": "a difference", "greater": "a greater mean", "less": "a lower mean"}
        return words[plan.alternative]
    kind = "equivalence" if plan.alternative == "two-sided" else "non-inferiority"
    return f"{kind} (margin {plan.margin:g})"


def plan_table(inputs: ReportInputs, plan: AnalysisPlan) -> Table:
    """Return Table P1: the planned tests alone, with the planned correction. A test whose runs are not all in the
    report, or lack its metric, has the reason in place of numbers, and is not counted by the correction."""
    current, evaluations = plan.current, dict(inputs.named_evaluations)
    first, *others = current.configurations
    arms = {name: _arm(name, runs, evaluations) for name, runs in current.configurations.items()}
    baseline, whole = arms[first], [arm for arm in (arms[name] for name in others) if arm]
    everyone = [*whole, *([baseline] if baseline else [])]
    metrics = [m for m in current.metrics if all(m in one.metrics for arm in everyone for one in arm.members)]
    tests: dict[tuple[str, str], Row] = {}
    if baseline and whole and metrics:
        options = TestOptions(
            tuple(metrics), current.alternative, current.matched, margin=current.margin, cluster=current.cluster
        )
        p = "p" if current.margin is None else "p_margin"
        rows = [row | {"p": row[p]} for row in against_baseline(baseline, whole, options).rows]
        decided = ADJUST[current.correction]([row["p"] for row in rows])
        tests = {(row["metric"], row["run"]): row | {"decided": d} for row, d in zip(rows, decided, strict=True)}
    many = current.correction != "none"
    shown = [
        [metric, f"{name} - {first}", *_cells(tests.get((metric, name)), many=many)]
        for metric in current.metrics
        for name in others
    ]
    adjusted = [f"p ({CORRECTIONS[current.correction]})"] if many else []
    columns = ("Metric", "Comparison", "First", "Other", "Δ", "95 % interval", "p", *adjusted, "Shown")
    note = f"Tests of {_claim(current)}; runs and examples are both samples. Shown: p below {ALPHA} after correction."
    return table("P1", "Planned tests", columns, shown, note)


def _arm(name: str, runs: Sequence[str], evaluations: dict[str, EvaluationResult]) -> Arm | None:
    """The scores of all runs of a configuration; None if one is not in the report."""
    if not all(run in evaluations for run in runs):
        return None
    return Arm(name, tuple(evaluations[run].scores for run in runs))


def _cells(row: Row | None, *, many: bool) -> list[Cell]:
    if row is None:
        return [DASH] * (5 + many) + [Cell("not run")]
    low, high = (signed(3)(row[end]) if math.isfinite(row[end]) else "" for end in ("ci_low", "ci_high"))
    return [
        number(row["mean_a"], plain(3)),
        number(row["mean_b"], plain(3)),
        number(row["delta"], signed(3)),
        Cell(f"[{low}, {high}]") if low or high else DASH,
        number(row["p"], p_value),
        *([number(row["decided"], p_value)] if many else []),
        DASH if math.isnan(row["decided"]) else Cell("yes" if row["decided"] < ALPHA else "no"),
    ]
