"""`smolsum stats --plan`: how large a study has to be, or what one of a given size can find, from a pilot or from
assumptions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from smolsum import console
from smolsum.errors import UsageError, nearest
from smolsum.files import read_jsonl
from smolsum.results.compare import Comparison, ResultSection, TestOptions
from smolsum.results.score_columns import Arm, check_comparable, shared_metrics
from smolsum.runs.paths import RunPaths
from smolsum.stats.design import Design, PlannedTest, Spread, pilot_spread
from smolsum.stats.paired import ALPHA, POWER
from smolsum.stats.power import MAX_SHARE_EXAMPLES, PlannedStudy, Prices, detectable, power, price, studies_with_power
from smolsum.stats.seeds import complete_tables, variance_components
from smolsum.stats.share_studies import realised

STEP_SECONDS = "perf/step_s"


@dataclass(frozen=True)
class Assumptions:
    """What `--assume KEY=VALUE` states; None is taken from the pilot, or is not known."""

    seed_sd: float | None = None
    example_sd: float | None = None
    noise_sd: float | None = None
    judge_sd: float | None = None
    share: float | None = None
    rounds: float | None = None
    criteria: float | None = None
    comparisons: float | None = None
    run_hours: float | None = None
    hour_price: float | None = None
    call_price: float | None = None


_MEANINGS = {
    "seed-sd": "between runs",
    "example-sd": "of differences between examples",
    "noise-sd": "of a completion",
    "judge-sd": "of a round of the judge",
}
_PAST_STUDIES = ("seeds", "examples", "rounds", "judge_calls", "hours", "dollars", "power")


def read_assumptions(given: Sequence[str]) -> Assumptions:
    """Return what KEY=VALUE pairs state. Raises UsageError for an unknown or repeated key, and for a value that is not
    a number from 0 on."""
    known = [field.name.replace("_", "-") for field in fields(Assumptions)]
    values: dict[str, float] = {}
    for pair in given:
        key, _, text = pair.partition("=")
        if key not in known:
            raise UsageError(f"--assume knows no {key!r}", hint=nearest(key, known))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0) or key in values:
            problem = "is given twice" if key in values else f"needs a number from 0 on, not {text!r}"
            raise UsageError(f"--assume {key} {problem}", hint=f"--assume {key}=0.05")
        if key == "share" and value > 1:
            raise UsageError(f"--assume share is at most 1, not {text}", hint="--assume share=0.95")
        if key in ("rounds", "criteria", "comparisons") and (value != int(value) or value < 1):
            raise UsageError(f"--assume {key} needs a whole number from 1 on, not {text}", hint=f"--assume {key}=2")
        values[key] = value
    return Assumptions(**{key.replace("-", "_"): value for key, value in values.items()})


def plan_size(
    arms: Sequence[Arm],
    assumed: Assumptions,
    options: TestOptions,
    *,
    effect: float | None,
    wanted: float = POWER,
    seeds: int | None = None,
    examples: int | None = None,
) -> Comparison:
    """Return the studies that find `effect` with the power `wanted`; with seeds and examples, the power of that study
    and what it can find. `arms` are the two of a pilot, or none.

    Raises UsageError where neither the pilot nor an assumption states a standard deviation, or where there is nothing
    to plan.
    """
    for name, value in (("--effect", effect), ("--margin", options.margin)):
        if value is not None and not (math.isfinite(value) and (value > 0 or name == "--effect")):
            raise UsageError(f"{name} {value:g} is no size of a difference", hint=f"{name} 0.05")
    metric, pilot, prices = "", Spread(math.nan, math.nan, math.nan, 0.0), Prices()
    if arms:
        metric, pilot, prices = _pilot(arms, options)
    spread = _spread(pilot, assumed, arms)
    prices = _prices(prices, assumed, judged=spread.judge > 0)
    alpha = ALPHA / int(assumed.comparisons or 1)
    test = PlannedTest(options.alternative, alpha, options.margin)
    if not 0.05 < wanted < 1:
        raise UsageError(f"a power of {wanted:g} cannot be planned", hint="--power 0.8 is usual, 0.9 is strict")
    truth, simulated = _truth(effect, options), spread.shares is not None
    # also refuses a share that is impossible, before minutes of simulation
    shown = realised(spread, truth) if simulated else spread
    rows: list[dict[str, Any]]
    if simulated and (seeds is None or examples is not None):
        console.narrate("simulating studies of scores that are 0 or 1, which may take a minute or two")
    if seeds is not None and examples is not None:
        design = Design(seeds, examples, int(assumed.rounds or 1), options.matched)
        reached = math.nan if effect is None and options.margin is None else power(truth, spread, design, test)
        least = detectable(spread, design, test, wanted=wanted)
        rows = [_row(price(design, reached, prices)) | {"detectable": least}]
        sections = [ResultSection("this design", (*_PAST_STUDIES, "detectable"), rows)]
    elif seeds is not None:
        raise UsageError("--seeds of a plan comes with --examples", hint="state both, or neither and an --effect")
    elif effect is None and options.margin is None:
        raise UsageError(
            "a plan needs the effect that should be found, or a design",
            hint="--effect 0.05, or --seeds 5 --examples 200",
        )
    else:
        found = studies_with_power(
            truth, spread, test, prices, wanted=wanted, matched=options.matched, examples=examples
        )
        rows = [_row(one) for one in found]
        sections = [ResultSection("studies that suffice", _PAST_STUDIES, rows)]
    head = {
        "metric": metric or None,
        "effect": effect,
        "margin": options.margin,
        "alternative": options.alternative,
        "matched": options.matched,
        "wanted": wanted,
        "alpha": alpha,
        "spread": {field.name: getattr(shown, field.name) for field in fields(Spread)},
        "assumed": _said(metric, spread, shown, arms, options, None if effect is None else truth),
    }
    notes = _plan_notes(alpha, wanted, prices, spread, options)
    if simulated and examples is None:
        notes.append(f"no more than {MAX_SHARE_EXAMPLES:,} examples are tried; --examples N tries so many")
    return Comparison("plan", head, sections, rows, notes)


def _truth(effect: float | None, options: TestOptions) -> float:
    """The true difference b - a that is planned for; with a margin 0 unless an effect is stated."""
    size = effect or 0.0
    return -abs(size) if options.alternative == "less" and options.margin is None else size


def _row(one: PlannedStudy) -> dict[str, Any]:
    design = one.design
    return {
        "seeds": design.seeds,
        "examples": design.examples,
        "rounds": design.rounds,
        "judge_calls": one.judge_calls,
        "hours": one.hours,
        "dollars": one.dollars,
        "power": one.power,
    }


def _pilot(arms: Sequence[Arm], options: TestOptions) -> tuple[str, Spread, Prices]:
    """The metric, the spread and the prices of a pilot."""
    check_comparable(arms)
    metrics = shared_metrics(arms, options.metrics)
    if len(metrics) > 1:
        raise UsageError(f"a study is planned for one metric, not for {', '.join(metrics)}", hint="--metric NAME")
    (metric,), ids = metrics, arms[0].ids
    a, b, _ = complete_tables(*(arm.values(metric, ids) for arm in arms), matched=options.matched)
    every = [arm.rounds(metric, ids) for arm in arms]
    rounds = min(x.shape[-1] for x in every)
    judge = None
    if rounds > 1:
        parts = [variance_components(x[:, :, None, :rounds]) for x in every]
        judge = sum(next(one.variance for one in found if one.source == "judge") for found in parts) / len(parts)
    prices = _prices_of([member.path.parent for arm in arms for member in arm.members], arms)
    spread = pilot_spread(a, b, judge, rounds, matched=options.matched)
    if not judge and np.isin(a, (0.0, 1.0)).all() and np.isin(b, (0.0, 1.0)).all():
        spread = replace(spread, shares=(float(a.mean()), float(b.mean())))
    return metric, spread, prices


def _prices_of(folders: Sequence[Any], arms: Sequence[Arm]) -> Prices:
    """The hours of the pilot's runs, and the dollars of a question to its judge, as far as they are known."""
    roots = {folder.parent.parent for folder in folders if RunPaths(folder.parent.parent).metrics.exists()}
    hours = []
    for root in sorted(roots):
        seconds = [row.get(STEP_SECONDS) for row in read_jsonl(RunPaths(root).metrics)]
        hours.append(math.fsum(value for value in seconds if isinstance(value, int | float)) / 3600)
    summaries = [member.summary for arm in arms for member in arm.members if member.summary]
    usage: list[Mapping[str, float | None]] = [one.judging.usage for one in summaries if one.judging]
    known = [(one["dollars"], one["calls"]) for one in usage if one.get("dollars") and one.get("calls")]
    dollars, calls = (
        (math.fsum(value or 0.0 for value in column) for column in zip(*known, strict=True)) if known else (0.0, 0.0)
    )
    criteria = max((len(one.criteria or ()) for one in summaries if one.judging), default=0)
    return Prices(max(hours, default=0.0) or None, None, dollars / calls if calls else None, criteria)


def _prices(found: Prices, assumed: Assumptions, *, judged: bool) -> Prices:
    """What is assumed, else what the pilot shows; a judge has one criterion unless it is known."""
    criteria = int(assumed.criteria or found.calls or (1 if judged else 0))
    return Prices(
        run_hours=found.run_hours if assumed.run_hours is None else assumed.run_hours,
        hour_dollars=assumed.hour_price,
        call_dollars=found.call_dollars if assumed.call_price is None else assumed.call_price,
        calls=criteria,
    )


def _spread(pilot: Spread, assumed: Assumptions, arms: Sequence[Arm]) -> Spread:
    stated = (assumed.seed_sd, assumed.example_sd, assumed.noise_sd, assumed.judge_sd)
    own = (pilot.seed, pilot.example, pilot.noise, pilot.judge)
    values = [known if one is None else one for one, known in zip(stated, own, strict=True)]
    for value, (key, meaning) in zip(values, _MEANINGS.items(), strict=True):
        if math.isnan(value):
            why = "the pilot has one run in each arm" if arms else "there is no pilot"
            raise UsageError(
                f"the standard deviation {meaning} is not known: {why}",
                hint=f"--assume {key}=0.02, or a pilot of several seeds in each arm: A=RUN,RUN B=RUN,RUN",
            )
    seed, example, noise, judge = values
    spread = Spread(seed, example, noise, judge, pilot.shares)
    if assumed.share is not None:
        if arms or judge:
            why = "a pilot shows whether its scores are 0 or 1" if arms else "scores of a judge are not 0 or 1"
            raise UsageError(f"--assume share: {why}", hint="leave the share out")
        spread = replace(spread, shares=(assumed.share, None))
    if spread.shares is not None and any(value is not None for value in stated):
        _check_share(spread.shares[0], spread)
    return spread


def _check_share(share: float, spread: Spread) -> None:
    """Raise UsageError for deviations that scores of 0 and 1 with this share cannot have."""
    sum_of, most = spread.seed**2 + spread.example**2 / 2 + spread.noise**2, share * (1 - share)
    if sum_of > most * (1 + 1e-9):
        raise UsageError(
            f"scores of 0 and 1 with a share of {share:g} do not vary so much",
            hint=f"seed-sd^2 + example-sd^2 / 2 + noise-sd^2 are {share:g} x {1 - share:g} = {most:.3g} at most, "
            f"not {sum_of:.3g}",
        )


def _said(
    metric: str, spread: Spread, shown: Spread, arms: Sequence[Arm], options: TestOptions, effect: float | None
) -> list[str]:
    """What was planned for, in lines: the spread of the pilot or as assumed, and that of simulated scores."""
    of = f"{metric} of the pilot {arms[0].name} against {arms[1].name}" if arms else "assumed"
    lines = [f"{of}: {_deviations(spread)}"]
    if spread.shares is not None:
        lines.append(f"scores are 0 or 1, in the first arm {spread.shares[0]:.1%} are 1")
        lines.append(f"simulated: {_deviations(shown)}")
    if options.margin is not None:
        claim = "equivalence" if options.alternative == "two-sided" else "non-inferiority"
        lines.append(f"to show: {claim}, margin {options.margin:g}")
    if effect is not None:
        lines.append(f"true difference: {effect:g}")
    return lines


def _deviations(spread: Spread) -> str:
    values = (spread.seed, spread.example, spread.noise, spread.judge)
    return ", ".join(f"{key} {value:.3g}" for key, value in zip(_MEANINGS, values, strict=True))


def _direction(spread: Spread, options: TestOptions) -> str:
    if spread.shares is None or options.margin is not None:
        return ""
    return ", as a fall" if options.alternative == "less" else ", as a rise"


def _plan_notes(alpha: float, wanted: float, prices: Prices, spread: Spread, options: TestOptions) -> list[str]:
    by_share = spread.shares is not None and options.margin is not None
    notes = [
        "two arms of so many seeds on the same examples; the test of `smolsum stats`, "
        f"{'by the intervals of its table of shares' if by_share else 'its t'}, at {alpha:.3g}; "
        f"min: found with a power of {100 * wanted:g} %{_direction(spread, options)}",
        "sd: "
        + "; ".join(f"{key}: {meaning}" for key, meaning in _MEANINGS.items())
        + ". A pilot of few runs knows them roughly: try the double of seed-sd too",
    ]
    if spread.judge and prices.calls:
        notes.append(
            "rounds: as many as ask the judge least; each completion is asked about once a criterion and round"
        )
    missing = [
        f"--assume {key}=X"
        for key, value in (
            ("run-hours", prices.run_hours),
            ("hour-price", prices.hour_dollars),
            ("call-price", prices.call_dollars),
        )
        if value is None and (key != "call-price" or prices.calls)
    ]
    if missing:
        notes.append(f"not known (-): {', '.join(missing)}")
    return notes
