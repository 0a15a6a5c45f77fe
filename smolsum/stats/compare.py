"""The comparisons of `smolsum stats`, each as a report of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smolsum.stats.correlation import correlate
from smolsum.stats.loading import Arm, check_comparable, shared_metrics
from smolsum.stats.multiple_testing import benjamini_hochberg, count_tests, holm
from smolsum.stats.paired import (
    ALPHA,
    CONFIDENCE,
    POWER,
    Alternative,
    McNemar,
    cross_checks,
    mcnemar,
    smallest_detectable,
)
from smolsum.stats.render import Report, ResultSection, Row, figure
from smolsum.stats.seeds import MixedResult, compare_runs

_NOTE_TEXTS = {
    "identical": "a and b are equal in every pair",
    "constant": "every pair differs by the same amount",
    "too few": "fewer than two pairs are complete",
}


@dataclass(frozen=True)
class Options:
    """Options of every test of a report."""

    metrics: tuple[str, ...] = ()
    """empty for all metrics that every file has"""
    alternative: Alternative = "two-sided"
    matched: bool = False
    seed: int = 0
    """of random flips and resamples"""


def paired(a: Arm, b: Arm, options: Options) -> Report:
    """Returns b - a in every metric: the t-test and its checks."""
    check_comparable([a, b])
    results, rows = [], []
    for metric in shared_metrics([a, b], options.metrics):
        values_a, values_b = (side.values(metric, a.ids) for side in (a, b))
        found = compare_runs(values_a, values_b, alternative=options.alternative, matched=options.matched)
        means = values_a.mean(axis=0), values_b.mean(axis=0)
        checks = cross_checks(*means, alternative=options.alternative, seed=options.seed)
        flips = mcnemar(*means, alternative=options.alternative)
        results.append(found)
        rows.append(
            {
                "metric": metric,
                **_figures(found),
                "wilcoxon_p": checks.wilcoxon_p,
                "sign_flip_p": checks.sign_flip_p,
                "bootstrap_low": checks.bootstrap_low,
                "bootstrap_high": checks.bootstrap_high,
                **_flips(flips),
            }
        )
    _adjust(rows)
    several = len(a.members) + len(b.members) > 2
    sections = [
        ResultSection("difference", ("metric", "mean_a", "mean_b", "delta", "interval", "t", "p"), rows),
        ResultSection("strength", ("metric", "d_z", "p_holm", "p_bh", "wilcoxon_p", "sign_flip_p", "detectable"), rows),
        ResultSection("pairs", ("metric", "n", "missing", "bootstrap", "gained", "lost", "mcnemar_p"), rows),
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
            "Wilcoxon, sign flip: p of the same question by ranks and by random signs; bootstrap: 95 % interval (BCa)",
            *_flips_note(rows),
            *_asides(rows, "metric"),
        ),
    )


def against_baseline(baseline: Arm, sides: Sequence[Arm], options: Options) -> Report:
    """Returns each arm minus the baseline in every metric, p values adjusted over all of them."""
    everyone = [baseline, *sides]
    check_comparable(everyone)
    metrics = shared_metrics(everyone, options.metrics)
    rows: list[Row] = []
    for metric in metrics:
        values_a = baseline.values(metric, baseline.ids)
        for side in sides:
            values_b = side.values(metric, baseline.ids)
            found = compare_runs(values_a, values_b, alternative=options.alternative, matched=options.matched)
            flips = mcnemar(values_a.mean(axis=0), values_b.mean(axis=0), alternative=options.alternative)
            rows.append({"metric": metric, "run": side.name, **_figures(found), **_flips(flips)})
    _adjust(rows)
    several = any(len(side.members) > 1 for side in everyone)
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


def correlations(sides: Sequence[Arm], options: Options) -> Report:
    """Returns Pearson's r of every two metrics over all examples of all evaluations."""
    members = [member for side in sides for member in side.members]
    metrics = shared_metrics(sides, options.metrics)
    rows: list[Row] = [
        {"x": pair.x, "y": pair.y, "n": pair.n, "missing": pair.missing, "r": pair.r, "r_within": pair.r_within}
        for pair in correlate([member.frame for member in members], metrics)
    ]
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


def _figures(found: MixedResult) -> Row:
    result = found.result
    return {
        "n": result.n,
        "missing": result.missing,
        "mean_a": result.mean_a,
        "mean_b": result.mean_b,
        "delta": result.delta,
        "ci_low": result.ci_low,
        "ci_high": result.ci_high,
        "t": result.t,
        "df": result.df,
        "p": result.p,
        "sd": result.sd,
        "se": result.se,
        "d_z": result.d_z,
        "detectable": smallest_detectable(result.se, result.df, alternative=result.alternative),
        "p_these_runs": found.these_runs.p,
        "run_sd_a": found.run_sd_a,
        "run_sd_b": found.run_sd_b,
        "run_sd_delta": found.run_sd_delta,
        "note": result.note,
    }


def _flips(flips: McNemar | None) -> Row:
    return {
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


def _head(sides: Sequence[Arm], options: Options, rows: Sequence[Row]) -> dict[str, Any]:
    """What was compared and how, for the head of a report."""
    first = sides[0].members[0]
    return {
        "a": {"name": sides[0].name, "files": [str(member.path) for member in sides[0].members]},
        "b": [{"name": side.name, "files": [str(member.path) for member in side.members]} for side in sides[1:]],
        "direction": "b - a",
        "examples": first.frame.height,
        **{key: first.origin.get(key) for key in ("split", "data", "judge")},
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
        notes.append("missing: pairs left out of that metric alone, as a side has no finite value")
    if several:
        notes.append(
            "a side of several runs is its mean per example; t, p and the interval count runs and examples as samples; "
            "'these runs' counts examples only. A side of one run cannot show how much its training varies"
        )
    return notes


def _asides(rows: Sequence[Row], *keys: str) -> list[str]:
    return [f"{', '.join(row[key] for key in keys)}: {_NOTE_TEXTS[row['note']]}" for row in rows if row["note"]]
