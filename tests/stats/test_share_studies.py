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
from smolsum.stats.share_studies import STUDIES, covariance, effects, significant, simulated_power, studies
from smolsum.stats.shares import share_p

HIGH = Spread(0.03, 0.08, 0.15, shares=(0.95, 0.97))


@pytest.mark.parametrize(("share", "other", "correlation"), [(0.9, 0.9, 0.5), (0.99, 0.7, 0.95), (0.5, 0.5, 0.999)])
def test_covariances_are_those_of_two_normal_sums(share: float, other: float, correlation: float) -> None:
    thresholds = special.ndtri([share, other])
    both = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf(thresholds)
    assert covariance(share, other, correlation) == pytest.approx(both - share * other, abs=1e-5)
    assert covariance(share, 1.0, correlation) == 0


@pytest.mark.parametrize("matched", [False, True])
def test_studies_have_the_spread_that_is_asked_for(matched: bool) -> None:
    made = list(studies(effects(HIGH, matched=matched), (0.95, 0.97), Design(10, 60)))
    assert sum(len(a) for a, _ in made) == STUDIES
    assert [np.mean([arm.mean() for arm in arms]) for arms in zip(*made, strict=True)] == pytest.approx(
        [0.95, 0.97], abs=0.002
    )
    found = [pilot_spread(a, b, None, 1, matched=False) for a, b in zip(*made[0], strict=True)]
    for name in ("seed", "example", "noise"):
        variance = np.mean([getattr(one, name) ** 2 for one in found])
        assert math.sqrt(variance) == pytest.approx(getattr(HIGH, name), rel=0.12), name


def test_more_examples_begin_with_the_same_ones() -> None:
    parts, shares = effects(HIGH, matched=False), (0.95, 0.97)
    small, large = (next(studies(parts, shares, Design(3, n))) for n in (20, 30))
    for few, many in zip(small, large, strict=True):
        assert (few == many[..., :20]).all()


@pytest.mark.parametrize("matched", [False, True])
@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_their_tests_are_those_of_stats(alternative: Alternative, matched: bool) -> None:
    """Study for study, as `compare_runs` and `share_p` decide, also where all runs of an arm agree."""
    design = Design(3, 20, matched=matched)
    a, b = next(studies(effects(HIGH, matched=matched), (0.7, 0.99), design))
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
    assert 0 < within[:60].mean() < 1 or alternative == "greater"


def test_near_one_there_is_less_power_than_with_normal_scores() -> None:
    """From 99 to 99.8 %, a study of 20 examples shows nothing: most have no failure at all."""
    total = 0.99 * 0.01
    spread = Spread(math.sqrt(0.01 * total), math.sqrt(0.2 * total), math.sqrt(0.5 * total), shares=(0.99, 0.99))
    for seeds in (3, 10):
        design = Design(seeds, 20)
        assert power(0.008, spread, design, PlannedTest()) < 0.01
        assert power(0.008, replace(spread, shares=None), design, PlannedTest()) > 0.05
    assert math.isnan(detectable(spread, Design(3, 20), PlannedTest()))


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
