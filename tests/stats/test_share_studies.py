"""Simulated studies of scores that are 0 or 1: their spread, their tests, and the power that a plan has from them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats
from support.refusals import refuses

from smolsum.stats.design import Design, PlannedTest, Spread, pilot_spread
from smolsum.stats.paired import Alternative
from smolsum.stats.power import Prices, detectable, power, studies_with_power
from smolsum.stats.seeds import compare_runs
from smolsum.stats.share_studies import (
    MAX_SCORES,
    STUDIES,
    covariance,
    effects,
    realised,
    significant,
    simulated_power,
    studies,
)
from smolsum.stats.shares import share_p

HIGH = Spread(0.03, 0.08, 0.15, shares=(0.95, 0.97))


@pytest.mark.parametrize(("share", "other", "correlation"), [(0.9, 0.9, 0.5), (0.99, 0.7, 0.95), (0.5, 0.5, 0.999)])
def test_covariances_are_those_of_two_normal_sums(share: float, other: float, correlation: float) -> None:
    thresholds = special.ndtri([share, other])
    both = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf(thresholds)
    assert covariance(share, other, correlation) == pytest.approx(both - share * other, abs=1e-5)
    assert covariance(share, 1.0, correlation) == 0


@pytest.mark.parametrize("wanted", [HIGH, Spread(0.02, 0.05, 0.08, shares=(0.95, None))])
def test_studies_have_the_spread_that_is_asked_for(wanted: Spread) -> None:
    """As near as scores of 0 and 1 can have it: the second one's shares alone need a larger example-sd."""
    made = list(studies(effects(wanted, 0.02), (0.95, 0.97), Design(10, 60)))
    assert sum(len(a) for a, _ in made) == STUDIES
    assert [np.mean([arm.mean() for arm in arms]) for arms in zip(*made, strict=True)] == pytest.approx(
        [0.95, 0.97], abs=0.002
    )
    found = [pilot_spread(a, b, None, 1, matched=False) for a, b in zip(*made[0], strict=True)]
    for name in ("seed", "example", "noise"):
        variance = np.mean([getattr(one, name) ** 2 for one in found])
        assert math.sqrt(variance) == pytest.approx(getattr(realised(wanted, 0.02), name), rel=0.12), name
    far = [abs(getattr(realised(wanted, 0.02), name) / getattr(wanted, name) - 1) for name in ("example", "noise")]
    assert max(far) < 1e-6 if wanted is HIGH else min(far) > 0.1


def test_more_examples_begin_with_the_same_ones() -> None:
    parts, shares = effects(HIGH, 0.02), (0.95, 0.97)
    small, large = (next(studies(parts, shares, Design(3, n))) for n in (20, 30))
    for few, many in zip(small, large, strict=True):
        assert (few == many[..., :20]).all()


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize(("alternative", "seeds"), [("two-sided", 3), ("greater", 2), ("less", 2)])
def test_their_tests_are_those_of_stats(alternative: Alternative, seeds: int, matched: bool) -> None:
    """Study for study, as `compare_runs` and `share_p` decide: also where all runs of an arm, or of both, agree, or
    differ by the same in each example."""
    design = Design(seeds, 20, matched=matched)
    a, b = next(studies(effects(HIGH, 0.02), (0.7, 0.99), design))
    a[0], b[0], a[1], b[1], b[2] = 0, 1, 0, a[0], a[2]
    if alternative == "less":
        a, b = b, a
    found = significant(a, b, design, PlannedTest(alternative))
    within = significant(a, b, design, PlannedTest(alternative, margin=0.4))
    agree = 0
    for i in range(60):
        agree += len(set(b[i].mean(axis=1))) == 1
        p = compare_runs(a[i], b[i], alternative=alternative, matched=matched).result.p
        assert found[i] == (p < 0.05)
        margin = share_p(a[i], b[i], margin=0.4, alternative=alternative, matched=matched)
        assert margin is not None
        assert within[i] == (margin < 0.05)
    assert agree
    assert 0 < found[:60].mean() < 1
    assert within[:60].mean() > 0


def test_near_one_there_is_less_power_than_with_normal_scores() -> None:
    """From 99 to 99.8 %, a study of 20 examples shows nothing: most have no failure at all."""
    total = 0.99 * 0.01
    spread = Spread(math.sqrt(0.01 * total), math.sqrt(0.2 * total), math.sqrt(0.5 * total), shares=(0.99, 0.99))
    for seeds in (3, 10):
        design = Design(seeds, 20)
        assert power(0.008, spread, design, PlannedTest()) < 0.01
        assert power(0.008, replace(spread, shares=None), design, PlannedTest()) > 0.05
    assert math.isnan(detectable(spread, Design(3, 20), PlannedTest()))


def test_two_matched_runs_that_agree_are_a_test_of_examples() -> None:
    """As `compare_runs` has it: 34 pairs and 0.5 standard deviations have a power of 0.808."""
    design = Design(2, 34, matched=True)
    assert power(0.5, Spread(0.0, 1.0, 0.0), design, PlannedTest()) == pytest.approx(0.808, abs=0.005)


def test_an_effect_is_detectable_though_the_largest_is_not() -> None:
    """An arm that passes always has no spread between its runs, and leaves fewer degrees of freedom."""
    spread, design = Spread(0.02, 0.12, 0.15, shares=(0.9, 0.95)), Design(2, 200)
    found = detectable(spread, design, PlannedTest(), wanted=0.3)
    assert power(found, spread, design, PlannedTest()) >= 0.3
    assert power(0.1, spread, design, PlannedTest()) < 0.3


def test_what_is_detectable_and_what_suffices() -> None:
    """Both have the power that is wanted; a few examples fewer do not."""
    spread, question = Spread(0.01, 0.1, 0.2, shares=(0.8, 0.8)), PlannedTest("greater")
    size = detectable(spread, Design(4, 40), question)
    assert power(size, spread, Design(4, 40), question) == pytest.approx(0.8, abs=0.01)
    assert detectable(spread, Design(4, 40), PlannedTest(margin=0.1)) < 1
    found = studies_with_power(0.19, spread, question, Prices())
    one = found[0]
    assert one.power >= 0.8
    fewer = replace(one.design, examples=round(0.9 * one.design.examples))
    assert simulated_power(0.19, spread, fewer, question) < 0.8


def test_shares_stay_within_one() -> None:
    with refuses("0.95", "0.05"):
        power(0.1, HIGH, Design(3, 20), PlannedTest())
    with refuses("do not vary"):
        power(0.0, Spread(0.0, 0.0, 0.0, shares=(1.0, 1.0)), Design(3, 20), PlannedTest())
    with refuses("too many", f"{MAX_SCORES:,}"):
        power(0.01, HIGH, Design(10, MAX_SCORES), PlannedTest())


def test_what_is_too_large_to_simulate_is_left_out_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six runs of 150 examples are too many here, five are enough; the fewest that are too many are refused."""
    monkeypatch.setattr("smolsum.stats.power.MAX_SCORES", 800)
    monkeypatch.setattr("smolsum.stats.share_studies.MAX_SCORES", 800)
    found = studies_with_power(0.03, HIGH, PlannedTest(), Prices(), examples=150, wanted=0.1)
    assert [one.design.seeds for one in found][-1] == 5
    with refuses("too many"):
        studies_with_power(0.03, HIGH, PlannedTest(), Prices(), examples=500)
