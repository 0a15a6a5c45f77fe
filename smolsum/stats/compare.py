"""The comparisons of `smolsum stats`, each as a report of rows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from smolsum.stats.loading import Arm, check_comparable, shared_metrics
from smolsum.stats.paired import (
    ALPHA,
    CONFIDENCE,
    POWER,
    Alternative,
    CrossChecks,
    cross_checks,
    mcnemar,
    smallest_detectable,
)
from smolsum.stats.render import Report, ResultSection, Row, figure
from smolsum.stats.seeds import compare_runs
from smolsum.stats.several import benjamini_hochberg, correlate, count_tests, holm

_RESULT_COLUMNS = ("n", "missing", "mean_a", "mean_b", "delta", "ci_low", "ci_high", "t", "df", "p", "sd", "se", "d_z")
_NOTE_TEXTS = {
    "identical": "a and b are equal in every pair",
    "constant": "every pair differs by the same amount",
    "too few": "fewer than two pairs are complete",
}

CHECKS_NOTE = "Wilcoxon, sign flip: p of the same question by ranks and by random signs; bootstrap: 95 % interval (BCa)"


@dataclass(frozen=True)
class Options:
    """Options of every test of a report."""

    metrics: tuple[str, ...] = ()
    """empty for all metrics that every file has"""
    alternative: Alternative = "two-sided"
    matched: bool = False
    seed: int = 0
    """of random flips and resamples"""


def compare_two(a: Arm, b: Arm, options: Options) -> Report:
    """Return b - a in every metric: the t-test and its checks."""
    check_comparable([a, b])
    rows = [
        {"metric": metric, **_tests(metric, a, b, options, checked=True)}
        for metric in shared_metrics([a, b], options.metrics)
    ]
    _adjust(rows)
    several = len(a.members) + len(b.members) > 2
    ranks = () if several else ("wilcoxon_p", "sign_flip_p")
    changes = () if several else ("bootstrap", "gained", "lost", "mcnemar_p")
    sections = [
        ResultSection("difference", ("metric", "mean_a", "mean_b", "delta", "interval", "t", "p"), rows),
        ResultSection("strength", ("metric", "d_z", "p_holm", "p_bh", *ranks, "detectable"), rows),
        ResultSection("pairs", ("metric", "n", "missing", *changes), rows),
    ]
    if several:
        sections.append(_runs_section("metric", rows, options))
    return Report(
        kind="paired",
        head=_head([a, b], options, rows),
        sections=tuple(sections),
        rows=tuple(rows),
        notes=(
            *_notes(options, rows, several),
            *([] if several else [CHECKS_NOTE]),
            *_flips_note(rows),
            *_asides(rows, "metric"),
        ),
    )


def against_baseline(baseline: Arm, arms: Sequence[Arm], options: Options) -> Report:
    """Return each arm minus the baseline in every metric, p values adjusted over all of them."""
    everyone = [baseline, *arms]
    check_comparable(everyone)
    metrics = shared_metrics(everyone, options.metrics)
    rows = [
        {"metric": metric, "run": arm.name, **_tests(metric, baseline, arm, options)}
        for metric in metrics
        for arm in arms
    ]
    _adjust(rows)
    several = any(len(arm.members) > 1 for arm in everyone)
    sections = []
    for metric in metrics:
        of_metric = [row for row in rows if row["metric"] == metric]
        # left-out pairs change the baseline's mean from row to row
        gaps = any(row["missing"] for row in of_metric)
        columns = ("run", *(("mean_a",) if gaps else ()), "mean_b", "delta", "t", "p", "p_holm", "p_bh", "d_z")
        title = metric if gaps else f"{metric}, baseline {figure(of_metric[0]['mean_a'])}"
        sections.append(ResultSection(title, (*columns, "interval", "n", "missing"), of_metric))
        if any(row["gained"] is not None for row in of_metric):
            sections.append(ResultSection(f"{metric}, changes", ("run", "gained", "lost", "mcnemar_p"), of_metric))
        if several:
            sections.append(_runs_section("run", of_metric, options))
    return Report(
        kind="vs-baseline",
        head=_head(everyone, options, rows),
        sections=tuple(sections),
        rows=tuple(rows),
        notes=(*_notes(options, rows, several), *_flips_note(rows), *_asides(rows, "run", "metric")),
    )


def correlations(arms: Sequence[Arm], options: Options) -> Report:
    """Return Pearson's r of every two metrics over all examples of all evaluations."""
    members = [member for arm in arms for member in arm.members]
    metrics = shared_metrics(arms, options.metrics)
    rows = [asdict(pair) for pair in correlate([member.frame for member in members], metrics)]
    return Report(
        kind="correlations",
        head={"files": [str(member.path) for member in members]},
        sections=(ResultSection("Pearson correlation", ("x", "y", "n", "missing", "r", "r_within"), rows),),
        rows=tuple(rows),
        notes=(
            f"r: all examples of all {len(members)} evaluations pooled, as in the study's Figure 1",
            "pooled rows repeat the same examples and mix differences between evaluations with those between examples, "
            "so they are not independent and r has no p value here",
            "within: the same after each evaluation's own mean is taken off, so only examples differ",
            "a metric that does not vary has no correlation (-)",
        ),
    )


def _tests(metric: str, a: Arm, b: Arm, options: Options, *, checked: bool = False) -> Row:
    """The tests of b - a in a metric, with the cross-checks if `checked`.

    Cross-checks and McNemar's test count examples only: they are None where an arm has several runs, which vary too.
    """
    values_a, values_b = (arm.values(metric, a.ids) for arm in (a, b))
    found = compare_runs(values_a, values_b, alternative=options.alternative, matched=options.matched)
    means = values_a.mean(axis=0), values_b.mean(axis=0)
    several = len(a.members) + len(b.members) > 2
    flips = None if several else mcnemar(*means, alternative=options.alternative)
    checks: Row = {}
    if checked and several:
        checks = dict.fromkeys(field.name for field in fields(CrossChecks))
    elif checked:
        checks = asdict(cross_checks(*means, alternative=options.alternative, seed=options.seed))
    result = found.result
    return {
        **{name: getattr(result, name) for name in _RESULT_COLUMNS},
        "detectable": smallest_detectable(result.se, result.df, alternative=result.alternative),
        "p_these_runs": found.these_runs.p,
        "run_sd_a": found.run_sd_a,
        "run_sd_b": found.run_sd_b,
        "run_sd_delta": found.run_sd_delta,
        "note": result.note,
        **checks,
        "gained": flips.gained if flips else None,
        "lost": flips.lost if flips else None,
        "mcnemar_p": flips.p if flips else None,
    }


def _flips_note(rows: Sequence[Row]) -> list[str]:
    if all(row["gained"] is None for row in rows):
        return []
    return ["gained, lost: no to yes, yes to no, with McNemar's exact p, for metrics that are 0 or 1"]


def _adjust(rows: Sequence[Row]) -> None:
    p_values = [row["p"] for row in rows]
    for row, by_holm, by_bh in zip(rows, holm(p_values), benjamini_hochberg(p_values), strict=True):
        row |= {"p_holm": by_holm, "p_bh": by_bh}


def _head(arms: Sequence[Arm], options: Options, rows: Sequence[Row]) -> dict[str, Any]:
    """What was compared and how, for the head of a report. Of split, data and judge what all evaluations state."""
    members = [member for arm in arms for member in arm.members]
    first = members[0]
    common = {
        key: first.origin.get(key) if all(member.origin.get(key) is not None for member in members) else None
        for key in ("split", "data", "judge")
    }
    a, *b = [{"name": arm.name, "files": [str(member.path) for member in arm.members]} for arm in arms]
    return {
        "a": a,
        "b": b,
        "direction": "b - a",
        "examples": first.frame.height,
        **common,
        "alternative": options.alternative,
        "matched": options.matched,
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
        "power": POWER,
        "tests": count_tests([row["p"] for row in rows]),
        "seed": options.seed,
    }


def _runs_section(key: str, rows: Sequence[Row], options: Options) -> ResultSection:
    spread = ("run_sd_delta",) if options.matched else ()
    return ResultSection("between runs", (key, "run_sd_a", "run_sd_b", *spread, "df", "p_these_runs"), rows)


def _notes(options: Options, rows: Sequence[Row], several: bool) -> list[str]:
    meant = {"two-sided": "b differs from a", "greater": "b is greater than a", "less": "b is less than a"}
    tests = count_tests([row["p"] for row in rows])
    notes = [
        f"* p < {ALPHA}; {options.alternative} paired t-test: {meant[options.alternative]}; interval: 95 %"
        + ("" if options.alternative == "two-sided" else ", one-sided like the test"),
        f"Holm, BH: p adjusted for all {tests} tests here; BH holds the share of false finds",
        "d_z: difference / sd of differences; min: the true difference found with 80 % power at 5 %",
    ]
    if any(row["missing"] for row in rows):
        notes.append("missing: pairs left out of that metric alone, as an arm has no finite value")
    if several:
        notes.append(
            "an arm of several runs is its mean per example; t, p and the interval count runs and examples as samples; "
            "'these runs' counts examples only, says nothing about other runs, and so has no star. An arm of one run "
            "cannot show how much its training varies"
        )
    return notes


def _asides(rows: Sequence[Row], *keys: str) -> list[str]:
    return [f"{', '.join(row[key] for key in keys)}: {_NOTE_TEXTS[row['note']]}" for row in rows if row["note"]]
