"""The study's own t-tests, recomputed. golden/study_ttests.csv holds its Tables 5, 6 and 10-13 as printed; the marks of
Tables 10-13, which the printed text lost, are what its sentences say about them."""

import csv
import math
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.places import GOLDEN

from smolsum.stats import paired_ttest
from smolsum.stats.several import benjamini_hochberg, holm

N = 200
with (GOLDEN / "study_ttests.csv").open() as file:
    ROWS = list(csv.DictReader(file))
CASES = [pytest.param(row, id=f"table{row['table']}-{row['comparison'].split()[0]}-{row['metric']}") for row in ROWS]


def half_digit(printed: str) -> float:
    """Half a unit of the last printed digit: what rounding can have taken."""
    exponent = Decimal(printed).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent


def scores(mean_a: float, delta: float, sd: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """200 pairs whose differences b - a have just this mean and standard deviation."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=N)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    a = mean_a + rng.normal(scale=0.5, size=N)
    return a, a + delta + sd * noise


def test_every_test_of_the_study_is_here() -> None:
    """Five metrics in each of Tables 5 and 6, six configurations in each of Tables 10 to 13; none twice."""
    keys = [(row["table"], row["model"], row["comparison"], row["metric"]) for row in ROWS]
    assert Counter(row["table"] for row in ROWS) == {"5": 5, "6": 5, "10": 6, "11": 6, "12": 6, "13": 6}
    assert len(set(keys)) == len(ROWS) == 34


def test_golden_case() -> None:
    """The case that the study's own files give with all digits: Table 13, ROUGE-L."""
    a, b = scores(2.4159, 0.1392, 0.74023)
    result = paired_ttest(a, b)
    assert (result.n, result.df) == (200, 199)
    assert result.delta == pytest.approx(0.1392)
    assert result.t == pytest.approx(2.6594, abs=5e-5)
    assert result.p == pytest.approx(0.008465, abs=5e-7)
    one_sided = paired_ttest(a, b, alternative="greater")
    assert one_sided.p == pytest.approx(0.004232, abs=1e-6)


@pytest.mark.parametrize("row", CASES)
def test_printed_numbers_agree(row: dict[str, str]) -> None:
    """Except for rounding, every p of the study is that of its t with 199 degrees of freedom, every difference is
    treatment minus baseline, and t has its sign."""
    t, p = float(row["t"]), float(row["p"])
    reach = half_digit(row["t"])
    lowest, highest = (2 * stats.t.sf(abs(t) + shift, N - 1) for shift in (reach, -reach))
    assert lowest - half_digit(row["p"]) <= p <= highest + half_digit(row["p"])
    a, b, delta = (float(row[key]) for key in ("mean_a", "mean_b", "delta"))
    rounding = sum(half_digit(row[key]) for key in ("mean_a", "mean_b", "delta"))
    assert abs(b - a - delta) <= rounding + 1e-12
    assert math.copysign(1, delta) == math.copysign(1, t)


@pytest.mark.parametrize("row", CASES)
def test_pairs_with_the_printed_difference_give_the_printed_test(row: dict[str, str]) -> None:
    """200 pairs with the printed difference, and the spread that the printed t implies, give that t and its p back; and
    that spread is possible for scores in 0-1 (a metric) or 0-4 (the sum)."""
    delta, t = float(row["delta"]), float(row["t"])
    sd = delta * math.sqrt(N) / t
    result = paired_ttest(*scores(float(row["mean_a"]), delta, sd))
    assert result.t == pytest.approx(t)
    assert result.p == pytest.approx(2 * stats.t.sf(abs(t), N - 1))
    assert (result.p < 0.05) == (row["significant"] == "yes")
    top = 4 if row["metric"] == "composite" else 1
    assert sd <= math.sqrt((top**2 - delta**2) * N / (N - 1))


@pytest.mark.parametrize("table", ["5", "6"])
def test_composite_is_the_sum(table: str) -> None:
    """The composite's difference is the sum of the four metrics' differences."""
    differences = [Decimal(row["delta"]) for row in ROWS if row["table"] == table]
    assert sum(differences[:-1]) == differences[-1]


def test_one_sentence_of_the_study_is_not_borne_out() -> None:
    """The text after Table 6 has Faithfulness and Coverage improve significantly for both models; for LFM the table
    says p = 0.0999 and p = 0.1891."""
    unproven = [row["metric"] for row in ROWS if row["table"] == "6" and float(row["delta"]) > 0]
    assert unproven == ["faithfulness", "coverage"]
    assert all(float(row["p"]) > 0.05 for row in ROWS if row["metric"] in unproven and row["table"] == "6")


def test_what_remains_of_the_study_after_adjustment() -> None:
    """Of 24 configurations 19 are significant as printed. All 19 are by Benjamini and Hochberg, two are not by Holm."""
    rows = [row for row in ROWS if int(row["table"]) >= 10]
    p = [float(row["p"]) for row in rows]
    counts = [sum(value < 0.05 for value in values) for values in (p, benjamini_hochberg(p), holm(p))]
    assert len(p) == 24
    assert counts == [19, 19, 17]
    lost = [row for row, raw, held in zip(rows, p, holm(p), strict=True) if raw < 0.05 <= held]
    assert [(row["model"], row["comparison"].split()[0]) for row in lost] == [
        ("lfm", "length-quality-meteor"),
        ("qwen", "length-quality-rouge-l"),
    ]
