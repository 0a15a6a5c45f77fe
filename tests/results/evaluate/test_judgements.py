"""An example's columns, the noise of a judge and the agreement of two, against published and hand-made numbers."""

import numpy as np
import pytest

from smolsum.results.evaluate.judgements import agreement, judge_noise, judged_columns
from smolsum.runs.evaluation_records import Judgement
from smolsum.tasks.tldr.criteria import CRITERIA

RATINGS = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
"""Table 2 of Shrout and Fleiss (1979), whose ICC(1,1) is .17 and ICC(1,4) .44"""


def test_published_icc() -> None:
    """The example of the paper that named these coefficients."""
    noise = judge_noise([[float(x) for x in row] for row in RATINGS])
    assert noise["icc"] == pytest.approx(0.17, abs=0.005)
    assert noise["icc_mean"] == pytest.approx(0.44, abs=0.005)
    assert noise["round_sd"] == pytest.approx(np.sqrt(6.26), abs=0.005)  # their WMS
    assert noise["n"] == 6


def test_a_judge_that_never_wavers() -> None:
    """No spread within examples: all variance is between them; without any spread the ICC is missing."""
    steady = judge_noise([[0.2, 0.2], [0.8, 0.8]])
    assert (steady["round_sd"], steady["icc"], steady["icc_mean"]) == (0, 1, 1)
    flat = judge_noise([[0.5, 0.5], [0.5, 0.5]])
    assert (flat["round_sd"], flat["icc"], flat["icc_mean"]) == (0, None, None)


@pytest.mark.parametrize("rounds", [[], [[0.5]], [[0.5], [0.6]], [[0.5, 0.6]], [[None, 0.1], [0.2, None]]])
def test_too_little_for_noise(rounds: list[list[float | None]]) -> None:
    """One round, or one whole example, says nothing about noise; an example with a missing round is not counted."""
    noise = judge_noise(rounds)
    assert (noise["round_sd"], noise["icc"]) == (None, None)
    assert judge_noise([[0.2, 0.3], [0.8, 0.7], [0.4, None]])["n"] == 2


def test_agreement_matches_known_values() -> None:
    """Correlation and difference over the examples that both scored; a judge that says the same of all has no
    correlation with anybody."""
    first = {"a": 0.1, "b": 0.5, "c": 0.9, "d": None, "e": 0.2}
    found = agreement(first, {"a": 0.2, "b": 0.6, "c": 1.0, "d": 0.3})
    assert found["n"] == 3
    assert (found["pearson"], found["spearman"], found["difference"]) == pytest.approx((1, 1, 0.1))
    assert found["difference_sd"] == pytest.approx(0, abs=1e-12)
    found = agreement({"a": 0.5, "b": 0.5, "c": 0.5}, {"a": 0.1, "b": 0.2, "c": 0.3})
    assert (found["pearson"], found["spearman"]) == (None, None)
    assert agreement({}, {})["difference"] is None


def test_columns_of_one_example() -> None:
    """Means over rounds, their sum, rounds that pass: with a missing score neither the mean nor the passes take a 0."""

    def score(metric: str, number: int) -> float | None:
        if metric == "clarity" and number == 3:
            return None
        return 0.4 if metric == "faithfulness" and number == 1 else 0.5 if number == 1 else 0.9

    found = [Judgement("post", n, c.name, "judge", "key", score(c.name, n)) for c in CRITERIA for n in (1, 2, 3)]
    row = judged_columns(CRITERIA, 3, found)
    assert row["faithfulness"] == pytest.approx((0.4 + 0.9 + 0.9) / 3)
    assert row["clarity"] == pytest.approx(0.7)
    assert row["composite"] == pytest.approx(row["faithfulness"] + 2 * (0.5 + 0.9 + 0.9) / 3 + 0.7)
    assert row["rounds"]["passed"] == [0.0, 1.0, None]
    assert row["pass_rate"] == 0.5
    assert row["passed"] == 0.0
    assert row["rounds"]["composite"] == [pytest.approx(1.9), pytest.approx(3.6), None]
