"""Significance by metric, how many of the judge's scores differ and in which direction; and intervals of means."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.reports import edit, report_of, tables
from support.studies import CRITERIA, PATHS, judged, run

from smolsum.results.report.document import number
from smolsum.results.report.results import cells_of_test, mean_interval, tally
from smolsum.stats.paired import PairedResult, paired_ttest
from smolsum.stats.seeds import compare_runs

EXAMPLES = 40
NOISE = np.random.default_rng(3).normal(size=EXAMPLES)
NOISE = (NOISE - NOISE.mean()) / NOISE.std(ddof=1)


def compared(p: float, sign: int = 1) -> PairedResult:
    """A test of 40 examples with this two-sided p, and a difference of this sign."""
    t = stats.t.isf(p / 2, EXAMPLES - 1)
    differences = NOISE + sign * t / np.sqrt(EXAMPLES)
    return compare_runs(np.zeros((1, EXAMPLES)), differences[None], alternative="two-sided").result


@pytest.mark.parametrize(
    ("comparisons", "expected"),
    [
        ([], []),
        ([{}], ["-"]),
        ([{"a": compared(0.03), "b": compared(0.2)}], ["1/2 better"]),
        ([{"a": compared(0.001), "b": compared(0.001, -1), "c": compared(0.3)}], ["1/3 better, 1/3 worse"]),
        ([{"a": compared(0.3)}], ["0/1"]),
        # Holm over the two comparisons of a: 0.03 becomes 0.06; b is tested once
        ([{"a": compared(0.03), "b": compared(0.03)}, {"a": compared(0.4)}], ["1/2 better", "0/1"]),
        ([{"a": compared(0.02)}, {"a": compared(0.04, -1)}], ["1/1 better", "1/1 worse"]),
    ],
)
def test_counts_after_correction(comparisons: list[Mapping[str, PairedResult]], expected: list[str]) -> None:
    assert [one.text for one in tally(comparisons)] == expected


def test_what_is_undefined_is_a_dash() -> None:
    """Of one pair there is no test; a missing value without a command has nothing to offer."""
    assert {cell.text for cell in cells_of_test(paired_ttest([0.1], [0.2]), math.nan)} == {"-"}
    assert [number(value, str).text for value in (None, math.nan, 0.0)] == ["-", "-", "0.0"]
    assert number(None, str, command="smolsum eval run").command == "smolsum eval run"


def judged_run(folder: Path, name: str, stages: dict[str, list[str]], shifts: dict[str, float]) -> Path:
    """A run whose judged scores differ from 0.5 by noise without a mean, and by these shifts."""
    rng = np.random.default_rng(sum(map(ord, name)))
    noise = {key: rng.normal(scale=0.02, size=EXAMPLES) for key in CRITERIA}
    columns = {key: 0.5 + shifts.get(key, 0.0) + values - values.mean() for key, values in noise.items()}
    columns["composite"] = sum(columns.values(), np.zeros(EXAMPLES))
    rows = judged(columns)
    return run(folder, name, PATHS["lfm"], stages, rows, {key: float(np.mean(v)) for key, v in columns.items()})


def test_a_report_counts_the_metrics_of_each_configuration(tmp_path: Path) -> None:
    """Two criteria higher, one lower, one and their sum as before: the table says so next to the test of the sum."""
    judged_run(tmp_path, "length", {"length": ["length"]}, {})
    shifts = {"faithfulness": 0.05, "coverage": 0.05, "clarity": -0.1}
    judged_run(tmp_path, "mixed", {"included": ["length", "meteor"]}, shifts)
    judged_run(tmp_path, "better", {"included": ["length", "rouge"]}, dict.fromkeys(CRITERIA, 0.1))
    table = tables(report_of(*tmp_path.iterdir()))["11"]
    place = table.columns.index("Metrics")
    found = {row[0].text: row[place].text for row in table.filled}
    assert found == {
        "length-only (GRPO baseline)": "-",
        "length-quality-meteor": "2/5 better, 1/5 worse",
        "length-quality-rouge": "5/5 better",
    }
    (note,) = [note for note in table.notes if note.startswith("Metrics:")]
    assert all(name in note for name in (*CRITERIA, "composite", "Holm"))


def test_a_task_with_criteria_of_its_own_counts_them_too(tmp_path: Path) -> None:
    """Before and after training, of its two criteria and their sum: one criterion is higher, and so is the sum."""
    own = list(CRITERIA[:2])
    after = judged_run(tmp_path, "after", {"verse": ["rouge"]}, {"coverage": 0.1}) / "eval" / "verse-test"
    before = judged_run(tmp_path / "other", "before", {"verse": ["rouge"]}, {}) / "eval" / "verse-test"
    start = before.rename(after.with_name("start-test"))
    edit(after / "summary.json", criteria=own)
    edit(start / "summary.json", criteria=own, step=0)
    table = tables(report_of(tmp_path / "after"))["S11"]
    assert [row[table.columns.index("Metrics")].text for row in table.rows] == ["2/3 better"]


def test_interval_is_students() -> None:
    """By hand for 0, 2, 2, 0, 2 without one that is missing; SciPy agrees."""
    values = np.array([0.0, 2.0, math.nan, 2.0, 0.0, 2.0])
    found = mean_interval(values)
    assert (found.n, found.mean) == (5, pytest.approx(1.2))
    assert found.low == pytest.approx(1.2 - 2.776445 * math.sqrt(1.2 / 5), abs=1e-6)
    known = values[~np.isnan(values)]
    expected = stats.t.interval(0.95, 4, loc=known.mean(), scale=stats.sem(known))
    assert (found.low, found.high) == pytest.approx(expected)


def test_interval_of_right_and_wrong_is_exact() -> None:
    """That of SciPy for 3 of 5, and not of no width where all are right: down to 0.025^(1/20) for 20 of 20."""
    found = mean_interval(np.array([0.0, 1.0, math.nan, 1.0, 0.0, 1.0]))
    expected = stats.binomtest(3, 5).proportion_ci(0.95, method="exact")
    assert (found.n, found.mean) == (5, pytest.approx(0.6))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    sure = mean_interval(np.ones(20))
    assert (sure.low, sure.high) == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_interval_of_shares_stays_within_0_and_1() -> None:
    """Of 40 documents one has a question without an answer: Student's would go beyond 1, and hardly below 0.96."""
    found = mean_interval(np.array([1.0] * 39 + [0.5]))
    assert 0.9 < found.low < 0.96
    assert found.mean < found.high < 1


@pytest.mark.parametrize("values", [[], [0.5], [math.nan]])
def test_one_example_has_no_interval(values: list[float]) -> None:
    found = mean_interval(np.array(values, dtype=float))
    assert math.isnan(found.low)
    assert math.isnan(found.high)
