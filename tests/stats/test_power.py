"""Power before spending: against the noncentral t distribution, G*Power's example and simulated studies."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.refusals import refuses

from smolsum.stats.design import Design, PlannedTest, Spread, pilot_spread
from smolsum.stats.paired import Alternative
from smolsum.stats.power import Prices, detectable, power, price, studies_with_power
from smolsum.stats.seeds import compare_runs, margin_p, variance_components

SEEDS_ONLY, EXAMPLES_ONLY = Spread(1.0, 0.0, 0.0), Spread(0.0, 1.0, 0.0)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_runs_alone_have_the_power_of_student(alternative: Alternative) -> None:
    """Where only seeds vary, matched runs are a t-test of S differences: the noncentral t distribution."""
    effect, seeds = (-1.5 if alternative == "less" else 1.5), 6
    shift = abs(effect) / math.sqrt(2 / seeds)
    critical = stats.t.isf(0.025 if alternative == "two-sided" else 0.05, seeds - 1)
    expected = stats.nct.sf(critical, seeds - 1, shift)
    expected += stats.nct.cdf(-critical, seeds - 1, shift) if alternative == "two-sided" else 0
    found = power(effect, SEEDS_ONLY, Design(seeds, 50, matched=True), PlannedTest(alternative))
    assert found == pytest.approx(expected, abs=0.004)


def test_examples_alone_have_the_power_of_student() -> None:
    """Where only examples vary: G*Power's example, 34 pairs and 0.5 standard deviations, has 0.80778."""
    assert power(0.5, EXAMPLES_ONLY, Design(5, 34), PlannedTest()) == pytest.approx(0.80778, abs=0.003)


def test_no_effect_has_the_level_as_power() -> None:
    """A test of no effect is significant in about 5 %, for any parts of the variance."""
    for spread in (Spread(0.3, 1.0, 0.5), Spread(0.1, 0.2, 1.0, 0.5), Spread(1.0, 0.1, 0.1)):
        for design in (Design(3, 100), Design(8, 30, 3), Design(5, 60, matched=True)):
            assert power(0.0, spread, design, PlannedTest()) == pytest.approx(0.05, abs=0.013)
            assert power(0.0, spread, design, PlannedTest(alpha=0.01)) < 0.02


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("margin", [None, 0.6])
def test_predicted_power_is_that_of_studies(matched: bool, margin: float | None) -> None:
    """400 simulated studies with these variances: their tests are significant as often as predicted."""
    spread, design = Spread(0.2, 0.8, 0.6, 0.4), Design(4, 40, 2, matched)
    effect = 0.5 if margin is None else 0.0
    predicted = power(effect, spread, design, PlannedTest(margin=margin))
    rng, found = np.random.default_rng([matched, margin is None]), []
    for _ in range(400):
        noise = math.sqrt(spread.noise**2 + spread.judge**2 / 2)
        arms = [
            rng.normal(scale=0.2, size=(4, 1)) + rng.normal(scale=0.8 / math.sqrt(2), size=(1, 40))
            + rng.normal(scale=noise, size=(4, 40)) + shift
            for shift in (0.0, effect)
        ]  # fmt: skip
        result = compare_runs(arms[0], arms[1], alternative="two-sided", matched=matched).result
        found.append((result.p if margin is None else margin_p(result, margin)) < 0.05)
    assert 0.3 < predicted < 0.97
    assert np.mean(found) == pytest.approx(predicted, abs=0.06)


def test_what_is_detectable_is_found_with_that_power() -> None:
    """Both ways, also below 0 and for a margin."""
    spread, design = Spread(0.2, 1.0, 0.5), Design(5, 100)
    for question in (PlannedTest(), PlannedTest("less"), PlannedTest(margin=1.0), PlannedTest("greater", margin=1.0)):
        size = detectable(spread, design, question, wanted=0.9)
        sign = -1 if question.alternative == "less" else 1
        reached = (
            power(sign * size, spread, design, question)
            if question.margin is None
            else power(0.0, spread, design, replace(question, margin=size))
        )
        assert reached == pytest.approx(0.9, abs=1e-3)


def test_studies_have_the_power_with_the_fewest_examples() -> None:
    """One example fewer is not enough; more seeds need no more examples; rounds of the judge are added where they save
    questions to it."""
    spread = Spread(0.05, 1.0, 0.5, 1.5)
    found = studies_with_power(0.3, spread, PlannedTest(), Prices(2.0, 0.5, 0.01, calls=4))
    for one in found:
        assert one.power >= 0.8
        assert power(0.3, spread, replace(one.design, examples=one.design.examples - 1), PlannedTest()) < 0.8
        assert one.judge_calls == one.design.completions * one.design.rounds * 4
        assert one.dollars == pytest.approx(2 * one.design.seeds * 2.0 * 0.5 + one.judge_calls * 0.01)
    examples = [one.design.examples for one in found if one.design.rounds == 1]
    assert examples == sorted(examples, reverse=True)
    assert len(found) > 3
    fixed = studies_with_power(0.3, replace(spread, judge=0.0), PlannedTest(), Prices(), examples=300)
    assert {one.design.examples for one in fixed} == {300}


def test_what_has_no_price_is_not_known() -> None:
    """An unknown price is missing, not 0; without a judge its price is not needed."""
    design = Design(3, 10)
    assert price(design, 0.8, Prices()).hours is None
    assert price(design, 0.8, Prices(run_hours=1.0)).dollars is None
    assert price(design, 0.8, Prices(1.0, 2.0)).dollars == 12.0
    assert price(design, 0.8, Prices(1.0, 2.0, None, calls=1)).dollars is None


def test_seeds_that_vary_too_much_are_refused() -> None:
    """No number of examples helps where seeds vary by more than the effect."""
    with refuses("0.01", "--effect"):
        studies_with_power(0.01, Spread(1.0, 1.0, 1.0), PlannedTest(), Prices())


@pytest.mark.parametrize("bad", [{"seeds": 1}, {"examples": 1}, {"rounds": 0}])
def test_designs_have_a_least_size(bad: dict[str, int]) -> None:
    (name,) = bad
    with refuses(name):
        Design(**{"seeds": 3, "examples": 10, **bad})
    with refuses("vary"):
        power(0.1, Spread(0, 0, 0), Design(3, 10), PlannedTest())


def test_a_pilot_shows_its_spread() -> None:
    """Simulated pilots have the standard deviations that they were made from; single runs show none of seeds."""
    rng, runs = np.random.default_rng(0), 60
    true = Spread(0.4, 1.0, 0.8, 0.6)
    common = rng.normal(size=(1, 300, 1, 1))
    arms = [
        common + rng.normal(scale=1 / math.sqrt(2), size=(1, 300, 1, 1)) + rng.normal(scale=0.4, size=(runs, 1, 1, 1))
        + rng.normal(scale=0.8, size=(runs, 300, 1, 1)) + rng.normal(scale=0.6, size=(runs, 300, 1, 2))
        for _ in range(2)
    ]  # fmt: skip
    judge = next(one.variance for one in variance_components(arms[0]) if one.source == "judge")
    a, b = (arm.mean(axis=(2, 3)) for arm in arms)
    for matched in (False, True):
        found = pilot_spread(a, b, judge, 2, matched=matched)
        for name in ("seed", "example", "noise", "judge"):
            assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.15), name
    single = pilot_spread(a[:1], b[:1], None, 1, matched=False)
    assert math.isnan(single.seed)
    assert single.example == pytest.approx((b - a)[0].std(ddof=1))
    with refuses("1 complete"):
        pilot_spread(a[:, :1], b[:, :1], None, 1, matched=False)
