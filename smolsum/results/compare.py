"""The comparisons of `smolsum stats`: the tests of every metric, as rows of numbers with the sections that show them.
`comparison_text.py` prints them.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from smolsum.errors import UsageError
from smolsum.results.score_columns import Arm, check_comparable, shared_metrics
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
from smolsum.stats.seeds import Resampled, compare_runs, margin_p, resample, variance_components
from smolsum.stats.several import benjamini_hochberg, correlate, count_tests, holm
from smolsum.stats.shares import share_difference, share_interval, share_p

Values: TypeAlias = NDArray[np.float64]
Row: TypeAlias = dict[str, Any]

_RESULT_COLUMNS = ("n", "missing", "mean_a", "mean_b", "delta", "ci_low", "ci_high", "t", "df", "p", "sd", "se", "d_z")
_RESAMPLED = {
    "runs and examples drawn anew": ("metric", "boot", "iqm_a", "iqm_b", "iqm"),
    "probability of improvement": ("metric", "improved", "improvement"),
}
_SHARES = ("metric", "exact_a", "exact_b", "share_delta", "share_p")
_NOTE_TEXTS = {
    "identical": "a and b are equal in every pair",
    "constant": "every pair differs by the same amount",
    "too few": "fewer than two pairs are complete",
}


@dataclass(frozen=True)
class TestOptions:
    """Options of every test of a comparison."""

    metrics: tuple[str, ...] = ()
    """empty for all metrics that every file has"""
    alternative: Alternative = "two-sided"
    matched: bool = False
    seed: int = 0
    """of random flips and resamples"""
    margin: float | None = None
    """the largest difference that does not matter; None: no test of equivalence"""
    cluster: str | None = None
    """field of the lines that says what an example belongs to, such as its document; None: only to itself"""


@dataclass(frozen=True)
class ResultSection:
    """Some columns of some rows, as one table."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    baseline: float | None = None
    """mean of the arm that all rows are compared with, for the title; None where rows differ in it"""


@dataclass(frozen=True)
class Comparison:
    """Rows of unrounded numbers, with the sections that show them."""

    kind: str
    head: dict[str, Any]
    """what was compared and how"""
    sections: Sequence[ResultSection]
    rows: Sequence[Row]
    notes: Sequence[str]


def compare_two(a: Arm, b: Arm, options: TestOptions) -> Comparison:
    """Return b - a in every metric: the t-test and its checks."""
    check_comparable([a, b])
    metrics = shared_metrics([a, b], options.metrics)
    rows = _adjusted([{"metric": metric, **_tests(metric, a, b, options, checked=True)} for metric in metrics])
    several = len(a.members) + len(b.members) > 2 or options.cluster is not None
    shares = [row for row in rows if row["share_low"] is not None]
    ranks = () if several else ("wilcoxon_p", "sign_flip_p")
    changes = () if several else ("bootstrap", "gained", "lost", "mcnemar_p")
    sections = [
        ResultSection("difference", ("metric", "mean_a", "mean_b", "delta", "interval", "t", "p"), rows),
        ResultSection("strength", ("metric", "d_z", "p_holm", "p_bh", *ranks, "detectable"), rows),
        ResultSection("pairs", ("metric", "n", "missing", *changes), rows),
        *([_runs_section("metric", rows, options)] if several else []),
        *([ResultSection(title, columns, rows) for title, columns in _RESAMPLED.items()] if several else []),
        *(
            [ResultSection("shares", ("metric", "exact_a", "exact_b", "share_delta", "share_p"), shares)]
            if shares
            else []
        ),
        *_margin_sections("metric", rows, options),
    ]
    checks = "Wilcoxon, sign flip: p of the same question by ranks and by random signs; bootstrap: 95 % interval (BCa)"
    notes = [*_notes(options, rows, several), *([] if several else [checks]), *_asides(rows, "metric")]
    return Comparison("paired", _head([a, b], options, rows), sections, rows, notes)


def against_baseline(baseline: Arm, arms: Sequence[Arm], options: TestOptions) -> Comparison:
    """Return each arm minus the baseline in every metric, p values adjusted over all of them."""
    everyone = [baseline, *arms]
    check_comparable(everyone)
    metrics = shared_metrics(everyone, options.metrics)
    rows = _adjusted(
        [
            {"metric": metric, "run": arm.name, **_tests(metric, baseline, arm, options)}
            for metric in metrics
            for arm in arms
        ]
    )
    several = any(len(arm.members) > 1 for arm in everyone) or options.cluster is not None
    sections = []
    for metric in metrics:
        of_metric = [row for row in rows if row["metric"] == metric]
        # left-out pairs change the baseline's mean from row to row
        gaps = any(row["missing"] for row in of_metric)
        columns = ("run", *(("mean_a",) if gaps else ()), "mean_b", "delta", "t", "p", "p_holm", "p_bh", "d_z")
        mean = None if gaps else of_metric[0]["mean_a"]
        sections.append(ResultSection(metric, (*columns, "interval", "n", "missing"), of_metric, mean))
        if any(row["gained"] is not None for row in of_metric):
            sections.append(ResultSection(f"{metric}, changes", ("run", "gained", "lost", "mcnemar_p"), of_metric))
        if several:
            sections.append(_runs_section("run", of_metric, options))
        sections += _margin_sections("run", of_metric, options)
    notes = [*_notes(options, rows, several), *_asides(rows, "run", "metric")]
    return Comparison("vs-baseline", _head(everyone, options, rows), sections, rows, notes)


def correlations(arms: Sequence[Arm], options: TestOptions) -> Comparison:
    """Return Pearson's r of every two metrics over all examples of all evaluations."""
    members = [member for arm in arms for member in arm.members]
    metrics = shared_metrics(arms, options.metrics)
    rows = [asdict(pair) for pair in correlate([member.frame for member in members], metrics)]
    sections = [ResultSection("Pearson correlation", ("x", "y", "n", "missing", "r", "r_within"), rows)]
    return Comparison(
        "correlations",
        {"files": [str(member.path) for member in members]},
        sections,
        rows,
        [
            f"r: all examples of all {len(members)} evaluations pooled, as in the study's Figure 1",
            "pooled rows repeat the same examples and mix differences between evaluations with those between examples, "
            "so they are not independent and r has no p value here",
            "within: the same after each evaluation's own mean is taken off, so only examples differ",
            "a metric that does not vary has no correlation (-)",
        ],
    )


def variances(arms: Sequence[Arm], options: TestOptions) -> Comparison:
    """Return the variance of each source in every metric: each arm is a run, its members its completions of the same
    examples, and their rounds those of the judge. Raises UsageError unless all arms have equally many members."""
    check_comparable(arms)
    if len({len(arm.members) for arm in arms}) > 1:
        counts = ", ".join(f"{arm.name} {len(arm.members)}" for arm in arms)
        raise UsageError(
            f"the runs have different numbers of evaluations: {counts}",
            hint="give each run equally many, as run1=A,B run2=C,D",
        )
    metrics, ids = shared_metrics(arms, options.metrics), arms[0].ids
    rows = []
    for metric in metrics:
        found = [arm.rounds(metric, ids) for arm in arms]
        least = min(x.shape[-1] for x in found)
        table = np.stack([x[..., :least].swapaxes(0, 1) for x in found])
        for one in variance_components(table):
            known = not math.isnan(one.variance)
            rows.append({"metric": metric, **asdict(one), "sd": math.sqrt(one.variance) if known else math.nan})
    sections = [
        ResultSection(metric, ("source", "sd", "share"), [row for row in rows if row["metric"] == metric])
        for metric in metrics
    ]
    notes = [
        "sd: of one draw, such as one seed or one round of the judge; share: of the variance of the mean of this table",
        "-: drawn once, so not known; the variance of decoding and judge is then part of the source above",
        "of the difference between two arms on the same examples, that of the examples is smaller",
    ]
    files = [str(member.path) for arm in arms for member in arm.members]
    return Comparison("variances", {"files": files}, sections, rows, notes)


def _tests(metric: str, a: Arm, b: Arm, options: TestOptions, *, checked: bool = False) -> Row:
    """The tests of b - a in a metric, with the cross-checks, or those of several runs, if `checked`.

    Cross-checks and McNemar's test count examples only: they are None where an arm has several runs, which vary too,
    and where examples belong together.
    """
    values_a, values_b = (arm.values(metric, a.ids) for arm in (a, b))
    clusters, alternative, matched = a.clusters(options.cluster), options.alternative, options.matched
    found = compare_runs(values_a, values_b, alternative=alternative, matched=matched, clusters_N=clusters)
    means = values_a.mean(axis=0), values_b.mean(axis=0)
    several = len(a.members) + len(b.members) > 2 or clusters is not None
    flips = None if several else mcnemar(*means, alternative=alternative)
    checks: Row = {}
    if checked:
        checks = dict.fromkeys(field.name for kind in (CrossChecks, Resampled) for field in fields(kind))
        checks |= asdict(
            resample(values_a, values_b, matched=matched, clusters_N=clusters, seed=options.seed)
            if several
            else cross_checks(*means, alternative=alternative, seed=options.seed)
        )
        checks |= _shares(values_a, values_b, options, clusters)
    result = found.result
    p_margin = None
    if options.margin is not None:
        p_margin = margin_p(result, options.margin)
        by_share = share_p(
            values_a, values_b, margin=options.margin, alternative=alternative, matched=matched, clusters_N=clusters
        )
        p_margin = p_margin if by_share is None else by_share
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
        "p_margin": p_margin,
    }


def _shares(a: Values, b: Values, options: TestOptions, clusters: list[object] | None) -> Row:
    """The intervals and p of metrics that are 0 or 1; None for others."""
    row: Row = {}
    for name, values in (("a", a), ("b", b)):
        found = share_interval(values, clusters)
        for end in ("exact_low", "exact_high", "bayes_low", "bayes_high"):
            row[f"{end.replace('_', f'_{name}_')}"] = getattr(found, end) if found else None
    ends = share_difference(a, b, matched=options.matched, clusters_N=clusters)
    row["share_low"], row["share_high"] = ends or (None, None)
    row["share_p"] = share_p(a, b, alternative=options.alternative, matched=options.matched, clusters_N=clusters)
    return row


def _margin_sections(key: str, rows: Sequence[Row], options: TestOptions) -> list[ResultSection]:
    if options.margin is None:
        return []
    kind = "equivalence" if options.alternative == "two-sided" else "non-inferiority"
    return [ResultSection(f"{kind}, margin {options.margin:g}", (key, "delta", "p_margin", "p_margin_holm"), rows)]


def _adjusted(rows: list[Row]) -> list[Row]:
    """The rows with p values adjusted over all of them."""
    p_values = [row["p"] for row in rows]
    margins = [row["p_margin"] for row in rows]
    of_margins = margins if None in margins else holm(margins)
    adjusted = zip(rows, holm(p_values), benjamini_hochberg(p_values), of_margins, strict=True)
    return [row | {"p_holm": by_holm, "p_bh": by_bh, "p_margin_holm": of} for row, by_holm, by_bh, of in adjusted]


def _head(arms: Sequence[Arm], options: TestOptions, rows: Sequence[Row]) -> dict[str, Any]:
    """What was compared and how, for the head of a comparison. Of split, data and judge what all evaluations state."""
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
        "margin": options.margin,
        "cluster": options.cluster,
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
        "power": POWER,
        "tests": count_tests([row["p"] for row in rows]),
        "seed": options.seed,
    }


def _runs_section(key: str, rows: Sequence[Row], options: TestOptions) -> ResultSection:
    spread = ("run_sd_delta",) if options.matched else ()
    return ResultSection("between runs", (key, "run_sd_a", "run_sd_b", *spread, "df", "p_these_runs"), rows)


def _notes(options: TestOptions, rows: Sequence[Row], several: bool) -> list[str]:
    meant = {"two-sided": "b differs from a", "greater": "b is greater than a", "less": "b is less than a"}
    tests = count_tests([row["p"] for row in rows])
    notes = [
        f"* p < {ALPHA}; {options.alternative} paired t-test: {meant[options.alternative]}; interval: 95 %"
        + ("" if options.alternative == "two-sided" else ", one-sided like the test"),
        f"Holm, BH: p adjusted for all {tests} tests here; BH controls the false discovery rate",
        "d_z: difference / sd of differences; min: the smallest true difference found with 80 % power at 5 %",
    ]
    if options.margin is not None:
        claim = {"two-sided": "-{0:g} < b - a < {0:g}", "greater": "b - a > -{0:g}", "less": "b - a < {0:g}"}
        notes.append(
            f"margin: p of {claim[options.alternative].format(options.margin)}, by one-sided tests at 5 % (TOST), Holm "
            "over all of them; a difference without a star is no evidence of equivalence, this is"
        )
    if options.cluster is not None:
        notes.append(f"examples with the same {options.cluster!r} belong together: these count as the sample")
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
    """Notes on metrics that are 0 or 1, and on tests that are undefined."""
    flips = "gained, lost: no to yes, yes to no, with McNemar's exact p, for metrics that are 0 or 1"
    found = [flips] if any(row["gained"] is not None for row in rows) else []
    if any(row.get("share_low") is not None for row in rows):
        found.append(
            "shares: 95 % intervals for metrics that are 0 or 1, exact ones of each arm (JSON has Bayesian ones too); "
            "that of the difference and its p hold near 0 and 1, where those of the t-test do not"
        )
    if any(row.get("boot_low") is not None for row in rows):
        found.append(
            "drawn anew: 95 % intervals from draws of runs and examples, too narrow for fewer than six runs; IQM: "
            "mean of the middle half of all scores; improved: how often a run of b beats one of a on an example"
        )
    return found + [f"{', '.join(row[key] for key in keys)}: {_NOTE_TEXTS[row['note']]}" for row in rows if row["note"]]
