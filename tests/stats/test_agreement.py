"""Agreement beyond chance."""

import math

import numpy as np
import pytest

from smolsum.stats.agreement import cohens_kappa, krippendorff_alpha


def test_kappa_of_cohens_table() -> None:
    """20 times both yes, 15 both no, 5 and 10 one of them: 0.7 agree, 0.5 by chance."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    found = cohens_kappa([a for a, _ in pairs], [b for _, b in pairs])
    assert (found.n, found.agreed) == (50, 0.7)
    assert found.kappa == pytest.approx(0.4)
    # the usual standard error of this table is 0.127
    assert (found.low, found.high) == pytest.approx((0.4 - 1.96 * 0.127, 0.4 + 1.96 * 0.127), abs=0.04)


def test_raw_agreement_that_chance_explains() -> None:
    """A judge that passes everything agrees with 90 % of the labels, and kappa is 0."""
    found = cohens_kappa([True] * 20, [True] * 18 + [False] * 2)
    assert found.agreed == 0.9
    assert found.kappa == pytest.approx(0.0)


def test_kappa_without_chance_or_items() -> None:
    """Undefined where both say one thing only, and of nothing."""
    assert math.isnan(cohens_kappa([True] * 5, [True] * 5).kappa)
    assert cohens_kappa([], []).n == 0


def test_clusters_widen_the_interval() -> None:
    """Ten copies of each item say no more than one; the same verdicts give the same interval."""
    rng = np.random.default_rng(0)
    first = rng.random(40) < 0.5
    second = np.where(rng.random(40) < 0.8, first, ~first)
    copies = [list(np.repeat(one, 10)) for one in (first, second)]
    alone = cohens_kappa(list(first), list(second))
    together = cohens_kappa(*copies, clusters=list(np.repeat(np.arange(40), 10)))
    assert together.kappa == pytest.approx(alone.kappa)
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high))
    apart = cohens_kappa(*copies)
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)
    assert cohens_kappa(*copies) == apart


def test_alpha_of_krippendorffs_example() -> None:
    """His example of four observers with missing values: 0.849 for interval data."""
    x = math.nan
    scores = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, x, x, x],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, x, 3],
        [x, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, x],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, x],
    ]
    assert krippendorff_alpha(np.array(scores)) == pytest.approx(0.849, abs=5e-4)


def test_alpha_without_variance() -> None:
    assert math.isnan(krippendorff_alpha(np.ones((3, 4))))
    assert math.isnan(krippendorff_alpha(np.array([[1.0, math.nan], [2.0, math.nan]])))
